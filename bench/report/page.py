"""A page of Markdown: sections with text, tables and pictures. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

BenchResult = dict[str, Any]
"""What a file of results has in it."""


@dataclass(frozen=True, slots=True)
class Table:
    """Column headings, and rows of cells that are text already."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def lines(self) -> list[str]:
        """Return the lines: the first column aligned left, figures right."""
        rule = f"|---|{'---:|' * (len(self.heads) - 1)}"
        return [_row(self.heads), rule, *(_row(row) for row in self.rows)]


@dataclass(frozen=True, slots=True)
class Picture:
    """A file name without a folder, and a text that describes the picture."""

    name: str
    alt: str


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure of a section, what is allowed, and where the results have it."""

    what: str
    allowed: str
    """Empty for a figure that only explains others."""
    read: Callable[[BenchResult], object]
    """Return the figure; None if these results, maybe older ones, have it not."""


@dataclass(frozen=True, slots=True)
class PageSection:
    """One measurement: what was done, the result, and its limit."""

    title: str
    parts: Sequence[str | Table | Picture]
    of: BenchResult | None = None
    """The results with day and machine; None if nothing was measured."""

    def lines(self, pictures: str, machine: str) -> list[str]:
        """Return the lines; ``pictures`` is their folder, relative to the page.

        ``machine`` is what the page's head says of all sections.
        """
        lines = [f"## {self.title}"]
        for part in self.parts:
            match part:
                case str():
                    lines += wrap(part, 92, break_on_hyphens=False)
                case Table():
                    lines += part.lines
                case Picture():
                    lines.append(f"![{part.alt}]({pictures}/{part.name})")
            lines.append("")
        if self.of is not None:
            lines += [f"<sub>{measured(self.of, machine)}</sub>", ""]
        return lines


def goals_table(goals: Sequence[Goal], result: BenchResult) -> Table:
    """Return each figure beside what is allowed."""
    rows = ((goal.what, number(goal.read(result)), goal.allowed) for goal in goals)
    return Table(("what", "measured", "allowed"), tuple(rows))


def at(*path: str) -> Callable[[BenchResult], Any]:
    """Return what reads the value under these keys; None where a key is missing."""

    def read(result: BenchResult) -> object:
        value: Any = result
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    return read


def times(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> float | None:
    """Return how many times the other's median one is; None without the other."""
    return None if other is None else round(one["p50"] / other["p50"], 3)


def measured(result: BenchResult, machine: str) -> str:
    """Return the day, and the machine where it is another one."""
    day = str(result.get("at", "at an unknown time"))[:10]
    own = machine_of(result)
    return day if own == machine else f"{day}, {own}"


def machine_of(result: BenchResult) -> str:
    """Return the machine of these results."""
    return str(result.get("machine", "an unknown machine"))


def not_measured(title: str, file: str, by: str) -> PageSection:
    """Say that there are no results, and which command writes them."""
    return PageSection(title, [f"Not measured: `{by}` writes `bench/results/{file}`."])


def number(value: object, digits: int = 2) -> str:
    """Format a figure; None becomes a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return str(value)


def flat(
    result: BenchResult, without: Iterable[str] = ("at", "machine", "python")
) -> Table:
    """Return a table of results without a section of their own: path and value."""
    skipped = set(without)
    rest = {key: value for key, value in result.items() if key not in skipped}
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
