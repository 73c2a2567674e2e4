"""Read what a container asks of Bitfusion, and work out its share of a card. Pure.

The first words of each denial are Bitfusion's own, since people search for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from gpushare.domain.model import CORES_PER_CARD, UNIT_MIB, Amount, clean_text
from gpushare.domain.quantity import read_whole
from gpushare.kube import names
from gpushare.kube.cluster import Json
from webhook.pod import PodContainer
from webhook.pool import CardPool

MIB = 1 << 20
"""Bytes in a MiB."""
MB = 1_000_000
"""Bytes in a MB, which Bitfusion counts in."""
UNIT_BYTES = UNIT_MIB * MIB

RESOURCES = "bitfusion.io/"
"""The prefix of all its resources."""
AMOUNT = f"{RESOURCES}gpu-amount"
"""Resource: how many cards."""
PERCENT = f"{RESOURCES}gpu-percent"
"""Resource: how much of each card's memory, 1 to 100; by default 100."""
MEMORY = f"{RESOURCES}gpu-memory"
"""Resource: bytes of each card's memory."""
ASKED = (AMOUNT, PERCENT, MEMORY)
"""What a container may ask by. ``bitfusion.io/gpu`` is written by the webhook."""

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
"""Pod annotation: conditions on the server and the card, separated by blanks."""

CARD_MIB = f"{names.PREFIX}-bitfusion-card-mib"
"""Pod annotation, written by the webhook: the card size that shares were computed from,
if it was the cluster's smallest card."""

_MOST_CARDS = 1_000_000
_HALF = f"{AMOUNT}: 1 and {PERCENT}: 50"


@dataclass(frozen=True, slots=True)
class BitfusionRules:
    """What an operator sets; docs/bitfusion.md lists it with the defaults."""

    total_bytes: int | None = None
    """Memory of one card, in bytes; None if it is not set."""
    auto: bool = False
    """Use the smallest card of the cluster; ``total_bytes`` is then None."""
    shell: str = "/bin/bash"
    """Path of the shell that runs a command of one line."""
    strict: bool = False
    """Deny pods that would otherwise get a warning."""
    quota: bool = False
    """Keep ``bitfusion.io/gpu`` in the pod, for quotas that count it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one container asks: ``cards`` cards, and a part of each one's memory.

    ``memory``, in bytes, overrules ``percent``.
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
    """The card size that percentages are computed from."""

    total: int
    """In bytes; not always whole units."""
    assumed: bool = False
    """Whether it is the cluster's smallest card and not the operator's setting."""

    @property
    def mib(self) -> int:
        """The same in MiB, rounded down."""
        return self.total // MIB

    @property
    def units(self) -> int:
        """The most units that can be asked of such a card."""
        return self.total // UNIT_BYTES


@dataclass(frozen=True, slots=True)
class ContainerShare:
    """What a container gets, and the value of ``bitfusion.io/gpu`` for it."""

    amount: Amount
    quota: int


@dataclass(frozen=True, slots=True)
class ContainerAsks:
    """What one container asks by its resources, or else by calls in its command.

    ``uneven``: its requests differ from its limits. The API server refuses that in its
    own words, if the pod is left as it is.
    """

    asks: tuple[Ask, ...] = ()
    denials: tuple[str, ...] = ()
    uneven: bool = False


def read_resources(container: PodContainer) -> ContainerAsks:
    """Read what a container asks by its resources."""
    limits, requests = container.amounts("limits"), container.amounts("requests")
    amounts = {**requests, **limits}
    if not any(name.startswith(RESOURCES) for name in amounts):
        return ContainerAsks()
    where = {
        name: container.resource_path("limits" if name in limits else "requests", name)
        for name in amounts
    }
    denials = _misplaced(amounts, where)
    by = {name: amounts[name] for name in ASKED if name in amounts}
    uneven = any(_is_uneven(name, limits, requests) for name in by)
    ask = _ask(by, where, denials) if by else None
    asks = () if denials or ask is None else (ask,)
    return ContainerAsks(asks, tuple(denials), uneven)


def _misplaced(amounts: Mapping[str, Any], where: Mapping[str, str]) -> list[str]:
    asks = any(name in amounts for name in ASKED)
    denials = []
    for name in amounts:
        if name == names.BITFUSION_GPU:
            if not asks:
                denials.append(f"{where[name]}: it is for quotas only; ask {_HALF}")
        elif name.startswith(RESOURCES) and name not in ASKED:
            known = ", ".join(ASKED)
            denials.append(f"{where[name]}: there is no such resource; ask by {known}")
        elif name in (names.CORE, names.MEMORY) and read_whole(amounts[name]) != 0:
            denials.append(
                f"{where[name]}: the container asks for {RESOURCES}… too; use only one "
                "of the two"
            )
    return denials


def _ask(
    amounts: Mapping[str, Any], where: Mapping[str, str], denials: list[str]
) -> Ask | None:
    cards = percent = memory = None
    if AMOUNT in amounts:
        cards = read_card_count(amounts[AMOUNT], where[AMOUNT], denials)
    else:
        given = PERCENT if PERCENT in amounts else MEMORY
        denials.append(
            f"No gpu num was provided but found percent ({where[given]} is "
            f"{clean_text(str(amounts[given]))}): add {AMOUNT}: 1"
        )
    if PERCENT in amounts:
        percent = read_percent(amounts[PERCENT], where[PERCENT], denials)
    if MEMORY in amounts:
        memory = read_memory(amounts[MEMORY], where[MEMORY], denials)
    if denials:
        return None
    ask = Ask(cards or 1, percent or 100, memory)
    if ask.cards > 1 and not ask.whole:
        denials.append(deny_shares_of_cards(ask, where[AMOUNT]))
    return ask


def deny_shares_of_cards(ask: Ask, where: str) -> str:
    """Return the denial of shares of several cards: a share is on one card."""
    each = f"{ask.percent} percent" if ask.memory is None else "a part of the memory"
    return (
        f"{where}: {ask.cards} cards with {each} of each are not possible, because a "
        f"share is on one card; ask {AMOUNT}: 1, or {PERCENT}: 100 for {ask.cards} "
        "whole cards of one node"
    )


def read_card_count(raw: object, where: str, denials: list[str]) -> int | None:
    """Read a number of cards; what is wrong is added to ``denials``."""
    number = read_whole(raw)
    if number and number <= _MOST_CARDS:
        return number
    because = "no node has so many" if number else "it must be an integer of 1 or more"
    shown = clean_text(str(raw))
    denials.append(
        f"gpuNum.Value() Error ({where} is {shown}): this is the number of cards, and "
        f"{because}; ask 1"
    )
    return None


def read_percent(raw: object, where: str, denials: list[str]) -> int | None:
    """Read a percentage; what is wrong is added to ``denials``."""
    number = read_whole(raw)
    if number and number <= 100:  # noqa: PLR2004
        return number
    shown = clean_text(str(raw))
    denials.append(deny_percent(shown, where, "an integer from 1 to 100; ask 50"))
    return None


def deny_percent(shown: str, where: str, allowed: str) -> str:
    """Return the denial of a percentage that cannot be used."""
    return (
        f"Invalid {PERCENT} quantity: {shown} ({where}): this is a part of one card, "
        f"{allowed} for half of it"
    )


def read_memory(raw: object, where: str, denials: list[str]) -> int | None:
    """Read an amount of memory in bytes; what is wrong is added to ``denials``."""
    number = read_whole(raw)
    if number is not None and number >= MB:
        return number
    text = clean_text(str(raw))
    if text.endswith("m") and text[:-1].isdigit() and text != "0m":
        because = f"m means a thousandth of a byte; did you mean {text[:-1]}M?"
    elif number and number > 0:
        because = f"that is in bytes and less than 1 MB; did you mean {number}M?"
    else:
        because = "it must be 1M or more, in whole bytes; ask 8000M or 8Gi"
    denials.append(deny_memory(where, text, because))
    return None


def deny_memory(where: str, shown: str, because: str) -> str:
    """Return the denial of an amount of memory that cannot be used."""
    return f"Memory value Error ({where} is {shown}): {because}"


def drop_bitfusion_resources(resources: Json) -> Json:
    """Return a container's resources without those of Bitfusion."""
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
    request, limit = requests[name], limits[name]
    return str(request) != str(limit) and read_whole(request) != read_whole(limit)


