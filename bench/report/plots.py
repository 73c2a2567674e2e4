"""The drawings, as SVG whose bytes hang on the figures alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
from matplotlib.figure import Figure

Points: TypeAlias = Sequence[tuple[float, float]]

# Okabe and Ito's: told apart by those who do not see red and green alike.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_SIZE = (7.2, 3.4)
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gpushare",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}


def lines(
    path: Path,
    series: Mapping[str, Points],
    across: str,
    up: str,
    limits: Mapping[str, float] | None = None,
) -> None:
    """Draw curves by name; ``limits`` are level lines, dashed."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        _curves(figure.subplots(), series, across, up, limits or {})
        _save(figure, path)


def panels(
    path: Path,
    shown: Mapping[str, tuple[Mapping[str, Points], Mapping[str, float]]],
    across: str,
    up: str,
) -> None:
    """Draw several sets of curves side by side, two in a row, each with its title."""
    with mpl.rc_context(_STYLE):
        rows = (len(shown) + 1) // 2
        figure = Figure(figsize=(9.0, 3.2 * rows), layout="constrained")
        axes = figure.subplots(rows, 2, squeeze=False).flat
        for axis, (title, (series, limits)) in zip(axes, shown.items(), strict=False):
            _curves(axis, series, across, up, limits)
            axis.set_title(title)
        for axis in list(axes):
            axis.set_visible(False)
        _save(figure, path)


def bars(
    path: Path, groups: Sequence[str], series: Mapping[str, Sequence[float]], up: str
) -> None:
    """Draw bars side by side: one group for each name, one colour for each series."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axis = figure.subplots()
        width = 0.8 / len(series)
        for place, (name, values) in enumerate(series.items()):
            at = [
                i + (place - (len(series) - 1) / 2) * width for i in range(len(values))
            ]
            drawn = axis.bar(at, values, width, label=name, color=COLOURS[place])
            axis.bar_label(drawn, fmt="%.3g", padding=2, fontsize=8)
        axis.set_xticks(range(len(groups)), groups)
        axis.set_ylabel(up)
        axis.grid(visible=False, axis="x")
        axis.legend()
        _save(figure, path)


def _curves(
    axis: Any,  # noqa: ANN401
    series: Mapping[str, Points],
    across: str,
    up: str,
    limits: Mapping[str, float],
) -> None:
    for colour, (name, points) in zip(COLOURS * 2, series.items(), strict=False):
        marker = "o" if len(points) < 20 else ""
        across_of, up_of = zip(*points, strict=True)
        axis.plot(across_of, up_of, marker=marker, ms=4, label=name, color=colour)
    for name, level in limits.items():
        axis.axhline(level, ls="--", lw=1, color="#777777")
        axis.annotate(
            name, (0.01, level), xycoords=("axes fraction", "data"), va="bottom"
        )
    axis.set_xlabel(across)
    axis.set_ylabel(up)
    axis.legend()


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
