"""What a share of a card is worth, by how well its size fills cards with the others.

Cutting stock and column generation, after Gilmore and Gomory, "A Linear Programming
Approach to the Cutting-Stock Problem" (Operations Research 9, 1961).
"""

from collections.abc import Mapping, Sequence

from gpushare.domain.frag.shapes import WHOLE

STEPS = 100
"""Steps of a card in which sizes are counted: one step is 10 milli."""
MILLI_PER_STEP = WHOLE // STEPS
TOLERANCE = 1e-9
ROUNDS = 400
"""At most so many patterns are tried: half a second in plain Python."""


def steps_up(milli: int) -> int:
    """Give a share's size in steps of a card, rounded up."""
    return -(-milli // MILLI_PER_STEP)


def card_prices(counts: Mapping[int, float], rounds: int = ROUNDS) -> dict[int, float]:
    """Price each size, so that no card full of shares is worth more than 1.

    ``counts`` says how many shares of each size (1 to 100 steps) there are. The prices
    are the dual of the program that covers all of them with the fewest cards: a size
    that fills gaps for nothing has price 0, and 81 steps beside which nothing fits
    have 1. The rounds are bounded; where they do not suffice (a hundred sizes take some
    hundreds) these are the best prices found, and no worse than plain sizes.
    """
    sizes = sorted(size for size, count in counts.items() if count > 0)
    if not sizes:
        return {}
    total = sum(counts[size] for size in sizes)
    weights = [counts[size] / total for size in sizes]
    master = _Master(sizes, weights)
    best = [size / STEPS for size in sizes]
    most = _sumproduct(weights, best)
    for _ in range(rounds):
        prices = master.prices()
        lowest = min(range(len(sizes)), key=prices.__getitem__)
        if prices[lowest] < -TOLERANCE:
            column, cost = {lowest: -1.0}, 0.0
        else:
            worth, column = best_pattern(sizes, prices)
            cost = 1.0
            scaled = [max(0.0, price) / max(1.0, worth) for price in prices]
            if (bound := _sumproduct(weights, scaled)) >= most - TOLERANCE:
                best, most = scaled, bound
            if worth <= 1 + TOLERANCE:
                break
        if not master.enter(column, cost):
            break
    return {
        size: price if price > TOLERANCE else 0.0
        for size, price in zip(sizes, best, strict=True)
    }


def best_pattern(
    sizes: Sequence[int], prices: Sequence[float]
) -> tuple[float, dict[int, float]]:
    """Fill one card with the most price: its worth, and how many at each position."""
    priced = [
        (s, p, i) for i, (s, p) in enumerate(zip(sizes, prices, strict=True)) if p > 0
    ]
    worth = [0.0] * (STEPS + 1)
    taken = [-1] * (STEPS + 1)
    for room in range(1, STEPS + 1):
        best, choice = worth[room - 1], -1
        for size, price, position in priced:
            if size > room:
                break
            value = worth[room - size] + price
            if value > best + TOLERANCE:
                best, choice = value, position
        worth[room], taken[room] = best, choice
    pattern: dict[int, float] = {}
    room = STEPS
    while room > 0:
        position = taken[room]
        if position < 0:
            room -= 1
            continue
        pattern[position] = pattern.get(position, 0.0) + 1.0
        room -= sizes[position]
    return worth[STEPS], pattern


def worth_curve(prices: Mapping[int, float]) -> tuple[float, ...]:
    """Give the most price that fits into 0, 1, … 100 steps, scaled so that 100 has 1.

    Without prices a rest is worth its size.
    """
    priced = sorted((size, price) for size, price in prices.items() if price > 0)
    worth = [0.0]
    for room in range(1, STEPS + 1):
        best = worth[-1]
        for size, price in priced:
            if size > room:
                break
            best = max(best, worth[room - size] + price)
        worth.append(best)
    if worth[STEPS] <= 0:
        return tuple(room / STEPS for room in range(STEPS + 1))
    return tuple(value / worth[STEPS] for value in worth)


def blended(worth: Sequence[float]) -> tuple[float, ...]:
    """Half the worth and half the plain size: milder when the mix of pods changes."""
    return tuple(value / 2 + room / STEPS / 2 for room, value in enumerate(worth))


def _sumproduct(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


class _Master:
    """The program over the patterns found so far: revised simplex, dense inverse."""

    def __init__(self, sizes: Sequence[int], counts: Sequence[float]) -> None:
        fills = [STEPS // size for size in sizes]
        self.inverse = [[0.0] * len(sizes) for _ in sizes]
        for row, fill in enumerate(fills):
            self.inverse[row][row] = 1.0 / fill
        self.costs = [1.0] * len(sizes)
        self.amounts = [count / fill for count, fill in zip(counts, fills, strict=True)]

    def prices(self) -> list[float]:
        """Give the dual of each size."""
        rows = zip(self.costs, self.inverse, strict=True)
        return [sum(column) for column in zip(*(r for c, r in rows if c), strict=True)]

    def enter(self, column: Mapping[int, float], cost: float) -> bool:
        """Take a column into the basis, for the one that it pushes to zero first.

        False where it pushes none: by rounding alone, and nothing was changed.
        """
        pull = [sum(row[i] * n for i, n in column.items()) for row in self.inverse]
        leaving, least = -1, 0.0
        for row, (amount, by) in enumerate(zip(self.amounts, pull, strict=True)):
            if by > TOLERANCE and (leaving < 0 or amount / by < least):
                leaving, least = row, amount / by
        if leaving < 0:
            return False
        pivot = [value / pull[leaving] for value in self.inverse[leaving]]
        for row, by in enumerate(pull):
            if row != leaving and by:
                old = self.inverse[row]
                self.inverse[row] = [
                    value - by * taken for value, taken in zip(old, pivot, strict=True)
                ]
                self.amounts[row] = max(0.0, self.amounts[row] - by * least)
        self.inverse[leaving] = pivot
        self.amounts[leaving] = least
        self.costs[leaving] = cost
        return True
