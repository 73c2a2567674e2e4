"""Top on a screen: 80 columns, the same with and without colour, and a limited height.

Names are cut to the width that is left; numbers never are. What is not known has no
bar.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding

from gpushare.domain.model import UNIT_MIB
from gpushare.kube import words
from gpusharectl.output import Words, column, fit_to_show, gib, plain, rounded
from gpusharectl.state.read import Trouble
from gpusharectl.state.render import source, warnings
from gpusharectl.state.view import total_units
from gpusharectl.top.rows import CardRow, Flag, PodRow, Top, excess_mib

WIDTH = 10
_USED, _LEFT, _OVER, _FREE = "█", "▒", "!", "·"
_OVER_STYLE = "red"


def pod_bar(row: PodRow) -> Words:
    """Draw what a pod uses of its share; the last cell is ``!`` if it uses more.

    Any use has at least one cell, and only full use has all of them.
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
    """Draw a card: used, allotted but not used, used but not allotted, free."""
    mib = row.view.card.units * UNIT_MIB
    if row.seen.used_mib is None or not mib:
        return Words(" " * WIDTH)
    used = _cells(row.seen.used_mib, mib)
    allotted = _cells(row.view.charged.units * UNIT_MIB, mib)
    text = Words().append(_USED * min(used, allotted), "cyan")
    text.append(_LEFT * max(0, allotted - used), "cyan")
    text.append(_OVER * max(0, used - allotted), _OVER_STYLE)
    return text.append(_FREE * (WIDTH - max(used, allotted)), "dim")


def _cells(part: float, mib: int) -> int:
    return min(WIDTH, round(part * WIDTH / mib))


LEGEND = "  ".join(
    (
        f"{_USED} used",
        f"{_LEFT} allotted, not used",
        f"{_OVER} used, not allotted",
        f"{_FREE} free",
    )
)
"""Of a card's bar."""


Row = Sequence[RenderableType]
"""A line of numbers, and the remarks below it."""
_NONE = "-"
"""Nothing is allotted; what is not known is n/a."""
_VENDOR = "NVIDIA "
_INDENT = 4
_GAP = "  "
_INDEX = 2
"""The end of a card's name, its index, is never cut."""
_WARN, _DIM, _BOLD = "yellow", "dim", "bold"
_POD_HEAD = f"{'memory GiB':<{WIDTH}} {'used':>7} {'allotted':>8}  {'SM %':>4}  cores"
_CARD_HEAD = (
    f"{'memory GiB':<{WIDTH}} {'used':>6} {'allot.':>6} {'in all':>6}"
    f" {'busy %':>6} cores {'°C':>4} {'W':>4}"
)


def _pod_table(top: Top, width: int) -> list[Row]:
    named = [(fit_to_show(row.full_name), _where(row)) for row in top.pods]
    first, second = _widths(("pod", "card"), named, width - len(_POD_HEAD), 0.45)
    rows: list[Row] = [[_table_head("pod", first, "card", second, _POD_HEAD)]]
    for row, (name, where) in zip(top.pods, named, strict=True):
        card = column(where, second, _INDEX)
        line = Words(f"{column(name, first)}{_GAP}{card}{_GAP}")
        line.append_text(pod_bar(row)).append(_pod_numbers(row))
        rows.append([line, *_flags(row.flags)])
    return rows if top.pods else [[Words("No pod has a share of a card or uses one.")]]


def _card_table(top: Top, width: int) -> list[Row]:
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
    return Words(f"{first:<{one}}{_GAP}{second:<{two}}{_GAP}{rest}", _DIM)


def _widths(
    heads: tuple[str, str], names: Iterable[tuple[str, str]], room: int, part: float
) -> tuple[int, int]:
    """Divide the width between two columns; if both need more, by ``part``."""
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
    model = row.view.card.model.removeprefix(_VENDOR)
    return fit_to_show(model) or words.NOT_KNOWN


def _pod_numbers(row: PodRow) -> str:
    held = row.allotted
    mib = gib(held.units * UNIT_MIB) if held and held.units else _NONE
    cores = str(held.cores) if held and held.cores else _NONE
    return f" {gib(row.used_mib):>7} {mib:>8}  {rounded(row.sm):>4}  {cores:>5}"


