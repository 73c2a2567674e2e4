"""Pictures, by an extra that may be missing."""

import sys
from pathlib import Path

import pytest

from gpusharectl.simulator.plot import plot_report
from gpusharectl.simulator.plotting import PlotError, check
from tests.gpusharectl.simulator.test_screens import compared, nothing, seeds


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
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    plot_report(seeds(), first)
    plot_report(seeds(), second)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"\x89PNG")
    over_time = tmp_path / "a.svg"
    plot_report(seeds(), over_time)
    assert "<!-- time, hours -->" in over_time.read_text()


def test_of_nothing_there_is_an_empty_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_report(nothing(), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size


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
    with pytest.raises(PlotError, match="cannot be written"):
        plot_report(nothing(), taken)
