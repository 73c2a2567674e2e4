"""What is on the stage of a simulation, and what happens to it."""

import heapq
from dataclasses import dataclass, field, replace
from itertools import count

from gpushare.domain.model import NodeName, Placement, PodRef, PodUID
from gpushare.domain.summary import Refusal
from gpushare.kube.cluster import Json
from gpushare.kube.codec import refusal_text
from gpusharectl.inspection.facts import is_leaving
from gpusharectl.simulator.asking import asks
from gpusharectl.simulator.durations import whole_ms
from gpusharectl.simulator.fates import Fate, Moment, Outcome
from gpusharectl.simulator.gauge import Gauge
from gpusharectl.simulator.made import named_after
from gpusharectl.simulator.podtemplate import before_it_ran
from gpusharectl.simulator.scenario import Arrive, Drain, Happening, Join, Leave
from gpusharectl.simulator.world import Newcomer, World

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
