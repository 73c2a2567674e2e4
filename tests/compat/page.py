"""Writes the results into ``docs/compatibility.md``, whose rest is by hand."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.compat.plan import AREAS, Area
from tests.compat.results import Result, kept

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN = "<!-- written by make compat -->\n"
END = "<!-- end of what make compat writes -->\n"


def draw(page: Path = PAGE) -> None:
    """Put the kept results between the page's two marks."""
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}{results(kept())}{END}{tail}")


def results(found: Sequence[Result]) -> str:
    """Give the table of all versions, and what failed or could not be run below it."""
    rows = [
        ["", *(each.version for each in found)],
        ["run on", *(_days(each) for each in found)],
        *([area.title, *(_cell(each, area) for each in found)] for area in AREAS),
    ]
    head, *below = [f"| {' | '.join(row)} |\n" for row in rows]
    table = "".join([head, f"|{'---|' * len(rows[0])}\n", *below])
    return "\n".join([table, *_below(found)])


def _days(result: Result) -> str:
    days = sorted({counts.date for counts in result.areas.values()})
    return " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))


def _cell(result: Result, area: Area) -> str:
    counts = result.areas.get(area.title)
    if counts is None:
        return "**not run**"
    numbers = (
        (len(counts.failed), "**{} failed**"),
        (counts.passed, "{} passed"),
        (sum(counts.not_applicable.values()), "{} not applicable"),
    )
    return ", ".join(words.format(number) for number, words in numbers if number)


def _below(found: Sequence[Result]) -> Iterable[str]:
    for result in found:
        every = result.areas.values()
        lines = [f"- not run: {result.stopped}"] if result.stopped else []
        lines += [f"- failed: `{test}`" for each in every for test in each.failed]
        if lines:
            yield "\n".join([f"{result.version}:", *lines, ""])
    if reasons := _reasons(found):
        yield "\n".join(["Not applicable:", *reasons, ""])


def _reasons(found: Sequence[Result]) -> list[str]:
    """Return a line for each reason, with the versions on which it holds."""
    versions: dict[str, list[str]] = {}
    for result in found:
        of = {why for each in result.areas.values() for why in each.not_applicable}
        for why in of:
            versions.setdefault(why, []).append(result.version)
    return [f"- {why}: {', '.join(on)}" for why, on in sorted(versions.items())]
