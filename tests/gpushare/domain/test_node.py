"""A node: what is charged, what is free, and its summary for filter."""

import pytest

from gpushare.domain.model import Amount, Placement, PodRequest
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
    page = node(card(0), holds=[placement("a", "GPU-gone", 10), placement("b", 0, 4)])
    assert page.free == {"GPU-0": Amount(100, 25)}
    assert dict(page.charged) == {"GPU-gone": (0, 10), "GPU-0": (0, 4)}


@pytest.mark.parametrize("how", [{"healthy": False}, {"cordoned": True}], ids=str)
def test_a_closed_card_offers_nothing_and_its_pods_stay_charged(
    how: dict[str, bool],
) -> None:
    """It counts neither as room nor as used: the node is as full as its open cards."""
    page = node(card(0, 29, **how), card(1, 16), holds=[placement("a", 0, 20, 5)])
    assert list(page.free) == ["GPU-1"]
    assert [one.uuid for one in page.untouched] == ["GPU-1"]
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
    page = node(*cards(20, 20), holds=held)
    assert page.fullness == fullness


def test_a_nomination_is_charged_until_the_pod_is_placed() -> None:
    kept = placement("a", 0, 10)
    assert left(node(nominated=[kept])).units == 19
    assert left(node(holds=[kept], nominated=[kept])).units == 19
    assert left(node(unplaced=[request("a", 5)], nominated=[kept])).units == 24


def test_without_strikes_out_pods_wherever_they_stand() -> None:
    page = node(
        holds=[placement("a", 0, 5)],
        nominated=[placement("b", 0, 5)],
        unplaced=[request("c", 5)],
    )
    assert left(page.without({ref(name).uid for name in "abc"})).units == 29
    assert left(page.as_seen_by(ref("c"))).units == 19
    assert left(page).units == 14


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
    mine = placement("a", 0, 10)
    assert left(node(holds=[mine]).as_seen_by(ref("a"))).units == 29
    kept = node(nominated=[mine], holds=[placement("b", share(0).card, 3)])
    assert left(kept.as_seen_by(ref("a"))).units == 26


def test_a_page_on_which_a_pod_stands_nowhere_is_seen_as_it_is() -> None:
    page = node(holds=[placement("b", 0, 3)])
    assert page.as_seen_by(ref("a")) is page


@pytest.mark.parametrize(
    ("lost", "free"),
    [
        ([request("a", 5, 30), request("b", 1, 0)], [Amount(70, 14), Amount(70, 10)]),
        ([request("a", 20, 100)], [Amount(0, -9), Amount(0, 0)]),
        ([apart("a", 4, 3)], [Amount(100, 13), Amount(100, 9)]),
    ],
    ids=["shares", "whole cards: all of each", "apart, but maybe on one"],
)
def test_a_pod_on_nobody_knows_which_card_is_charged_on_all(
    lost: list[PodRequest], free: list[Amount]
) -> None:
    """In full on each, for it may be on any; no card is untouched then."""
    page = node(*cards(29, 16), holds=[placement("a", 0, 9)], unplaced=lost)
    assert list(page.free.values()) == free
    assert page.untouched == ()
    assert dict(page.charged) == {"GPU-0": (0, 9)}


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
