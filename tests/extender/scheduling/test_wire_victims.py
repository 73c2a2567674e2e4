"""Both forms of preempt's victims, and the exact replies of all verbs."""

import json
from typing import Any

import pytest

from extender.scheduling import wire
from extender.scheduling.wire import FilterResult
from gpushare.domain.model import NodeName, PodRequest, PodUID
from gpushare.domain.preemption import Victims
from gpushare.kube.json_reader import Malformed
from tests.builders import pod_json

N = NodeName("n")


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


FORMS = [
    pytest.param("NodeNameToMetaVictims", {"UID": "u1"}, id="with-uids"),
    pytest.param("NodeNameToVictims", {"metadata": {"uid": "u1"}}, id="whole-pods"),
]


@pytest.mark.parametrize(("key", "victim"), FORMS)
def test_victims_come_in_two_forms(key: str, victim: Any) -> None:
    """nodeCacheCapable decides which (contracts 1.3); the other one is null."""
    other = {"NodeNameToMetaVictims", "NodeNameToVictims"} - {key}
    victims = {"n": {"Pods": [victim], "NumPDBViolations": 2}, "m": {"Pods": None}}
    args = wire.preemption_args(
        body(Pod=pod_json(units=4), **{key: victims}, **dict.fromkeys(other))
    )
    assert args.proposals == {"n": Victims((PodUID("u1"),), 2), "m": Victims(())}
    assert isinstance(args.request, PodRequest)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        pytest.param({}, "NodeNameToVictims", id="neither"),
        pytest.param({"NodeNameToMetaVictims": []}, "NodeNameToMetaVictims", id="list"),
        pytest.param(
            {"NodeNameToMetaVictims": {"n": None}}, "NodeNameToMetaVictims.n", id="null"
        ),
        pytest.param(
            {"NodeNameToMetaVictims": {"n": {"Pods": 1}}},
            "NodeNameToMetaVictims.n.Pods",
            id="pods-a-number",
        ),
        pytest.param(
            {"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": ""}]}}},
            "NodeNameToMetaVictims.n.Pods[0].UID",
            id="no-uid",
        ),
        pytest.param(
            {"NodeNameToMetaVictims": {"n": {"NumPDBViolations": "1"}}},
            "NodeNameToMetaVictims.n.NumPDBViolations",
            id="violations-a-string",
        ),
        pytest.param(
            {"NodeNameToVictims": {"n": {"Pods": [{}]}}},
            "NodeNameToVictims.n.Pods[0].metadata",
            id="whole-pod-without-metadata",
        ),
    ],
)
def test_malformed_victims_are_named(given: dict[str, Any], field: str) -> None:
    """Node and place in the list stand in the path."""
    with pytest.raises(Malformed) as error:
        wire.preemption_args(body(Pod=pod_json(), **given))
    assert error.value.field.removeprefix("body.") == field


def test_filter_answers_with_unresolvable_refusals() -> None:
    """Every key, in Go's names; a node that is refused is never resolvable."""
    assert wire.filter_reply(FilterResult([N], {NodeName("m"): "No shared cards"})) == (
        b'{"Nodes":null,"NodeNames":["n"],"FailedNodes":{},'
        b'"FailedAndUnresolvableNodes":{"m":"No shared cards"},"Error":""}'
    )
    assert wire.filter_reply(FilterResult(error="no")) == (
        b'{"Nodes":null,"NodeNames":[],"FailedNodes":{},'
        b'"FailedAndUnresolvableNodes":{},"Error":"no"}'
    )


def test_the_other_replies_are_exact() -> None:
    """Prioritize a bare list, bind an Error, preempt always the form with UIDs."""
    assert wire.prioritize_reply([(N, 7)]) == b'[{"Host":"n","Score":7}]'
    assert wire.prioritize_reply([]) == b"[]"
    assert wire.bind_reply() == b'{"Error":""}'
    assert wire.bind_reply("no") == b'{"Error":"no"}'
    assert wire.preempt_reply({N: Victims((PodUID("u1"),), 1)}) == (
        b'{"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"u1"}],"NumPDBViolations":1}}}'
    )
