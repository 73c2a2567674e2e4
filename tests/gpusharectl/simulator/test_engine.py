"""What comes of pods, and how much of what is free is of use."""

import random

import pytest

from gpushare.domain.policies import PolicyChoice
from gpushare.kube.cluster import Json
from gpusharectl.simulator import synthetic
from gpusharectl.simulator.cluster import (
    ClusterGauge,
    PodNeeds,
    SimulatedCluster,
    count_unusable_units,
)
from gpusharectl.simulator.engine import OutcomeKind
from gpusharectl.simulator.result import run_policy
from gpusharectl.simulator.scenario import Arrive, Drain, Join, Leave, ScenarioStep
from tests.gpusharectl.simulator.building import (
    come,
    node,
    outcomes,
    places,
    played,
    pod,
    scenario,
)


def test_pods_without_room_wait_until_others_end() -> None:
    """A pod's stay counts from its start, not from its coming."""
    first = ScenarioStep(0, Arrive(pod("first", 20), lasts_s=100))
    second = ScenarioStep(10, Arrive(pod("second", 20), lasts_s=100))
    third = ScenarioStep(20, Arrive(pod("third", 20)))
    found = outcomes(played(scenario([node()], first, second, third)))
    assert [one.placed_s for one in found.values()] == [0, 100, 200]
    assert [one.outcome for one in found.values()] == ["placed", "waited", "waited"]


def test_refusals_have_their_reasons() -> None:
    """A node counts under all that kube-scheduler's sums lack, or under its cards."""
    nodes = [
        node("apart", 29, 9),
        node("full", 29),
        node("weak", 29, cpu="1", memory="4Gi"),
        node("crowded", 29, pods=0),
    ]
    steps = [*come("a", "b", "c", units=20), *come("big", units=18, cpu="4")]
    found = outcomes(played(scenario(nodes, *steps)))
    assert found["big"].reasons == {
        "Insufficient baidu.com/vcuda-memory on one card": 1,
        "Insufficient baidu.com/vcuda-memory": 2,
        "Insufficient cpu": 1,
        "Too many pods": 1,
    }


def test_sums_count_what_pods_request() -> None:
    """A whole card without units takes no units of a sum, until its pod has ended."""
    whole = ScenarioStep(0, Arrive(pod("whole", units=0, cores=100), lasts_s=60))
    steps = [whole, *come("a", units=20), *come("big", units=20)]
    done = played(scenario([node("n", 29, 29)], *steps, *come("huge", units=39)))
    reasons = {name: dict(one.reasons) for name, one in outcomes(done).items()}
    assert reasons["big"] == {}
    assert reasons["huge"] == {"Insufficient baidu.com/vcuda-memory": 1}


@pytest.mark.parametrize("gone", [False, True])
def test_a_drained_nodes_pods_come_anew(gone: bool) -> None:
    """As their owners make them; what is left there takes nothing."""
    nodes = [node("a", 29), node("b", 29)]
    steps = [*come("one", "two", units=20), Drain("a", gone=gone), *come("three")]
    done = played(scenario(nodes, *steps))
    found = places(done)
    (mover,) = [name for name, place in found.items() if place.startswith("a ")]
    assert found[f"{mover}-moved-1"] == "nowhere"
    assert found["three"] == "nowhere"
    assert done.moments[-1].units == (29 if gone else 58)
    assert (done.cluster.ledger.node("a") is None) == gone


def test_the_reasons_are_of_the_last_try() -> None:
    """Also of those passed over because one of their kind was refused."""
    steps = [
        *come("full", units=29),
        *come("x", "y", "z", units=20),
        Join(synthetic.make_node("plain", (), synthetic.HostSpec())),
    ]
    (not_placed,) = run_policy(scenario([node()], *steps), PolicyChoice()).not_placed
    assert (len(not_placed.pods), not_placed.nodes) == (3, 2)
    assert not_placed.reasons == {
        "Insufficient baidu.com/vcuda-core": 1,
        "Insufficient baidu.com/vcuda-memory": 2,
    }


