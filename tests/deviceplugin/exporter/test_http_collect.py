"""``GET /v1/collect``: the exact body that BIE's edge agent reads (seed 000)."""

import json

import pytest

from deviceplugin.cards.source import Found
from deviceplugin.exporter.http import collect_page
from deviceplugin.exporter.snapshot import Snapshot
from deviceplugin.telemetry.fields import FB_TOTAL, FB_USED, GPU_UTIL
from tests.deviceplugin.exporter_data import A, B, snapshot
from tests.deviceplugin.node_fixture import found_card

SEED = """
{
    "docker-desktop": {
        "deviceNum": 2,
        "devices": [
            {"percent": 0.1, "totalMemory": 1000, "usedMemory": 100},
            {"percent": 0.1008991008991009, "totalMemory": 1001, "usedMemory": 101}
        ],
        "percent": 0.10044977511244378,
        "totalMemory": 2001,
        "usedMemory": 201
    }
}
"""


def memory(used: float, total: float) -> dict[str, float]:
    return {FB_USED: used, FB_TOTAL: total}


TWO = {A: memory(100.0, 1000.0), B: memory(101.0, 1001.0)}


def test_the_seeds_own_values_digit_by_digit() -> None:
    """The text too: the node's share is of the sums, no mean; counts have no dots."""
    body = json.dumps(collect_page(snapshot(values=TWO), "docker-desktop"))
    assert body == json.dumps(json.loads(SEED))
    assert "0.10044977511244378" in body
    assert ".0" not in body.replace("0.1", "")


def test_in_bytes() -> None:
    """The same shares of larger numbers."""
    page = collect_page(snapshot(values=TWO), "n", "bytes")["n"]
    assert (page["usedMemory"], page["totalMemory"]) == (201 << 20, 2001 << 20)
    assert page["percent"] == 0.10044977511244378


def test_without_cards() -> None:
    """An empty list and zeros, and nothing is divided by zero."""
    empty = {
        "n": {
            "deviceNum": 0,
            "devices": [],
            "percent": 0.0,
            "totalMemory": 0,
            "usedMemory": 0,
        }
    }
    assert collect_page(Snapshot(), "n") == empty
    assert collect_page(Snapshot(found=Found(())), "n") == empty
    assert collect_page(snapshot(values={}), "n") == empty


def test_a_card_of_which_nobody_knows_the_use_is_left_out() -> None:
    """Of the list, the count and the sums: it is not free."""
    unknown = snapshot(values={A: memory(100, 1000), B: {FB_TOTAL: 1001.0}})
    fails = snapshot(values=TWO, failures={B: "it hangs"})
    absent = snapshot(values={A: memory(100, 1000)})
    for one in (unknown, fails, absent):
        page = collect_page(one, "n")["n"]
        assert page["deviceNum"] == len(page["devices"]) == 1
        assert (page["usedMemory"], page["totalMemory"]) == (100, 1000)
        assert page["percent"] == 0.1


def test_a_card_without_a_total_has_the_one_it_was_found_with() -> None:
    """Such as those of an inventory."""
    page = collect_page(snapshot(found_card(0), values={A: {FB_USED: 76.0}}), "n")["n"]
    assert page["devices"][0]["totalMemory"] == 29 * 256 + 100


def test_a_card_of_no_memory() -> None:
    """Is no division by zero either."""
    page = collect_page(snapshot(values={A: memory(0, 0)}), "n")["n"]
    assert page["devices"] == [{"percent": 0.0, "totalMemory": 0, "usedMemory": 0}]


def test_cards_come_by_index() -> None:
    """Whatever order they were found in."""
    values = {A: memory(1, 10), B: memory(2, 10)}
    found = (found_card(1), found_card(0))
    page = collect_page(snapshot(*found, values=values), "n")["n"]
    assert [one["usedMemory"] for one in page["devices"]] == [1, 2]


def test_only_the_nodes_own_key() -> None:
    """Answers of several pods are put together without a word."""
    assert list(collect_page(snapshot(values=TWO), "edge-1")) == ["edge-1"]


@pytest.mark.parametrize("unit", ["mib", "bytes"])
def test_counts_are_whole_numbers(unit: str) -> None:
    """Go reads them as unsigned; parts of a MiB are cut off."""
    values = {A: memory(100.7, 1000.2), B: {GPU_UTIL: 5.0}}
    page = collect_page(snapshot(values=values), "n", unit)["n"]  # type: ignore[arg-type]
    assert type(page["usedMemory"]) is int
    assert type(page["devices"][0]["totalMemory"]) is int
