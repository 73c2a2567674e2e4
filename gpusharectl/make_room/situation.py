"""What is read of the cluster for a plan: who holds what, and which pods may move."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from gpushare.domain.eviction.landing import Situation
from gpushare.domain.eviction.movable import (
    Movable,
    MoveCandidate,
    PrioritiesAndBudgets,
    why_pod_stays,
)
from gpushare.domain.eviction.preemption import Budget, EvictionFacts
from gpushare.domain.hosts import Hosts
from gpushare.domain.model import NodeName, PodRequest, PodUID, Refusal
from gpushare.domain.policies import FRAG, PolicyChoice
from gpushare.informers.pods import UNFINISHED
from gpushare.kube import codec, facts
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.codec import RequestedResources
from gpushare.kube.errors import NotFound
from gpushare.kube.json_reader import Malformed
from gpushare.kube.node_filters import (
    ANY_NODE,
    Constraints,
    NodeProperties,
    find_bar,
    read_constraints,
)
from gpusharectl.access import Access
from gpusharectl.state.read import ClusterState, SeenPod, list_all, read_state

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class RoomDemand:
    """Who wants room: the pod if there is one, and which nodes it may use.

    ``only`` is the one node on which room is to be made; empty for any.
    """

    request: PodRequest
    body: Json | None = None
    only: str = ""

    @property
    def name(self) -> str:
        """The pod's name, or what a pod that does not exist yet is called."""
        return "a new pod" if self.body is None else facts.full_name(self.body)


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The cluster, read once: what a plan is made of, and what stays, by reason.

    ``not_judged`` is a rule of the waiting pod that only kube-scheduler can judge.
    """

    state: ClusterState
    situation: Situation
    stay: Mapping[str, int]
    not_judged: str = ""

    @property
    def choice(self) -> PolicyChoice:
        """The policy by which the landings are predicted."""
        return self.situation.choice

    @property
    def down(self) -> str:
        """Why an evicted pod's new one would wait; empty unless that is known.

        One that is ready, and that the user has no right to ask, may work; and so may
        one that is no pod, as in the demo.
        """
        extenders = list(filter(facts.is_extender, self.state.parts))
        if not extenders or any(map(facts.is_ready, extenders)):
            return ""
        return self.state.placements.not_asked

    @property
    def guesses(self) -> Sequence[str]:
        """Sentences about what the prediction does not know."""
        sentences = []
        if self.choice.default == FRAG:
            sentences.append(
                "The policy is frag. What it has learned is not known here, so "
                "landings are predicted as by best-fit."
            )
        if self.state.placements.not_asked:
            sentences.append(
                f"The extender was not asked ({self.state.placements.not_asked}); the "
                f"policy {self.choice.default} is assumed."
            )
        if self.not_judged:
            sentences.append(
                f"The waiting pod has {self.not_judged}. Only kube-scheduler can judge "
                "that, so the pod may still wait after the moves."
            )
        return sentences


def read_inputs(
    access: Access, demand: RoomDemand, allowed: Sequence[str]
) -> PlanInputs:
    """Read the cluster for one plan; ``ClusterError`` if that fails."""
    state = read_state(access, datetime.now(UTC))
    hosts, counts = Hosts(), Counter[NodeName]()
    for node in state.nodes:
        hosts.set_allocatable(NodeName(facts.name_of(node)), facts.host_capacity(node))
    for pod in list_all(access.cluster, Kind.PODS, UNFINISHED):
        if name := facts.node_of(pod):
            counts[NodeName(name)] += 1
            if (amount := RequestedResources(pod).host()) is not None:
                uid = PodUID(pod["metadata"]["uid"])
                hosts.hold(uid, NodeName(name), amount)
    budgets = _budgets(access, state)
    return gather_inputs(state, demand, allowed, EvictionFacts(hosts, budgets), counts)


def gather_inputs(
    state: ClusterState,
    demand: RoomDemand,
    allowed: Sequence[str],
    known: EvictionFacts,
    counts: Mapping[NodeName, int],
) -> PlanInputs:
    """Return what a plan is made of, from what was read; ``counts`` are pods.

    What stays because of its priority or a budget is counted here, and left out of the
    plan by the planner.
    """
    usable = _Usable(state.properties, counts)
    covered = Counter(uid for budget in known.budgets for uid in budget.pods)
    others = PrioritiesAndBudgets(demand.request.pod, known)
    movable, stay = {}, Counter[str]()
    for uid, seen in state.pods.items():
        if not seen.record.node:
            continue
        candidate = _candidate(seen, covered[uid], state)
        why, request = why_pod_stays(candidate, allowed), seen.record.request
        if why or isinstance(request, Refusal):
            stay[why or "whose request is not valid"] += 1
            continue
        if why_now := others.why_pod_stays(seen.record.pod):
            stay[why_now] += 1
        # Elsewhere it may have no place by such a rule. Its own node was good before.
        only = seen.record.node if _not_judged(seen.body) else ""
        nodes = usable.by(_constraints(seen.body), only)
        movable[uid] = Movable(request, nodes, candidate.after_end)
    own = ANY_NODE if demand.body is None else _constraints(demand.body)
    placements = state.placements
    target = usable.by(own, demand.only)
    situation = Situation(placements.nodes, movable, placements.choice, known, target)
    rule = "" if demand.body is None else _not_judged(demand.body)
    return PlanInputs(state, situation, stay, rule)


def read_owner_uid(pod: Json) -> str:
    """Return the UID of a pod's controller; empty if it has none."""
    return str(facts.controller(pod).get("uid", ""))


