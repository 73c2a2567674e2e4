"""Top on a screen: 80 columns, the same with and without colour, and a limited height.

Names are cut to the width that is left; numbers never are. What is not known has no
bar.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType

from gpushare.domain.model import UNIT_MIB
from gpushare.kube import words
from gpusharectl.output import (
    Words,
    fit_column,
    fit_columns,
    fit_to_show,
    gib,
    plain_gib,
    rounded,
)
from gpusharectl.state.read import Setup, Trouble
from gpusharectl.state.render import (
    describe_source,
    draw_not_installed,
    draw_warnings,
    indent,
    shorten_model,
)
from gpusharectl.top.rows import (
    CardRow,
    Flag,
    PodRow,
    TopView,
    compute_excess,
    filter_rows,
)

WIDTH = 10
_WIDE = 80
"""On screens of fewer columns there may be no bars."""
_USED, _LEFT, _NO_USE, _OVER, _FREE = "█", "▒", "░", "!", "·"
_OVER_STYLE = "red"
_LEGEND = f"{_USED} used  {_LEFT} allotted, not used  {_OVER} used, not allotted"
_LEGEND += f"  {_FREE} free"
_POD_LEGEND = f"{_NO_USE} what is allotted of the card; what is used is not known"
_CARD_LEGEND = f"{_NO_USE} allotted; what is used is not known  {_FREE} not allotted"


def draw_pod_bar(row: PodRow) -> Words:
    """Draw what a pod uses of its share; the last cell is ``!`` if it uses more.

    Any use has at least one cell, and only full use has all of them. If the use is not
    known, it is the pod's share of its card.
    """
    units = row.allotted.units if row.allotted else 0
    if row.used_mib is None and units and row.card_units:
        cells = min(WIDTH, max(1, round(units * WIDTH / row.card_units)))
        return _without_use(cells)
    mib = units * UNIT_MIB
    if row.used_mib is None or not mib:
        return Words(" " * WIDTH)
    used = row.used_mib
    cells = round(used * WIDTH / mib)
    cells = min(max(cells, 1 if used else 0), WIDTH if used >= mib else WIDTH - 1)
    over = 1 if compute_excess(row.allotted, used) else 0
    text = Words().append(_USED * (cells - over), "cyan")
    text.append(_OVER * over, _OVER_STYLE)
    return text.append(_FREE * (WIDTH - cells), "dim")


def draw_card_bar(row: CardRow) -> Words:
    """Draw a card: used, allotted but not used, used but not allotted, free.

    If the use is not known, only what is allotted.
    """
    mib = row.card.units * UNIT_MIB
    if not mib:
        return Words(" " * WIDTH)
    parts = (row.seen.used_mib or 0, row.allotted.units * UNIT_MIB)
    used, allotted = (min(WIDTH, round(part * WIDTH / mib)) for part in parts)
    if row.seen.used_mib is None:
        return _without_use(allotted)
    text = Words().append(_USED * min(used, allotted), "cyan")
    text.append(_LEFT * max(0, allotted - used), "cyan")
    text.append(_OVER * max(0, used - allotted), _OVER_STYLE)
    return text.append(_FREE * (WIDTH - max(used, allotted)), "dim")


def _without_use(cells: int) -> Words:
    text = Words().append(_NO_USE * cells, "cyan")
    return text.append(_FREE * (WIDTH - cells), "dim")


Row = Sequence[RenderableType]
"""A line of numbers, and the remarks below it."""
_GAP = "  "
_WARN, _DIM, _BOLD = "yellow", "dim", "bold"
_POD_HEAD = f"{'memory GiB':<{WIDTH}} {'used':>7} {'allotted':>8}  {'SM %':>4}  cores"
_CARD_HEAD = (
    f"{'memory GiB':<{WIDTH}} {'used':>6} {'allot.':>6} {'in all':>6}"
    f" {'busy %':>6} cores {'°C':>4} {'W':>4}"
)


def _pod_table(top: TopView, width: int) -> tuple[list[Row], str]:
    """Return the rows, and the legend of their bars."""
    if not top.pods:
        return [[Words("No such pod has a share of a card or uses one.")]], ""
    named = [("pod", "card")]
    for row in top.pods:
        index = "?" if row.index is None else row.index
        named.append((fit_to_show(row.full_name), f"{row.node} {index}"))
    lines = [(draw_pod_bar(row), _pod_numbers(row), row.flags) for row in top.pods]
    rows, has_bars = _lay_out(named, _POD_HEAD, lines, width, cards_at=1, part=0.45)
    # The fills of what a pod uses explain themselves.
    guessed = has_bars and any(_NO_USE in bar.plain for bar, _, _ in lines)
    return rows, _POD_LEGEND if guessed else ""


def _card_table(top: TopView, width: int) -> tuple[list[Row], str]:
    """Return the rows, and the legend of their bars."""
    named = [("card", "model")]
    named += [(row.where, shorten_model(row.card)) for row in top.cards]
    lines = [(draw_card_bar(row), _card_numbers(row), row.flags) for row in top.cards]
    rows, has_bars = _lay_out(named, _CARD_HEAD, lines, width, cards_at=0, part=0.25)
    known = {row.seen.used_mib is not None for row in top.cards} if has_bars else set()
    legend = [_LEGEND] * (True in known) + [_CARD_LEGEND] * (False in known)
    return rows, "\n".join(legend)


def _lay_out(
    named: Sequence[tuple[str, str]],
    head: str,
    lines: Sequence[tuple[Words, str, Sequence[Flag]]],
    width: int,
    *,
    cards_at: int,
    part: float,
) -> tuple[list[Row], bool]:
    """Return the rows of a table, and whether there is room for bars.

    ``named`` are two columns with their titles, of which that at ``cards_at`` has
    ``NODE INDEX``; if both need more, ``part`` of the width is for the second one.
    Each of ``lines`` has a bar, numbers, and flags, which are below it.
    """
    columns = [list(column) for column in zip(*named, strict=True)]
    first, second = (max(map(cell_len, column)) for column in columns)
    gaps = 2 * len(_GAP)
    # On a narrow screen names go before bars.
    has_bars = width >= _WIDE or first + second + gaps + len(head) <= width
    if not has_bars:
        head = head[WIDTH:]
    room = width - len(head) - gaps
    if first + second > room:
        second = min(second, max(round(room * part), room - first))
        first = min(first, room - second)
    fitting = [
        (_on_cards if at == cards_at else fit_columns)(columns[at], cells)
        for at, cells in enumerate((first, second))
    ]
    names = [_GAP.join(both) for both in zip(*fitting, strict=True)]
    rows: list[Row] = [[Words(f"{names[0]}{_GAP}{head}", _DIM)]]
    for name, (bar, numbers, flags) in zip(names[1:], lines, strict=True):
        line = Words(f"{name}{_GAP}").append_text(bar if has_bars else Words())
        rows.append([line.append(numbers), *_flags(flags)])
    return rows, has_bars


def _on_cards(names: Sequence[str], width: int) -> list[str]:
    """Cut ``NODE INDEX``; an index is never cut."""
    parts = [name.rpartition(" ") for name in names[1:]]
    nodes = [node for node, _, _ in parts]
    tail = max((len(index) for _, _, index in parts), default=0) + 1
    if max(map(cell_len, nodes), default=0) > width - tail:
        nodes = fit_columns(_without_domain(nodes), max(0, width - tail))
    there = [
        f"{node.rstrip()} {index}"
        for node, (_, _, index) in zip(nodes, parts, strict=True)
    ]
    return [fit_column(name, width, tail) for name in (names[0], *there)]


def _without_domain(nodes: Sequence[str]) -> list[str]:
    """Leave out a domain that all of them have, such as ``.compute.internal``."""
    domains = {domain for _, _, domain in (node.partition(".") for node in nodes)}
    if len(domains) == 1 and any(domains):
        return [f"{node.partition('.')[0]}…" for node in nodes]
    return [*nodes]


def _pod_numbers(row: PodRow) -> str:
    # What is not known is n/a; - is not allotted.
    amount = row.allotted
    mib = gib(amount.units * UNIT_MIB) if amount and amount.units else "-"
    cores = str(amount.cores) if amount and amount.cores else "-"
    return f" {gib(row.used_mib):>7} {mib:>8}  {rounded(row.sm_percent):>4}  {cores:>5}"


def _card_numbers(row: CardRow) -> str:
    seen = row.seen
    return (
        f" {gib(seen.used_mib):>6} {gib(row.allotted.units * UNIT_MIB):>6}"
        f" {gib(row.card.units * UNIT_MIB):>6} {rounded(seen.busy_percent):>6}"
        f" {row.allotted.cores:>5} {rounded(seen.celsius):>4} {rounded(seen.watts):>4}"
    )


def _flags(flags: Sequence[Flag]) -> list[RenderableType]:
    """Return one line: what needs attention after ``!``, then what only informs."""
    loud = "; ".join(_said(flag) for flag in flags if not flag.sign.calm)
    calm = "; ".join(_said(flag) for flag in flags if flag.sign.calm)
    text = Words(f"! {loud}", _WARN) if loud else Words()
    text.append(f"; {calm}" if loud and calm else calm, "default")
    return [indent(text)] if flags else []


def _said(flag: Flag) -> str:
    return f"{flag.words} → {flag.do}" if flag.do else flag.words


@dataclass(frozen=True, slots=True)
class Layout:
    """What to draw: cards or pods, of which node or namespace, in how many lines.

    ``height`` None: no limit; else ``skip`` rows are above. ``text`` is in the names of
    what is listed. ``note`` is the last line; ``lost`` says why the values are not
    current; ``verbose``: where the placements are from.
    """

    cards: bool = False
    namespace: str = ""
    only: str = ""
    height: int | None = None
    note: str = ""
    lost: str = ""
    skip: int = 0
    text: str = ""
    verbose: bool = False


def draw_top(console: Console, top: TopView, layout: Layout) -> Group:
    """Draw it for this console; rows that do not fit the height are counted."""
    return fit_top(console, top, layout)[0]


def fit_top(console: Console, top: TopView, layout: Layout) -> tuple[Group, int]:
    """Draw it, and return how many rows are above: at most ``layout.skip``."""
    head = [*_head(top, layout)]
    make = _card_table if layout.cards else _pod_table
    listed = filter_rows(top, layout.text)
    rows, legend = make(listed, console.width) if top.cards or top.pods else ([], "")
    explained = [Words(legend, _DIM)] if legend else []
    skip = 0
    troubles = _troubles(top, layout)
    shown = len(troubles)
    tail = [*explained, *_tail(top, troubles, shown, layout)]
    if layout.height is not None:
        some = chain.from_iterable(rows[: layout.height])
        below = layout.height - _lines(console, [*head, *some])
        while shown and _lines(console, tail) > max(below, layout.height // 3):
            shown -= 1
            tail = [*explained, *_tail(top, troubles, shown, layout)]
        room = layout.height - _lines(console, [*head, *tail])
        rows, skip = _cut(console, rows, room, layout.skip)
    return Group(*head, *chain.from_iterable(rows), *tail), skip


def _head(top: TopView, layout: Layout) -> Iterator[RenderableType]:
    if top.cards:
        yield Words(_sum(top), _BOLD)
    elif layout.only:
        yield Words(f"{layout.only} shares no cards.", _BOLD)
    elif top.setup is Setup.ABSENT:
        yield from draw_not_installed(top.others)
    else:
        yield Words("No node shares a card.", _BOLD)
    if layout.verbose and (text := describe_source(top.placements)):
        yield Words(f"({text})", _DIM)
    if layout.namespace:
        yield Words(f"Only pods of the namespace {layout.namespace} are listed.")
    if layout.lost:
        yield Words(layout.lost, _WARN)
    if top.cards or top.pods:
        yield Words("")


def _sum(top: TopView) -> str:
    units, allotted = top.units
    nodes = words.counted(len({row.node for row in top.cards}), "node")
    cards = words.counted(len(top.cards), "card")
    all_mib, allotted_mib = units * UNIT_MIB, allotted * UNIT_MIB
    text = f"{nodes}, {cards}, {plain_gib(all_mib)} GiB: {plain_gib(allotted_mib)} "
    text += f"allotted{_percent(allotted_mib, all_mib)}"
    if not top.used_mib:
        return f"{text}, used: {words.NOT_KNOWN}"
    used, known = sum(top.used_mib), len(top.used_mib)
    here = (
        f" on {known} of {cards}" if known < len(top.cards) else _percent(used, all_mib)
    )
    return f"{text}, {plain_gib(used)} used{here}"


def _percent(part: float, mib: int) -> str:
    return f" ({round(100 * part / mib)} %)" if mib else ""


def _troubles(top: TopView, layout: Layout) -> Sequence[Trouble]:
    """Return what needs attention; the table of cards shows their flags itself."""
    of_cards = [
        Trouble(f"{row.node} card {row.card.index}", flag.words, flag.do)
        for row in top.cards
        for flag in row.flags
        if not flag.sign.calm
    ]
    return [*top.troubles, *(() if layout.cards else of_cards)]


def _tail(
    top: TopView, troubles: Sequence[Trouble], shown: int, layout: Layout
) -> Iterator[RenderableType]:
    yield from draw_warnings(troubles[:shown])
    hidden = len(troubles) - shown
    if hidden:
        more = "more " if shown else ""
        yield Words(f"{words.counted(hidden, f'{more}warning')}: --once", _WARN)
    if top.elsewhere:
        others = words.counted(top.elsewhere, "other warning")
        yield Words(f"\n{others}: gpusharectl inspect")
    if layout.note:
        yield Words(f"\n{layout.note}", _DIM)


def _cut(
    console: Console, rows: list[Row], room: int, skip: int
) -> tuple[list[Row], int]:
    """Return the head and the rows after the first ``skip`` of them that fit.

    The last screen is full, so fewer may be skipped.
    """
    head, listed = rows[:1], rows[1:]
    space = room - _lines(console, chain.from_iterable(head))
    if _fitting(console, listed, space) == len(listed):
        return rows, 0
    # One line says how many more there are.
    last = _fitting(console, reversed(listed), space - 1)
    skip = min(skip, len(listed) - max(1, last))
    shown = listed[skip : skip + _fitting(console, listed[skip:], space - 1)]
    below = len(listed) - skip - len(shown)
    hidden = [f"{skip} above"] * bool(skip) + [f"{below} more: --once"] * bool(below)
    return [*head, *shown, [Words(f"… and {', '.join(hidden)}", _DIM)]], skip


def _fitting(console: Console, rows: Iterable[Row], room: int) -> int:
    """Return how many of these rows fit; the others are not even measured."""
    number = 0
    for row in rows:
        room -= _lines(console, row)
        if room < 0:
            break
        number += 1
    return number


def _lines(console: Console, parts: Iterable[RenderableType]) -> int:
    group = Group(*parts)
    return len(console.render_lines(group, pad=False)) if group.renderables else 0
