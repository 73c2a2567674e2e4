"""A node: what is charged, what is free, and its summary for filter."""

import pytest

from gpushare.domain.model import Amount, Placement
from gpushare.domain.node import frontier, summarize
from gpushare.domain.refusal import Reason, Refusal
from tests.builders import (
    apart,
    card,
    cards,
    claim,
    left,
    node,
    placement,
    ref,
    request,
    share,
)


def test_free_is_capacity_less_what_is_held() -> None:
    """Shares of all pods on a card add up; other cards stay as they are."""
    page = node(
        *cards(29, 16),
        holds=[placement("a", 0, 20, 30), placement("b", 0, 4, 1)],
    )
    assert page.free == {"GPU-0": Amount(69, 5), "GPU-1": Amount(100, 16)}


def test_what_exceeds_a_card_is_kept_below_zero() -> None:
    """Over-use is neither clamped nor forgotten."""
    page = node(card(units=10), holds=[placement("a", 0, 30)])
    assert page.free == {"GPU-0": Amount(100, -20)}


def test_a_placement_on_a_card_that_is_not_there_hurts_no_other() -> None:
    """A stale UUID is charged to itself alone."""
    page = node(card(0), holds=[placement("a", "GPU-gone", 10), placement("b", 0, 4)])
    assert page.free == {"GPU-0": Amount(100, 25)}
    assert dict(page.charged) == {"GPU-gone": (0, 10), "GPU-0": (0, 4)}


def test_a_sick_card_offers_nothing() -> None:
    """It is neither free nor untouched, and its units do not count as room."""
    page = node(card(0, healthy=False), card(1, 16))
    assert list(page.free) == ["GPU-1"]
    assert [one.uuid for one in page.untouched] == ["GPU-1"]
    assert page.summary.cards == 1


def test_untouched_is_a_card_of_which_nobody_holds_anything() -> None:
    """One core or one unit is enough to touch a card, and so is a nomination."""
    page = node(
        *cards(9, 9, 9, 9),
        holds=[placement("a", 0, 1), placement("b", 1, 0, 1)],
        nominated=[placement("c", 2, 1)],
    )
    assert [one.uuid for one in page.untouched] == ["GPU-3"]


@pytest.mark.parametrize(
    ("held", "fullness"),
    [
        ([], 0.0),
        ([placement("a", 0, 10, 0)], 0.25),
        ([placement("a", 0, 10, 100)], 0.5),
        ([placement("a", 0, 99, 0)], 0.5),
        ([placement("a", 0, 20, 100), placement("b", 1, 20, 100)], 1.0),
    ],
    ids=["empty", "by units", "by cores", "over-placed counts as full", "full"],
)
def test_fullness_is_the_fuller_part(held: list[Placement], fullness: float) -> None:
    """Cores or units, whichever is more used, over all healthy cards."""
    page = node(*cards(20, 20), holds=held)
    assert page.fullness == fullness


def test_a_node_with_nothing_to_give_is_full() -> None:
    """No healthy card, no preference for it."""
    assert node(card(healthy=False)).fullness == 1.0


def test_a_nomination_is_charged_until_the_pod_is_placed() -> None:
    """Once it holds a placement here, that alone counts."""
    kept = placement("a", 0, 10)
    assert left(node(nominated=[kept])).units == 19
    both = node(holds=[placement("a", 0, 10)], nominated=[kept])
    assert left(both).units == 19


def test_a_second_placement_of_a_pod_replaces_its_first() -> None:
    """A pod is charged once."""
    page = node(*cards(9, 9), holds=[placement("a", 0, 5)])
    page = page.with_placement(placement("a", 1, 5))
    assert page.free == {"GPU-0": Amount(100, 9), "GPU-1": Amount(100, 4)}


def test_without_strikes_out_placements_and_nominations() -> None:
    """The page as it would be; the page itself does not change."""
    page = node(holds=[placement("a", 0, 5)], nominated=[placement("b", 0, 5)])
    assert left(page.without({ref("a").uid, ref("b").uid})).units == 29
    assert left(page).units == 19


@pytest.mark.parametrize(
    ("kept_for", "free"),
    [(5, 29), (10, 19), (20, 19)],
    ids=["lower priority gives way", "equal keeps", "higher keeps"],
)
def test_a_pod_sees_past_nominations_of_lower_priority(
    kept_for: int, free: int
) -> None:
    """As kube-scheduler has it for whole nodes."""
    page = node(nominated=[placement("kept", 0, 10, priority=kept_for)])
    seen = page.as_seen_by(ref("asks", priority=10))
    assert left(seen).units == free


def test_a_pod_does_not_stand_in_its_own_way() -> None:
    """Its own placement and nomination are not counted when it asks again."""
    mine = placement("a", 0, 10)
    assert left(node(holds=[mine]).as_seen_by(ref("a"))).units == 29
    kept = node(nominated=[mine], holds=[placement("b", share(0).card, 3)])
    assert left(kept.as_seen_by(ref("a"))).units == 26


