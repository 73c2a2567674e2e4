"""Sum up a scenario under one or several policies, and count the room that is left."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Annotated

from pydantic import ValidationError

from gpushare.domain.links import NVLINK
from gpushare.domain.model import (
    CORES_PER_CARD,
    Card,
    NodeName,
    Placement,
    PodRef,
    Refusal,
    clean_text,
)
from gpushare.domain.policies import PolicyChoice
from gpushare.kube import names, words
from gpushare.kube.annotations import encode_cards, read_cards
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
from gpusharectl.simulator.scenario import (
    NOWHERE,
    Arrive,
    Drain,
    ExpectedResult,
    Join,
    NotPlayable,
    PodName,
    Scenario,
    ScenarioStep,
    describe_request,
    round_to_ms,
)
from gpusharectl.simulator.scenario_file import PodEntry


@dataclass(frozen=True, slots=True)
class Linked:
    """The pods of several whole cards that were placed where links are known.

    ``pair_score`` is the mean of the pair scores of each pod, and of those the mean
    over all pods. ``nvlinked`` are pods of which each pair of cards has an NVLink.
    """

    pods: int
    nvlinked: int
    pair_score: float

    @property
    def share(self) -> float:
        """The share of the pods that have NVLinks between all their cards, 0 to 1."""
        return self.nvlinked / self.pods


def measure_links(scenario: Scenario, outcomes: Sequence[PodOutcome]) -> Linked | None:
    """Sum up; None if no such pod was placed."""
    scores_of_pods = [scores for _, scores in score_pods(scenario, outcomes)]
    if not scores_of_pods:
        return None
    means = [sum(scores) / len(scores) for scores in scores_of_pods]
    nvlinked = sum(min(scores) >= NVLINK for scores in scores_of_pods)
    return Linked(len(scores_of_pods), nvlinked, sum(means) / len(means))


def score_pods(
    scenario: Scenario, outcomes: Sequence[PodOutcome]
) -> Iterator[tuple[PodOutcome, list[int]]]:
    """Yield each pod for which links count, with the scores of all pairs of its cards.

    Those of the scenario's nodes, whether or not they were used to choose.
    """
    rows = {name: _rows(cards) for name, cards in _linked_nodes(scenario).items()}
    for result in outcomes:
        row = rows.get(result.node)
        if row is not None and result.wants_links:
            yield result, [row[a][b] for a, b in combinations(result.cards, 2)]


def drop_links(scenario: Scenario) -> Scenario:
    """Return the scenario as if no device plugin told links; nothing is expected."""

    def changed(step: ScenarioStep) -> ScenarioStep:
        if isinstance(step.what, Join):
            return replace(step, what=Join(_without(step.what.node)))
        return step

    return replace(
        scenario,
        nodes=tuple(map(_without, scenario.nodes)),
        steps=tuple(map(changed, scenario.steps)),
        expected=ExpectedResult(),
    )


def has_links(scenario: Scenario) -> bool:
    """Return whether any node of the scenario has links."""
    return bool(_linked_nodes(scenario))


def _linked_nodes(scenario: Scenario) -> Mapping[str, Sequence[Card]]:
    joined = (s.what.node for s in scenario.steps if isinstance(s.what, Join))
    linked = {}
    for node in (*scenario.nodes, *joined):
        cards = _cards(node)
        if any(card.links for card in cards):
            linked[node["metadata"]["name"]] = cards
    return linked


def _cards(node: Json) -> Sequence[Card]:
    try:
        return read_cards(node)
    except Malformed:
        return ()


def _rows(cards: Sequence[Card]) -> Mapping[int, Mapping[int, int]]:
    """Return the score of each pair by the cards' indexes."""
    none = (0,) * len(cards)
    return {
        card.index: {
            other.index: score
            for other, score in zip(cards, card.links or none, strict=True)
        }
        for card in cards
    }


def _without(node: Json) -> Json:
    cards = _cards(node)
    if not any(card.links for card in cards):
        return node
    metadata = node["metadata"]
    text = encode_cards(replace(card, links=()) for card in cards)
    notes = {**metadata["annotations"], names.CARDS: text}
    return {**node, "metadata": {**metadata, "annotations": notes}}


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
            sort_by_count(alike[-1].reasons),
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
        return [card.units for card in read_cards(node)]
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


def sort_by_count(reasons: Mapping[str, int]) -> dict[str, int]:
    """Sort the most frequent one first, because Python's order may change each run."""
    return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))
