"""``-o json`` and ``-o yaml`` of inspect and why: the promised shapes, complete."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpusharectl import inspect
from gpusharectl.output import encode
from gpusharectl.state.read import ClusterState
from gpusharectl.state.view import overview
from gpusharectl.why import command as why_command
from gpusharectl.why.answers import answer_data
from gpusharectl.why.explain import why
from tests.gpusharectl.cluster_states import (
    SCENES,
    A,
    B,
    crowd,
    limited,
    making_room,
    sick,
    small,
    swapped,
    tenants,
    troubled,
    unplaced,
    unread,
)
from tests.gpusharectl.why.test_explain import pod_in

TOP = (
    "v at namespace setup books policy card_order totals largest_free nodes pending "
    "pending_claims namespaces warnings"
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
    data = encode(overview(seen))
    assert set(data) == set(TOP.split())
    assert same_as_json(data)
    promised = set(re.findall(r"\w+", f"{inspect.__doc__}")) | PARTS
    assert set(keys_in(data)) <= promised
    promised |= set(re.findall(r"\w+", f"{why_command.__doc__}"))
    for pod in list(seen.pods.values())[-20:]:
        answer = why(seen, pod.body)
        data = answer_data(answer, seen.placements)
        assert same_as_json(data)
        assert set(keys_in(data)) <= promised
        assert data["code"] == answer.code
        assert data["state"] in str(why_command.__doc__)


def data_of(state: ClusterState) -> dict[str, Any]:
    return encode(overview(state))


def node_named(state: ClusterState, name: str) -> dict[str, Any]:
    return next(node for node in data_of(state)["nodes"] if node["name"] == name)


def test_numbers() -> None:
    """Units with their MiB; a card's pods add up to what is allotted."""
    data = data_of(small())
    assert data["totals"] == {
        "nodes": 2,
        "other_nodes": 0,
        "cards": 3,
        "units": 152,
        "allotted_units": 131,
        "units_without_cores": 0,
        "pending": 1,
    }
    (card,) = node_named(small(), "node-1")["cards"]
    assert card["memory_mib"] == 94 * 256
    assert card["allotted"] == {"cores": 3, "units": 91, "memory_mib": 23296}
    assert card["free"] == {"cores": 97, "units": 3, "memory_mib": 768}
    assert sum(pod["units"] for pod in card["pods"]) == 91
    assert data["largest_free"]["units"] == 9
    assert data["books"] == {"from": "extender", "because": None}
    crowded = data_of(crowd())
    assert len(crowded["nodes"][0]["cards"][0]["pods"]) == 301, "nothing is cut"
    assert len(crowded["pending"]) == 14


def test_unknown_is_null() -> None:
    """And never 0: a node not heard of, resources that kubelet does not know."""
    assert node_named(troubled(), "lost")["ready"] is None
    assert node_named(troubled(), "broken")["offered"] == {"cores": 0, "units": 0}
    assert data_of(troubled())["books"]["from"] == "pods and nodes"
    (gone,) = node_named(troubled(), "stray")["gone"]
    assert gone["card"] == "GPU-gone"
    fresh = data_of(tenants())["namespaces"][2]
    assert [(one["hard"], one["used"]) for one in fresh["quotas"]] == [(1000, None)]
    assert {one["quotas"] for one in data_of(unread())["namespaces"]} == {None}


def test_tiers_and_reasons() -> None:
    """What is not known is null: the older plugin's tier and links, why one is sick."""
    first, second = encode(overview(limited()))["nodes"]
    assert (first["isolation"], second["isolation"]) == ("driver", None)
    assert (first["links"], second["links"]) == ([250], None)
    well, held_back = first["cards"]
    assert well["reason"] is None
    assert held_back["reason"].startswith("isolation tier driver: ")
    tiers = [pod["isolation"] for one in first["cards"] for pod in one["pods"]]
    assert tiers == [None, "driver"]
    (node,) = encode(overview(sick()))["nodes"]
    assert [one["reason"] for one in node["cards"]] == [None, None]


def test_how_each_pod_stays() -> None:
    """Placed, of unknown card, or nominated."""
    for state, wanted in (
        (unplaced(), [["unplaced"], ["unplaced"]]),
        (making_room(), [["placed", "nominated"], ["placed"]]),
    ):
        cards = node_named(state, "node-2")["cards"]
        assert [[pod["stay"] for pod in card["pods"]] for card in cards] == wanted
    assert cards[0]["pods"][0]["leaving"]
    assert cards[0]["allotted"]["units"] == 25


def test_why_in_numbers() -> None:
    """What each card lacks, pods to delete, and what would fit; and where a pod is."""
    seen = small()
    data = answer_data(why(seen, pod_in(seen, "big")), seen.placements)
    first, second = data["nodes"]
    assert first["cards"][0]["missing"]["units"] == 27
    assert [card["ever"] for card in second["cards"]] == [False, False]
    shares = second["fits_now"]["shares"]
    assert shares == [{"cores": 99, "units": 9, "memory_mib": 2304}]
    (way,) = data["ways"]
    assert (way["node"], way["index"]) == ("node-1", 0)
    assert [pod["name"] for pod in way["pods"]] == ["app-2"]
    seen = swapped()
    data = answer_data(why(seen, pod_in(seen, "mover")), seen.placements)
    assert [card["uuid"] for card in data["cards"]] == [B]
    assert data["planned"] == [A]
