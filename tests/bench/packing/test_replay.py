"""Replays and churn, on a small trace of our own and on the real one where it is."""

import pytest

from bench.packing.cluster import ReplayCluster, Shape, Spot
from bench.packing.replay import POLICIES, Making, churn, drawn, replay
from bench.packing.trace import Trace, read_trace, trace_scenario
from gpushare.domain.policies import PolicyChoice
from gpusharectl.simulator.engine import play
from tests.bench.packing.building import CASES, node, pod


class Refusing:
    def choose(self, _shape: Shape) -> Spot | None:
        return None


def refusing(_cluster: ReplayCluster, _trace: Trace, _seed: int) -> Refusing:
    return Refusing()


class Watched:
    """Another policy, and whether it refused what fits somewhere."""

    def __init__(self, cluster: ReplayCluster, trace: Trace, name: str) -> None:
        self._cluster = cluster
        self._policy = POLICIES[name](cluster, trace, 42)

    def choose(self, shape: Shape) -> Spot | None:
        spot = self._policy.choose(shape)
        fits = self._cluster.fits(shape, self._cluster.all)
        assert (spot is None) == (not fits.any())
        assert spot is None or fits[spot.node]
        return spot


def watched(name: str) -> Making:
    return lambda cluster, trace, _: Watched(cluster, trace, name)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("pod_list", ["small", "bare"])
def test_a_pod_that_fits_somewhere_is_always_placed(name: str, pod_list: str) -> None:
    """And a replay is the same each time."""
    trace = read_trace(CASES, pod_list)
    found = replay(trace, watched(name), 42)
    assert found.curve == replay(trace, POLICIES[name], 42).curve
    assert len(found.decisions_us) == len(trace.arrivals(42))


@pytest.mark.parametrize("pod_list", ["small", "bare"])
def test_frag_is_the_simulators(pod_list: str) -> None:
    """The bench leaves the API server out, and nothing else."""
    trace = read_trace(CASES, pod_list)
    scenario = trace_scenario(trace, pod_list, 42)
    played = play(scenario, PolicyChoice("frag"), looks=0)
    places = [
        (int(result.node.partition("-")[0]), result.cards) if result.node else None
        for result in played.outcomes
    ]
    assert any(places)
    cluster, found = ReplayCluster(trace.shuffled_nodes(42)), []
    policy = POLICIES["frag"](cluster, trace, 42)
    for arriving in trace.arrivals(42):
        asked = Shape.of(arriving)
        spot = policy.choose(asked)
        held = None if spot is None else cluster.take(asked, spot)
        found.append(None if held is None else (held.node, held.cards))
    assert found == places


@pytest.mark.parametrize("name", ["bestfit", "frag"])
def test_pods_that_end_make_room(name: str) -> None:
    """At half the load nearly all find their place, and the share is the load."""
    nodes = tuple(node(cards=4, cpu=10**6, memory=10**6) for _ in range(100))
    trace = Trace(nodes, (pod("a", 500), pod("b", 250)))
    found = churn(trace, watched(name), 42, load=0.5)
    assert found.refused == 0
    assert found.share == pytest.approx(50, abs=4)
    pods = [pod("a", 500), pod("b", 250, models="B"), pod("c", 1000, cards=2)]
    few = tuple(node(cards=4, cpu=64_000, model=model) for model in "AABB")
    assert churn(Trace(few, tuple(pods)), watched(name), 42, load=1.2).refused > 0


def test_what_is_refused_is_not_allocated() -> None:
    trace = read_trace(CASES, "small")
    assert set(replay(trace, refusing, 42).curve.values()) == {0.0}
    found = churn(trace, refusing, 42, load=2)
    assert (found.share, found.refused) == (0, 100)


def test_the_same_pods_come_and_go_for_every_policy() -> None:
    trace = read_trace(CASES, "small")
    assert drawn(trace, 42, 1) == drawn(trace, 42, 1) != drawn(trace, 43, 1)
    times = [at for at, _, _ in drawn(trace, 42, 1)]
    assert times == sorted(times)
