"""Many replays, two at a time, gathered into one record."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

from bench.packing.churn import Churned, churn
from bench.packing.linear import Limits, limits
from bench.packing.lists import read_list
from bench.packing.replay import POLICIES, Replayed, replay

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
