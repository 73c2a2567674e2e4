"""What pods ask and what nodes have free, as plain numbers for ``frag``. Pure.

Milli are thousandths of one card, of cores or memory, whichever is scarcer there.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.model import (
    CORES_PER_CARD,
    NO_HOST,
    Amount,
    Card,
    CardUUID,
    HostAmount,
    PodRequest,
)
from gpushare.domain.node import Node

WHOLE = 1000
"""Milli of one whole card."""

Free = int | None
"""A host's free CPU or memory; None is unknown and limits nothing."""


@dataclass(frozen=True, slots=True)
class PodShape:
    """What a pod asks, in numbers; pods with equal shapes are one kind."""

    milli: int
    """Milli of each card, 1 to 1000; 0 for a pod that asks for no card."""
    cards: int
    """0: only CPU. 1: a share, or one whole card. 2 and more: whole cards."""
    cpu_milli: int
    memory_mib: int
    models: frozenset[str] | None = None
    """The card models that the pod may have; None means any."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for what no pod can ask."""
        if self.cards < 0 or self.cpu_milli < 0 or self.memory_mib < 0:
            raise ValueError(f"{self}: cards, CPU and memory are 0 or more")
        is_possible = self.milli == 0 if self.cards == 0 else 0 < self.milli <= WHOLE
        if not is_possible or (self.cards > 1 and self.milli != WHOLE):
            raise ValueError(
                f"{self}: milli is 0 without a card, 1 to {WHOLE} of one card "
                f"and {WHOLE} of each of several"
            )

    @property
    def demand(self) -> int:
        """Milli over all its cards."""
        return self.milli * self.cards


@dataclass(frozen=True, slots=True)
class FreeOnNode:
    """What a node has free. Unknown CPU or memory (None) limits nothing."""

    cpu_milli: Free
    memory_mib: Free
    residuals: tuple[int, ...]
    """Free milli of each card, in the order of the cards; 1000 is untouched.

    A card that may not be used has 0, or less if more is held than it has.
    """
    model: str = ""

    @property
    def untouched(self) -> int:
        """The number of cards of which no pod holds a share."""
        return sum(residual >= WHOLE for residual in self.residuals)

    @property
    def idle(self) -> int:
        """Free milli of all cards; an over-placed card counts 0."""
        return sum(residual for residual in self.residuals if residual > 0)


@dataclass(frozen=True, slots=True)
class ClusterCapacity:
    """Capacity of all nodes with cards, and what is free on them."""

    cards: int
    cpu_milli: int | None
    """Allocatable on all nodes with cards; None if unknown."""
    memory_mib: int | None
    idle: Mapping[str, int] = field(default_factory=dict)
    """Milli free, by card model."""
    untouched: Mapping[int, int] = field(default_factory=dict)
    """Number of nodes by their number of untouched cards."""
    largest: int | None = None
    """The most cards of one node; None if unknown."""
    free_cpu_milli: int | None = None
    """Of all nodes with cards; None if unknown."""

    @property
    def cpu_scarce(self) -> bool | None:
        """Whether clearly more of the CPU is used than of the cards; None if unknown.

        Pods without cards may use most of it.
        """
        if not self.cards or not self.cpu_milli or self.free_cpu_milli is None:
            return None
        free = self.free_cpu_milli / self.cpu_milli
        return free < self.idle_cards / self.cards - _CHANCE

    @property
    def idle_cards(self) -> float:
        """Free milli of all models, in cards."""
        return sum(self.idle.values()) / WHOLE

    def idle_of(self, models: Iterable[str]) -> float:
        """Free milli of these models, in cards."""
        return sum(self.idle.get(model, 0) for model in models) / WHOLE

    def blocks(self, cards: int) -> int:
        """Count the blocks of this many untouched cards that nodes still have."""
        return sum(nodes * (free // cards) for free, nodes in self.untouched.items())


_CHANCE = 0.02
"""A part of the cluster: the first pods may be unlike the later ones."""
_MILLI_PER_CORE = WHOLE // CORES_PER_CARD


def milli_free(card: Card, free: Amount) -> int:
    """Return a card's free milli: of cores or memory, whichever is scarcer.

    >>> milli_free(Card("GPU-0", 0, 94), Amount(60, 90))
    600
    """
    return milli_left(free.cores, free.units, card.units)


def milli_left(cores: int, units: int, card_units: int) -> int:
    """Return the same from plain numbers, for a card of ``card_units``."""
    by_units = WHOLE * units // card_units if card_units else 0
    return max(0, min(_MILLI_PER_CORE * cores, by_units))


def milli_asked(amount: Amount, card_units: int) -> int:
    """Return the milli that a share asks: the larger part, at least 1."""
    by_units = WHOLE * amount.units // card_units if card_units else 0
    return min(WHOLE, max(1, _MILLI_PER_CORE * amount.cores, by_units))


def read_free_on_node(
    node: Node, host: HostAmount | None, free: Mapping[CardUUID, Amount]
) -> FreeOnNode:
    """Return what a node has free, in the order of its cards.

    ``free`` has the free amounts of open cards; other cards have nothing free.
    """
    return FreeOnNode(
        None if host is None else host.cpu_milli,
        None if host is None else host.memory_mib,
        tuple(
            milli_free(card, free[card.uuid]) if card.uuid in free else 0
            for card in node.cards
        ),
        node.cards[0].model if node.cards else "",
    )


@dataclass(frozen=True, slots=True)
class RequestKind:
    """What pods have in common that are equal to the policy: all but their names."""

    amounts: tuple[Amount, ...]
    cards: CardSelector | None
    host: HostAmount | None

    @classmethod
    def of(cls, request: PodRequest) -> Self:
        """Return a pod's kind."""
        amounts = tuple(claim.amount for claim in request.claims)
        return cls(amounts, request.cards, request.host)


@dataclass(frozen=True, slots=True)
class CardSizes:
    """The usual card sizes, which turn the units that pods ask into milli.

    ``units`` has the most frequent size of each model; the empty name is for all.
    """

    units: Mapping[str, int]

    @classmethod
    def of(cls, cards: Mapping[tuple[str, int], int]) -> Self:
        """Take the number of cards by model and units."""
        sizes: dict[str, Counter[int]] = {}
        for (its_model, units), number in cards.items():
            for model in {its_model, ""} if number else ():
                sizes.setdefault(model, Counter())[units] += number
        return cls(
            {m: max(sorted(count), key=count.__getitem__) for m, count in sizes.items()}
        )

    def shapes(self, kind: RequestKind) -> Iterator[PodShape]:
        """Yield a pod's shape, or one for each container of a pod that is apart."""
        models = self._models(kind.cards)
        units = self.units.get("", 0)
        if models is not None:
            units = max((self.units[model] for model in models), default=units)
        host = kind.host or NO_HOST
        parts = len(kind.amounts)
        for amount in kind.amounts:
            whole = amount.cores // CORES_PER_CARD
            yield PodShape(
                WHOLE if whole else milli_asked(amount, units),
                whole or 1,
                host.cpu_milli // parts,
                host.memory_mib // parts,
                models,
            )

    def _models(self, cards: CardSelector | None) -> frozenset[str] | None:
        if cards is None or not cards.models:
            return None
        known = [model for model in self.units if model]
        only = CardSelector(cards.models)
        allowed = frozenset(model for model in known if not only.against("", model))
        return None if len(allowed) == len(known) else allowed
