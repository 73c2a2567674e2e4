"""How much of what is free is of use: kept as it changes, and right."""

import random

from gpushare.domain.policies import Choice
from gpushare.domain.refusal import Refusal
from gpusharectl.simulate.cluster import PendingPod, World
from gpusharectl.simulate.engine import play
from gpusharectl.simulate.metrics import Gauge, useless
from gpusharectl.simulate.scenario import Scenario
from tests.gpusharectl.simulate.building import come, node, pod, scenario


def at_the_end(of: Scenario) -> float | None:
    return play(of, Choice()).moments[-1].fragmented


def test_nothing_is_lost_while_every_card_takes_any_pod() -> None:
    assert at_the_end(scenario([node("n", 20, 20)], *come("a", units=5))) == 0


def test_what_no_pod_takes_is_lost() -> None:
    """Two cards with 9 free of 29 each: of no use to pods of 20."""
    steps = come("a", "b", units=20)
    assert at_the_end(scenario([node("n", 29, 29)], *steps)) == 1


def test_a_lot_is_drawn_among_pods() -> None:
    """9 of 38 free units are of no use to the two of three pods that ask 20."""
    steps = [*come("a", units=20), *come("b", units=20), *come("c", units=1)]
    found = at_the_end(scenario([node("n", 29, 29, 29)], *steps))
    assert found is not None
    lost = (8 + 9) / (8 + 9 + 29)
    assert abs(found - lost * 2 / 3) < 1e-9


def test_a_full_cluster_has_none() -> None:
    """Of nothing there is no share."""
    assert at_the_end(scenario([node("n", 20)], *come("a", units=20))) is None


def test_cpu_counts() -> None:
    """A free card whose node has no CPU left is of no use to anybody who asks some."""
    steps = come("a", units=5, cpu="2")
    assert at_the_end(scenario([node("n", 20, cpu="3", memory="1Gi")], *steps)) == 1


def test_it_is_what_a_look_at_everything_finds() -> None:
    """However much came and went meanwhile."""
    dice = random.Random(3)
    world = World(Choice("best-fit"))
    for number in range(3):
        world.add_node(node(f"n-{number}", 29, 20, 8))
    gauge, kinds, there = Gauge(world), [], []
    for number in range(40):
        found = world.add(pod(f"p-{number}", dice.choice([3, 7, 20])))
        assert isinstance(found, PendingPod)
        assert not isinstance(found, Refusal)
        gauge.see(found.needs)
        kinds.append(found.needs)
        placed = world.place(found)
        if hasattr(placed, "node"):
            there.append(placed)
        if there and number % 2:
            gone = there.pop(dice.randrange(len(there)))
            world.take_away(gone.pod, gone.node)
        gauge.fragmented()
    pages = world.ledger.nodes()
    free = sum(room.units for page in pages for room in page.free.values())
    lost = [
        useless(kind, page, fits=not world.candidates.judge(kind, page.name))
        for kind in kinds
        for page in pages
    ]
    wanted = sum(lost) / len(kinds) / free
    assert abs((gauge.fragmented() or 0) - wanted) < 1e-9
    held, units, cores_held, cores = gauge.full()
    assert (units - held, units, cores) == (free, 171, 900)
    assert cores_held == len(world.ledger.holders())
