"""``python -m bench packing``: the public trace replayed under each policy.

The trace is not ours to ship: see ``docs/performance.md`` for where it is.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

import click
import scipy
from rich.console import Console
from rich.table import Table

from bench.facts import RESULTS, machine_facts
from bench.packing.linear import Limits, limits
from bench.packing.replay import POLICIES, Churned, Replayed, churn, replay
from bench.packing.trace import (
    FOLDER_VARIABLE,
    MADE,
    SEEDS,
    TRACE_FOLDER,
    TraceError,
    pod_lists,
    read_list,
)

LOADS = (100, 130)
"""Percent; the published figures are at these."""
CHURN_LOADS = (95, 110)
CHURN_SEEDS = 3
_FIRST_OF_CURVE = 50
_PROCESSES = 2
PUBLISHED = {
    "default": {
        "random": (86.30, 87.47),
        "dotprod": (90.62, 90.85),
        "gpupacking": (91.78, 92.00),
        "bestfit": (92.86, 93.08),
        "fgd": (95.23, 95.39),
    },
    "gpushare60": {
        "random": (82.81, 83.65),
        "dotprod": (86.82, 87.11),
        "gpupacking": (87.15, 87.45),
        "bestfit": (89.06, 89.36),
        "fgd": (91.25, 91.40),
    },
    "multigpu30": {
        "random": (86.63, 89.27),
        "dotprod": (93.11, 93.28),
        "gpupacking": (94.70, 94.87),
        "bestfit": (94.57, 94.72),
        "fgd": (96.36, 96.46),
    },
    "cpu200": {
        "random": (83.03, 83.77),
        "dotprod": (87.45, 87.70),
        "gpupacking": (89.98, 90.22),
        "bestfit": (92.15, 92.40),
        "fgd": (94.82, 95.05),
    },
}
"""The figures of "Beware of Fragmentation" (USENIX ATC 2023).

Allocated share in percent, by list and policy: at a load of 100, and of 130.
"""


@dataclass(frozen=True, slots=True)
class Job:
    """One replay; picklable, as another process does it."""

    folder: Path
    pod_list: str
    policy: str
    seed: int


class ReplayPool:
    """Replays by other processes."""

    def __init__(self, folder: Path, seeds: Sequence[int]) -> None:
        """Take the trace from this folder."""
        self._folder = folder
        self._seeds = seeds
        # Not forked: the parent may have threads.
        self._pool = ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn"))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the other processes."""
        self._pool.shutdown(cancel_futures=True)

    def replays(self, pod_list: str, policy: str) -> dict[str, Any]:
        """Replay all seeds of a list under one policy."""
        done = list(self._pool.map(replayed, self._jobs(pod_list, policy)))
        shares = {load: [run.curve.get(load) for run in done] for load in LOADS}
        took = sorted(us for run in done for us in run.decisions_us)
        return {
            "mean": {str(load): mean(shares[load]) for load in LOADS},
            "deviation": {str(load): deviation(shares[load]) for load in LOADS},
            "seeds": {
                str(seed): [shares[load][number] for load in LOADS]
                for number, seed in enumerate(self._seeds)
            },
            "decision_us": {
                "mean": round(fmean(took), 1),
                "p50": round(took[len(took) // 2], 1),
                "p99": round(took[len(took) * 99 // 100], 1),
            },
            "curve": list(mean_curve(done)),
        }

    def limits(self, pod_list: str) -> dict[str, float]:
        """Work out the bound and the ceiling of a list."""
        most: Limits = self._pool.submit(limited, self._folder, pod_list).result()
        return {"bound": round(most.bound, 3), "ceiling": round(most.ceiling, 3)}

    def churn(self, pod_list: str, policy: str, load: int) -> dict[str, float]:
        """Let pods come and go under one policy."""
        jobs = self._jobs(pod_list, policy)[:CHURN_SEEDS]
        done = list(self._pool.map(churned, jobs, [load] * len(jobs)))
        return {
            "share": round(fmean(run.share for run in done), 3),
            "refused": round(fmean(run.refused for run in done), 3),
        }

    def _jobs(self, pod_list: str, policy: str) -> list[Job]:
        return [Job(self._folder, pod_list, policy, seed) for seed in self._seeds]


def replayed(job: Job) -> Replayed:
    """Do one replay."""
    trace = read_list(job.folder, job.pod_list)
    return replay(trace, POLICIES[job.policy], job.seed)


def churned(job: Job, load: int) -> Churned:
    """Do one run of churn at a load in percent."""
    trace = read_list(job.folder, job.pod_list)
    return churn(trace, POLICIES[job.policy], job.seed, load / 100)


def limited(folder: Path, pod_list: str) -> Limits:
    """Work out a list's limits."""
    return limits(read_list(folder, pod_list))


def published(pod_list: str) -> dict[str, dict[str, float]]:
    """Return the paper's figures for a list; none for a list that it does not have."""
    return {
        policy: {str(load): share for load, share in zip(LOADS, shares, strict=True)}
        for policy, shares in PUBLISHED.get(pod_list, {}).items()
    }


def mean(shares: Sequence[float | None]) -> float | None:
    """Return the mean; None where one is missing."""
    known = [share for share in shares if share is not None]
    return round(fmean(known), 3) if len(known) == len(shares) else None


def deviation(shares: Sequence[float | None]) -> float | None:
    """Return the standard deviation over the seeds; None where one is missing."""
    known = [share for share in shares if share is not None]
    return round(stdev(known), 3) if len(known) == len(shares) > 1 else None


def mean_curve(done: Sequence[Replayed]) -> Iterator[tuple[int, float]]:
    """Return load and mean share where every seed has one, from half full on."""
    loads = set.intersection(*(set(run.curve) for run in done))
    for load in sorted(loads):
        if load >= _FIRST_OF_CURVE:
            yield load, round(fmean(run.curve[load] for run in done), 3)


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
