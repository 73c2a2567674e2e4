"""Pods of the API server, followed into the ledger: requests, placements, nominations.

``PodInformer`` is the sink of the pods' reflector. ``Charges`` decides which placement
of a pod is believed; ``Nominations`` keeps capacity for pods whose victims are leaving.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from threading import Lock, RLock

from gpushare.domain.eviction.preemption import NOT_STARTED
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Card, NodeName, Placement, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.placement import place
from gpushare.domain.policies import Policy, PolicyChoice
from gpushare.kube import codec
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord, RequestedResources
from gpushare.kube.facts import is_terminal, node_of
from gpushare.kube.json_reader import Malformed
from gpushare.kube.reflector import Sink

Leaving = Callable[[NodeName], Iterable[PodRecord]]
"""Return the pods of a node that are leaving."""


class Nominations:
    """Keep capacity on a card for nominated pods, whose victims are leaving.

    kube-scheduler keeps capacity by a node's totals and does not know the card; without
    this class another pod would take the card meanwhile. The result depends only on the
    API server's objects, so it survives a restart. Leaving pods of lower priority count
    as gone, and the most important nominee chooses first. A nominee for which that is
    not enough keeps nothing.
    """

    def __init__(self, ledger: Ledger, choice: PolicyChoice) -> None:
        self._ledger = ledger
        self._choice = choice
        # Pods and nodes are followed by a thread each.
        self._lock = RLock()
        self._nominees: dict[NodeName, dict[PodUID, PodRecord]] = {}

    def follow(
        self, before: PodRecord | None, after: PodRecord | None, leaving: Leaving
    ) -> None:
        """Apply one pod's change; None for a pod that did not or does not exist."""
        if not self._nominees and (after is None or not after.nominated):
            # Only the pods' thread adds nominees, and it is this one.
            return
        known = [record for record in (before, after) if record is not None]
        with self._lock:
            if before is not None:
                self._nominees.get(before.nominated, {}).pop(before.pod.uid, None)
            if after is not None and after.nominated and not after.node:
                here = self._nominees.setdefault(after.nominated, {})
                here[after.pod.uid] = after
            for name in {
                node_name for pod in known for node_name in (pod.node, pod.nominated)
            }:
                self.reconsider(name, leaving)

    def reconsider(self, name: NodeName, leaving: Leaving) -> None:
        """Compute again what is kept on one node, which is usually nothing."""
        with self._lock:
            if name in self._nominees:
                self._ledger.nominate(name, self._kept(name, leaving))
                if not self._nominees[name]:
                    del self._nominees[name]

    def _kept(self, name: NodeName, leaving: Leaving) -> dict[PodUID, Placement]:
        node = self._ledger.node(name)
        if node is None:
            return {}
        gone = tuple(leaving(name))
        node = node.without(node.nominations.keys() - node.placements.keys())
        kept: dict[PodUID, Placement] = {}
        nominees = self._nominees[name].values()
        for nominee in sorted(nominees, key=lambda r: (-r.pod.priority, r.pod.uid)):
            placement = self._place(nominee, node, gone)
            if placement is not None:
                kept[nominee.pod.uid] = placement
                node = node.with_placement(placement)
        return kept

    def _place(
        self, nominee: PodRecord, node: Node, leaving: Iterable[PodRecord]
    ) -> Placement | None:
        request = nominee.request
        if not isinstance(request, PodRequest):
            return None
        policy = self._choice.policy(request.policy)
        if not isinstance(policy, Policy):
            return None
        priority = nominee.pod.priority
        gone = {r.pod.uid for r in leaving if r.pod.priority < priority}
        placement = place(request, node.without(gone), policy)
        return placement if isinstance(placement, Placement) else None


logger = logging.getLogger(__name__)

UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector; a pod that ends arrives as DELETED (contracts 7)."""
_MOST_ENDED = 10_000
_PREEMPTED_FOR_S = 5.0
"""How long a victim counts as leaving before its deletion is seen."""


class Charges:
    """Record one placement of each pod in the ledger: the actual or the planned one.

    The actual placement replaces the planned one only if the node has all cards that it
    names. An actual placement with other cards is ignored, because it would free what
    the pod holds. A pod without a usable placement is charged on every card of its
    node. An actual placement that was accepted stays when its card disappears: the pod
    holds nothing of the remaining cards.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Pods and nodes are followed by a thread each.
        self._lock = Lock()
        self._with_actual: dict[NodeName, dict[PodUID, PodRecord]] = {}
        self._where: dict[PodUID, NodeName] = {}
        self._doubted: set[PodUID] = set()

    def follow(self, record: PodRecord) -> None:
        """Charge a pod by its current placements."""
        if not record.node:
            return
        with self._lock:
            uid = record.pod.uid
            self._forget(uid)
            if record.placement is not record.plan:
                self._with_actual.setdefault(record.node, {})[uid] = record
                self._where[uid] = record.node
            self._charge(record, self._ledger.node(record.node))

    def set_cards(self, name: NodeName, cards: tuple[Card, ...]) -> None:
        """Record what is held of a node's new cards, then the cards.

        The order matters, because a bind can come at any moment: if it saw the new
        cards with an obsolete plan, it would place a pod on a card that is held.
        """
        with self._lock:
            for record in self._with_actual.get(name, {}).values():
                self._charge(record, Node(name, cards))
            self._ledger.set_cards(name, cards)

    def end(self, uid: PodUID) -> Placement | None:
        """Free what the pod held; return its placement, if it had one."""
        with self._lock:
            self._forget(uid)
            self._doubted.discard(uid)
            return self._ledger.release(uid)

    def _forget(self, uid: PodUID) -> None:
        name = self._where.pop(uid, None)
        if name is not None:
            del self._with_actual[name][uid]
            if not self._with_actual[name]:
                del self._with_actual[name]

    def _charge(self, record: PodRecord, node: Node | None) -> None:
        """Charge a pod on its node; None if the node is unknown."""
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
        known = placement is record.plan or placement == self._ledger.placement(uid)
        if not known and (node is None or not node.cards):
            # Unknown or unreadable node: it has no capacity anyway.
            return False
        if known or (node is not None and node.could_hold(placement)):
            self._doubted.discard(uid)
            return True
        if uid not in self._doubted:
            self._doubted.add(uid)
            facts = {"pod": str(record.pod), "node": record.node}
            logger.warning(
                "vcuda-actual is ignored: it does not fit the node's cards", extra=facts
            )
        return False


