"""Ask for moves that make room for a pending pod, and count what comes of them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from gpushare.domain.eviction.landing import Situation
from gpushare.domain.eviction.movable import Movable, MoveCandidate, why_pod_stays
from gpushare.domain.eviction.moves import Bounds, MovePlan, plan_moves
from gpushare.domain.eviction.preemption import EvictionFacts
from gpushare.domain.model import Placement, PodRef
from gpushare.domain.node import Node
from gpushare.kube import facts
from gpushare.kube.cluster import Json
from gpusharectl.simulator.cluster import PodNeeds, SimulatedCluster
from gpusharectl.simulator.scenario import ExpectedResult, Scenario

_DIRECT_STEPS, _CHAIN_STEPS = 300, 100
"""Steps of a search: a tenth of what make-room takes, for there are many of them."""


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


@dataclass(frozen=True, slots=True)
class Runner:
    """A running pod of the scenario, and what it needs."""

    pod: PodRef
    manifest: Json
    needs: PodNeeds
    cards: int

    @property
    def may_move(self) -> bool:
        """Whether ``make-room`` would move it without being told to.

        A scenario's pod without a controller is taken for one of a ReplicaSet.
        """
        kept = facts.annotation(self.manifest, facts.SAFE_TO_EVICT) == "false"
        candidate = MoveCandidate(
            controller=facts.controller(self.manifest).get("kind", "ReplicaSet"),
            cards=self.cards,
            kept_by=facts.SAFE_TO_EVICT if kept else "",
        )
        return not why_pod_stays(candidate, allowed=())


class Planner:
    """Plans for one cluster, each kind of pod asked for once until a node changes."""

    def __init__(self, cluster: SimulatedCluster, most: int) -> None:
        self._cluster = cluster
        self._bounds = Bounds(most, _DIRECT_STEPS, _CHAIN_STEPS)
        self._asked: dict[object, int] = {}

    def plan(self, needs: PodNeeds, running: Iterable[Runner]) -> MovePlan | None:
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
                runner.pod.uid: Movable(
                    runner.needs.request, partial(opened, runner.needs.constraints)
                )
                for runner in running
                if runner.may_move
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
    claims = needs.request.claims
    return (
        sum(claim.amount.units for claim in claims) <= units
        and sum(claim.amount.cores for claim in claims) <= cores
    )


def is_same_place(placement: Placement | None, planned: Placement) -> bool:
    """Return whether a pod is on the node and the cards that were planned."""
    return placement is not None and (placement.node, placement.cards()) == (
        planned.node,
        planned.cards(),
    )


def drop_moves(scenario: Scenario) -> Scenario:
    """Return the scenario in which nobody makes room; nothing is expected."""
    return replace(scenario, moves=0, expected=ExpectedResult())
