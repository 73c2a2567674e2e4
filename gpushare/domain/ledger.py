"""All nodes with their placements, in memory; what bind decides on.

Never a source of truth: pods and nodes in the API server are, and the ledger can be
read back from them at any time (decision 0001).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from threading import Condition

from gpushare.domain.model import Card, NodeName, Placement, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.placement import place
from gpushare.domain.policies import Policy
from gpushare.domain.refusal import Reason, Refusal

_LONGEST_JOURNAL = 65_536


class Ledger:
    """The book of all nodes.

    One lock, held for microseconds and never over I/O, guards the writes. Readers of a
    page take none: a node is replaced whole and never changed.
    """

    def __init__(self) -> None:
        self._lock = Condition()
        self._nodes: dict[NodeName, Node] = {}
        self._where: dict[PodUID, NodeName] = {}
        self._bare: dict[PodUID, tuple[NodeName, PodRequest]] = {}
        self._unconfirmed: set[PodUID] = set()
        self._gone: set[NodeName] = set()
        self._nominated: frozenset[NodeName] = frozenset()
        self._journal: list[NodeName] = []
        self._journal_start = 0

    def node(self, name: NodeName) -> Node | None:
        """Open a node's page; None for a node that the ledger has never heard of."""
        return self._nodes.get(name)

    def nodes(self) -> tuple[Node, ...]:
        """All pages as they are now."""
        return tuple(self._nodes.copy().values())

    def placement(self, uid: PodUID) -> Placement | None:
        """What a pod holds, or None."""
        name = self._where.get(uid)
        node = None if name is None else self._nodes.get(name)
        return None if node is None else node.placements.get(uid)

    def holders(self) -> frozenset[PodUID]:
        """Return all pods that hold anything, on a known card or somewhere."""
        with self._lock:
            return frozenset(self._where) | self._bare.keys()

    def nominated(self) -> frozenset[NodeName]:
        """The nodes on which room is kept for a nominated pod; mostly none."""
        return self._nominated

    def reservations(self) -> frozenset[PodUID]:
        """The pods whose placement has not yet been seen back from the API server."""
        with self._lock:
            return frozenset(self._unconfirmed)

    def position(self) -> int:
        """Return the journal's end, to ask from later."""
        with self._lock:
            return self._journal_start + len(self._journal)

    def changed_since(self, position: int) -> tuple[int, Sequence[NodeName] | None]:
        """Name the nodes that changed after a position, and the position now.

        Names may repeat. None instead of names when the position is too old to tell:
        look at all nodes then.
        """
        with self._lock:
            now = self._journal_start + len(self._journal)
            if position < self._journal_start:
                return now, None
            return now, self._journal[position - self._journal_start :]

    def wait_for_change(self, position: int, timeout_s: float) -> bool:
        """Wait until something changed after a position; False when nothing did."""

        def changed() -> bool:
            return self._journal_start + len(self._journal) > position

        with self._lock:
            return self._lock.wait_for(changed, timeout_s)

    def set_cards(self, name: NodeName, cards: Iterable[Card]) -> None:
        """Write down the node's cards, none where it shares none."""
        with self._lock:
            before = self._nodes.get(name, Node(name))
            after = tuple(cards)
            self._gone.discard(name)
            if before.cards != after or name not in self._nodes:
                self._publish(replace(before, cards=after))

    def forget(self, name: NodeName) -> None:
        """Note that the node is gone.

        Pods may outlast their node for a while (contracts 6): what they hold stays
        until they go too, and nothing is placed there meanwhile.
        """
        with self._lock:
            before = self._nodes.get(name)
            if before is None:
                return
            self._nominated -= {name}
            self._gone.add(name)
            self._publish(replace(before, cards=(), nominations={}))

    def reserve(
        self,
        request: PodRequest,
        name: NodeName,
        policy: Policy,
        beside: Sequence[Placement] = (),
    ) -> Placement | Refusal:
        """Decide and write down, in one step, where on the node the pod goes.

        A pod that holds a placement there already gets that one, so that a second bind
        changes nothing. One that holds a placement elsewhere must be released first;
        that is the caller's business, since only it knows whether the pod is bound.
        What is planned for others, ``beside``, is left alone where there is a choice.
        """
        with self._lock:
            node = self._nodes.get(name)
            if node is None:
                return Refusal(Reason.NO_CARDS)
            held = node.placements.get(request.pod.uid)
            if held is not None:
                return held
            seen = node.as_seen_by(request.pod)
            decision = place(request, reduce(Node.with_plan, beside, seen), policy)
            if beside and isinstance(decision, Refusal):
                decision = place(request, seen, policy)
            if isinstance(decision, Placement):
                self._write(decision)
                self._unconfirmed.add(request.pod.uid)
            return decision

    def record(self, placement: Placement) -> None:
        """Write down a placement that the API server holds, whether it fits or not."""
        with self._lock:
            uid = placement.pod.uid
            self._unconfirmed.discard(uid)
            node = self._nodes.get(placement.node)
            if node is None or node.placements.get(uid) != placement:
                self._write(placement)
            self._bare.pop(uid, None)

    def record_unplaced(self, request: PodRequest, name: NodeName) -> None:
        """Write down a pod that the API server has on a node, but on no card.

        Until a placement is known it may be on any card there. One that the pod holds
        goes before; a reservation elsewhere can no longer come true, and ends.
        """
        uid = request.pod.uid
        with self._lock:
            if self._bare.get(uid) == (name, request):
                return
            self._bare[uid] = (name, request)
            if uid in self._unconfirmed and self._where[uid] != name:
                self._unconfirmed.discard(uid)
                self._strike(uid)
            self._charge_everywhere(uid)

    def release(self, uid: PodUID) -> Placement | None:
        """Strike out what the pod holds; give the placement, if that was it."""
        with self._lock:
            self._unconfirmed.discard(uid)
            self._strike_bare(uid)
            self._bare.pop(uid, None)
            return self._strike(uid)

    def cancel(self, uid: PodUID) -> Placement | None:
        """Strike out a reservation; a placement seen from the API server stays.

        A pod that was bound without it meanwhile is unplaced from now on.
        """
        with self._lock:
            if uid not in self._unconfirmed:
                return None
            self._unconfirmed.discard(uid)
            struck = self._strike(uid)
            self._charge_everywhere(uid)
            return struck

    def nominate(self, name: NodeName, kept: Mapping[PodUID, Placement]) -> None:
        """Keep room on a node for these nominated pods, and for no others."""
        with self._lock:
            node = self._nodes.get(name)
            if node is None or node.nominations == kept:
                return
            self._publish(replace(node, nominations=dict(kept)))
            others = self._nominated - {name}
            self._nominated = others | {name} if kept else others

    def _write(self, placement: Placement) -> None:
        uid = placement.pod.uid
        if self._bare.get(uid, (placement.node,))[0] != placement.node:
            self._strike_bare(uid)
        if self._where.get(uid, placement.node) != placement.node:
            self._strike(uid)
        node = self._page(placement.node)
        self._where[uid] = placement.node
        self._publish(node.with_placement(placement))

    def _charge_everywhere(self, uid: PodUID) -> None:
        """Charge a pod that is bound bare, unless it holds a placement."""
        if uid in self._bare and uid not in self._where:
            name, request = self._bare[uid]
            self._publish(self._page(name).with_unplaced(request))

    def _page(self, name: NodeName) -> Node:
        """Open a node's page to write on it, a new one for a pod that came first.

        Nobody has heard of that node, or it is gone (contracts 6): no page for ever.
        """
        if name not in self._nodes:
            self._gone.add(name)
        return self._nodes.get(name, Node(name))

    def _strike_bare(self, uid: PodUID) -> None:
        """Take a pod from where it is charged on every card; what was told stays."""
        if uid in self._bare and uid not in self._where:
            node = self._nodes[self._bare[uid][0]]
            left = {u: r for u, r in node.unplaced.items() if u != uid}
            self._publish(replace(node, unplaced=left))

    def _strike(self, uid: PodUID) -> Placement | None:
        name = self._where.pop(uid, None)
        if name is None:
            return None
        node = self._nodes[name]
        placement = node.placements[uid]
        left = {u: p for u, p in node.placements.items() if u != uid}
        self._publish(replace(node, placements=left))
        return placement

    def _publish(self, node: Node) -> None:
        """Put a page in; that of a node that is gone ends with its last pod."""
        if node.name in self._gone and not (node.placements or node.unplaced):
            self._gone.discard(node.name)
            self._nodes.pop(node.name, None)
        else:
            self._nodes[node.name] = node
        self._note(node.name)

    def _note(self, name: NodeName) -> None:
        """Append to the journal, whose older half goes when it gets long."""
        self._journal.append(name)
        self._lock.notify_all()
        if len(self._journal) > _LONGEST_JOURNAL:
            half = len(self._journal) // 2
            del self._journal[:half]
            self._journal_start += half
