"""What the commands draw: bars of cards, the same with and without colour; and data.

How long ago something was, in kubectl's words. Pure.

What would change, as diffs: objects by the API server's own dry run, and labels.
"""

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import click
import orjson
import yaml
from rich.style import Style
from rich.text import Text

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref

_FILLS = "█▓▒▚"
_FREE = "·"
_COLOURS = ("cyan", "yellow", "green", "magenta")


_UNFIT = "\N{REPLACEMENT CHARACTER}"


def fit_to_show(text: str) -> str:
    r"""Take out what a terminal would obey: annotations may be anybody's words.

    >>> fit_to_show("GPU-\x1b[2J")
    'GPU-�[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _UNFIT for c in text)


def give(data: object, output: str) -> None:
    """Write data to standard output, as ``json`` or else as YAML."""
    if output == "json":
        click.echo(orjson.dumps(data, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


class Words(Text):
    """Text of which nothing is a command to the terminal, whoever wrote it."""

    def __init__(self, text: str = "", style: str = "") -> None:
        super().__init__(fit_to_show(text), style)

    def append(self, text: Text | str, style: str | Style | None = None) -> "Words":
        """Add words, or text that has been looked through."""
        super().append(fit_to_show(text) if isinstance(text, str) else text, style)
        return self


@dataclass(frozen=True, slots=True)
class Piece:
    """What one pod holds of a card, in units."""

    name: str
    units: int


def bar(capacity: int, pieces: Sequence[Piece], width: int = 40) -> Words:
    """Draw a card as a bar: a fill for each pod, dots for what is free.

    Every pod that has any has at least one cell, so that a small one is not lost; the
    largest gives up cells for it. Of more pods than cells, the last ones have none.
    """
    cells = _cells(capacity, [piece.units for piece in pieces], width)
    text = Words()
    for number, count in enumerate(cells):
        text.append_text(fill(number, count))
    return text.append(_FREE * (width - sum(cells)), "dim")


def legend(pieces: Sequence[Piece]) -> Words:
    """Say which fill is whose, and how many units each has."""
    text = Words()
    for number, piece in enumerate(pieces):
        text.append("  " if number else "")
        text.append_text(fill(number))
        text.append(f" {piece.name} {piece.units}")
    return text


def fill(number: int, cells: int = 1) -> Words:
    """Give some cells of the fill that a bar's piece of this number has."""
    which = number % len(_FILLS)
    return Words(_FILLS[which] * cells, _COLOURS[which])


def _cells(capacity: int, units: Sequence[int], width: int) -> list[int]:
    size = max(1, capacity)
    cells = [max(1, round(amount * width / size)) if amount else 0 for amount in units]
    full = sum(units) >= capacity
    room = width if full else width - 1
    while sum(cells) > room:
        _give_up_one(cells)
    while any(cells) and full and sum(cells) < width:
        cells[cells.index(max(cells))] += 1
    return cells


def _give_up_one(cells: list[int]) -> None:
    """Take a cell from the largest, or where all have one, the last one's only cell."""
    most = max(cells)
    last = len(cells) - 1 - cells[::-1].index(most)
    cells[cells.index(most) if most > 1 else last] -= 1


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
"""Below how many seconds: unit and its size, and what is left in what unit."""


def age(moment: str, now: datetime) -> str:
    """Say how long ago something was, as kubectl does: ``45s``, ``3m20s``, ``2d``.

    The source is ``k8s.io/apimachinery/pkg/util/duration``.
    """
    try:
        seconds = int((now - datetime.fromisoformat(moment)).total_seconds())
    except (ValueError, TypeError):
        return UNKNOWN
    for limit, unit, size, rest, rest_size in _STEPS:
        if seconds < limit:
            whole, left = divmod(max(0, seconds), size)
            part = left // rest_size
            return f"{whole}{unit}{part}{rest}" if rest and part else f"{whole}{unit}"
    return f"{seconds // (365 * 86400)}y"


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
    """One object before and after; None where there is none."""

    ref: Ref
    before: Json | None
    after: Json | None

    def diff(self) -> str:
        """Show the change as ``diff -u`` does; a new object whole, no secret ever."""
        if self.ref.kind == _SECRET:
            return f"{self.ref}: its contents are not shown\n"
        old, new = _lines(self.before), _lines(self.after)
        fromfile = str(self.ref) if self.before else "(none)"
        tofile = str(self.ref) if self.after else "(none)"
        return "".join(difflib.unified_diff(old, new, fromfile, tofile))


def object_changes(
    objects: Objects, manifests: Iterable[Json]
) -> tuple[ObjectChange, ...]:
    """Ask the API server what applying would change; what stays is left out.

    It judges each object as it would in earnest: rights, quotas, admission. So what it
    would refuse is a ``ClusterError`` here, before anything is touched.
    """
    found = []
    for body in manifests:
        ref = Ref.of(body)
        before = objects.get(ref)
        after = tidy(objects.apply(body, dry_run=True))
        old = None if before is None else tidy(before)
        if old != after:
            found.append(ObjectChange(ref, old, after))
    return tuple(found)


def tidy(body: Json) -> Json:
    """Leave out what the API server keeps for itself: statuses, versions, managers."""
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
