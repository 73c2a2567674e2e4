"""Playing a scenario: what comes, what goes, and what is decided meanwhile.

What came of each pod of a scenario. Pure.

What is on the stage of a simulation, and what happens to it.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count

from gpushare.domain.model import NodeName, Placement, PodRef, PodUID
from gpushare.domain.policies import Choice
from gpushare.domain.refusal import Refusal
from gpushare.kube.cluster import Json
from gpushare.kube.codec import refusal_text
from gpushare.kube.facts import is_leaving
from gpusharectl.simulate.cluster import Newcomer, World
from gpusharectl.simulate.metrics import Gauge
from gpusharectl.simulate.scenario import (
    Arrive,
    Drain,
    Happening,
    Join,
    Leave,
    Scenario,
    asks,
    whole_ms,
)
from gpusharectl.simulate.synthetic import before_it_ran, named_after


class Outcome(StrEnum):
    """How it ended for a pod."""

    PLACED = "placed"
    """At once, as it came."""
    WAITED = "waited"
    """Placed, after others had made room."""
    REFUSED = "refused"
    """Never placed: dropped, or waiting at the end."""
    LEFT = "left"
    """Deleted while it waited."""


@dataclass(slots=True)
class Fate:
    """One pod: when it came, where it went, when it left; times in seconds.

    ``cards`` are indexes. ``reasons`` are how many nodes refused it for which reason,
    at its last try; a pod that no node could ever take has its one reason with 0.
    """

    pod: PodRef
    asks: str
    came_s: float
    outcome: Outcome = Outcome.REFUSED
    placed_s: float | None = None
    left_s: float | None = None
    node: str = ""
    cards: tuple[int, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    nodes: int = 0
    """How many refused it: fewer than the reasons say, where one had several."""
    first: str = ""
    """What the pod was called that came first, where this one took its place."""

    @property
    def came_as(self) -> tuple[str, str]:
        """Namespace and first name: the same for all that took one pod's place."""
        return (self.pod.namespace, self.first or self.pod.name)

    @property
    def waited_s(self) -> float | None:
        """Seconds from coming to being placed; None where it never was."""
        if self.placed_s is None:
            return None
        return whole_ms(self.placed_s - self.came_s)

    @property
    def place(self) -> str:
        """Where it was put: ``node-1 card 0``, ``node-2 cards 0, 1``, ``nowhere``."""
        if not self.node:
            return "nowhere"
        if not self.cards:
            return self.node
        several = "s" if len(self.cards) > 1 else ""
        return f"{self.node} card{several} {', '.join(map(str, self.cards))}"


@dataclass(frozen=True, slots=True)
class Moment:
    """How full the cluster is after something happened.

    ``arrived`` and ``held`` in units of memory: what all pods that have come asked, and
    what those that run hold; ``asked`` what those ask that run or wait. ``fragmented``
    is the share (0 to 1) of the free units that a pod of those seen could not use,
    drawn by lot; None where it was not looked at, or nothing is free.
    """

    at_s: float
    arrived: int
    asked: int
    held: int
    units: int
    held_cores: int
    cores: int
    waiting: int
    fragmented: float | None = None

    @property
    def allotted(self) -> float | None:
        """The share of all units that is held, 0 to 1; None without any units."""
        return self.held / self.units if self.units else None

    @property
    def load(self) -> float | None:
        """What has arrived, as a share of all units; may be above 1."""
        return self.arrived / self.units if self.units else None


_MOST_NAME = 200
"""Of a name, so that it may get a number behind it."""


@dataclass(slots=True)
class StagePod:
    """A pod of the scenario, while it is there."""

    fate: Fate
    arrive: Arrive
    newcomer: Newcomer
    units: int


@dataclass(slots=True)
class Stage:
    """Who runs, who waits, and what came of everybody so far."""

    world: World
    gauge: Gauge
    waits: bool
    fates: list[Fate] = field(default_factory=list)
    running: dict[tuple[str, str], StagePod] = field(default_factory=dict)
    waiting: dict[PodUID, StagePod] = field(default_factory=dict)
    ends: list[tuple[float, int, PodUID, StagePod]] = field(default_factory=list)
    there: dict[tuple[str, str], tuple[PodRef, Json]] = field(default_factory=dict)
    arrived: int = 0
    asked: int = 0
    taken: set[tuple[str, str]] = field(default_factory=set)
    """Names that no pod may get: of all that are there, or are to come."""
    called: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """What a pod that moved is called now, by what it was called first."""
    moved: int = 0
    numbers: "count[int]" = field(default_factory=count)


def happen(stage: Stage, what: Happening) -> None:
    """Let one thing of the scenario happen."""
    match what:
        case Arrive():
            _arrive(stage, what)
        case Leave():
            _leave(stage, what)
        case Join():
            stage.world.add_node(what.node)
            try_again(stage)
        case Drain():
            _drain(stage, what)


