"""The value of free capacity: prices of share sizes, and tables of a node's worth.

Prices come from cutting stock with column generation, after Gilmore and Gomory, "A
Linear Programming Approach to the Cutting-Stock Problem" (Operations Research 9, 1961).
``Ramp`` and ``Ladder`` replace sums over many kinds of pods by one look-up.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from gpushare.domain.frag.shapes import WHOLE, ClusterCapacity, Free, FreeOnNode

STEPS = 100
"""Sizes are counted in steps of a card; one step is 10 milli."""
MILLI_PER_STEP = WHOLE // STEPS
TOLERANCE = 1e-9
ROUNDS = 400
"""The most patterns that are tried: half a second in plain Python."""


def round_up_to_steps(milli: int) -> int:
    """Return a share's size in steps of a card, rounded up."""
    return -(-milli // MILLI_PER_STEP)


def price_sizes(counts: Mapping[int, float], rounds: int = ROUNDS) -> dict[int, float]:
    """Return a price for each size, so that no full card is worth more than 1.

    ``counts`` has the number of shares of each size, 1 to 100 steps. The prices are the
    dual of the linear program that covers all shares with the fewest cards: a size that
    fills gaps costs 0, and 81 steps, beside which nothing else fits, cost 1. If the
    rounds do not suffice (100 sizes need some hundreds), the best prices found so far
    are returned; they are never worse than plain sizes.
    """
    sizes = sorted(size for size, count in counts.items() if count > 0)
    if not sizes:
        return {}
    total = sum(counts[size] for size in sizes)
    weights = [counts[size] / total for size in sizes]
    # Begin with a pattern for each size alone, and with the sizes themselves as prices:
    # a feasible answer, if the rounds end early.
    master = _Master(sizes, weights)
    best = [size / STEPS for size in sizes]
    most = _sumproduct(weights, best)
    for _ in range(rounds):
        prices = master.prices()
        # A negative price comes first: it stands for "cover at least", so more shares
        # than asked of that size cost nothing.
        lowest = min(range(len(sizes)), key=prices.__getitem__)
        if prices[lowest] < -TOLERANCE:
            column, cost = {lowest: -1.0}, 0.0
        else:
            # Else the pattern that is worth most enters. Scaled by its worth, prices
            # are feasible: an answer at any time, and a bound of the best one.
            worth, column = find_best_pattern(sizes, prices)
            cost = 1.0
            scaled = [max(0.0, price) / max(1.0, worth) for price in prices]
            if (bound := _sumproduct(weights, scaled)) >= most - TOLERANCE:
                best, most = scaled, bound
            # No card is worth more than 1: the prices are the dual optimum.
            if worth <= 1 + TOLERANCE:
                break
        if not master.enter(column, cost):
            break
    return {
        size: price if price > TOLERANCE else 0.0
        for size, price in zip(sizes, best, strict=True)
    }


def find_best_pattern(
    sizes: Sequence[int], prices: Sequence[float]
) -> tuple[float, dict[int, float]]:
    """Return the highest price of one card, and its shares by position."""
    priced = [
        (s, p, i) for i, (s, p) in enumerate(zip(sizes, prices, strict=True)) if p > 0
    ]
    worth = [0.0] * (STEPS + 1)
    taken = [-1] * (STEPS + 1)
    # An unbounded knapsack by size: what a smaller room is worth, or one more share.
    # The sizes rise, so the loop ends at the first that is too large.
    for room in range(1, STEPS + 1):
        best, choice = worth[room - 1], -1
        for size, price, position in priced:
            if size > room:
                break
            value = worth[room - size] + price
            if value > best + TOLERANCE:
                best, choice = value, position
        worth[room], taken[room] = best, choice
    # Walk back from the full card; ``taken`` has the last share of each room.
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


def compute_worth_curve(prices: Mapping[int, float]) -> tuple[float, ...]:
    """Return the highest price that fits into 0, 1, … 100 steps, scaled to 1 at 100.

    Without prices, free capacity is worth its size.
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


def blend_with_size(worth: Sequence[float]) -> tuple[float, ...]:
    """Return the mean of worth and size, safer when the mix of pods changes."""
    return tuple(value / 2 + room / STEPS / 2 for room, value in enumerate(worth))


def _sumproduct(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


class _Master:
    """The linear program over the patterns so far: revised simplex, dense inverse."""

    def __init__(self, sizes: Sequence[int], counts: Sequence[float]) -> None:
        fills = [STEPS // size for size in sizes]
        self.inverse = [[0.0] * len(sizes) for _ in sizes]
        for row, fill in enumerate(fills):
            self.inverse[row][row] = 1.0 / fill
        self.costs = [1.0] * len(sizes)
        self.amounts = [count / fill for count, fill in zip(counts, fills, strict=True)]

    def prices(self) -> list[float]:
        rows = zip(self.costs, self.inverse, strict=True)
        return [sum(column) for column in zip(*(r for c, r in rows if c), strict=True)]

    def enter(self, column: Mapping[int, float], cost: float) -> bool:
        """Add a column to the basis, for the one that reaches zero first.

        False if none does, which rounding can cause; then nothing changed.
        """
        pull = [sum(row[i] * n for i, n in column.items()) for row in self.inverse]
        # The ratio test: the pattern that is used up first leaves the basis.
        leaving, least = -1, 0.0
        for row, (amount, by) in enumerate(zip(self.amounts, pull, strict=True)):
            if by > TOLERANCE and (leaving < 0 or amount / by < least):
                leaving, least = row, amount / by
        if leaving < 0:
            return False
        pivot = [value / pull[leaving] for value in self.inverse[leaving]]
        # The inverse follows by one pivot, in time of sizes squared and not cubed.
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


@dataclass(frozen=True, slots=True)
class Ramp:
    """How much of the free cards' worth a free amount X of CPU or memory can serve.

    It is Σ w·min(G, X/a): a kind of pods weighs w and asks a of X for each card's
    worth, so it can use the worth G of the free cards, or less if X is short.
    """

    rates: tuple[float, ...]
    """The a, rising."""
    weights: tuple[float, ...]
    """Sums of the first 0, 1, … weights."""
    limited: tuple[float, ...]
    """Sums of w/a from the first, second, … kind on: what X allows."""

    @classmethod
    def of(cls, kinds: Iterable[tuple[float, float]]) -> "Ramp":
        """Create it from pairs of a and w."""
        ordered = sorted(kinds)
        per_rate = [weight / rate if rate > 0 else 0.0 for rate, weight in ordered]
        return cls(
            tuple(rate for rate, _ in ordered),
            tuple(accumulate((weight for _, weight in ordered), initial=0.0)),
            tuple(accumulate(reversed(per_rate), initial=0.0))[::-1],
        )

    def worth(self, cards: float, room: int | None) -> float:
        """Return the sum for G cards' worth and X room; unknown room limits nothing."""
        if cards <= 0:
            return 0.0
        if room is None:
            return cards * self.weights[-1]
        free = max(room, 0)
        ample = bisect_right(self.rates, free / cards)
        return cards * self.weights[ample] + free * self.limited[ample]

    def slopes(self, cards: float, room: int | None) -> tuple[float, float]:
        """Return what the sum loses, at least, with each card's worth and each X."""
        if cards <= 0:
            return 0.0, 0.0
        if room is None:
            return self.weights[-1], 0.0
        ample = bisect_right(self.rates, max(room, 0) / cards)
        return self.weights[ample], self.limited[ample]


@dataclass(frozen=True, slots=True)
class Ladder:
    """How many of the free blocks a free amount X of CPU can serve.

    It is Σ w·min(B, ⌊X/c⌋): a kind of pods weighs w and asks c of X for each block of
    whole cards, so it can use all B free blocks, or fewer if X is short.
    """

    costs: tuple[int, ...]
    """The c, rising."""
    weights: tuple[float, ...]
    """Sums of the first 0, 1, … weights."""

    @classmethod
    def of(cls, kinds: Iterable[tuple[int, float]]) -> "Ladder":
        """Create it from pairs of c and w."""
        ordered = sorted(kinds)
        return cls(
            tuple(cost for cost, _ in ordered),
            tuple(accumulate((weight for _, weight in ordered), initial=0.0)),
        )

    def worth(self, blocks: int, room: int | None) -> float:
        """Return the sum for B blocks and X room; unknown room limits nothing."""
        if room is None:
            return blocks * self.weights[-1]
        return sum(
            self.weights[bisect_right(self.costs, max(room, 0) // count)]
            for count in range(1, blocks + 1)
        )


MILLI_PER_NOTCH = 80
"""Scores are rounded to this, so that nearly equal nodes tie and the first wins."""
ROUNDING = 1e-9
"""In notches: mathematically equal sums may differ by this much."""
TIE_PER_MILLI = 1e-7
"""For each free milli of the card: within one notch the tightest card wins."""
TIE_BY_CPU = 0.9 * TIE_PER_MILLI
BLOCK_PRICE = 0.1
"""The maximum of κ: the extra value of a block when blocks are scarce."""
EIGHTHS = 8


def score_loss(lost: float, rest: int, slack: float = ROUNDING) -> float:
    """Return the score of a loss in cards, when ``rest`` milli stay on its cards."""
    notches = math.floor(WHOLE * lost / MILLI_PER_NOTCH + 0.5 + slack)
    return MILLI_PER_NOTCH * notches + TIE_PER_MILLI * rest


class Slope(NamedTuple):
    """What a node's worth loses, at least, with each unit of its free capacity.

    The worth is concave: its first parts lost are the cheapest. So a pod costs no less
    than this. Blocks are not in it.
    """

    card: float
    """With each card's worth that its cards lose."""
    cpu_milli: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class PodMix:
    """The kinds of pods that may use a card model."""

    cpu: Ramp
    memory: Ramp
    blocks: Mapping[int, Ladder] = field(default_factory=dict)
    """By number of whole cards: the CPU and weights of such pods."""


@dataclass(frozen=True, slots=True)
class NodeWorth:
    """A node's worth R, and its G and F, as ``Tables`` defines them."""

    worth: float
    cards: float
    untouched: int


@dataclass(frozen=True, slots=True)
class Tables:
    """What was learned of the pods, and how scarce blocks and models are now.

    A node is worth R = min(Σ w·min(G, CPU/a), Σ w·min(G, memory/b)) +
    Σ κ·k·ω·min(⌊F/k⌋, ⌊CPU/c⌋), where G sums its cards' worth by ``curve`` and F counts
    the untouched ones; a, b and c are what kinds of pods ask, w and ω their weights.
    Free capacity counts in whole steps, because sizes are rounded up to steps. Idle is
    all free milli, not only untouched cards. A block is within one node.
    """

    curve: tuple[float, ...]
    """The worth of 0, 1, … 100 free steps of one card; the last is 1."""
    anywhere: PodMix
    """For models that no pod names."""
    named: Mapping[str, PodMix] = field(default_factory=dict)
    """For each model that a pod names."""
    shares: Mapping[int, float] = field(default_factory=dict)
    """Share of the demand from pods of 2, 4, … whole cards, by number."""
    sets: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Share of the demand from pods that must have one of these models."""
    block_prices: Mapping[int, float] = field(default_factory=dict)
    """κ: the worth of an empty block of 2, 4, … cards, for each card."""
    pressures: Mapping[str, float] = field(default_factory=dict)
    """L, 0 to 1: how much those pods compete for a model."""
    cpu_scarce: bool = False
    """Whether clearly more of the cluster's CPU is used than of its cards."""
    lesson: object = field(default_factory=object, compare=False)
    """The same for tables that differ only in what blocks and models cost now."""

    def under(self, pool: ClusterCapacity) -> "Tables":
        """Return the tables for what is free now; the same object if no price changed.

        Blocks and models are priced in eighths, so that changes are rare.
        """
        prices = {
            k: BLOCK_PRICE * round(EIGHTHS * self._scarcity(k, pool)) / EIGHTHS
            for k in self.shares
        }
        pressures = {
            model: round(EIGHTHS * self._crowd(model, pool)) / EIGHTHS
            for model in self.named
        }
        scarce = self.cpu_scarce if pool.cpu_scarce is None else pool.cpu_scarce
        same = prices == self.block_prices and pressures == self.pressures
        if same and scarce == self.cpu_scarce:
            return self
        return replace(
            self, block_prices=prices, pressures=pressures, cpu_scarce=scarce
        )

    def drifted(self, pool: ClusterCapacity, eighths: float) -> bool:
        """Return whether a price is off by more than this many eighths of its range."""
        now = [
            (EIGHTHS * self._scarcity(k, pool), EIGHTHS * price / BLOCK_PRICE)
            for k, price in self.block_prices.items()
        ]
        now += [
            (EIGHTHS * self._crowd(model, pool), EIGHTHS * pressure)
            for model, pressure in self.pressures.items()
        ]
        return any(abs(wanted - used) > eighths for wanted, used in now)

    def gauge(self, state: FreeOnNode) -> NodeWorth:
        """Compute a node's worth once, for several uses."""
        cards = sum([self.rest_worth(residual) for residual in state.residuals])
        untouched, host = state.untouched, (state.cpu_milli, state.memory_mib)
        return NodeWorth(
            self.worth(state.model, cards, untouched, host), cards, untouched
        )

    def rest_worth(self, milli: int) -> float:
        """Return the worth of free milli on one card, in whole steps."""
        return self.curve[milli // MILLI_PER_STEP] if milli > 0 else 0.0

    def worth(
        self, model: str, cards: float, untouched: int, host: tuple[Free, Free]
    ) -> float:
        """Return R for G, F and the host's free CPU milli and memory MiB."""
        mix = self.named.get(model, self.anywhere)
        cpu, memory = host
        worth = min(mix.cpu.worth(cards, cpu), mix.memory.worth(cards, memory))
        return worth + self.blocks_worth(model, untouched, cpu)

    def blocks_worth(self, model: str, untouched: int, cpu: Free) -> float:
        """Return the part of R that is for blocks."""
        worth = 0.0
        for k, ladder in self.named.get(model, self.anywhere).blocks.items():
            price = self.block_prices.get(k, 0.0)
            if price and untouched >= k:
                worth += price * k * ladder.worth(untouched // k, cpu)
        return worth

    def charge(self, model: str, lost: float, used: float, rest: int) -> float:
        """Return the cost of a pod that takes ``lost`` of R and ``used`` of G.

        ``rest`` is the milli that stay free on its cards.
        """
        return score_loss(lost + self.pressures.get(model, 0.0) * used, rest)

    def tie(self, cpu: Free) -> float:
        """Return what a pod with cards costs in addition that leaves so much CPU.

        It is less than one milli of ``rest``, and only if CPU is scarce. Then nodes
        with little CPU are kept for pods that ask for little, and the others are used
        first; otherwise the first node by name is, so that pods do not spread.
        """
        if not self.cpu_scarce:
            return 0.0
        return TIE_BY_CPU / (1 + max(0, cpu or 0) / WHOLE)

    def slope(self, state: FreeOnNode) -> Slope:
        """Return how a node's worth falls."""
        mix = self.named.get(state.model, self.anywhere)
        cpu, memory = state.cpu_milli, state.memory_mib
        cards = sum([self.rest_worth(residual) for residual in state.residuals])
        if mix.cpu.worth(cards, cpu) <= mix.memory.worth(cards, memory):
            by_card, by_cpu = mix.cpu.slopes(cards, cpu)
            return Slope(by_card, by_cpu, 0.0)
        by_card, by_memory = mix.memory.slopes(cards, memory)
        return Slope(by_card, 0.0, by_memory)

    def _scarcity(self, k: int, pool: ClusterCapacity) -> float:
        blocks = pool.blocks(k)
        wanted = pool.idle_cards * self.shares[k] / k
        return min(1.0, wanted / blocks) if blocks else 1.0

    def _crowd(self, model: str, pool: ClusterCapacity) -> float:
        crowd = 0.0
        for models, share in self.sets.items():
            if model in models:
                idle = pool.idle_of(models)
                crowd += share * pool.idle_cards / idle if idle else 1.0
        return min(1.0, crowd) ** 2


def untrained_tables() -> Tables:
    """Return the tables before any pod was seen, which act like best-fit.

    Free capacity is worth its size, and CPU and memory limit nothing.
    """
    even = Ramp.of([(0.0, 1.0)])
    return Tables(compute_worth_curve({}), PodMix(even, even))
