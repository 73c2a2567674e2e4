"""Play a scenario under one policy, and record what becomes of each pod.

``Gauge`` measures how full the cluster is. Fragmentation is measured as in "Beware of
Fragmentation" (USENIX ATC 2023): the part of the free units that a random pod of those
seen cannot use. Either no card of the node has enough, or its CPU, memory or labels do
not fit, or the pod needs more untouched cards than there are. Only nodes that changed
are measured again.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count

from gpushare.domain.model import CORES_PER_CARD, NodeName, Placement, PodRef, PodUID
from gpushare.domain.node import Node
from gpushare.domain.policies import Choice
from gpushare.domain.refusal import Refusal
from gpushare.kube.cluster import Json
from gpushare.kube.codec import refusal_text
from gpushare.kube.facts import is_leaving
from gpusharectl.simulate.cluster import PendingPod, PodNeeds, SimulatedCluster
from gpusharectl.simulate.scenario import (
    Arrive,
    Drain,
    Event,
    Join,
    Leave,
    Scenario,
    request_text,
    whole_ms,
)
from gpusharectl.simulate.synthetic import before_it_ran, is_bound_to_node, named_after

_TYPICAL = 0.95
"""The most frequent kinds of pods are used, up to this share of all pods."""
_MOST_KINDS = 60


@dataclass(slots=True)
class _Sums:
    by_node: dict[NodeName, int] = field(default_factory=dict)
    total: int = 0

    def put(self, name: NodeName, value: int) -> None:
        self.total += value - self.by_node.get(name, 0)
        self.by_node[name] = value


@dataclass(slots=True)
class _Kind:
    needs: PodNeeds
    position: int = 0
    useless: _Sums = field(default_factory=_Sums)


class Gauge:
    """Units and cores held and free over all nodes, kept up to date."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._position = 0
        self._held, self._units = _Sums(), _Sums()
        self._held_cores, self._cores = _Sums(), _Sums()
        self._free = _Sums()
        self._seen: Counter[object] = Counter()
        self._kinds: dict[object, _Kind] = {}

    def see(self, needs: PodNeeds) -> None:
        """Count a new pod, if it asks for cards."""
        if needs.request.claims:
            kind = needs.kind
            self._seen[kind] += 1
            if kind not in self._kinds:
                self._kinds[kind] = _Kind(needs)

    def full(self) -> tuple[int, int, int, int]:
        """Return units held, all units, cores held and all cores."""
        cluster = self._cluster
        for name in cluster.candidates.changed_since(self._position):
            page = cluster.ledger.node(name)
            self._put(name, page or Node(name))
        self._position = cluster.candidates.position()
        return (
            self._held.total,
            self._units.total,
            self._held_cores.total,
            self._cores.total,
        )

    def fragmented(self) -> float | None:
        """Return the share of the free units that a typical pod cannot use, 0 to 1."""
        self.full()
        typical = self._typical()
        if not self._free.total or not typical:
            return None
        lost = sum(number * self._useless(kind) for kind, number in typical)
        pods = sum(number for _, number in typical)
        return lost / pods / self._free.total

    def units_a_card(self) -> int:
        """Return the units of an average card: a whole card counts as many."""
        cards = self._cores.total // CORES_PER_CARD
        return self._units.total // cards if cards else 0

    def _put(self, name: NodeName, page: Node) -> None:
        charged = page.charged.values()
        self._held.put(name, sum(units for _, units in charged))
        self._held_cores.put(name, sum(cores for cores, _ in charged))
        self._units.put(name, sum(card.units for card in page.cards))
        self._cores.put(name, CORES_PER_CARD * len(page.cards))
        self._free.put(name, sum(max(0, room.units) for room in page.free.values()))

    def _typical(self) -> list[tuple[_Kind, int]]:
        """Return the most frequent kinds with the number of their pods."""
        left = _TYPICAL * self._seen.total()
        found = []
        for kind, number in self._seen.most_common(_MOST_KINDS):
            if left <= 0:
                break
            found.append((self._kinds[kind], number))
            left -= number
        return found

    def _useless(self, kind: _Kind) -> int:
        candidates = self._cluster.candidates
        for name in candidates.changed_since(kind.position):
            page = self._cluster.ledger.node(name)
            value = 0
            if page is not None and page.cards and candidates.knows(name):
                fits = not candidates.judge(kind.needs, name)
                value = useless(kind.needs, page, fits=fits)
            kind.useless.put(name, value)
        kind.position = candidates.position()
        return kind.useless.total


