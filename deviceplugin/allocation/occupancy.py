"""Which pod has which cards of this node.

What kubelet lists outweighs the pod's annotation, and the annotation outweighs what was
decided here for a pod without one.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Lock

from deviceplugin.allocation.records import AllocationRecord
from deviceplugin.cards.devices import (
    Cards,
    amount_of,
    placement_from,
    placement_of_unknown_pod,
)
from gpushare.domain.model import Amount, CardUUID, NodeName, Placement, PodRef, PodUID
from gpushare.domain.node import Node
from gpushare.kubelet.node_pods import KubeletSilentError, NodePods, PodResources
from gpushare.kubelet.pods import Allocated, ListedDevices, NodePod, PodName

logger = logging.getLogger(__name__)


class Occupancy:
    """Which pods hold which cards of this node; computed at each call.

    ``before`` are the allocations from before this process began. ``claims`` returns
    what prepared ResourceClaims hold, by their key among pods.
    """

    def __init__(
        self,
        node: NodeName,
        pods: NodePods,
        resources: PodResources,
        before: Iterable[AllocationRecord] = (),
        claims: Callable[[], Mapping[PodUID, Placement]] = dict,
    ) -> None:
        self.node = node
        self.pods = pods
        self.resources = resources
        self._claims = claims
        self.room_lock = Lock()
        """Held by whoever gives out room of the node's cards: from the check of room
        until it is on disk that the container or claim has it."""
        self._lock = Lock()
        self._decided: dict[PodUID, Placement] = {}
        self._before = tuple(before)
        self._allocated = {
            record.step: frozenset(record.ids) for record in self._before if record.uid
        }

    def listed(self, within_s: float) -> ListedDevices:
        """Ask kubelet who holds what; if it is silent, use what was allocated."""
        try:
            return self.resources.list(within_s)
        except KubeletSilentError as error:
            logger.warning("kubelet lists no devices", extra={"because": str(error)})
            return self.as_allocated()

    @property
    def version(self) -> int:
        """Grows with each change of a pod."""
        return self.pods.version

    def amount_before(self, pods: Collection[PodName], part: Amount) -> Amount | None:
        """Return what a container of these pods had in all, before this process began.

        ``part`` is what it had of one resource. None if no container had so much of it,
        or if several had and differ in the other resource.
        """
        by_container = defaultdict[tuple[PodName, PodUID, str], Amount](Amount)
        for record in self._before:
            if record.pod in pods:
                more = amount_of(record.resource, len(record.ids))
                by_container[record.pod, record.uid, record.container] += more
        matching = {
            amount
            for amount in by_container.values()
            if part in (Amount(cores=amount.cores), Amount(units=amount.units))
        }
        return matching.pop() if len(matching) == 1 else None

    def is_claimed(self, cards: Collection[CardUUID]) -> bool:
        """Return whether a prepared claim holds a part of any of these cards."""
        return any(
            not set(cards).isdisjoint(p.cards()) for p in self._claims().values()
        )

    def holders(self, uuid: CardUUID, cards: Cards) -> Mapping[str, Collection[str]]:
        """Name the ``pods`` and the prepared ``claims`` that have a part of a card.

        A pod is known to hold the devices that were allocated to it here, and what its
        claims have.
        """
        claims = {str(p.pod) for p in self._claims().values() if uuid in p.cards()}
        pods = {
            "/".join(name)
            for name, _, _, ids in self.as_allocated().holders()
            if uuid in {card.uuid for card in cards.holding(ids)}
        }
        for pod in self.pods.all():
            if not claims.isdisjoint(f"{pod.name[0]}/{claim}" for claim in pod.claims):
                pods.add(str(pod.ref))
        return {"pods": pods, "claims": claims}

    def decide(self, placement: Placement) -> None:
        """Keep what was decided here, in place of the pod's annotation if it has one.

        That says it only when the pod's containers start.
        """
        with self._lock:
            self._decided[placement.pod.uid] = placement

    def allocate(
        self, uid: PodUID, container: str, resource: str, ids: frozenset[str]
    ) -> None:
        """Note that these ids were allocated."""
        with self._lock:
            self._allocated[uid, container, resource] = ids

    def allocated(self) -> Allocated:
        """Return what has been allocated to pods that have not ended."""
        with self._lock:
            return frozenset(self._allocated)

    def has_allocation(self, uid: PodUID) -> bool:
        """Return whether any container of the pod was allocated devices."""
        with self._lock:
            return any(of == uid for of, _, _ in self._allocated)

    def as_allocated(self) -> ListedDevices:
        """Return what kubelet would list, by the allocations of living pods."""
        pods: dict[PodName, dict[str, dict[str, frozenset[str]]]] = {}
        with self._lock:
            allocated = dict(self._allocated)
        for pod in self.pods.all():
            containers = pods.setdefault(pod.name, {})
            for (uid, container, resource), ids in allocated.items():
                if uid == pod.uid and container not in pod.regular_init_containers:
                    containers.setdefault(container, {})[resource] = ids
        return ListedDevices(pods)

    def is_forgotten(self, pod: NodePod, listed: ListedDevices) -> bool:
        """Return whether kubelet lists nothing of what the pod was allocated.

        Then kubelet has forgotten it, or lists another pod of the same name.
        """
        if any(listed.held_by(pod.name).values()):
            return False
        with self._lock:
            return any(
                uid == pod.uid and container not in pod.regular_init_containers
                for uid, container, _ in self._allocated
            )

    def devices_of_others(
        self, listed: ListedDevices, but: PodName
    ) -> list[frozenset[str]]:
        """Return the devices that pods other than ``but`` hold, each device once.

        Included are those of init containers that end, which kubelet does not list.
        """
        with self._lock:
            allocated = dict(self._allocated)
        known = {pod.uid: pod for pod in self.pods.all() if pod.regular_init_containers}
        unlisted = {
            device
            for (uid, container, _), ids in allocated.items()
            if uid in known
            and container in known[uid].regular_init_containers
            and known[uid].name != but
            for device in ids
            if device not in listed.holder
        }
        listed_ids = [ids for pod, _, _, ids in listed.holders() if pod != but]
        return [*listed_ids, frozenset(unlisted)]

    def forget_ended(self) -> None:
        """Drop what is known of pods that have ended."""
        with self._lock:
            living = {pod.uid for pod in self.pods.all()}
            self._decided = {u: p for u, p in self._decided.items() if u in living}
            self._allocated = {
                k: ids for k, ids in self._allocated.items() if k[0] in living
            }

    def earlier_pods_of_this_name(self, pod: PodRef) -> set[PodUID]:
        """Return the earlier pods of this pod's name.

        kubelet lists by name and has one pod of a name: what the earlier ones seem to
        hold, this pod holds.
        """
        name = (pod.namespace, pod.name)
        uids = {other.uid for other in self.pods.all() if other.name == name}
        return uids - {pod.uid}

    def charged(self, listed: ListedDevices, cards: Cards) -> Node:
        """Return the node charged with all placements and prepared claims."""
        node = self.charged_by_pods(listed, cards)
        if not (claims := self._claims()):
            return node
        return Node(self.node, node.cards, {**node.placements, **claims})

    def charged_by_pods(self, listed: ListedDevices, cards: Cards) -> Node:
        """Return the node charged with the placements of pods, actual and planned."""
        placements: dict[PodUID, Placement] = {}
        for pod in self.pods.all():
            placement = self.placement(pod, listed, cards)
            if placement is not None:
                placements[pod.uid] = placement
        placements |= self._unknown_pods(listed, cards)
        return Node(self.node, cards.all, placements)

    def placement(
        self, pod: NodePod, listed: ListedDevices, cards: Cards
    ) -> Placement | None:
        """Return where a pod is, or will be; None if nothing says so."""
        by_devices = placement_from(pod, self.node, listed.held_by(pod.name), cards)
        return self.expected_if_same(by_devices, pod) or self.expected(pod)

    def expected_if_same(
        self, by_devices: Placement | None, pod: NodePod
    ) -> Placement | None:
        """Return the pod's expected placement if it has these cards by its devices.

        Devices tell the cards, but not which whole card belongs to which container.
        """
        expected = self.expected(pod)
        if by_devices is None or expected is None or by_devices.differs_from(expected):
            return by_devices
        return expected

    def expected(self, pod: NodePod) -> Placement | None:
        """Return where a pod is to be, as decided here, else by its annotation."""
        with self._lock:
            return self._decided.get(pod.uid) or pod.placement

    def _unknown_pods(
        self, listed: ListedDevices, cards: Cards
    ) -> dict[PodUID, Placement]:
        """Charge pods that hold devices and of which the API server has not told."""
        known = {pod.name for pod in self.pods.all()}
        placements = {}
        for (namespace, name), containers in listed.pods.items():
            if (namespace, name) not in known and any(containers.values()):
                uid = PodUID(f"{namespace}/{name}")
                ref = PodRef(uid, namespace, name)
                placements[uid] = placement_of_unknown_pod(
                    ref, self.node, containers, cards
                )
        return placements
