"""Sum up a scenario under one or several policies, and count the room that is left."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpushare.domain.model import CORES_PER_CARD, NodeName, Placement, PodRef
from gpushare.domain.policies import POLICIES
from gpushare.domain.quantity import NotAQuantity
from gpushare.domain.refusal import Refusal, users_words
from gpushare.kube import names, words
from gpushare.kube.annotations import decode_cards
from gpushare.kube.cluster import Json
from gpushare.kube.codec import refusal_text
from gpushare.kube.json_reader import Malformed
from gpushare.kube.names import CARDS
from gpusharectl.simulate import synthetic
from gpusharectl.simulate.cluster import SimulatedCluster
from gpusharectl.simulate.engine import Moment, Outcome, Played, PodOutcome
from gpusharectl.simulate.scenario import (
    NOWHERE,
    Arrive,
    Drain,
    Expected,
    Join,
    Scenario,
    request_text,
)
from gpusharectl.simulate.synthetic import check_amount


@dataclass(frozen=True, slots=True)
class Room:
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
class Run:
    """The result under one policy.

    A pod counts once: if it had to move, by its last outcome. ``moved`` is how many had
    to, ``rehoused`` how many of those found room.
    """

    policy: str
    played: Played
    counts: Mapping[Outcome, int]
    not_placed: tuple[NotPlaced, ...]
    fullest: Moment
    end: Moment
    longest_wait_s: float | None
    untouched: int
    """Cards that hold nothing at the end, on nodes that accept pods."""
    moved: int = 0
    rehoused: int = 0
    wrong: tuple[str, ...] = ()
    """Where the result differs from what the scenario expects, as sentences."""
    rooms: tuple[Room, ...] = ()

    @property
    def pods(self) -> int:
        """Pods that came, and those of the beginning that had to move."""
        return sum(self.counts.values())

    @property
    def placed(self) -> int:
        """Pods that were placed, at once or later."""
        return self.counts[Outcome.PLACED] + self.counts[Outcome.WAITED]


def summed(scenario: Scenario, played: Played) -> Run:
    """Sum up what was played."""
    last = {result.came_as: result for result in played.outcomes}
    moved = {result.came_as for result in played.outcomes if result.first}
    counts = Counter(result.outcome for result in last.values())
    moments = played.moments
    waits = [
        result.waited_s
        for result in played.outcomes
        if result.outcome is Outcome.WAITED
    ]
    # The scenario's expectation holds for the policy that it names.
    expected = played.policy == scenario.choice.default
    return Run(
        policy=played.policy,
        played=played,
        counts={outcome: counts[outcome] for outcome in Outcome},
        not_placed=_not_placed(played.outcomes),
        fullest=max(moments, key=lambda moment: moment.allotted or 0.0),
        end=played.end,
        longest_wait_s=max((one for one in waits if one is not None), default=None),
        untouched=played.untouched,
        moved=len(moved),
        rehoused=sum(bool(last[pod].node) for pod in moved),
        wrong=_wrong(scenario.expected, tuple(last.values())) if expected else (),
    )


def thinned(moments: Sequence[Moment], most: int = 200) -> list[Moment]:
    """Return at most about ``most`` moments: the first, the last, those measured."""
    every = max(1, -(-len(moments) // most))
    last = len(moments) - 1
    return [
        moment
        for number, moment in enumerate(moments)
        if number % every == 0 or number == last or moment.fragmented is not None
    ]


def is_timed(scenario: Scenario) -> bool:
    """Tell whether the scenario has times, or only an order."""
    return any(step.at_s for step in scenario.steps)


def _not_placed(outcomes: Sequence[PodOutcome]) -> tuple[NotPlaced, ...]:
    groups: dict[object, list[PodOutcome]] = {}
    for result in outcomes:
        if result.outcome is Outcome.REFUSED:
            key = (result.asks, tuple(sorted(result.reasons)))
            groups.setdefault(key, []).append(result)
    found = [
        NotPlaced(
            alike[-1].asks,
            tuple(str(result.pod) for result in alike),
            dict(sorted(alike[-1].reasons.items(), key=lambda one: (-one[1], one[0]))),
            alike[-1].nodes,
        )
        for alike in groups.values()
    ]
    return tuple(sorted(found, key=lambda one: (-len(one.pods), one.asks)))


def _wrong(expected: Expected, outcomes: Sequence[PodOutcome]) -> tuple[str, ...]:
    by_name = {result.came_as: result for result in outcomes}
    found = []
    gone = (Outcome.REFUSED,)
    for what, wanted, number in (
        ("placed", expected.placed, sum(bool(result.node) for result in outcomes)),
        (
            "refused",
            expected.refused,
            sum(result.outcome in gone for result in outcomes),
        ),
    ):
        if wanted is not None and wanted != number:
            found.append(f"pods {what}: {number}; expected: {wanted}")
    for pod, place in expected.where.items():
        result = by_name.get(pod)
        came = NOWHERE if result is None else result.place
        if place not in (came, result.node if result else ""):
            found.append(f"{'/'.join(pod)}: {came}; expected: {place}")
    return tuple(found)


NOT_PLAYED = (
    "kube-scheduler's own scores, which it adds to the policy's",
    "preemption, pod affinity, spreading, volumes and ports",
)
"""What a real cluster has and no simulation does."""
_DRAINED = "disruption budgets: all pods of a drained node are deleted at once"
_DAEMONS = "pods of DaemonSets on added nodes, which begin empty"
_WEBHOOK = (
    "the webhook: it gives 1 core to a container that asks for units and no cores"
)
_PLAYED = frozenset({names.MEMORY, names.CORE, "cpu", "memory", "pods"})
_MOST_NAMES = 5


def not_played(scenario: Scenario) -> Iterator[str]:
    """Yield what a real cluster has and this simulation left out, as sentences."""
    yield from NOT_PLAYED
    drains = any(isinstance(step.what, Drain) for step in scenario.steps)
    if drains:
        yield _DRAINED
    joins = any(isinstance(step.what, Join) for step in scenario.steps)
    if joins and any(map(_is_daemon, scenario.there)):
        yield _DAEMONS
    others: set[str] = set()
    lacks_cores = False
    for spec in _specs(scenario, drains=drains):
        for container in _containers(spec):
            asked = _asked(container)
            others |= asked - _PLAYED
            lacks_cores |= names.MEMORY in asked and names.CORE not in asked
    if lacks_cores:
        yield _WEBHOOK
    if others:
        told = words.listed(sorted(others), _MOST_NAMES)
        yield f"other resources that pods ask for, on whatever nodes: {told}"


def _is_daemon(pod: Json) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("kind") == "DaemonSet" for owner in owners)


def _specs(scenario: Scenario, *, drains: bool) -> Iterator[Json]:
    """Yield the specs of pods to be placed; one that several pods share, once."""
    seen: dict[int, Json] = {}
    arriving = (s.what.pod for s in scenario.steps if isinstance(s.what, Arrive))
    for pod in (*arriving, *(scenario.there if drains else ())):
        seen.setdefault(id(pod["spec"]), pod["spec"])
    yield from seen.values()


def _containers(spec: Json) -> Iterator[Json]:
    for key in ("initContainers", "containers"):
        yield from spec.get(key) or ()


def _asked(container: Json) -> set[str]:
    resources = container.get("resources") or {}
    parts = (resources.get(part) or {} for part in ("requests", "limits"))
    return {name for part in parts for name, value in part.items() if value != "0"}


@dataclass(frozen=True, slots=True)
class Report:
    """One scenario under one or several policies, in the order of the command line."""

    scenario: Scenario
    runs: tuple[Run, ...]
    nodes: int
    cards: int
    units: int

    @property
    def not_played(self) -> tuple[str, ...]:
        """What a real cluster has and this simulation left out, as sentences."""
        return tuple(not_played(self.scenario))

    @property
    def unchecked(self) -> str:
        """Why ``expect`` was not checked; empty if it was, or if there is none."""
        own = self.scenario.choice.default
        checked = any(run.policy == own for run in self.runs)
        if checked or not self.scenario.expected:
            return ""
        return f"expect is for the policy {own}, which was not played"

    @property
    def as_expected(self) -> bool:
        """Whether every run has the result that the scenario's file expects."""
        return not any(run.wrong for run in self.runs)