def configured_card_size(rules: BitfusionRules, pool: CardPool) -> CardSize | None:
    """Return the card size that the operator set; None if there is none."""
    if rules.total_bytes is not None:
        return CardSize(rules.total_bytes)
    return smallest_card_size(pool) if rules.auto else None


def smallest_card_size(pool: CardPool) -> CardSize | None:
    """Return the size of the cluster's smallest card; None if none is known."""
    if not pool.smallest_units:
        return None
    return CardSize(pool.smallest_units * UNIT_BYTES, assumed=True)


def compute_share(ask: Ask, card: CardSize | None) -> ContainerShare:
    """Turn what was asked into a share, or whole cards.

    The card's size may be unknown only if memory was asked. The part is then one core,
    and its quota 1.
    """
    if ask.memory is not None:
        return _by_memory(ask.memory, card)
    if card is None:
        raise ValueError("a percentage of a card whose size is not known")
    quota = ask.percent * ask.cards
    if ask.whole:
        return ContainerShare(
            Amount(CORES_PER_CARD * ask.cards, card.units * ask.cards), quota
        )
    # Rounded down, so that two halves always fit one card.
    units = ask.percent * card.total // (100 * UNIT_BYTES)
    return ContainerShare(Amount(ask.percent, max(units, 1)), quota)


def find_peak_share(parts: Sequence[ContainerShare]) -> ContainerShare:
    """Return what is enough for each of these, one at a time; at least one is given."""
    amount = reduce(Amount.peak, (part.amount for part in parts))
    return ContainerShare(amount, max(part.quota for part in parts))


def _by_memory(memory: int, card: CardSize | None) -> ContainerShare:
    units = -(-memory // UNIT_BYTES)
    if card is None:
        return ContainerShare(Amount(1, units), 1)
    share = -(-CORES_PER_CARD * memory // card.total)
    if memory > card.total:
        # A whole card of a larger model; a quota counts it as one card.
        return ContainerShare(Amount(CORES_PER_CARD, units), CORES_PER_CARD)
    # The last bytes of a card, if less than a unit, cannot be asked for.
    units = min(units, card.units)
    # With all cores the pod would get a card to itself.
    cores = share if memory == card.total else min(share, CORES_PER_CARD - 1)
    return ContainerShare(Amount(cores, units), share)
