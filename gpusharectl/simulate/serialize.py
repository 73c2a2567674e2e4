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
from dataclasses import asdict
from typing import Any

from gpusharectl.simulate.engine import Moment, Outcome, PodOutcome
from gpusharectl.simulate.result import Report, Run, thinned

VERSION = 1
_MOMENT = (
    *("at_s", "load", "asked_units", "held_units", "units", "held_cores", "cores"),
    *("allotted", "waiting", "fragmented", "arrived_units"),
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


def report_csv(report: Report) -> str:
    """Return the curves, a line for each moment; what is not known is left empty."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(("policy", *_MOMENT))
    for run in report.runs:
        for moment in thinned(run.played.moments):
            told = (run.policy, *_moment(moment).values())
            cells = (f"{x:.15g}" if isinstance(x, float) else x for x in told)
            writer.writerow(cells)
    return page.getvalue()


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
        "untouched_cards": run.played.untouched,
        "fullest": _moment(run.fullest),
        "end": _moment(run.played.end),
        "not_placed": [
            {"asks": one.asks, "pods": list(one.pods), "reasons": dict(one.reasons)}
            for one in run.not_placed
        ],
        "room": [asdict(room) for room in run.rooms],
        "curve": [_moment(moment) for moment in thinned(run.played.moments)],
        "pods": [_pod(result) for result in run.played.outcomes],
        "unexpected": list(run.wrong),
    }


def _moment(moment: Moment) -> dict[str, Any]:
    return {column: getattr(moment, column) for column in _MOMENT}


def _pod(result: PodOutcome) -> dict[str, Any]:
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
        "reasons": dict(result.reasons),
        "first": result.first or None,
    }