def useless(needs: PodNeeds, page: Node, *, fits: bool) -> int:
    """Return the free units of a node that the pod cannot use; all unless it fits."""
    request = needs.request
    free = {uuid: room for uuid, room in page.free.items() if room.units > 0}
    if not fits:
        return sum(room.units for room in free.values())
    whole = any(claim.whole_cards for claim in request.claims)
    least = min(request.claims, key=lambda claim: claim.amount.units).amount
    untouched = {card.uuid for card in page.untouched}
    lost = 0
    for card in page.cards:
        room = free.get(card.uuid)
        if room is None:
            continue
        usable = card.uuid in untouched if whole else least.fits(room)
        if not usable or request.limits(card):
            lost += room.units
    return lost


class Outcome(StrEnum):
    """What became of a pod."""

    PLACED = "placed"
    """Placed when it came."""
    WAITED = "waited"
    """Placed later, after others had made room."""
    REFUSED = "refused"
    """Never placed: dropped, or still pending at the end."""
    LEFT = "left"
    """Deleted while it was pending."""


@dataclass(slots=True)
class PodOutcome:
    """One pod: when it came, where it was placed, when it ended; times in seconds.

    ``cards`` are indexes. ``reasons`` count the nodes that refused it at its last try,
    by reason. A pod that no node can ever take has one reason, with the number 0.
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
    """How many nodes refused it; less than all ``reasons`` if some had several."""
    first: str = ""
    """The name of the first pod, if this one replaces a pod of a drained node."""

    @property
    def came_as(self) -> tuple[str, str]:
        """Namespace and first name: the same for all pods that replace one another."""
        return (self.pod.namespace, self.first or self.pod.name)

    @property
    def waited_s(self) -> float | None:
        """Seconds until it was placed; None if it never was."""
        if self.placed_s is None:
            return None
        return whole_ms(self.placed_s - self.came_s)

    @property
    def place(self) -> str:
        """Where it is: ``node-1 card 0``, ``node-2 cards 0, 1`` or ``nowhere``."""
        if not self.node:
            return "nowhere"
        if not self.cards:
            return self.node
        several = "s" if len(self.cards) > 1 else ""
        return f"{self.node} card{several} {', '.join(map(str, self.cards))}"


@dataclass(frozen=True, slots=True)
class Moment:
    """How full the cluster is at one moment.

    ``arrived`` are the units that all pods so far asked for, ``held`` those of running
    pods, ``asked`` those of running and pending pods. ``fragmented`` is the share (0 to
    1) of the free units that a typical pod cannot use; None if it was not measured or
    nothing is free.
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
"""Characters of a name, so that a number fits behind it."""


@dataclass(slots=True)
class PlayedPod:
    """A pod of the scenario while it runs or is pending."""

    result: PodOutcome
    arrive: Arrive
    pending: PendingPod
    units: int


@dataclass(slots=True)
class State:
    """Who runs, who is pending, and what became of everybody so far."""

    cluster: SimulatedCluster
    gauge: Gauge
    waits: bool
    outcomes: list[PodOutcome] = field(default_factory=list)
    running: dict[tuple[str, str], PlayedPod] = field(default_factory=dict)
    waiting: dict[PodUID, PlayedPod] = field(default_factory=dict)
    ends: list[tuple[float, int, PodUID, PlayedPod]] = field(default_factory=list)
    there: dict[tuple[str, str], tuple[PodRef, Json]] = field(default_factory=dict)
    arrived: int = 0
    asked: int = 0
    taken: set[tuple[str, str]] = field(default_factory=set)
    """Names that no new pod may get: all pods that exist or will come."""
    called: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """The present name of a pod that moved, by its first name."""
    moved: int = 0
    numbers: "count[int]" = field(default_factory=count)


def apply(state: State, what: Event) -> None:
    """Apply one event of the scenario."""
    match what:
        case Arrive():
            _arrive(state, what)
        case Leave():
            _leave(state, what)
        case Join():
            state.cluster.add_node(what.node)
            try_again(state)
        case Drain():
            _drain(state, what)


def _arrive(state: State, arrive: Arrive, first: str = "") -> None:
    """Add a pod; ``first`` is the first name of the pod that it replaces, if any."""
    cluster = state.cluster
    found = cluster.add(arrive.pod)
    metadata = arrive.pod["metadata"]
    if isinstance(found, Refusal):
        ref = PodRef(PodUID(""), metadata["namespace"], metadata["name"])
        reasons = {refusal_text(found): 0}
        never = PodOutcome(
            ref, "n/a", cluster.clock.now_s, reasons=reasons, first=first
        )
        state.outcomes.append(never)
        return
    state.gauge.see(found.needs)
    result = PodOutcome(
        found.ref, request_text(found.needs), cluster.clock.now_s, first=first
    )
    pod = PlayedPod(result, arrive, found, _units(state, found))
    state.outcomes.append(result)
    state.arrived += 0 if first else pod.units
    state.asked += pod.units
    if _place(state, pod, Outcome.PLACED):
        return
    if state.waits:
        state.waiting[found.ref.uid] = pod
    else:
        cluster.take_away(found.ref, None)
        state.asked -= pod.units


