"""What a pod asks and what a node has left, in numbers alone.

Milli are thousandths of one card, of whichever is scarcer there, cores or memory.

The cluster in a few sums: what it was built with, and what is idle in it now.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

WHOLE = 1000
"""Milli of one whole card."""

Free = int | None
"""What a host has free of its CPU or memory; None is unknown and limits nothing."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pod asks, as far as packing goes; equal shapes are one kind of pod."""

    milli: int
    """Of each card it asks: 1 to 1000; 0 for a pod that asks no card."""
    cards: int
    """0: CPU alone. 1: a share, or one whole card. 2 and more: whole cards."""
    cpu_milli: int
    memory_mib: int
    models: frozenset[str] | None = None
    """The card models that it may have; None is any."""

    def __post_init__(self) -> None:
        """Refuse what no pod can ask: a ValueError names the field."""
        if self.cards < 0 or self.cpu_milli < 0 or self.memory_mib < 0:
            raise ValueError(f"{self}: cards, CPU and memory are 0 or more")
        asked = self.milli == 0 if self.cards == 0 else 0 < self.milli <= WHOLE
        if not asked or (self.cards > 1 and self.milli != WHOLE):
            raise ValueError(
                f"{self}: milli is 0 without a card, 1 to {WHOLE} of one card "
                f"and {WHOLE} of each of several"
            )

    @property
    def demand(self) -> int:
        """Milli over all its cards."""
        return self.milli * self.cards


@dataclass(frozen=True, slots=True)
class State:
    """What a node has free. Unknown CPU or memory (None) limits nothing."""

    cpu_milli: Free
    memory_mib: Free
    residuals: tuple[int, ...]
    """Milli free on each card, in the order of the cards; 1000 is untouched.

    A card that may not be used stands as 0 (or below, when more is held than it has).
    """
    model: str = ""

    @property
    def untouched(self) -> int:
        """How many cards nobody holds a part of."""
        return sum(residual >= WHOLE for residual in self.residuals)

    @property
    def idle(self) -> int:
        """Milli free on all its cards; one with more held than it has counts none."""
        return sum(residual for residual in self.residuals if residual > 0)


@dataclass(frozen=True, slots=True)
class Pool:
    """Capacity of the nodes that have cards, and what idles on them."""

    cards: int
    cpu_milli: int | None
    """Allocatable on all nodes with cards together; None where it is not known."""
    memory_mib: int | None
    idle: Mapping[str, int] = field(default_factory=dict)
    """Milli free, by card model."""
    untouched: Mapping[int, int] = field(default_factory=dict)
    """How many nodes have so many untouched cards, by that number of cards."""
    largest: int | None = None
    """Cards of the node that has most; None where it is not known."""

    @classmethod
    def of(
        cls,
        states: Iterable[State],
        *,
        cards: int,
        cpu_milli: int | None = None,
        memory_mib: int | None = None,
    ) -> "Pool":
        """Sum up nodes as they are now; the totals are the caller's."""
        idle: Counter[str] = Counter()
        untouched: Counter[int] = Counter()
        for state in states:
            idle[state.model] += state.idle
            untouched[state.untouched] += 1
        return cls(cards, cpu_milli, memory_mib, idle, untouched)

    @property
    def idle_cards(self) -> float:
        """Free milli of all models, in cards."""
        return sum(self.idle.values()) / WHOLE

    def idle_of(self, models: Iterable[str]) -> float:
        """Free milli of these models, in cards."""
        return sum(self.idle.get(model, 0) for model in models) / WHOLE

    def blocks(self, cards: int) -> int:
        """Count the blocks of so many untouched cards that nodes can still give."""
        return sum(nodes * (free // cards) for free, nodes in self.untouched.items())
