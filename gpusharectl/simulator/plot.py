"""Draw the curves of one scenario under several policies as a picture.

matplotlib is an optional dependency; only this module imports it.
"""

import os
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.domain.links import NVLINK
from gpushare.kube import words
from gpusharectl.simulator.engine import UNUSABLE, Moment
from gpusharectl.simulator.links import pod_scores
from gpusharectl.simulator.result import Report, Run, thinned
from gpusharectl.simulator.scenario import NotPlayable, stretch

_KINDS = (".png", ".svg")
_MISSING = (
    "--plot needs matplotlib, which is not installed; install it by "
    "`pip install '.[plot]'` in a checkout, or take -o csv to a program of your own"
)
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The colours of Okabe and Ito, which colour-blind people can tell apart."""
_STYLES = ("-", "--", "-.", ":")


def check(path: Path) -> None:
    """Raise ``NotPlayable`` if nothing could be drawn: called before a long run."""
    if path.suffix.lower() not in _KINDS:
        raise NotPlayable(f"--plot {path}: the name must end in {' or '.join(_KINDS)}")
    if not path.absolute().parent.is_dir():
        raise NotPlayable(f"--plot {path}: there is no folder {path.absolute().parent}")
    if path.is_dir():
        raise _unwritten(path, "a folder has that name")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise _unwritten(path, "no right to")
    _figure()


def subplots(
    rows: int, *, shared: bool = False, heights: tuple[int, ...] | None = None
) -> tuple[Any, list[Any]]:
    """Return a new picture and its panels, one below the other; ``NotPlayable``."""
    figure = _figure()(figsize=(8, (2.5 if shared else 4) * rows), layout="constrained")
    found = figure.subplots(
        rows, 1, sharex=shared, squeeze=False, height_ratios=heights
    )
    return figure, [row[0] for row in found]


def styled(number: int, label: str) -> dict[str, Any]:
    """Return the style of a curve; styles differ without colour, too."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _STYLES[number % len(_STYLES)],
        "label": label,
    }


def save(figure: Any, path: Path) -> None:  # noqa: ANN401
    """Write the picture; the same run gives the same file. ``NotPlayable``."""
    from matplotlib import rc_context  # noqa: PLC0415 - an extra

    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        # Without it matplotlib gives the parts of an SVG random names.
        with rc_context({"svg.hashsalt": "gpushare"}):
            figure.savefig(path, dpi=120, metadata=metadata)
    except OSError as error:
        raise _unwritten(path, str(error)) from error


def _unwritten(path: Path, why: str) -> NotPlayable:
    return NotPlayable(f"--plot {path}: cannot be written: {why}")


def _figure() -> Any:  # noqa: ANN401
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotPlayable(_MISSING) from error
    return Figure


_TIMES = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
_FEWEST_TICKS = 2


def plot_report(report: Report, path: Path) -> None:
    """Draw what is allotted and what of the rest is of no use, over time.

    Over the load if the scenario has no times. Raises ``NotPlayable``.
    """
    check(path)
    save(picture(report), path)


def picture(report: Report) -> Any:  # noqa: ANN401
    """Return the picture as a matplotlib figure; ``NotPlayable`` if that is missing."""
    panels = tuple(_panels(report))
    heights = tuple(panel.height for panel in panels)
    figure, places = subplots(len(panels), shared=True, heights=heights)
    length_s = report.scenario.length_s
    unit, size_s = time_axis(max(run.played.moments[-1].at_s for run in report.runs))
    for number, run in enumerate(report.runs):
        look = styled(number, run.policy)
        moments = thinned(run.played.moments)
        if length_s:
            # Nothing changes between two moments.
            look["drawstyle"] = "steps-post"
            along = [moment.at_s / size_s for moment in moments]
        else:
            # Without units there is no share, so that no point is drawn.
            along = [100 * (moment.load or 0.0) for moment in moments]
        for panel, axes in zip(panels, places, strict=True):
            axes.plot(*_curve(along, panel.values(run, moments)), **look)
    for panel, axes in zip(panels, places, strict=True):
        axes.set_ylabel(panel.label)
        axes.grid(visible=True, linewidth=0.3)
        if panel.percent:
            axes.set_ylim(0, 102)
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.get_major_locator().set_params(integer=True)
    asked = "requested so far, % of the cards' memory"
    places[-1].set_xlabel(f"time, {unit}" if length_s else asked)
    places[0].set_title(_title(report), fontsize="medium")
    # Below the panels it hides no curve.
    if curves := [*places[0].lines]:
        figure.legend(handles=curves, loc="outside lower center", ncols=len(curves))
    return figure


