"""A node: what is charged, what is free, and its summary for filter."""

import pytest

from gpushare.domain.model import Amount, Placement, Reason, Refusal
from gpushare.domain.node import Node, find_free_units, frontier, summarize
from tests.builders import (
    apart,
    card,
    cards,
    claim,
    node,
    placement,
    ref,
    request,
    share,
)

MINE, OTHERS = placement("a", 0, 10), placement("b", 0, 3)
ASKS, OLD = ref("asks", priority=10), placement("x", 0, 9)
KEPT = {
    rank: node(nominated=[placement("k", 0, 10, priority=rank)]) for rank in (5, 10)
}
EACH = node(holds=[OTHERS], nominated=[MINE], unplaced=[request("c", 5)])
TWO = cards(29, 16)
SHARES = [request("a", 5, 30), request("b", 1, 0)]


@pytest.mark.parametrize(
    ("page", "free"),
    [
        (node(*TWO, holds=[placement("a", 0, 20, 30), OTHERS]), [(70, 6), (100, 16)]),
        (node(card(units=10), holds=[placement("a", 0, 30)]), [(100, -20)]),
        (node(holds=[placement("a", "GPU-gone", 10), OTHERS]), [(100, 26)]),
        (node(nominated=[MINE]), [(100, 19)]),
        (node(holds=[MINE], nominated=[MINE]), [(100, 19)]),
        (node(unplaced=[request("a", 5)], nominated=[MINE]), [(100, 24)]),
        (node(*TWO, holds=[OLD], unplaced=SHARES), [(70, 14), (70, 10)]),
        (node(*TWO, holds=[OLD], unplaced=[request("a", 20, 100)]), [(0, -9), (0, 0)]),
        (node(*TWO, holds=[OLD], unplaced=[apart("a", 4, 3)]), [(100, 13), (100, 9)]),
        (KEPT[5].as_seen_by(ASKS), [(100, 29)]),
        (KEPT[10].as_seen_by(ASKS), [(100, 19)]),
        (node(holds=[MINE]).as_seen_by(ref("a")), [(100, 29)]),
        (node(nominated=[MINE], holds=[OTHERS]).as_seen_by(ref("a")), [(100, 26)]),
        (EACH, [(100, 11)]),
        (EACH.without({ref(name).uid for name in "abc"}), [(100, 29)]),
        (EACH.as_seen_by(ref("c")), [(100, 16)]),
    ],
    ids=[
        *("shares add up", "below zero", "another card", "nominated", "and placed"),
        *("and unplaced", "unplaced", "whole cards unplaced", "apart, maybe on one"),
        *("past lower nominations", "not past equal ones", "past itself"),
        *("past its nomination", "all three", "without", "past itself unplaced"),
    ],
)
def test_free_is_capacity_less_what_is_held(
    page: Node, free: list[tuple[int, int]]
) -> None:
    """An unplaced pod counts in full on each card, for it may be on any."""
    assert [(room.cores, room.units) for room in page.free.values()] == free


@pytest.mark.parametrize("how", [{"healthy": False}, {"cordoned": True}], ids=str)
def test_a_closed_card_offers_nothing_and_its_pods_stay_charged(
    how: dict[str, bool],
) -> None:
    """It counts neither as room nor as used: the node is as full as its open cards."""
    page = node(card(0, 29, **how), card(1, 16), holds=[placement("a", 0, 20, 5)])
    assert list(page.free) == ["GPU-1"]
    assert [room.uuid for room in page.untouched] == ["GPU-1"]
    assert page.summary.cards == 1
    assert page.fullness == 0.0
    assert dict(page.charged) == {"GPU-0": (5, 20)}
    assert node(card(**how)).fullness == 1.0


def test_untouched_is_a_card_of_which_nobody_holds_anything() -> None:
    page = node(
        *cards(9, 9, 9, 9),
        holds=[placement("a", 0, 1), placement("b", 1, 0, 1)],
        nominated=[placement("c", 2, 1)],
    )
    assert [room.uuid for room in page.untouched] == ["GPU-3"]
    assert page.with_unplaced(request("d", 1)).untouched == ()


