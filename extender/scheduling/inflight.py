"""Count the pods that filter let through and whose bind is pending (decision 0007).

kube-scheduler filters the next pod before it binds the last one, and only bind tells
the node (contracts 4). Bind checks again, so nothing here protects a card; it prevents
binds that must fail.

kube-scheduler filters all pods of a scheduling group before it binds any of them. So
filter leaves each of them one node and plans a placement there, and the next ones are
judged with that placement.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, reduce
from threading import Condition

from gpushare.domain.kept_answers import KeptAnswers
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    CORE_AND_MEMORY,
    NOTHING,
    Amount,
    NodeName,
    Placement,
    PodRequest,
    PodUID,
    Refusal,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import Decider
from gpushare.domain.policies import Policy

_MOST_TRIALS = 200
"""Pending pods that are placed one by one, over all nodes: some 10 ms of work."""
_COUNTED_EXACTLY = 4


@dataclass(frozen=True)
class PendingBind:
    """One pod that filter let through, with the nodes that filter kept.

    ``group`` is the scheduling group, empty for most pods. ``planned`` is the placement
    of a pod of a group on its one node.
    """

    request: PodRequest
    policy: Policy
    nodes: Sequence[NodeName]
    until: float
    group: str = ""
    planned: Placement | None = None

    @cached_property
    def names(self) -> frozenset[NodeName]:
        """The same nodes; made once, and only if another pod is judged with this one.

        With hundreds of pending pods and thousands of nodes it is most of a filter.
        """
        return frozenset(self.nodes)


@dataclass(slots=True)
class _Cycle:
    """The pods of a scheduling group that filter was asked about, in order."""

    until: float = 0.0
    asked: dict[PodUID, None] = field(default_factory=dict)

    def begins_again(self, uid: PodUID) -> bool:
        """Tell whether kube-scheduler asks about the group again from the start.

        Twice in a row about one pod belongs to one cycle (contracts 1.2).
        """
        return uid in self.asked and next(reversed(self.asked)) != uid


class Inflight:
    """The pending pods of all schedulers; mostly none or one."""

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
        self._pending: dict[PodUID, PendingBind] = {}
        self._cycles: dict[str, _Cycle] = {}

    def __len__(self) -> int:
        return len(self.others(None))

    def begin(self, uid: PodUID, group: str) -> None:
        """Forget the last answer about a pod, as filter is asked about it again.

        If a cycle of its group begins again, forget all pods of the group.
        """
        self.end(uid)
        if not group:
            return
        with self._changed:
            now = self._clock()
            for late in [g for g, cycle in self._cycles.items() if cycle.until <= now]:
                del self._cycles[late]
            cycle = self._cycles.setdefault(group, _Cycle())
            if cycle.begins_again(uid):
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
        """Note that filter kept these nodes for the pod."""
        until = self._clock() + self._pending_for_s
        pending = PendingBind(request, policy, nodes, until, group, planned)
        with self._changed:
            self._pending[request.pod.uid] = pending

    def end(self, uid: PodUID) -> None:
        """Forget a pod that was bound, filtered again or deleted."""
        with self._changed:
            if self._pending.pop(uid, None) is not None:
                self._changed.notify_all()

    def pending_request(self, uid: PodUID) -> PodRequest | None:
        """Return the request that filter let through, while its bind is pending."""
        with self._changed:
            pending = self._pending.get(uid)
            late = pending is None or pending.until <= self._clock()
            return None if pending is None or late else pending.request

    def others(self, uid: PodUID | None, group: str = "") -> tuple[PendingBind, ...]:
        """Return the other pods that are pending, without those of the pod's group."""
        with self._changed:
            return self._others(uid, group)

    def members(self, uid: PodUID, group: str) -> tuple[PendingBind, ...]:
        """Return the other pods of the pod's group that are pending."""
        if not group:
            return ()
        return tuple(pending for pending in self.others(uid) if pending.group == group)

    def planned(self, node: NodeName, uid: PodUID) -> tuple[Placement, ...]:
        """Return the placements planned on a node for other pods of groups."""
        plans = (pending.planned for pending in self.others(uid))
        return tuple(plan for plan in plans if plan and plan.node == node)

    def wait(self, uid: PodUID, group: str = "") -> tuple[PendingBind, ...]:
        """Wait up to ``wait_s`` until no other pod is pending; return those that are.

        Pods of the same group do not count: they are bound together with this one.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._others(uid, group), self._wait_s)
            return self._others(uid, group)

    def _others(self, uid: PodUID | None, group: str) -> tuple[PendingBind, ...]:
        now = self._clock()
        for late in [u for u, p in self._pending.items() if p.until <= now]:
            del self._pending[late]
        return tuple(
            p
            for u, p in self._pending.items()
            if u != uid and not (group and p.group == group)
        )


class ExpectedNodes:
    """Nodes as they will be once all of these pods are bound there."""

    def __init__(self, pending: Iterable[PendingBind]) -> None:
        self._where = [
            (Decider(bind.request, bind.policy), bind.planned, bind.names)
            for bind in pending
        ]

    def among(self, names: AbstractSet[NodeName]) -> set[NodeName]:
        """Return those of the names to which any of the pods was let through."""
        others = set(names)
        for *_, let_through in self._where:
            if not others:
                break
            others = others - let_through
        return set(names) - others

    def on(self, node: Node) -> Node:
        """Return the node with the pods on it that were let through to it and fit.

        The same object if there are none.
        """
        for decider, planned, names in self._where:
            if node.name not in names:
                continue
            placed = planned or decider.place(node)
            if isinstance(placed, Placement):
                node = node.with_plan(placed)
        return node


def refuse_with_pending(
    request: PodRequest,
    policy: Policy,
    pending: Collection[PendingBind],
    fitting: KeptAnswers,
    ledger: Ledger,
    fits: Iterable[NodeName],
) -> dict[NodeName, Refusal]:
    """Refuse nodes where the pod fits now, but not once the pending pods are bound.

    Most nodes have more room than the pending pods can take, which is looked up in
    caches. On some of the other nodes the pending pods are placed in a copy of the
    node. The rest is refused, since another node will do.
    """
    doubtful = frozenset(fits)
    others = [claim for bind in pending for claim in bind.request.claims]
    if not any(claim.whole_cards for claim in (*request.claims, *others)):
        amounts = [claim.amount for claim in others]
        doubtful -= _keeping_room(request, amounts, fitting, doubtful)
        if doubtful:
            doubtful -= _with_room_for_all(request, amounts, fitting, doubtful)
    if not doubtful:
        return {}
    expected = ExpectedNodes(pending)
    refused: dict[NodeName, Refusal] = {}
    decider = Decider(request, policy)
    most = max(1, _MOST_TRIALS // len(pending))
    for count, name in enumerate(sorted(expected.among(doubtful))):
        node = ledger.node(name)
        if node is None or count >= most:
            refused[name] = CORE_AND_MEMORY
            continue
        no = decider.refusal(expected.on(node))
        if no is not None:
            refused[name] = no
    return refused


def _keeping_room(
    request: PodRequest,
    others: Collection[Amount],
    fitting: KeptAnswers,
    names: frozenset[NodeName],
) -> frozenset[NodeName]:
    """Return the nodes that keep room for the request, wherever the others are placed.

    The request must be allowed to use the card that keeps the room. The number of the
    others is rounded up, so that few answers have to be kept. At least the nodes of
    ``names`` are looked at.
    """
    wanted = sum((claim.amount for claim in request.claims), NOTHING)
    largest = reduce(Amount.peak, others, NOTHING)
    count = len(others)
    if count > _COUNTED_EXACTLY:
        count = (1 << count.bit_length()) - 1

    def judge(node: Node) -> Refusal | None:
        needed = 0
        for room in node.as_limited_by(request).free.values():
            if wanted.cores <= room.cores and wanted.units <= room.units:
                needed += _least_to_fill(room, wanted, largest)
                if needed > count:
                    return None
        return CORE_AND_MEMORY

    shape = ("keeps", wanted, largest, count, request.cards)
    return fitting.judged(shape, judge, names, request).fits


def _least_to_fill(room: Amount, wanted: Amount, largest: Amount) -> int:
    """Return how many claims it takes at least until the wanted amount has no room.

    None of them is larger than ``largest``, and there is room now.
    """
    cores, units = room.cores - wanted.cores, room.units - wanted.units
    if not (largest.cores and largest.units):
        # Of what none of them asks, none is used up.
        parts = ((cores, largest.cores), (units, largest.units))
        return min((spare // most + 1 for spare, most in parts if most), default=1)
    by_cores, by_units = cores // largest.cores, units // largest.units
    return 1 + (by_cores if by_cores < by_units else by_units)  # noqa: FURB136


def _with_room_for_all(
    request: PodRequest,
    others: Iterable[Amount],
    fitting: KeptAnswers,
    names: frozenset[NodeName],
) -> frozenset[NodeName]:
    """Return the nodes with one card that has room for all of them.

    The request must be allowed to use that card. Wherever the others are placed, it has
    room for the request. At least the nodes of ``names`` are looked at.
    """
    wanted = sum((claim.amount for claim in request.claims), NOTHING)
    total = sum(others, wanted)

    def judge(node: Node) -> Refusal | None:
        return None if node.summary_for(request).has_room(total) else CORE_AND_MEMORY

    shape = ("room", total, request.cards)
    return fitting.judged(shape, judge, names, request).fits
