"""Replays of the public trace by our own decisions, measured as its paper does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from gpushare.domain.policies import Choice
from gpusharectl.simulator.engine import Progress, play
from gpusharectl.simulator.fates import Outcome
from gpusharectl.simulator.openb import Meter, Trace, mean_share
from gpusharectl.simulator.openbfile import read_trace
from gpusharectl.simulator.openbscenario import metered, trace_scenario

LOADS = (100, 130)
"""The loads, in percent of all cards, at which the paper's figures are read."""
VERSION = 1


@dataclass(frozen=True, slots=True)
class Replay:
    """One list under one policy: a meter and the pods placed, for each seed."""

    pod_list: str
    policy: str
    seeds: tuple[int, ...]
    meters: tuple[Meter, ...]
    placed: tuple[int, ...]
    pods: tuple[int, ...]

    def share(self, load: int) -> float | None:
        """Give the allocated share, in percent, as the mean of the seeds."""
        return mean_share(self.meters, load)

    def curve(self) -> list[tuple[int, float]]:
        """Give load and share, both in percent, as the mean of the seeds."""
        curves = [dict(meter.curve()) for meter in self.meters]
        loads = sorted(set.intersection(*(set(curve) for curve in curves)))
        return [(load, fmean(curve[load] for curve in curves)) for load in loads]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to replay."""

    folder: Path
    lists: tuple[str, ...]
    seeds: tuple[int, ...]
    choices: tuple[Choice, ...]


def replays(wanted: Wanted, began: Callable[[str], Progress]) -> Iterator[Replay]:
    """Replay list by list, policy by policy; ``ValueError`` names what is wrong.

    ``began`` is called as each replay begins, with its name; all lists are read before.
    """
    traces = [read_trace(wanted.folder, pod_list) for pod_list in wanted.lists]
    for pod_list, trace in zip(wanted.lists, traces, strict=True):
        for choice in wanted.choices:
            yield _replay(trace, pod_list, choice, wanted.seeds, began)


def _replay(
    trace: Trace,
    pod_list: str,
    choice: Choice,
    seeds: Sequence[int],
    began: Callable[[str], Progress],
) -> Replay:
    meters, placed, pods = [], [], []
    for seed in seeds:
        scenario = trace_scenario(trace, pod_list, seed)
        progress = began(f"{pod_list} · {choice.default} · seed {seed}")
        played = play(scenario, choice, progress, looks=0)
        meters.append(metered(trace, seed, played))
        fates = played.fates
        placed.append(sum(fate.outcome is Outcome.PLACED for fate in fates))
        pods.append(len(fates))
    return Replay(
        pod_list,
        choice.default,
        tuple(seeds),
        tuple(meters),
        tuple(placed),
        tuple(pods),
    )


def replay_data(found: Sequence[Replay]) -> dict[str, Any]:
    """Give the replays as data, in percent; ``curve`` has [load, share] pairs.

    Shape: ``{v, trace, measure, replays: [{list, policy, seeds, placed, pods,
    at: {load: percent | null}, by_seed: {load: [percent | null]}, curve}]}``.
    """
    return {
        "v": VERSION,
        "trace": "openb",
        "measure": "allocated share of all cards, percent, mean of seeds",
        "replays": [
            {
                "list": one.pod_list,
                "policy": one.policy,
                "seeds": list(one.seeds),
                "placed": list(one.placed),
                "pods": list(one.pods),
                "at": {str(load): one.share(load) for load in LOADS},
                "by_seed": {
                    str(load): [meter.share(load) for meter in one.meters]
                    for load in LOADS
                },
                "curve": [[load, round(share, 4)] for load, share in one.curve()],
            }
            for one in found
        ],
    }