@dataclass(frozen=True, slots=True)
class _Panel:
    """One panel of the picture; ``values`` of a run, None where nothing is known."""

    label: str
    height: int
    values: Callable[[Run, Sequence[Moment]], Sequence[float | None]]
    percent: bool = True


def _panels(report: Report) -> Iterator[_Panel]:
    """Yield the panels from above; those of links and of moves only where they are."""

    def allotted(_run: Run, moments: Sequence[Moment]) -> list[float | None]:
        return [_percent(moment.allotted) for moment in moments]

    def fragmented(_run: Run, moments: Sequence[Moment]) -> list[float | None]:
        return [_percent(moment.fragmented) for moment in moments]

    def nvlinked(run: Run, moments: Sequence[Moment]) -> list[float | None]:
        times_s = [moment.at_s for moment in moments]
        return [_percent(share) for share in nvlinked_over(report, run, times_s)]

    def waiting(_run: Run, moments: Sequence[Moment]) -> list[float | None]:
        return [moment.waiting for moment in moments]

    yield _Panel("allotted, % of the cards' memory", 3, allotted)
    yield _Panel(textwrap.fill(f"{UNUSABLE}, %", 24), 2, fragmented)
    if any(run.linked for run in report.runs):
        label = "NVLink between all cards,\n% of multi-card pods"
        yield _Panel(label, 3, nvlinked)
    if report.scenario.moves:
        yield _Panel("pods that wait", 2, waiting, percent=False)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _title(report: Report) -> str:
    nodes = words.counted(report.nodes, "node")
    cards = words.counted(report.cards, "card")
    length_s = report.scenario.length_s
    length = f", {stretch(length_s)}" if length_s else ""
    return f"{report.scenario.name}: {nodes}, {cards}{length}"


def nvlinked_over(
    report: Report, run: Run, times_s: Sequence[float]
) -> list[float | None]:
    """Return the share (0 to 1) of the running pods with NVLink between all cards.

    Of pods of several cards where links are known; None while none runs.
    """
    pods = [
        (result.placed_s or 0.0, result.left_s, min(scores) >= NVLINK)
        for result, scores in pod_scores(report.scenario, run.played.outcomes)
    ]
    shares: list[float | None] = []
    for at_s in times_s:
        running = [
            good
            for begin_s, end_s, good in pods
            if begin_s <= at_s and (end_s is None or at_s < end_s)
        ]
        shares.append(sum(running) / len(running) if running else None)
    return shares


def time_axis(length_s: float) -> tuple[str, int]:
    """Return the unit of an axis of this length, and its seconds.

    >>> time_axis(90), time_axis(3 * 3600), time_axis(0.5)
    (('seconds', 1), ('hours', 3600), ('seconds', 1))
    """
    fits = (one for one in _TIMES if length_s >= _FEWEST_TICKS * one[1])
    return next(fits, _TIMES[-1])


def _curve(
    along: Sequence[float], values: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    """Return x and y of a curve; values that are not known are left out."""
    points = zip(along, values, strict=True)
    known = [(x, value) for x, value in points if value is not None]
    return [x for x, _ in known], [y for _, y in known]
