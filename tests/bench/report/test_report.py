"""The page about speed: each figure beside its limit, none without a result."""

import json
import re
from pathlib import Path
from typing import Any

from bench.report.__main__ import PAGE, PARTS, RESULTS, draw
from bench.report.page import flat, number


def drawn(folder: Path, results: dict[str, Any]) -> str:
    """Write these results, draw the page from them, and read it."""
    for name, found in results.items():
        (folder / name).write_text(json.dumps(found))
    page = folder / "docs" / "performance.md"
    draw(folder, page)
    return page.read_text()


def section(page: str, title: str) -> str:
    return page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_page_in_docs_is_drawn_from_the_results(tmp_path: Path) -> None:
    """Each picture that it names is there."""
    page = tmp_path / "performance.md"
    draw(RESULTS, page)
    assert page.read_text() == PAGE.read_text()
    assert "Not measured" not in page.read_text()
    named = re.findall(r"!\[[^\]]+\]\((performance/[^)]+)\)", page.read_text())
    assert named
    for name in named:
        assert (tmp_path / name).read_text().startswith("<?xml")
        assert (PAGE.parent / name).exists()


def test_nothing_measured(tmp_path: Path) -> None:
    """Every section is there, and says what would fill it."""
    page = drawn(tmp_path, {})
    for part in PARTS:
        said = section(page, part.title)
        assert said.startswith(f"Not measured: `{part.by}` writes")
    assert not (tmp_path / "docs" / "performance").exists()


def test_results_that_nobody_knows(tmp_path: Path) -> None:
    """They are laid out as they are; what is not known is a dash, and never a zero."""
    page = drawn(tmp_path, {"new.json": {"at": "x", "a": {"b": 1.5}, "c": [1, 2]}})
    assert "| a.b | 1.500 |\n| c | 2 entries |" in section(page, "`new`")
    values = (None, 0, 1234, 0.5, True, "x")
    assert list(map(number, values)) == ["-", "0", "1,234", "0.50", "yes", "x"]
    assert flat({"a": None}).rows == (("a", "-"),)


def test_a_figure_that_misses_its_goal_says_why(tmp_path: Path) -> None:
    """One that meets it says nothing."""
    results = {
        name: json.loads((RESULTS / name).read_text())
        for name in ("burst.json", "scale.json")
    }
    slow, late = results["burst.json"], results["scale.json"]
    slow["ratio"] |= {"bare": 0.5, "go": 0.5}
    late["start"]["ready_s"] = 40
    late["filter"]["ratio"] = 1.5
    page = drawn(tmp_path, results)
    assert "The speed misses its goal. `go`" in page
    assert "The start misses its goal; the runs took" in page
    assert "Filter misses its goal" in page
    slow["ratio"] |= {"bare": 0.95, "go": 0.95}
    late["start"]["ready_s"] = 10
    late["filter"]["ratio"] = 1.05
    assert "misses its goal" not in drawn(tmp_path, results)


def test_packing_without_frag(tmp_path: Path) -> None:
    """Its goals are dashes, and what was measured is drawn."""
    packing = json.loads((RESULTS / "packing.json").read_text())
    for one in packing["lists"].values():
        del one["policies"]["frag"]
    said = section(drawn(tmp_path, {"packing.json": packing}), "Packing")
    assert "| frag, mean of a decision on the slowest list, ms | - | ≤ 0.50 |" in said
    assert re.search(r"^\| default \| .* \| ≥ 96.17 \|$", said, re.MULTILINE)


def test_an_extender_that_does_nothing_shows_what_any_costs(tmp_path: Path) -> None:
    """The one in Go where it was measured; its goal counts as well as the other."""
    burst = json.loads((RESULTS / "burst.json").read_text())
    burst["ways"]["go"] = burst["ways"]["echo"]
    burst["ratio"] |= {"bare": 0.6, "go": 0.84}
    said = section(drawn(tmp_path, {"burst.json": burst}), "A burst of pods")
    assert "The speed misses its goal. `go`" in said
    assert "| speed, x of the extender in Go | 0.84 | ≥ 0.85 |" in said
    burst["ratio"]["go"] = 0.85
    assert "misses its goal" not in drawn(tmp_path, {"burst.json": burst})
