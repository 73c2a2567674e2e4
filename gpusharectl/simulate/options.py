"""The options of ``simulate`` as values, with complaints that click shows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from gpushare.domain.policies import POLICIES, Choice
from gpushare.domain.refusal import users_words
from gpusharectl.completion import node_names
from gpusharectl.simulate import synthetic
from gpusharectl.simulate.live import Further, LiveError
from gpusharectl.simulate.openb import FOLDER_VARIABLE, pod_lists
from gpusharectl.simulate.plot import PlotError, check
from gpusharectl.simulate.result import SizeError, read_size

Command = TypeVar("Command", bound=Callable[..., Any])
ALL = "all"
_MOST_SEEDS = 100
_MOST_DIGITS = 9
_MOST_NODES_DIGITS = 4


def list_names(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer the pod lists of the folder that was named before, and all of them."""
    folder = context.params.get("trace_dir")
    known = pod_lists(Path(folder)) if folder else []
    return [CompletionItem(one) for one in (*known, ALL) if one.startswith(begun)]


def policy_names(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer policies, one or several with commas between them."""
    done, comma, last = begun.rpartition(",")
    before = done + comma
    taken = done.split(",")
    names = [name for name in POLICIES if name.startswith(last) and name not in taken]
    return [CompletionItem(before + name) for name in names]


def read_policies(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[str, ...]:
    """Read names of policies with commas between them."""
    names = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    if text is not None and not names:
        known = ", ".join(POLICIES)
        raise click.BadParameter(f'"{text}" names no policy; known are {known}')
    for name in names:
        if name not in POLICIES:
            known = ", ".join(POLICIES)
            raise click.BadParameter(f'no policy "{name}"; known are {known}')
    if len(set(names)) != len(names):
        raise click.BadParameter(f'"{text}" names a policy twice')
    return names


def read_sizes(
    _context: click.Context, _parameter: click.Parameter, texts: Sequence[str]
) -> tuple[synthetic.Asked, ...]:
    """Read the sizes of pods for which room is looked for."""
    try:
        return tuple(map(read_size, texts))
    except SizeError as error:
        raise click.BadParameter(str(error)) from error


def read_further(
    _context: click.Context, _parameter: click.Parameter, texts: Sequence[str]
) -> tuple[Further, ...]:
    """Read of which controllers how many more pods are to come."""
    try:
        return tuple(map(Further, texts))
    except LiveError as error:
        raise click.BadParameter(str(error)) from error


def read_added(
    _context: click.Context, _parameter: click.Parameter, texts: Sequence[str]
) -> dict[str, int]:
    """Read ``node-1=2``: two more nodes like node-1; a bare name is one more."""
    found: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        counts = number.isdecimal() and len(number) <= _MOST_NODES_DIGITS
        each = int(number) if counts else 0 if equals else 1
        if not name or not each:
            told = users_words(text)
            raise click.BadParameter(
                f'"{told}" is no NODE or NODE=N, such as gpu-1=2, with N of 1 to 9999'
            )
        found[name] = found.get(name, 0) + each
    return found


def read_seeds(
    _context: click.Context, _parameter: click.Parameter, text: str
) -> tuple[int, ...]:
    """Read ``42``, ``42,45`` or ``42-51``."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not _is_seed(first) or (dash and not _is_seed(last)):
            told = users_words(text)
            raise click.BadParameter(f'"{told}" is no seed; give 42, or 42-51')
        begin, end = int(first), int(last or first)
        if end < begin or end - begin >= _MOST_SEEDS:
            raise click.BadParameter(f'"{text}": give 1 to {_MOST_SEEDS} seeds')
        found += range(begin, end + 1)
    return tuple(dict.fromkeys(found))


def _is_seed(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def read_plot(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> Path | None:
    """Take the picture's file, and complain before anything is played."""
    if text is None:
        return None
    try:
        check(Path(text))
    except PlotError as error:
        raise click.ClickException(str(error)) from error
    return Path(text)


def choices(plain: Choice, policy: str | None, compare: Sequence[str]) -> list[Choice]:
    """Give what to play it under: the policies compared, or the one, or its own."""
    names = compare or ((policy,) if policy else (plain.default,))
    return [Choice(name, plain.card_order) for name in names]


def what_to_play(command: Command) -> Command:
    """Give a command the options that say what is to be played."""
    return _all(
        command,
        click.argument(
            "scenario", required=False, type=click.Path(path_type=Path, dir_okay=False)
        ),
        click.option("--live", is_flag=True, help="The running cluster; only read."),
        click.option(
            "--trace", type=click.Choice(["openb"]), help="The public trace openb."
        ),
        click.option(
            "--policy",
            type=click.Choice(list(POLICIES)),
            help="Else the scenario's, or the running extender's.",
        ),
        click.option(
            "--compare",
            metavar="POLICY,POLICY",
            callback=read_policies,
            shell_complete=policy_names,
            help="Play it under several policies, side by side.",
        ),
        click.option(
            "--room",
            "sizes",
            multiple=True,
            metavar="SIZE",
            callback=read_sizes,
            help="How many more fit at the end: 20 (units), or units=20,cores=10,"
            "cpu=4,memory=8Gi,model=T4, or cards=2. May be repeated.",
        ),
    )


def what_if(command: Command) -> Command:
    """Give a command the options that only ``--live`` has."""
    return _all(
        command,
        click.option(
            "--add",
            multiple=True,
            metavar="NODE=N",
            callback=read_added,
            shell_complete=node_names,
            help="With --live: N more nodes like NODE.",
        ),
        click.option(
            "--drain",
            multiple=True,
            metavar="NODE",
            shell_complete=node_names,
            help="With --live: NODE is drained; its pods go elsewhere.",
        ),
        click.option(
            "--more",
            multiple=True,
            metavar="NAMESPACE/NAME=N",
            callback=read_further,
            help="With --live: N more pods of this Deployment; KIND/NAMESPACE/NAME=N "
            "for a StatefulSet, ReplicaSet, Job or Pod.",
        ),
        click.option(
            "--afresh",
            is_flag=True,
            help="With --live: place all pods with cards anew, oldest first.",
        ),
    )


def which_trace(command: Command) -> Command:
    """Give a command the options that only ``--trace`` has."""
    return _all(
        command,
        click.option(
            "--trace-dir",
            metavar="FOLDER",
            envvar=FOLDER_VARIABLE,
            show_envvar=True,
            type=click.Path(file_okay=False),
            help="With --trace: where its files are.",
        ),
        click.option(
            "--list",
            "lists",
            multiple=True,
            metavar="NAME",
            shell_complete=list_names,
            help="With --trace: a list of pods, or all; else default.",
        ),
        click.option(
            "--seeds",
            default="42",
            show_default=True,
            metavar="N-M",
            callback=read_seeds,
            help="With --trace: the orders of arrival; the paper has 42-51.",
        ),
    )


def _all(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
