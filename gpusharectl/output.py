"""What several commands print: data, bars, numbers in columns, ages, and diffs.

Data is what ``-o json`` and ``-o yaml`` print. Its shape is a promise: fields may be
added; none is removed or changes its meaning while ``v`` stays. The values that are
drawn are the data: ``encode`` writes their fields.
"""

import difflib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import click
import orjson
import yaml
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.style import Style
from rich.text import Text

from gpushare.domain.model import UNIT_MIB, Amount, Card, Claim, PodRef
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.words import NOT_KNOWN

_FILLS = "█▓▒▚"
_FREE = "·"
_COLOURS = ("cyan", "yellow", "green", "magenta")
_UNFIT = "\N{REPLACEMENT CHARACTER}"


def fit_to_show(text: str) -> str:
    r"""Replace control characters: anybody may have written the text.

    >>> fit_to_show("GPU-\x1b[2J")
    'GPU-�[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _UNFIT for c in text)


Data = dict[str, Any]
VERSION = 1
"""``v`` of all data."""
INLINE = {"data": "inline"}
"""Metadata of a field: its keys are those of the value that has it; None has none."""
HIDDEN = {"data": "hidden"}
"""Metadata of a field that is drawn, or used, and is not data."""


def encode(value: object) -> Any:  # noqa: ANN401
    """Return a value as data: null, numbers, texts, lists and objects with text keys.

    A dataclass is an object of its fields, in their order. An empty text in a field is
    null: not known, or it does not apply. A class whose data is not its fields has
    ``as_data``.
    """
    match value:
        case Amount(cores, units):
            return {"cores": cores, "units": units, "memory_mib": units * UNIT_MIB}
        case Claim():
            return encode(value.amount)
        case PodRef():
            keys = ("namespace", "name", "uid", "priority")
            return {key: getattr(value, key) for key in keys}
        case Card():
            return _card_data(value)
        case str():
            return str(value)
        case datetime():
            return value.isoformat()
        case Mapping():
            return {key: encode(member) for key, member in value.items()}
        case tuple() | list():
            return [encode(member) for member in value]
    if as_data := getattr(value, "as_data", None):
        return encode(as_data())
    return _fields_data(value) if hasattr(value, "__dataclass_fields__") else value


def _fields_data(view: Any) -> Data:  # noqa: ANN401
    data: Data = {}
    for part in fields(view):
        member = encode(getattr(view, part.name))
        if part.metadata == INLINE:
            data |= member or {}
        elif part.metadata != HIDDEN:
            data[part.name] = None if member == "" else member
    return data


def _card_data(card: Card) -> Data:
    return {
        "uuid": card.uuid,
        "index": card.index,
        "model": card.model or None,
        "units": card.units,
        "memory_mib": card.units * UNIT_MIB,
        "healthy": card.healthy,
        "cordoned": card.cordoned,
        "parent": card.parent or None,
        "reason": None if card.healthy else card.reason or None,
    }


data_option = click.option(
    "-o", "--output", type=click.Choice(["json", "yaml"]), help="Print it as data."
)


def print_data(data: object, output: str) -> None:
    """Print data as JSON if ``output`` is ``json``, else as YAML."""
    if output == "json":
        click.echo(orjson.dumps(data, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


_UNLIMITED = 100_000


def open_console() -> Console:
    """Return the console of standard output; into a pipe no line is wrapped."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _UNLIMITED)


_LEAST_ROOM, _NEXT_LINE = 20, 6


class Hanging:
    """A text that begins after ``begin`` and is wrapped below itself.

    Where that leaves too little room, it begins on the next line.
    """

    def __init__(self, begin: Text, text: Text) -> None:
        self._begin = begin
        self._text = text

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text]:
        """Yield its lines."""
        begin = self._begin
        width = options.max_width - begin.cell_len
        if width < min(_LEAST_ROOM, self._text.cell_len):
            begin.rstrip()
            yield begin
            begin = Text(" " * _NEXT_LINE)
            width = max(1, options.max_width - _NEXT_LINE)
        lines = self._text.wrap(console, width, overflow="fold") or [Text()]
        for line in lines:
            line.rstrip()
            yield Text.assemble(begin, line)
            begin = Text(" " * begin.cell_len)


def draw_step(text: str, indent: int = 4, *, wrap: bool = False) -> RenderableType:
    """Return a next step after an arrow; a command is not wrapped, to be copied.

    ``wrap`` wraps it too, for a screen that is drawn again and again.
    """
    begin = Words(f"{'':{indent}}→ ")
    if wrap or not text.startswith(_COMMANDS):
        return Hanging(begin, Words(text))
    begin.append(text)
    begin.no_wrap = True
    return begin


