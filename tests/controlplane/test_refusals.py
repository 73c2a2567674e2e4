"""Why a pod waits, in the words that the API server's event holds."""

import pytest

from tests.controlplane.books import checked_book
from tests.controlplane.cases import CASES, Case, assert_refused
from tests.controlplane.world import World, cards_of
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


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_refusal(world: World, case: Case) -> None:
    """What fits the node but none of its cards waits, and its event says so."""
    case.arrange(world)
    case.check(world)


@pytest.mark.parametrize("fault", BROKEN)
def test_node_without_readable_cards(world: World, fault: str) -> None:
    """A node whose annotation is missing or broken shares no cards; others go on."""
    world.raw_node(fault, 58, 2, BROKEN[fault])
    assert_refused(world, world.post("early", 4, 1), "1 No shared cards")
    world.node("good", 29)
    assert world.runs("late", 25, 1) == "good-0"
    checked_book(world.rest)


def test_mended_annotation_lets_the_pod_run(world: World) -> None:
    """Once the annotation can be read, the pod that waited for it runs."""
    world.raw_node("edge", 29, 1, BROKEN["not-json"])
    waiting = world.post("waiting", 4, 1)
    assert_refused(world, waiting, "1 No shared cards")
    mended = {"metadata": {"annotations": {"baidu.com/vcuda-cards": GOOD}}}
    world.rest.must("PATCH", "/api/v1/nodes/edge", mended)
    assert world.bound(waiting, timeout_s=60).cards == ("G",)


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


@pytest.mark.parametrize("quantity", ["4", "4000m", "4e0", "0.004k"])
def test_quantities_in_any_notation(world: World, quantity: str) -> None:
    """Four units are four units, however they are written."""
    world.node("edge", 4, 29)
    assert world.runs("odd", quantity, 1) == "edge-0"
    checked_book(world.rest)


def test_thousand_units(world: World) -> None:
    """``1k`` is a thousand units, which only the larger card has."""
    world.node("edge", 999, 1000)
    assert world.runs("large", "1k", 1) == "edge-1"


def test_bytes_for_units(world: World) -> None:
    """``16Gi`` is far more units than any node has, so kube-scheduler refuses it."""
    world.node("edge", 94)
    says = "1 Insufficient baidu.com/vcuda-memory"
    assert_refused(world, world.post("bytes", "16Gi", 1), says)


def test_pod_that_asks_zero(world: World) -> None:
    """A pod that asks zero is bound plainly, also where there are no cards."""
    world.raw_node("plain", 29, 1, None)
    zero = world.post("zero", 0, 0)
    assert world.bound(zero).node == "plain"
    assert cards_of(read_pod(world.rest, zero)) == ()
    assert "annotations" not in read_pod(world.rest, zero)["metadata"]


def test_parts_of_a_request(world: World) -> None:
    """Memory alone holds no cores, and cores alone hold no memory."""
    world.node("edge", 29)
    world.runs("memory", 20)
    world.runs("compute", None, 99)
    assert checked_book(world.rest).free() == {("edge", "edge-0"): (1, 9)}


def test_whole_cards_are_the_largest_untouched(world: World) -> None:
    """Two whole cards: the largest that nobody holds, with all their memory."""
    world.node("edge", 40, 20, 30, 10)
    world.runs("holder", 1, 1)
    whole = world.verdict(world.post("whole", 45, 200))
    assert set(whole.cards) == {"edge-1", "edge-2"}
    assert checked_book(world.rest).free()["edge", "edge-1"] == (0, 0)
    assert world.runs("beside", 39, 1) == "edge-0"


def test_room_that_comes_free_is_taken(world: World) -> None:
    """A pod that waits for a card runs when that card's tenant goes.

    kube-scheduler asks again within milliseconds of the deletion, which our own watch
    may not have brought yet. On a busy machine it may be later than filter waits, so a
    few misses are allowed.
    """
    world.node("edge", 29, 29)
    tenants = [world.post("tenant-0", 19, 1), world.post("other", 19, 1)]
    for tenant in tenants:
        world.bound(tenant)
    missed = 0
    for turn in range(1, 21):
        waiting = world.post(f"tenant-{turn}", 15 + turn % 2 * 4, 1)
        assert not world.verdict(waiting).node
        world.delete(tenants[0])
        tenants[0] = waiting
        try:
            world.bound(waiting, timeout_s=5)
        except AssertionError:
            missed += 1
            label = {"metadata": {"labels": {"turn": str(turn)}}}
            world.rest.must("PATCH", "/api/v1/nodes/edge", label)
            world.bound(waiting)
    assert missed <= 3
    wait_until(lambda: len(world.pods()) == 2, "end of the deleted")
    checked_book(world.rest)