def test_a_drain_is_a_reason_for_those_that_wait() -> None:
    steps = [*come("full", units=29), *come("x", units=20), Drain("node-1")]
    steps += come("y", units=20)
    groups = run_policy(scenario([node()], *steps), PolicyChoice()).not_placed
    found = {pod: one.reasons for one in groups for pod in one.pods}
    assert sorted(found) == ["default/full-moved-1", "default/x", "default/y"]
    closed = {"node(s) were unschedulable": 1}
    assert all(reasons == closed for reasons in found.values())


def test_what_leaves_while_it_waits() -> None:
    steps = [*come("a", "b", units=20), Leave("default", "b"), Leave("x", "nobody")]
    found = outcomes(played(scenario([node()], *steps)))
    assert found["b"].outcome is OutcomeKind.LEFT
    assert found["b"].left_s == 120


def test_the_moments_add_up() -> None:
    steps = [*come("a", "b", units=20), *come("whole", cores=100, units=0)]
    done = played(scenario([node("n", 29, 29)], *steps))
    last = done.moments[-1]
    assert (last.arrived_units, last.asked_units, last.held_units) == (69, 69, 40)
    assert (last.units, last.held_cores, last.cores, last.waiting) == (58, 2, 200, 1)
    assert last.load == pytest.approx(69 / 58)


FRAGMENTED = {
    "every card takes any pod": (node("n", 20, 20), come("a", units=5), 0),
    "no pod takes 9 of 29": (node("n", 29, 29), come("a", "b", units=20), 1),
    "one of three pods takes them": (
        node("n", 29, 29, 29),
        [*come("a", "b", units=20), *come("c", units=1)],
        (8 + 9) / (8 + 9 + 29) * 2 / 3,
    ),
    "nothing is free": (node("n", 20), come("a", units=20), None),
    "no CPU is left": (
        node("n", 20, cpu="3", memory="1Gi"),
        come("a", units=5, cpu="2"),
        1,
    ),
}


@pytest.mark.parametrize(("on", "pods", "share"), FRAGMENTED.values(), ids=FRAGMENTED)
def test_what_a_typical_pod_cannot_use(
    on: Json, pods: list[Arrive], share: float | None
) -> None:
    found = played(scenario([on], *pods)).moments[-1].fragmented
    assert found == (share if share is None else pytest.approx(share))


def test_the_gauge_is_what_a_look_at_everything_finds() -> None:
    """However much came and went meanwhile."""
    dice = random.Random(3)
    cluster = SimulatedCluster(PolicyChoice("best-fit"))
    for number in range(3):
        cluster.add_node(node(f"n-{number}", 29, 20, 8))
    gauge, kinds, there = ClusterGauge(cluster), [], []
    for number in range(40):
        ref, needs = cluster.add(pod(f"p-{number}", dice.choice([3, 7, 20])))
        assert isinstance(needs, PodNeeds)
        gauge.see(needs)
        kinds.append(needs)
        placed = cluster.place(ref, needs)
        if hasattr(placed, "node"):
            there.append(placed)
        if there and number % 2:
            gone = there.pop(dice.randrange(len(there)))
            cluster.take_away(gone.pod, gone.node)
        gauge.fragmented()
    pages = cluster.ledger.nodes()
    free = sum(room.units for page in pages for room in page.free.values())
    lost = [
        count_unusable_units(
            kind, page, fits=not cluster.candidates.judge(kind, page.name)
        )
        for kind in kinds
        for page in pages
    ]
    wanted = sum(lost) / len(kinds) / free
    assert abs((gauge.fragmented() or 0) - wanted) < 1e-9
    held, units, cores_held, cores, _ = gauge.full()
    assert (units - held, units, cores) == (free, 171, 900)
    assert cores_held == len(cluster.ledger.holders())
