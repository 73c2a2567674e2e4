"""``gpusharectl simulate``: what would happen with other nodes, pods or policies."""

import logging
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gpushare.domain.policies import Choice
from gpushare.kube.cluster import Json
from gpushare.yaml_file import YamlError, read_bytes
from gpusharectl.access import access_options, reached
from gpusharectl.output import give, screen
from gpusharectl.simulator.engine import OnStep
from gpusharectl.simulator.links import has_links
from gpusharectl.simulator.live import MorePods, WhatIf, read_live
from gpusharectl.simulator.openb.replay import (
    draw_replays,
    plot_replays,
    replay_data,
    replays,
    replays_csv,
)
from gpusharectl.simulator.openb.trace import FOLDER_VARIABLE, SOURCE, pod_lists
from gpusharectl.simulator.options import ALL, OPTIONS
from gpusharectl.simulator.plot import plot_report
from gpusharectl.simulator.render import draw_report
from gpusharectl.simulator.result import (
    NO_LINKS,
    NO_MOVES,
    Began,
    report_csv,
    report_data,
    reported,
    run,
)
from gpusharectl.simulator.scenario import NotPlayable, Scenario
from gpusharectl.simulator.scenario_file import read_scenario

_MOST_FILE_MIB = 64
_OTHERWISE = 3
_CODES = (
    "Exit codes: 0 it was played, and the result is as the scenario expects; 1 it "
    "could not be played; 2 the command line is wrong; 3 the result differs from "
    "what the scenario expects."
)


