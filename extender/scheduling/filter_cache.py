"""What filter and prioritize keep between calls: answers, scores and pending pods.

The pods of a Deployment ask the same, and few nodes change between two of them. So the
answer for each shape of request is kept, and updated from the ledger's journal. The
cost of a filter depends on the number of changed nodes, not on the number of pods. A
node's score by a policy depends on that node alone and is kept in the same way.

A tenant may create thousands of pods of which no two ask the same. So a shape is judged
on all nodes only when as many names were asked about before; until then on the names
asked about, and no kept answer gives way to it.

Pods that filter let through count until their bind comes (decision 0007).
kube-scheduler filters the next pod before it binds the last one, and only bind tells
the node (contracts 4). Bind checks again, so nothing here protects a card; it prevents
binds that must fail. kube-scheduler filters all pods of a scheduling group before it
binds any of them. So filter leaves each of them one node and plans a placement there,
and the next ones are judged with that placement.
"""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, reduce
from threading import Condition, Lock
from typing import Self

from gpushare.domain import links
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
from gpushare.domain.placement import Decider, score_links, score_node
from gpushare.domain.policies import Policy

Judge = Callable[[Node], Refusal | None]
RequestShape = object
"""A hashable value; requests with different answers have different shapes."""

Verdicts = list[Refusal | None]
"""Of one node: a refusal, or None if the pod fits; empty if the node is gone."""

_MOST_SHAPES = 64
"""Shapes kept at a time; at 10,000 nodes a shape needs about 1 MB."""
_MOST_NEW = 256
"""Shapes of which only the number of names is kept."""
_MOST_TRIALS = 200
"""Pending pods that are placed one by one, over all nodes: some 10 ms of work."""
_COUNTED_EXACTLY = 4


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """The nodes on which a shape fits, and the refused nodes by reason.

    Nodes are grouped by reason, because there are few reasons and many nodes. A node in
    no group is unknown to the ledger. The value does not change; later changes are in
    the next answer.
    """

    fits: frozenset[NodeName] = frozenset()
    refused: Mapping[Refusal, frozenset[NodeName]] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[tuple[NodeName, Node | None]], judge: Judge) -> Self:
        """Return the answer about these nodes alone; None is a node that is gone."""
        groups: defaultdict[Refusal | None, list[NodeName]] = defaultdict(list)
        for name, node in nodes:
            if node is not None:
                groups[judge(node)].append(name)
        fits = frozenset(groups.pop(None, ()))
        return cls(fits, {no: frozenset(names) for no, names in groups.items() if no})

    def updated(self, judged: Iterable[tuple[NodeName, Verdicts]]) -> "FilterAnswer":
        """Return the answer with new verdicts for some nodes.

        Only groups that gain or lose a node are copied: most changes of a node change
        no verdict.
        """
        groups: dict[Refusal | None, frozenset[NodeName]] = {None: self.fits}
        groups.update(self.refused.items())
        moves: defaultdict[Refusal | None, set[NodeName]] = defaultdict(set)
        for name, now in judged:
            before = [verdict for verdict, group in groups.items() if name in group]
            if before != now:
                for verdict in (*before, *now):
                    moves[verdict].add(name)
        if not moves:
            return self
        for verdict, names in moves.items():
            groups[verdict] = groups.get(verdict, frozenset()) ^ names
        fits = groups.pop(None)
        return FilterAnswer(
            fits, {no: group for no, group in groups.items() if no and group}
        )


@dataclass(slots=True)
class _KeptAnswer:
    position: int = -1
    answer: FilterAnswer = field(default_factory=FilterAnswer)
    lock: Lock = field(default_factory=Lock)


