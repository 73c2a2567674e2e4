"""Which shares one card can hold together, and the one that is worth most. Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from bench.packing.trace import WHOLE

Pattern: TypeAlias = tuple[tuple[int, int], ...]
"""Sizes in milli and how many of each one card holds, sorted."""


def alone(sizes: Sequence[int]) -> list[Pattern]:
    """Give, of each size, as many as a card holds."""
    return [((size, WHOLE // size),) for size in sizes]


def dearest(prices: Mapping[int, float]) -> tuple[float, Pattern]:
    """Find the shares that fit on one card and are worth most, and what they are worth.

    An unbounded knapsack in steps of the sizes' greatest common divisor.
    """
    step = math.gcd(WHOLE, *prices)
    worth = [0.0] * (WHOLE // step + 1)
    last = [0] * len(worth)
    sized = [(size // step, price) for size, price in prices.items() if price > 0]
    for room in range(1, len(worth)):
        worth[room] = worth[room - 1]
        for size, price in sized:
            if size <= room and worth[room - size] + price > worth[room]:
                worth[room], last[room] = worth[room - size] + price, size
    return worth[-1], _walked(last, step)


def _walked(last: Sequence[int], step: int) -> Pattern:
    held: Counter[int] = Counter()
    room = len(last) - 1
    while room > 0:
        held[last[room] * step] += 1
        room -= last[room] or 1
    held.pop(0, None)
    return tuple(sorted(held.items()))
