"""What an operator sets for pods that were written for Bitfusion. Pure."""

from dataclasses import dataclass

from gpushare.domain.model import UNIT_MIB

MIB = 1 << 20
"""Bytes in a MiB."""
MB = 1_000_000
"""Bytes in a MB, by which Bitfusion counts."""

_AUTO = "auto"
_MOST_BYTES = 1 << 44
_MOST_DIGITS = 20


@dataclass(frozen=True, slots=True)
class BitfusionRules:
    """Each with its default; docs/bitfusion.md lists them for operators."""

    total_bytes: int | None = None
    """Memory of one card, exact; None where nobody has said."""
    auto: bool = False
    """Take the smallest card of the cluster for it; ``total_bytes`` is then None."""
    shell: str = "/bin/bash"
    """Path of the shell that a command in one line is given to."""
    strict: bool = False
    """Deny what would else be a warning."""
    quota: bool = False
    """Keep ``bitfusion.io/gpu`` in the pod, for quotas that count it."""

    @property
    def card_mib(self) -> int | None:
        """Memory of one card in whole MiB, None where nobody has said."""
        return None if self.total_bytes is None else self.total_bytes // MIB


@dataclass(frozen=True, slots=True)
class CardTotal:
    """How large a card is that people ask a percentage of."""

    total_bytes: int | None = None
    """None where nobody has said, and with ``auto``."""
    auto: bool = False
    """Whether it is the smallest card of the cluster."""


def total_of(card_mib: str | None, total_mb: str | None) -> CardTotal | str:
    """Read ``GPUSHARE_BITFUSION_CARD_MIB`` and ``TOTAL_GPU_MEMORY``, in MB as before.

    The first wins where both are there. A text is what is wrong, for a person.

    >>> total_of(None, "16000").total_bytes
    16000000000
    """
    if card_mib:
        if card_mib == _AUTO:
            return CardTotal(auto=True)
        fix = "give a card's memory in MiB, such as 16384, or auto"
        return _read("GPUSHARE_BITFUSION_CARD_MIB", card_mib, MIB, fix)
    if total_mb:
        fix = "give a card's memory in MB (1,000,000 bytes), such as 16000"
        return _read("TOTAL_GPU_MEMORY", total_mb, MB, fix)
    return CardTotal()


def _read(name: str, text: str, unit: int, fix: str) -> CardTotal | str:
    number = text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS
    total = int(text) * unit if number else 0
    if not UNIT_MIB * MIB <= total <= _MOST_BYTES:
        bounds = f"from {-(-UNIT_MIB * MIB // unit)} to {_MOST_BYTES // unit}"
        return f"{name}: {text!r} will not do; {fix}, {bounds}"
    return CardTotal(total)
