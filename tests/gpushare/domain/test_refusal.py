"""A node's frontier, and the fixed reasons to refuse it."""

import pytest

from gpushare.domain.model import Amount
from gpushare.domain.node import frontier, summarize
from gpushare.domain.refusal import (
    Reason,
    Refusal,
    invalid,
    users_words,
)
from tests.builders import claim


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


def test_invalid_carries_what_is_wrong() -> None:
    """Equal words make equal refusals, since nodes are counted by them."""
    assert invalid("x") == Refusal(Reason.INVALID, "x") == invalid("x")
    assert invalid("x") != invalid("y")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("best-fit", "best-fit"),
        ("100%d %s", "100d s"),
        ("a\nb\tc\x00d\x1be", "abcde"),
        ("卡", "卡"),
        ("x" * 100, "x" * 100),
        ("x" * 101, "x" * 99 + "…"),
        ("%" * 500 + "y", "y"),
        ("\u202eevil\u200b", "evil"),
    ],
    ids=[
        "plain",
        "format",
        "control",
        "other scripts",
        "just short enough",
        "cut",
        "percent does not count",
        "invisible",
    ],
)
def test_users_words_may_stand_in_an_event(text: str, clean: str) -> None:
    """No ``%``, no control characters, 100 characters at most."""
    assert users_words(text) == clean
