"""Choices of the policy frag, and that they are those of a look at every node."""

from collections.abc import Iterable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.frag.costs import NEVER, PricedNode
from gpushare.domain.frag.policy import ENOUGH, Packer
from gpushare.domain.frag.shapes import CardSizes, PodShape, RequestKind, milli_asked
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    Amount,
    Card,
    HostAmount,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.placement import schedule
from gpushare.domain.policies import Policy, PolicyChoice
from tests.builders import card, cards, claim, placement

CPU = HostAmount(4000, 8 * 1024)


def asked(
    name: str,
    units: int = 0,
    cores: int = 1,
    host: HostAmount | None = CPU,
    **how: object,
) -> PodRequest:
    """A pod of one container; ``how`` as PodRequest has it."""
    ref = PodRef(PodUID(name), "default", name)
    claims = (claim(units, cores),) if units or cores else ()
    return PodRequest(ref, claims, host=host, **how)  # type: ignore[arg-type]


class Cluster:
    """Nodes of cards of 100 units, and who packs them."""

    def __init__(self, **nodes: Iterable[Card]) -> None:
        self.ledger, self.hosts = Ledger(), Hosts()
        self.packer = Packer(self.ledger, self.hosts)
        policy = PolicyChoice("frag", packer=self.packer).policy(None)
        assert isinstance(policy, Policy)
        self.policy = policy
        for name, its_cards in nodes.items():
            self.ledger.set_cards(NodeName(name), its_cards)
            self.hosts.set_allocatable(NodeName(name), HostAmount(64_000, 256 * 1024))

    def see(self, *pods: PodRequest, times: int = ENOUGH) -> None:
        for _ in range(times):
            for pod in pods:
                self.packer.see(pod)
        self.packer.learn()

    def bind(self, pod: PodRequest, name: str) -> Placement:
        placed = self.ledger.reserve(pod, NodeName(name), self.policy)
        assert isinstance(placed, Placement)
        return placed

    def where(self, pod: PodRequest) -> tuple[str, tuple[str, ...]] | None:
        decision = schedule(pod, self.ledger.nodes(), self.policy)
        if not isinstance(decision, Placement):
            return None
        return decision.node, decision.cards()


def gpus(name: str, count: int = 2, units: int = 100, model: str = "T4") -> list[Card]:
    """Cards with UUIDs of their own."""
    return [card(i, units, uuid=f"{name}-{i}", model=model) for i in range(count)]


@pytest.fixture
def pair() -> Cluster:
    return Cluster(a=gpus("a"), b=gpus("b"))


def test_best_fit_until_enough_was_seen(pair: Cluster) -> None:
    for number in range(ENOUGH - 1):
        pair.packer.see(asked(f"p{number}", 30))
    assert not pair.packer.due
    assert pair.packer.best(asked("x", 30), [NodeName("a")], pair.policy) is None
    pair.bind(asked("one", 60), "b")
    assert pair.where(asked("two", 30)) == ("b", ("b-0",))
    pair.packer.see(asked("last", 30))
    assert pair.packer.due


def test_a_rest_is_kept_for_who_needs_it(pair: Cluster) -> None:
    """Where halves come, a third goes where a third is left, not on half a card."""
    pair.see(asked("half", 50), asked("third", 33))
    pair.bind(asked("h", 50), "a")
    pair.bind(asked("t", 67), "b")
    assert pair.where(asked("third", 33)) == ("b", ("b-0",))


def test_bind_takes_the_card_that_the_choice_was_about(pair: Cluster) -> None:
    """Not the first one: the node was chosen for another."""
    pair.see(asked("half", 50), asked("third", 33))
    pair.bind(asked("big", 34), "a")
    second = pair.bind(asked("other", 90), "a")
    assert second.cards() == ("a-1",)
    chosen = pair.where(asked("tenth", 10))
    assert chosen == ("a", ("a-1",))
    assert pair.bind(asked("tenth", 10), "a").cards() == ("a-1",)


