"""The door to matplotlib, which is an extra: without it all else works."""

from pathlib import Path
from typing import Any

_KINDS = (".png", ".svg")
_MISSING = (
    "--plot needs matplotlib, which is not installed; install it by "
    "pip install 'gpushare[plot]', or take -o csv to a program of your own"
)
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, which people with any eyes can tell apart."""
_STYLES = ("-", "--", "-.", ":")


class PlotError(ValueError):
    """No picture can be made; the message says why, and what to do."""


def check(path: Path) -> None:
    """Raise ``PlotError`` where nothing could be drawn: before a long run."""
    if path.suffix not in _KINDS:
        raise PlotError(f"--plot {path}: the name must end in {' or '.join(_KINDS)}")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"--plot {path}: there is no folder {path.absolute().parent}")
    _figure()


def subplots(
    path: Path,
    rows: int,
    *,
    shared: bool = False,
    heights: tuple[int, ...] | None = None,
) -> tuple[Any, list[Any]]:
    """Give a new picture and its panels, one below the other; ``PlotError``."""
    check(path)
    figure = _figure()(figsize=(8, 5 if shared else 4 * rows), layout="constrained")
    found = figure.subplots(
        rows, 1, sharex=shared, squeeze=False, height_ratios=heights
    )
    return figure, [row[0] for row in found]


def styled(number: int, label: str) -> dict[str, Any]:
    """Give the look of the curve of this number; told apart without colour, too."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _STYLES[number % len(_STYLES)],
        "label": label,
    }


def save(figure: Any, path: Path) -> None:  # noqa: ANN401
    """Write the picture; the same run gives the same file. ``PlotError``."""
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    try:
        figure.savefig(path, dpi=120, metadata=metadata)
    except OSError as error:
        raise PlotError(f"--plot {path}: cannot be written: {error}") from error


def _figure() -> Any:  # noqa: ANN401
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise PlotError(_MISSING) from error
    return Figure
