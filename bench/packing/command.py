"""``python -m bench packing``: the public trace replayed under each policy.

The trace is not ours to ship: see ``docs/performance.md`` for where it is.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import scipy
from rich.console import Console
from rich.table import Table

from bench.facts import RESULTS, machine_facts
from bench.packing.lists import MADE, read_list
from bench.packing.replay import POLICIES
from bench.packing.running import CHURN_LOADS, ReplayPool, published
from bench.packing.trace import (
    FOLDER_VARIABLE,
    SEEDS,
    TRACE_FOLDER,
    TraceError,
    pod_lists,
)

_CHURN_LIST = "default"
_CHURN_POLICIES = ("bestfit", "firstfit", "fgd", "frag")


@click.command("packing")
@click.option(
    "--lists",
    default="",
    help=f"Such as default,cpu200; else all files. Made: {', '.join(MADE)}.",
)
@click.option(
    "--seeds", default=len(SEEDS), show_default=True, help="How many, from 42."
)
@click.option("--policies", default=",".join(POLICIES), show_default=True)
@click.option(
    "--trace-dir",
    type=click.Path(path_type=Path),
    envvar=FOLDER_VARIABLE,
    default=TRACE_FOLDER,
    help=f"Where the trace's files are; {FOLDER_VARIABLE} may say it too.",
)
@click.option("--churn/--no-churn", default=True, help="Also with pods that end.")
@click.option("--add", is_flag=True, help="Keep the other results in the file.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=RESULTS / "packing.json"
)
def packing(  # noqa: PLR0913, PLR0917 - one parameter for each option
    lists: str,
    seeds: int,
    policies: str,
    trace_dir: Path,
    churn: bool,  # noqa: FBT001
    add: bool,  # noqa: FBT001
    output: Path,
) -> None:
    """Replay the public trace, and write what came out as JSON."""
    chosen = _known("--policies", policies, list(POLICIES))
    try:
        known = [*pod_lists(trace_dir), *MADE]
        named = _known("--lists", lists, known) if lists else []
        named = named or pod_lists(trace_dir) or ["default"]
        traces = {name: read_list(trace_dir, name) for name in named}
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    record = _Record(output, keep=add)
    for name, trace in traces.items():
        record.begin(name, len(trace.pods), len(trace.nodes), trace.capacity)
    numbers = range(SEEDS[0], SEEDS[0] + seeds)
    with ReplayPool(trace_dir, numbers) as running:
        for name in named:
            record.limits(name, running.limits(name))
            for policy in chosen:
                record.policy(name, policy, running.replays(name, policy))
            record.show(name)
        if churn and _CHURN_LIST in named:
            for policy in [name for name in _CHURN_POLICIES if name in chosen]:
                for load in CHURN_LOADS:
                    results = running.churn(_CHURN_LIST, policy, load)
                    record.churn(_CHURN_LIST, policy, load, results)
            record.show_churn()


class _Record:
    """The file of results, written after each step: a long run may be cut short."""

    def __init__(self, path: Path, *, keep: bool) -> None:
        self._path = path
        self._console = Console(width=100)
        self._results: dict[str, Any] = {"lists": {}, "churn": {}}
        if keep and path.is_file():
            self._results = json.loads(path.read_text())
        self._results |= machine_facts() | {"scipy": scipy.__version__}

    def begin(self, name: str, pods: int, nodes: int, capacity: int) -> None:
        entry = self._results["lists"].setdefault(name, {"policies": {}})
        facts = {"pods": pods, "nodes": nodes, "cards": capacity // 1000}
        entry |= facts | {"published": published(name)}

    def limits(self, name: str, results: dict[str, float]) -> None:
        self._results["lists"][name]["limits"] = results
        self._write()

    def policy(self, name: str, policy: str, results: dict[str, Any]) -> None:
        self._results["lists"][name]["policies"][policy] = results
        self._write()
        self._console.print(f"{name}, {policy}: {results['mean']}")

    def churn(
        self, name: str, policy: str, load: int, results: dict[str, float]
    ) -> None:
        entry = self._results["churn"]
        entry["list"] = name
        entry.setdefault("policies", {}).setdefault(policy, {})[str(load)] = results
        self._write()

    def show(self, name: str) -> None:
        self._console.print(list_table(name, self._results["lists"][name]))

    def show_churn(self) -> None:
        self._console.print(churn_table(self._results["churn"]))

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._results, indent=1) + "\n")


def _known(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in allowed:
            raise click.BadParameter(
                f'there is no "{name}"; there are {", ".join(allowed) or "none"}',
                param_hint=option,
            )
    return names


def list_table(name: str, entry: Mapping[str, Any]) -> Table:
    """Show a list's policies beside the published figures and the limits."""
    table = Table(
        f"{name}: allocated %", "at 100", "at 130", "published", "µs a decision"
    )
    for policy, results in entry["policies"].items():
        published_shares = entry["published"].get(policy, {})
        table.add_row(
            policy,
            *(_shown(results["mean"][load]) for load in ("100", "130")),
            " / ".join(map(_shown, published_shares.values())),
            _shown(results["decision_us"]["mean"]),
        )
    limits = entry["limits"]
    table.add_row("linear program", _shown(limits["bound"]), "", "", "")
    table.add_row("ceiling λ*", _shown(limits["ceiling"]), "", "", "")
    return table


def churn_table(entry: Mapping[str, Any]) -> Table:
    """Show the runs with pods that end."""
    table = Table("pods that end", "load %", "allocated %", "refused % of the demand")
    for policy, loads in entry["policies"].items():
        for load, results in loads.items():
            table.add_row(
                policy, load, _shown(results["share"]), _shown(results["refused"])
            )
    return table


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"
