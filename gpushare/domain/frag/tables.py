"""What a node's rest is worth, and what a pod pays for taking of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.domain.frag.pool import Pool
from gpushare.domain.frag.prices import MILLI_PER_STEP, worth_curve
from gpushare.domain.frag.ramps import Ladder, Ramp
from gpushare.domain.frag.shapes import Free, State

MILLI_PER_NOTCH = 80
"""Scores go in notches, so that nearly equal nodes tie and the first gets them all."""
ROUNDING = 1e-9
"""Of a notch: sums that are equal on paper may differ by so much."""
TIE_PER_MILLI = 1e-7
"""For each milli left on the card: of places in one notch the tightest card."""
BLOCK_PRICE = 0.1
"""κ at most: a block is worth so much more than its cards, when blocks are scarce."""
EIGHTHS = 8


@dataclass(frozen=True, slots=True)
class Mix:
    """The kinds of pods that a card model may hold."""

    cpu: Ramp
    memory: Ramp
    blocks: Mapping[int, Ladder] = field(default_factory=dict)
    """By number of whole cards: the CPU that such pods ask, and their weights."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A node in the terms of its price: G and F of the docstring below."""

    worth: float
    cards: float
    untouched: int


@dataclass(frozen=True, slots=True)
class Tables:
    """All that was learnt of the pods, and how scarce blocks and models are just now.

    A node is worth R = min(Σ w·min(G, CPU/a), Σ w·min(G, memory/b)) +
    Σ κ·k·ω·min(⌊F/k⌋, ⌊CPU/c⌋), where G sums its cards' worth by ``curve`` and F counts
    the untouched ones; a, b and c are what kinds of pods ask, w and ω their weights.
    Residuals count in whole steps, as sizes are rounded up to them. What idles is all
    free milli, not untouched cards alone; a block lies within one node.
    """

    curve: tuple[float, ...]
    """Worth of 0, 1, … 100 steps (of 10 milli) free on one card; the last is 1."""
    anywhere: Mix
    """For the models that no pod names."""
    named: Mapping[str, Mix] = field(default_factory=dict)
    """For each model that some pod names."""
    shares: Mapping[int, float] = field(default_factory=dict)
    """Part of all demand that comes from pods of 2, 4, … whole cards, by number."""
    sets: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Part of all demand that comes from pods that must have one of these models."""
    block_prices: Mapping[int, float] = field(default_factory=dict)
    """κ: worth of an empty block of 2, 4, … cards, for each of its cards."""
    pressures: Mapping[str, float] = field(default_factory=dict)
    """L, 0 to 1: how much those pods crowd on a model."""

    def under(self, pool: Pool) -> "Tables":
        """Give the tables with what idles now: these very ones if no eighth changed.

        Blocks and models are priced in eighths, so that this happens seldom.
        """
        prices = {k: self._block_price(k, pool) for k in self.shares}
        pressures = {model: self._pressure(model, pool) for model in self.named}
        if prices == self.block_prices and pressures == self.pressures:
            return self
        return replace(self, block_prices=prices, pressures=pressures)

    def drifted(self, pool: Pool, eighths: float) -> bool:
        """Tell whether a price is off by more than so many eighths of its range."""
        now = [
            (EIGHTHS * self._scarcity(k, pool), EIGHTHS * price / BLOCK_PRICE)
            for k, price in self.block_prices.items()
        ]
        now += [
            (EIGHTHS * self._crowd(model, pool), EIGHTHS * pressure)
            for model, pressure in self.pressures.items()
        ]
        return any(abs(wanted - used) > eighths for wanted, used in now)

    def gauge(self, state: State) -> Gauge:
        """Measure a node once, for several questions."""
        cards = sum([self.rest_worth(residual) for residual in state.residuals])
        untouched, host = state.untouched, (state.cpu_milli, state.memory_mib)
        return Gauge(self.worth(state.model, cards, untouched, host), cards, untouched)

    def rest_worth(self, milli: int) -> float:
        """Give what a rest on one card is worth (V): whole steps count."""
        return self.curve[milli // MILLI_PER_STEP] if milli > 0 else 0.0

    def worth(
        self, model: str, cards: float, untouched: int, host: tuple[Free, Free]
    ) -> float:
        """Give R of G, F and what the host has free: CPU milli and memory MiB."""
        mix = self.named.get(model, self.anywhere)
        cpu, memory = host
        worth = min(mix.cpu.worth(cards, cpu), mix.memory.worth(cards, memory))
        for k, ladder in mix.blocks.items():
            price = self.block_prices.get(k, 0.0)
            if price and untouched >= k:
                worth += price * k * ladder.worth(untouched // k, cpu)
        return worth

    def charge(self, model: str, lost: float, left: Sequence[int]) -> float:
        """Give the score of who takes ``lost`` of R and leaves so much on each card.

        ``left`` is in milli, one for each card taken: 0 for whole ones, nothing for a
        pod without cards.
        """
        pressure = self.pressures.get(model, 0.0)
        if pressure:
            lost += pressure * sum(1 - self.rest_worth(rest) for rest in left)
        notches = math.floor(1000 * lost / MILLI_PER_NOTCH + 0.5 + ROUNDING)
        return MILLI_PER_NOTCH * notches + TIE_PER_MILLI * sum(left)

    def _block_price(self, k: int, pool: Pool) -> float:
        return BLOCK_PRICE * round(EIGHTHS * self._scarcity(k, pool)) / EIGHTHS

    def _pressure(self, model: str, pool: Pool) -> float:
        return round(EIGHTHS * self._crowd(model, pool)) / EIGHTHS

    def _scarcity(self, k: int, pool: Pool) -> float:
        blocks = pool.blocks(k)
        wanted = pool.idle_cards * self.shares[k] / k
        return min(1.0, wanted / blocks) if blocks else 1.0

    def _crowd(self, model: str, pool: Pool) -> float:
        crowd = 0.0
        for models, share in self.sets.items():
            if model in models:
                idle = pool.idle_of(models)
                crowd += share * pool.idle_cards / idle if idle else 1.0
        return min(1.0, crowd) ** 2


def plain() -> Tables:
    """Give the tables of who has seen no pod: best-fit, the tightest card of all.

    A rest is worth its size, and CPU and memory limit nothing.
    """
    even = Ramp.of([(0.0, 1.0)])
    return Tables(worth_curve({}), Mix(even, even))
