"""``-o json`` of inspect, why and top: the promised shapes, and data kept as files."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpusharectl import inspect
from gpusharectl.output import encode
from gpusharectl.state.read import ClusterState
from gpusharectl.state.view import build_overview
from gpusharectl.top import command as top_command
from gpusharectl.top.rows import Sign
from gpusharectl.why import command as why_command
from gpusharectl.why.command import encode_answer
from gpusharectl.why.explain import explain_pod
from tests.gpusharectl.cluster_states import (
    SCENES,
    crowd,
)
from tests.gpusharectl.golden import assert_data_as_kept
from tests.gpusharectl.top_states import SCENES as TOP_SCENES
from tests.gpusharectl.top_states import top_of
from tests.gpusharectl.why.test_explain import pod_in

TOP = (
    "v at namespace setup books policy card_order totals largest_free nodes pending "
    "pending_claims namespaces warnings"
)
TOP_KEYS = "v at books totals nodes cards pods warnings"
PARTS = {"cores", "units", "memory_mib"}


def keys_in(data: object) -> Iterator[str]:
    match data:
        case dict():
            for key, value in data.items():
                yield key
                yield from keys_in(value)
        case list():
            for one in data:
                yield from keys_in(one)


def same_as_json(data: object) -> bool:
    """JSON and nothing else, so that YAML says the same."""
    match data:
        case list():
            return all(map(same_as_json, data))
        case dict():
            return all(type(k) is str and same_as_json(v) for k, v in data.items())
    return data is None or type(data) in (bool, int, float, str)


@pytest.mark.parametrize("name", SCENES)
def test_the_shape_is_the_same_for_every_cluster(name: str) -> None:
    """Each key is in the module's promise; every value is JSON; why's too."""
    seen = SCENES[name]()
    data = encode(build_overview(seen))
    assert set(data) == set(TOP.split())
    assert same_as_json(data)
    promised = set(re.findall(r"\w+", f"{inspect.__doc__}")) | PARTS
    assert set(keys_in(data)) <= promised
    promised |= set(re.findall(r"\w+", f"{why_command.__doc__}"))
    for pod in list(seen.pods.values())[-20:]:
        answer = explain_pod(seen, pod.body)
        data = encode_answer(answer, seen.placements)
        assert same_as_json(data)
        assert set(keys_in(data)) <= promised
        assert data["code"] == answer.code
        assert data["state"] in str(why_command.__doc__)


@pytest.mark.parametrize(
    "name",
    [
        *("sick", "limited", "mig", "unplaced", "making_room", "swapped", "troubled"),
        *("tenants", "unread"),
    ],
)
def test_data_of_inspect(name: str) -> None:
    """By the byte: it is a promise. What is not known is null, and never 0."""
    assert_data_as_kept(f"inspect-{name}", data_of(SCENES[name]()))


@pytest.mark.parametrize(
    ("scene", "name"),
    [
        ("small", "big"),
        ("swapped", "mover"),
        ("unplaced", "byhand"),
        ("apart", "pair"),
        ("selected", "picky"),
        ("selected", "mine"),
        ("cordoned", "next"),
        ("whole_card", "two"),
        ("making_room", "vip"),
        ("fragmented", "both"),
        ("sick", "next"),
    ],
)
def test_data_of_why(scene: str, name: str) -> None:
    """Nothing is missing on a closed card, nor where whole cards are asked for."""
    seen = SCENES[scene]()
    data = encode_answer(explain_pod(seen, pod_in(seen, name)), seen.placements)
    assert_data_as_kept(f"why-{scene}-{name}", data)


@pytest.mark.parametrize(
    "name",
    [
        *("at_work", "unknown", "silent", "closed", "elsewhere", "containers"),
        "no_exporters",
    ],
)
def test_data_of_top(name: str) -> None:
    """What is not known is null, and 0 is idle."""
    assert_data_as_kept(f"top-{name}", encode(top_of(name)))


def data_of(state: ClusterState) -> dict[str, Any]:
    data: dict[str, Any] = encode(build_overview(state))
    return data


def test_nothing_is_cut() -> None:
    crowded = data_of(crowd())
    assert len(crowded["nodes"][0]["cards"][0]["pods"]) == 301
    assert len(crowded["pending"]) == 14


@pytest.mark.parametrize("name", TOP_SCENES)
def test_the_shape_of_top_is_the_same_for_every_cluster(name: str) -> None:
    """Each key is in the module's promise; every value is JSON; nothing is cut."""
    data = encode(top_of(name))
    assert set(data) == set(TOP_KEYS.split())
    assert same_as_json(data)
    promised = set(re.findall(r"\w+", f"{top_command.__doc__} {inspect.__doc__}"))
    assert set(keys_in(data)) <= promised
    assert len(data["pods"]) == len(top_of(name).pods)


def test_every_sign_is_promised() -> None:
    promised = set(re.findall(r"[\w-]+", top_command.__doc__ or ""))
    assert {sign.value for sign in Sign} <= promised
