"""What came out on one version of Kubernetes: read from pytest, kept as JSON."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.compat.plan import title_of
from tests.testbed.kubernetes import numbers

FOLDER = Path(__file__).with_name("results")


@dataclass(slots=True)
class Counts:
    """One area on one version."""

    date: str = ""
    """The day when it was run."""
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    """Ids of tests."""
    not_applicable: dict[str, int] = field(default_factory=dict)
    """Tests by the reason why this version cannot run them."""


@dataclass(frozen=True, slots=True)
class Result:
    version: str
    areas: dict[str, Counts] = field(default_factory=dict)
    stopped: str = ""
    """Why there is nothing to count: what could not be built, or ended early."""

    @property
    def good(self) -> bool:
        return not self.stopped and not any(c.failed for c in self.areas.values())


def counted(report: Path, date: str) -> dict[str, Counts]:
    """Read what pytest wrote with ``--junitxml`` in the family xunit1, by area."""
    areas: dict[str, Counts] = {}
    for case in ET.parse(report).iter("testcase"):
        # A file that cannot be imported is a case of its own, with a name alone.
        file = case.get("file") or f"{case.get('name', '').replace('.', '/')}.py"
        counts = areas.setdefault(title_of(file), Counts(date))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            test = f"{file}::{case.get('name')}"
            if test not in counts.failed:
                counts.failed.append(test)
        elif skipped is not None:
            why = skipped.get("message", "")
            counts.not_applicable[why] = counts.not_applicable.get(why, 0) + 1
        else:
            counts.passed += 1
    return areas


def keep(result: Result, folder: Path = FOLDER) -> None:
    """Keep it in place of an older one; areas that were not run now stay as they were.

    Not those of another patch of the same minor version.
    """
    folder.mkdir(exist_ok=True)
    path = folder / f"{result.version.rpartition('.')[0]}.json"
    older = _read(path) if path.exists() else result
    if older.version == result.version:
        result = replace(result, areas=older.areas | result.areas)
    path.write_text(json.dumps(asdict(result), indent=1) + "\n")


def kept(folder: Path = FOLDER) -> list[Result]:
    """Give the last result of each minor version, the oldest version first."""
    found = [_read(path) for path in folder.glob("*.json")]
    return sorted(found, key=lambda result: numbers(result.version))


def _read(path: Path) -> Result:
    said = json.loads(path.read_text())
    areas = {title: Counts(**counts) for title, counts in said.pop("areas").items()}
    return Result(**said, areas=areas)
