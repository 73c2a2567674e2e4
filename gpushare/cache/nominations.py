"""Room kept on a card for pods whose victims are on their way out.

kube-scheduler keeps room for a nominated pod by a node's totals; which card it is
about, only we know. Without this, another pod would take the card while its old tenants
leave.
"""

from collections.abc import Callable, Iterable
from threading import Lock

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, Placement, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.placement import place
from gpushare.domain.policies import Choice, Policy
from gpushare.kube.codec import PodRecord

Leaving = Callable[[NodeName], Iterable[PodRecord]]
"""Gives the pods of a node that are terminating."""


class Nominations:
    """Which pods are nominated to which node, and what the ledger keeps for them.

    A function of what the API server holds, so that it survives our restart:
    terminating pods of lower priority count as gone, and the most important nominee
    chooses first. One for which that is not yet room enough keeps nothing; the cards
    are still full then.
    """

    def __init__(self, ledger: Ledger, choice: Choice) -> None:
        self._ledger = ledger
        self._choice = choice
        # Pods and nodes are followed by a thread each.
        self._lock = Lock()
        self._nominees: dict[NodeName, dict[PodUID, PodRecord]] = {}

    def follow(
        self, before: PodRecord | None, after: PodRecord | None, leaving: Leaving
    ) -> None:
        """Take note of one pod's change; None for a pod that was or is not there."""
        touched: set[NodeName] = set()
        for record in (before, after):
            if record is not None:
                touched |= {record.node, record.nominated}
        with self._lock:
            if before is not None:
                self._nominees.get(before.nominated, {}).pop(before.pod.uid, None)
            if after is not None and after.nominated and not after.node:
                here = self._nominees.setdefault(after.nominated, {})
                here[after.pod.uid] = after
            for name in touched:
                self._reconsider(name, leaving)

    def reconsider(self, name: NodeName, leaving: Leaving) -> None:
        """Work out anew what is kept on one node; mostly nothing."""
        with self._lock:
            self._reconsider(name, leaving)

    def _reconsider(self, name: NodeName, leaving: Leaving) -> None:
        if name not in self._nominees:
            return
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
        for nominee in sorted(nominees, key=_most_important_first):
            found = self._place(nominee, node, gone)
            if found is not None:
                kept[nominee.pod.uid] = found
                node = node.with_placement(found)
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
        found = place(request, node.without(gone), policy)
        return found if isinstance(found, Placement) else None


def _most_important_first(record: PodRecord) -> tuple[int, str]:
    return (-record.pod.priority, record.pod.uid)
