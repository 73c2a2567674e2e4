"""``gpusharectl simulate``: what would happen with other nodes, pods or policies.

Exit codes:

====  ==================================================================
0     it was played, and has the result that the scenario expects, if any
1     it could not be played; a sentence says why
2     the command line is not understood
3     the result differs from the scenario's ``expect``
====  ==================================================================
"""

import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gpushare.domain.policies import Choice
from gpushare.kube.errors import ClusterError, Forbidden
from gpushare.yaml_file import YamlError, read_bytes
from gpusharectl.access import access_options, reach
from gpusharectl.output import give
from gpusharectl.simulate import synthetic
from gpusharectl.simulate.cluster import SimulatedCluster
from gpusharectl.simulate.engine import OnStep, play
from gpusharectl.simulate.live import (
    LiveError,
    MorePods,
    WhatIf,
    read_live,
    without_rights,
)
from gpusharectl.simulate.openb import FOLDER_VARIABLE, SOURCE, pod_lists
from gpusharectl.simulate.openb_replay import (
    Replay,
    Wanted,
    draw_replays,
    plot_replays,
    replay_data,
    replays,
    replays_csv,
)
from gpusharectl.simulate.options import (
    ALL,
    choices,
    read_plot,
    what_if,
    what_to_play,
    which_trace,
)
from gpusharectl.simulate.plot import PlotError, plot_report
from gpusharectl.simulate.render import draw_report
from gpusharectl.simulate.result import Report, Room, Run, reported, rooms, summed
from gpusharectl.simulate.scenario import Scenario
from gpusharectl.simulate.scenario_file import read_scenario
from gpusharectl.simulate.serialize import report_csv, report_data

_MOST_FILE_MIB = 64


def _from_file(path: Path) -> Scenario:
    try:
        return read_scenario(read_bytes(path, _MOST_FILE_MIB), str(path))
    except YamlError as error:
        raise click.ClickException(str(error)) from error


def _from_cluster(
    kubeconfig: str | None,
    context: str | None,
    what: WhatIf,
    more: Sequence[MorePods],
) -> Scenario:
    # The reads themselves show which rights are missing.
    access = reach(kubeconfig, context, needs=())
    try:
        return read_live(access, what, more, access.objects.host)
    except LiveError as error:
        raise click.ClickException(str(error)) from error
    except Forbidden as error:
        gets = [(one.resource, one.ref) for one in more]
        raise click.ClickException(without_rights(access, gets, error)) from error
    except ClusterError as error:
        raise click.ClickException(f"{access.objects.host}: {error}") from error
    finally:
        access.close()


_LONG = 500
"""Steps below which a run ends before anybody could see a progress bar."""
_EVERY = 20

Began = Callable[[str], OnStep]
"""Called with the name of a run; returns what to call after each step."""


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


def run(
    scenario: Scenario,
    choice: Choice,
    sizes: Sequence[synthetic.PodSpec] = (),
    began: Callable[[str], OnStep] = lambda _name: lambda _done, _total: None,
) -> Run:
    """Play it under one policy, and count how many more of each size fit at the end."""
    found: list[Room] = []

    def count(cluster: SimulatedCluster) -> None:
        found.extend(rooms(cluster, sizes, began(f"{choice.default}, room for more")))

    played = play(scenario, choice, began(choice.default), at_end=count)
    return replace(summed(scenario, played), rooms=tuple(found))


