"""Pods told "yes" whose bind has not come (contracts 4, decision 0007).

kube-scheduler filters the next pod while the last one's bind is still on its way, and
only bind says which node it will be. Bind decides and rechecks, so nothing here guards
a card; it spares pods a bind that must fail.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from threading import Condition

from gpushare.domain.fitting import Fitting
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NOTHING, NodeName, Placement, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.scheduling import Decider
from gpushare.domain.summary import Reason, Refusal

_MOST_LOOKED_AT = 200
"""Nodes on which the pending pods are placed one by one: some 10 ms of work."""


@dataclass(frozen=True, slots=True)
class Pending:
    """One pod told yes: what it asks, and the nodes it was let through to.

    ``nodes`` as filter answered them: a set is made only where one is needed.
    """

    request: PodRequest
    policy: Policy
    nodes: Sequence[NodeName]
    until: float


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

    def __len__(self) -> int:
        return len(self.others(None))

    def add(
        self, request: PodRequest, policy: Policy, nodes: Sequence[NodeName]
    ) -> None:
        """Note that the pod was told yes on these nodes."""
        until = self._clock() + self._pending_for_s
        pending = Pending(request, policy, nodes, until)
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

    def others(self, uid: PodUID | None) -> tuple[Pending, ...]:
        """Give what other pods are pending now."""
        with self._changed:
            return self._others(uid)

    def wait(self, uid: PodUID) -> tuple[Pending, ...]:
        """Wait a little until no other pod is pending; give those that still are."""
        with self._changed:
            self._changed.wait_for(lambda: not self._others(uid), self._wait_s)
            return self._others(uid)

    def _others(self, uid: PodUID | None) -> tuple[Pending, ...]:
        now = self._clock()
        for late in [u for u, p in self._pending.items() if p.until <= now]:
            del self._pending[late]
        return tuple(p for u, p in self._pending.items() if u != uid)


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
    where = [
        (Decider(each.request, each.policy), frozenset(each.nodes)) for each in pending
    ]
    touched = frozenset[NodeName]().union(*(names for _, names in where))
    doubtful = touched.intersection(fits) - _roomy(request, pending, fitting)
    refused: dict[NodeName, Refusal] = {}
    decider = Decider(request, policy)
    for count, name in enumerate(sorted(doubtful)):
        node = ledger.node(name)
        if node is None or count >= _MOST_LOOKED_AT:
            refused[name] = Refusal(Reason.CORE_AND_MEMORY)
            continue
        after = _after(node, [each for each, names in where if name in names])
        no = decider.refusal(after)
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

    return frozenset(fitting.judged(("room", total, request.cards), judge).fits)


def _after(node: Node, pending: Iterable[Decider]) -> Node:
    for each in pending:
        placed = each.place(node)
        if isinstance(placed, Placement):
            node = node.with_placement(placed)
    return node
