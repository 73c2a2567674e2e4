"""Sums over many kinds of pods, worked out by one look-up instead of a loop."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Ramp:
    """Σ w·min(G, X/a) over kinds that weigh w and ask a of X for each card's worth."""

    rates: tuple[float, ...]
    """The a, rising."""
    weights: tuple[float, ...]
    """Sums of the first 0, 1, … weights."""
    limited: tuple[float, ...]
    """Sums of w/a from the first, second, … kind on: what X alone allows."""

    @classmethod
    def of(cls, kinds: Iterable[tuple[float, float]]) -> "Ramp":
        """Make it of pairs of a and w."""
        ordered = sorted(kinds)
        per_rate = [weight / rate if rate > 0 else 0.0 for rate, weight in ordered]
        return cls(
            tuple(rate for rate, _ in ordered),
            tuple(accumulate((weight for _, weight in ordered), initial=0.0)),
            tuple(accumulate(reversed(per_rate), initial=0.0))[::-1],
        )

    def worth(self, cards: float, room: int | None) -> float:
        """Give the sum for G cards' worth and X room; unknown room limits nothing."""
        if cards <= 0:
            return 0.0
        if room is None:
            return cards * self.weights[-1]
        free = max(room, 0)
        ample = bisect_right(self.rates, free / cards)
        return cards * self.weights[ample] + free * self.limited[ample]


@dataclass(frozen=True, slots=True)
class Ladder:
    """Σ w·min(B, ⌊X/c⌋) over kinds that weigh w and ask c of X for each block."""

    costs: tuple[int, ...]
    """The c, rising."""
    weights: tuple[float, ...]
    """Sums of the first 0, 1, … weights."""

    @classmethod
    def of(cls, kinds: Iterable[tuple[int, float]]) -> "Ladder":
        """Make it of pairs of c and w."""
        ordered = sorted(kinds)
        return cls(
            tuple(cost for cost, _ in ordered),
            tuple(accumulate((weight for _, weight in ordered), initial=0.0)),
        )

    def worth(self, blocks: int, room: int | None) -> float:
        """Give the sum for B blocks and X room; unknown room limits nothing."""
        if room is None:
            return blocks * self.weights[-1]
        return sum(
            self.weights[bisect_right(self.costs, max(room, 0) // count)]
            for count in range(1, blocks + 1)
        )
