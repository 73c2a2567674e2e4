"""Top on a screen: 80 columns, the same with and without colour, and only so high."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType

from gpushare.domain.model import UNIT_MIB
from gpushare.kube import words
from gpusharectl.inspection.drawing import source, to_look_at
from gpusharectl.inspection.picture import Trouble
from gpusharectl.output import Words
from gpusharectl.top.bars import LEGEND
from gpusharectl.top.figures import plain
from gpusharectl.top.rows import Top
from gpusharectl.top.tables import Row, card_table, pod_table

_WARN, _DIM, _BOLD = "yellow", "dim", "bold"


@dataclass(frozen=True, slots=True)
class Sheet:
    """How to show it: cards or pods, of which node or namespace, and how high.

    ``height`` None: as high as it gets. ``note`` stands below it all; ``lost`` says why
    it is not what is so now.
    """

    cards: bool = False
    namespace: str = ""
    only: str = ""
    height: int | None = None
    note: str = ""
    lost: str = ""


def drawn(console: Console, top: Top, sheet: Sheet) -> Group:
    """Lay it out for this console; rows are left out where it would be too high."""
    head = [*_head(top, sheet)]
    make = card_table if sheet.cards else pod_table
    rows = make(top, console.width) if top.cards or top.pods else []
    troubles = _troubles(top, sheet)
    shown = len(troubles)
    tail = [*_tail(top, troubles, shown, sheet)]
    if sheet.height is None:
        return Group(*head, *_rows(rows), *tail)
    some = rows[: sheet.height]
    below = sheet.height - _lines(console, [*head, *_rows(some)])
    while shown and _lines(console, tail) > max(below, sheet.height // 3):
        shown -= 1
        tail = [*_tail(top, troubles, shown, sheet)]
    room = sheet.height - _lines(console, [*head, *tail])
    return Group(*head, *_rows(_cut(console, rows, room)), *tail)


def _head(top: Top, sheet: Sheet) -> Iterator[RenderableType]:
    if top.cards:
        yield Words(_sum(top), _BOLD)
    elif sheet.only:
        yield Words(f"{sheet.only} shares no cards.", _BOLD)
    else:
        yield Words("No node shares a card.", _BOLD)
    if told := source(top.books):
        yield Words(f"({told})", _DIM)
    if sheet.namespace:
        yield Words(f"Below, the pods of the namespace {sheet.namespace} alone.")
    if sheet.lost:
        yield Words(sheet.lost, _WARN)
    if top.cards or top.pods:
        yield Words("")


def _sum(top: Top) -> str:
    units = sum(row.card.units for row in top.cards)
    held = sum(min(row.allotted.units, row.card.units) for row in top.cards)
    known = [one for one in (row.used_mib for row in top.cards) if one is not None]
    nodes = words.counted(len({row.node for row in top.cards}), "node")
    cards = words.counted(len(top.cards), "card")
    all_mib, held_mib = units * UNIT_MIB, held * UNIT_MIB
    said = f"{nodes}, {cards}, {plain(all_mib)} GiB: {plain(held_mib)} allotted"
    said += _share(held_mib, all_mib)
    if not known:
        return f"{said}, used: {words.NOT_KNOWN}"
    used = sum(known)
    if len(known) == len(top.cards):
        return f"{said}, {plain(used)} used{_share(used, all_mib)}"
    tell = "that tells" if len(known) == 1 else "that tell"
    return f"{said}, {plain(used)} used on {words.counted(len(known), 'card')} {tell}"


def _share(part: float, mib: int) -> str:
    return f" ({round(100 * part / mib)} %)" if mib else ""


def _troubles(top: Top, sheet: Sheet) -> Sequence[Trouble]:
    """Give what is worth a look; in the table of cards, their flags stand there."""
    of_cards = [
        Trouble(f"{row.node} card {row.card.index}", flag.words, flag.do)
        for row in top.cards
        for flag in row.flags
        if not flag.sign.calm
    ]
    return [*top.troubles, *(() if sheet.cards else of_cards)]


def _tail(
    top: Top, troubles: Sequence[Trouble], shown: int, sheet: Sheet
) -> Iterator[RenderableType]:
    if sheet.cards and top.cards:
        yield Words(LEGEND, _DIM)
    yield from to_look_at(troubles[:shown])
    left = len(troubles) - shown
    if left:
        more = "more " if shown else ""
        yield Words(f"{words.counted(left, 'thing')} {more}to look at: --once", _WARN)
    if top.elsewhere:
        told = f"{words.counted(top.elsewhere, 'thing')} to look at beside use"
        yield Words(f"\n{told}: gpusharectl inspect")
    if sheet.note:
        yield Words(f"\n{sheet.note}", _DIM)


def _rows(rows: Sequence[Row]) -> Iterator[RenderableType]:
    for row in rows:
        yield from row


def _cut(console: Console, rows: Sequence[Row], room: int) -> Sequence[Row]:
    """Give the first rows that there is room for, and say how many there are more."""
    used, ends = 0, []
    for row in rows:
        used += _lines(console, row)
        if used > room:
            break
        ends.append(used)
    else:
        return rows
    shown = max(1, sum(end < room for end in ends))
    left = Words(f"… and {len(rows) - shown} more: --once", _DIM)
    return [*rows[:shown], [left]]


def _lines(console: Console, parts: Sequence[RenderableType]) -> int:
    return len(console.render_lines(Group(*parts), pad=False)) if parts else 0
