"""``-o json`` and ``-o yaml`` of inspect and why: the promised shapes, complete."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpusharectl.state import serialize
from gpusharectl.state.serialize import overview_data
from gpusharectl.state.view import overview
from gpusharectl.why import serialize as why_serialize
from gpusharectl.why.explain import why
from gpusharectl.why.serialize import answer_data
from tests.gpusharectl.cluster_states import (
    SCENES,
    A,
    B,
    crowd,
    making_room,
    small,
    swapped,
    tenants,
    troubled,
    unplaced,
    unread,
)
from tests.gpusharectl.why.test_explain import pod_in

TOP = (
    "v at books policy card_order totals largest_free nodes pending namespaces warnings"
)
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
    data = overview_data(overview(seen))
    assert set(data) == set(TOP.split())
    assert same_as_json(data)
    promised = set(re.findall(r"\w+", f"{serialize.__doc__}")) | PARTS
    assert set(keys_in(data)) <= promised
    promised |= set(re.findall(r"\w+", f"{why_serialize.__doc__}"))
    for pod in seen.pods.values():
        answer = why(seen, pod.body)
        data = answer_data(answer, seen.placements)
        assert same_as_json(data)
        assert set(keys_in(data)) <= promised
        assert data["code"] == answer.code
        assert data["state"] in str(why_serialize.__doc__)


def node_named(data: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (node for node in data["nodes"] if node["name"] == name)
    return dict(found)


def test_numbers() -> None:
    """Units with their MiB; a card's pods add up to what is allotted."""
    data = overview_data(overview(small()))
    assert data["totals"] == {
        "nodes": 2,
        "other_nodes": 0,
        "cards": 3,
        "units": 152,
        "allotted_units": 131,
        "pending": 1,
    }
    (card,) = node_named(data, "node-1")["cards"]
    assert card["memory_mib"] == 94 * 256
    assert card["allotted"] == {"cores": 3, "units": 91, "memory_mib": 23296}
    assert card["free"] == {"cores": 97, "units": 3, "memory_mib": 768}
    assert sum(pod["units"] for pod in card["pods"]) == 91
    assert data["largest_free"]["units"] == 9
    assert data["books"] == {"from": "extender", "because": None}


def test_unknown_is_null() -> None:
    """And never 0: a node not heard of, resources that kubelet does not know."""
    data = overview_data(overview(troubled()))
    assert node_named(data, "lost")["ready"] is None
    assert node_named(data, "broken")["offered"] == {"cores": 0, "units": 0}
    assert data["books"]["from"] == "pods and nodes"
    (gone,) = node_named(data, "stray")["gone"]
    assert gone["card"] == "GPU-gone"
    assert len(data["warnings"]) >= 7
    quotas = {
        one["name"]: one["quotas"]
        for one in overview_data(overview(tenants()))["namespaces"]
    }
    assert [(one["hard"], one["used"]) for one in quotas["fresh"]] == [(1000, None)]
    blind = overview_data(overview(unread()))["namespaces"]
    assert [one["quotas"] for one in blind] == [None] * 3


def test_how_each_pod_stays() -> None:
    """Placed, of unknown card, or only expected; and where it was planned."""
    (first, second) = node_named(overview_data(overview(unplaced())), "node-2")["cards"]
    assert [pod["stay"] for pod in first["pods"]] == ["unplaced"]
    assert first["pods"] == second["pods"]
    (first, _) = node_named(overview_data(overview(making_room())), "node-2")["cards"]
    assert [pod["stay"] for pod in first["pods"]] == ["placed", "nominated"]
    assert first["pods"][0]["leaving"]
    assert first["allotted"]["units"] == 25
    (_, second) = node_named(overview_data(overview(swapped())), "node-2")["cards"]
    assert second["pods"][0]["planned"] == [A]


def test_nothing_is_cut() -> None:
    data = overview_data(overview(crowd()))
    assert len(node_named(data, "node-1")["cards"][0]["pods"]) == 301
    assert len(data["pending"]) == 14


def test_why_in_numbers() -> None:
    """What each card lacks, who would have to go, and what would fit."""
    seen = small()
    data = answer_data(why(seen, pod_in(seen, "big")), seen.placements)
    first, second = data["nodes"]
    assert first["cards"][0]["missing"]["units"] == 27
    assert [card["ever"] for card in second["cards"]] == [False, False]
    assert second["fits_now"]["shares"] == [
        {"cores": 99, "units": 9, "memory_mib": 2304}
    ]
    (way,) = data["ways"]
    assert (way["node"], way["index"]) == ("node-1", 0)
    assert [pod["name"] for pod in way["pods"]] == ["app-2"]


def test_where_a_pod_is_in_numbers() -> None:
    seen = swapped()
    data = answer_data(why(seen, pod_in(seen, "mover")), seen.placements)
    assert [card["uuid"] for card in data["cards"]] == [B]
    assert data["planned"] == [A]