class PodInformer(Sink):
    """The sink for pods: record in the ledger who asks for cards and who holds what.

    A bound pod is charged until its phase is terminal or it is deleted; a deletion
    timestamp alone frees nothing. An event of a pod without the annotation
    ``vcuda-placement`` never removes a reservation. ``on_gone`` is called with each UID
    that has left, ``on_new`` with each new request for cards. ``hosts`` records CPU and
    memory, also of pods without cards; None if that is not needed.
    """

    def __init__(
        self,
        ledger: Ledger,
        choice: PolicyChoice,
        *,
        on_gone: Callable[[PodUID], None] = lambda _uid: None,
        on_new: Callable[[PodRequest], None] = lambda _request: None,
        hosts: Hosts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._on_gone = on_gone
        self._on_new = on_new
        self._hosts = hosts
        self._clock = clock
        self._lock = Lock()
        self._records: dict[PodUID, PodRecord] = {}
        self._by_name: dict[tuple[str, str], PodUID] = {}
        self._charges = Charges(ledger)
        self._nominations = Nominations(ledger, choice)
        self._ended: OrderedDict[PodUID, None] = OrderedDict()
        self._preempted: dict[PodUID, float] = {}

    def find(self, namespace: str, name: str) -> PodRecord | None:
        """Return the record of a pod that asks for cards, or None."""
        with self._lock:
            uid = self._by_name.get((namespace, name))
            return None if uid is None else self._records.get(uid)

    def records(self) -> tuple[PodRecord, ...]:
        """Return all pods that ask for cards or hold some, and have not ended."""
        with self._lock:
            return tuple(self._records.values())

    def started(self, uid: PodUID) -> str:
        """Return the time when a recorded pod started, as sortable text."""
        with self._lock:
            record = self._records.get(uid)
        return (record and record.started) or NOT_STARTED

    def leaving(self, name: NodeName) -> tuple[PodRecord, ...]:
        """Return the pods of a node that are leaving and still hold a share.

        They are terminating, or were chosen as victims a moment ago.
        """
        with self._lock:
            now = self._clock()
            here = [r for r in self._records.values() if r.node == name]
            preempted = {uid for uid, until in self._preempted.items() if until > now}
        return tuple(r for r in here if r.terminating or r.pod.uid in preempted)

    def mark_preempted(self, uids: Iterable[PodUID]) -> None:
        """Record victims, which kube-scheduler deletes within the next seconds."""
        with self._lock:
            now = self._clock()
            kept = {uid: until for uid, until in self._preempted.items() if until > now}
            self._preempted = kept | dict.fromkeys(uids, now + _PREEMPTED_FOR_S)

    def is_without_placement(self, record: PodRecord) -> bool:
        """Return whether this pod was bound without the extender.

        Either an upgrade removed the extender's entry from kube-scheduler's
        configuration, or a pod named its node itself. A pod whose containers ask for
        something invalid does not count, because the device plugin rejects it.
        """
        if not (record.asks and record.node):
            return False
        return self._ledger.placement(record.pod.uid) is None

    def begin_list(self) -> AbstractSet[str]:
        """Return the UIDs of all pods that ask for cards, or hold something."""
        with self._lock:
            uids = self._records.keys() | self._ledger.holders()
            return uids if self._hosts is None else uids | self._hosts.holders()

    def put(self, body: Json) -> None:
        """Record what a pod asks for and what it holds."""
        uid = PodUID(body["metadata"]["uid"])
        requested = RequestedResources(body)
        if self._hosts is not None:
            _follow_host(self._hosts, uid, body, requested)
        if uid not in self._records and not requested.is_ours():
            return
        try:
            record = codec.read_pod_record(body, requested)
        except Malformed as error:
            facts = {"pod": uid, "because": str(error)}
            logger.warning("pod not understood", extra=facts)
            return
        if record.complaint:
            facts = {"pod": str(record.pod), "because": record.complaint}
            logger.warning("placement not understood", extra=facts)
        if record.terminal:
            self.drop(uid)
        else:
            self._write(record)

    def drop(self, key: str) -> None:
        """Free what a pod held, by its UID."""
        uid = PodUID(key)
        if self._hosts is not None:
            self._hosts.release(uid)
        with self._lock:
            self._ended[uid] = None
            if len(self._ended) > _MOST_ENDED:
                self._ended.popitem(last=False)
            record = self._records.pop(uid, None)
            if record is not None:
                name = (record.pod.namespace, record.pod.name)
                if self._by_name.get(name) == uid:
                    del self._by_name[name]
        freed = self._charges.end(uid)
        if record is not None or freed is not None:
            self._on_gone(uid)
        if record is not None:
            self._nominations.follow(record, None, self.leaving)

    def set_cards(self, name: NodeName, cards: tuple[Card, ...]) -> None:
        """Record a node's cards, with what is held and kept of them."""
        self._charges.set_cards(name, cards)
        self.reconsider(name)

    def reconsider(self, name: NodeName) -> None:
        """Compute again what is kept on a node for nominated pods."""
        self._nominations.reconsider(name, self.leaving)

    def settle(self, record: PodRecord) -> bool:
        """Charge a pod by a record that was not read from the watch.

        Return False if it has no credible placement, or if it has ended, by the record
        or by the watch meanwhile; such a pod would be charged forever.
        """
        uid = record.pod.uid
        with self._lock:
            if record.terminal or uid in self._ended:
                return False
            self._charges.follow(record)
            placement = self._ledger.placement(uid)
            return placement is not None and placement in (
                record.placement,
                record.plan,
            )

    def _write(self, record: PodRecord) -> None:
        uid = record.pod.uid
        with self._lock:
            self._ended.pop(uid, None)
            before = self._records.get(uid)
            self._records[uid] = record
            self._by_name[record.pod.namespace, record.pod.name] = uid
            # Under the lock, because ``settle`` does the same.
            self._charges.follow(record)
        if before is None and isinstance(record.request, PodRequest):
            self._on_new(record.request)
        if (before is None or not before.node) and self.is_without_placement(record):
            facts = {"pod": str(record.pod), "node": record.node}
            logger.warning("pod bound without a placement", extra=facts)
        self._nominations.follow(before, record, self.leaving)


def _follow_host(
    hosts: Hosts, uid: PodUID, pod: Json, requested: RequestedResources
) -> None:
    """Record the CPU and memory that a pod holds from its binding to its end."""
    node = node_of(pod)
    if is_terminal(pod):
        hosts.release(uid)
    elif node and (amount := requested.host()) is not None:
        priority = pod["spec"].get("priority")
        known = priority if type(priority) is int else 0
        hosts.hold(uid, NodeName(node), amount, known)
