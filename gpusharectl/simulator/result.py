"""Sum up a scenario under one or several policies, and count the room that is left.

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
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import ValidationError

from gpushare.domain.model import CORES_PER_CARD, NodeName, Placement, PodRef
from gpushare.domain.policies import PolicyChoice
from gpushare.domain.refusal import Refusal, clean_text
from gpushare.kube import codec, names, words
from gpushare.kube.cluster import Json
from gpushare.kube.codec import refusal_text
from gpushare.kube.json_reader import Malformed
from gpushare.yaml_file import Text, bounded_number
from gpusharectl.simulator import synthetic
from gpusharectl.simulator.cluster import SimulatedCluster
from gpusharectl.simulator.engine import (
    Moment,
    OnStep,
    OutcomeKind,
    Played,
    PodOutcome,
    drop_moves,
    play,
)
from gpusharectl.simulator.links import Linked, drop_links, measure_links
from gpusharectl.simulator.scenario import (
    NOWHERE,
    Arrive,
    Drain,
    ExpectedResult,
    Join,
    NotPlayable,
    PodName,
    Scenario,
    describe_request,
    round_to_ms,
)
from gpusharectl.simulator.scenario_file import PodEntry

NO_LINKS, NO_MOVES = "/no-links", "/no-moves"
"""Behind a policy's name: the run does not use links between cards, or moves no pods to
make room."""
Began = Callable[[str], OnStep]
"""Called with the name of a run; returns what to call after each step."""


@dataclass(frozen=True, slots=True)
class RoomForMore:
    """How many more pods of one size fit at the end, one placed after the other.

    ``more``: at least so many; the count was stopped.
    """

    asks: str
    number: int
    more: bool = False


@dataclass(frozen=True, slots=True)
class NotPlaced:
    """Pods alike that were not placed for the same reasons."""

    asks: str
    pods: tuple[str, ...]
    reasons: Mapping[str, int]
    nodes: int
    """How many nodes refused them; some for several reasons."""


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """The result under one policy.

    A pod counts once: if it had to move, by its last outcome. ``moved`` is how many had
    to, ``rehoused`` how many of those found room.
    """

    policy: str
    played: Played
    counts: Mapping[OutcomeKind, int]
    not_placed: tuple[NotPlaced, ...]
    fullest: Moment
    longest_wait_s: float | None
    moved: int = 0
    rehoused: int = 0
    wrong: tuple[str, ...] = ()
    """Where the result differs from what the scenario expects, as sentences."""
    checked: bool = False
    """Whether the result was compared with what the scenario expects."""
    rooms: tuple[RoomForMore, ...] = ()
    linked: Linked | None = None

    @property
    def mean_wait_s(self) -> float | None:
        """How long pods wait, as a mean over all that came: up to the curves' end.

        Those that never find room count, too.
        """
        moments = self.played.moments
        waited_s = sum(
            moment.waiting * (later.at_s - moment.at_s)
            for moment, later in pairwise(moments)
        )
        return round_to_ms(waited_s / self.pods) if self.pods else None

    @property
    def pods(self) -> int:
        """Pods that came, and those of the beginning that had to move."""
        return sum(self.counts.values())

    @property
    def placed(self) -> int:
        """Pods that were placed, at once or later."""
        return self.counts[OutcomeKind.PLACED] + self.counts[OutcomeKind.WAITED]


def run_policy(
    scenario: Scenario,
    choice: PolicyChoice,
    sizes: Sequence[Json] = (),
    began: Began = lambda _name: lambda _done, _total: None,
    *,
    without: Collection[str] = (),
) -> PolicyRun:
    """Play it under one policy, and count how many more of each size fit at the end.

    ``without``: as if links between cards were not known, or without moves, by
    ``NO_LINKS`` and ``NO_MOVES``.
    """
    changed = drop_links(scenario) if NO_LINKS in without else scenario
    changed = drop_moves(changed) if NO_MOVES in without else changed
    name = "".join((choice.default, *without))
    rooms: list[RoomForMore] = []

    def count(cluster: SimulatedCluster) -> None:
        cluster.learns = False
        on_step = began(f"{name}, room for more")
        rooms.extend(count_room(cluster, size, on_step) for size in sizes)
        cluster.learns = True

    played = play(changed, choice, began(name), at_end=count)
    last = {result.came_as: result for result in played.outcomes}
    moved = {result.came_as for result in played.outcomes if result.first}
    counts = Counter(result.outcome for result in last.values())
    # The scenario's expectation holds for the policy that it names.
    is_own_policy = played.policy == scenario.choice.default
    expected = is_own_policy and bool(changed.expected)
    return PolicyRun(
        policy=name,
        played=played,
        counts={outcome: counts[outcome] for outcome in OutcomeKind},
        not_placed=_not_placed(played.outcomes),
        fullest=max(played.moments, key=lambda moment: moment.allotted or 0.0),
        longest_wait_s=_longest_wait_s(played.outcomes),
        moved=len(moved),
        rehoused=sum(bool(last[pod].node) for pod in moved),
        wrong=tuple(_wrong(changed.expected, last)) if expected else (),
        checked=expected,
        rooms=tuple(rooms),
        linked=measure_links(scenario, played.outcomes),
    )


def split_variant(
    name: str, plain: PolicyChoice
) -> tuple[PolicyChoice, tuple[str, ...]]:
    """Split ``frag/no-links`` into the policy and what ``run_policy`` is to leave out.

    The card order is that of ``plain``.
    """
    policy, *left_out = name.split("/")
    return PolicyChoice(policy, plain.card_order), tuple(
        f"/{part}" for part in left_out
    )


def _longest_wait_s(outcomes: Sequence[PodOutcome]) -> float | None:
    waits = [
        round_to_ms(result.placed_s - result.came_s)
        for result in outcomes
        if result.outcome is OutcomeKind.WAITED and result.placed_s is not None
    ]
    return max(waits, default=None)


def thin_moments(moments: Sequence[Moment], most: int = 200) -> list[Moment]:
    """Return at most about ``most`` moments: the first, the last, those measured."""
    every = max(1, -(-len(moments) // most))
    last = len(moments) - 1
    return [
        moment
        for number, moment in enumerate(moments)
        if number % every == 0 or number == last or moment.fragmented is not None
    ]


def _not_placed(outcomes: Sequence[PodOutcome]) -> tuple[NotPlaced, ...]:
    groups: dict[object, list[PodOutcome]] = {}
    for result in outcomes:
        if result.outcome is OutcomeKind.REFUSED:
            key = (result.asks, tuple(sorted(result.reasons)))
            groups.setdefault(key, []).append(result)
    kinds = [
        NotPlaced(
            alike[-1].asks,
            tuple(str(result.pod) for result in alike),
            _by_count(alike[-1].reasons),
            alike[-1].nodes,
        )
        for alike in groups.values()
    ]
    return tuple(sorted(kinds, key=lambda kind: (-len(kind.pods), kind.asks)))


def _wrong(
    expected: ExpectedResult, last: Mapping[PodName, PodOutcome]
) -> Iterator[str]:
    placed = sum(bool(result.node) for result in last.values())
    refused = sum(result.outcome is OutcomeKind.REFUSED for result in last.values())
    if expected.placed not in (None, placed):
        yield f"pods placed: {placed}; expected: {expected.placed}"
    if expected.refused not in (None, refused):
        yield f"pods refused: {refused}; expected: {expected.refused}"
    for pod, place in expected.where.items():
        result = last.get(pod)
        came = NOWHERE if result is None else result.place
        if place not in (came, result.node if result else ""):
            yield f"{'/'.join(pod)}: {came}; expected: {place}"


_PLAYED = frozenset({names.MEMORY, names.CORE, "cpu", "memory", "pods"})
_MOST_NAMES = 5


def list_not_played(scenario: Scenario) -> Iterator[str]:
    """Yield what a real cluster has and this simulation left out, as sentences."""
    yield "kube-scheduler's own scores, which it adds to the policy's"
    yield "preemption, pod affinity, spreading, volumes and ports"
    events = [step.what for step in scenario.steps]
    pods = [event.pod for event in events if isinstance(event, Arrive)]
    if any(isinstance(event, Drain) for event in events):
        yield "disruption budgets: all pods of a drained node are deleted at once"
        pods += scenario.there
    if scenario.moves:
        yield "disruption budgets and the restart of pods that move to make room"
    joins = any(isinstance(event, Join) for event in events)
    owners = (pod["metadata"].get("ownerReferences") or () for pod in scenario.there)
    kinds = {owner.get("kind") for references in owners for owner in references}
    if joins and "DaemonSet" in kinds:
        yield "pods of DaemonSets on added nodes, which begin empty"
    # Pods that are alike share one spec.
    specs = {id(pod["spec"]): pod["spec"] for pod in pods}
    resources = [
        _asked(container)
        for spec in specs.values()
        for key in ("initContainers", "containers")
        for container in spec.get(key) or ()
    ]
    if any(names.MEMORY in keys and names.CORE not in keys for keys in resources):
        yield (
            "the webhook: it gives 1 core to a container that asks for units and no "
            "cores"
        )
    if others := set[str]().union(*resources) - _PLAYED:
        listed = words.listed(sorted(others), _MOST_NAMES)
        yield f"other resources that pods ask for, on whatever nodes: {listed}"


def _asked(container: Json) -> set[str]:
    resources = container.get("resources") or {}
    parts = (resources.get(part) or {} for part in ("requests", "limits"))
    return {name for part in parts for name, value in part.items() if value != "0"}


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """One scenario under one or several policies, in the order of the command line."""

    scenario: Scenario
    runs: tuple[PolicyRun, ...]
    nodes: int
    cards: int
    units: int
    not_played: tuple[str, ...]
    """What a real cluster has and this simulation left out, as sentences."""

    @property
    def unchecked(self) -> str:
        """Why ``expect`` was not checked; empty if it was, or if there is none."""
        if not self.scenario.expected or any(run.checked for run in self.runs):
            return ""
        policy = self.scenario.choice.default
        return f"expect is for the policy {policy}, which was not played"


def make_report(scenario: Scenario, runs: Sequence[PolicyRun]) -> SimulationReport:
    """Make a report; nodes and cards are counted at the beginning.

    The curves of all policies end at the same second: that of the longest.
    """
    last_s = max((run.played.moments[-1].at_s for run in runs), default=0.0)
    for run in runs:
        run.played.follow(last_s)
    cards = [size for node in scenario.nodes for size in _units(node)]
    left_out, nodes = tuple(list_not_played(scenario)), len(scenario.nodes)
    return SimulationReport(
        scenario, tuple(runs), nodes, len(cards), sum(cards), left_out
    )


def _units(node: Json) -> list[int]:
    try:
        return [card.units for card in codec.read_cards(node)]
    except Malformed:
        # Such a node offers no cards until it is repaired; inspect says so.
        return []


MOST = 10_000
"""The count of more pods stops here."""
_NAMESPACE = "room:for-more"
"""No real namespace has a colon."""
_KNOWN = ("units", "cores", "cards", "cpu", "memory", "model", "policy")
_EXAMPLE = "give 20, or units=20,cores=10,cpu=4,memory=8Gi, or cards=2"


class _PodSize(PodEntry):
    name: Text = "more"
    cards: Annotated[int, bounded_number(0, MOST)] = 0


def read_size(text: str) -> Json:
    """Read ``20`` (units, with one core) or ``units=20,cpu=4,memory=8Gi,cards=2``.

    Return the manifest of such a pod. Raises ``NotPlayable``, also for what the
    extender would refuse.
    """
    fields: dict[str, str] = {}
    for part in (f"units={text}" if text.isdecimal() else text).split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in _KNOWN or not equals or not value:
            raise _wrong_size(text, f" is not the size of a pod; {_EXAMPLE}")
        if key in fields:
            raise _wrong_size(text, f" has {key} twice")
        fields[key] = value
    if "model" in fields:
        fields["models"] = fields.pop("model")
    if "cards" in fields and "cores" in fields:
        raise _wrong_size(text, ": cards are whole ones; leave the cores out")
    try:
        size = _PodSize.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f": {first['loc'][0]} {first['ctx']['error']}; {_EXAMPLE}"
        raise _wrong_size(text, problem) from error
    if size.cards:
        size = size.model_copy(update={"cores": CORES_PER_CARD * size.cards})
    for _, problem in size.complaints():
        raise _wrong_size(text, f": {problem}")
    if not (size.units or size.cores or size.cpu or size.memory):
        raise _wrong_size(text, f" asks for nothing; {_EXAMPLE}")
    return size.manifest()


def _wrong_size(text: str, problem: str) -> NotPlayable:
    return NotPlayable(f'"{clean_text(text)}"{problem}')


def count_room(cluster: SimulatedCluster, size: Json, on_step: OnStep) -> RoomForMore:
    """Count how many more pods fit; the cluster is left as it was."""
    placed: list[tuple[PodRef, NodeName]] = []
    asks = ""
    for number in range(MOST + 1):
        pod = synthetic.instantiate_pod(size, _NAMESPACE, f"more-{number}")
        ref, needs = cluster.add(pod)
        if isinstance(needs, Refusal):
            # read_size has refused such a size before.
            raise NotPlayable(refusal_text(needs))
        asks = describe_request(needs)
        decided = cluster.place(ref, needs)
        if not isinstance(decided, Placement):
            cluster.take_away(ref, None)
            break
        placed.append((ref, decided.node))
        on_step(len(placed), MOST)
    on_step(MOST, MOST)
    for ref, node in reversed(placed):
        cluster.take_away(ref, node)
    return RoomForMore(asks, min(len(placed), MOST), more=len(placed) > MOST)


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
            _run(run) | (_moves(run) if report.scenario.moves else {})
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
            values = (run.policy, *_moment(moment).values())
            cells = (
                f"{value:.15g}" if isinstance(value, float) else value
                for value in values
            )
            writer.writerow(cells)
    return page.getvalue()


def _run(run: PolicyRun) -> dict[str, Any]:
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
        "fullest": _moment(run.fullest),
        "end": _moment(run.played.end),
        "not_placed": [
            {
                "asks": group.asks,
                "pods": list(group.pods),
                "reasons": dict(group.reasons),
            }
            for group in run.not_placed
        ],
        "room": [asdict(room) for room in run.rooms],
        "curve": [_moment(moment) for moment in thin_moments(run.played.moments)],
        "pods": [_pod(result) for result in run.played.outcomes],
        "unexpected": list(run.wrong),
        "as_expected": not run.wrong if run.checked else None,
        "links": asdict(run.linked) if run.linked else None,
    }


def _moves(run: PolicyRun) -> dict[str, Any]:
    done = run.played.moves
    return {"moves": done and asdict(done), "mean_wait_s": run.mean_wait_s}


def _moment(moment: Moment) -> dict[str, Any]:
    return {column: getattr(moment, column) for column in _MOMENT}


def _by_count(reasons: Mapping[str, int]) -> dict[str, int]:
    """Sort the most frequent one first, because Python's order may change each run."""
    return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))


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
        "reasons": _by_count(result.reasons),
        "first": result.first or None,
    }
