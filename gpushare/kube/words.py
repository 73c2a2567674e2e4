"""Format amounts and lists, the same on every screen. Pure."""

from collections.abc import Iterable, Sequence

from gpushare.domain.card_selector import CardSelector, Limit, split_denied
from gpushare.domain.model import UNIT_MIB, Amount, Card, Claim
from gpushare.kube.annotations import LIMITS

_MIB_BELOW = 1024
NOT_KNOWN = "n/a"
"""Shown for an unknown value, which is never shown as 0."""


def units(number: int) -> str:
    """Format units: ``1 unit``, ``20 units``."""
    return counted(number, "unit")


def cores(number: int) -> str:
    """Format cores: ``1 core``, ``20 cores``."""
    return counted(number, "core")


def counted(number: int, thing: str) -> str:
    """Return how many of something there are.

    >>> counted(1, "card"), counted(0, "card")
    ('1 card', '0 cards')
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def memory(number: int) -> str:
    """Format units as memory.

    >>> memory(1), memory(29), memory(94)
    ('256 MiB', '7.25 GiB', '23.5 GiB')
    """
    mib = number * UNIT_MIB
    return f"{mib} MiB" if abs(mib) < _MIB_BELOW else f"{_gib(number)} GiB"


def format_memory_pair(used: int, of: int) -> str:
    """Format two numbers of units in GiB: ``22.75/23.5``."""
    return f"{_gib(used)}/{_gib(of)}"


def format_amount(share: Amount) -> str:
    """Format a share, without empty parts: ``20 units (5 GiB) and 1 core``."""
    parts = []
    if share.units:
        parts.append(f"{units(share.units)} ({memory(share.units)})")
    if share.cores:
        parts.append(cores(share.cores))
    return " and ".join(parts) or "nothing"


def format_bare_amount(share: Amount) -> str:
    """Format an amount without its memory: ``20 units and 1 core``."""
    parts = [units(share.units)] if share.units else []
    parts += [cores(share.cores)] if share.cores else []
    return " and ".join(parts) or "nothing"


def format_claim(wanted: Claim) -> str:
    """Format a claim: its amount on one card, or its whole cards."""
    if not wanted.whole_cards:
        return format_amount(wanted.amount)
    whole = counted(wanted.whole_cards, "whole card")
    if not wanted.amount.units:
        return whole
    number = wanted.amount.units
    return f"{whole} with {units(number)} ({memory(number)}) or more"


def format_claims(wanted: Sequence[Claim]) -> str:
    """Format all claims of a pod."""
    return " and, on any card, ".join(format_claim(claim) for claim in wanted)


def excluded_by(limits: Iterable[Limit]) -> str:
    """Return the text for a card that a pod's annotations exclude.

    >>> excluded_by([Limit.MODELS])
    'excluded by baidu.com/vcuda-models'
    """
    return f"excluded by {format_limits(limits)}"


def sick(card: Card) -> str:
    """Return the text for a sick card, with the reason if it is known."""
    return f"sick: {card.reason}" if card.reason else "sick"


def format_limits(limits: Iterable[Limit]) -> str:
    """Return the annotations of a pod's lists."""
    return " and ".join(LIMITS[limit] for limit in limits)


def format_selector(cards: CardSelector) -> str:
    """Format the cards that a pod may have.

    >>> format_selector(CardSelector.of(models=["A10", "T4"], uuids=["GPU-9f12f917"]))
    'of the models a10, t4, and with the UUID gpu-9f12f917'
    >>> others = CardSelector.of(models=["A1*", "!A10"], uuids=["!GPU-9f12f917"])
    >>> format_selector(others)
    'of the model a1*, but not a10, and with any UUID but gpu-9f12f917'
    """
    parts = []
    for thing, entries in (
        ("of {} model", cards.models),
        ("with {} UUID", cards.uuids),
    ):
        wanted, denied = split_denied(entries)
        if wanted:
            several = "s" if len(wanted) > 1 else ""
            but = f", but not {', '.join(denied)}" if denied else ""
            parts.append(f"{thing.format('the')}{several} {', '.join(wanted)}{but}")
        elif denied:
            parts.append(f"{thing.format('any')} but {', '.join(denied)}")
    return ", and ".join(parts)


def listed(things: Iterable[str], most: int) -> str:
    """List the first of many things, and count the others.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    names = list(things)
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def _gib(number: int) -> str:
    return f"{number * UNIT_MIB / 1024:.2f}".rstrip("0").rstrip(".")


def last_lines(text: str) -> str:
    r"""Return the last lines of a log in one.

    >>> last_lines("a\n\nb\nc\nd\n")
    'b / c / d'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])
