"""``gpusharectl simulate``: what would happen with other nodes, pods or policies."""

import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gpushare.kube.cluster import Json
from gpushare.yaml_file import YamlError, read_bytes
from gpusharectl.access import access_options, reached
from gpusharectl.output import open_console, print_data
from gpusharectl.simulator.engine import OnStep
from gpusharectl.simulator.links import has_links
from gpusharectl.simulator.live import MorePods, WhatIf, read_live
from gpusharectl.simulator.options import OPTIONS
from gpusharectl.simulator.render import draw_report
from gpusharectl.simulator.result import (
    NO_LINKS,
    NO_MOVES,
    Began,
    SimulationReport,
    make_report,
    report_csv,
    report_data,
    run_policy,
    split_variant,
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
    policy: str | None,
    compare: tuple[str, ...],
    sizes: tuple[Json, ...],
    add: dict[str, int],
    drain: tuple[str, ...],
    more: tuple[MorePods, ...],
    afresh: bool,
    output: str,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Play what would happen in a SCENARIO file or in the running cluster.

    Nodes and pods come and go, and the code of the extender decides about them. Nothing
    is written to the cluster. The result says which pods are placed, which are refused
    and why, and how full the cards get. docs/simulator.md describes the format of a
    scenario.
    """
    if live == (scenario is not None):
        raise click.UsageError("give one of the two: a SCENARIO file, or --live")
    if not live:
        _refuse_options_of_live(context_)
    if policy and compare:
        raise click.UsageError("--policy is one, --compare several: give one of them")
    try:
        if scenario is not None:
            text = read_bytes(scenario, _MOST_FILE_MIB)
            played = read_scenario(text, str(scenario))
        else:
            with reached(kubeconfig, context) as access:
                played = read_live(access, WhatIf(add, drain, (), afresh), more)
        report = _play(played, compare or (policy or played.choice.default,), sizes)
    except (NotPlayable, YamlError) as error:
        raise click.ClickException(str(error)) from error
    if output == "csv":
        click.echo(report_csv(report), nl=False)
    elif output == "table":
        step = "" if compare else _next_step(policy, played.choice.default, scenario)
        draw_report(open_console(), report, step)
    else:
        print_data(report_data(report), output)
    sys.exit(_OTHERWISE if any(run.wrong for run in report.runs) else 0)


def _refuse_options_of_live(context: click.Context) -> None:
    """Refuse options that would have no effect."""
    only_live = ("add", "drain", "more", "afresh", "kubeconfig", "context")
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is click.core.ParameterSource.COMMANDLINE
        if given and parameter.name in only_live:
            raise click.UsageError(f"{max(parameter.opts, key=len)} needs --live")


def _play(
    scenario: Scenario, names: Sequence[str], sizes: tuple[Json, ...]
) -> SimulationReport:
    """Play the scenario once for each name: a policy, and what is left out."""
    # The result reports what the cache logs.
    logging.getLogger("gpushare").addHandler(logging.NullHandler())
    _refuse_idle_variants(scenario, names)
    with _progress(Console(stderr=True)) as began:
        runs = []
        for name in names:
            choice, left_out = split_variant(name, scenario.choice)
            runs.append(run_policy(scenario, choice, sizes, began, without=left_out))
    return make_report(scenario, runs)


def _refuse_idle_variants(scenario: Scenario, names: Sequence[str]) -> None:
    """Refuse to leave out what is not there."""
    if not has_links(scenario) and any(NO_LINKS in name for name in names):
        raise NotPlayable(
            f"{NO_LINKS}: no node has links between its cards; a scenario gives them "
            "by the field links of a node"
        )
    if not scenario.moves and any(NO_MOVES in name for name in names):
        problem = "nobody moves pods here; a scenario has it by its field moves"
        raise NotPlayable(f"{NO_MOVES}: {problem}")


def _next_step(policy: str | None, plain: str, file: Path | None) -> str:
    first = policy or plain
    against = f"--compare {first},{'first-fit' if first == 'frag' else 'frag'}"
    if file is not None:
        return f"gpusharectl simulate {shlex.quote(str(file))} {against}"
    # The other options belong to the question, so the command is not repeated.
    place = " in place of --policy" if policy else ""
    return f"the same with {against}{place}, to see the difference"


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
