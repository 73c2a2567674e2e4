"""``gpusharectl simulate``: what would happen with other nodes, pods or policies."""

import logging
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gpushare.domain.model import clean_text
from gpushare.domain.policies import POLICIES
from gpushare.kube.cluster import Json
from gpushare.yaml_file import YamlError, read_bytes
from gpusharectl.access import access_options, reached
from gpusharectl.completion import complete_nodes
from gpusharectl.output import open_console, print_data
from gpusharectl.simulator.engine import OnStep
from gpusharectl.simulator.live import MorePods, WhatIf, read_live
from gpusharectl.simulator.render import draw_report, report_csv, report_data
from gpusharectl.simulator.result import (
    NO_LINKS,
    NO_MOVES,
    Began,
    SimulationReport,
    has_links,
    make_report,
    read_size,
    run_policy,
    split_variant,
)
from gpusharectl.simulator.scenario import NotPlayable, Scenario
from gpusharectl.simulator.scenario_file import read_scenario

_MOST_NODES_DIGITS = 4


def complete_policies(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Complete policies, one or several with commas between them."""
    done, comma, last = begun.rpartition(",")
    before = done + comma
    taken = done.split(",")
    names = [name for name in POLICIES if name.startswith(last) and name not in taken]
    return [CompletionItem(before + name) for name in names]


Given = TypeVar("Given")


def parse_option(
    read: Callable[[Given], object],
) -> Callable[[click.Context, click.Parameter, Given], object]:
    """Return a callback of an option; ``read`` raises ``NotPlayable``."""

    def parse(_: click.Context, _parameter: click.Parameter, given: Given) -> object:
        try:
            return read(given)
        except NotPlayable as error:
            raise click.BadParameter(str(error)) from error

    return parse


def read_variants(text: str | None) -> tuple[str, ...]:
    """Parse ``frag,spread/no-links``: names of policies, and what is left out."""
    names = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    known = ", ".join(POLICIES)
    if text is not None and not names:
        raise NotPlayable(f'"{text}" names no policy; known are {known}')
    for name in names:
        policy, slash, off = name.partition("/")
        unknown = {f"/{part}" for part in off.split("/")} - {NO_LINKS, NO_MOVES}
        if policy not in POLICIES:
            raise NotPlayable(f'no policy "{policy}"; known are {known}')
        if slash and unknown:
            problem = f"only {NO_LINKS} and {NO_MOVES} can be behind a policy"
            raise NotPlayable(f'"{name}": {problem}')
    if len(set(names)) != len(names):
        raise NotPlayable(f'"{text}" names a policy twice')
    return names


def _read_added_nodes(texts: Sequence[str]) -> dict[str, int]:
    """Parse ``node-1=2``: two more nodes like node-1; a name alone is one more."""
    counts_by_node: Counter[str] = Counter()
    for text in texts:
        name, equals, number = text.partition("=")
        counts = number.isdecimal() and len(number) <= _MOST_NODES_DIGITS
        each = int(number) if counts else 0 if equals else 1
        if not name or not each:
            shown = clean_text(text)
            raise NotPlayable(
                f'"{shown}" is not NODE or NODE=N, such as gpu-1=2, with N of 1 to 9999'
            )
        counts_by_node[name] += each
    return dict(counts_by_node)


OPTIONS: list[click.Parameter] = [
    click.Argument(
        ["scenario"], required=False, type=click.Path(path_type=Path, dir_okay=False)
    ),
    click.Option(
        ["--live"],
        is_flag=True,
        help="Begin with the running cluster; it is only read.",
    ),
    click.Option(
        ["--policy"],
        type=click.Choice(list(POLICIES)),
        help="The policy; else the scenario's, or the running extender's.",
    ),
    click.Option(
        ["--compare"],
        metavar="POLICY,POLICY",
        callback=parse_option(read_variants),
        shell_complete=complete_policies,
        help="Play it under several policies, side by side; with /no-links behind a "
        "policy, without links between cards; with /no-moves, without moves.",
    ),
    click.Option(
        ["--room", "sizes"],
        multiple=True,
        metavar="SIZE",
        callback=parse_option(lambda texts: tuple(map(read_size, texts))),
        help="How many more fit at the end: 20 (units), or units=20,cores=10,"
        "cpu=4,memory=8Gi,model=T4, or cards=2. May be repeated.",
    ),
    click.Option(
        ["--add"],
        multiple=True,
        metavar="NODE=N",
        callback=parse_option(_read_added_nodes),
        shell_complete=complete_nodes,
        help="With --live: N more nodes like NODE.",
    ),
    click.Option(
        ["--drain"],
        multiple=True,
        metavar="NODE",
        shell_complete=complete_nodes,
        help="With --live: drain NODE; its pods are placed on other nodes.",
    ),
    click.Option(
        ["--more"],
        multiple=True,
        metavar="NAMESPACE/NAME=N",
        callback=parse_option(lambda texts: tuple(map(MorePods, texts))),
        help="With --live: N more pods of this Deployment; KIND/NAMESPACE/NAME=N "
        "for a StatefulSet, ReplicaSet, Job or Pod.",
    ),
    click.Option(
        ["--afresh"],
        is_flag=True,
        help="With --live: place all pods with cards again, oldest first.",
    ),
    click.Option(
        ["-o", "--output"],
        type=click.Choice(["table", "json", "yaml", "csv"]),
        default="table",
        show_default=True,
        help="Tables, all results as data, or the curves as CSV.",
    ),
]


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
    step = "" if compare else _next_step(policy, played.choice.default, scenario)
    _show(report, output, step)
    sys.exit(_OTHERWISE if any(run.wrong for run in report.runs) else 0)


def _show(report: SimulationReport, output: str, next_step: str) -> None:
    if output == "csv":
        click.echo(report_csv(report), nl=False)
    elif output == "table":
        draw_report(open_console(), report, next_step)
    else:
        print_data(report_data(report), output)


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