@click.command(epilog=_CODES, params=OPTIONS)
@access_options
@click.pass_context
def simulate(  # noqa: PLR0913
    context_: click.Context,
    *,
    scenario: Path | None,
    live: bool,
    trace: str | None,
    policy: str | None,
    compare: tuple[str, ...],
    sizes: tuple[Json, ...],
    add: dict[str, int],
    drain: tuple[str, ...],
    more: tuple[MorePods, ...],
    afresh: bool,
    trace_dir: str | None,
    lists: tuple[str, ...],
    seeds: tuple[int, ...],
    output: str,
    plot: Path | None,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Play what would happen in a SCENARIO file, the running cluster or a trace.

    Nodes and pods come and go, and the code of the extender decides about them. Nothing
    is written to the cluster. The result says which pods are placed, which are refused
    and why, and how full the cards get. docs/simulator.md describes the format of a
    scenario.
    """
    if sum((scenario is not None, live, trace is not None)) != 1:
        raise click.UsageError(
            "give one of the three: a SCENARIO file, --live, or --trace openb"
        )
    _refuse_idle_options(context_, live=live, trace=trace)
    if policy and compare:
        raise click.UsageError("--policy is one, --compare several: give one of them")
    asked = _Asked(policy, compare, output, plot)
    try:
        if trace is not None:
            _replay(asked, trace_dir, lists, seeds)
        elif scenario is not None:
            text = read_bytes(scenario, _MOST_FILE_MIB)
            path = shlex.quote(str(scenario))
            _play(asked, read_scenario(text, str(scenario)), sizes, path)
        else:
            with reached(kubeconfig, context) as access:
                found = read_live(access, WhatIf(add, drain, (), afresh), more)
            _play(asked, found, sizes)
    except (NotPlayable, YamlError) as error:
        raise click.ClickException(str(error)) from error


def _refuse_idle_options(
    context: click.Context, *, live: bool, trace: str | None
) -> None:
    """Refuse options that would have no effect."""
    only_live = ("add", "drain", "more", "afresh", "kubeconfig", "context")
    only_trace = ("trace_dir", "lists", "seeds")
    for wrong, belongs, names in (
        (not live, "--live", only_live),
        (trace is None, "--trace", only_trace),
        (trace is not None, "a SCENARIO or --live", ("sizes",)),
    ):
        for parameter in context.command.params:
            source = context.get_parameter_source(parameter.name or "")
            given = source is click.core.ParameterSource.COMMANDLINE
            if wrong and given and parameter.name in names:
                option = max(parameter.opts, key=len)
                raise click.UsageError(f"{option} needs {belongs}")


_Shown = TypeVar("_Shown")
_Forms = tuple[
    Callable[[_Shown], object],
    Callable[[_Shown], str],
    Callable[[Console, _Shown, str], None],
    Callable[[_Shown, Path], None],
]
"""How a result becomes data, CSV, a screen and a picture."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """How to play it, and how to show it."""

    policy: str | None
    compare: tuple[str, ...]
    output: str
    plot: Path | None

    def under(self, plain: Choice) -> list[tuple[Choice, tuple[str, ...]]]:
        """Return the policies to play: those compared, the one given, or ``plain``.

        Beside each is what is left out: ``NO_LINKS``, ``NO_MOVES``.
        """
        names = self.compare or (self.policy or plain.default,)
        parts = (name.split("/") for name in names)
        return [
            (Choice(policy, plain.card_order), tuple(f"/{one}" for one in left_out))
            for policy, *left_out in parts
        ]

    def refuse_idle(self, *, links: str, moves: str) -> None:
        """Refuse to leave out what is not there; the texts say why, if it is not."""
        for left_out, why in ((NO_LINKS, links), (NO_MOVES, moves)):
            if why and any(left_out in name for name in self.compare):
                raise NotPlayable(f"{left_out}: {why}")

    def show(self, what: _Shown, forms: _Forms[_Shown], next_step: str) -> None:
        """Show the result, and then draw: the picture may fail to be written."""
        data, lines, draw, picture = forms
        if self.output in ("json", "yaml"):
            give(data(what), self.output)
        elif self.output == "csv":
            click.echo(lines(what), nl=False)
        else:
            draw(screen(), what, next_step)
        if self.plot:
            picture(what, self.plot)


def _play(
    asked: _Asked, scenario: Scenario, sizes: tuple[Json, ...], path: str = ""
) -> None:
    # The result reports what the cache logs.
    logging.getLogger("gpushare").addHandler(logging.NullHandler())
    under = asked.under(scenario.choice)
    asked.refuse_idle(
        links=""
        if has_links(scenario)
        else "no node has links between its cards; a scenario gives them by the field "
        "links of a node",
        moves=""
        if scenario.moves
        else "nobody moves pods here; a scenario has it by its field moves",
    )
    with _progress(Console(stderr=True)) as began:
        runs = [
            run(scenario, choice, sizes, began, without=left_out)
            for choice, left_out in under
        ]
    report = reported(scenario, runs)
    forms = (report_data, report_csv, draw_report, plot_report)
    asked.show(report, forms, _next_step(asked, scenario.choice.default, path))
    sys.exit(_OTHERWISE if any(run.wrong for run in report.runs) else 0)


def _next_step(asked: _Asked, plain: str, path: str) -> str:
    if asked.compare:
        return "" if asked.plot else "the curves: --plot curves.svg"
    own = asked.policy or plain
    against = f"--compare {own},{'first-fit' if own == 'frag' else 'frag'}"
    if path:
        return f"gpusharectl simulate {path} {against}"
    # The other options belong to the question, so the command is not repeated.
    place = " in place of --policy" if asked.policy else ""
    return f"the same with {against}{place}, to see the difference"


def _replay(
    asked: _Asked, folder: str | None, lists: tuple[str, ...], seeds: tuple[int, ...]
) -> None:
    if folder is None:
        raise click.UsageError(
            f"give the folder of the trace by --trace-dir or ${FOLDER_VARIABLE}; "
            f"{SOURCE}"
        )
    try:
        asked.refuse_idle(
            links="the trace has no links between cards",
            moves="no pod of the trace waits for room",
        )
    except NotPlayable as error:
        raise click.UsageError(str(error)) from error
    place, under = Path(folder), [choice for choice, _ in asked.under(Choice())]
    names = tuple(pod_lists(place)) if ALL in lists else lists
    with _progress(Console(stderr=True)) as began:
        found = list(replays(place, names or ("default",), seeds, under, began))
    step = "" if asked.compare else "--compare first-fit,frag, to see the difference"
    asked.show(found, (replay_data, replays_csv, draw_replays, plot_replays), step)


_LONG = 500
"""Steps below which a run ends before anybody could see a progress bar."""
_EVERY = 20


@contextmanager
def _progress(console: Console) -> Iterator[Began]:
    """Show a progress bar on a terminal, until the result is shown; else nothing."""
    if not console.is_terminal:
        yield lambda _name: lambda _done, _total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield lambda name: _teller(bar, name)


def _teller(bar: Progress, name: str) -> OnStep:
    task = bar.add_task(name, total=None, visible=False)

    def tell(done: int, total: int) -> None:
        if total >= _LONG and (done % _EVERY == 0 or done == total):
            bar.update(task, completed=done, total=total, visible=done < total)

    return tell