def _arrive(stage: Stage, arrive: Arrive, first: str = "") -> None:
    """Let a pod come; ``first``: the name of the one whose place it takes, if any."""
    world = stage.world
    found = world.add(arrive.pod)
    metadata = arrive.pod["metadata"]
    if isinstance(found, Refusal):
        ref = PodRef(PodUID(""), metadata["namespace"], metadata["name"])
        reasons = {refusal_text(found): 0}
        never = Fate(ref, "n/a", world.clock.now_s, reasons=reasons, first=first)
        stage.fates.append(never)
        return
    stage.gauge.see(found.question)
    fate = Fate(found.ref, asks(found.question), world.clock.now_s, first=first)
    pod = StagePod(fate, arrive, found, _units(stage, found))
    stage.fates.append(fate)
    stage.arrived += 0 if first else pod.units
    stage.asked += pod.units
    if _place(stage, pod, Outcome.PLACED):
        return
    if stage.waits:
        stage.waiting[found.ref.uid] = pod
    else:
        world.take_away(found.ref, None)
        stage.asked -= pod.units


def _place(stage: Stage, pod: StagePod, outcome: Outcome) -> bool:
    world, fate = stage.world, pod.fate
    decided = world.place(pod.newcomer)
    if not isinstance(decided, Placement):
        fate.reasons, fate.nodes = decided.reasons, decided.nodes
        return False
    fate.outcome, fate.placed_s = outcome, world.clock.now_s
    fate.node, fate.cards = str(decided.node), _indexes(world, decided)
    fate.reasons = {}
    stage.running[fate.pod.namespace, fate.pod.name] = pod
    if pod.arrive.lasts_s is not None:
        end = whole_ms(world.clock.now_s + pod.arrive.lasts_s)
        heapq.heappush(stage.ends, (end, next(stage.numbers), fate.pod.uid, pod))
    return True


def try_again(stage: Stage) -> None:
    """Try those that wait, the most important first; one of each kind is enough."""
    hopeless: dict[object, Fate] = {}
    order = sorted(stage.waiting.values(), key=lambda pod: -pod.fate.pod.priority)
    for pod in order:
        kind = pod.newcomer.question.kind
        if kind in hopeless:
            alike = hopeless[kind]
            pod.fate.reasons, pod.fate.nodes = alike.reasons, alike.nodes
        elif _place(stage, pod, Outcome.WAITED):
            del stage.waiting[pod.fate.pod.uid]
        else:
            hopeless[kind] = pod.fate


def take_away(stage: Stage, key: tuple[str, str]) -> None:
    """Delete a pod of the scenario that runs."""
    pod = stage.running.pop(key)
    stage.world.take_away(pod.fate.pod, NodeName(pod.fate.node))
    pod.fate.left_s = stage.world.clock.now_s
    stage.asked -= pod.units


def _leave(stage: Stage, leave: Leave) -> None:
    first = (leave.namespace, leave.name)
    key = stage.called.get(first, first)
    if key in stage.running:
        take_away(stage, key)
    elif key in stage.there:
        ref, body = stage.there.pop(key)
        stage.world.take_away(ref, NodeName(body["spec"]["nodeName"]))
    else:
        waits = (pod for pod in stage.waiting.values() if _key(pod) == key)
        pod = next(waits, None)
        if pod is None:
            return
        del stage.waiting[pod.fate.pod.uid]
        stage.world.take_away(pod.fate.pod, None)
        pod.fate.outcome, pod.fate.left_s = Outcome.LEFT, stage.world.clock.now_s
        stage.asked -= pod.units
    try_again(stage)


def _drain(stage: Stage, drain: Drain) -> None:
    """Close a node; its pods go, and come anew, the most important first.

    Who waits is tried again: for the reasons, mostly, which are others now.
    """
    name = NodeName(drain.node)
    stage.world.close_node(name)
    again: list[tuple[Arrive, str]] = []
    for key, (ref, body) in list(stage.there.items()):
        if body["spec"]["nodeName"] == name and not _stays(body):
            del stage.there[key]
            stage.world.take_away(ref, name)
            if not is_leaving(body):
                again.append(_anew(stage, Arrive(body), str(ref.name)))
    for key, pod in list(stage.running.items()):
        if pod.fate.node == name:
            take_away(stage, key)
            again.append(_anew(stage, pod.arrive, pod.fate.came_as[1]))
    if drain.gone:
        for key, (ref, body) in list(stage.there.items()):
            if body["spec"]["nodeName"] == name:
                del stage.there[key]
                stage.world.take_away(ref, name)
        stage.world.remove_node(name)
    for arrive, first in sorted(again, key=lambda one: -one[0].priority):
        _arrive(stage, arrive, first)
    try_again(stage)