def _card_numbers(row: CardRow) -> str:
    held, card, seen = row.view.charged, row.view.card, row.seen
    parts = (
        f"{gib(seen.used_mib):>6}",
        f"{gib(held.units * UNIT_MIB):>6}",
        f"{gib(card.units * UNIT_MIB):>6}",
        f"{rounded(seen.busy):>6}",
        f"{held.cores:>5}",
        f"{rounded(seen.celsius):>4}",
        f"{rounded(seen.watts):>4}",
    )
    return f" {' '.join(parts)}"


def _flags(flags: Sequence[Flag]) -> list[RenderableType]:
    """Return one line: what needs attention after ``!``, then what only informs."""
    loud = "; ".join(_said(flag) for flag in flags if not flag.sign.calm)
    calm = "; ".join(_said(flag) for flag in flags if flag.sign.calm)
    if not flags:
        return []
    text = Words(f"! {loud}", _WARN) if loud else Words()
    text.append(f"; {calm}" if loud and calm else calm, "default")
    return [Padding(text, (0, 0, 0, _INDENT), expand=False)]


def _said(flag: Flag) -> str:
    return f"{flag.words} → {flag.do}" if flag.do else flag.words


@dataclass(frozen=True, slots=True)
class Layout:
    """What to draw: cards or pods, of which node or namespace, in how many lines.

    ``height`` None: no limit. ``note`` is the last line; ``lost`` says why the values
    are not current.
    """

    cards: bool = False
    namespace: str = ""
    only: str = ""
    height: int | None = None
    note: str = ""
    lost: str = ""


def drawn(console: Console, top: Top, layout: Layout) -> Group:
    """Draw it for this console; rows that do not fit the height are counted."""
    head = [*_head(top, layout)]
    make = _card_table if layout.cards else _pod_table
    rows = make(top, console.width) if top.cards or top.pods else []
    troubles = _troubles(top, layout)
    shown = len(troubles)
    tail = [*_tail(top, troubles, shown, layout)]
    if layout.height is None:
        return Group(*head, *_rows(rows), *tail)
    some = rows[: layout.height]
    below = layout.height - _lines(console, [*head, *_rows(some)])
    while shown and _lines(console, tail) > max(below, layout.height // 3):
        shown -= 1
        tail = [*_tail(top, troubles, shown, layout)]
    room = layout.height - _lines(console, [*head, *tail])
    return Group(*head, *_rows(_cut(console, rows, room)), *tail)


def _head(top: Top, layout: Layout) -> Iterator[RenderableType]:
    if top.cards:
        yield Words(_sum(top), _BOLD)
    elif layout.only:
        yield Words(f"{layout.only} shares no cards.", _BOLD)
    else:
        yield Words("No node shares a card.", _BOLD)
    if text := source(top.placements):
        yield Words(f"({text})", _DIM)
    if layout.namespace:
        yield Words(f"Only pods of the namespace {layout.namespace} are listed.")
    if layout.lost:
        yield Words(layout.lost, _WARN)
    if top.cards or top.pods:
        yield Words("")


def _sum(top: Top) -> str:
    units, held = total_units(row.view for row in top.cards)
    known = top.used_mib
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
    return f"{said}, {plain(used)} used on {len(known)} of {cards}"


def _share(part: float, mib: int) -> str:
    return f" ({round(100 * part / mib)} %)" if mib else ""


def _troubles(top: Top, layout: Layout) -> Sequence[Trouble]:
    """Return what needs attention; the table of cards shows their flags itself."""
    of_cards = [
        Trouble(f"{row.node} card {row.view.card.index}", flag.words, flag.do)
        for row in top.cards
        for flag in row.flags
        if not flag.sign.calm
    ]
    return [*top.troubles, *(() if layout.cards else of_cards)]


def _tail(
    top: Top, troubles: Sequence[Trouble], shown: int, layout: Layout
) -> Iterator[RenderableType]:
    if layout.cards and top.cards:
        yield Words(LEGEND, _DIM)
    yield from warnings(troubles[:shown])
    left = len(troubles) - shown
    if left:
        more = "more " if shown else ""
        yield Words(f"{words.counted(left, f'{more}warning')}: --once", _WARN)
    if top.elsewhere:
        told = words.counted(top.elsewhere, "other warning")
        yield Words(f"\n{told}: gpusharectl inspect")
    if layout.note:
        yield Words(f"\n{layout.note}", _DIM)


def _rows(rows: Sequence[Row]) -> Iterator[RenderableType]:
    for row in rows:
        yield from row


def _cut(console: Console, rows: Sequence[Row], room: int) -> Sequence[Row]:
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