def _place(state: State, pod: PlayedPod, outcome: Outcome) -> bool:
    cluster, result = state.cluster, pod.result
    decided = cluster.place(pod.pending)
    if not isinstance(decided, Placement):
        result.reasons, result.nodes = decided.reasons, decided.nodes
        return False
    result.outcome, result.placed_s = outcome, cluster.clock.now_s
    result.node, result.cards = str(decided.node), _indexes(cluster, decided)
    result.reasons = {}
    state.running[result.pod.namespace, result.pod.name] = pod
    if pod.arrive.lasts_s is not None:
        end = whole_ms(cluster.clock.now_s + pod.arrive.lasts_s)
        heapq.heappush(state.ends, (end, next(state.numbers), result.pod.uid, pod))
    return True


def try_again(state: State) -> None:
    """Try pending pods by priority; of those alike that are refused, only one."""
    hopeless: dict[object, PodOutcome] = {}
    order = sorted(state.waiting.values(), key=lambda pod: -pod.result.pod.priority)
    for pod in order:
        kind = pod.pending.needs.kind
        if kind in hopeless:
            alike = hopeless[kind]
            pod.result.reasons, pod.result.nodes = alike.reasons, alike.nodes
        elif _place(state, pod, Outcome.WAITED):
            del state.waiting[pod.result.pod.uid]
        else:
            hopeless[kind] = pod.result


def take_away(state: State, key: tuple[str, str]) -> None:
    """Delete a running pod of the scenario."""
    pod = state.running.pop(key)
    state.cluster.take_away(pod.result.pod, NodeName(pod.result.node))
    pod.result.left_s = state.cluster.clock.now_s
    state.asked -= pod.units


def _leave(state: State, leave: Leave) -> None:
    first = (leave.namespace, leave.name)
    key = state.called.get(first, first)
    if key in state.running:
        take_away(state, key)
    elif key in state.there:
        ref, body = state.there.pop(key)
        state.cluster.take_away(ref, NodeName(body["spec"]["nodeName"]))
    else:
        waits = (pod for pod in state.waiting.values() if _key(pod) == key)
        pod = next(waits, None)
        if pod is None:
            return
        del state.waiting[pod.result.pod.uid]
        state.cluster.take_away(pod.result.pod, None)
        pod.result.outcome, pod.result.left_s = Outcome.LEFT, state.cluster.clock.now_s
        state.asked -= pod.units
    try_again(state)


def _drain(state: State, drain: Drain) -> None:
    """Close a node. Its pods are deleted and created again, by priority.

    Pending pods are tried again, because the reasons why they wait have changed.
    """
    name = NodeName(drain.node)
    state.cluster.close_node(name)
    again: list[tuple[Arrive, str]] = []
    for key, (ref, body) in list(state.there.items()):
        if body["spec"]["nodeName"] == name and not is_bound_to_node(body):
            del state.there[key]
            state.cluster.take_away(ref, name)
            if not is_leaving(body):
                again.append(_anew(state, Arrive(body), str(ref.name)))
    for key, pod in list(state.running.items()):
        if pod.result.node == name:
            take_away(state, key)
            again.append(_anew(state, pod.arrive, pod.result.came_as[1]))
    if drain.gone:
        for key, (ref, body) in list(state.there.items()):
            if body["spec"]["nodeName"] == name:
                del state.there[key]
                state.cluster.take_away(ref, name)
        state.cluster.remove_node(name)
    for arrive, first in sorted(again, key=lambda one: -one[0].priority):
        _arrive(state, arrive, first)
    try_again(state)


def _anew(state: State, arrive: Arrive, first: str) -> tuple[Arrive, str]:
    """Return the pod that replaces a drained one, under a free name."""
    pod = before_it_ran(arrive.pod)
    space = pod["metadata"]["namespace"]
    while True:
        state.moved += 1
        key = (space, f"{first[:_MOST_NAME]}-moved-{state.moved}")
        if key not in state.taken:
            break
    state.taken.add(key)
    state.called[space, first] = key
    return replace(arrive, pod=named_after(pod, *key)), first


