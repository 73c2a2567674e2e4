"""Curves of one scenario under several policies, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpushare.kube import words
from gpusharectl.simulator.durations import stretch
from gpusharectl.simulator.fates import Moment
from gpusharectl.simulator.outcome import is_timed, thinned
from gpusharectl.simulator.plotting import check, legend_beside, save, styled, subplots
from gpusharectl.simulator.report import Report

_HOUR_S = 3600


def plot_report(report: Report, path: Path) -> None:
    """Draw the allotted share and fragmentation over the load that has come.

    Over time where the scenario has any. Raises ``PlotError``.
    """
    check(path)
    save(picture(report), path)


def picture(report: Report) -> Any:  # noqa: ANN401
    """Give the picture as matplotlib's figure; ``PlotError`` where that is missing."""
    figure, (above, below) = subplots(2, shared=True, heights=(3, 2))
    timed = is_timed(report.scenario)
    for number, run in enumerate(report.runs):
        look = styled(number, run.policy)
        moments = thinned(run.played.moments)
        allotted = [moment.allotted for moment in moments]
        fragmented = [moment.fragmented for moment in moments]
        if timed:
            # Between two moments nothing comes and nothing goes.
            look["drawstyle"] = "steps-post"
        above.plot(*_curve(moments, allotted, timed=timed), **look)
        below.plot(*_curve(moments, fragmented, timed=timed), **look)
    above.set_ylabel("allotted, % of all units")
    below.set_ylabel("fragmentation,\n% of the free units")
    below.set_xlabel("time, hours" if timed else "load that has come, % of all units")
    above.set_title(_title(report), fontsize="medium")
    legend_beside(figure, above)
    for axes in (above, below):
        axes.set_ylim(0, 102)
        axes.grid(visible=True, linewidth=0.3)
    return figure


def _curve(
    moments: Sequence[Moment], values: Sequence[float | None], *, timed: bool
) -> tuple[list[float], list[float]]:
    """Give both axes of a curve; moments of which nobody knows it are left out."""
    across, up = [], []
    for moment, value in zip(moments, values, strict=True):
        load = None if moment.load is None else 100 * moment.load
        along = moment.at_s / _HOUR_S if timed else load
        if value is not None and along is not None:
            across.append(along)
            up.append(100 * value)
    return across, up


def _title(report: Report) -> str:
    timed = is_timed(report.scenario)
    length = f", {stretch(report.scenario.steps[-1].at_s)}" if timed else ""
    nodes = words.counted(report.nodes, "node")
    cards = words.counted(report.cards, "card")
    return f"{report.scenario.name}: {nodes}, {cards}{length}"