def test_a_page_on_which_a_pod_stands_nowhere_is_seen_as_it_is() -> None:
    """No copy is made for the common case."""
    page = node(holds=[placement("b", 0, 3)])
    assert page.as_seen_by(ref("a")) is page


def test_a_cordoned_card_offers_nothing_and_its_pods_stay_charged() -> None:
    """It counts neither as room nor as used: the node is as full as its open cards."""
    page = node(
        card(0, 29, cordoned=True), card(1, 16), holds=[placement("a", 0, 20, 5)]
    )
    assert list(page.free) == ["GPU-1"]
    assert [one.uuid for one in page.untouched] == ["GPU-1"]
    assert page.summary.cards == 1
    assert page.fullness == 0.0
    assert dict(page.charged) == {"GPU-0": (5, 20)}


@pytest.mark.parametrize(
    ("healthy", "cordoned", "is_open"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_which_cards_are_open(healthy: bool, cordoned: bool, is_open: bool) -> None:
    """Those where something new may be placed: healthy and not cordoned."""
    assert card(healthy=healthy, cordoned=cordoned).open is is_open


def test_a_pod_on_nobody_knows_which_card_is_charged_on_all() -> None:
    """In full on each, for it may be on any; no card is untouched then."""
    page = node(
        *cards(29, 16),
        holds=[placement("a", 0, 9)],
        unplaced=[request("lost", 5, 30), request("too", 1, 0)],
    )
    assert page.free == {"GPU-0": Amount(70, 14), "GPU-1": Amount(70, 10)}
    assert page.untouched == ()
    assert page.unknown == {"GPU-0": Amount(30, 6), "GPU-1": Amount(30, 6)}
    assert dict(page.charged) == {"GPU-0": (0, 9)}


def test_whole_cards_on_nobody_knows_which_take_every_card() -> None:
    """Each has all of its capacity charged, whatever was asked."""
    page = node(*cards(29, 16), unplaced=[request("lost", 20, 100)])
    assert page.free == {"GPU-0": Amount(0, 0), "GPU-1": Amount(0, 0)}


def test_containers_apart_may_all_be_on_one_card() -> None:
    """So their sum is charged on each."""
    page = node(*cards(29, 16), unplaced=[apart("lost", 4, 3)])
    assert [room.units for room in page.free.values()] == [22, 9]


def test_a_pod_whose_card_is_found_is_charged_there_alone() -> None:
    """With its placement it is unplaced no more."""
    page = node(*cards(29, 16), unplaced=[request("a", 5), request("b", 1)])
    page = page.with_placement(placement("a", 1, 5))
    assert list(page.unplaced) == [ref("b").uid]
    assert [room.units for room in page.free.values()] == [28, 10]


def test_without_strikes_out_unplaced_pods_too() -> None:
    """On all cards at once; a pod sees past itself likewise."""
    page = node(*cards(9, 9), unplaced=[request("a", 5)])
    assert [room.units for room in page.without({ref("a").uid}).free.values()] == [9, 9]
    assert left(page.as_seen_by(ref("a"))).units == 9
    assert left(page.as_seen_by(ref("b"))).units == 4


def test_a_nomination_of_a_pod_that_runs_here_already_is_not_charged() -> None:
    """It is charged once, on every card."""
    page = node(unplaced=[request("a", 5)], nominated=[placement("a", 0, 5)])
    assert left(page).units == 24


@pytest.mark.parametrize(
    ("held", "possible"),
    [
        (placement("a", 1, 40), True),
        (placement("a", "GPU-9", 4), False),
        (placement("a", shares=[share(0), share("GPU-9")]), False),
        (placement("a", 0, 4, 200), False),
    ],
    ids=["over-placed", "another card", "one of two", "more than a card"],
)
def test_which_placements_are_possible_here(held: Placement, possible: bool) -> None:
    """Those on cards that are here; how full they are is another matter."""
    assert node(*cards(29, 29)).could_hold(held) is possible


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
    """The rooms that no other beats in both parts; cores fall along it."""
    found = frontier(Amount(*room) for room in free)
    assert found == tuple(Amount(*room) for room in kept)


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


@pytest.mark.parametrize(
    ("units", "cores", "fits"),
    [
        (0, 100, True),
        (94, 100, True),
        (95, 100, False),
        (188, 200, True),
        (189, 200, False),
        (204, 300, True),
        (205, 300, False),
        (1, 400, False),
    ],
)
def test_whole_cards_are_the_largest_untouched(
    units: int, cores: int, fits: bool
) -> None:
    """Enough of them, and together with the units asked."""
    summary = summarize([Amount(100, 200)], [16, 94, 94])
    no = summary.refusal(claim(units, cores))
    assert no == (None if fits else Refusal(Reason.UNTOUCHED_CARDS))


@pytest.mark.parametrize("cores", [0, 100], ids=["share", "whole"])
def test_a_node_without_healthy_cards(cores: int) -> None:
    """Whatever is asked, the reason is that there are no cards."""
    assert summarize([], []).refusal(claim(1, cores)) == Refusal(Reason.NO_CARDS)
