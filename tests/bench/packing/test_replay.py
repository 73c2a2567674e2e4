"""Replays and churn, on a small trace of our own and on the real one where it is."""

from random import Random

import pytest

from bench.packing.churn import churn, drawn
from bench.packing.cluster import Cluster, Shape, Spot
from bench.packing.policies import makers
from bench.packing.replay import replay
from gpushare.domain.policies import Choice
from gpusharectl.simulate.engine import play
from gpusharectl.simulate.openb import Trace, read_trace, trace_scenario
from tests.bench.packing.building import CASES, node, pod


class Refusing:
    def choose(self, _shape: Shape) -> Spot | None:
        return None


def refusing(_cluster: Cluster, _trace: Trace, _seed: int) -> Refusing:
    return Refusing()


class Watched:
    """Another policy, and whether it refused what fits somewhere."""

    def __init__(self, cluster: Cluster, trace: Trace, name: str) -> None:
        self._cluster = cluster
        self._policy = makers()[name](cluster, trace, 42)

    def choose(self, shape: Shape) -> Spot | None:
        spot = self._policy.choose(shape)
        fits = self._cluster.fits(shape, self._cluster.all)
        assert (spot is None) == (not fits.any())
        assert spot is None or fits[spot.node]
        return spot


@pytest.mark.parametrize("name", makers())
@pytest.mark.parametrize("pod_list", ["small", "bare"])
def test_a_pod_that_fits_somewhere_is_always_placed(name: str, pod_list: str) -> None:
    """And a replay is the same each time."""
    trace = read_trace(CASES, pod_list)
    found = replay(trace, lambda c, t, _: Watched(c, t, name), 42)
    assert found.curve == replay(trace, makers()[name], 42).curve
    assert len(found.decisions_us) == len(trace.arrivals(42))


@pytest.mark.parametrize("pod_list", ["small", "bare"])
def test_frag_is_the_simulators(pod_list: str) -> None:
    """The bench leaves the API server out, and nothing else."""
    trace = read_trace(CASES, pod_list)
    scenario = trace_scenario(trace, pod_list, 42)
    played = play(scenario, Choice("frag"), looks=0)
    places = [
        (int(result.node.partition("-")[0]), result.cards) if result.node else None
        for result in played.outcomes
    ]
    assert any(places)
    cluster, found = Cluster(trace.shuffled_nodes(42)), []
    policy = makers()["frag"](cluster, trace, 42)
    for arriving in trace.arrivals(42):
        asked = Shape.of(arriving)
        spot = policy.choose(asked)
        held = None if spot is None else cluster.take(asked, spot)
        found.append(None if held is None else (held.node, held.cards))
    assert found == places


def test_what_is_refused_is_not_allocated() -> None:
    found = replay(read_trace(CASES, "small"), refusing, 42)
    assert set(found.curve.values()) == {0.0}


@pytest.mark.parametrize("name", ["bestfit", "frag"])
def test_pods_that_end_make_room(name: str) -> None:
    """At half the load nearly all find their place, and the share is the load."""
    nodes = tuple(node(cards=4, cpu=10**6, memory=10**6) for _ in range(100))
    trace = Trace(nodes, (pod("a", 500), pod("b", 250)))
    found = churn(trace, makers()[name], 42, load=0.5)
    assert found.refused == 0
    assert found.share == pytest.approx(50, abs=4)


def test_frag_gives_back_what_ended() -> None:
    """Shares, blocks of cards and pods without any; none is left at the end."""
    nodes = tuple(node(cards=4, cpu=64_000, model=model) for model in "AABB")
    pods = (
        *(pod("a", 500), pod("b", 250, models="B"), pod("c", 1000)),
        *(pod("d", 1000, cards=2), pod("e", cpu=4000)),
    )
    trace = Trace(nodes, pods)
    cluster = Cluster(nodes)
    policy = makers()["frag"](cluster, trace, 42)
    dice, held = Random(7), []
    for _ in range(400):
        asked = Shape.of(dice.choice(pods))
        spot = policy.choose(asked)
        assert (spot is None) == (not cluster.fits(asked, cluster.all).any())
        if spot is not None:
            held.append(cluster.take(asked, spot))
        while held and dice.random() < len(held) / 40:
            cluster.give_back(held.pop(dice.randrange(len(held))))
    for each in held:
        cluster.give_back(each)
    for _ in range(8):
        block = Shape.of(pod("d", 1000, cards=2))
        spot = policy.choose(block)
        assert spot is not None
        cluster.take(block, spot)


def test_churn_counts_refused_demand_and_held_time() -> None:
    trace = read_trace(CASES, "small")
    found = churn(trace, refusing, 42, load=2)
    assert (found.share, found.refused) == (0, 100)


def test_the_same_pods_come_and_go_for_every_policy() -> None:
    trace = read_trace(CASES, "small")
    assert drawn(trace, 42, 1) == drawn(trace, 42, 1) != drawn(trace, 43, 1)
    times = [at for at, _, _ in drawn(trace, 42, 1)]
    assert times == sorted(times)