def show(
    console: Console, parts: Iterable[RenderableType], *, wide: bool = False
) -> None:
    """Print the parts of a screen, each on lines of its own; ``wide`` wraps no text."""
    for part in parts:
        whole = isinstance(part, Text) and (wide or bool(part.no_wrap))
        console.print(part, soft_wrap=whole)


_COMMANDS = ("kubectl ", "gpusharectl ")


class Words(Text):
    """Text without control characters, whoever wrote it."""

    def __init__(self, text: str = "", style: str = "") -> None:
        super().__init__(fit_to_show(text), style)

    def append(self, text: Text | str, style: str | Style | None = None) -> "Words":
        """Add a string, or a ``Text`` that is already clean."""
        super().append(fit_to_show(text) if isinstance(text, str) else text, style)
        return self


def draw_bar(capacity: int, units: Sequence[int], width: int = 40) -> Words:
    """Draw a card as a bar: a fill for each pod, dots for what is free.

    Each pod gets at least one cell, at the cost of the largest; of more pods than
    cells the last get none.
    """
    cells = _cells(capacity, units, width)
    text = Words()
    for number, count in enumerate(cells):
        text.append_text(draw_fill(number, count))
    return text.append(_FREE * (width - sum(cells)), "dim")


def draw_legend(units: Mapping[str, int]) -> Words:
    """Name each pod after its fill, with its units."""
    text = Words()
    for number, name in enumerate(units):
        text.append("  " if number else "").append_text(draw_fill(number))
        text.append(f" {name} {units[name]}")
    return text


def draw_fill(number: int, cells: int = 1) -> Words:
    """Return cells with the fill of a bar's piece of this number."""
    which = number % len(_FILLS)
    return Words(_FILLS[which] * cells, _COLOURS[which])


def _cells(capacity: int, units: Sequence[int], width: int) -> list[int]:
    size = max(1, capacity)
    cells = [max(1, round(amount * width / size)) if amount else 0 for amount in units]
    full = sum(units) >= capacity
    room = width if full else width - 1
    while sum(cells) > room:
        # From the largest piece; if all have one, from the last.
        most = max(cells)
        last = len(cells) - 1 - cells[::-1].index(most)
        cells[cells.index(most) if most > 1 else last] -= 1
    while any(cells) and full and sum(cells) < width:
        cells[cells.index(max(cells))] += 1
    return cells


UNKNOWN = "<unknown>"
_STEPS = (
    (120, "s", 1, "", 1),
    (600, "m", 60, "s", 1),
    (3 * 3600, "m", 60, "", 1),
    (8 * 3600, "h", 3600, "m", 60),
    (48 * 3600, "h", 3600, "", 1),
    (8 * 86400, "d", 86400, "h", 3600),
    (2 * 365 * 86400, "d", 86400, "", 1),
)
"""Up to how many seconds: the unit and its size, and the unit of the rest."""


def format_age(moment: str, now: datetime) -> str:
    """Return how long ago something was, as kubectl writes it: ``45s``, ``3m20s``.

    The source is ``k8s.io/apimachinery/pkg/util/duration``.
    """
    try:
        seconds = int((now - datetime.fromisoformat(moment)).total_seconds())
    except (ValueError, TypeError):
        return UNKNOWN
    return format_duration(seconds)


def format_duration(seconds: float) -> str:
    """Write a duration as kubectl does.

    >>> format_duration(7800)
    '130m'
    """
    for limit, unit, size, rest, rest_size in _STEPS:
        if seconds < limit:
            whole, rest_s = divmod(max(0, int(seconds)), size)
            part = rest_s // rest_size
            return f"{whole}{unit}{part}{rest}" if rest and part else f"{whole}{unit}"
    return f"{int(seconds) // (365 * 86400)}y"


_GIB = 1024
_LEAST = 0.01
_CUT = "…"
_MOST_TEXTS = 2000
"""Of more, no better place for the cut is searched: it would take too long."""


def gib(mib: float | None) -> str:
    """Write MiB as GiB, for a column.

    >>> gib(12800), gib(3), gib(0), gib(None)
    ('12.50', '<0.01', '0', 'n/a')
    """
    if mib is None:
        return NOT_KNOWN
    number = mib / _GIB
    return f"<{_LEAST}" if 0 < number < _LEAST else f"{number:.2f}" if number else "0"


