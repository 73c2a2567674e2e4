"""What the webhook knows of the cluster's cards."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.model import Amount, Card, Claim, NodeName
from gpushare.domain.node import Node
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from tests.builders import card, cards, event, node_json, page
from webhook.app import PoolBook
from webhook.pool import UNKNOWN, CardPool, PoolNode, read_pool_node


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
    pool = CardPool.of([read_pool_node(shut), read_pool_node(node("b", 59))])
    assert (pool.largest_units, pool.smallest_units, pool.has_resource) == (
        94,
        29,
        True,
    )
    assert CardPool.of([read_pool_node(node("a"))]) == CardPool(has_resource=False)
    assert UNKNOWN.has_resource is None


def mig(place: int, profile: str, units: int) -> Card:
    """An instance of an A100."""
    model = f"NVIDIA A100-SXM4-40GB MIG {profile}"
    return card(110 + place, units, parent="GPU-P", model=model)


@pytest.mark.parametrize(
    ("count", "models", "units"),
    [
        (1, "", 19),
        (2, "", 29),
        (3, "", 94),
        (4, "", 94),
        (5, "", 19),
        (1, "!* MIG *", 29),
        (1, "A100*", 19),
        (1, "2g.10gb", 39),
        (2, "RTX 3090", 94),
        (1, "H200", 19),
    ],
)
def test_what_whole_cards_have_at_least(count: int, models: str, units: int) -> None:
    """Cards of one node and one kind, which the pod may have; else the smallest."""
    rtx = [card(i, 94, model="RTX 3090") for i in range(4)]
    parts = mig(0, "1g.5gb", 19), mig(1, "2g.10gb", 39)
    nodes = [node_json("a", *rtx), node_json("b", card(0, 29), card(1, 94), *parts)]
    pool = CardPool.of(map(read_pool_node, nodes))
    chosen = CardSelector.of([models]) if models else None
    assert pool.whole_card_units(count, chosen) == units


CARDS = st.builds(
    lambda index, units, profile: (
        mig(index, profile, units) if profile else card(index, units)
    ),
    st.integers(0, 10_000),
    st.sampled_from([19, 29, 94]),
    st.sampled_from(["", "1g.5gb", "2g.10gb"]),
)
NODES = st.lists(
    st.lists(CARDS, max_size=5, unique_by=lambda one: one.uuid), max_size=3
)


@given(NODES, st.integers(1, 4))
def test_a_pod_fits_wherever_it_fitted_without_memory(
    shared: list[list[Card]], count: int
) -> None:
    """The law of the default, by the domain's own decision."""
    pool = CardPool.of(read_pool_node(node_json("n", *its)) for its in shared)
    units = count * (pool.whole_card_units(count) or 0)
    plain, asking = (Claim(Amount(100 * count, each), ()) for each in (0, units))
    for its in shared:
        summary = Node(NodeName("n"), tuple(its)).summary
        assert summary.fits(asking) == summary.fits(plain)


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
    assert read_pool_node(node("a", *units, allocatable=says)).has_resource is has


def test_addresses_lead_to_the_name_to_ask_for() -> None:
    """A node's InternalIPs, to the label by which a pod can choose it."""
    listed = {"InternalIP": "10.0.0.1", "ExternalIP": "1.2.3.4", "Hostname": "a"}
    found = node("a")
    addresses = [{"type": kind, "address": one} for kind, one in listed.items()]
    found["status"] = {"addresses": addresses}
    pool = CardPool.of([read_pool_node(found), PoolNode()])
    assert pool.node_of_address == {"10.0.0.1": "host-a"}


@pytest.mark.parametrize(
    "broken",
    [node_json("a", annotations={names.CARDS: "{}"}), node("a", allocatable="many")],
)
def test_a_broken_node_is_told(broken: Json) -> None:
    """By its field; in the book the others count, and it too once it is mended."""
    with pytest.raises(Malformed, match=r"vcuda-cards|status\.allocatable"):
        read_pool_node(broken)
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