@pytest.mark.parametrize(
    "pod",
    [
        asked("share", 40),
        asked("many-cores", 5, 60),
        asked("whole", 200, 200),
        PodRequest(PodRef(PodUID("u"), "d", "apart"), (claim(60, 5), claim(60, 5))),
        asked("limited", 40, cards=CardSelector.of(uuids=["b-1"])),
        asked("of-model", 40, cards=CardSelector.of(models=["T4"])),
        asked("of-no-host", 40, host=None),
    ],
    ids=lambda pod: pod.pod.name,
)
def test_a_pod_that_fits_is_placed(pair: Cluster, pod: PodRequest) -> None:
    pair.see(asked("p", 30), asked("w", 200, 200))
    pair.bind(asked("one", 60), "a")
    assert pair.where(pod) is not None
    assert pair.packer.best(pod, [NodeName("a"), NodeName("b")], pair.policy)


def test_cores_and_memory_are_not_one_number() -> None:
    """Short of cores and rich in memory: just right for who asks it that way."""
    cluster = Cluster(a=gpus("a", 1), b=gpus("b", 1))
    cluster.see(asked("cores", 10, 60), asked("memory", 60, 10))
    cluster.bind(asked("cores", 10, 60), "b")
    assert cluster.where(asked("memory", 60, 10)) == ("b", ("b-0",))


@pytest.mark.parametrize(
    ("amount", "milli"), [((1, 47), 500), ((30, 1), 300), ((0, 0), 1), ((1, 500), 1000)]
)
def test_what_a_share_asks(amount: tuple[int, int], milli: int) -> None:
    assert milli_asked(Amount(*amount), 94) == milli


def test_shapes_by_the_cards_that_there_are() -> None:
    sizes = CardSizes.of({("A", 100): 3, ("B", 50): 1, ("C", 9): 0})
    plain = RequestKind.of(asked("p", 25))
    assert list(sizes.shapes(plain)) == [PodShape(250, 1, 4000, 8192)]
    only_b = RequestKind.of(asked("p", 25, cards=CardSelector.of(models=["b"])))
    (shape,) = sizes.shapes(only_b)
    assert (shape.milli, shape.models) == (500, frozenset({"B"}))
    two = RequestKind.of(asked("p", 200, 200))
    assert list(sizes.shapes(two)) == [PodShape(1000, 2, 4000, 8192)]
    apart = RequestKind((Amount(1, 10), Amount(1, 20)), None, HostAmount(4000, 1000))
    assert [s.milli for s in sizes.shapes(apart)] == [100, 200]
    assert list(sizes.shapes(RequestKind((), None, None))) == []


def test_nothing_fits_nowhere() -> None:
    """An over-placed card is worth nothing, and no reason to fail."""
    cluster = Cluster(a=cards(100), b=cards(100))
    cluster.ledger.record(placement("p", 0, 300, 300, node="a"))
    cluster.see(asked("p", 30))
    assert cluster.where(asked("huge", 101)) is None
    assert cluster.where(asked("x", 30)) == ("b", ("GPU-0",))


NAMES: Final = tuple(NodeName(f"n{number}") for number in range(6))
MODELS: Final = ("A10", "T4")

names = st.sampled_from(NAMES)
hosts = st.builds(
    HostAmount,
    st.integers(0, 16).map(lambda cores: 1000 * cores),
    st.integers(0, 16).map(lambda gib: 1024 * gib),
)
T4 = CardSelector.of(["T4"])
SMALL, LARGE = HostAmount(1000, 1024), HostAmount(6000, 2048)
PODS: Final = tuple(
    PodRequest(PodRef(PodUID(""), "d", "asking"), claims, cards=cards, host=host)
    for claims, cards, host in (
        ((), None, LARGE),
        ((claim(20, 5),), None, SMALL),
        ((claim(50, 1),), None, LARGE),
        ((claim(10, 60),), T4, SMALL),
        ((claim(0, 100),), None, LARGE),
        ((claim(0, 200),), None, SMALL),
        ((claim(30, 5), claim(40, 5)), None, SMALL),
    )
)
"""Of few kinds, so that what is kept of one is asked for again."""
pods = st.sampled_from(PODS)
sizes = st.tuples(names, st.integers(1, 4), st.sampled_from([50, 100]))
changes = st.one_of(
    st.tuples(st.just("build"), sizes, st.sampled_from(MODELS)),
    st.tuples(st.just("forget"), names, st.none()),
    st.tuples(st.just("host"), names, st.none() | hosts),
    st.tuples(st.just("learn"), st.none(), st.lists(pods, max_size=5)),
    st.tuples(st.just("place"), st.none(), pods),
    st.tuples(st.just("place"), st.none(), pods),
    st.tuples(st.just("end"), st.integers(0, 20), st.none()),
    st.tuples(st.just("ask"), st.lists(names, min_size=1, unique=True), pods),
)


