"""Figures side by side: whole at every width, whatever else has to give way."""

import io
import re

import pytest
from rich.console import Console

from gpusharectl.simulate.openb import Meter
from gpusharectl.simulate.openb_replay import Replay, draw_replays
from gpusharectl.simulate.render import Figures, draw_report, side_by_side
from tests.gpusharectl.golden import drawn
from tests.gpusharectl.simulate.building import come, node, scenario
from tests.gpusharectl.simulate.test_screens import report

POLICIES = ("first-fit", "best-fit", "spread", "frag")
ROOM = "units=20,cores=10,cpu=4,memory=8Gi,model=T4"
WIDTHS = (10, 30, 40, 60, 80, 120)
FIGURES = Figures(
    "",
    ("one", "another"),
    (("a label of many words", ("1", "22.2 %")), ("b", ("12345 of 12345", "0"))),
)


def screen(width: int, *, terminal: bool = False) -> str:
    """Four policies and a room's label longer than any other."""
    of = scenario([node()], *come("a", "b", units=20))
    found = report(of, *POLICIES, room=(ROOM, "3"))
    page = io.StringIO()
    console = Console(
        file=page,
        width=width,
        highlight=False,
        color_system=None,
        force_terminal=terminal,
    )
    draw_report(console, found)
    return page.getvalue()


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_figure_is_ever_cut(width: int, *, terminal: bool) -> None:
    """All policies and their figures are there, on a terminal and in a pipe."""
    found = screen(width, terminal=terminal)
    assert "\N{HORIZONTAL ELLIPSIS}" not in found
    table = found.partition("\n\n")[2].partition("\nNot placed")[0]
    assert all(re.search(rf" {policy}\b", table) for policy in POLICIES)
    assert table.count("1 of 2") == len(POLICIES)
    assert table.count("69.0 %") == 2 * len(POLICIES)
    if width >= 40:
        assert max(map(len, found.splitlines())) <= width
    lines = [line.split() for line in found.splitlines()]
    assert ([*POLICIES[:2]] in lines and [*POLICIES[2:]] in lines) == (width == 40)
    assert ([*POLICIES] in lines) == (width >= 60)


def test_labels_give_way_before_figures() -> None:
    def draw(console: Console) -> None:
        for table in side_by_side(FIGURES, 41):
            console.print(table)

    assert drawn(draw, width=41).splitlines() == [
        "                             one  another",
        "a label of many                1   22.2 %",
        "words",
        "b                 12345 of 12345        0",
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_replays_keep_their_figures_too(width: int) -> None:
    meter = Meter(1000)
    meter.arrived(1000, placed=True)
    meter.arrived(300, placed=False)
    found = [
        Replay("multigpu50", name, (42,), (meter,), (10701,), (10771,))
        for name in POLICIES
    ]
    told = drawn(lambda console: draw_replays(console, found, ""), width=width)
    table = told.partition("42.")[2]
    assert "\N{HORIZONTAL ELLIPSIS}" not in told
    assert table.count("100.00 %") == 2 * len(POLICIES)
    assert table.count("10701 of 10771") == len(POLICIES)
    assert all(table.count(name) for name in POLICIES)
