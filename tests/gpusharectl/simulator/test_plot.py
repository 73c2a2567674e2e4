"""Pictures, by an extra that may be missing."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpusharectl.simulator.engine import UNUSABLE
from gpusharectl.simulator.plot import check, nvlinked_over, picture, plot_report
from gpusharectl.simulator.result import Report
from gpusharectl.simulator.scenario import NotPlayable
from tests.gpusharectl.simulator.building import told
from tests.gpusharectl.simulator.test_links import linked_nodes
from tests.gpusharectl.simulator.test_moves import with_and_without_moves
from tests.gpusharectl.simulator.test_render import compared, nothing, report, seeds


def curves(of: Report) -> list[Any]:
    """The lines of both panels."""
    return [line for axes in picture(of).axes for line in axes.lines]


def test_the_same_run_gives_the_same_file(tmp_path: Path) -> None:
    """Over time where there is some."""
    of = seeds()
    for kind, begins in ((".PNG", b"\x89PNG"), (".SVG", b"<?xml")):
        first, second = tmp_path / f"1{kind}", tmp_path / f"2{kind}"
        plot_report(of, first)
        plot_report(of, second)
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes().startswith(begins)
    assert "<!-- time, hours -->" in (tmp_path / "1.SVG").read_text()


def test_complaints_come_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, words: str) -> None:
        with pytest.raises(NotPlayable, match=words):
            check(path)

    path = tmp_path / "a.svg"
    refused(tmp_path / "a.gif", r"must end in .png or .svg")
    refused(tmp_path / "no" / "a.svg", "there is no folder")
    (tmp_path / "b.svg").mkdir()
    refused(tmp_path / "b.svg", "cannot be written: a folder has that name")
    asked: list[Path] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, _: bool(asked.append(path)))
        refused(path, "cannot be written: no right to")
        path.touch()
        refused(path, "cannot be written: no right to")
    assert asked == [tmp_path, path]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused(path, r"pip install '\.\[plot\]'.*-o csv")


def test_over_time_a_share_stays_until_it_changes() -> None:
    """Steps over time; over the load each moment is an arrival, so lines will do."""
    over_time, over_load = curves(seeds()), curves(compared())
    assert {line.get_drawstyle() for line in over_time} == {"steps-post"}
    assert {line.get_drawstyle() for line in over_load} == {"default"}
    assert picture(seeds()).axes[0].get_title().startswith("seed 001: 2 nodes, 3 cards")
    assert picture(nothing()).axes[0].get_title() == "a scenario: 1 node, 1 card"


def test_the_legend_hides_no_curve() -> None:
    """It stands beside the panels, for one low curve may be anywhere in them."""
    figure = picture(compared())
    assert [axes.get_legend() for axes in figure.axes] == [None, None]
    assert figure.axes[1].get_xlabel() == "requested so far, % of the cards' memory"
    assert " ".join(figure.axes[1].get_ylabel().split()) == f"{UNUSABLE}, %"
    (legend,) = figure.legends
    told = [text.get_text() for text in legend.get_texts()]
    assert told == ["first-fit", "best-fit", "spread"]
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)


def test_links_have_a_panel_where_they_are_known() -> None:
    """The share of the running pods that have NVLink between all their cards."""
    assert len(picture(seeds()).axes) == 2
    (*_, axes) = picture(linked_nodes()).axes
    used, unused = (list(line.get_ydata()) for line in axes.lines)
    assert [used[-1], unused[-1]] == [100.0, 50.0]


def test_moves_have_a_panel_of_the_pods_that_wait() -> None:
    (*others, axes) = picture(with_and_without_moves()).axes
    assert len(others) == 2
    assert axes.get_ylabel() == "pods that wait"
    made, none = (list(line.get_ydata()) for line in axes.lines)
    assert [made[-1], none[-1]] == [0, 1]


def test_only_running_pods_have_links() -> None:
    """A share is not known while no pod of several cards runs."""
    text = """
nodes: [{name: n, cards: 4x32GiB, links: nvlink-bridges}]
pods:
- {name: alone, cores: 100, lasts: 5h}
- {name: two, cores: 200, at: 1h, lasts: 2h}
- {name: three, cores: 300, at: 4h, lasts: 1h}
"""
    of = report(told(text))
    seconds = [3600.0 * hour for hour in (0, 1, 2.9, 3, 4)]
    shares = nvlinked_over(of, of.runs[0], seconds)
    assert shares == [None, 1.0, 1.0, None, 0.0]
