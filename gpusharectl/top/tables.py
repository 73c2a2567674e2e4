"""The rows of top: names as wide as there is room for, numbers in columns."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding

from gpushare.domain.model import UNIT_MIB
from gpushare.kube import words
from gpusharectl.output import Words, fit_to_show
from gpusharectl.top.bars import WIDTH, card_bar, pod_bar
from gpusharectl.top.figures import column, gib, whole
from gpusharectl.top.rows import CardRow, Flag, PodRow, Top

Row = Sequence[RenderableType]
"""A line of numbers, and what is to be said of them."""
_NONE = "-"
"""Where nothing was allotted; what nobody knows is n/a."""
_VENDOR = "NVIDIA "
_INDENT = 4
_GAP = "  "
_INDEX = 2
"""Of a card's name its index stays in any case."""
_WARN, _DIM = "yellow", "dim"
_POD_HEAD = f"{'memory GiB':<{WIDTH}} {'used':>7} {'allotted':>8}  {'SM %':>4}  cores"
_CARD_HEAD = (
    f"{'memory GiB':<{WIDTH}} {'used':>6} {'allot.':>6} {'in all':>6}"
    f" {'busy %':>6} cores {'°C':>4} {'W':>4}"
)


def pod_table(top: Top, width: int) -> list[Row]:
    """Give a head, and a row for each pod on each card."""
    named = [(fit_to_show(row.full_name), _where(row)) for row in top.pods]
    first, second = _widths(("pod", "card"), named, width - len(_POD_HEAD), 0.45)
    rows: list[Row] = [[_head("pod", first, "card", second, _POD_HEAD)]]
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
    rows: list[Row] = [[_head("card", first, "model", second, _CARD_HEAD)]]
    for row, (where, model) in zip(top.cards, named, strict=True):
        card = column(where, first, _INDEX)
        line = Words(f"{card}{_GAP}{column(model, second, 0)}{_GAP}")
        line.append_text(card_bar(row)).append(_card_numbers(row))
        rows.append([line, *_flags(row.flags)])
    return rows


def _head(first: str, one: int, second: str, two: int, rest: str) -> Words:
    return Words(f"{first:<{one}}{_GAP}{second:<{two}}{_GAP}{rest}", _DIM)


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
    text = Words(f"! {loud}", _WARN) if loud else Words()
    text.append(f"; {calm}" if loud and calm else calm, "default")
    return [Padding(text, (0, 0, 0, _INDENT), expand=False)]


def _said(flag: Flag) -> str:
    return f"{flag.words} → {flag.do}" if flag.do else flag.words
