"""What each bound pod is charged, as far as what stands on it can be believed."""

import logging
from threading import Lock

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Card, NodeName, Placement, PodUID
from gpushare.domain.node import Node
from gpushare.kube.codec import PodRecord

logger = logging.getLogger(__name__)


class Charges:
    """Writes the placements of pods into the ledger, the most believable of each.

    The actual placement wins over the plan, but only where the node has all its cards:
    one that names others would free what the pod holds. A pod without a placement to
    believe is charged on every card of its node. An actual one that was believed stays
    when its card goes: the pod holds nothing of the cards that are left.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Pods and nodes are followed by a thread each.
        self._lock = Lock()
        self._with_actual: dict[NodeName, dict[PodUID, PodRecord]] = {}
        self._where: dict[PodUID, NodeName] = {}
        self._doubted: set[PodUID] = set()

    def follow(self, record: PodRecord) -> None:
        """Charge a pod by what stands on it now."""
        if not record.node:
            return
        with self._lock:
            uid = record.pod.uid
            self._let_go(uid)
            if record.placement is not record.plan:
                self._with_actual.setdefault(record.node, {})[uid] = record
                self._where[uid] = record.node
            self._charge(record, self._ledger.node(record.node))

    def set_cards(self, name: NodeName, cards: tuple[Card, ...]) -> None:
        """Write down a node's cards, and first what is held of them by now.

        In this order, since a bind may come at any moment: one that saw the new cards
        with a plan that they have made obsolete would give away a card that is held.
        """
        with self._lock:
            for record in self._with_actual.get(name, {}).values():
                self._charge(record, Node(name, cards))
            self._ledger.set_cards(name, cards)

    def end(self, uid: PodUID) -> Placement | None:
        """Free what the pod held; give its placement, if it had one."""
        with self._lock:
            self._let_go(uid)
            self._doubted.discard(uid)
            return self._ledger.release(uid)

    def _let_go(self, uid: PodUID) -> None:
        name = self._where.pop(uid, None)
        if name is not None:
            del self._with_actual[name][uid]
            if not self._with_actual[name]:
                del self._with_actual[name]

    def _charge(self, record: PodRecord, node: Node | None) -> None:
        """Charge a pod on its node, which has the cards given or is not heard of."""
        placement = record.plan
        actual = record.placement
        if actual is not None and self._is_believed(actual, record, node):
            placement = actual
        if placement is not None:
            self._ledger.record(placement)
        elif record.charged is not None:
            self._ledger.record_unplaced(record.charged, record.node)

    def _is_believed(
        self, placement: Placement, record: PodRecord, node: Node | None
    ) -> bool:
        uid = record.pod.uid
        if placement is record.plan or placement == self._ledger.placement(uid):
            self._doubted.discard(uid)
            return True
        if node is None or not node.cards:
            # Not heard of yet, or not understood: there is nothing to give anyway.
            return False
        if node.could_hold(placement):
            self._doubted.discard(uid)
            return True
        if uid not in self._doubted:
            self._doubted.add(uid)
            facts = {"pod": str(record.pod), "node": record.node}
            logger.warning("actual placement is not possible there", extra=facts)
        return False
