"""Screens and data kept as files in ``screens/``, and the one way to renew them.

``RENEW_SCREENS=1 pytest tests/gpusharectl/state tests/gpusharectl/why`` (or the test
that failed) writes them again; then read the difference as git shows it.
"""

import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson
from rich.console import Console

from gpusharectl.state.read import ClusterState
from gpusharectl.state.render import draw_overview
from gpusharectl.state.view import Overview, build_overview

SCREENS = Path(__file__).with_name("screens")


def drawn(draw: Callable[[Console], None], *, width: int = 80) -> str:
    """What a pipe of 80 columns gets; blanks at the ends of lines do not count."""
    page = io.StringIO()
    draw(Console(file=page, width=width, highlight=False, color_system=None))
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def draw_screen(seen: Overview | ClusterState, *, width: int = 80, **how: bool) -> str:
    """What inspect shows of a cluster."""
    if isinstance(seen, ClusterState):
        seen = build_overview(seen)
    return drawn(partial(draw_overview, seen=seen, **how), width=width)


def assert_data_as_kept(name: str, data: object) -> None:
    """Hold what ``-o json`` prints against the kept bytes."""
    text = orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
    assert_as_kept(f"data-{name}", f"{text}\n", ending="json")


def assert_as_kept(name: str, found: str, *, ending: str = "txt") -> None:
    """Hold a screen against the kept one."""
    kept = SCREENS / f"{name}.{ending}"
    if os.environ.get("RENEW_SCREENS"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(found, encoding="utf-8")
    assert found == kept.read_text(encoding="utf-8"), "see tests/gpusharectl/golden.py"
