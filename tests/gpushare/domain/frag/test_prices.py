"""Prices of shares: right by the definition of the program whose dual they are."""

from fractions import Fraction
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain.frag.prices import (
    STEPS,
    best_pattern,
    blended,
    card_prices,
    steps_up,
    worth_curve,
)
from tests.gpushare.domain.frag.invented import few

counts = st.dictionaries(st.integers(1, 100), st.integers(1, 5000), max_size=14)
NEARLY = 1e-6


def test_the_sizes_of_a_real_cluster() -> None:
    """As ``packing`` of real shares goes: halves, thirds, and fillers for nothing."""
    seen = {100: 3900, 81: 1080, 65: 250, 59: 75, 47: 750, 32: 330, 23: 140, 16: 75}
    prices = card_prices(seen)
    assert {size: round(price, 3) for size, price in prices.items()} == {
        100: 1,
        81: 1,
        65: 0.667,
        59: 0.667,
        47: 0.5,
        32: 0.333,
        23: 0.25,
        16: 0,
    }


@pytest.mark.parametrize(
    ("seen", "prices"),
    [
        ({}, {}),
        ({50: 0}, {}),
        ({100: 7}, {100: 1}),
        ({50: 7}, {50: 1 / 2}),
        ({51: 7}, {51: 1}),
        ({34: 7}, {34: 1 / 2}),
        ({1: 7}, {1: 1 / 100}),
        ({60: 4, 40: 5}, {60: 1 / 2, 40: 1 / 2}),
        ({60: 5, 40: 3}, {60: 1, 40: 0}),
        ({60: 3, 40: 9}, {60: 1 / 2, 40: 1 / 2}),
    ],
)
def test_small_mixes(seen: dict[int, int], prices: dict[int, float]) -> None:
    assert card_prices(seen) == pytest.approx(prices)


@few
@given(counts)
def test_no_card_holds_more_price_than_one(seen: dict[int, int]) -> None:
    prices = card_prices(seen)
    assert all(0 <= price <= 1 + NEARLY for price in prices.values())
    worth, _ = best_pattern(sorted(seen), [prices[size] for size in sorted(seen)])
    assert worth <= 1 + NEARLY


@few
@given(counts)
def test_prices_say_at_least_what_sizes_say(seen: dict[int, int]) -> None:
    """The dual bounds the cards needed, no worse than their total size does."""
    prices = card_prices(seen)
    bound = sum(prices[size] * number for size, number in seen.items())
    assert bound >= sum(size * number for size, number in seen.items()) / STEPS - 1e-3


@settings(max_examples=25)
@given(
    st.dictionaries(st.integers(25, 100), st.integers(1, 50), min_size=1, max_size=3)
)
def test_the_prices_are_the_optimum(seen: dict[int, int]) -> None:
    """Against all vertices of the primal, in fractions."""
    prices = card_prices(seen)
    dual = sum(prices[size] * number for size, number in seen.items())
    assert dual == pytest.approx(float(_fewest_cards(seen)), abs=1e-6)


@pytest.mark.parametrize("rounds", [0, 1, 10, 60])
def test_prices_hold_wherever_the_rounds_end(rounds: int) -> None:
    """Never over one for a card, and never worse than plain sizes."""
    seen = {size: 1 + size * 7919 % 1000 for size in range(30, 96, 3)}
    prices = card_prices(seen, rounds)
    worth, _ = best_pattern(sorted(seen), [prices[size] for size in sorted(seen)])
    assert worth <= 1 + NEARLY
    bound = sum(prices[size] * number for size, number in seen.items())
    plain = sum(size * number for size, number in seen.items()) / STEPS
    assert bound >= plain - NEARLY
    assert (bound > plain * 1.01) == (rounds == 60)


@few
@given(counts)
def test_the_curve_rises_from_nothing_to_one(seen: dict[int, int]) -> None:
    for curve in (worth_curve(card_prices(seen)), blended(worth_curve({}))):
        assert len(curve) == STEPS + 1
        assert curve[0] == 0
        assert curve[STEPS] == pytest.approx(1)
        assert all(low <= high + NEARLY for low, high in pairwise(curve))


def test_a_rest_is_worth_the_best_that_fits() -> None:
    curve = worth_curve({60: 0.5, 40: 0.5, 16: 0.0})
    assert [curve[room] for room in (39, 40, 79, 80, 100)] == [0, 0.5, 0.5, 1, 1]
    assert blended(curve)[50] == pytest.approx(0.5)
    assert blended(curve)[39] == pytest.approx(0.195)


def test_sizes_are_rounded_up() -> None:
    assert [steps_up(milli) for milli in (1, 10, 11, 991, 1000)] == [1, 1, 2, 100, 100]


def _fewest_cards(seen: dict[int, int]) -> Fraction:
    """Solve the program by trying every basis of patterns and surpluses."""
    sizes = sorted(seen)
    fills = product(*(range(STEPS // size + 1) for size in sizes))
    columns = [
        (fill, 1)
        for fill in fills
        if 0 < sum(n * s for n, s in zip(fill, sizes, strict=True)) <= STEPS
    ]
    rows = range(len(sizes))
    columns.extend((tuple(-(row == i) for i in rows), 0) for row in rows)
    best = Fraction(10**9)
    for basis in combinations(columns, len(sizes)):
        amounts = _solved([fill for fill, _ in basis], [seen[size] for size in sizes])
        if amounts is not None and min(amounts) >= 0:
            cost = sum(a * c for a, (_, c) in zip(amounts, basis, strict=True))
            best = min(best, Fraction(cost))
    return best


def _solved(columns: list[tuple[int, ...]], right: list[int]) -> list[Fraction] | None:
    """Solve Σ amount·column = right by elimination; None where it is singular."""
    size = len(right)
    rows = [
        [Fraction(column[row]) for column in columns] + [Fraction(right[row])]
        for row in range(size)
    ]
    for at in range(size):
        pivot = next((r for r in range(at, size) if rows[r][at]), None)
        if pivot is None:
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        rows[at] = [value / rows[at][at] for value in rows[at]]
        for other in range(size):
            if other != at and rows[other][at]:
                factor = rows[other][at]
                rows[other] = [
                    a - factor * b for a, b in zip(rows[other], rows[at], strict=True)
                ]
    return [row[size] for row in rows]