def _candidate(seen: SeenPod, budgets: int, state: ClusterState) -> MoveCandidate:
    uid, placement = seen.record.pod.uid, seen.record.placement
    node = state.placements.node(seen.record.node)
    kept = facts.annotation(seen.body, facts.SAFE_TO_EVICT) == "false"
    return MoveCandidate(
        controller=facts.controller(seen.body).get("kind", ""),
        cards=0 if placement is None else len(placement.cards()),
        is_charged=node is not None and uid in node.placements,
        is_leaving=facts.is_leaving(seen.body),
        kept_by=f"{facts.SAFE_TO_EVICT}=false" if kept else "",
        has_resource_claims=uid in state.with_claims,
        budgets=budgets,
    )


def _budgets(access: Access, state: ClusterState) -> Sequence[Budget]:
    try:
        budgets = tuple(list_all(access.cluster, Kind.BUDGETS))
        return codec.read_budgets(
            budgets, (seen.record for seen in state.pods.values())
        )
    except NotFound:
        return ()


def _constraints(pod: Json) -> Constraints:
    try:
        return read_constraints(pod)
    except Malformed:
        # kube-scheduler has placed it, and the prediction is checked afterwards.
        return ANY_NODE


def _not_judged(pod: Json) -> str:
    """Return a rule by which kube-scheduler may refuse a node; empty if there is none.

    Only those that depend on other pods and cannot be broken.
    """
    spec = pod["spec"]
    affinity, spread = spec.get("affinity") or {}, "topologySpreadConstraints"
    for kind in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(kind) or {}).get(_REQUIRED):
            return f"required {kind}"
    for constraint in spec.get(spread) or ():
        if constraint.get("whenUnsatisfiable") == "DoNotSchedule":
            return spread
    for container in spec["containers"]:
        if any(port.get("hostPort") for port in container.get("ports") or ()):
            return "host ports"
    return ""


class _Usable:
    """Which nodes pods may use by labels, taints and their number of pods."""

    def __init__(
        self,
        properties: Mapping[NodeName, NodeProperties],
        counts: Mapping[NodeName, int],
    ) -> None:
        self._properties = properties
        self._counts = counts
        self._judge = lru_cache(maxsize=None)(self._may_use)

    def by(self, constraints: Constraints, only: str) -> Callable[[NodeName], bool]:
        """Judge nodes for a pod; ``only`` is the one that it may use, empty for any."""

        def may_use(name: NodeName) -> bool:
            return only in ("", name) and self._judge(constraints, name)

        return may_use

    def _may_use(self, constraints: Constraints, name: NodeName) -> bool:
        known = self._properties.get(name)
        if known is None:
            return False
        full = known.pods is not None and self._counts.get(name, 0) >= known.pods
        return not full and find_bar(known, constraints) is None
