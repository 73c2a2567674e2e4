"""How little the search for a pod's best node looks at, and that it is enough."""

import random
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.frag import search
from gpushare.domain.frag.costs import NEVER, LeastCost, PricedNode
from gpushare.domain.frag.learner import learn
from gpushare.domain.frag.prices import untrained_tables
from gpushare.domain.frag.shapes import PodShape
from gpushare.domain.model import (
    HostAmount,
    NodeName,
    PodRef,
    PodRequest,
    PodUID,
)
from tests.builders import card, claim, node, placement
from tests.gpushare.domain.frag.invented import few, histograms, pool_of
from tests.gpushare.domain.frag.test_policy import Cluster, asked, gpus

SIZES = (10, 23, 32, 47, 65, 81)
hosts = st.none() | st.builds(
    HostAmount, st.integers(-2, 32).map(lambda n: 1000 * n), st.integers(0, 65_536)
)
claims = st.lists(
    st.builds(claim, st.integers(1, 100), st.integers(1, 60))
    | st.sampled_from([claim(100, 100), claim(300, 300)]),
    max_size=5,
)
cards_left = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=6)


pods_asked = st.builds(
    PodRequest,
    st.just(PodRef(PodUID("u"), "d", "asking")),
    claims.map(tuple),
    cards=st.sampled_from([None, CardSelector.of(["T4"])]),
    host=st.none() | st.builds(HostAmount, st.integers(0, 32_000), st.integers(0, 999)),
)
models = st.sampled_from([("T4",), ("V100",), ("T4", "A10")])


@few
@given(histograms, cards_left, models, hosts, pods_asked)
def test_a_pod_costs_at_least_its_floor(
    seen: Mapping[PodShape, int],
    rooms: list[tuple[int, int]],
    kinds: Sequence[str],
    free: HostAmount | None,
    pod: PodRequest,
) -> None:
    """Whatever was learned, and whatever is scarce; else the best might be missed."""
    page = node(
        *(card(i, 100, model=kinds[i % len(kinds)]) for i in range(len(rooms))),
        holds=[
            placement(f"p{i}", i, 100 - units, 100 - cores)
            for i, (units, cores) in enumerate(rooms)
            if (units, cores) != (100, 100)
        ],
    )
    plainly = PricedNode.of(page, free, untrained_tables())
    tables = learn(seen, pool_of([plainly.state]))
    cost = plainly.by(tables).cost(pod, Cluster().policy)
    assert LeastCost(pod, tables).of(plainly.standing) <= cost


