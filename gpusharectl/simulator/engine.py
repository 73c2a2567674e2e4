"""Play a scenario under one policy, and record what becomes of each pod."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from gpushare.domain import links
from gpushare.domain.eviction.landing import PodMove, Situation
from gpushare.domain.eviction.movable import Movable, MoveCandidate, why_pod_stays
from gpushare.domain.eviction.moves import Bounds, MovePlan, plan_moves
from gpushare.domain.eviction.preemption import EvictionFacts
from gpushare.domain.model import Amount, NodeName, Placement, PodRef, PodUID, Refusal
from gpushare.domain.node import Node
from gpushare.domain.policies import PolicyChoice
from gpushare.kube import facts
from gpushare.kube.codec import refusal_text
from gpushare.kube.facts import is_leaving
from gpusharectl.simulator.cluster import ClusterGauge, PodNeeds, SimulatedCluster
from gpusharectl.simulator.scenario import (
    Arrive,
    Drain,
    Event,
    ExpectedResult,
    Join,
    Leave,
    PodName,
    Scenario,
    describe_request,
    round_to_ms,
)
from gpusharectl.simulator.synthetic import (
    instantiate_pod,
    is_bound_to_node,
    strip_run_state,
)
from gpusharectl.state.read import has_claims


@dataclass(slots=True)
class MovesPlayed:
    """What came of the plans.

    ``moves`` are evictions, ``placed`` the pods that got the room of their plan.
    ``otherwise`` are plans of which any pod landed elsewhere, or nowhere.
    """

    plans: int = 0
    moves: int = 0
    placed: int = 0
    otherwise: int = 0


def is_same_place(placement: Placement | None, planned: Placement) -> bool:
    """Return whether a pod is on the node and the cards that were planned."""
    return placement is not None and (placement.node, placement.cards()) == (
        planned.node,
        planned.cards(),
    )


def drop_moves(scenario: Scenario) -> Scenario:
    """Return the scenario in which nobody makes room; nothing is expected."""
    return replace(scenario, moves=0, expected=ExpectedResult())


LOOKS = 200
"""How often fragmentation is measured in a long run; it takes time."""
OnStep = Callable[[int, int], None]
"""Called with the number of steps done and the number of all steps."""


class OutcomeKind(StrEnum):
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
    outcome: OutcomeKind = OutcomeKind.REFUSED
    placed_s: float | None = None
    left_s: float | None = None
    node: str = ""
    cards: tuple[int, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    nodes: int = 0
    """How many nodes refused it; less than all ``reasons`` if some had several."""
    first: str = ""
    """The name of the first pod, if this one replaces a pod that had to move."""
    wants_links: bool = False
    """Whether links between its cards count (``links.links_count_for``)."""

    @property
    def key(self) -> PodName:
        """Namespace and name."""
        return (self.pod.namespace, self.pod.name)

    @property
    def came_as(self) -> PodName:
        """Namespace and first name: the same for all pods that replace one another."""
        return (self.pod.namespace, self.first or self.pod.name)

    @property
    def place(self) -> str:
        """Where it is: ``node-1 card 0``, ``node-2 cards 0, 1`` or ``nowhere``."""
        if not self.node or not self.cards:
            return self.node or "nowhere"
        several = "s" if len(self.cards) > 1 else ""
        return f"{self.node} card{several} {', '.join(map(str, self.cards))}"


UNUSABLE = "free units that arrived pods cannot use"
"""What ``Moment.fragmented`` is called on screens and pictures."""


@dataclass(frozen=True, slots=True)
class Moment:
    """How full the cluster is at one moment.

    ``arrived_units`` are what all pods so far asked for, ``held_units`` what running
    pods have, ``asked_units`` what running and pending pods ask for. ``fragmented`` is
    the share (0 to 1) of the free units that a typical pod cannot use; None if it was
    not measured or nothing is free.
    """

    at_s: float
    arrived_units: int
    asked_units: int
    held_units: int
    units: int
    held_cores: int
    cores: int
    waiting: int
    fragmented: float | None = None

    @property
    def allotted(self) -> float | None:
        """The share of all units that is held, 0 to 1; None without any units."""
        return self.held_units / self.units if self.units else None

    @property
    def load(self) -> float | None:
        """What has arrived, as a share of all units; may be above 1."""
        return self.arrived_units / self.units if self.units else None


@dataclass(frozen=True, slots=True)
class Played:
    """One scenario under one policy: the outcome of each pod, and how full it was.

    ``end`` and ``untouched`` are those of the scenario's last step, at the same time
    under every policy. ``outcomes`` and ``moments`` go on until no pending pod can be
    placed; ``follow`` lets them go on until a later second.
    """

    policy: str
    outcomes: Sequence[PodOutcome]
    moments: Sequence[Moment]
    end: Moment
    untouched: int
    """Cards that hold nothing, on nodes that accept pods."""
    cluster: SimulatedCluster
    follow: Callable[[float], None]
    moves: MovesPlayed | None = None
    """None if the scenario has none."""


def play(
    scenario: Scenario,
    choice: PolicyChoice,
    progress: OnStep = lambda _done, _all: None,
    *,
    looks: int = LOOKS,
    at_end: Callable[[SimulatedCluster], None] = lambda _cluster: None,
) -> Played:
    """Play all steps; ``choice`` is for pods that do not name a policy.

    ``looks`` is how often fragmentation is measured on the way, 0 for never. ``at_end``
    is called after the last step and must leave the cluster as it was.
    """
    game = _Game(scenario, choice)
    cluster, moments = game.cluster, game.moments
    game.look(fragmented=bool(looks))
    total = len(scenario.steps)
    every = max(1, total // looks) if looks else total + 1
    for number, step in enumerate(scenario.steps):
        game.end_until(step.at_s)
        cluster.now_s = step.at_s
        game.apply(step.what)
        game.look(fragmented=number % every == every - 1)
        progress(number + 1, total)
    game.look(fragmented=bool(looks))
    end, untouched = moments[-1], cluster.untouched()
    at_end(cluster)
    game.end_until(None)
    if moments[-1] is not end:
        game.look(fragmented=bool(looks))

    def follow(at_s: float) -> None:
        last = moments[-1]
        game.end_until(at_s)
        if at_s > last.at_s or moments[-1] is not last:
            cluster.now_s = at_s
            game.look(fragmented=bool(looks))

    done = game.done if scenario.moves else None
    return Played(
        choice.default, game.outcomes, moments, end, untouched, cluster, follow, done
    )


_MOST_NAME = 200
"""Characters of a name, so that a number fits behind it."""


@dataclass(slots=True)
class PodInPlay:
    """A pod of the scenario while it runs or is pending."""

    result: PodOutcome
    arrive: Arrive
    needs: PodNeeds
    units: int
    at: Placement | None = None

    @property
    def may_move(self) -> bool:
        """Whether ``make-room`` would move it without being told to.

        A scenario's pod without a controller is taken for one of a ReplicaSet.
        """
        manifest = self.arrive.pod
        kept = facts.annotation(manifest, facts.SAFE_TO_EVICT) == "false"
        candidate = MoveCandidate(
            controller=facts.controller(manifest).get("kind", "ReplicaSet"),
            cards=len(self.result.cards),
            kept_by=facts.SAFE_TO_EVICT if kept else "",
        )
        return not why_pod_stays(candidate, allowed=())


_DIRECT_STEPS, _CHAIN_STEPS = 300, 100
"""Steps of a search: a tenth of what make-room takes, for there are many of them."""


class Planner:
    """Plans for one cluster, each kind of pod asked for once until a node changes."""

    def __init__(self, cluster: SimulatedCluster, most: int) -> None:
        self._cluster = cluster
        self._bounds = Bounds(most, _DIRECT_STEPS, _CHAIN_STEPS)
        self._asked: dict[object, int] = {}

    def plan(self, needs: PodNeeds, running: Iterable[PodInPlay]) -> MovePlan | None:
        """Return moves that make room for a pod; None if none do, or nothing is new."""
        candidates, kind = self._cluster.candidates, (needs.kind, needs.priority)
        _, now = candidates.changed_since(0)
        if self._asked.get(kind) == now:
            return None
        self._asked[kind] = now
        known_nodes = map(self._cluster.ledger.node, candidates.properties)
        nodes = tuple(filter(None, known_nodes))
        if not _enough(needs, nodes):
            return None
        opened = candidates.accepts
        situation = Situation(
            nodes,
            {
                pod.result.pod.uid: Movable(
                    pod.needs.request, partial(opened, pod.needs.constraints)
                )
                for pod in running
                if pod.may_move
            },
            self._cluster.choice,
            EvictionFacts(self._cluster.hosts),
            partial(opened, needs.constraints),
        )
        plan = plan_moves(needs.request, situation, self._bounds)
        return plan if isinstance(plan, MovePlan) else None


def _enough(needs: PodNeeds, nodes: Iterable[Node]) -> bool:
    """Return whether all nodes together have free what a pod asks for."""
    cores = units = 0
    for node in nodes:
        for room in node.free.values():
            cores, units = cores + max(0, room.cores), units + max(0, room.units)
    return needs.total.fits(Amount(cores, units))


class _Game:
    """Who runs, who is pending, and what became of everybody so far."""

    def __init__(self, scenario: Scenario, choice: PolicyChoice) -> None:
        self.cluster = SimulatedCluster(choice)
        self.outcomes: list[PodOutcome] = []
        self.moments: list[Moment] = []
        self._gauge = ClusterGauge(self.cluster)
        self.done = MovesPlayed()
        self._planner = (
            Planner(self.cluster, scenario.moves) if scenario.moves else None
        )
        self._waits = scenario.waits
        self._running: dict[PodName, PodInPlay] = {}
        self._waiting: dict[PodUID, PodInPlay] = {}
        self._ends: list[tuple[float, int, PodInPlay]] = []
        self._there: dict[PodName, tuple[PodRef, Arrive]] = {}
        self._arrived = self._asked = self._moved = self._numbers = 0
        self._called: dict[PodName, PodName] = {}
        """The present name of a pod that moved, by its first name."""
        for node in scenario.nodes:
            self.cluster.add_node(node)
        arriving = (s.what.pod for s in scenario.steps if isinstance(s.what, Arrive))
        every = (pod["metadata"] for pod in (*scenario.there, *arriving))
        self._taken = {(metadata["namespace"], metadata["name"]) for metadata in every}
        """Names that no new pod may get: of all pods that exist or will come."""
        for claim in scenario.claims:
            self.cluster.hold(claim)
        for pod in scenario.there:
            ref = self.cluster.add_bound(pod)
            self._there[ref.namespace, ref.name] = (ref, Arrive(pod))

    def apply(self, what: Event) -> None:
        """Apply one event of the scenario."""
        match what:
            case Arrive():
                self._arrive(what)
            case Leave():
                self._leave((what.namespace, what.name))
            case Join():
                self.cluster.add_node(what.node)
                self._try_again()
            case Drain():
                self._drain(what)
        self._make_room()

    def look(self, *, fragmented: bool = False) -> None:
        """Measure how full the cluster is."""
        held, units, held_cores, cores, _ = self._gauge.full()
        moment = Moment(
            self.cluster.now_s,
            self._arrived,
            self._asked,
            held,
            units,
            held_cores,
            cores,
            len(self._waiting),
            self._gauge.fragmented() if fragmented else None,
        )
        self.moments.append(moment)

    def end_until(self, at_s: float | None) -> None:
        """End the pods whose time is over at ``at_s``; None: while others wait."""
        while self._ends and (at_s is None or self._ends[0][0] <= at_s):
            if at_s is None and not self._waiting:
                # Nobody waits for room, so the rest of their lives does not matter.
                break
            end, _, pod = heapq.heappop(self._ends)
            if self._running.get(pod.result.key) is not pod:
                continue
            self.cluster.now_s = end
            self._take_away(pod)
            self._try_again()
            self._make_room()
            self.look()

    def _arrive(self, arrive: Arrive, first: str = "") -> None:
        """Add a pod; ``first``: the first name of the pod that it replaces, if any."""
        pod = self._come(arrive, first)
        if pod is None:
            return
        self._gauge.see(pod.needs)
        if self._place(pod, OutcomeKind.PLACED):
            return
        if self._waits:
            self._waiting[pod.result.pod.uid] = pod
        else:
            self.cluster.take_away(pod.result.pod, None)
            self._asked -= pod.units

    def _come(self, arrive: Arrive, first: str) -> PodInPlay | None:
        """Create a pod, which is not tried yet; None if no node can ever take it."""
        now_s = self.cluster.now_s
        ref, needs = self.cluster.add(arrive.pod)
        if isinstance(needs, Refusal):
            reasons = {refusal_text(needs): 0}
            never = PodOutcome(ref, "n/a", now_s, reasons=reasons, first=first)
            self.outcomes.append(never)
            return None
        wants = links.links_count_for(needs.request)
        asks = describe_request(needs)
        result = PodOutcome(ref, asks, now_s, first=first, wants_links=wants)
        pod = PodInPlay(result, arrive, needs, self._gauge.units_of(needs))
        self.outcomes.append(result)
        self._arrived += 0 if first else pod.units
        self._asked += pod.units
        return pod

    def _place(self, pod: PodInPlay, outcome: OutcomeKind) -> bool:
        result, now_s = pod.result, self.cluster.now_s
        decided = self.cluster.place(result.pod, pod.needs)
        if not isinstance(decided, Placement):
            result.reasons, result.nodes = decided.reasons, decided.nodes
            return False
        result.outcome, result.placed_s, result.reasons = outcome, now_s, {}
        result.node, pod.at = str(decided.node), decided
        node, chosen = self.cluster.ledger.node(decided.node), decided.cards()
        cards = node.cards if node else ()
        result.cards = tuple(
            sorted(card.index for card in cards if card.uuid in chosen)
        )
        self._running[result.key] = pod
        if pod.arrive.lasts_s is not None:
            self._numbers += 1
            end = round_to_ms(now_s + pod.arrive.lasts_s)
            heapq.heappush(self._ends, (end, self._numbers, pod))
        return True

    def _make_room(self) -> None:
        """Carry out plans for pending pods, in the order in which they are tried."""
        for pod in self._queue() if self._planner else ():
            if self._planner and pod.result.pod.uid in self._waiting:
                plan = self._planner.plan(pod.needs, self._running.values())
                if plan is not None:
                    self._carry_out(pod, plan)

    def _carry_out(self, pod: PodInPlay, plan: MovePlan) -> None:
        """Move pods until one lands elsewhere; then the pod that waits is the first."""
        self.done.plans += 1
        now: dict[PodUID, PodInPlay] = {}
        with self.cluster.cordoned(plan.node, plan.cards):
            fine = all(self._move(pod, move, now) for move in plan.moves)
        self._try_again(pod)
        placed = is_same_place(pod.at, plan.placement)
        self.done.placed += placed
        self.done.otherwise += not (fine and placed)

    def _move(
        self, waits: PodInPlay, move: PodMove, now: dict[PodUID, PodInPlay]
    ) -> bool:
        """Evict a pod and try all that wait; tell whether the next landed as planned.

        ``now`` has the pods that replace those of the plan. They end when the first
        would have ended.
        """
        if waits.result.pod.uid not in self._waiting:
            return False
        running = {pod.result.pod.uid: pod for pod in self._running.values()}
        pod = now.get(move.pod.uid) or running[move.pod.uid]
        result, arrive = pod.result, pod.arrive
        if arrive.lasts_s is not None and result.placed_s is not None:
            left_s = result.placed_s + arrive.lasts_s - self.cluster.now_s
            arrive = replace(arrive, lasts_s=round_to_ms(left_s))
        self._take_away(pod)
        self.done.moves += 1
        first = result.came_as[1]
        again = self._come(self._anew(arrive, first), first)
        if again is None:
            raise AssertionError(result)
        now[move.pod.uid] = self._waiting[again.result.pod.uid] = again
        self._try_again()
        if again.at is not None:
            # It was there all the time, as far as its users are concerned.
            again.result.outcome = result.outcome
        return is_same_place(again.at, move.landing)

    def _queue(self, first: PodInPlay | None = None) -> list[PodInPlay]:
        """Return pending pods by priority and age; ``first`` before those alike."""
        order = self._waiting.values()
        return sorted(
            order, key=lambda pod: (-pod.result.pod.priority, pod is not first)
        )

    def _try_again(self, first: PodInPlay | None = None) -> None:
        """Try pending pods in their order; of those alike that are refused, only one.

        ``first`` is a pod for which a node is kept, as it is for a nominated one.
        """
        hopeless: dict[object, PodOutcome] = {}
        for pod in self._queue(first):
            result, kind = pod.result, pod.needs.kind
            if kind in hopeless:
                alike = hopeless[kind]
                result.reasons, result.nodes = alike.reasons, alike.nodes
            elif self._place(pod, OutcomeKind.WAITED):
                del self._waiting[result.pod.uid]
            else:
                hopeless[kind] = result

    def _take_away(self, pod: PodInPlay) -> None:
        """Delete a pod of the scenario, whether it runs or is pending."""
        result = pod.result
        if result.node:
            del self._running[result.key]
        else:
            del self._waiting[result.pod.uid]
            result.outcome = OutcomeKind.LEFT
        self.cluster.take_away(result.pod, NodeName(result.node) or None)
        result.left_s = self.cluster.now_s
        self._asked -= pod.units

    def _leave(self, first: PodName) -> None:
        key = self._called.get(first, first)
        if key in self._there:
            ref, bound = self._there.pop(key)
            self.cluster.take_away(ref, NodeName(bound.pod["spec"]["nodeName"]))
        else:
            waits = (pod for pod in self._waiting.values() if pod.result.key == key)
            pod = self._running.get(key) or next(waits, None)
            if pod is None:
                return
            self._take_away(pod)
        self._try_again()

    def _drain(self, drain: Drain) -> None:
        """Close a node. Its pods are deleted and created again, by priority.

        Pending pods are tried again, because the reasons why they wait have changed.
        """
        name = NodeName(drain.node)
        self.cluster.close_node(name)
        again: list[tuple[Arrive, str]] = []
        for key, (ref, bound) in list(self._there.items()):
            # Claims are not played, so nobody knows where such a pod would go.
            stays = is_bound_to_node(bound.pod) or has_claims(bound.pod)
            if bound.pod["spec"]["nodeName"] != name or (stays and not drain.gone):
                continue
            del self._there[key]
            self.cluster.take_away(ref, name)
            if not stays and not is_leaving(bound.pod):
                again.append((self._anew(bound, ref.name), ref.name))
        for pod in [pod for pod in self._running.values() if pod.result.node == name]:
            self._take_away(pod)
            first = pod.result.came_as[1]
            again.append((self._anew(pod.arrive, first), first))
        if drain.gone:
            self.cluster.remove_node(name)
        for arrive, first in sorted(again, key=lambda pod: -pod[0].priority):
            self._arrive(arrive, first)
        self._try_again()

    def _anew(self, arrive: Arrive, first: str) -> Arrive:
        """Return the pod that replaces a drained one, under a free name."""
        pod = strip_run_state(arrive.pod)
        space = pod["metadata"]["namespace"]
        key = (space, first)
        while key in self._taken:
            self._moved += 1
            key = (space, f"{first[:_MOST_NAME]}-moved-{self._moved}")
        self._taken.add(key)
        self._called[space, first] = key
        return replace(arrive, pod=instantiate_pod(pod, *key))