def moment_of(state: State, *, look: bool) -> Moment:
    """Measure how full the cluster is; ``look``: fragmentation, too."""
    held, units, held_cores, cores = state.gauge.full()
    return Moment(
        state.cluster.clock.now_s,
        state.arrived,
        state.asked,
        held,
        units,
        held_cores,
        cores,
        len(state.waiting),
        state.gauge.fragmented() if look else None,
    )


def _units(state: State, pending: PendingPod) -> int:
    """Return what a pod asks for in units; a whole card counts as an average card."""
    a_card = state.gauge.units_a_card()
    return sum(
        max(claim.amount.units, claim.whole_cards * a_card)
        for claim in pending.needs.request.claims
    )


def _key(pod: PlayedPod) -> tuple[str, str]:
    return (pod.result.pod.namespace, pod.result.pod.name)


def _indexes(cluster: SimulatedCluster, decided: Placement) -> tuple[int, ...]:
    page = cluster.ledger.node(decided.node)
    index = {card.uuid: card.index for card in page.cards} if page else {}
    return tuple(sorted(index[uuid] for uuid in decided.cards() if uuid in index))


LOOKS = 200
"""How often fragmentation is measured in a long run; it takes time."""
OnStep = Callable[[int, int], None]
"""Called with the number of steps done and the number of all steps."""


@dataclass(frozen=True, slots=True)
class Played:
    """One scenario under one policy: the outcome of each pod, and how full it was.

    ``end`` and ``untouched`` are those of the scenario's last step, at the same time
    under every policy. ``outcomes`` and ``moments`` go on until no pending pod can be
    placed.
    """

    policy: str
    outcomes: Sequence[PodOutcome]
    moments: Sequence[Moment]
    end: Moment
    untouched: int
    """Cards that hold nothing, on nodes that accept pods."""
    cluster: SimulatedCluster


def play(
    scenario: Scenario,
    choice: Choice,
    progress: OnStep = lambda _done, _all: None,
    *,
    looks: int = LOOKS,
    at_end: Callable[[SimulatedCluster], None] = lambda _cluster: None,
) -> Played:
    """Play all steps; ``choice`` is for pods that do not name a policy.

    ``looks`` is how often fragmentation is measured on the way, 0 for never. ``at_end``
    is called after the last step and must leave the cluster as it was.
    """
    state = _begun(scenario, choice)
    moments = [moment_of(state, look=bool(looks))]
    total = len(scenario.steps)
    every = max(1, total // looks) if looks else total + 1
    for number, step in enumerate(scenario.steps):
        _end_until(state, step.at_s, moments)
        state.cluster.clock.now_s = step.at_s
        apply(state, step.what)
        moments.append(moment_of(state, look=number % every == every - 1))
        progress(number + 1, total)
    end, untouched = moment_of(state, look=bool(looks)), state.cluster.untouched()
    moments.append(end)
    at_end(state.cluster)
    _end_until(state, None, moments)
    if moments[-1] is not end:
        moments.append(moment_of(state, look=bool(looks)))
    return Played(
        choice.default, state.outcomes, moments, end, untouched, state.cluster
    )


def _begun(scenario: Scenario, choice: Choice) -> State:
    cluster = SimulatedCluster(choice)
    for node in scenario.nodes:
        cluster.add_node(node)
    state = State(cluster, Gauge(cluster), scenario.waits, taken=_names(scenario))
    for pod in scenario.there:
        ref = cluster.add_bound(pod)
        state.there[ref.namespace, ref.name] = (ref, pod)
    return state


def _names(scenario: Scenario) -> set[tuple[str, str]]:
    """Return namespace and name of all pods that exist or will come."""
    arriving = (s.what.pod for s in scenario.steps if isinstance(s.what, Arrive))
    every = (pod["metadata"] for pod in (*scenario.there, *arriving))
    return {(one["namespace"], one["name"]) for one in every}


def _end_until(state: State, at_s: float | None, moments: list[Moment]) -> None:
    """End the pods whose time is over at ``at_s``; None: while others are pending."""
    while state.ends and (at_s is None or state.ends[0][0] <= at_s):
        end, _, uid, pod = heapq.heappop(state.ends)
        key = (pod.result.pod.namespace, pod.result.pod.name)
        found = state.running.get(key)
        if found is None or found.result.pod.uid != uid:
            continue
        if at_s is None and not state.waiting:
            # Nobody waits for its room, so the rest of its life does not matter.
            continue
        state.cluster.clock.now_s = end
        take_away(state, key)
        try_again(state)
        moments.append(moment_of(state, look=False))
