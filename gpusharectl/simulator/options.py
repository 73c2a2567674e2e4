"""The options of ``gpusharectl simulate``: declared, parsed and completed."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from gpushare.domain.policies import POLICIES
from gpushare.domain.refusal import clean_text
from gpusharectl.completion import complete_nodes
from gpusharectl.simulator.live import MorePods
from gpusharectl.simulator.result import NO_LINKS, NO_MOVES, read_size
from gpusharectl.simulator.scenario import NotPlayable

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