@settings(max_examples=100)
@given(st.lists(changes, min_size=15, max_size=50))
def test_it_finds_what_a_look_at_every_node_finds(
    words: list[tuple[str, object, object]],
) -> None:
    """Whatever is built, forgotten, learnt, placed and ended in between."""
    cluster = Cluster(n0=gpus("n0"), n1=gpus("n1", 4), n2=gpus("n2", 1))
    for name in NAMES[:3]:
        cluster.hosts.set_allocatable(name, HostAmount(16_000, 16 * 1024))
    cluster.packer.learn()
    for number, (word, about, what) in enumerate(words):
        match word, about, what:
            case "build", (str(name), int(count), int(units)), str(model):
                cluster.ledger.set_cards(
                    NodeName(name), gpus(name, count, units, model)
                )
            case "forget", str(name), _:
                cluster.ledger.forget(NodeName(name))
            case "host", str(name), HostAmount() | None:
                cluster.hosts.set_allocatable(NodeName(name), what)
            case "learn", _, list():
                cluster.see(*what, times=3)
            case "end", int(which), _:
                cluster.ledger.release(PodUID(f"{which}"))
                cluster.hosts.release(PodUID(f"{which}"))
            case "ask", list(), PodRequest():
                _found(cluster, what, about)
            case "place", _, PodRequest():
                _place(cluster, what, f"{number}")
        _sums_are_right(cluster)


def _found(
    cluster: Cluster, pod: PodRequest, among: Iterable[NodeName]
) -> NodeName | None:
    """Ask the packer, and hold its answer up against a look at each node."""
    names = list(among)
    decision = cluster.packer.best(pod, names, cluster.policy)
    tables = cluster.packer.tables
    assert tables is not None
    costs = []
    for name in names:
        page = cluster.ledger.node(name)
        if page is not None:
            there = PricedNode.of(page, cluster.hosts.free(name), tables)
            costs.append((there.cost(pod, cluster.policy), name))
    least = min(costs, default=(NEVER, None))
    assert decision == (None if least[0] == NEVER else least[1])
    return decision


def _place(cluster: Cluster, pod: PodRequest, uid: str) -> None:
    name = _found(cluster, pod, NAMES)
    if name is None:
        return
    named = PodRequest(
        PodRef(PodUID(uid), "d", uid), pod.claims, cards=pod.cards, host=pod.host
    )
    placed = cluster.ledger.reserve(named, name, cluster.policy)
    assert isinstance(placed, Placement)
    cluster.hosts.hold(PodUID(uid), name, pod.host or HostAmount())


def _sums_are_right(cluster: Cluster) -> None:
    """What idles is summed up change by change; here it is summed up anew."""
    cluster.packer.best(
        PodRequest(PodRef(PodUID(""), "d", "any"), ()), (), cluster.policy
    )
    index = cluster.packer._index
    pool = index.pool()
    states = [node.state for node in index.nodes.values()]
    assert len(states) == len(cluster.ledger.nodes())
    assert pool.idle_cards == sum(state.idle for state in states) / 1000
    assert [pool.blocks(k) for k in (1, 2, 3)] == [
        sum(state.untouched // k for state in states) for k in (1, 2, 3)
    ]
    cards = sum(len(page.cards) for page in cluster.ledger.nodes())
    assert index.card_stock().cards == cards
