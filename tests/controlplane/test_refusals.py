"""Why a pod waits, in the words that the API server's event holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from gpushare.domain.policies import PolicyChoice
from gpusharectl.simulator.live import WhatIf, make_live_scenario
from gpusharectl.simulator.result import run_policy
from tests.controlplane.books import assert_refused, checked_books
from tests.controlplane.world import POLICY, World, cards_of
from tests.testbed.objects import read_pod
from tests.testbed.rest import ApiError
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

GOOD = '{"v": 1, "cards": [{"uuid": "G", "index": 0, "units": 29}]}'
BROKEN = {
    "without": None,
    "not-json": '{"v": 1, "cards": [',
    "not-cards": '{"v": 1, "cards": "none"}',
    "twice": GOOD.replace("[{", '[{"uuid": "G", "index": 1, "units": 29}, {'),
    "newer": GOOD.replace('"v": 1', '"v": 2'),
}

Asked = tuple[int | None, int | None]
"""Units and cores; None leaves the resource out."""


@dataclass(frozen=True)
class Case:
    """Nodes with cards, what runs there already, and a pod that fits nowhere.

    ``says`` is the event up to its first full stop, less ``0/<n> nodes are available``.
    """

    name: str
    nodes: Mapping[str, tuple[int, ...]]
    asks: Asked
    says: str
    holders: tuple[Asked, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


TWO = {"edge": (29, 29)}
THREE_NODES = {"a": (29, 29), "b": (29, 29), "c": (29, 29)}
CASES = (
    Case(
        "fragmented",
        TWO,
        (15, 1),
        "1 Insufficient baidu.com/vcuda-memory on one card",
        holders=((19, 1), (19, 1)),
    ),
    Case(
        "memory-without-core",
        TWO,
        (15, None),
        "1 Insufficient baidu.com/vcuda-memory on one card",
        holders=((19, None), (19, None)),
    ),
    Case(
        "core-without-memory",
        TWO,
        (None, 50),
        "1 Insufficient baidu.com/vcuda-core on one card",
        holders=((None, 60), (None, 60)),
    ),
    Case(
        "core-here-memory-there",
        TWO,
        (10, 50),
        "1 Insufficient baidu.com/vcuda-core and baidu.com/vcuda-memory on one card",
        holders=((5, 80), (25, 30)),
    ),
    Case(
        "whole-cards",
        {"edge": (29, 29, 29)},
        (30, 200),
        "1 Insufficient untouched cards",
        holders=((20, 1), (20, 1)),
    ),
    Case(
        "short-in-sum",
        {"apart": (29, 9), "b": (29,), "c": (29,)},
        (18, 90),
        "1 Insufficient baidu.com/vcuda-memory on one card, "
        "2 Insufficient baidu.com/vcuda-core, "
        "2 Insufficient baidu.com/vcuda-memory",
        holders=((20, 30), (20, 30), (20, 30)),
    ),
    Case(
        "cores-of-no-kind",
        THREE_NODES,
        (4, 150),
        "3 Invalid vcuda request: 150 cores are neither a share of one card (1 to 99) "
        "nor whole cards; ask 100 or 200",
    ),
    Case(
        "policy-unknown",
        THREE_NODES,
        (4, 1),
        '3 Invalid vcuda request: no policy "tetris"; '
        "known are first-fit, best-fit, spread, frag",
        annotations={POLICY: "tetris"},
    ),
)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_refusal(world: World, case: Case) -> None:
    """A pod that fits on no node waits, its event says why, and ``simulate`` the same.

    A request for cards that no node can ever have is refused for all of them at once.
    """
    for name, sizes in case.nodes.items():
        world.node(name, *sizes)
    for number, (units, cores) in enumerate(case.holders):
        world.runs(f"holder-{number}", units, cores)
    refused = world.post(case.name, *case.asks, annotations=case.annotations)
    assert_refused(world, refused, case.says)
    if "Invalid" not in case.says:
        assert simulated(world) == case.says


def simulated(world: World) -> str:
    """Play what waits over what runs; why the only pod that waits does."""
    nodes, pods = (world.rest.items(f"/api/v1/{kind}") for kind in ("nodes", "pods"))
    scenario = make_live_scenario(nodes, pods, WhatIf(), "")
    (waits,) = run_policy(scenario, PolicyChoice()).not_placed
    return ", ".join(sorted(f"{count} {why}" for why, count in waits.reasons.items()))


def test_nodes_without_readable_cards(world: World) -> None:
    """They share no cards; others go on, and so does one whose annotation is mended."""
    for fault, text in BROKEN.items():
        world.raw_node(fault, 58, 2, text)
    waiting = world.post("early", 4, 1)
    assert_refused(world, waiting, "5 No shared cards")
    mended = {"metadata": {"annotations": {"baidu.com/vcuda-cards": GOOD}}}
    world.rest.must("PATCH", "/api/v1/nodes/not-json", mended)
    assert world.bound(waiting, timeout_s=60).cards == ("G",)
    world.node("good", 29)
    assert world.runs("late", 29, 1) == "good-0"
    checked_books(world.rest)


def test_refusals_are_counted_together(world: World) -> None:
    """Nodes refused for one reason make one entry, whatever each has left."""
    for name in ("a", "b"):
        world.node(name, 29, 29)
    for number in range(4):
        world.runs(f"memory-{number}", 19 + number % 2, 30)
    world.node("c", 40, 40)
    for number in range(2):
        world.runs(f"core-{number}", 21, 60)
    world.raw_node("d", 58, 2, None)
    says = (
        "1 Insufficient baidu.com/vcuda-core on one card, "
        "1 No shared cards, "
        "2 Insufficient baidu.com/vcuda-memory on one card"
    )
    assert_refused(world, world.post("waiting", 15, 50), says)


@pytest.mark.parametrize("quantity", ["500m", "1.5", "-1"])
def test_quantities_that_never_reach_us(world: World, quantity: str) -> None:
    """The API server itself takes no fraction of a unit and nothing below zero."""
    with pytest.raises(ApiError, match="422"):
        world.post("odd", quantity, 1)


def test_quantities_in_any_notation(world: World) -> None:
    """Four units are four units, however they are written, and ``1k`` is a thousand."""
    world.node("edge", *[4] * 4, 999, 1000)
    for number, quantity in enumerate(("4", "4000m", "4e0", "0.004k")):
        assert world.runs(f"odd-{number}", quantity, 1) == f"edge-{number}"
    assert world.runs("large", "1k", 1) == "edge-5"
    checked_books(world.rest)


def test_pod_that_asks_zero(world: World) -> None:
    """A pod that asks zero is bound plainly, also where there are no cards."""
    world.raw_node("plain", 29, 1, None)
    zero = world.post("zero", 0, 0)
    assert world.bound(zero).node == "plain"
    assert cards_of(read_pod(world.rest, zero)) == ()
    assert "annotations" not in read_pod(world.rest, zero)["metadata"]


def test_room_that_comes_free_is_taken(world: World) -> None:
    """A pod that waits for a card runs when that card's tenant goes.

    kube-scheduler asks again within milliseconds of the deletion, which our own watch
    may not have brought yet. How filter waits for that is tested without a cluster
    (``tests/extender/scheduling/test_service.py``). On a busy machine the watch may be
    later still: then a change of the node makes kube-scheduler ask once more.
    """
    world.node("edge", 29, 29)
    tenants = [world.post("tenant-0", 19, 1), world.post("other", 19, 1)]
    for tenant in tenants:
        world.bound(tenant)
    for turn in range(1, 7):
        waiting = world.post(f"tenant-{turn}", 15 + turn % 2 * 4, 1)
        assert not world.verdict(waiting).node
        world.delete(tenants[0])
        tenants[0] = waiting
        try:
            world.bound(waiting, timeout_s=5)
        except AssertionError:
            label = {"metadata": {"labels": {"turn": str(turn)}}}
            world.rest.must("PATCH", "/api/v1/nodes/edge", label)
            world.bound(waiting)
    wait_until(lambda: len(world.pods()) == 2, "end of the deleted")
    checked_books(world.rest)
