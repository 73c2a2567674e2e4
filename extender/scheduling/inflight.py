"""Pods told "yes" whose bind has not come (contracts 4, decision 0007).

kube-scheduler filters the next pod while the last one's bind is still on its way, and
only bind says which node it will be. Bind decides and rechecks, so nothing here guards
a card; it spares pods a bind that must fail.

The pods of one scheduling group are filtered all before any of them is bound (contracts
4). Each is told one node alone, and a placement is planned for it there, so that the
next ones are judged by what is certain.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Condition

from gpushare.domain.cache import Fitting
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NOTHING, NodeName, Placement, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.placement import Decider
from gpushare.domain.policies import Policy
from gpushare.domain.refusal import Reason, Refusal

_MOST_LOOKED_AT = 200
"""Nodes on which the pending pods are placed one by one: some 10 ms of work."""


@dataclass(frozen=True, slots=True)
class Pending:
    """One pod told yes: what it asks, and the nodes it was let through to.

    ``nodes`` as filter answered them: a set is made only where one is needed.
    ``group`` is the scheduling group, empty for most pods; ``planned`` where on its one
    node a pod of a group goes.
    """

    request: PodRequest
    policy: Policy
    nodes: Sequence[NodeName]
    until: float
    group: str = ""
    planned: Placement | None = None


@dataclass(slots=True)
class _Cycle:
    """The pods of a scheduling group that were asked about, in order."""

    until: float = 0.0
    asked: dict[PodUID, None] = field(default_factory=dict)

    def begins_anew(self, uid: PodUID) -> bool:
        """Tell whether kube-scheduler asks about the group once more from the start.

        It may ask twice in a row about one pod in a cycle (contracts 1.2).
        """
        return uid in self.asked and next(reversed(self.asked)) != uid


class Inflight:
    """The pending yeses of all schedulers that ask us; mostly none or one."""

    def __init__(
        self,
        *,
        wait_s: float,
        pending_for_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wait_s = wait_s
        self._pending_for_s = pending_for_s
        self._clock = clock
        self._changed = Condition()
        self._pending: dict[PodUID, Pending] = {}
        self._cycles: dict[str, _Cycle] = {}

    def __len__(self) -> int:
        return len(self.others(None))

    def begin(self, uid: PodUID, group: str) -> None:
        """Note that filter is asked about a pod: what it was told before is over.

        When a cycle of its group begins anew, that holds for all pods of the group.
        """
        self.end(uid)
        if not group:
            return
        with self._changed:
            now = self._clock()
            for late in [g for g, cycle in self._cycles.items() if cycle.until <= now]:
                del self._cycles[late]
            cycle = self._cycles.setdefault(group, _Cycle())
            if cycle.begins_anew(uid):
                cycle.asked.clear()
                members = [u for u, p in self._pending.items() if p.group == group]
                for member in members:
                    del self._pending[member]
                self._changed.notify_all()
            cycle.asked[uid] = None
            cycle.until = now + self._pending_for_s

    def add(
        self,
        request: PodRequest,
        policy: Policy,
        nodes: Sequence[NodeName],
        group: str = "",
        planned: Placement | None = None,
    ) -> None:
        """Note that the pod was told yes on these nodes."""
        until = self._clock() + self._pending_for_s
        pending = Pending(request, policy, nodes, until, group, planned)
        with self._changed:
            self._pending[request.pod.uid] = pending

    def end(self, uid: PodUID) -> None:
        """Note the pod's bind, its second filter or its deletion."""
        with self._changed:
            if self._pending.pop(uid, None) is not None:
                self._changed.notify_all()

    def judged(self, uid: PodUID) -> PodRequest | None:
        """Give the request that filter said yes to, while its bind is awaited."""
        with self._changed:
            pending = self._pending.get(uid)
            if pending is None or pending.until <= self._clock():
                return None
            return pending.request

    def others(self, uid: PodUID | None, group: str = "") -> tuple[Pending, ...]:
        """Give what other pods are pending now, less those of the pod's own group."""
        with self._changed:
            return self._others(uid, group)

    def members(self, uid: PodUID, group: str) -> tuple[Pending, ...]:
        """Give what other pods of the pod's own group are pending now."""
        if not group:
            return ()
        return tuple(each for each in self.others(uid) if each.group == group)

    def planned(self, node: NodeName, uid: PodUID) -> tuple[Placement, ...]:
        """Give where on a node other pods go that belong to a group."""
        plans = (each.planned for each in self.others(uid))
        return tuple(plan for plan in plans if plan and plan.node == node)

    def wait(self, uid: PodUID, group: str = "") -> tuple[Pending, ...]:
        """Wait a little until no other pod is pending; give those that still are.

        Never for pods of its own group: they are bound together with it.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._others(uid, group), self._wait_s)
            return self._others(uid, group)

    def _others(self, uid: PodUID | None, group: str) -> tuple[Pending, ...]:
        now = self._clock()
        for late in [u for u, p in self._pending.items() if p.until <= now]:
            del self._pending[late]
        return tuple(
            p
            for u, p in self._pending.items()
            if u != uid and not (group and p.group == group)
        )


class Expected:
    """Nodes as they will be when all of these pods have been bound there."""

    def __init__(self, pending: Iterable[Pending]) -> None:
        self._where = [
            (Decider(each.request, each.policy), each.planned, frozenset(each.nodes))
            for each in pending
        ]
        self.nodes = frozenset[NodeName]().union(*(names for *_, names in self._where))

    def on(self, node: Node) -> Node:
        """Give a node with those on it that were let through to it, as far as they fit.

        The very node where there are none.
        """
        for decider, planned, names in self._where:
            if node.name not in names:
                continue
            placed = planned or decider.place(node)
            if isinstance(placed, Placement):
                node = node.with_plan(placed)
        return node


def cautious(
    request: PodRequest,
    policy: Policy,
    pending: Collection[Pending],
    fitting: Fitting,
    ledger: Ledger,
    fits: Iterable[NodeName],
) -> dict[NodeName, Refusal]:
    """Refuse the nodes where the pod fits now, but not after all that is pending there.

    Most nodes have one card with room for everybody at once, which one look at a kept
    answer tells; on the rest, up to a bound, the pending pods are placed for trial.
    Nodes past the bound are refused, since another node will do.
    """
    expected = Expected(pending)
    doubtful = expected.nodes.intersection(fits) - _roomy(request, pending, fitting)
    refused: dict[NodeName, Refusal] = {}
    decider = Decider(request, policy)
    for count, name in enumerate(sorted(doubtful)):
        node = ledger.node(name)
        if node is None or count >= _MOST_LOOKED_AT:
            refused[name] = Refusal(Reason.CORE_AND_MEMORY)
            continue
        no = decider.refusal(expected.on(node))
        if no is not None:
            refused[name] = no
    return refused


def _roomy(
    request: PodRequest, pending: Collection[Pending], fitting: Fitting
) -> frozenset[NodeName]:
    """Give the nodes with one card for all of them: wherever they go, it is free.

    It must be one that the request may have; which ones the others may have is all one.
    """
    claims = [c for p in (request, *(p.request for p in pending)) for c in p.claims]
    if any(claim.whole_cards for claim in claims):
        return frozenset()
    total = sum((claim.amount for claim in claims), NOTHING)

    def judge(node: Node) -> Refusal | None:
        if node.summary_for(request).has_room(total):
            return None
        return Refusal(Reason.CORE_AND_MEMORY)

    return fitting.judged(("room", total, request.cards), judge).fits