_Shown = TypeVar("_Shown")
_OTHERWISE = 3
_CODES = (
    "Exit codes: 0 it was played, and the result is as the scenario expects; 1 it "
    "could not be played; 2 the command line is wrong; 3 the result differs from "
    "what the scenario expects."
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """How to play it, and how to show it."""

    policy: str | None
    compare: tuple[str, ...]
    sizes: tuple[synthetic.PodSpec, ...]
    output: str
    plot: Path | None


@click.command(epilog=_CODES)
@what_to_play
@what_if
@which_trace
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml", "csv"]),
    default="table",
    show_default=True,
    help="Tables, all results as data, or the curves as CSV.",
)
@click.option(
    "--plot",
    metavar="FILE",
    callback=read_plot,
    help="Also draw the curves into FILE, .png or .svg; needs matplotlib.",
)
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
    sizes: tuple[synthetic.PodSpec, ...],
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
    _one_of(scenario, live=live, trace=trace)
    _fitting(context_, live=live, trace=trace)
    if policy and compare:
        raise click.UsageError("--policy is one, --compare several: give one of them")
    asked = _Asked(policy, compare, sizes, output, plot)
    if trace is not None:
        _replay(asked, trace_dir, lists, seeds)
        return
    if live:
        what = WhatIf(add, drain, (), afresh)
        played = _from_cluster(kubeconfig, context, what, more)
    else:
        played = _from_file(scenario or Path())
    report = _played(played, asked)
    _show(report, asked, _next_step(scenario, asked, played.choice))
    sys.exit(0 if report.as_expected else _OTHERWISE)


def _one_of(scenario: Path | None, *, live: bool, trace: str | None) -> None:
    if sum((scenario is not None, live, trace is not None)) != 1:
        raise click.UsageError(
            "give one of the three: a SCENARIO file, --live, or --trace openb"
        )


def _fitting(context: click.Context, *, live: bool, trace: str | None) -> None:
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


def _played(scenario: Scenario, asked: _Asked) -> Report:
    # The result reports what the cache logs.
    logging.getLogger("gpushare").addHandler(logging.NullHandler())
    under = choices(scenario.choice, asked.policy, asked.compare)
    with _progress(Console(stderr=True)) as began:
        runs = [run(scenario, choice, asked.sizes, began) for choice in under]
    return reported(scenario, runs)


def _replay(
    asked: _Asked, folder: str | None, lists: tuple[str, ...], seeds: tuple[int, ...]
) -> None:
    if folder is None:
        raise click.UsageError(
            f"give the folder of the trace by --trace-dir or ${FOLDER_VARIABLE}; "
            f"{SOURCE}"
        )
    place = Path(folder)
    names = tuple(pod_lists(place)) if ALL in lists else lists
    names = names or ("default",)
    under = tuple(choices(Choice(), asked.policy, asked.compare))
    try:
        with _progress(Console(stderr=True)) as began:
            found = list(replays(Wanted(place, names, seeds, under), began))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    _show_replays(found, asked)
    if asked.plot:
        _drawn(plot_replays, found, asked.plot)


def _show_replays(found: Sequence[Replay], asked: _Asked) -> None:
    if asked.output in ("json", "yaml"):
        give(replay_data(found), asked.output)
    elif asked.output == "csv":
        click.echo(replays_csv(found), nl=False)
    else:
        step = (
            "" if asked.compare else "--compare first-fit,frag, to see the difference"
        )
        draw_replays(Console(highlight=False), found, step)


def _show(report: Report, asked: _Asked, next_step: str) -> None:
    """Show the result, and then draw: the picture may fail to be written."""
    if asked.output in ("json", "yaml"):
        give(report_data(report), asked.output)
    elif asked.output == "csv":
        click.echo(report_csv(report.runs), nl=False)
    else:
        draw_report(Console(highlight=False), report, next_step)
    if asked.plot:
        _drawn(plot_report, report, asked.plot)


def _drawn(draw: Callable[[_Shown, Path], None], what: _Shown, path: Path) -> None:
    try:
        draw(what, path)
    except PlotError as error:
        raise click.ClickException(str(error)) from error


def _next_step(scenario: Path | None, asked: _Asked, plain: Choice) -> str:
    if asked.compare:
        return "" if asked.plot else "the curves: --plot curves.svg"
    own = asked.policy or plain.default
    against = f"--compare {own},{'first-fit' if own == 'frag' else 'frag'}"
    if scenario is not None:
        return f"gpusharectl simulate {shlex.quote(str(scenario))} {against}"
    # The other options belong to the question, so the command is not repeated.
    place = " in place of --policy" if asked.policy else ""
    return f"the same with {against}{place}, to see the difference"
