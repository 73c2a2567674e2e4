"""Replays of the trace on a screen, as lines of CSV, and as a picture."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gpushare.kube import words
from gpusharectl.output import Words
from gpusharectl.simulator.openbreplay import LOADS, Replay
from gpusharectl.simulator.plotting import check, save, styled, subplots
from gpusharectl.simulator.sidebyside import Figures, side_by_side

_FEWEST_PERCENT = 60
"""Below this load all policies place everything; a picture begins here."""
_GAP = 3


def draw_replays(console: Console, found: Sequence[Replay], next_step: str) -> None:
    """Show the paper's figure for each list and policy: the answer first."""
    console.print(Words(answer(found), "bold"))
    told = _seeds(found[0].seeds)
    console.print(
        Words(f"Share of all cards that is allotted when so much has come; {told}.\n")
    )
    for number, table in enumerate(side_by_side(_figures(found), console.width)):
        if number:
            console.print()
        console.print(table, crop=False)
    told = "Nobody waits, and nobody leaves, as in the paper (docs/simulator.md)."
    console.print(Words(f"\n{told}", "dim"))
    if next_step:
        console.print(Words(f"Next: {next_step}"))


def _seeds(seeds: Sequence[int]) -> str:
    """Say which orders of arrival there were."""
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
        placed = f"{sum(one.placed)} of {sum(one.pods)}"
        rows.append((f"{one.pod_list:{size}}{one.policy}", (*shares, placed)))
    columns = (*(f"at load {load} %" for load in LOADS), "pods placed")
    return Figures(f"{'list':{size}}policy", columns, tuple(rows))


def answer(found: Sequence[Replay]) -> str:
    """Say in one sentence what came of the first list."""
    first = found[0].pod_list
    told = [
        f"{one.policy} {_percent(one.share(LOADS[0]))}"
        for one in found
        if one.pod_list == first
    ]
    return f'openb, list "{first}", at load {LOADS[0]} %: {", ".join(told)}.'


def replays_csv(found: Sequence[Replay]) -> str:
    """Give the curves: list, policy, load and share, both in percent."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(("list", "policy", "load", "allotted"))
    for one in found:
        for load, share in one.curve():
            writer.writerow((one.pod_list, one.policy, load, f"{share:.4f}"))
    return page.getvalue()


def plot_replays(found: Sequence[Replay], path: Path) -> None:
    """Draw a curve for each policy, a panel for each list; ``PlotError``."""
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
        axes.set_xlabel("load that has come, % of all cards")
        axes.grid(visible=True, linewidth=0.3)
        axes.legend(loc="lower right")
    save(figure, path)


def _percent(share: float | None) -> str:
    return words.NOT_KNOWN if share is None else f"{share:.2f} %"
