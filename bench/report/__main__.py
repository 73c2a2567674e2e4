"""Reads ``bench/results`` and writes ``docs/performance.md`` with its drawings."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.report.calls import (
    CLAIMS_GOALS,
    FILTER_GOALS,
    PRELOAD_GOALS,
    WEBHOOK_GOALS,
    claims_section,
    decision_section,
    exporter_section,
    filter_section,
    plugin_section,
    preload_section,
    webhook_section,
)
from bench.report.page import (
    BenchResult,
    Goal,
    PageSection,
    flat,
    goals_table,
    machine_of,
    not_measured,
)
from bench.report.placing import PACKING_GOALS, packing_section, scheduler_section
from bench.report.scaling import (
    BURST_GOALS,
    SCALE_GOALS,
    burst_section,
    scale_section,
)
from bench.report.soaking import soak_section

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"
_HEAD = """# Performance

`make bench-report` writes this page from `bench/results`. Each figure has its limit
beside it, measured in the same run. Compare ratios between machines, not times. Each
section has its day; the machine is, if it names no other: {machine}.
"""


@dataclass(frozen=True, slots=True)
class PagePart:
    """One section of the page, and where its figures come from."""

    title: str
    file: str
    by: str
    write: Callable[[BenchResult, Path], PageSection]
    goals: Sequence[Goal] = ()
    """Its figures beside what is allowed, for the table behind the first words."""


PARTS = (
    PagePart(
        "Packing",
        "packing.json",
        "python -m bench packing",
        packing_section,
        PACKING_GOALS,
    ),
    PagePart(
        "Packing through a real kube-scheduler",
        "packing_scheduler.json",
        "python -m bench.packing_scheduler",
        scheduler_section,
    ),
    PagePart(
        "A burst of pods",
        "burst.json",
        "python -m bench burst",
        burst_section,
        BURST_GOALS,
    ),
    PagePart(
        "A large cluster",
        "scale.json",
        "python -m bench scale",
        scale_section,
        SCALE_GOALS,
    ),
    PagePart("Soak", "soak.json", "make soak", soak_section),
    PagePart(
        "Filter over HTTP",
        "filter.json",
        "make bench",
        filter_section,
        FILTER_GOALS,
    ),
    PagePart("One decision", "filter.json", "make bench", decision_section),
    PagePart(
        "A review by the webhook",
        "webhook.json",
        "make bench",
        webhook_section,
        WEBHOOK_GOALS,
    ),
    PagePart("The device plugin", "deviceplugin.json", "make bench", plugin_section),
    PagePart("The exporter", "exporter.json", "make bench", exporter_section),
    PagePart(
        "The preload library",
        "preload.json",
        "python -m bench preload",
        preload_section,
        PRELOAD_GOALS,
    ),
    PagePart(
        "ResourceClaims",
        "claims.json",
        "python -m bench claims",
        claims_section,
        CLAIMS_GOALS,
    ),
)


def main() -> int:
    """Draw the page of this checkout."""
    draw(RESULTS, PAGE)
    print(f"Written to {PAGE.relative_to(ROOT)}")
    return 0


def draw(results: Path, page: Path) -> None:
    """Write the page, and its drawings into a folder of its name beside it."""
    pictures = page.with_suffix("")
    sections = [section(part, results, pictures) for part in PARTS]
    known = {part.file for part in PARTS}
    for path in sorted(results.glob("*.json")):
        if path.name not in known:
            result = json.loads(path.read_text())
            sections.append(PageSection(f"`{path.stem}`", [flat(result)], result))
    machines = Counter(machine_of(each.of) for each in sections if each.of is not None)
    machine = max(machines, key=machines.__getitem__, default="none")
    lines = [line for each in sections for line in each.lines(pictures.name, machine)]
    page.parent.mkdir(parents=True, exist_ok=True)
    head = _HEAD.format(machine=machine)
    page.write_text("\n".join([head, *lines]).rstrip() + "\n")


def section(part: PagePart, results: Path, pictures: Path) -> PageSection:
    """Write one section, or say that its figures are not there."""
    path = results / part.file
    if not path.exists():
        return not_measured(part.title, part.file, part.by)
    result: BenchResult = json.loads(path.read_text())
    made = part.write(result, pictures)
    if not part.goals:
        return made
    words, *rest = made.parts
    return replace(made, parts=[words, goals_table(part.goals, result), *rest])


if __name__ == "__main__":
    sys.exit(main())