class Looks:
    """How many nodes were estimated, and how many were priced."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.estimated = self.priced = 0
        floor, cost = LeastCost.of, PricedNode.cost

        def estimate(*args: object) -> float:
            self.estimated += 1
            return floor(*args)  # type: ignore[arg-type]

        def price(*args: object) -> float:
            self.priced += 1
            return cost(*args)  # type: ignore[arg-type]

        patch.setattr(LeastCost, "of", estimate)
        patch.setattr(PricedNode, "cost", price)

    def taken(self) -> tuple[int, int]:
        counts = self.estimated, self.priced
        self.estimated = self.priced = 0
        return counts


NAMES = [NodeName(f"n{number:03}") for number in range(200)]


def used(names: list[NodeName] = NAMES, *, scarce: bool = False) -> Cluster:
    """Nodes of four cards that are all different, and what most pods ask.

    ``scarce``: pods without cards use most of the CPU.
    """
    dice = random.Random(5)
    cluster = Cluster(**{name: gpus(name, 4) for name in names})
    for name in names:
        cpu = 1000 * dice.randrange(20, 64)
        cluster.hosts.set_allocatable(name, HostAmount(cpu, 10**6 + dice.randrange(99)))
        if scarce:
            cluster.hosts.hold(PodUID(f"x-{name}"), name, HostAmount(int(0.6 * cpu)))
        for at in range(4):
            taken = dice.choice([0, 100, *SIZES])
            if taken:
                placed = placement(f"{name}-{at}", f"{name}-{at}", taken, 1, node=name)
                cluster.ledger.record(placed)
    ask = [asked("p", size, host=cpus(number)) for number, size in enumerate(SIZES)]
    cluster.see(*ask, asked("w", 100, 100, cpus(9)), times=30)
    tables = cluster.packer.tables
    assert tables is not None
    assert tables.cpu_scarce == scarce
    return cluster


def cpus(number: int) -> HostAmount:
    """Another CPU for each kind of pod, as in a real cluster."""
    return HostAmount(1000 * (number + 1), 1024)


def pods() -> Iterator[PodRequest]:
    dice = random.Random(6)
    for number in range(60):
        which = dice.randrange(len(SIZES))
        yield asked(f"pod-{number}", SIZES[which], host=cpus(which))


@pytest.mark.parametrize("scarce", [False, True])
def test_few_nodes_are_priced(monkeypatch: pytest.MonkeyPatch, *, scarce: bool) -> None:
    """Of 200 nodes that are all different, for pods that come one after another.

    A kind that is new is estimated everywhere, but only the best is priced. Then it is
    only the nodes that changed since the last pod of its kind.
    """
    cluster, looks = used(scarce=scarce), Looks(monkeypatch)
    for units in (32, 47, 65, 81):
        new = asked("new", units, host=cpus(12))
        assert cluster.packer.best(new, NAMES, cluster.policy) is not None
        estimated, priced = looks.taken()
        assert estimated == len(NAMES)
        assert priced <= 3
    for pod in pods():
        name = cluster.packer.best(pod, NAMES, cluster.policy)
        assert name is not None
        cluster.bind(pod, name)
        cluster.hosts.hold(pod.pod.uid, name, pod.host or HostAmount())
    estimated, priced = looks.taken()
    assert len(SIZES) * len(NAMES) <= estimated <= len(SIZES) * (len(NAMES) + 60)
    assert priced <= 60 * 4
    last = asked("last", SIZES[0], host=cpus(0))
    cluster.packer.best(last, NAMES, cluster.policy)
    looks.taken()
    cluster.packer.best(last, NAMES, cluster.policy)
    assert looks.taken() == (0, 0)


def test_containers_apart_are_priced_on_few_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a price takes longest, so the least that it can be says most."""
    cluster, looks = used(), Looks(monkeypatch)
    ref = PodRef(PodUID("u"), "d", "apart")
    for units in ((47, 32), (30, 30, 30), (20, 20, 20, 20)):
        pod = PodRequest(ref, tuple(claim(size, 1) for size in units))
        assert cluster.packer.best(pod, NAMES, cluster.policy) is not None
        _, priced = looks.taken()
        assert priced <= 20


@pytest.mark.parametrize(("nearest", "unknown"), [(1, 0), (2, 3), (3, 1000), (64, 2)])
def test_what_is_forgotten_is_found_again(
    monkeypatch: pytest.MonkeyPatch, nearest: int, unknown: int
) -> None:
    """Little is kept of a kind of pod; it may have other nodes each time it comes."""
    monkeypatch.setattr(search, "NEAREST", nearest)
    monkeypatch.setattr(search, "MOST_UNKNOWN", unknown)
    cluster, dice = used(NAMES[:30], scarce=nearest > 1), random.Random(7)
    tables = cluster.packer.tables
    assert tables is not None
    for pod in pods():
        names = dice.sample(NAMES[:30], dice.randrange(1, 31))
        costs = []
        for name in names:
            page = cluster.ledger.node(name)
            assert page is not None
            there = PricedNode.of(page, cluster.hosts.free(name), tables)
            costs.append((there.cost(pod, cluster.policy), name))
        least = min(costs)
        counts = cluster.packer.best(pod, names, cluster.policy)
        assert counts == (None if least[0] == NEVER else least[1])
        if counts is not None and dice.random() < 0.5:
            cluster.bind(pod, counts)
            tables = cluster.packer.tables
            assert tables is not None
