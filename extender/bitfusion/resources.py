"""What a container asks of Bitfusion, read and checked. Pure.

The first words of each denial are Bitfusion's own, since people search for them.

From what a container asked of Bitfusion to a share of a card here. Pure.

Bitfusion's own names, as its users wrote them (seed 004), and ours beside them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from extender.bitfusion.rules import MB, MIB, BitfusionRules
from extender.pool import Pool
from gpushare.domain.model import CORES_PER_CARD, UNIT_MIB, Amount
from gpushare.domain.quantity import NotAQuantity, NotWhole, whole
from gpushare.domain.refusal import users_words
from gpushare.kube import names
from gpushare.kube.cluster import Json

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


RESOURCES = "bitfusion.io/"
"""What all its resources begin with."""
AMOUNT = f"{RESOURCES}gpu-amount"
"""Resource: how many cards."""
PERCENT = f"{RESOURCES}gpu-percent"
"""Resource: how much of each card's memory, 1 to 100; 100 where it is not said."""
MEMORY = f"{RESOURCES}gpu-memory"
"""Resource: bytes of each card's memory."""
ASKED = (AMOUNT, PERCENT, MEMORY)
"""What a container asks by; ``bitfusion.io/gpu`` is what the webhook made of it."""

MODE = "auto-management/bitfusion"
"""Pod annotation: all, injection or none."""
STATUS = "auto-management/status"
"""Pod annotation, written by the webhook."""
INJECTED = "injected"
"""The value of ``STATUS`` on a pod that has been translated."""
OS = "bitfusion-client/os"
"""Pod annotation: for which system the client was packed."""
VERSION = "bitfusion-client/version"
"""Pod annotation: the client's version, in three digits."""
FILTER = "bitfusion-client/filter"
"""Pod annotation: conditions on the server and the card, with blanks between."""

CARD_MIB = f"{names.PREFIX}-bitfusion-card-mib"
"""Pod annotation, written by the webhook: the card size that shares were made of, where
it was the smallest card of the cluster."""


_MOST_CARDS = 1_000_000
_HALF = f"{AMOUNT}: 1 and {PERCENT}: 50"


@dataclass(frozen=True, slots=True)
class Asked:
    """What one container's resources say, or its calls; ``asks`` is empty for neither.

    ``uneven``: its requests are not its limits, which the API server will refuse in
    words of its own, as long as it gets to see them.
    """

    asks: tuple[Ask, ...] = ()
    denials: tuple[str, ...] = ()
    uneven: bool = False


def asked_by(container: Json, path: str) -> Asked:
    """Read the resources of the container that stands at ``path``."""
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    requests = resources.get("requests") or {}
    found = {**requests, **limits}
    ours = [name for name in found if name.startswith(RESOURCES)]
    if not ours:
        return Asked()
    where = {
        name: f'{path}.resources.{"limits" if name in limits else "requests"}["{name}"]'
        for name in found
    }
    denials = [*_strangers(found, where)]
    asked = {name: found[name] for name in ASKED if name in found}
    uneven = any(_is_uneven(name, limits, requests) for name in asked)
    ask = _ask(asked, where, denials) if asked else None
    asks = () if denials or ask is None else (ask,)
    return Asked(asks, tuple(denials), uneven)


def _strangers(found: Mapping[str, Any], where: Mapping[str, str]) -> list[str]:
    asked = any(name in found for name in ASKED)
    told = []
    for name in found:
        if name == names.BITFUSION_GPU:
            if not asked:
                told.append(f"{where[name]}: only quotas count by it; ask {_HALF}")
        elif name.startswith(RESOURCES) and name not in ASKED:
            known = ", ".join(ASKED)
            told.append(f"{where[name]}: there is no such resource; ask by {known}")
        elif name in (names.CORE, names.MEMORY) and _whole(found[name]) != 0:
            told.append(
                f"{where[name]}: stands beside {RESOURCES}…; ask by one of the two"
            )
    return told


