"""Show a simulation: tables for a terminal, JSON, YAML and CSV.

Tables have 80 columns, and are the same with and without colour.

On a narrower terminal labels are wrapped first. Columns that still do not fit stand
below, in a table of their own. Figures are never cut.

As data (``-o json``, ``-o yaml``, ``-o csv``) its shape is a promise: fields may be
added, but none is removed or changes its meaning while ``v`` stays. Shares are 0 to 1,
times are seconds since the beginning. null: not known, or it does not apply::

    v           1
    scenario    its name
    nodes       at the beginning; cards, units and pods (that come) beside it
    runs        [{policy, placed, at_once, waited, refused, left, moved, rehoused,
                longest_wait_s, untouched_cards, fullest: moment, end: moment,
                not_placed, room, curve, pods, unexpected, as_expected, links}];
                policy: with /no-links or /no-moves, if links were not used, or no pods
                moved to make room; rehoused: moved and placed; as_expected: null if it
                was not checked
      moves     {plans, moves, placed, otherwise} | null: plans of moves to make room,
                evictions, pods that got their room, and plans that came otherwise;
                mean_wait_s beside it. Both only if the scenario has moves
      links     {pods, nvlinked, pair_score} | null: the pods of several whole cards
                that were placed where links are known
      moment, curve   {at_s, load, asked_units, held_units, units, held_cores, cores,
                allotted, waiting, fragmented, arrived_units}
      not_placed  [{asks, pods: [name], reasons: {words: nodes}}]
      room        [{asks, number, more}]
      pods        [{namespace, name, asks, outcome, came_s, placed_s, left_s, node,
                cards: [index], reasons, first}]; first: the first name of the pod that
                it replaces after a drain or a move; the counts have the last only
      unexpected  [sentence]
    remarks     [sentence]
    not_played  [sentence]
    unchecked   a sentence: why the scenario's expect was not checked; null if it was,
                or if there is none
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table

from gpushare.kube import words
from gpusharectl.output import Words
from gpusharectl.simulator.engine import UNUSABLE, Moment, OutcomeKind, PodOutcome
from gpusharectl.simulator.result import (
    NotPlaced,
    PolicyRun,
    SimulationReport,
    sort_by_count,
)
from gpusharectl.simulator.scenario import ExpectedResult, format_duration

_GAP = 2
_FEWEST = 16
"""Width of the labels while several columns stand side by side."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of several policies: a row for each figure."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """A label, and a figure for each column."""

    def width(self, column: int) -> int:
        """Return the width of the widest figure of a column, or of its heading."""
        figures = (figures[column] for _, figures in self.rows)
        return max(map(cell_len, (self.columns[column], *figures)))

    @property
    def label_width(self) -> int:
        """The width of the longest label."""
        return max(cell_len(label) for label, _ in self.rows)


def lay_out_tables(figures: Figures, width: int) -> Iterator[Table]:
    """Yield one table, or several to stand below one another.

    On a screen too narrow for one column a table is wider than the screen.
    """
    room = width - min(figures.label_width, _FEWEST)
    for block in _blocks([figures.width(n) for n in range(len(figures.columns))], room):
        yield _table(figures, block, width)


