"""Which pods may be moved to make room, and why each of the others stays. Pure.

The one home of these rules: ``make-room`` asks here for the pods of a cluster, the
simulator for those of a scenario, and the search (``landing``) for each waiting pod.
Decision 0073 has the reasons.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass

from gpushare.domain.eviction.preemption import EvictionFacts
from gpushare.domain.model import NodeName, PodRef, PodRequest

DAEMON_SETS, JOBS, SEVERAL_CARDS = "daemonsets", "jobs", "several-cards"
ALLOWABLE = (DAEMON_SETS, JOBS, SEVERAL_CARDS)
"""Pods that stay unless an operator allows their moves by these words."""

_CONTROLLERS = {
    "Node": ("", "that are static"),
    "DaemonSet": (DAEMON_SETS, "of DaemonSets"),
    "Job": (JOBS, "of Jobs"),
}
"""By the kind of the controller: what allows the move, and what the pods are called."""


@dataclass(frozen=True, slots=True)
class MoveCandidate:
    """What decides whether a pod may be moved, whoever waits for the room.

    ``controller`` is the kind of the owner that makes another pod for it, empty if
    there is none. ``cards`` is the number of its cards, 0 if they are not known.
    ``is_charged``: the ledger has it on its node. ``kept_by`` is the annotation by
    which its owner forbids evictions, as ``key=value``. ``budgets`` counts the
    PodDisruptionBudgets that cover it.
    """

    controller: str
    cards: int
    is_charged: bool = True
    is_leaving: bool = False
    kept_by: str = ""
    has_resource_claims: bool = False
    budgets: int = 0

    @property
    def after_end(self) -> bool:
        """Whether its controller makes the new pod only when this one has ended.

        A StatefulSet does, because the new pod has the same name.
        """
        return self.controller == "StatefulSet"


def why_pod_stays(pod: MoveCandidate, allowed: Container[str]) -> str:
    """Return what kind of pod this is that does not move; empty if it may.

    The text goes on from "3 pods". ``allowed`` are some of ``ALLOWABLE``.
    """
    if not pod.controller:
        return "without a controller"
    allowed_by, kind = _CONTROLLERS.get(pod.controller, ("", ""))
    if kind and allowed_by not in allowed:
        return kind
    if pod.is_leaving:
        return "in termination"
    if pod.kept_by:
        return f"with {pod.kept_by}"
    if not pod.cards:
        return "of unknown card"
    if pod.cards > 1 and SEVERAL_CARDS not in allowed:
        return "with several cards"
    if pod.has_resource_claims:
        return "with ResourceClaims"
    if pod.budgets > 1:
        # The Eviction API refuses them for good.
        return "under several PodDisruptionBudgets"
    return "" if pod.is_charged else "of unknown card"


class PrioritiesAndBudgets:
    """Which of the pods that may be moved stay for the sake of one waiting pod."""

    def __init__(self, waiting: PodRef, facts: EvictionFacts) -> None:
        self._priority = waiting.priority
        self._reserved = facts.reserved
        self._protected = frozenset(
            uid for budget in facts.budgets if budget.allowed < 1 for uid in budget.pods
        )

    def why_pod_stays(self, pod: PodRef) -> str:
        """Return why a pod stays, in the words of ``why_pod_stays``; mostly empty."""
        if pod.is_resource_claim:
            return "that are ResourceClaims"
        if pod.priority > self._priority:
            return "of higher priority"
        if pod.uid in self._reserved:
            return "that are not seen on their nodes yet"
        if pod.uid in self._protected:
            return "that a PodDisruptionBudget protects now"
        return ""


def may_use_any(_node: NodeName) -> bool:
    """Allow every node."""
    return True


@dataclass(frozen=True, slots=True)
class Movable:
    """A pod that may be moved, because its controller makes another one.

    ``request`` is what the replacement asks, ``may_use`` whether it may run on a node,
    apart from cards, CPU and memory. ``after_end``: the replacement is made only when
    the pod has ended.
    """

    request: PodRequest
    may_use: Callable[[NodeName], bool] = may_use_any
    after_end: bool = False
