"""Write a simulation as data: ``-o json``, ``-o yaml`` and ``-o csv``. Pure.

The shape is a promise: fields may be added, but none is removed or changes its meaning
while ``v`` stays. Shares are 0 to 1, times are seconds since the beginning. null: not
known, or it does not apply::

    v           1
    scenario    its name
    nodes       at the beginning; cards, units and pods (that come) beside it
    runs        [{policy, placed, at_once, waited, refused, left, moved, rehoused,
                longest_wait_s, untouched_cards, fullest: moment, end: moment,
                not_placed, room, curve, pods, unexpected}]; rehoused: moved and placed
      moment, curve   {at_s, load, asked_units, held_units, units, held_cores, cores,
                allotted, waiting, fragmented, arrived_units}
      not_placed  [{asks, pods: [name], reasons: {words: nodes}}]
      room        [{asks, number, more}]
      pods        [{namespace, name, asks, outcome, came_s, placed_s, left_s, node,
                cards: [index], reasons, first}]; first: the first name of the pod that
                it replaces after a drain; the counts have the last of them only
      unexpected  [sentence]
    remarks     [sentence]
    not_played  [sentence]
    unchecked   a sentence: why the scenario's expect was not checked; null if it was,
                or if there is none
"""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from gpusharectl.simulate.engine import Moment, Outcome, PodOutcome
from gpusharectl.simulate.result import NotPlaced, Report, Room, Run, thinned

VERSION = 1
_COLUMNS = (
    *("policy", "at_s", "load", "asked_units", "held_units", "units", "held_cores"),
    *("cores", "allotted", "waiting", "fragmented", "arrived_units"),
)


def report_data(report: Report) -> dict[str, Any]:
    """Return the whole report, including what the screen leaves out."""
    return {
        "v": VERSION,
        "scenario": report.scenario.name,
        "nodes": report.nodes,
        "cards": report.cards,
        "units": report.units,
        "pods": report.scenario.arrivals,
        "runs": [_run(run) for run in report.runs],
        "remarks": list(report.scenario.remarks),
        "not_played": list(report.not_played),
        "unchecked": report.unchecked or None,
    }


def report_csv(runs: Sequence[Run]) -> str:
    """Return the curves, a line for each moment; what is not known is left empty."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for run in runs:
        for moment in thinned(run.played.moments):
            told = {"policy": run.policy, **_moment(moment)}
            writer.writerow([_cell(told[column]) for column in _COLUMNS])
    return page.getvalue()


def _cell(value: object) -> object:
    return f"{value:.15g}" if isinstance(value, float) else value


def _run(run: Run) -> dict[str, Any]:
    return {
        "policy": run.policy,
        "placed": run.placed,
        "at_once": run.counts[Outcome.PLACED],
        "waited": run.counts[Outcome.WAITED],
        "refused": run.counts[Outcome.REFUSED],
        "left": run.counts[Outcome.LEFT],
        "moved": run.moved,
        "rehoused": run.rehoused,
        "longest_wait_s": run.longest_wait_s,
        "untouched_cards": run.untouched,
        "fullest": _moment(run.fullest),
        "end": _moment(run.end),
        "not_placed": [_not_placed(one) for one in run.not_placed],
        "room": [_room(one) for one in run.rooms],
        "curve": [_moment(moment) for moment in thinned(run.played.moments)],
        "pods": list(_pods(run.played.outcomes)),
        "unexpected": list(run.wrong),
    }


def _moment(moment: Moment) -> dict[str, Any]:
    return {
        "at_s": moment.at_s,
        "load": moment.load,
        "asked_units": moment.asked,
        "held_units": moment.held,
        "units": moment.units,
        "held_cores": moment.held_cores,
        "cores": moment.cores,
        "allotted": moment.allotted,
        "waiting": moment.waiting,
        "fragmented": moment.fragmented,
        "arrived_units": moment.arrived,
    }


def _not_placed(one: NotPlaced) -> dict[str, Any]:
    return {"asks": one.asks, "pods": list(one.pods), "reasons": dict(one.reasons)}


def _room(room: Room) -> dict[str, Any]:
    return {"asks": room.asks, "number": room.number, "more": room.more}


def _pods(outcomes: Sequence[PodOutcome]) -> Iterator[dict[str, Any]]:
    for result in outcomes:
        yield {
            "namespace": result.pod.namespace,
            "name": result.pod.name,
            "asks": result.asks,
            "outcome": result.outcome.value,
            "came_s": result.came_s,
            "placed_s": result.placed_s,
            "left_s": result.left_s,
            "node": result.node or None,
            "cards": list(result.cards),
            "reasons": dict(result.reasons),
            "first": result.first or None,
        }