def reported(scenario: Scenario, runs: Sequence[Run]) -> Report:
    """Make a report; nodes and cards are counted at the beginning."""
    cards = [size for node in scenario.nodes for size in _units(node)]
    return Report(scenario, tuple(runs), len(scenario.nodes), len(cards), sum(cards))


def _units(node: Json) -> list[int]:
    text = (node["metadata"].get("annotations") or {}).get(CARDS)
    try:
        return [card.units for card in decode_cards(text)] if text else []
    except Malformed:
        # Such a node offers no cards until it is repaired; inspect says so.
        return []


MOST = 10_000
"""The count of more pods stops here."""
_NAMESPACE = "room:for-more"
"""No real namespace has a colon."""
_MOST_DIGITS = 9
_KNOWN = ("units", "cores", "cards", "cpu", "memory", "model", "policy")
_EXAMPLE = "give 20, or units=20,cores=10,cpu=4,memory=8Gi, or cards=2"


Told = Callable[[int, int], None]
"""Called with the number of pods placed and the most that are tried."""


class SizeError(ValueError):
    """A size of a pod that cannot be read; the message has the fix."""


def read_size(text: str) -> synthetic.PodSpec:
    """Parse ``20`` (units, with one core) or ``units=20,cpu=4,memory=8Gi,cards=2``.

    >>> read_size("20").units, read_size("cards=2").cores
    (20, 200)
    """
    if text.isdecimal():
        units = _number(text, "units", text)
        asked = synthetic.PodSpec(units=units, cores=1 if units else 0)
    else:
        asked = _asked_of_size(text, _told(text))
    _check(text, asked)
    return asked


