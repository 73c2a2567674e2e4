"""Use as bars: of a card, and of a pod's share. Nothing is drawn of the unknown."""

from gpushare.domain.model import UNIT_MIB
from gpusharectl.output import Words
from gpusharectl.top.rows import CardRow, PodRow, excess_mib

WIDTH = 10
_USED, _LEFT, _OVER, _FREE = "█", "▒", "!", "·"
_OVER_STYLE = "red"


def pod_bar(row: PodRow) -> Words:
    """Draw a share: what is used of it; its last cell warns where it is too small.

    Who uses anything has a cell, and only who uses all of it has every cell.
    """
    mib = row.allotted.units * UNIT_MIB if row.allotted else 0
    if row.used_mib is None or not mib:
        return Words(" " * WIDTH)
    used = row.used_mib
    cells = round(used * WIDTH / mib)
    cells = min(max(cells, 1 if used else 0), WIDTH if used >= mib else WIDTH - 1)
    over = 1 if excess_mib(row.allotted, used) else 0
    text = Words().append(_USED * (cells - over), "cyan")
    text.append(_OVER * over, _OVER_STYLE)
    return text.append(_FREE * (WIDTH - cells), "dim")


def card_bar(row: CardRow) -> Words:
    """Draw a card: used, allotted and not used, used and allotted to nobody, free."""
    mib = row.card.units * UNIT_MIB
    if row.used_mib is None or not mib:
        return Words(" " * WIDTH)
    used = _cells(row.used_mib, mib)
    allotted = _cells(row.allotted.units * UNIT_MIB, mib)
    text = Words().append(_USED * min(used, allotted), "cyan")
    text.append(_LEFT * max(0, allotted - used), "cyan")
    text.append(_OVER * max(0, used - allotted), _OVER_STYLE)
    return text.append(_FREE * (WIDTH - max(used, allotted)), "dim")


def _cells(part: float, mib: int) -> int:
    return min(WIDTH, round(part * WIDTH / mib))


LEGEND = (
    f"{_USED} used  {_LEFT} allotted, not used  {_OVER} used beyond what is allotted  "
    f"{_FREE} free"
)
"""Of a card's bar."""
