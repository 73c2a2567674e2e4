"""Pages and requests in the numbers of ``gpushare.domain.frag``. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.frag.shapes import WHOLE, Shape, State
from gpushare.domain.model import (
    CORES_PER_CARD,
    Amount,
    Card,
    CardUUID,
    HostAmount,
    PodRequest,
)
from gpushare.domain.node import Node

_MILLI_PER_CORE = WHOLE // CORES_PER_CARD
_UNASKED = HostAmount()


def milli_free(card: Card, free: Amount) -> int:
    """Give what is left of a card: of cores or of memory, whichever is scarcer there.

    >>> milli_free(Card("GPU-0", 0, 94), Amount(60, 90))
    600
    """
    return milli_left(free.cores, free.units, card.units)


def milli_left(cores: int, units: int, card_units: int) -> int:
    """Give the same in numbers, for a card of that size."""
    by_units = WHOLE * units // card_units if card_units else 0
    return max(0, min(_MILLI_PER_CORE * cores, by_units))


def milli_asked(amount: Amount, card_units: int) -> int:
    """Give what a share asks of a card of that size: the larger part, 1 at least."""
    by_units = WHOLE * amount.units // card_units if card_units else 0
    return min(WHOLE, max(1, _MILLI_PER_CORE * amount.cores, by_units))


def state_of(
    node: Node, host: HostAmount | None, left: Mapping[CardUUID, Amount]
) -> State:
    """Give what a node has left, its cards in the order of its page.

    ``left`` is what its open cards have; one that is closed has nothing.
    """
    return State(
        None if host is None else host.cpu_milli,
        None if host is None else host.memory_mib,
        tuple(
            milli_free(card, left[card.uuid]) if card.uuid in left else 0
            for card in node.cards
        ),
        node.cards[0].model if node.cards else "",
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """What makes two pods the same to the policy: all but their names."""

    amounts: tuple[Amount, ...]
    cards: CardSelector | None
    host: HostAmount | None

    @classmethod
    def of(cls, request: PodRequest) -> Self:
        """Give the kind of a pod."""
        amounts = tuple(claim.amount for claim in request.claims)
        return cls(amounts, request.cards, request.host)


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The cards that there are, by which kinds of pods are measured to learn of them.

    ``units`` of the size that most cards have, by model; the empty name is of all.
    """

    units: Mapping[str, int]

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Self:
        """Measure by the cards of these nodes."""
        return cls.by(
            Counter((card.model, card.units) for node in nodes for card in node.cards)
        )

    @classmethod
    def by(cls, cards: Mapping[tuple[str, int], int]) -> Self:
        """Measure by how many cards there are of each model and number of units."""
        sizes: dict[str, Counter[int]] = {}
        for (its_model, units), number in cards.items():
            for model in {its_model, ""} if number else ():
                sizes.setdefault(model, Counter())[units] += number
        return cls(
            {m: max(sorted(count), key=count.__getitem__) for m, count in sizes.items()}
        )

    def shapes(self, kind: Kind) -> Iterator[Shape]:
        """Give a pod's shape, or one for each container of a pod that is apart."""
        models = self._models(kind.cards)
        units = self.units.get("", 0)
        if models is not None:
            units = max((self.units[model] for model in models), default=units)
        host = kind.host or _UNASKED
        parts = len(kind.amounts)
        for amount in kind.amounts:
            whole = amount.cores // CORES_PER_CARD
            yield Shape(
                WHOLE if whole else milli_asked(amount, units),
                whole or 1,
                host.cpu_milli // parts,
                host.memory_mib // parts,
                models,
            )

    def _models(self, cards: CardSelector | None) -> frozenset[str] | None:
        """Give the models that a pod may have; None where it may have all of them."""
        if cards is None or not cards.models:
            return None
        known = [model for model in self.units if model]
        only = CardSelector(cards.models)
        allowed = frozenset(model for model in known if not only.against("", model))
        return None if len(allowed) == len(known) else allowed
