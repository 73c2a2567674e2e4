"""Where the replacement of an evicted pod lands. Pure.

Its controller makes it, and kube-scheduler and the policy place it, so the landing is a
prediction, made by the same functions. ``moves`` searches over it.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpushare.domain import links
from gpushare.domain.eviction.movable import (
    Movable,
    PrioritiesAndBudgets,
    may_use_any,
)
from gpushare.domain.eviction.preemption import EvictionFacts
from gpushare.domain.model import (
    NO_HOST,
    HostAmount,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
    Refusal,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import choose_node, find_refusal, place, score_node
from gpushare.domain.policies import Policy, PolicyChoice

_REPLACEMENT = PodUID("the replacement")


@dataclass(frozen=True, slots=True)
class Situation:
    """Who holds what, and which pods may be moved.

    ``may_use`` is whether the waiting pod may run on a node. Pods that are not in
    ``movable`` stay, and so do those that must by ``PrioritiesAndBudgets``, for which
    ``facts`` are.
    """

    nodes: tuple[Node, ...]
    movable: Mapping[PodUID, Movable]
    choice: PolicyChoice = field(default_factory=PolicyChoice)
    facts: EvictionFacts = field(default_factory=EvictionFacts)
    may_use: Callable[[NodeName], bool] = may_use_any


@dataclass(frozen=True, slots=True)
class PodMove:
    """One eviction: the pod, what it holds, and what its replacement is to hold."""

    pod: PodRef
    source: Placement
    landing: Placement


@dataclass(frozen=True, slots=True)
class StateAfterMoves:
    """The cluster after some moves: what differs from the beginning.

    ``nodes`` are those that changed, and the target's with its cards cordoned. ``host``
    is by how much the free CPU and memory of a node changed.
    """

    nodes: Mapping[NodeName, Node] = field(default_factory=dict)
    host: Mapping[NodeName, HostAmount] = field(default_factory=dict)
    moved: Mapping[PodUID, Placement] = field(default_factory=dict)

    @property
    def key(self) -> object:
        """What is equal for states that differ in nothing but the order of moves."""
        return frozenset((uid, at.node, at.cards()) for uid, at in self.moved.items())


_Ranked = list[tuple[int, NodeName]]
"""Nodes on which a kind of pod fits: the score, negative, and the name."""


class LandingPrediction:
    """Where pods are, and where each of them would land."""

    def __init__(
        self, request: PodRequest, situation: Situation, policy: Policy
    ) -> None:
        self.request = request
        self.policy = policy
        self.start = StateAfterMoves()
        self._situation = situation
        self._nodes = {node.name: node for node in situation.nodes}
        self._ranked: dict[object, _Ranked] = {}
        others = PrioritiesAndBudgets(request.pod, situation.facts)
        self.at: dict[PodUID, Placement] = {
            uid: placement
            for node in situation.nodes
            for uid, placement in node.placements.items()
            if uid in situation.movable and not others.why_pod_stays(placement.pod)
        }

    def begin(self, node: Node) -> StateAfterMoves:
        """Return the state in which a node differs from the beginning."""
        return StateAfterMoves({node.name: node})

    def now(self, name: NodeName, state: StateAfterMoves) -> Node:
        """Return a node as it is in a state."""
        return state.nodes.get(name) or self._nodes[name]

    def placement(self, uid: PodUID, state: StateAfterMoves) -> Placement:
        """Return what a pod, or its replacement, holds in a state."""
        return state.moved.get(uid) or self.at[uid]

    def fits(self, node: Node, state: StateAfterMoves) -> bool:
        """Return whether the waiting pod fits on a node: cards, CPU and memory."""
        if not self.has_host(self.request.host, node.name, state):
            return False
        seen = node.as_seen_by(self.request.pod)
        return find_refusal(self.request, seen, self.policy) is None

    def has_host(
        self, amount: HostAmount | None, name: NodeName, state: StateAfterMoves
    ) -> bool:
        """Return whether a node has the CPU and memory, as far as it is known."""
        room = self._situation.facts.hosts.free(name)
        if amount is None or room is None:
            return True
        return amount.fits(room + state.host.get(name, NO_HOST))

    def without(self, uid: PodUID, state: StateAfterMoves) -> StateAfterMoves:
        """Return the state in which a pod has ended."""
        name = self.placement(uid, state).node
        host = self._situation.movable[uid].request.host or NO_HOST
        nodes = {**state.nodes, name: self.now(name, state).without({uid})}
        changed = {**state.host, name: state.host.get(name, NO_HOST) + host}
        return StateAfterMoves(nodes, changed, state.moved)

    def moved(
        self, uid: PodUID, state: StateAfterMoves, gone: StateAfterMoves
    ) -> tuple[PodMove, StateAfterMoves] | None:
        """Return a pod's move, and the state after it; ``gone`` is without the pod.

        None if it would land nowhere, or where depends on when it ends.
        """
        # Predicted twice, with the pod gone and while it is still there: the new
        # pod may be placed at either time (decision 0073).
        pod, source = self._situation.movable[uid], self.placement(uid, state)
        landing = self._landing(pod, gone)
        if not pod.after_end:
            early = self._landing(pod, state)
            if early is not None and early != landing:
                return None
        if landing is None:
            return None
        landing = replace(landing, pod=source.pod)
        name, host = landing.node, pod.request.host or NO_HOST
        nodes = {**gone.nodes, name: self.now(name, gone).with_placement(landing)}
        changed = {**gone.host, name: gone.host.get(name, NO_HOST) - host}
        after_it = StateAfterMoves(nodes, changed, {**gone.moved, uid: landing})
        return PodMove(source.pod, source, landing), after_it

    def _landing(self, pod: Movable, state: StateAfterMoves) -> Placement | None:
        """Return what ``schedule`` does, without judging unchanged nodes again."""
        request = replace(pod.request, pod=replace(pod.request.pod, uid=_REPLACEMENT))
        policy = self._situation.choice.policy(request.policy)
        if isinstance(policy, Refusal):
            return None
        # Most nodes are as at the beginning: of them the best is known by rank. Only
        # those that the moves changed are judged anew.
        fitting = list(self._unchanged(pod, request, policy, state))
        for name in state.nodes:
            if pod.may_use(name) and self.has_host(request.host, name, state):
                node = self.now(name, state).as_seen_by(request.pod)
                if find_refusal(request, node, policy) is None:
                    fitting.append(node)
        if not fitting:
            return None
        placed = place(request, choose_node(request, fitting, policy), policy)
        return None if isinstance(placed, Refusal) else placed

    def _unchanged(
        self, pod: Movable, request: PodRequest, policy: Policy, state: StateAfterMoves
    ) -> Iterator[Node]:
        """Return the best of the nodes that are as at the beginning, if one fits.

        All of them if the policy has a chooser, which compares them itself, or if links
        count, by which ``choose_node`` compares them.
        """
        compared = policy.chooser is not None or links.links_count_for(request)
        for _, name in self._ranks(request, policy):
            known = name not in state.nodes and pod.may_use(name)
            if known and self.has_host(request.host, name, state):
                yield self._nodes[name].as_seen_by(request.pod)
                if not compared:
                    return

    def _ranks(self, request: PodRequest, policy: Policy) -> _Ranked:
        amounts = tuple(claim.amount for claim in request.claims)
        key = (amounts, request.cards, policy.name, request.pod.priority)
        ranked = self._ranked.get(key)
        if ranked is None:
            ranked = self._ranked[key] = []
            for name, at_first in self._nodes.items():
                node = at_first.as_seen_by(request.pod)
                if find_refusal(request, node, policy) is None:
                    insort(ranked, (-score_node(node, policy), name))
        return ranked
