"""Top on a screen: 80 columns, the same with and without colour, and only so high.

Use as bars: of a card, and of a pod's share. Nothing is drawn of the unknown.

The rows of top: names as wide as there is room for, numbers in columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding

from gpushare.domain.model import UNIT_MIB
from gpushare.kube import words
from gpusharectl.output import Words, fit_to_show
from gpusharectl.state.read import Trouble
from gpusharectl.state.render import source, to_look_at
from gpusharectl.top.rows import (
    CardRow,
    Flag,
    PodRow,
    Top,
    column,
    excess_mib,
    gib,
    plain,
    whole,
)

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


Row = Sequence[RenderableType]
"""A line of numbers, and what is to be said of them."""
_NONE = "-"
"""Where nothing was allotted; what nobody knows is n/a."""
_VENDOR = "NVIDIA "
_INDENT = 4
_GAP = "  "
_INDEX = 2
"""Of a card's name its index stays in any case."""
_TABLE_WARN, _TABLE_DIM = "yellow", "dim"
_POD_HEAD = f"{'memory GiB':<{WIDTH}} {'used':>7} {'allotted':>8}  {'SM %':>4}  cores"
_CARD_HEAD = (
    f"{'memory GiB':<{WIDTH}} {'used':>6} {'allot.':>6} {'in all':>6}"
    f" {'busy %':>6} cores {'°C':>4} {'W':>4}"
)


def pod_table(top: Top, width: int) -> list[Row]:
    """Give a head, and a row for each pod on each card."""
    named = [(fit_to_show(row.full_name), _where(row)) for row in top.pods]
    first, second = _widths(("pod", "card"), named, width - len(_POD_HEAD), 0.45)
    rows: list[Row] = [[_table_head("pod", first, "card", second, _POD_HEAD)]]
    for row, (name, where) in zip(top.pods, named, strict=True):
        card = column(where, second, _INDEX)
        line = Words(f"{column(name, first)}{_GAP}{card}{_GAP}")
        line.append_text(pod_bar(row)).append(_pod_numbers(row))
        rows.append([line, *_flags(row.flags)])
    return rows if top.pods else [[Words("No pod here holds or uses a card.")]]


def card_table(top: Top, width: int) -> list[Row]:
    """Give a head, and a row for each card."""
    named = [(row.where, _model(row)) for row in top.cards]
    first, second = _widths(("card", "model"), named, width - len(_CARD_HEAD), 0.25)
    rows: list[Row] = [[_table_head("card", first, "model", second, _CARD_HEAD)]]
    for row, (where, model) in zip(top.cards, named, strict=True):
        card = column(where, first, _INDEX)
        line = Words(f"{card}{_GAP}{column(model, second, 0)}{_GAP}")
        line.append_text(card_bar(row)).append(_card_numbers(row))
        rows.append([line, *_flags(row.flags)])
    return rows


def _table_head(first: str, one: int, second: str, two: int, rest: str) -> Words:
    return Words(f"{first:<{one}}{_GAP}{second:<{two}}{_GAP}{rest}", _TABLE_DIM)


def _widths(
    heads: tuple[str, str], names: Iterable[tuple[str, str]], room: int, part: float
) -> tuple[int, int]:
    """Share the room between two columns; if both need more, the second has a part."""
    ones, twos = zip(heads, *names, strict=True)
    room -= 2 * len(_GAP)
    first, second = max(map(cell_len, ones)), max(map(cell_len, twos))
    if first + second > room:
        second = min(second, max(round(room * part), room - first))
        first = min(first, room - second)
    return first, second


def _where(row: PodRow) -> str:
    return f"{row.node} {'?' if row.index is None else row.index}"


def _model(row: CardRow) -> str:
    model = row.card.model.removeprefix(_VENDOR)
    return fit_to_show(model) or words.NOT_KNOWN


def _pod_numbers(row: PodRow) -> str:
    held = row.allotted
    mib = gib(held.units * UNIT_MIB) if held and held.units else _NONE
    cores = str(held.cores) if held and held.cores else _NONE
    return f" {gib(row.used_mib):>7} {mib:>8}  {whole(row.sm):>4}  {cores:>5}"


def _card_numbers(row: CardRow) -> str:
    held, card = row.allotted, row.card
    parts = (
        f"{gib(row.used_mib):>6}",
        f"{gib(held.units * UNIT_MIB):>6}",
        f"{gib(card.units * UNIT_MIB):>6}",
        f"{whole(row.busy):>6}",
        f"{held.cores:>5}",
        f"{whole(row.celsius):>4}",
        f"{whole(row.watts):>4}",
    )
    return f" {' '.join(parts)}"


def _flags(flags: Sequence[Flag]) -> list[RenderableType]:
    """Say on one line what is to be looked at, with a mark, and what is merely so."""
    loud = "; ".join(_said(flag) for flag in flags if not flag.sign.calm)
    calm = "; ".join(_said(flag) for flag in flags if flag.sign.calm)
    if not flags:
        return []
    text = Words(f"! {loud}", _TABLE_WARN) if loud else Words()
    text.append(f"; {calm}" if loud and calm else calm, "default")
    return [Padding(text, (0, 0, 0, _INDENT), expand=False)]


def _said(flag: Flag) -> str:
    return f"{flag.words} → {flag.do}" if flag.do else flag.words


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
