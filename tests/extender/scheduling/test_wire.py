"""kube-scheduler's JSON: what is read, refused and written."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.scheduling import wire
from extender.scheduling.wire import FilterResult
from gpushare.domain.eviction.preemption import Victims
from gpushare.domain.model import NodeName, PodRequest, PodUID, Refusal
from gpushare.kube import names
from gpushare.kube.json_reader import Malformed
from tests.builders import container_json, pod_json, ref, request

BINDING = {
    "PodName": "pod",
    "PodNamespace": "default",
    "PodUID": "uid-pod",
    "Node": "n",
}


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def field_of(error: Malformed) -> str:
    return error.field.removeprefix("body.")


def pod_with(part: str, **change: Any) -> dict[str, Any]:
    pod = pod_json(units=4)
    return {**pod, part: {**pod[part], **change}}


BAD_BODIES = [
    pytest.param(b"", "body", id="empty"),
    pytest.param(b"{", "body", id="not-json"),
    pytest.param(b"\xff\xfe", "body", id="not-utf-8"),
    pytest.param(b"[]", "body", id="a-list"),
    pytest.param(b"null", "body", id="null"),
    pytest.param(b'"text"', "body", id="a-string"),
    pytest.param(b"[" * 100_000, "body", id="very-deep"),
]
BAD_PODS = [
    pytest.param(None, "Pod", id="no-pod"),
    pytest.param({}, "Pod.metadata", id="no-metadata"),
    pytest.param({**pod_json(), "spec": "x"}, "Pod.spec", id="spec-a-string"),
    pytest.param(
        pod_with("spec", schedulingGroup="x"), "Pod.spec.schedulingGroup", id="group"
    ),
    pytest.param(pod_with("metadata", uid=7), "Pod.metadata.uid", id="uid-a-number"),
    pytest.param(
        pod_with("spec", containers=[container_json(), {"name": "b", "resources": 1}]),
        "Pod.spec.containers[1].resources",
        id="resources-a-number",
    ),
    pytest.param(
        pod_json(units="lots"),
        f"Pod.spec.containers[0].resources.requests.{names.MEMORY}",
        id="no-quantity",
    ),
]
READERS = [
    pytest.param(wire.read_extender_args, id="filter-prioritize"),
    pytest.param(wire.read_preemption_args, id="preempt"),
    pytest.param(wire.read_binding_args, id="bind"),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(("raw", "field"), BAD_BODIES)
def test_a_body_that_is_no_object_is_named(
    read: Callable[[bytes], object], raw: bytes, field: str
) -> None:
    with pytest.raises(Malformed) as error:
        read(raw)
    assert field_of(error.value) == field


@pytest.mark.parametrize("read", READERS[:2])
@pytest.mark.parametrize(("pod", "field"), BAD_PODS)
def test_a_malformed_pod_is_named_by_its_field(
    read: Callable[[bytes], object], pod: Any, field: str
) -> None:
    """The path begins at Pod; a request that no card can meet is a refusal instead."""
    with pytest.raises(Malformed, match=f"^{re.escape(field)}: "):
        read(body(Pod=pod, NodeNames=["n"], NodeNameToMetaVictims={"n": {}}))
    args = wire.read_extender_args(body(Pod=pod_json(cores=150), NodeNames=["n"]))
    assert isinstance(args.request, Refusal)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"NodeNames": None},
        {"NodeNames": "n"},
        {"NodeNames": {"n": 1}},
        {"NodeNames": ["a", 1]},
        {"NodeNames": ["a", None]},
        {"NodeNames": ["a", ["n"]]},
    ],
    ids=repr,
)
def test_node_names_must_be_a_list_of_strings(given: dict[str, Any]) -> None:
    """Hashable or not, and never a TypeError; no later module checks them."""
    with pytest.raises(Malformed, match=r"^NodeNames: "):
        wire.read_extender_args(body(Pod=pod_json(), **given))


def test_filter_is_asked_about_a_pod_and_names() -> None:
    """Whole nodes leave the names open, for the verb to say."""
    pod = pod_json(units=4, priority=7)
    for fields, names_read in (
        ({"Nodes": None, "NodeNames": ["a", "b"]}, ["a", "b"]),
        ({"NodeNames": []}, []),
        ({"Nodes": {"items": []}}, None),
    ):
        args = wire.read_extender_args(body(Pod=pod, **fields))
        assert (args.pod, args.names) == (ref(priority=7), names_read)
        assert args.request == request(units=4, priority=7)


@pytest.mark.parametrize("bad", [None, "", 7], ids=repr)
@pytest.mark.parametrize("field", sorted(BINDING))
def test_each_field_of_bind_is_needed(field: str, bad: Any) -> None:
    args = wire.read_binding_args(body(**BINDING))
    assert (args.namespace, args.name, args.uid) == ("default", "pod", "uid-pod")
    with pytest.raises(Malformed) as error:
        wire.read_binding_args(body(**{**BINDING, field: bad}))
    assert field_of(error.value) == field


N = NodeName("n")


FORMS = [
    pytest.param("NodeNameToMetaVictims", {"UID": "u1"}, id="with-uids"),
    pytest.param("NodeNameToVictims", {"metadata": {"uid": "u1"}}, id="whole-pods"),
]


@pytest.mark.parametrize(("key", "victim"), FORMS)
def test_victims_come_in_two_forms(key: str, victim: Any) -> None:
    """nodeCacheCapable decides which (contracts 1.3); the other one is null."""
    other = {"NodeNameToMetaVictims", "NodeNameToVictims"} - {key}
    victims = {"n": {"Pods": [victim], "NumPDBViolations": 2}, "m": {"Pods": None}}
    args = wire.read_preemption_args(
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
    with pytest.raises(Malformed) as error:
        wire.read_preemption_args(body(Pod=pod_json(), **given))
    assert error.value.field.removeprefix("body.") == field


def test_filter_answers_with_unresolvable_refusals() -> None:
    assert wire.write_filter_reply(
        FilterResult([N], {"No shared cards": [NodeName("m")]})
    ) == (
        b'{"Nodes":null,"NodeNames":["n"],"FailedNodes":{},'
        b'"FailedAndUnresolvableNodes":{"m":"No shared cards"},"Error":""}'
    )
    assert wire.write_filter_reply(FilterResult(error="no")) == (
        b'{"Nodes":null,"NodeNames":[],"FailedNodes":{},'
        b'"FailedAndUnresolvableNodes":{},"Error":"no"}'
    )


NAMES = st.lists(st.text(max_size=5).map(NodeName), max_size=5, unique=True)


@given(NAMES, st.text(max_size=9), NAMES, st.booleans())
def test_refusals_are_the_same_as_by_a_dictionary(
    listed: list[NodeName],
    reason: str,
    others: list[NodeName],
    awaited: bool,
) -> None:
    """Whatever is in them: nothing that a name contains ends its string."""
    others = [name for name in others if name not in listed]
    result = FilterResult((), {reason: listed, f"{reason}.": others})
    if awaited and listed:
        result = replace(result, awaited=listed[0])
    reply = orjson.loads(wire.write_filter_reply(result))
    told = {**reply["FailedNodes"], **reply["FailedAndUnresolvableNodes"]}
    assert told == result.refused
    assert list(reply["FailedNodes"]) == listed[: awaited and bool(listed)]


def test_the_other_replies_are_exact() -> None:
    assert wire.write_prioritize_reply([(N, 7)]) == b'[{"Host":"n","Score":7}]'
    assert wire.write_prioritize_reply([]) == b"[]"
    assert wire.write_bind_reply() == b'{"Error":""}'
    assert wire.write_bind_reply("no") == b'{"Error":"no"}'
    assert wire.write_preempt_reply({N: Victims((PodUID("u1"),), 1)}) == (
        b'{"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"u1"}],"NumPDBViolations":1}}}'
    )