def _stays(pod: Json) -> bool:
    """Tell whether a drain leaves a pod where it is: a DaemonSet's, or a static one."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("kind") in ("DaemonSet", "Node") for owner in owners)


def _anew(stage: Stage, arrive: Arrive, first: str) -> tuple[Arrive, str]:
    """Give the pod that takes a drained one's place, under a free name of its own."""
    pod = before_it_ran(arrive.pod)
    space = pod["metadata"]["namespace"]
    while True:
        stage.moved += 1
        key = (space, f"{first[:_MOST_NAME]}-moved-{stage.moved}")
        if key not in stage.taken:
            break
    stage.taken.add(key)
    stage.called[space, first] = key
    return replace(arrive, pod=named_after(pod, *key)), first


def moment_of(stage: Stage, *, look: bool) -> Moment:
    """Take down how full it is; ``look``: at fragmentation, too."""
    held, units, held_cores, cores = stage.gauge.full()
    return Moment(
        stage.world.clock.now_s,
        stage.arrived,
        stage.asked,
        held,
        units,
        held_cores,
        cores,
        len(stage.waiting),
        stage.gauge.fragmented() if look else None,
    )


def _units(stage: Stage, newcomer: Newcomer) -> int:
    """Give what a pod asks in units; a whole card counts as an average card."""
    a_card = stage.gauge.units_a_card()
    return sum(
        max(claim.amount.units, claim.whole_cards * a_card)
        for claim in newcomer.question.request.claims
    )


def _key(pod: StagePod) -> tuple[str, str]:
    return (pod.fate.pod.namespace, pod.fate.pod.name)


def _indexes(world: World, decided: Placement) -> tuple[int, ...]:
    page = world.ledger.node(decided.node)
    index = {card.uuid: card.index for card in page.cards} if page else {}
    return tuple(sorted(index[uuid] for uuid in decided.cards() if uuid in index))


LOOKS = 200
"""How often, in a long run, fragmentation is looked at: that costs time."""
OnStep = Callable[[int, int], None]
"""Called with steps done and steps there are."""


@dataclass(frozen=True, slots=True)
class Played:
    """One scenario under one policy: what came of each pod, and how full it got.

    ``end`` and ``untouched`` are of the scenario's last step, the same second under
    every policy. Who waits by then is still followed, in ``fates`` and ``moments``.
    """

    policy: str
    fates: Sequence[Fate]
    moments: Sequence[Moment]
    end: Moment
    untouched: int
    """Cards of which nobody holds anything, on nodes that take pods."""
    world: World


def play(
    scenario: Scenario,
    choice: Choice,
    progress: OnStep = lambda _done, _all: None,
    *,
    looks: int = LOOKS,
    at_end: Callable[[World], None] = lambda _world: None,
) -> Played:
    """Play it all, under the choice's policy where a pod does not name its own.

    ``looks`` is how often fragmentation is looked at on the way; 0: never. ``at_end``
    is called after the last step, and leaves the world as it was.
    """
    stage = _begun(scenario, choice)
    moments = [moment_of(stage, look=bool(looks))]
    total = len(scenario.steps)
    every = max(1, total // looks) if looks else total + 1
    for number, step in enumerate(scenario.steps):
        _end_until(stage, step.at_s, moments)
        stage.world.clock.now_s = step.at_s
        happen(stage, step.what)
        moments.append(moment_of(stage, look=number % every == every - 1))
        progress(number + 1, total)
    end, untouched = moment_of(stage, look=bool(looks)), stage.world.untouched()
    moments.append(end)
    at_end(stage.world)
    _end_until(stage, None, moments)
    if moments[-1] is not end:
        moments.append(moment_of(stage, look=bool(looks)))
    return Played(choice.default, stage.fates, moments, end, untouched, stage.world)


def _begun(scenario: Scenario, choice: Choice) -> Stage:
    """Give the stage with what is there before the first step."""
    world = World(choice)
    for node in scenario.nodes:
        world.add_node(node)
    stage = Stage(world, Gauge(world), scenario.waits, taken=_names(scenario))
    for pod in scenario.there:
        ref = world.add_bound(pod)
        stage.there[ref.namespace, ref.name] = (ref, pod)
    return stage


def _names(scenario: Scenario) -> set[tuple[str, str]]:
    """Give the names of all pods that are there or come, with their namespaces."""
    arriving = (s.what.pod for s in scenario.steps if isinstance(s.what, Arrive))
    every = (pod["metadata"] for pod in (*scenario.there, *arriving))
    return {(one["namespace"], one["name"]) for one in every}


def _end_until(stage: Stage, at_s: float | None, moments: list[Moment]) -> None:
    """End the pods whose time is up by then; all, one after the other, by None."""
    while stage.ends and (at_s is None or stage.ends[0][0] <= at_s):
        end, _, uid, pod = heapq.heappop(stage.ends)
        key = (pod.fate.pod.namespace, pod.fate.pod.name)
        found = stage.running.get(key)
        if found is None or found.fate.pod.uid != uid:
            continue
        if at_s is None and not stage.waiting:
            # Nobody waits for it: how the cluster empties is of no interest.
            continue
        stage.world.clock.now_s = end
        take_away(stage, key)
        try_again(stage)
        moments.append(moment_of(stage, look=False))
