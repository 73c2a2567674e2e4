"""The nouns: units of a card, amounts, shares."""

import pytest

from gpushare.domain.model import CORES_PER_CARD, NOTHING, Amount, units_of
from tests.builders import card, claim, placement, ref, share


@pytest.mark.parametrize(
    ("memory_mib", "units"),
    [(24259, 94), (7611, 29), (2002, 7), (4096, 16), (255, 0), (256, 1), (0, 0)],
)
def test_a_card_has_the_floor_of_its_memory(memory_mib: int, units: int) -> None:
    """Seed 001: 24259 MiB are 94 units; what is left of a unit is nobody's."""
    assert units_of(memory_mib) == units


def test_units_are_floored_card_by_card() -> None:
    """Two cards of 7611 MiB have 58 units, not the 59 of their sum."""
    assert sum(units_of(mib) for mib in (7611, 7611)) == 58
    assert units_of(7611 + 7611) == 59


def test_a_card_has_a_hundred_cores() -> None:
    """Compute is counted in hundredths of a card, whatever its memory."""
    assert card(units=94).capacity == Amount(CORES_PER_CARD, 94) == Amount(100, 94)


@pytest.mark.parametrize(
    ("amount", "fits"),
    [
        (Amount(10, 10), True),
        (Amount(11, 10), False),
        (Amount(10, 11), False),
        (NOTHING, True),
    ],
    ids=["exactly", "cores short", "units short", "nothing"],
)
def test_an_amount_fits_when_both_parts_do(amount: Amount, fits: bool) -> None:
    """Room in one part does not make up for the other."""
    assert amount.fits(Amount(10, 10)) is fits


def test_nothing_does_not_fit_below_zero() -> None:
    """An over-placed card has no room, not even for cores alone."""
    assert not Amount(1, 0).fits(Amount(50, -1))


def test_amounts_add_subtract_and_peak_in_both_parts() -> None:
    """Sums may fall below zero; a peak takes the larger of each part."""
    assert Amount(1, 2) + Amount(3, 4) == Amount(4, 6)
    assert Amount(1, 2) - Amount(3, 4) == Amount(-2, -2)
    assert Amount(1, 9).peak(Amount(5, 2)) == Amount(5, 9)


@pytest.mark.parametrize(
    ("amount", "asks"),
    [(NOTHING, False), (Amount(1, 0), True), (Amount(0, 1), True)],
)
def test_an_amount_is_true_when_it_asks_anything(amount: Amount, asks: bool) -> None:
    """Cores without memory and memory without cores both ask."""
    assert bool(amount) is asks


@pytest.mark.parametrize(
    ("cores", "whole"), [(0, 0), (1, 0), (99, 0), (100, 1), (800, 8)]
)
def test_a_hundred_cores_and_more_are_whole_cards(cores: int, whole: int) -> None:
    """1 to 99 is a share; N times 100 is N cards."""
    assert claim(cores=cores).whole_cards == whole


def test_a_pod_is_called_by_namespace_and_name() -> None:
    """As kubectl shows it."""
    assert str(ref("web")) == "default/web"


def test_a_placement_names_its_cards_in_the_order_of_its_claims() -> None:
    """The order is the pod's, not the cards'."""
    held = placement(shares=[share(2), share(0)])
    assert held.cards() == ("GPU-2", "GPU-0")
