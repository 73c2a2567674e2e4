"""Replays of the trace on a screen, as lines of CSV, and as a picture."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpushare.kube import words
from gpusharectl.output import Words
from gpusharectl.simulator.openbreplay import LOADS, Replay
from gpusharectl.simulator.plotting import save, styled, subplots

_FEWEST_PERCENT = 60
"""Below this load all policies place everything; a picture begins here."""


def draw_replays(console: Console, found: Sequence[Replay], next_step: str) -> None:
    """Show the paper's figure for each list and policy: the answer first."""
    console.print(Words(answer(found), "bold"))
    seeds = found[0].seeds
    several = f"mean of seeds {seeds[0]} to {seeds[-1]}" if seeds[1:] else ""
    told = several or f"seed {seeds[0]}"
    console.print(
        Words(f"Share of all cards that is allotted when so much has come; {told}.\n")
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("list", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for load in LOADS:
        table.add_column(f"at load {load} %", justify="right", no_wrap=True)
    table.add_column("pods placed", justify="right", no_wrap=True)
    before = ""
    for one in found:
        name = "" if one.pod_list == before else one.pod_list
        before = one.pod_list
        cells = (_percent(one.share(load)) for load in LOADS)
        placed = f"{sum(one.placed)} of {sum(one.pods)}"
        table.add_row(*map(Words, (name, one.policy, *cells, placed)))
    console.print(table)
    told = "Nobody waits, and nobody leaves, as in the paper (docs/simulator.md)."
    console.print(Words(f"\n{told}", "dim"))
    if next_step:
        console.print(Words(f"Next: {next_step}"))


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
    lists = list(dict.fromkeys(one.pod_list for one in found))
    figure, panels = subplots(path, len(lists))
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