def _blocks(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield the columns that fit beside one another, block by block; at least one."""
    block: list[int] = []
    width_left = room
    for column, width in enumerate(widths):
        if block and width + _GAP > width_left:
            yield block
            block, width_left = [], room
        block.append(column)
        width_left -= width + _GAP
    yield block


def _table(figures: Figures, block: Sequence[int], width: int) -> Table:
    taken = sum(figures.width(column) + _GAP for column in block)
    label = min(figures.label_width, max(width - taken, _FEWEST))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    table.width = label + taken
    table.add_column(width=label, overflow="fold")
    for column in block:
        heading = Words(figures.columns[column])
        size = figures.width(column)
        table.add_column(heading, justify="right", no_wrap=True, width=size)
    for label_text, cells in figures.rows:
        table.add_row(Words(label_text), *(Words(cells[column]) for column in block))
    return table


_MOST_TURNED = 6
_MOST_NAMES = 3
_MOST_WRONG = 10
_WARN, _DIM, _BOLD = "yellow", "dim", "bold"
_Cell = Callable[[PolicyRun], str]
Figure = TypeVar("Figure")
_OF_MOVES = {
    "plans of moves": "plans",
    "  evictions": "moves",
    "  pods that got their room": "placed",
    "  plans that came otherwise": "otherwise",
}


def draw_report(
    console: Console, report: SimulationReport, next_step: str = ""
) -> None:
    """Show the result: the answer first, the next step last."""
    for part in _parts(report, console.width):
        # Only a table may be wider, on a screen narrower than one column of it.
        console.print(part, crop=False)
    if next_step:
        # A command that is wrapped cannot be copied.
        console.print(Words(f"Next: {next_step}"), soft_wrap=True)


def format_share(share: float | None) -> str:
    """Write a share of 0 to 1 in percent; n/a if it is not known."""
    return words.NOT_KNOWN if share is None else f"{100 * share:.1f} %"


def _parts(report: SimulationReport, width: int) -> Iterator[RenderableType]:
    yield Words(summarize_runs(report), _BOLD)
    yield Words(_beginning(report))
    for remark in report.scenario.remarks:
        yield Words(remark, _DIM)
    yield Words("")
    for number, table in enumerate(lay_out_tables(_figures(report), width)):
        if number:
            yield Words("")
        yield table
    for title, not_placed in _alike(report.runs):
        yield from _not_placed(title, not_placed)
    for run in report.runs:
        yield from _compared(run, report.scenario.expected)
    if report.unchecked:
        yield Words(f"\nNot checked: {report.unchecked}.", _WARN)
    yield Words("")
    yield Words(f"Not simulated: {'; '.join(report.not_played)}.", _DIM)


def summarize_runs(report: SimulationReport) -> str:
    """Return the answer in one sentence."""
    runs = report.runs
    if not runs[0].played.outcomes:
        return _room_answer(runs)
    pods = words.counted(runs[0].pods, "pod")
    best = max(runs, key=lambda run: run.placed)
    if len(runs) == 1:
        room = f" {_room_answer(runs)}" if best.rooms else ""
        return f"Placed: {best.placed} of {pods}{_moved(best)}.{room}"
    others = [run for run in runs if run.placed < best.placed]
    if not others:
        return f"All policies place {best.placed} of {pods}."
    equal = [run.policy for run in runs if run.placed == best.placed]
    verb = "places" if len(equal) == 1 else "place"
    placed_by_others = ", ".join(f"{run.policy} {run.placed}" for run in others)
    return f"{' and '.join(equal)} {verb} {best.placed} of {pods}; {placed_by_others}."


def _moved(run: PolicyRun) -> str:
    if not run.moved:
        return ""
    if run.moved == 1:
        return f"; 1 had to move, and found {'' if run.rehoused else 'no '}room"
    rehoused = "all" if run.rehoused == run.moved else run.rehoused or "none"
    return f"; {run.moved} had to move, {rehoused} of them found room"


def _room_answer(runs: Sequence[PolicyRun]) -> str:
    """Say what fits at the end; if nobody asked for that, how full the cluster is."""
    if not runs[0].rooms:
        share = format_share(runs[0].played.end.allotted)
        return f"No pods come; {share} of all units are allotted."
    rooms = [
        f"{_room_of(number, runs[0])} more of {room.asks}"
        for number, room in enumerate(runs[0].rooms)
    ]
    under = "" if len(runs) == 1 else f" under {runs[0].policy}"
    return f"Room{under} for {'; or '.join(rooms)}."


def _beginning(report: SimulationReport) -> str:
    scenario = report.scenario
    nodes = words.counted(report.nodes, "node")
    cards = words.counted(report.cards, "card")
    size = f"{words.units(report.units)} ({words.memory(report.units)})"
    there = ""
    if scenario.there:
        there = f"; {words.counted(len(scenario.there), 'pod')} there at the beginning"
    length_s = scenario.length_s
    come = f" within {format_duration(length_s)}" if length_s else ""
    pods = f"; {words.counted(scenario.arrivals, 'pod')} to come{come}"
    return f"{scenario.name}: {nodes}, {cards}, {size}{there}{pods}."


def _figures(report: SimulationReport) -> Figures:
    rows = ((label, tuple(map(cell, report.runs))) for label, cell in _rows(report))
    return Figures(tuple(run.policy for run in report.runs), tuple(rows))


def _rows(report: SimulationReport) -> Iterator[tuple[str, _Cell]]:
    first = report.runs[0]
    if first.played.outcomes:
        yield from _placing(report)
    yield "units allotted, at the peak", lambda run: format_share(run.fullest.allotted)
    yield (
        "units allotted, at the end",
        lambda run: format_share(run.played.end.allotted),
    )
    yield "cores allotted, at the end", _cores
    yield UNUSABLE, lambda run: format_share(run.played.end.fragmented)
    yield "untouched cards, at the end", lambda run: str(run.played.untouched)
    if any(run.linked for run in report.runs):
        yield (
            "pods of several cards, pair score",
            lambda run: _known(run.linked, lambda linked: f"{linked.pair_score:.0f}"),
        )
        yield (
            "  NVLink between all their cards",
            lambda run: _known(run.linked, lambda linked: format_share(linked.share)),
        )
    if report.scenario.moves:
        for label, field in _OF_MOVES.items():
            yield label, partial(_of_moves, field)
        yield (
            "mean wait of all pods",
            lambda run: _known(run.mean_wait_s, format_duration),
        )
    for number, room in enumerate(first.rooms):
        label = f"room for more: {room.asks}"
        yield label, partial(_room_of, number)


def _placing(report: SimulationReport) -> Iterator[tuple[str, _Cell]]:
    yield "pods placed", lambda run: f"{run.placed} of {run.pods}"
    waited = any(run.counts[OutcomeKind.WAITED] for run in report.runs)
    if report.scenario.waits and waited:
        yield "  at once", lambda run: str(run.counts[OutcomeKind.PLACED])
        yield "  after waiting", lambda run: str(run.counts[OutcomeKind.WAITED])
        yield "  longest wait", lambda run: _known(run.longest_wait_s, format_duration)
    yield "not placed", lambda run: str(run.counts[OutcomeKind.REFUSED])
    if any(run.moved for run in report.runs):
        yield "had to move, each counted once", lambda run: str(run.moved)
        yield "  found room", lambda run: str(run.rehoused)
    if any(run.counts[OutcomeKind.LEFT] for run in report.runs):
        yield "deleted while waiting", lambda run: str(run.counts[OutcomeKind.LEFT])


def _cores(run: PolicyRun) -> str:
    end = run.played.end
    return format_share(end.held_cores / end.cores if end.cores else None)


def _of_moves(field: str, run: PolicyRun) -> str:
    return _known(run.played.moves, lambda moves: str(getattr(moves, field)))


def _known(figure: Figure | None, write: Callable[[Figure], str] = str) -> str:
    return "-" if figure is None else write(figure)


def _room_of(number: int, run: PolicyRun) -> str:
    room = run.rooms[number]
    return f"{room.number} or more" if room.more else str(room.number)


def _alike(runs: Sequence[PolicyRun]) -> Iterator[tuple[str, Sequence[NotPlaced]]]:
    """Yield the pods that were not placed, once for all policies with the same ones."""
    seen: dict[tuple[str, ...], list[PolicyRun]] = {}
    for run in runs:
        names = sorted(pod for group in run.not_placed for pod in group.pods)
        seen.setdefault(tuple(names), []).append(run)
    for pods, alike in seen.items():
        if not pods:
            continue
        under = f" under {' and '.join(run.policy for run in alike)}"
        yield f"Not placed{'' if len(seen) == 1 else under}", alike[0].not_placed


def _not_placed(
    title: str, not_placed: Sequence[NotPlaced]
) -> Iterator[RenderableType]:
    yield Words(f"\n{title}", _BOLD)
    for group in not_placed[:_MOST_TURNED]:
        names = words.listed(group.pods, _MOST_NAMES)
        verb = "asks" if len(group.pods) == 1 else "ask"
        ask = f"{words.counted(len(group.pods), 'pod')} that {verb} for"
        text = Words(f"{ask} {group.asks}: ").append(names, _DIM)
        yield Padding(text, (0, 0, 0, 2), expand=False)
        yield Padding(Words(explain_refusal(group)), (0, 0, 0, 4), expand=False)
    if more := not_placed[_MOST_TURNED:]:
        pods = words.counted(sum(len(group.pods) for group in more), "pod")
        yield Words(f"  and {pods} of {len(more)} more kinds (-o json)", _DIM)


def explain_refusal(group: NotPlaced) -> str:
    """Say how many nodes refused for which reason, as kube-scheduler's event does."""
    if not group.reasons:
        return "there is no node"
    if not any(group.reasons.values()):
        return "; ".join(group.reasons)
    reasons = (f"{number} {reason}" for reason, number in group.reasons.items())
    return f"0/{group.nodes} nodes are available: {', '.join(reasons)}."


def _compared(run: PolicyRun, expected: ExpectedResult) -> Iterator[RenderableType]:
    if run.checked and not run.wrong:
        yield Words(f"\nAs expected, under {run.policy}: {_met(expected)}.")
    if not run.wrong:
        return
    yield Words(f"\nNot as expected, under {run.policy}", _WARN)
    for sentence in run.wrong[:_MOST_WRONG]:
        yield Padding(Words(sentence), (0, 0, 0, 2), expand=False)
    more = len(run.wrong) - _MOST_WRONG
    if more > 0:
        yield Words(f"  and {more} more (-o json)", _DIM)


def _met(expected: ExpectedResult) -> str:
    parts = []
    if expected.placed is not None:
        parts.append(f"{words.counted(expected.placed, 'pod')} placed")
    if expected.refused is not None:
        parts.append(f"{expected.refused} refused")
    if expected.where:
        parts.append(f"the place of {words.counted(len(expected.where), 'pod')}")
    return ", ".join(parts)


def thin_moments(moments: Sequence[Moment], most: int = 200) -> list[Moment]:
    """Return at most about ``most`` moments: the first, the last, those measured."""
    every = max(1, -(-len(moments) // most))
    last = len(moments) - 1
    return [
        moment
        for number, moment in enumerate(moments)
        if number % every == 0 or number == last or moment.fragmented is not None
    ]


VERSION = 1
_MOMENT = (
    *("at_s", "load", "asked_units", "held_units", "units", "held_cores", "cores"),
    *("allotted", "waiting", "fragmented", "arrived_units"),
)


def report_data(report: SimulationReport) -> dict[str, Any]:
    """Return the whole report, including what the screen leaves out."""
    return {
        "v": VERSION,
        "scenario": report.scenario.name,
        "nodes": report.nodes,
        "cards": report.cards,
        "units": report.units,
        "pods": report.scenario.arrivals,
        "runs": [
            _run_data(run) | (_moves_data(run) if report.scenario.moves else {})
            for run in report.runs
        ],
        "remarks": list(report.scenario.remarks),
        "not_played": list(report.not_played),
        "unchecked": report.unchecked or None,
    }


def report_csv(report: SimulationReport) -> str:
    """Return the curves, a line for each moment; what is not known is left empty."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(("policy", *_MOMENT))
    for run in report.runs:
        for moment in thin_moments(run.played.moments):
            values = (run.policy, *_moment_data(moment).values())
            cells = (
                f"{value:.15g}" if isinstance(value, float) else value
                for value in values
            )
            writer.writerow(cells)
    return page.getvalue()


def _run_data(run: PolicyRun) -> dict[str, Any]:
    return {
        "policy": run.policy,
        "placed": run.placed,
        "at_once": run.counts[OutcomeKind.PLACED],
        "waited": run.counts[OutcomeKind.WAITED],
        "refused": run.counts[OutcomeKind.REFUSED],
        "left": run.counts[OutcomeKind.LEFT],
        "moved": run.moved,
        "rehoused": run.rehoused,
        "longest_wait_s": run.longest_wait_s,
        "untouched_cards": run.played.untouched,
        "fullest": _moment_data(run.fullest),
        "end": _moment_data(run.played.end),
        "not_placed": [
            {
                "asks": group.asks,
                "pods": list(group.pods),
                "reasons": dict(group.reasons),
            }
            for group in run.not_placed
        ],
        "room": [asdict(room) for room in run.rooms],
        "curve": [_moment_data(moment) for moment in thin_moments(run.played.moments)],
        "pods": [_pod_data(result) for result in run.played.outcomes],
        "unexpected": list(run.wrong),
        "as_expected": not run.wrong if run.checked else None,
        "links": asdict(run.linked) if run.linked else None,
    }


def _moves_data(run: PolicyRun) -> dict[str, Any]:
    done = run.played.moves
    return {"moves": done and asdict(done), "mean_wait_s": run.mean_wait_s}


def _moment_data(moment: Moment) -> dict[str, Any]:
    return {column: getattr(moment, column) for column in _MOMENT}


def _pod_data(result: PodOutcome) -> dict[str, Any]:
    return {
        "namespace": result.pod.namespace,
        "name": result.pod.name,
        "asks": result.asks,
        "outcome": result.outcome.value,
        "came_s": result.came_s,
        "placed_s": result.placed_s,
        "left_s": result.left_s,
        "node": result.node or None,
        "cards": list(result.cards),
        "reasons": sort_by_count(result.reasons),
        "first": result.first or None,
    }
