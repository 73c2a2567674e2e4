"""What the webhook knows of the cluster's cards."""

from collections.abc import Mapping
from typing import Any

import pytest

from extender.pool import UNKNOWN, NodeFacts, Pool, node_facts
from extender.server.webhook_app import PoolBook
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from tests.builders import card, cards, event, node_json, page


def node(
    name: str,
    *units: int,
    addresses: Mapping[str, str] | None = None,
    allocatable: Any = None,
) -> Json:
    found = node_json(name, *cards(*units))
    found["metadata"]["labels"] = {"kubernetes.io/hostname": f"host-{name}"}
    listed = [{"type": k, "address": v} for k, v in (addresses or {}).items()]
    found["status"] = {"addresses": listed}
    if allocatable is not None:
        found["status"]["allocatable"] = {names.MEMORY: allocatable}
    return found


def test_the_largest_and_the_smallest_card() -> None:
    """Over all nodes; what a card has is whole units."""
    pool = Pool.of([node_facts(node("a", 29, 94)), node_facts(node("b", 59))])
    assert (pool.largest_units, pool.smallest_units) == (94, 29)
    assert pool.has_resource is True


def test_a_cluster_without_cards_is_not_an_unknown_one() -> None:
    """There is nothing to compare with in either, but one is known to have none."""
    assert Pool.of([node_facts(node("a"))]) == Pool(has_resource=False)
    assert UNKNOWN.has_resource is None


def test_sick_and_cordoned_cards_count() -> None:
    """They may be well again before the pod's time comes."""
    shared = node_json("a", card(0, 10, healthy=False), card(1, 20, cordoned=True))
    assert node_facts(shared).units == (10, 20)


@pytest.mark.parametrize(("says", "has"), [("0", False), ("58", True), (None, False)])
def test_a_node_that_offers_units_has_the_resource(says: Any, has: bool) -> None:
    """Such as one whose plugin has not written its cards yet."""
    assert node_facts(node("a", allocatable=says)).has_resource is has


def test_a_node_with_cards_has_it_while_kubelet_starts_anew() -> None:
    """Its allocatable is 0 for a moment then."""
    assert node_facts(node("a", 29, allocatable="0")).has_resource is True


def test_addresses_lead_to_the_name_to_ask_for() -> None:
    """A node's InternalIPs, to the label by which a pod can choose it."""
    listed = {"InternalIP": "10.0.0.1", "ExternalIP": "1.2.3.4", "Hostname": "a"}
    pool = Pool.of([node_facts(node("a", addresses=listed)), NodeFacts()])
    assert pool.node_of_address == {"10.0.0.1": "host-a"}


@pytest.mark.parametrize("text", ["{}", "nonsense", '{"v": 2, "cards": []}'])
def test_a_broken_annotation_is_told(text: str) -> None:
    """By whom it concerns."""
    with pytest.raises(Malformed):
        node_facts(node_json("a", annotations={names.CARDS: text}))


def test_a_quantity_that_is_none_is_told() -> None:
    """With its field."""
    with pytest.raises(Malformed, match=r"status\.allocatable"):
        node_facts(node("a", allocatable="many"))


def test_the_book_follows_the_nodes() -> None:
    """Listed, changed, made, gone."""
    book = PoolBook()
    assert book.pool() is UNKNOWN
    book.replace(iter([page(node("a", 29), token="more"), page(node("b", 94))]))
    assert book.pool().largest_units == 94
    book.apply(event("MODIFIED", node("a", 16)))
    assert book.pool().smallest_units == 16
    book.apply(event("ADDED", node("c", 120)))
    assert book.pool().largest_units == 120
    book.apply(event("DELETED", node("c", 120)))
    book.apply(event("DELETED", node("x", 7)))
    assert (book.pool().smallest_units, book.pool().largest_units) == (16, 94)
    book.replace(iter([page(node("a", 16))]))
    assert book.pool().largest_units == 16


def test_a_node_that_says_nothing_new_changes_nothing() -> None:
    """Nodes write their status all the time."""
    book = PoolBook()
    book.replace(iter([page(node("a", 29))]))
    before = book.pool()
    book.apply(event("MODIFIED", node("a", 29)))
    assert book.pool() is before


def test_a_node_that_cannot_be_understood_adds_nothing() -> None:
    """The others count, and it counts again once it is mended."""
    book = PoolBook()
    broken = node_json("b", annotations={names.CARDS: "nonsense"})
    book.replace(iter([page(node("a", 29), broken)]))
    assert book.pool().largest_units == 29
    book.apply(event("MODIFIED", node("b", 94)))
    assert book.pool().largest_units == 94