def format_size(mib: float) -> str:
    """Write MiB with its unit, for a sentence.

    >>> format_size(300.4), format_size(1280)
    ('300 MiB', '1.25 GiB')
    """
    return f"{max(1, round(mib))} MiB" if mib < _GIB else f"{plain_gib(mib)} GiB"


def plain_gib(mib: float) -> str:
    """Write MiB as GiB, for a sentence that names the unit.

    >>> plain_gib(12800), plain_gib(0)
    ('12.5', '0')
    """
    return f"{mib / _GIB:.2f}".rstrip("0").rstrip(".")


def rounded(number: float | None) -> str:
    """Write a number without its fraction; a small one is ``<1``, not 0.

    >>> rounded(22.6), rounded(0), rounded(0.2), rounded(None)
    ('23', '0', '<1', 'n/a')
    """
    if number is None:
        return NOT_KNOWN
    return "<1" if 0 < number < 1 else str(round(number))


def fit_column(text: str, width: int, tail: int | None = None) -> str:
    """Make a text exactly ``width`` cells wide.

    A text that is too long is cut before its last ``tail`` cells, or in the middle.

    >>> fit_column("bert-7b5f9c6d4b-x2x7k", 12), fit_column("Tesla P100", 6, 0)
    ('bert-7…x2x7k', 'Tesla…')
    """
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    kept = (width - 1) // 2 if tail is None else min(tail, width - 1)
    end = _first(text[::-1], kept)[::-1]
    begin = _first(text, width - 1 - cell_len(end))
    return set_cell_size(f"{begin}{_CUT}{end}", width)


def fit_columns(texts: Sequence[str], width: int) -> list[str]:
    """Make texts ``width`` cells wide; cut them where most of them stay different.

    That is in the middle, or as near to it as possible.

    >>> fit_columns(["gpu-a-of-the-rack", "gpu-b-of-the-rack"], 9)
    ['gpu-a…ack', 'gpu-b…ack']
    """
    middle = (width - 1) // 2
    different = len(set(texts))
    best, most = [fit_column(text, width) for text in texts], 0
    for tail in sorted(range(max(0, width)), key=lambda tail: abs(tail - middle)):
        cut = [fit_column(text, width, tail) for text in texts]
        kept = len(set(cut))
        if kept > most:
            best, most = cut, kept
        if most == different or len(texts) > _MOST_TEXTS:
            break
    return best


def _first(text: str, width: int) -> str:
    """Return as much of a text as fits; some characters take two cells."""
    used = 0
    for number, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:number]
    return text


_BOOKKEEPING = (
    "managedFields",
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "generation",
)
_NOT_SHOWN = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.daemonset.template.generation",
)
_SECRET = "Secret"  # noqa: S105


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One object before and after a change; None if it does not exist."""

    ref: Ref
    before: Json | None
    after: Json | None

    def diff(self) -> str:
        """Return the change as ``diff -u`` writes it, without a Secret's contents."""
        if self.ref.kind == _SECRET:
            return f"{self.ref}: its contents are not shown\n"
        old, new = _lines(self.before), _lines(self.after)
        fromfile = str(self.ref) if self.before else "(none)"
        tofile = str(self.ref) if self.after else "(none)"
        return "".join(difflib.unified_diff(old, new, fromfile, tofile))


def find_changes(
    objects: Objects, manifests: Iterable[Json]
) -> tuple[ObjectChange, ...]:
    """Return what applying would change, by the API server's dry run.

    The API server checks rights, quotas and admission as for the real request, so what
    it would refuse is a ``ClusterError`` here, before anything is changed.
    """
    changes = []
    for body in manifests:
        ref = Ref.of(body)
        before = objects.get(ref)
        after = tidy(objects.apply(body, dry_run=True))
        old = None if before is None else tidy(before)
        if old != after:
            changes.append(ObjectChange(ref, old, after))
    return tuple(changes)


def tidy(body: Json) -> Json:
    """Return an object without what the API server adds: status, versions, managers."""
    metadata = _without(body["metadata"], _BOOKKEEPING)
    annotations = _without(metadata.pop("annotations", None) or {}, _NOT_SHOWN)
    if annotations:
        metadata["annotations"] = annotations
    return _without(body, ("status",)) | {"metadata": metadata}


def _without(body: Json, keys: Collection[str]) -> Json:
    return {key: value for key, value in body.items() if key not in keys}


def _lines(body: Json | None) -> list[str]:
    if body is None:
        return []
    text = yaml.safe_dump(body, sort_keys=True, allow_unicode=True)
    return text.splitlines(keepends=True)