@pytest.mark.parametrize(
    ("holder", "fullness"),
    [
        ([], 0.0),
        ([placement("a", 0, 10, 0)], 0.25),
        ([placement("a", 0, 10, 100)], 0.5),
        ([placement("a", 0, 99, 0)], 0.5),
        ([placement("a", 0, 20, 100), placement("b", 1, 20, 100)], 1.0),
    ],
    ids=["empty", "by units", "by cores", "over-placed counts as full", "full"],
)
def test_fullness_is_the_fuller_part(holder: list[Placement], fullness: float) -> None:
    page = node(*cards(20, 20), holds=holder)
    assert page.fullness == fullness


def test_a_page_on_which_a_pod_stands_nowhere_is_seen_as_it_is() -> None:
    page = node(holds=[placement("b", 0, 3)])
    assert page.as_seen_by(ref("a")) is page


@pytest.mark.parametrize(
    ("holder", "possible"),
    [
        (placement("a", 1, 40), True),
        (placement("a", "GPU-9", 4), False),
        (placement("a", shares=[share(0), share("GPU-9")]), False),
        (placement("a", 0, 4, 200), False),
        (placement("a", shares=[share(0, 4, 60), share(0, 4, 40)]), True),
        (placement("a", shares=[share(0, 4, 60), share(0, 4, 60)]), False),
    ],
    ids=[
        "over-placed",
        "another card",
        "one of two",
        "more than a card",
        "all of a card in parts",
        "more than a card in parts",
    ],
)
def test_which_placements_are_possible_here(holder: Placement, possible: bool) -> None:
    assert node(*cards(29, 29)).could_hold(holder) is possible


@pytest.mark.parametrize(
    ("free", "kept"),
    [
        ([], []),
        ([(5, 5)], [(5, 5)]),
        ([(5, 5), (5, 5)], [(5, 5)]),
        ([(1, 9), (9, 1), (5, 5)], [(9, 1), (5, 5), (1, 9)]),
        ([(5, 5), (4, 4), (9, 5)], [(9, 5)]),
        ([(5, -1), (-1, 5)], []),
        ([(0, 0)], [(0, 0)]),
    ],
    ids=["none", "one", "twins", "staircase", "beaten", "below zero", "full"],
)
def test_the_frontier(free: list[tuple[int, int]], kept: list[tuple[int, int]]) -> None:
    rooms = frontier(Amount(*room) for room in free)
    assert rooms == tuple(Amount(*room) for room in kept)


FRAGMENTED = summarize([Amount(90, 5), Amount(20, 25)], [])


@pytest.mark.parametrize(
    ("units", "cores", "reason"),
    [
        (5, 90, None),
        (25, 20, None),
        (0, 90, None),
        (25, 0, None),
        (26, 10, Reason.MEMORY),
        (1, 91, Reason.CORE),
        (26, 91, Reason.CORE_AND_MEMORY),
        (25, 90, Reason.CORE_AND_MEMORY),
        (6, 21, Reason.CORE_AND_MEMORY),
    ],
)
def test_why_no_card_has_room(units: int, cores: int, reason: Reason | None) -> None:
    """The part that no card has; both, when each has only one of the two."""
    no = FRAGMENTED.refusal(claim(units, cores))
    assert no == (None if reason is None else Refusal(reason))


FULL = [placement("full", 0, 1, 99), placement("more", 0, 1, 1)]
LESS = placement("less", 1, 20, 99)


@pytest.mark.parametrize(
    ("pages", "largest", "without_cores"),
    [
        ([], None, 0),
        ([node(*TWO)], ("n card 0", 29), 0),
        # 27 units beside no core, 9 beside one.
        ([node(card(0), card(1), holds=[*FULL, LESS])], ("n card 1", 9), 27),
        ([node(holds=FULL), node(name="m", holds=FULL)], None, 54),
        ([node(card(0, 20)), node(card(0, 28), name="m")], ("m card 0", 28), 0),
        ([node(card(0, 20, cordoned=True))], None, 0),
        ([node(holds=[placement("units", 0, 29, 1)])], None, 0),
        ([node(holds=[placement("over", 0, 30, 101)])], None, 0),
    ],
    ids=["none", "all", "both", "cores", "nodes", "closed", "units", "over"],
)
def test_free_is_what_a_pod_with_one_core_could_have(
    pages: list[Node], largest: tuple[str, int] | None, without_cores: int
) -> None:
    free = find_free_units(pages)
    block = free.largest
    assert (block and (str(block), block.free.units)) == largest
    assert free.without_cores == without_cores