class KeptAnswers:
    """Answers per shape over one ledger, updated for the nodes that changed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._shapes: OrderedDict[RequestShape, _KeptAnswer] = OrderedDict()
        self._new: OrderedDict[RequestShape, tuple[object, int]] = OrderedDict()
        self._lock = Lock()

    def answer(
        self,
        request: PodRequest,
        policy: Policy,
        names: Collection[NodeName] | None = None,
    ) -> FilterAnswer:
        """Return where the request fits now: on these nodes at least, or on all."""
        shape = _shape(request, policy)
        decider = Decider(request, policy)
        return self.judged(shape, decider.refusal, names, request)

    def judged(
        self,
        shape: RequestShape,
        judge: Judge,
        names: Collection[NodeName] | None = None,
        asking: object = None,
    ) -> FilterAnswer:
        """Return the answer of a judge; equal shapes must have equal judges.

        ``asking`` is whose filter it is: names that one asks again do not count.
        """
        kept = self._kept(shape, names, asking)
        if kept is None:
            names = names or ()
            nodes = zip(names, map(self._ledger.node, names), strict=True)
            return FilterAnswer.of(nodes, judge)
        with kept.lock:
            position, changed = self._ledger.changed_since(kept.position)
            answer = kept.answer
            if changed is None:
                all_nodes = self._ledger.nodes()
                every = _in_one_region(node.name for node in all_nodes)
                answer = FilterAnswer.of(zip(every, all_nodes, strict=True), judge)
            elif changed:
                answer = answer.updated(self._verdicts(changed, judge))
            kept.answer, kept.position = answer, position
            return answer

    def _verdicts(
        self, names: Iterable[NodeName], judge: Judge
    ) -> Iterator[tuple[NodeName, Verdicts]]:
        for name in dict.fromkeys(names):
            node = self._ledger.node(name)
            yield name, [] if node is None else [judge(node)]

    def _kept(
        self, shape: RequestShape, wanted: Collection[NodeName] | None, asking: object
    ) -> _KeptAnswer | None:
        """Return what is kept of a shape; None if judging these names costs less."""
        with self._lock:
            kept = self._shapes.get(shape)
            if kept is None:
                if wanted is not None and self._has_few(shape, len(wanted), asking):
                    return None
                kept = self._shapes[shape] = _KeptAnswer()
                if len(self._shapes) > _MOST_SHAPES:
                    self._shapes.popitem(last=False)
            self._shapes.move_to_end(shape)
            return kept

    def _has_few(self, shape: RequestShape, names: int, asking: object) -> bool:
        """Count the names, and tell whether fewer than all nodes' came before."""
        last, before = self._new.pop(shape, (None, 0))
        again = asking is not None and asking is last
        if before and before >= self._ledger.node_count and not again:
            return False
        self._new[shape] = asking, before + (0 if again else names)
        if len(self._new) > _MOST_NEW:
            self._new.popitem(last=False)
        return True


def _shape(request: PodRequest, policy: Policy) -> RequestShape:
    return (
        tuple(claim.amount for claim in request.claims),
        (policy.name, policy.card_order) if len(request.claims) > 1 else None,
        request.cards,
    )


def _in_one_region(names: Iterable[NodeName]) -> list[NodeName]:
    """Copy the names into one region of memory.

    A look-up compares the requested name with the stored one. Names scattered over the
    heap cause a CPU cache miss each, which is most of the cost of 5,000 names.
    """
    return [NodeName(name) for name in "\n".join(names).split("\n") if name]


class KeptScores:
    """The scores of all nodes of one ledger, by policy, and those of their links."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: OrderedDict[RequestShape, tuple[int, dict[NodeName, int]]] = (
            OrderedDict()
        )
        self._lock = Lock()

    def of(self, policy: Policy) -> Mapping[NodeName, int]:
        """Return the current score of every known node, 0 to 10, as an immutable map.

        It is copied only when a score changes, which is rare with eleven scores.
        """
        return self._updated(policy.name, lambda node: score_node(node, policy))

    def of_links(self, request: PodRequest, policy: Policy) -> Mapping[NodeName, int]:
        """Return the ``score_links`` of each node that has one, as an immutable map.

        Empty for most requests: those for which links do not count.
        """
        if not links.links_count_for(request):
            return {}
        shape = (policy.name, request.claims[0].amount, request.cards)
        return self._updated(
            shape, lambda node: score_links(request, node, policy) or None
        )

    def _updated(
        self, shape: RequestShape, judge: Callable[[Node], int | None]
    ) -> Mapping[NodeName, int]:
        with self._lock:
            position, scores = self._kept.get(shape, (-1, {}))
            position, names = self._ledger.changed_since(position)
            if names is None:
                scores, names = {}, [node.name for node in self._ledger.nodes()]
            nodes = {name: self._ledger.node(name) for name in names}
            judged = ((name, judge(node)) for name, node in nodes.items() if node)
            now = {name: value for name, value in judged if value is not None}
            gone = [name for name in nodes if name in scores and name not in now]
            if gone or any(scores.get(name) != now[name] for name in now):
                scores = scores | now
                for name in gone:
                    del scores[name]
            self._kept[shape] = position, scores
            self._kept.move_to_end(shape)
            if len(self._kept) > _MOST_SHAPES:
                self._kept.popitem(last=False)
        return scores


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
