"""The page about speed: each figure beside its limit, and no figure that is not there.

The results are invented: round numbers that no machine would give.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.report.__main__ import PARTS, draw
from bench.report.page import flat, number
from tests.bench.report.invented import INVENTED

BY_NAME = {part.file: part for part in PARTS}


def drawn(folder: Path, results: dict[str, Any]) -> str:
    """Write these results, draw the page from them, and read it."""
    (folder / "results").mkdir()
    for name, found in results.items():
        (folder / "results" / name).write_text(json.dumps(found))
    page = folder / "docs" / "performance.md"
    draw(folder / "results", page)
    return page.read_text()


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the text of the page with everything on it."""
    folder = tmp_path_factory.mktemp("everything")
    return folder, drawn(folder, INVENTED)


def section(page: str, title: str) -> str:
    """Cut one section out of a page."""
    return page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_nothing_measured(tmp_path: Path) -> None:
    """Every section is there, and says what would fill it."""
    page = drawn(tmp_path, {})
    for part in PARTS:
        said = section(page, part.title)
        assert said.startswith(f"Not measured: `{part.by}` writes")
    assert not (tmp_path / "docs" / "performance").exists()


def test_everything_measured(everything: tuple[Path, str]) -> None:
    """No section is without figures, and each picture that is named is there."""
    folder, page = everything
    assert {*INVENTED} == {*BY_NAME}
    assert "Not measured" not in page
    assert page.count("Measured 2001-02-03 on invented, 3 cores, Python 3.99.") >= 9
    named = re.findall(r"!\[[^\]]+\]\((performance/[^)]+)\)", page)
    assert named
    for name in named:
        assert (folder / "docs" / name).read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("title", "row"),
    [
        ("Filter over HTTP", "| 5,000 | 1.00 | 1.50 / 2.00 / 3.00 | 1.50 |"),
        ("One decision", "| choose | 22.0 |"),
        ("A review by the webhook", "| denied | 4,000 | 1.00 | 1.50 / 2.00 / 3.00 |"),
        ("The device plugin", "| Allocate | 1.50 / 2.00 / 3.00 | 1.50 |"),
        ("The exporter", "| bare registry | 1.00 / 1.00 / 1.00 |"),
        ("Packing", "| mine | 96.25 | 95.00 | - | 97.00 | 97.50 |"),
        ("Packing", "| frag | 95 | 90.00 | 1.00 |"),
        ("Packing through a real kube-scheduler", "| frag | 100 | 96.00 | 95.00 |"),
        ("Packing through a real kube-scheduler", "| best-fit | 100 | 94.00 | - |"),
        ("A burst of pods", "| bare: one way | 100.0 | 99, 100, 101 | 0.95 | 2.00 |"),
        ("A burst of pods", "| speed, x of without extender | 0.95 | ≥ 0.90 |"),
        ("A burst of pods", "| etcd | 0.50 | 0.50 |"),
        ("A large cluster", "| ready, seconds after the start | 10.00 | ≤ 20 |"),
        ("A large cluster", "| an echo of the same names | 1.00 |  |"),
        ("A large cluster", "| maximum, ms | 4.00 | < 1,000 |"),
        ("A large cluster", "| /metrics, MiB | - |  |"),
        ("A large cluster", "| seconds without placement, pair killed | 17.00 |  |"),
        ("Soak", "| kill -9 | extender 3, kube-scheduler 2 |"),
    ],
)
def test_figures_beside_their_limits(
    title: str, row: str, everything: tuple[Path, str]
) -> None:
    assert row in section(everything[1], title)


def test_the_same_figures_draw_the_same_bytes(
    everything: tuple[Path, str], tmp_path: Path
) -> None:
    """So that a page drawn again shows no change where there is none."""
    folder, _ = everything
    drawn(tmp_path, INVENTED)
    for one in (folder / "docs").rglob("*.*"):
        other = tmp_path / one.relative_to(folder)
        assert one.read_bytes() == other.read_bytes()


def test_results_that_nobody_knows(tmp_path: Path) -> None:
    """They are laid out as they are."""
    page = drawn(tmp_path, {"new.json": {"at": "x", "a": {"b": 1.5}, "c": [1, 2]}})
    assert "| a.b | 1.500 |\n| c | 2 entries |" in section(page, "`new`")


def test_numbers() -> None:
    """What is not known is a dash, and never a zero."""
    assert [number(each) for each in (None, 0, 1234, 0.5, True, "x")] == [
        "-",
        "0",
        "1,234",
        "0.50",
        "yes",
        "x",
    ]
    assert flat({"a": None}).rows == (("a", "-"),)
