"""The options of ``gpusharectl simulate``: declared, parsed and completed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from gpushare.domain.policies import POLICIES, Choice
from gpushare.domain.refusal import users_words
from gpusharectl.completion import node_names
from gpusharectl.simulate import synthetic
from gpusharectl.simulate.live import LiveError, MorePods
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
    """Complete the names of pod lists in the folder given before, and ``all``."""
    folder = context.params.get("trace_dir")
    known = pod_lists(Path(folder)) if folder else []
    return [CompletionItem(one) for one in (*known, ALL) if one.startswith(begun)]


def policy_names(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Complete policies, one or several with commas between them."""
    done, comma, last = begun.rpartition(",")
    before = done + comma
    taken = done.split(",")
    names = [name for name in POLICIES if name.startswith(last) and name not in taken]
    return [CompletionItem(before + name) for name in names]


def read_policies(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[str, ...]:
    """Parse names of policies with commas between them."""
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
) -> tuple[synthetic.PodSpec, ...]:
    """Parse the sizes of pods to count room for."""
    try:
        return tuple(map(read_size, texts))
    except SizeError as error:
        raise click.BadParameter(str(error)) from error


def read_further(
    _context: click.Context, _parameter: click.Parameter, texts: Sequence[str]
) -> tuple[MorePods, ...]:
    """Parse how many more pods come, of which controllers."""
    try:
        return tuple(map(MorePods, texts))
    except LiveError as error:
        raise click.BadParameter(str(error)) from error


def read_added(
    _context: click.Context, _parameter: click.Parameter, texts: Sequence[str]
) -> dict[str, int]:
    """Parse ``node-1=2``: two more nodes like node-1; a name alone is one more."""
    found: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        counts = number.isdecimal() and len(number) <= _MOST_NODES_DIGITS
        each = int(number) if counts else 0 if equals else 1
        if not name or not each:
            told = users_words(text)
            raise click.BadParameter(
                f'"{told}" is not NODE or NODE=N, such as gpu-1=2, with N of 1 to 9999'
            )
        found[name] = found.get(name, 0) + each
    return found


def read_seeds(
    _context: click.Context, _parameter: click.Parameter, text: str
) -> tuple[int, ...]:
    """Parse ``42``, ``42,45`` or ``42-51``."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not _is_seed(first) or (dash and not _is_seed(last)):
            told = users_words(text)
            raise click.BadParameter(f'"{told}" is not a seed; give 42, or 42-51')
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
    """Check the picture's file before anything is played."""
    if text is None:
        return None
    try:
        check(Path(text))
    except PlotError as error:
        raise click.ClickException(str(error)) from error
    return Path(text)


def choices(plain: Choice, policy: str | None, compare: Sequence[str]) -> list[Choice]:
    """Return the policies to play: those compared, the one given, or the scenario's."""
    names = compare or ((policy,) if policy else (plain.default,))
    return [Choice(name, plain.card_order) for name in names]


def what_to_play(command: Command) -> Command:
    """Declare what is to be played."""
    return _all(
        command,
        click.argument(
            "scenario", required=False, type=click.Path(path_type=Path, dir_okay=False)
        ),
        click.option(
            "--live",
            is_flag=True,
            help="Begin with the running cluster; it is only read.",
        ),
        click.option(
            "--trace",
            type=click.Choice(["openb"]),
            help="Replay the public trace openb.",
        ),
        click.option(
            "--policy",
            type=click.Choice(list(POLICIES)),
            help="The policy; else the scenario's, or the running extender's.",
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
    """Declare the options of ``--live``."""
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
            help="With --live: drain NODE; its pods are placed on other nodes.",
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
            help="With --live: place all pods with cards again, oldest first.",
        ),
    )


def which_trace(command: Command) -> Command:
    """Declare the options of ``--trace``."""
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
            help="With --trace: a list of pods, or all of them; else the list default.",
        ),
        click.option(
            "--seeds",
            default="42",
            show_default=True,
            metavar="N-M",
            callback=read_seeds,
            help="With --trace: seeds of the order of arrival; the paper uses 42-51.",
        ),
    )


def _all(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
