"""A page of Markdown: sections with words, tables and pictures. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

Found = dict[str, Any]
"""What a file of results has in it."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns by their heads, and rows of cells that are text already."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def lines(self) -> list[str]:
        """Write it; the first column to the left, figures to the right."""
        rule = ["---", *["---:"] * (len(self.heads) - 1)]
        return [_row(self.heads), _row(rule), *(_row(row) for row in self.rows)]


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing's name, without a folder, and what is seen on it in words."""

    name: str
    alt: str


@dataclass(frozen=True, slots=True)
class Section:
    """One measurement: what was done, what came out, beside its limit."""

    title: str
    parts: Sequence[str | Table | Picture]
    of: Found | None = None
    """The results with the day and the machine; None where nothing was measured."""

    def lines(self, pictures: str) -> list[str]:
        """Write it; ``pictures`` is the folder of the drawings, as the page has it."""
        found = [f"## {self.title}"]
        for part in self.parts:
            match part:
                case str():
                    found += wrap(part, 92, break_on_hyphens=False)
                case Table():
                    found += part.lines
                case Picture():
                    found.append(f"![{part.alt}]({pictures}/{part.name})")
            found.append("")
        if self.of is not None:
            found += [f"<sub>{measured(self.of)}</sub>", ""]
        return found


def measured(found: Found) -> str:
    """Say when and on what something was measured."""
    day = str(found.get("at", "at a time that is not known"))[:10]
    machine = found.get("machine", "a machine that is not known")
    python = f", Python {found['python']}" if "python" in found else ""
    return f"Measured {day} on {machine}{python}."


def not_measured(title: str, file: str, by: str) -> Section:
    """Say that there are no results, and how they are made."""
    return Section(title, [f"Not measured: `{by}` writes `bench/results/{file}`."])


def number(value: object, digits: int = 2) -> str:
    """Write a figure; a dash where there is none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return str(value)


def beside(groups: Mapping[str, Mapping[str, Any]]) -> Table:
    """Lay out groups of figures with the same keys side by side: ours, and a limit."""
    keys = dict.fromkeys(key for group in groups.values() for key in group)
    rows = (
        (key, *(number(group.get(key), 3) for group in groups.values())) for key in keys
    )
    return Table(("what", *groups), tuple(rows))


def flat(found: Found, without: Iterable[str] = ("at", "machine", "python")) -> Table:
    """Lay out results whose keys nobody has put in order: path and value."""
    skipped = set(without)
    rest = {key: value for key, value in found.items() if key not in skipped}
    return Table(("what", "value"), tuple(_leaves("", rest)))


def _leaves(path: str, value: object) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves(f"{path}.{key}".lstrip("."), below)
    elif isinstance(value, list):
        yield path, f"{len(value)} entries"
    else:
        yield path, number(value, 3)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
