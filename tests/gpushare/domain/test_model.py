"""The nouns: units of a card, amounts, shares, users' texts in refusals."""

import pytest

from gpushare.domain.model import NOTHING, Amount, clean_text, units_of
from tests.builders import claim


@pytest.mark.parametrize(
    ("memory_mib", "units"),
    [(24259, 94), (7611, 29), (2002, 7), (4096, 16), (255, 0), (256, 1), (0, 0)],
)
def test_a_card_has_the_floor_of_its_memory(memory_mib: int, units: int) -> None:
    """Seed 001: 24259 MiB are 94 units; what is left of a unit is nobody's."""
    assert units_of(memory_mib) == units


@pytest.mark.parametrize(
    ("amount", "room", "fits"),
    [
        (Amount(10, 10), Amount(10, 10), True),
        (Amount(11, 10), Amount(10, 10), False),
        (Amount(10, 11), Amount(10, 10), False),
        (NOTHING, NOTHING, True),
        (Amount(1, 0), Amount(50, -1), False),
    ],
)
def test_an_amount_fits_when_both_parts_do(
    amount: Amount, room: Amount, fits: bool
) -> None:
    """An over-placed card has no room, not even for cores alone."""
    assert amount.fits(room) is fits


@pytest.mark.parametrize(
    ("cores", "whole"), [(0, 0), (1, 0), (99, 0), (100, 1), (800, 8)]
)
def test_a_hundred_cores_and_more_are_whole_cards(cores: int, whole: int) -> None:
    assert claim(cores=cores).whole_cards == whole


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
def test_a_users_words_may_stand_in_an_event(text: str, clean: str) -> None:
    assert clean_text(text) == clean
