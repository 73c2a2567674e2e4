"""The node's own ledger: who has which part of which card, by kubelet's own account.

What a pod's containers hold, as kubelet lists it, outweighs what any annotation says;
an annotation outweighs what we decided ourselves for a pod that came without one.
"""

from collections.abc import Callable
from threading import Lock

from deviceplugin.allocation.active_pod import Served
from deviceplugin.allocation.records import Record
from deviceplugin.cards.devices import (
    Cards,
    differs,
    placement_from,
    placement_of_stranger,
)
from deviceplugin.pod_watch import NodePods
from deviceplugin.pods import Listed, NodePod, PodName
from gpushare.domain.model import NodeName, Placement, PodRef, PodUID
from gpushare.domain.node import Node


class Occupancy:
    """What is taken of this node's cards; every page is worked out anew."""

    def __init__(
        self, node: NodeName, pods: NodePods, cards: Callable[[], Cards]
    ) -> None:
        self.node = node
        self._pods = pods
        self._cards = cards
        self._lock = Lock()
        self._decided: dict[PodUID, Placement] = {}
        self._served: dict[tuple[PodUID, str, str], frozenset[str]] = {}

    def decide(self, placement: Placement) -> None:
        """Keep what was decided here, until the pod's own annotation says it."""
        with self._lock:
            self._decided[placement.pod.uid] = placement

    def serve(
        self, uid: PodUID, container: str, resource: str, ids: frozenset[str]
    ) -> None:
        """Note that these ids were allocated."""
        with self._lock:
            self._served[uid, container, resource] = ids

    def remember(self, record: Record) -> None:
        """Take back what was served before this process began."""
        if record.uid:
            self.serve(
                record.uid, record.container, record.resource, frozenset(record.ids)
            )

    def served(self) -> Served:
        """Give what has been allocated, of pods that have not ended."""
        with self._lock:
            return frozenset(self._served)

    def was_served(self, uid: PodUID) -> bool:
        """Tell whether any of the pod's containers was allocated devices."""
        with self._lock:
            return any(one == uid for one, _, _ in self._served)

    def as_allocated(self) -> Listed:
        """Give what kubelet would list, by what was allocated to pods that live."""
        found: dict[PodName, dict[str, dict[str, frozenset[str]]]] = {}
        with self._lock:
            served = dict(self._served)
        for pod in self._pods.all():
            held = found.setdefault(pod.name, {})
            for (uid, container, resource), ids in served.items():
                if uid == pod.uid and container not in pod.passing:
                    held.setdefault(container, {})[resource] = ids
        return Listed(found)

    def is_forgotten(self, pod: NodePod, listed: Listed) -> bool:
        """Tell whether kubelet lists nothing of what the pod was allocated.

        It forgot, or means another pod of the same name.
        """
        if any(listed.held(pod.name).values()):
            return False
        with self._lock:
            return any(
                uid == pod.uid and container not in pod.passing
                for uid, container, _ in self._served
            )

    def held(self, listed: Listed, but: PodName) -> list[frozenset[str]]:
        """Give the devices that pods have, one pod left out, each device once.

        Those of init containers that end, too, which kubelet does not list.
        """
        with self._lock:
            served = dict(self._served)
        known = {pod.uid: pod for pod in self._pods.all() if pod.passing}
        passing = {
            one
            for (uid, container, _), ids in served.items()
            if uid in known
            and container in known[uid].passing
            and known[uid].name != but
            for one in ids
            if one not in listed.holder
        }
        held = [ids for pod, _, _, ids in listed.holders() if pod != but]
        return [*held, frozenset(passing)]

    def forget_the_gone(self) -> None:
        """Drop what is known of pods that have ended."""
        with self._lock:
            living = {pod.uid for pod in self._pods.all()}
            self._decided = {u: p for u, p in self._decided.items() if u in living}
            self._served = {k: v for k, v in self._served.items() if k[0] in living}

    def namesakes(self, pod: PodRef) -> set[PodUID]:
        """Give the pods that were there before under this pod's name.

        kubelet has one pod of a name, and lists by name: what they seem to hold is this
        one's.
        """
        name = (pod.namespace, pod.name)
        found = {one.uid for one in self._pods.all() if one.name == name}
        return found - {pod.uid}

    def page(self, listed: Listed) -> Node:
        """Open the node's page, with all that is held or promised."""
        cards = self._cards()
        placements: dict[PodUID, Placement] = {}
        for pod in self._pods.all():
            found = self.placement(pod, listed, cards)
            if found is not None:
                placements[pod.uid] = found
        placements |= self._strangers(listed, cards)
        return Node(self.node, cards.all, placements)

    def placement(self, pod: NodePod, listed: Listed, cards: Cards) -> Placement | None:
        """Say where a pod is, or will be; None where nobody has said."""
        held = placement_from(pod, self.node, listed.held(pod.name), cards)
        return self.like(held, pod) or self.expected(pod)

    def like(self, held: Placement | None, pod: NodePod) -> Placement | None:
        """Give the placement that the pod was to have, if this one is no other.

        Devices tell the cards, and not which whole card is which container's.
        """
        expected = self.expected(pod)
        if held is None or expected is None or differs(held, expected):
            return held
        return expected

    def expected(self, pod: NodePod) -> Placement | None:
        """Say where a pod is to be, by its annotation or by our own decision."""
        with self._lock:
            return pod.placement or self._decided.get(pod.uid)

    def _strangers(self, listed: Listed, cards: Cards) -> dict[PodUID, Placement]:
        """Charge pods that hold devices and that the API server has not told of."""
        known = {pod.name for pod in self._pods.all()}
        found = {}
        for (namespace, name), held in listed.pods.items():
            if (namespace, name) not in known and any(held.values()):
                uid = PodUID(f"{namespace}/{name}")
                ref = PodRef(uid, namespace, name)
                placed = placement_of_stranger(ref, self.node, held, cards)
                found[uid] = placed
        return found
