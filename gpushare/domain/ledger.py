"""All nodes with their placements, in memory; ``bind`` decides on it.

The ledger is not the source of truth. Pods and nodes in the API server are, and the
ledger can be rebuilt from them at any time (decision 0001).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from threading import Condition

from gpushare.domain.model import (
    NO_CARDS,
    Card,
    NodeName,
    Placement,
    PodRequest,
    PodUID,
    Reason,
    Refusal,
)
from gpushare.domain.node import Node, why_no_room
from gpushare.domain.placement import place
from gpushare.domain.policies import Policy

_LONGEST_JOURNAL = 65_536
_MOST_PLANS = 100
"""How often a pod is planned on a node that changes meanwhile: for about a second."""


class Ledger:
    """All nodes and what is placed on them.

    One lock guards the writes; it is held for microseconds, never during I/O or while
    cards are chosen.
    Readers of a node need no lock, because nodes are immutable and replaced as a whole.
    """

    def __init__(self) -> None:
        self._lock = Condition()
        self._nodes: dict[NodeName, Node] = {}
        self._where: dict[PodUID, NodeName] = {}
        self._unplaced: dict[PodUID, tuple[NodeName, PodRequest]] = {}
        self._reservations: set[PodUID] = set()
        self._resource_claims: set[PodUID] = set()
        self._gone: set[NodeName] = set()
        self._nominated: frozenset[NodeName] = frozenset()
        self._journal: list[NodeName] = []
        self._journal_start = 0

    @property
    def node_count(self) -> int:
        """The number of nodes that are known."""
        return len(self._nodes)

    def node(self, name: NodeName) -> Node | None:
        """Return a node; None if the ledger does not know it."""
        return self._nodes.get(name)

    def nodes(self) -> tuple[Node, ...]:
        """Return all nodes as they are now."""
        return tuple(self._nodes.copy().values())

    def placement(self, uid: PodUID) -> Placement | None:
        """Return what a pod holds, or None."""
        name = self._where.get(uid)
        node = None if name is None else self._nodes.get(name)
        return None if node is None else node.placements.get(uid)

    def holders(self) -> frozenset[PodUID]:
        """Return pods with a share, of known or unknown cards; no ResourceClaims."""
        with self._lock:
            pods = self._where.keys() - self._resource_claims
            return frozenset(pods) | self._unplaced.keys()

    def resource_claims(self) -> frozenset[PodUID]:
        """Return all ResourceClaims that hold a share."""
        with self._lock:
            return frozenset(self._resource_claims)

    def nodes_with_nominations(self) -> frozenset[NodeName]:
        """Return the nodes with capacity kept for a nominated pod; usually none."""
        return self._nominated

    def reservations(self) -> frozenset[PodUID]:
        """Return pods and claims whose placement the API server has not told yet."""
        with self._lock:
            return frozenset(self._reservations)

    def position(self) -> int:
        """Return the journal's end, for ``changed_since``."""
        with self._lock:
            return self._journal_start + len(self._journal)

    def changed_since(self, position: int) -> tuple[int, Sequence[NodeName] | None]:
        """Return the current position and the nodes that changed after an older one.

        Names may repeat. None instead of names means that the position is too old: read
        all nodes then.
        """
        with self._lock:
            now = self._journal_start + len(self._journal)
            if position < self._journal_start:
                return now, None
            return now, self._journal[position - self._journal_start :]

    def wait_for_change(self, position: int, timeout_s: float) -> bool:
        """Wait for a change after a position; return False if there was none."""

        def changed() -> bool:
            return self._journal_start + len(self._journal) > position

        with self._lock:
            return self._lock.wait_for(changed, timeout_s)

    def set_cards(self, name: NodeName, cards: Iterable[Card]) -> None:
        """Record the node's cards; empty if it shares none."""
        with self._lock:
            before = self._nodes.get(name, Node(name))
            after = tuple(cards)
            self._gone.discard(name)
            if before.cards != after or name not in self._nodes:
                self._store(replace(before, cards=after))

    def forget(self, name: NodeName) -> None:
        """Remove a node that was deleted.

        Pods may exist longer than their node (contracts 6). What they hold stays until
        they are deleted too; nothing is placed there meanwhile.
        """
        with self._lock:
            before = self._nodes.get(name)
            if before is None:
                return
            self._nominated -= {name}
            self._gone.add(name)
            self._store(replace(before, cards=(), nominations={}))

    def reserve(
        self,
        request: PodRequest,
        name: NodeName,
        policy: Policy,
        beside: Sequence[Placement] = (),
    ) -> Placement | Refusal:
        """Place the pod on the node and record the placement.

        A pod that already has a placement there keeps it, so that a second bind changes
        nothing. The caller must release a placement on another node first, because only
        the caller knows whether the pod is bound. ``beside`` are the plans of other
        pods; their capacity is used only if there is no other.

        The cards are chosen without the lock, because a search takes milliseconds. A
        choice counts if the node is still the same then, else it is made again.
        """
        for _ in range(_MOST_PLANS):
            node = self._nodes.get(name)
            if node is None:
                return NO_CARDS
            if (placement := node.placements.get(request.pod.uid)) is not None:
                return placement
            planned = _planned(request, node, policy, beside)
            if isinstance(planned, Refusal):
                return planned
            with self._lock:
                if self._nodes.get(name) is node:
                    self._record(planned)
                    self._reservations.add(request.pod.uid)
                    return planned
        return Refusal(Reason.CHANGING)

    def reserve_resource_claim(self, placement: Placement) -> str:
        """Record what a ResourceClaim is to have; return why not, empty if it may.

        kube-scheduler has chosen the card, by a view of its own. A claim that holds
        this already keeps it, so that a second question changes nothing. What the UID
        holds of other cards is never replaced.
        """
        with self._lock:
            uid = placement.pod.key
            node = self._nodes.get(placement.node, Node(placement.node))
            if node.placements.get(uid) == placement:
                return ""
            if uid in self._where or uid in self._unplaced:
                return f"UID {uid} has another part of a card"
            why_not = why_no_room(node, placement)
            if not why_not:
                self._record(placement)
                self._reservations.add(uid)
            return why_not

    def change_resource_claim(self, placement: Placement) -> None:
        """Record a claim's cards anew; a reservation stays one."""
        with self._lock:
            if placement.pod.key in self._resource_claims:
                self._record(placement)

    def record(self, placement: Placement) -> None:
        """Record a placement from the API server, whether it fits or not."""
        with self._lock:
            uid = placement.pod.key
            self._reservations.discard(uid)
            node = self._nodes.get(placement.node)
            if node is None or node.placements.get(uid) != placement:
                self._record(placement)
            self._unplaced.pop(uid, None)

    def record_unplaced(self, request: PodRequest, name: NodeName) -> None:
        """Record a pod that the API server has on a node without a placement.

        It counts on every card there until its placement is known. A placement that it
        holds there already stays; what it is charged on another node is removed.
        """
        uid = request.pod.uid
        with self._lock:
            if self._unplaced.get(uid) == (name, request):
                return
            self._remove_unplaced(uid)
            self._unplaced[uid] = (name, request)
            if self._where.get(uid, name) != name:
                self._reservations.discard(uid)
                self._remove(uid)
            self._charge_everywhere(uid)

    def release(self, uid: PodUID) -> Placement | None:
        """Remove what the pod holds; return its placement, if it had one."""
        with self._lock:
            self._reservations.discard(uid)
            self._remove_unplaced(uid)
            self._unplaced.pop(uid, None)
            return self._remove(uid)

    def cancel(self, uid: PodUID) -> None:
        """Remove a reservation; a placement read from the API server stays.

        A pod that was bound without the reservation meanwhile becomes unplaced.
        """
        with self._lock:
            if uid in self._reservations:
                self._reservations.discard(uid)
                self._remove(uid)
                self._charge_everywhere(uid)

    def nominate(self, name: NodeName, kept: Mapping[PodUID, Placement]) -> None:
        """Keep capacity on a node for these nominated pods, and for no others."""
        with self._lock:
            node = self._nodes.get(name)
            if node is None or node.nominations == kept:
                return
            self._store(replace(node, nominations=dict(kept)))
            others = self._nominated - {name}
            self._nominated = others | {name} if kept else others

    def _record(self, placement: Placement) -> None:
        uid = placement.pod.key
        if self._unplaced.get(uid, (placement.node,))[0] != placement.node:
            self._remove_unplaced(uid)
        if self._where.get(uid, placement.node) != placement.node:
            self._remove(uid)
        node = self._node_to_change(placement.node)
        self._where[uid] = placement.node
        if placement.pod.is_resource_claim:
            self._resource_claims.add(uid)
        self._store(node.with_placement(placement))

    def _charge_everywhere(self, uid: PodUID) -> None:
        if uid in self._unplaced and uid not in self._where:
            name, request = self._unplaced[uid]
            self._store(self._node_to_change(name).with_unplaced(request))

    def _node_to_change(self, name: NodeName) -> Node:
        """Return a node to change, a new one if the pod was seen before its node.

        The new one is removed with its last pod: it may not exist (contracts 6).
        """
        node = self._nodes.get(name)
        if node is None:
            self._gone.add(name)
            node = Node(name)
        return node

    def _remove_unplaced(self, uid: PodUID) -> None:
        """Stop charging a pod on every card; its request stays recorded."""
        if uid in self._unplaced and uid not in self._where:
            node = self._nodes[self._unplaced[uid][0]]
            unplaced = {u: r for u, r in node.unplaced.items() if u != uid}
            self._store(replace(node, unplaced=unplaced))

    def _remove(self, uid: PodUID) -> Placement | None:
        name = self._where.pop(uid, None)
        if name is None:
            return None
        self._resource_claims.discard(uid)
        node = self._nodes[name]
        placement = node.placements[uid]
        placements = {u: p for u, p in node.placements.items() if u != uid}
        self._store(replace(node, placements=placements))
        return placement

    def _store(self, node: Node) -> None:
        if node.name in self._gone and not (node.placements or node.unplaced):
            self._gone.discard(node.name)
            self._nodes.pop(node.name, None)
        else:
            self._nodes[node.name] = node
        self._note(node.name)

    def _note(self, name: NodeName) -> None:
        """Append to the journal; drop the older half when it gets long."""
        self._journal.append(name)
        self._lock.notify_all()
        if len(self._journal) > _LONGEST_JOURNAL:
            half = len(self._journal) // 2
            del self._journal[:half]
            self._journal_start += half


def _planned(
    request: PodRequest, node: Node, policy: Policy, beside: Sequence[Placement]
) -> Placement | Refusal:
    seen = node.as_seen_by(request.pod)
    planned = place(request, reduce(Node.with_plan, beside, seen), policy)
    if beside and isinstance(planned, Refusal):
        return place(request, seen, policy)
    return planned
