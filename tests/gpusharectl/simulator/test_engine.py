"""What comes of pods, how much of what is free is of use, and moves that make room."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from gpushare.domain.model import CORES_PER_CARD, NodeName, Placement
from gpushare.domain.policies import PolicyChoice
from gpushare.kube.cluster import Json
from gpusharectl.simulator import synthetic
from gpusharectl.simulator.cluster import (
    ClusterGauge,
    PodNeeds,
    SimulatedCluster,
    count_unusable_units,
)
from gpusharectl.simulator.engine import (
    MovesPlayed,
    OutcomeKind,
    Planner,
    Played,
    PodInPlay,
    PodOutcome,
    drop_moves,
)
from gpusharectl.simulator.render import draw_report, report_data
from gpusharectl.simulator.result import (
    NO_MOVES,
    SimulationReport,
    make_report,
    run_policy,
)
from gpusharectl.simulator.scenario import (
    Arrive,
    Drain,
    Event,
    ExpectedResult,
    Join,
    Leave,
    Scenario,
    ScenarioStep,
)
from tests.gpusharectl.golden import drawn
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


SEEDS = 12
OFF = ((), (NO_MOVES,))


def with_moves(
    nodes: list[Json], *steps: Event | ScenarioStep, most: int = 3
) -> Scenario:
    return replace(scenario(nodes, *steps), moves=most)


def holes(*stays: Arrive, last: Arrive | None = None) -> list[Event]:
    """One pod of 15 units on each of two cards of 32, and a pod of 30 that waits."""
    first = stays or come("a", "b", "c", "d", units=15)
    gone = [Leave("default", "a"), Leave("default", "c")]
    return [*first, *gone, last or Arrive(pod("big", 30))]


def test_a_pod_moves_and_the_one_that_waits_gets_its_card() -> None:
    done = played(with_moves([node("n", 32, 32)], *holes()))
    assert places(done) == {
        "a": "n card 0",
        "b": "n card 0",
        "c": "n card 1",
        "d": "n card 1",
        "b-moved-1": "n card 1",
        "big": "n card 0",
    }
    assert done.moves == MovesPlayed(plans=1, moves=1, placed=1)
    assert outcomes(done)["big"].outcome is OutcomeKind.WAITED
    assert outcomes(done)["b-moved-1"].outcome is OutcomeKind.PLACED
    card = done.cluster.ledger.node("n")
    assert card is not None
    assert [one.cordoned for one in card.cards] == [False, False]


def with_and_without_moves() -> SimulationReport:
    of = with_moves([node("n", 32, 32)], *holes(), Leave("default", "nobody"))
    return make_report(of, [run_policy(of, of.choice, without=one) for one in OFF])


def test_the_report_compares_both() -> None:
    """Without moves one of five pods waits for a minute."""
    of = with_and_without_moves()
    found = drawn(lambda console: draw_report(console, of))
    rows = {line[:30].strip(): line.split()[-2:] for line in found.splitlines()}
    assert "first-fit  first-fit/no-moves" in found
    assert rows["plans of moves"] == rows["evictions"] == ["1", "-"]
    assert rows["pods that got their room"] == ["1", "-"]
    assert rows["plans that came otherwise"] == ["0", "-"]
    waits = next(line for line in found.splitlines() if "mean wait of all" in line)
    assert waits.split()[-4:] == ["0", "s", "12", "s"]
    assert "disruption budgets and the restart of pods" in " ".join(found.split())
    data = [(one["moves"], one["mean_wait_s"]) for one in report_data(of)["runs"]]
    own = replace(of.scenario, expected=ExpectedResult(placed=5))
    assert [run_policy(own, own.choice, without=one).checked for one in OFF] == [
        True,
        False,
    ]
    made = {"plans": 1, "moves": 1, "placed": 1, "otherwise": 0}
    assert data == [(made, 0.0), (None, 12.0)]


def test_a_report_without_moves_says_nothing_of_them() -> None:
    of = drop_moves(with_moves([node()], *come("a")))
    report = make_report(of, [run_policy(of, of.choice)])
    assert "moves" not in str(report_data(report))
    assert "plans" not in drawn(lambda console: draw_report(console, report))


def test_a_pod_that_moved_ends_when_it_would_have_ended() -> None:
    """And if it moves twice, too."""
    lasting = [replace(one, lasts_s=1000) for one in come("a", "b", "c", "d", units=15)]
    found = outcomes(played(with_moves([node("n", 32, 32)], *holes(*lasting))))
    assert found["b"].left_s == 6 * 60
    assert found["b-moved-1"].left_s is None
    follow = played(with_moves([node("n", 32, 32)], *holes(*lasting)))
    follow.follow(2000)
    assert outcomes(follow)["b-moved-1"].left_s == 60 + 1000


def owned(kind: str) -> list[Arrive]:
    """The four pods of ``holes``, of a controller of this kind."""
    owner = {"kind": kind, "name": "x", "controller": True}
    return [changed(one, ownerReferences=[owner]) for one in four()]


def four() -> list[Arrive]:
    return come("a", "b", "c", "d", units=15)


def changed(one: Arrive, **metadata: object) -> Arrive:
    return replace(
        one, pod={**one.pod, "metadata": {**one.pod["metadata"], **metadata}}
    )


SAFE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
STAY = {
    "a Job's": owned("Job"),
    "a DaemonSet's": owned("DaemonSet"),
    "static ones": owned("Node"),
    "not safe to evict": [changed(one, annotations=SAFE) for one in four()],
    "more important ones": come("a", "b", "c", "d", units=15, priority=1),
}


@pytest.mark.parametrize("stays", STAY.values(), ids=STAY)
def test_who_does_not_move(stays: list[Arrive]) -> None:
    done = played(with_moves([node("n", 32, 32)], *holes(*stays)))
    assert done.moves == MovesPlayed()
    assert outcomes(done)["big"].outcome is OutcomeKind.REFUSED
    may = played(with_moves([node("n", 32, 32)], *holes(*owned("ReplicaSet"))))
    assert may.moves == MovesPlayed(plans=1, moves=1, placed=1)


def test_a_pod_with_several_cards_does_not_move() -> None:
    """Two pods with a card each do."""
    nodes = [node("a", 32, 32), node("b", 32, 32)]
    only = {"kubernetes.io/hostname": "a"}
    wants = Arrive(pod("wants", 0, 200, node_selector=only))
    both = played(with_moves(nodes, *come("both", units=0, cores=200), wants))
    assert places(both) == {"both": "a cards 0, 1", "wants": "nowhere"}
    each = played(with_moves(nodes, *come("one", "two", units=0, cores=100), wants))
    assert places(each)["wants"] == "a cards 0, 1"
    assert places(each)["two-moved-2"] == "b card 1"


@pytest.mark.parametrize(("most", "placed"), [(1, 0), (2, 1)])
def test_a_plan_has_so_many_moves_at_most(most: int, placed: int) -> None:
    """Here two are needed for a whole card."""
    steps: list[Event] = [*come(*"abcdefg", units=6)]
    steps += [*(Leave("default", name) for name in "ab")]
    steps += come("whole", units=0, cores=100)
    done = played(with_moves([node("n", 32, 32)], *steps, most=most))
    assert done.moves == MovesPlayed(placed, 2 * placed, placed)


def test_who_takes_what_a_move_frees_makes_the_plan_come_otherwise() -> None:
    """The prediction is tested: x makes room for a, but a pod that waits takes it.

    That pod may not move x by itself, because x is more important.
    """
    steps: list[Event] = [
        *come("filler", units=12),
        *come("a", units=20, priority=1),
        *come("x", units=12, priority=1),
        *come("fixed", units=9, priority=9),
        *come("fixed-2", units=20, priority=9),
        Leave("default", "filler"),
        *come("taker", units=13),
        *come("big", units=30, priority=5),
    ]
    done = played(with_moves([node("n", 32, 32, 32)], *steps), "best-fit")
    found = places(done)
    assert found["x-moved-1"] == "n card 2"
    assert found["taker"] == "n card 1"
    assert (found["big"], found["a-moved-2"]) == ("n card 0", "nowhere")
    assert done.moves == MovesPlayed(plans=1, moves=2, placed=1, otherwise=1)


def test_the_room_is_kept_for_the_pod_of_the_plan() -> None:
    """No plan is made for containers apart; here they wait longer and would fit."""
    apart = pod("apart")
    sizes = [pod("p", units)["spec"]["containers"][0] for units in (20, 10)]
    apart["spec"]["containers"] = [
        {**one, "name": f"c{number}"} for number, one in enumerate(sizes)
    ]
    apart["metadata"]["annotations"]["baidu.com/vcuda-containers"] = "apart"
    *steps, big = holes()
    done = played(with_moves([node("n", 32, 32)], *steps, Arrive(apart), big))
    assert places(done)["big"] == "n card 0"
    assert places(done)["apart"] == "nowhere"


def test_a_plan_is_asked_for_once_until_a_node_changes() -> None:
    """Each plan is a search. What is more important may move more, so it counts."""
    cluster = SimulatedCluster(PolicyChoice("first-fit"))
    cluster.add_node(node("n", 32, 32))
    running = []
    for number in range(4):
        arrive = Arrive(pod(f"p{number}", 15))
        ref, needs = cluster.add(arrive.pod)
        assert isinstance(needs, PodNeeds)
        assert isinstance(cluster.place(ref, needs), Placement)
        outcome = PodOutcome(ref, "", 0.0, cards=(0,))
        running.append(PodInPlay(outcome, arrive, needs, 15))
    planner = Planner(cluster, 3)

    def asked(name: str, priority: int = 0) -> bool:
        _, needs = cluster.add(pod(name, 30, priority=priority))
        assert isinstance(needs, PodNeeds)
        return planner.plan(needs, running) is not None

    assert not asked("first")
    for place in (0, 2):
        cluster.take_away(running[place].result.pod, NodeName("n"))
    del running[::2]
    assert [asked("second"), asked("third"), asked("vip", 1)] == [True, False, True]


def busy(seed: int, *, leaving: bool) -> Scenario:
    """Pods of several sizes come to a few cards, and some leave again."""
    dice = random.Random(seed)
    nodes = [node(f"n{number}", 32, 32, 32) for number in range(dice.randint(1, 3))]
    steps: list[Event] = []
    for number in range(dice.randint(12, 30)):
        units = dice.choice((5, 8, 11, 16, 20, 27, 0))
        cores = 1 if units else 100
        one = pod(f"p{number}", units, cores, priority=dice.choice((0, 0, 0, 5)))
        steps.append(
            Arrive(one, dice.choice((None, 400.0, 900.0)) if leaving else None)
        )
    return with_moves(nodes, *steps)


def held_by_nobody_twice(done: Played) -> bool:
    nodes = (
        done.cluster.ledger.node(name) for name in done.cluster.candidates.properties
    )
    return all(
        units <= one.units and cores <= CORES_PER_CARD
        for found in nodes
        if found is not None
        for one in found.cards
        for cores, units in (found.charged.get(one.uuid, (0, 0)),)
    )


@pytest.mark.parametrize("policy", ["first-fit", "spread", "frag"])
def test_nothing_is_over_a_card_and_what_is_counted_adds_up(policy: str) -> None:
    plans = 0
    for seed in range(SEEDS):
        done = played(busy(seed, leaving=True), policy)
        assert held_by_nobody_twice(done), seed
        moved = [one for one in done.outcomes if one.first]
        count = done.moves
        assert count is not None
        assert count.moves == len(moved)
        assert count.plans <= count.placed + count.otherwise
        plans += count.plans
    assert plans > SEEDS / 2


@pytest.mark.parametrize("policy", ["first-fit", "spread"])
def test_a_plan_never_takes_room_away(policy: str) -> None:
    """Where nobody leaves, an arrival adds one pod at most to those that wait."""
    fewer = 0
    for seed in range(SEEDS):
        of = busy(seed, leaving=False)
        waiting = [moment.waiting for moment in played(of, policy).moments]
        assert all(later <= now + 1 for now, later in pairwise(waiting)), seed
        plain = [one.waiting for one in played(drop_moves(of), policy).moments]
        fewer += waiting[-1] < plain[-1]
    assert fewer


def test_never_fewer_are_placed_if_pods_alike_come_last() -> None:
    better = 0
    for seed in range(SEEDS):
        fill = busy(seed, leaving=True)
        late = [ScenarioStep(10_000, Arrive(pod(f"late-{n}", 27))) for n in range(3)]
        of = replace(drop_moves(fill), steps=(*fill.steps, *late))
        plain = played(of)
        waited = [one.pod.name for one in plain.outcomes if not one.node]
        if any(not name.startswith("late") for name in waited):
            continue
        done = played(replace(of, moves=3))
        left = [one.waiting for one in (done.end, plain.end)]
        assert left[0] <= left[1], seed
        better += left[0] < left[1]
    assert better


def test_without_moves_nothing_is_different() -> None:
    """Also where a plan is asked for and there is none."""
    for seed in range(SEEDS):
        of = busy(seed, leaving=True)
        plain = played(drop_moves(of))
        assert plain.moves is None
        done = played(of)
        assert done.moves is not None
        if not done.moves.plans:
            assert done.outcomes == plain.outcomes
            assert list(done.moments) == list(plain.moments)
