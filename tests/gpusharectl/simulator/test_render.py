"""Scenarios give what they expect, and screens what ``screens/simulate-*.txt`` has."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from gpushare.domain.policies import PolicyChoice
from gpusharectl.simulator.render import draw_report
from gpusharectl.simulator.result import (
    SimulationReport,
    make_report,
    read_size,
    run_policy,
)
from gpusharectl.simulator.scenario import Arrive, Drain, Scenario, ScenarioStep
from gpusharectl.simulator.scenario_file import read_scenario
from tests.gpusharectl.golden import assert_as_kept, drawn
from tests.gpusharectl.simulator.building import come, node, pod, scenario, told

FILES = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_a_scenario_comes_out_as_expected(file: Path) -> None:
    scenario = read_scenario(file.read_text(), file.name)
    assert scenario.expected
    assert run_policy(scenario, scenario.choice).wrong == ()


SEEDS = """
name: seed 001
nodes:
- {name: node-1, cards: 1x24259MiB, model: RTX 3090}
- {name: node-2, cards: 2x7611MiB, model: Tesla P4}
pods:
- {name: app, count: 2, units: 45}
- {name: small, units: 4}
- {name: cuda, count: 3, units: 20}
- {name: big, units: 30, cpu: 500m}
- {name: two, cores: 200}
- {name: job, count: 4, units: 20, at: 1h, every: 10m, lasts: 2h}
events:
- {at: 3h, delete: small}
"""


def report(
    of: Scenario, *policies: str, room: tuple[str, ...] = ()
) -> SimulationReport:
    sizes = [read_size(text) for text in room]
    under = policies or (of.choice.default,)
    return make_report(
        of, [run_policy(of, PolicyChoice(policy), sizes) for policy in under]
    )


def plain() -> SimulationReport:
    return report(scenario([node("n", 29, 29)], ScenarioStep(0, come("a", units=9)[0])))


def seeds() -> SimulationReport:
    return report(told(SEEDS), room=("9", "cards=1"))


def compared() -> SimulationReport:
    """Spread leaves no card untouched for the pod that wants a whole one."""
    steps = [ScenarioStep(0, one) for one in come("a", "b", "c", units=5)]
    steps.append(ScenarioStep(0, Arrive(pod("whole", 0, 100))))
    return report(
        scenario([node("n", 29, 29), node("m", 29)], *steps),
        *("first-fit", "best-fit", "spread"),
        room=("20", "units=2,cpu=1"),
    )


def drained() -> SimulationReport:
    steps = [*come("a", "b", units=20), Drain("node-2")]
    nodes = [node("node-1"), node("node-2")]
    of = scenario(nodes, *(ScenarioStep(0, one) for one in steps))
    return report(replace(of, remarks=("The policy is the extender's: first-fit.",)))


def crowd() -> SimulationReport:
    """More kinds than a screen is for, and names longer than their column."""
    steps = [
        ScenarioStep(0, one)
        for number in range(9)
        for one in come(f"pod-{number}-" + "x" * 40, f"q-{number}", units=30 + number)
    ]
    return report(scenario([node()], *steps))


def unexpected() -> SimulationReport:
    text = SEEDS + "expect: {placed: 99, pods: {app-1: node-2, two: node-2 card 0}}\n"
    return report(told(text))


def met() -> SimulationReport:
    text = (
        SEEDS + "expect: {placed: 5, refused: 7, pods: {app-1: node-1, two: nowhere}}\n"
    )
    return report(told(text), "frag", "first-fit")


def impossible() -> SimulationReport:
    steps = [ScenarioStep(0, Arrive(pod("odd", cores=150)))]
    return report(scenario([], *steps))


def nothing() -> SimulationReport:
    return report(scenario([node()]))


def room() -> SimulationReport:
    """Nobody comes; the needs is how many more would fit."""
    return report(scenario([node("n", 29, 29)]), room=("9", "units=2,cores=50"))


SCREENS = (
    *(plain, seeds, compared, drained, crowd, unexpected, met),
    *(impossible, nothing, room),
)


@pytest.mark.parametrize("state", SCREENS, ids=lambda one: one.__name__)
def test_each_state_has_its_screen(state: Callable[[], SimulationReport]) -> None:
    """At 80 columns without colour all is there; colour only adds."""
    step = "gpusharectl simulate office.yaml --compare first-fit,frag"
    draw = partial(draw_report, report=state(), next_step=step)
    found = drawn(draw)
    assert [line for line in found.splitlines() if len(line) > 80] == []
    assert_as_kept(f"simulate-{state.__name__}", found)
    page = io.StringIO()
    draw(Console(file=page, width=80, force_terminal=True, color_system="standard"))
    stripped = re.sub(r"\x1b\[[\d;]*m", "", page.getvalue())
    assert stripped != page.getvalue()
    assert [line.rstrip() for line in stripped.splitlines()] == found.splitlines()


def test_nobodys_words_command_the_terminal() -> None:
    """A live cluster's names and labels may be anybody's."""
    of = scenario([node()], ScenarioStep(0, come("a", units=30)[0]))
    found = drawn(partial(draw_report, report=report(replace(of, name="x\x1b[2J"))))
    assert "\x1b" not in found


POLICIES = ("first-fit", "best-fit", "spread", "frag")
ROOM = "units=20,cores=10,cpu=4,memory=8Gi,model=T4"
WIDTHS = (10, 30, 40, 60, 80, 120)


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
