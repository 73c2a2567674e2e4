"""What the policy frag keeps of nodes and kinds of pods."""

from itertools import pairwise

import pytest

from gpushare.domain import hosts as hosts_module
from gpushare.domain import ledger
from gpushare.domain.frag import search
from gpushare.domain.frag.costs import PricedNode
from gpushare.domain.frag.learner import Learner
from gpushare.domain.hosts import Hosts
from gpushare.domain.model import HostAmount, NodeName, PodUID
from gpushare.domain.node import Node
from tests.builders import card
from tests.gpushare.domain.frag.test_policy import Cluster, asked, gpus

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")


@pytest.fixture
def pair() -> Cluster:
    """Two nodes of two cards, and halves seen."""
    cluster = Cluster(a=gpus("a"), b=gpus("b"))
    cluster.see(asked("half", 50), asked("third", 33))
    return cluster


def test_a_page_that_is_as_it_was_is_not_looked_at(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal may have overflowed, and then every node is asked for."""
    pair.packer.best(asked("x", 20), [A, B], pair.policy)
    seen: list[Node] = []
    made = PricedNode.of.__func__  # type: ignore[attr-defined]

    def look(cls: type[PricedNode], page: Node, *more: object) -> PricedNode:
        seen.append(page)
        priced: PricedNode = made(cls, page, *more)
        return priced

    monkeypatch.setattr(PricedNode, "of", classmethod(look))
    monkeypatch.setattr(ledger, "_LONGEST_JOURNAL", 10)
    for _ in range(20):
        pair.ledger.set_cards(C, ())
        pair.ledger.forget(C)
    pair.packer.best(asked("x", 20), [A, B], pair.policy)
    assert seen == []


def test_nodes_that_come_and_go_leave_nothing(pair: Cluster) -> None:
    """With an autoscaler no name ever comes again."""
    for number in range(50):
        name = f"spot-{number}"
        pair.ledger.set_cards(NodeName(name), gpus(name))
        pair.hosts.set_allocatable(NodeName(name), HostAmount(64_000, 256 * 1024))
        pod = asked(f"p{number}", 20)
        assert pair.packer.best(pod, [NodeName(name)], pair.policy) == name
        pair.ledger.forget(NodeName(name))
        pair.hosts.set_allocatable(NodeName(name), None)
    assert pair.packer.best(asked("x", 20), [A, B], pair.policy) == A
    index = pair.packer._index
    assert set(index.nodes) == {A, B}
    assert set.union(*index.alike.values()) == {A, B}
    assert index.card_stock().cards == 4


def test_the_book_of_hosts_forgets_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "_MOST_CHANGES", 100)
    hosts = Hosts()
    hosts.changes()
    for number in range(200):
        name = NodeName(f"spot-{number}")
        hosts.set_allocatable(name, HostAmount(1000, 1000))
        hosts.hold(PodUID("p"), name, HostAmount(1, 1))
        hosts.set_allocatable(name, None)
        hosts.release(PodUID("p"))
    for table in (hosts._allocatable, hosts._used, hosts._free, hosts._pods):
        assert table == {}
    assert hosts.changes() is None, "too many to tell"
    assert hosts.changes() == frozenset()


def test_kinds_are_kept_within_memory(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [asked("k", 1 + number) for number in range(90)]
    for pod in kinds:
        pair.packer.best(pod, [A], pair.policy)
    assert len(pair.packer._rows) == 90
    monkeypatch.setattr(search, "MOST_KINDS", 10)
    pair.packer.best(asked("k", 91), [A], pair.policy)
    assert len(pair.packer._rows) == 10


def test_one_pod_that_comes_and_goes_changes_no_price() -> None:
    """Prices go in eighths; one well past the half prices all nodes anew."""
    names = [f"n{number:02}" for number in range(40)]
    cluster = Cluster(**{name: gpus(name) for name in names})
    cluster.see(asked("half", 50), times=40)
    cluster.see(asked("pair", 200, 200), times=3)
    asks = [NodeName(name) for name in names]
    tables = [cluster.packer.tables]
    for name in names[:30]:
        cluster.bind(asked(f"one-{name}", 50), name)
        for _ in range(3):
            cluster.packer.best(asked("x", 40), asks, cluster.policy)
            tables.append(cluster.packer.tables)
            cluster.ledger.release(PodUID(f"one-{name}"))
            cluster.packer.best(asked("x", 40), asks, cluster.policy)
            tables.append(cluster.packer.tables)
            cluster.bind(asked(f"one-{name}", 50), name)
    flips = sum(before is not now for before, now in pairwise(tables))
    prices = {
        tuple(table.block_prices.items()) for table in tables if table is not None
    }
    assert len(prices) > 1, "blocks did get scarce"
    assert flips < len(prices)


def test_other_cards_are_a_reason_to_learn_anew(pair: Cluster) -> None:
    pod = asked("x", 20)
    assert not pair.packer.due
    for number in range(8):
        pair.bind(asked(f"p{number}", 10), "a")
        pair.packer.best(pod, [A, B], pair.policy)
    assert not pair.packer.due
    pair.ledger.set_cards(C, gpus("c", 2, 80, "A10"))
    pair.packer.best(pod, [A, B], pair.policy)
    assert pair.packer.due
    pair.packer.learn()
    assert not pair.packer.due
    pair.ledger.set_cards(C, [card(i, 80, uuid=f"c-{i}", model="A10") for i in (1, 0)])
    pair.packer.best(pod, [A, B], pair.policy)
    assert not pair.packer.due


def test_a_pod_that_can_never_be_placed_decides_nothing(pair: Cluster) -> None:
    """It asks a million cards; no node has more than two."""
    pair.see(asked("two", 200, 200))
    before = pair.packer.tables
    pair.packer.see(asked("huge", 0, 100 * 1_000_000))
    pair.packer.learn()
    after = pair.packer.tables
    assert before
    assert after
    assert (after.shares, after.anywhere) == (before.shares, before.anywhere)


def test_of_kinds_as_rare_the_latest_are_kept() -> None:
    """Else a mix that has changed would never drive out the old one."""
    learner = Learner()
    for number in range(4001):
        learner.see(asked("p", 1 + number % 90, host=HostAmount(number)))
    kept = {kind.host.cpu_milli for kind in learner._counts if kind.host}
    assert min(kept) >= 2000
    assert max(kept) == 4000