def _ask(
    asked: Mapping[str, Any], where: Mapping[str, str], denials: list[str]
) -> Ask | None:
    cards = percent = memory = None
    if AMOUNT in asked:
        cards = cards_of(asked[AMOUNT], where[AMOUNT], denials)
    else:
        found = PERCENT if PERCENT in asked else MEMORY
        denials.append(
            f"No gpu num was provided but found percent ({where[found]} is "
            f"{_shown(asked[found])}): add {AMOUNT}: 1"
        )
    if PERCENT in asked:
        percent = percent_of(asked[PERCENT], where[PERCENT], denials)
    if MEMORY in asked:
        memory = memory_of(asked[MEMORY], where[MEMORY], denials)
    if denials:
        return None
    ask = Ask(cards or 1, percent or 100, memory)
    if ask.cards > 1 and not ask.whole:
        denials.append(too_many(ask, where[AMOUNT]))
    return ask


def too_many(ask: Ask, where: str) -> str:
    """Say that a share is on one card, to whom asks shares of several."""
    each = f"{ask.percent} percent" if ask.memory is None else "a part of the memory"
    return (
        f"{where}: {ask.cards} cards with {each} of each cannot be had, since a share "
        f"is on one card here; ask {AMOUNT}: 1, or {PERCENT}: 100 for {ask.cards} "
        "whole cards of one node"
    )


def cards_of(raw: object, where: str, denials: list[str]) -> int | None:
    """Read a number of cards; what is wrong is added to ``denials``."""
    number = _whole(raw)
    if number and number <= _MOST_CARDS:
        return number
    because = "no node has so many" if number else "it must be whole, 1 or more"
    denials.append(
        f"gpuNum.Value() Error ({where} is {_shown(raw)}): it is a number of cards, "
        f"and {because}; ask 1"
    )
    return None


def percent_of(raw: object, where: str, denials: list[str]) -> int | None:
    """Read a percentage; what is wrong is added to ``denials``."""
    number = _whole(raw)
    if number and number <= 100:  # noqa: PLR2004
        return number
    denials.append(bad_percent(_shown(raw), where, "whole, from 1 to 100; ask 50"))
    return None


def bad_percent(shown: str, where: str, allowed: str) -> str:
    """Say that a part of a card is none."""
    return (
        f"Invalid {PERCENT} quantity: {shown} ({where}): it is a part of one card, "
        f"{allowed} for half of it"
    )


def memory_of(raw: object, where: str, denials: list[str]) -> int | None:
    """Read an amount of memory in bytes; what is wrong is added to ``denials``."""
    number = _whole(raw)
    if number is not None and number >= MB:
        return number
    text = _shown(raw)
    if text.endswith("m") and text[:-1].isdigit() and text != "0m":
        because = f"m is a thousandth of a byte; did you mean {text[:-1]}M?"
    elif number and number > 0:
        because = f"these are bytes, less than 1 MB; did you mean {number}M?"
    else:
        because = "it must be 1M or more, in whole bytes; ask 8000M or 8Gi"
    denials.append(bad_memory(where, text, because))
    return None


def bad_memory(where: str, shown: str, because: str) -> str:
    """Say that an amount of memory will not do."""
    return f"Memory value Error ({where} is {shown}): {because}"


def without(resources: Json) -> Json:
    """Give a container's resources without those of Bitfusion."""
    return {
        key: {
            name: raw
            for name, raw in (amounts or {}).items()
            if not name.startswith(RESOURCES)
        }
        if key in ("limits", "requests")
        else amounts
        for key, amounts in resources.items()
    }


def _is_uneven(name: str, limits: Json, requests: Json) -> bool:
    if name not in limits:
        return True
    if name not in requests:
        return False
    asked, most = requests[name], limits[name]
    return str(asked) != str(most) and _whole(asked) != _whole(most)


def _whole(raw: object) -> int | None:
    try:
        return whole(raw)
    except (NotAQuantity, NotWhole):
        return None


def _shown(raw: object) -> str:
    return users_words(str(raw))