def _told(text: str) -> dict[str, str]:
    told: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in _KNOWN or not equals or not value:
            raise SizeError(f'"{text}" is not the size of a pod; {_EXAMPLE}')
        if key in told:
            raise SizeError(f'"{text}" has {key} twice')
        told[key] = value
    return told


def _asked_of_size(text: str, told: dict[str, str]) -> synthetic.PodSpec:
    for key in ("cpu", "memory"):
        _check_quantity(text, key, told.get(key, "0"))
    policy = told.get("policy", "")
    if policy and policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise SizeError(f'"{text}": no policy "{policy}"; known are {known}')
    units = _number(text, "units", told.get("units", "0"))
    cards = _number(text, "cards", told.get("cards", "0"))
    return synthetic.PodSpec(
        units=units,
        cores=_cores(text, told, units, cards),
        cpu=told.get("cpu", ""),
        memory=told.get("memory", ""),
        models=(told["model"],) if "model" in told else (),
        policy=policy,
    )


def rooms(
    cluster: SimulatedCluster,
    sizes: Sequence[synthetic.PodSpec],
    told: Told = lambda _done, _most: None,
) -> list[Room]:
    """Count for each size alone how many more fit; the cluster is left as it was."""
    cluster.learns = False
    found = [_room(cluster, asked, told) for asked in sizes]
    cluster.learns = True
    return found


def _room(cluster: SimulatedCluster, asked: synthetic.PodSpec, told: Told) -> Room:
    placed: list[tuple[PodRef, NodeName]] = []
    said = ""
    for number in range(MOST + 1):
        found = cluster.add(synthetic.pod(_NAMESPACE, f"more-{number}", asked))
        if isinstance(found, Refusal):
            # read_size has refused such a size before.
            raise SizeError(refusal_text(found))
        said = request_text(found.needs)
        decided = cluster.place(found)
        if not isinstance(decided, Placement):
            cluster.take_away(found.ref, None)
            break
        placed.append((found.ref, decided.node))
        told(len(placed), MOST)
    told(MOST, MOST)
    for ref, node in reversed(placed):
        cluster.take_away(ref, node)
    return Room(said, min(len(placed), MOST), more=len(placed) > MOST)


def _cores(text: str, told: dict[str, str], units: int, cards: int) -> int:
    if cards and "cores" in told:
        raise SizeError(f'"{text}": cards are whole ones; leave the cores out')
    if cards:
        return CORES_PER_CARD * cards
    # The webhook does the same: memory comes with one core at least.
    return _number(text, "cores", told.get("cores", "1" if units else "0"))


def _number(text: str, key: str, value: str) -> int:
    most = MOST * CORES_PER_CARD
    fits = value.isdecimal() and len(value) <= _MOST_DIGITS and int(value) <= most
    if not fits:
        raise SizeError(
            f'"{users_words(text)}": {key} must be a whole number of 0 to {most}; '
            f"{_EXAMPLE}"
        )
    return int(value)


def _check(text: str, asked: synthetic.PodSpec) -> None:
    """Check a pod of this size as the extender would, before anything is played."""
    if problem := synthetic.refused(synthetic.pod(_NAMESPACE, "more", asked)):
        raise SizeError(f'"{users_words(text)}": {problem}')
    if not (asked.units or asked.cores or asked.cpu or asked.memory):
        raise SizeError(f'"{users_words(text)}" asks for nothing; {_EXAMPLE}')


def _check_quantity(text: str, key: str, value: str) -> None:
    try:
        check_amount(value)
    except NotAQuantity as error:
        raise SizeError(f'"{text}": {key} is "{value}"; {_EXAMPLE}') from error
