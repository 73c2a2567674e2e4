"""From what a container asked of Bitfusion to a share of a card here. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from extender.bitfusionrules import MIB, BitfusionRules
from extender.pool import Pool
from gpushare.domain.model import CORES_PER_CARD, UNIT_MIB, Amount

UNIT_BYTES = UNIT_MIB * MIB


@dataclass(frozen=True, slots=True)
class Ask:
    """What one container asks: ``cards`` cards, and of each a part of its memory.

    ``memory``, in bytes, goes before ``percent`` where both are there.
    """

    cards: int
    percent: int = 100
    memory: int | None = None

    @property
    def whole(self) -> bool:
        """Tell whether it asks for whole cards."""
        return self.memory is None and self.percent == 100  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class CardSize:
    """How large a card is taken to be."""

    total: int
    """In bytes; not always whole units."""
    assumed: bool = False
    """Whether it is the cluster's smallest card, and not what an operator has said."""

    @property
    def mib(self) -> int:
        """The same in MiB, rounded down."""
        return self.total // MIB

    @property
    def units(self) -> int:
        """All that can be asked of such a card."""
        return self.total // UNIT_BYTES


@dataclass(frozen=True, slots=True)
class Part:
    """What a container gets: its amount, and what ``bitfusion.io/gpu`` would say."""

    amount: Amount
    quota: int


def said_size(rules: BitfusionRules, pool: Pool) -> CardSize | None:
    """Give the card size that an operator chose; None where he did not."""
    if rules.total_bytes is not None:
        return CardSize(rules.total_bytes)
    return smallest(pool) if rules.auto else None


def smallest(pool: Pool) -> CardSize | None:
    """Give the size of the cluster's smallest card; None where none is known."""
    if not pool.smallest_units:
        return None
    return CardSize(pool.smallest_units * UNIT_BYTES, assumed=True)


def part_of(ask: Ask, card: CardSize | None) -> Part:
    """Turn a right ask into a share, or whole cards.

    Only for an ask by memory the card's size may be unknown: one core, then, and a
    quota of one too.
    """
    if ask.memory is not None:
        return _by_memory(ask.memory, card)
    if card is None:
        raise ValueError("a percentage of a card whose size is not known")
    quota = ask.percent * ask.cards
    if ask.whole:
        return Part(Amount(CORES_PER_CARD * ask.cards, card.units * ask.cards), quota)
    # Rounded down, so that two halves always fit one card.
    units = ask.percent * card.total // (100 * UNIT_BYTES)
    return Part(Amount(ask.percent, max(units, 1)), quota)


def peak_of(parts: Iterable[Part]) -> Part:
    """Give what is enough for each of these, one at a time; there is one at least."""
    return reduce(
        lambda one, other: Part(
            one.amount.peak(other.amount), max(one.quota, other.quota)
        ),
        parts,
    )


def _by_memory(memory: int, card: CardSize | None) -> Part:
    units = -(-memory // UNIT_BYTES)
    if card is None:
        return Part(Amount(1, units), 1)
    share = -(-CORES_PER_CARD * memory // card.total)
    if memory > card.total:
        # A whole card, if of a larger kind, and no quota counts it for more.
        return Part(Amount(CORES_PER_CARD, units), CORES_PER_CARD)
    # A card's last bytes, less than a unit, cannot be asked for.
    units = min(units, card.units)
    # All of a card's cores would ask for one that nobody else is on.
    cores = share if memory == card.total else min(share, CORES_PER_CARD - 1)
    return Part(Amount(cores, units), share)
