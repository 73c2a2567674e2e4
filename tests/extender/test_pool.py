"""What the webhook knows of the cluster's cards."""

from typing import Any

import pytest

from extender.pool import UNKNOWN, Pool, PoolNode, pool_node
from extender.server.webhook_app import PoolBook
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from tests.builders import card, cards, event, node_json, page


def node(name: str, *units: int, allocatable: Any = None) -> Json:
    found = node_json(name, *cards(*units))
    found["metadata"]["labels"] = {"kubernetes.io/hostname": f"host-{name}"}
    if allocatable is not None:
        found["status"] = {"allocatable": {names.MEMORY: allocatable}}
    return found


def largest(book: PoolBook, *, smallest: bool = False) -> int | None:
    return book.pool().smallest_units if smallest else book.pool().largest_units


def test_the_largest_and_the_smallest_card() -> None:
    """Over all nodes; sick and cordoned cards may be well before the pod's time."""
    shut = node_json("a", card(0, 29, healthy=False), card(1, 94, cordoned=True))
    pool = Pool.of([pool_node(shut), pool_node(node("b", 59))])
    assert pool == Pool(94, 29, has_resource=True)
    assert Pool.of([pool_node(node("a"))]) == Pool(has_resource=False)
    assert UNKNOWN.has_resource is None


@pytest.mark.parametrize(
    ("units", "says", "has"),
    [
        ((), "0", False),
        ((), None, False),
        pytest.param((), "58", True, id="plugin-has-not-written-its-cards-yet"),
        pytest.param((29,), "0", True, id="while-kubelet-starts-anew"),
    ],
)
def test_a_node_that_offers_units_has_the_resource(
    units: tuple[int, ...], says: str | None, has: bool
) -> None:
    assert pool_node(node("a", *units, allocatable=says)).has_resource is has


def test_addresses_lead_to_the_name_to_ask_for() -> None:
    """A node's InternalIPs, to the label by which a pod can choose it."""
    listed = {"InternalIP": "10.0.0.1", "ExternalIP": "1.2.3.4", "Hostname": "a"}
    found = node("a")
    addresses = [{"type": kind, "address": one} for kind, one in listed.items()]
    found["status"] = {"addresses": addresses}
    pool = Pool.of([pool_node(found), PoolNode()])
    assert pool.node_of_address == {"10.0.0.1": "host-a"}


@pytest.mark.parametrize(
    "broken",
    [node_json("a", annotations={names.CARDS: "{}"}), node("a", allocatable="many")],
)
def test_a_broken_node_is_told(broken: Json) -> None:
    """By its field; in the book the others count, and it too once it is mended."""
    with pytest.raises(Malformed, match=r"vcuda-cards|status\.allocatable"):
        pool_node(broken)
    book = PoolBook()
    book.replace(iter([page(broken, node("b", 29))]))
    assert largest(book) == 29
    book.apply(event("MODIFIED", node("a", 94)))
    assert largest(book) == 94


def test_the_book_follows_the_nodes() -> None:
    """Nodes write their status all the time; mostly it changes nothing."""
    book = PoolBook()
    assert book.pool() is UNKNOWN
    book.replace(iter([page(node("a", 29), token="more"), page(node("b", 94))]))
    before = book.pool()
    assert largest(book) == 94
    book.apply(event("MODIFIED", node("a", 29)))
    assert book.pool() is before
    book.apply(event("MODIFIED", node("a", 16)))
    book.apply(event("ADDED", node("c", 120)))
    assert (largest(book), largest(book, smallest=True)) == (120, 16)
    book.apply(event("DELETED", node("c", 120)))
    book.apply(event("DELETED", node("x", 7)))
    assert (largest(book), largest(book, smallest=True)) == (94, 16)
    book.replace(iter([page(node("a", 16))]))
    assert largest(book) == 16
