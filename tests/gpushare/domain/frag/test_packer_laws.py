"""The packer finds what looking at every node would find, whatever happened before."""

from collections.abc import Iterable
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.frag.costs import NEVER, PricedNode
from gpushare.domain.model import (
    HostAmount,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
)
from tests.builders import claim
from tests.gpushare.domain.frag.test_policy import Cluster, gpus

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
    said: list[tuple[str, object, object]],
) -> None:
    """Whatever is built, forgotten, learnt, placed and ended in between."""
    cluster = Cluster(n0=gpus("n0"), n1=gpus("n1", 4), n2=gpus("n2", 1))
    for name in NAMES[:3]:
        cluster.hosts.set_allocatable(name, HostAmount(16_000, 16 * 1024))
    cluster.packer.learn()
    for number, (word, about, what) in enumerate(said):
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
    asked = list(among)
    found = cluster.packer.best(pod, asked, cluster.policy)
    tables = cluster.packer.tables
    assert tables is not None
    costs = []
    for name in asked:
        page = cluster.ledger.node(name)
        if page is not None:
            there = PricedNode.of(page, cluster.hosts.free(name), tables)
            costs.append((there.cost(pod, cluster.policy, tables), name))
    least = min(costs, default=(NEVER, None))
    assert found == (None if least[0] == NEVER else least[1])
    return found


def _place(cluster: Cluster, pod: PodRequest, uid: str) -> None:
    name = _found(cluster, pod, NAMES)
    if name is None:
        return
    named = PodRequest(
        PodRef(PodUID(uid), "d", uid), pod.claims, cards=pod.cards, host=pod.host
    )
    held = cluster.ledger.reserve(named, name, cluster.policy)
    assert isinstance(held, Placement)
    cluster.hosts.hold(PodUID(uid), name, pod.host or HostAmount())


def _sums_are_right(cluster: Cluster) -> None:
    """What idles is summed up change by change; here it is summed up anew."""
    cluster.packer.best(
        PodRequest(PodRef(PodUID(""), "d", "any"), ()), (), cluster.policy
    )
    index = cluster.packer._index
    pool = index.pool()
    states = [node.state for node in index.nodes if node is not None]
    assert len(states) == len(cluster.ledger.nodes())
    assert pool.idle_cards == sum(state.idle for state in states) / 1000
    assert [pool.blocks(k) for k in (1, 2, 3)] == [
        sum(state.untouched // k for state in states) for k in (1, 2, 3)
    ]
    cards = sum(len(page.cards) for page in cluster.ledger.nodes())
    assert index.build().cards == cards
