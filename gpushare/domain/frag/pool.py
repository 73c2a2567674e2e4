"""The cluster in a few sums: what it was built with, and what is idle in it now."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.domain.frag.shapes import WHOLE, State


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
