"""Pictures, by an extra that may be missing."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpusharectl.simulate.plot import PlotError, check, picture, plot_report
from gpusharectl.simulate.result import Report
from tests.gpusharectl.simulate.test_screens import compared, nothing, seeds


def curves(of: Report) -> list[Any]:
    """The lines of both panels."""
    return [line for axes in picture(of).axes for line in axes.lines]


def test_a_picture_names_the_policies(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curves.svg"
    plot_report(compared(), path)
    text = path.read_text()
    assert all(f"<!-- {name} -->" in text for name in ("first-fit", "spread"))
    assert "<!-- load that has come, % of all units -->" in text


def test_over_time_where_there_is_some(tmp_path: Path) -> None:
    """The same run gives the same file."""
    pytest.importorskip("matplotlib")
    for kind, begins in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        first, second = tmp_path / f"1{kind}", tmp_path / f"2{kind}"
        plot_report(seeds(), first)
        plot_report(seeds(), second)
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes().startswith(begins)
    assert "<!-- time, hours -->" in (tmp_path / "1.svg").read_text()


def test_complaints_come_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(PlotError, match=r"must end in .png or .svg"):
        check(tmp_path / "a.gif")
    with pytest.raises(PlotError, match="there is no folder"):
        check(tmp_path / "no" / "a.svg")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It says what is missing, how to get it, and what goes without it."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlotError, match=r"pip install 'gpushare\[plot\]'.*-o csv"):
        check(tmp_path / "a.svg")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    taken = tmp_path / "a.svg"
    taken.mkdir()
    with pytest.raises(PlotError, match="cannot be written: a folder has that name"):
        check(taken)
    (tmp_path / "b.svg").symlink_to(tmp_path / "no" / "b.svg")
    with pytest.raises(PlotError, match=r"cannot be written: .*No such file"):
        plot_report(nothing(), tmp_path / "b.svg")


@pytest.mark.parametrize("there", [False, True], ids=["new", "there"])
def test_a_file_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    """Asked of the file where there is one, of its folder otherwise."""
    asked: list[Path] = []
    monkeypatch.setattr(os, "access", lambda path, _: bool(asked.append(path)))
    path = tmp_path / "a.svg"
    if there:
        path.touch()
    with pytest.raises(PlotError, match="cannot be written: no right to"):
        check(path)
    assert asked == [path if there else tmp_path]


def test_endings_in_capitals(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_report(nothing(), tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")
    plot_report(nothing(), tmp_path / "a.SVG")
    assert "<dc:date>" not in (tmp_path / "a.SVG").read_text()


def test_over_time_a_share_stays_until_it_changes(tmp_path: Path) -> None:
    """Steps over time; over the load each moment is an arrival, so lines will do."""
    pytest.importorskip("matplotlib")
    over_time, over_load = curves(seeds()), curves(compared())
    assert {line.get_drawstyle() for line in over_time} == {"steps-post"}
    assert {line.get_drawstyle() for line in over_load} == {"default"}
    assert picture(seeds()).axes[0].get_title().startswith("seed 001: 2 nodes, 3 cards")
    assert picture(nothing()).axes[0].get_title() == "a scenario: 1 node, 1 card"


def test_the_legend_hides_no_curve(tmp_path: Path) -> None:
    """It stands beside the panels, for one low curve may be anywhere in them."""
    pytest.importorskip("matplotlib")
    figure = picture(compared())
    assert [axes.get_legend() for axes in figure.axes] == [None, None]
    (legend,) = figure.legends
    told = [text.get_text() for text in legend.get_texts()]
    assert told == ["first-fit", "best-fit", "spread"]
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)
