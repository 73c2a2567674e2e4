"""Replay the public trace with gpushare's decisions; show the figures of its paper."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from gpushare.domain.policies import Choice
from gpushare.kube import words
from gpusharectl.output import Words
from gpusharectl.simulator.engine import Outcome, play
from gpusharectl.simulator.openb.trace import Meter, read_trace, trace_scenario
from gpusharectl.simulator.plot import check, save, styled, subplots
from gpusharectl.simulator.render import Figures, side_by_side
from gpusharectl.simulator.result import Began

LOADS = (100, 130)
"""The loads, in percent of all cards, of the figures in the paper."""
VERSION = 1


@dataclass(frozen=True, slots=True)
class Replay:
    """One list under one policy: a meter for each seed."""

    pod_list: str
    policy: str
    seeds: tuple[int, ...]
    meters: tuple[Meter, ...]

    def share(self, load: int) -> float | None:
        """Return the allocated share in percent, as the mean of the seeds.

        None if one of them never reached this load.
        """
        shares = [meter.share(load) for meter in self.meters]
        known = [share for share in shares if share is not None]
        return fmean(known) if len(known) == len(shares) else None

    def curve(self) -> list[tuple[int, float]]:
        """Return load and share, both in percent, as the mean of the seeds."""
        curves = [dict(meter.curve()) for meter in self.meters]
        loads = sorted(set.intersection(*(set(curve) for curve in curves)))
        return [(load, fmean(curve[load] for curve in curves)) for load in loads]


def replays(
    folder: Path,
    lists: Sequence[str],
    seeds: tuple[int, ...],
    choices: Sequence[Choice],
    began: Began,
) -> Iterator[Replay]:
    """Replay list by list, policy by policy; ``TraceError`` says what is wrong.

    All lists are read before the first replay.
    """
    traces = [read_trace(folder, pod_list) for pod_list in lists]
    for pod_list, trace in zip(lists, traces, strict=True):
        for choice in choices:
            meters = []
            for seed in seeds:
                scenario = trace_scenario(trace, pod_list, seed)
                progress = began(f"{pod_list} · {choice.default} · seed {seed}")
                played = play(scenario, choice, progress, looks=0)
                meters.append(meter := Meter(trace.capacity))
                pods = trace.arrivals(seed)
                for pod, result in zip(pods, played.outcomes, strict=True):
                    placed = result.outcome is Outcome.PLACED
                    meter.arrived(pod.demand, placed=placed)
            yield Replay(pod_list, choice.default, seeds, tuple(meters))


def replay_data(found: Sequence[Replay]) -> dict[str, Any]:
    """Return the replays as data, in percent; ``curve`` has [load, share] pairs.

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
                "placed": [meter.placed for meter in one.meters],
                "pods": [meter.pods for meter in one.meters],
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


_FEWEST_PERCENT = 60
"""Below this load all policies place everything; a picture begins here."""
_GAP = 3


def draw_replays(console: Console, found: Sequence[Replay], next_step: str) -> None:
    """Show the figure of the paper for each list and policy: the answer first."""
    console.print(Words(_answer(found), "bold"))
    told = (
        f"Share of all cards that is allotted when so much has come; {_seeds(found)}."
    )
    console.print(Words(f"{told}\n"))
    for number, table in enumerate(side_by_side(_figures(found), console.width)):
        if number:
            console.print()
        console.print(table, crop=False)
    told = "No pod waits and no pod ends, as in the paper (docs/simulator.md)."
    console.print(Words(f"\n{told}", "dim"))
    if next_step:
        console.print(Words(f"Next: {next_step}"))


def _seeds(found: Sequence[Replay]) -> str:
    seeds = found[0].seeds
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"mean of seeds {seeds[0]} to {seeds[-1]}"
    return f"mean of seeds {', '.join(map(str, seeds))}"


def _figures(found: Sequence[Replay]) -> Figures:
    size = max(len(one.pod_list) for one in found) + _GAP
    rows = []
    for one in found:
        shares = (_percent(one.share(load)) for load in LOADS)
        placed = sum(meter.placed for meter in one.meters)
        pods = sum(meter.pods for meter in one.meters)
        rows.append(
            (f"{one.pod_list:{size}}{one.policy}", (*shares, f"{placed} of {pods}"))
        )
    columns = (*(f"at load {load} %" for load in LOADS), "pods placed")
    return Figures(f"{'list':{size}}policy", columns, tuple(rows))


def _answer(found: Sequence[Replay]) -> str:
    first = found[0].pod_list
    told = [
        f"{one.policy} {_percent(one.share(LOADS[0]))}"
        for one in found
        if one.pod_list == first
    ]
    return f'openb, list "{first}", at load {LOADS[0]} %: {", ".join(told)}.'


def replays_csv(found: Sequence[Replay]) -> str:
    """Return the curves: list, policy, load and share, both in percent."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(("list", "policy", "load", "allotted"))
    for one in found:
        for load, share in one.curve():
            writer.writerow((one.pod_list, one.policy, load, f"{share:.4f}"))
    return page.getvalue()


def plot_replays(found: Sequence[Replay], path: Path) -> None:
    """Draw a curve for each policy, a panel for each list; ``NotPlayable``."""
    check(path)
    lists = list(dict.fromkeys(one.pod_list for one in found))
    figure, panels = subplots(len(lists))
    for name, axes in zip(lists, panels, strict=True):
        mine = [one for one in found if one.pod_list == name]
        for number, one in enumerate(mine):
            curve = [point for point in one.curve() if point[0] >= _FEWEST_PERCENT]
            loads, shares = [load for load, _ in curve], [share for _, share in curve]
            axes.plot(loads, shares, **styled(number, one.policy))
        axes.set_title(f"openb, {name}", fontsize="medium")
        axes.set_ylabel("allotted, % of all cards")
        axes.set_xlabel("requested so far, % of all cards")
        axes.grid(visible=True, linewidth=0.3)
        axes.legend(loc="lower right")
    save(figure, path)


def _percent(share: float | None) -> str:
    return words.NOT_KNOWN if share is None else f"{share:.2f} %"
