"""The law of hard limits: on a card they never add up to more than its memory.

Limits count from the start of their container to the end of its pod. The scheduler
counts units and does not know of them, so a container may have to wait here.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Event

from deviceplugin.allocation.isolation import needed_mib
from deviceplugin.allocation.occupancy import Record, Records
from deviceplugin.cards.advertised import Offer
from deviceplugin.cards.devices import Cards
from gpushare.domain.model import Card, CardUUID, PodUID
from gpushare.domain.request import Role
from gpushare.kubelet.node_pods import NodePods
from gpushare.kubelet.pods import UNKNOWN_POD, Listed, NodePod


@dataclass(frozen=True, slots=True)
class StartedLimits:
    """The hard limits of the containers that were let start.

    ``synced`` is set once the API server has told of all pods of the node.
    """

    pods: NodePods
    records: Records
    offer: Offer
    synced: Event
    claims_mib: Callable[[CardUUID], int] = lambda _: 0
    """The sum of the hard limits that prepared claims have on a card, in MiB."""

    def why_above_memory(
        self, made: Collection[Record], listed: Listed, cards: Cards
    ) -> str:
        """Say why a container's hard limit does not fit beside the others.

        ``made`` are the container's allocations that brought a limit, ``listed`` what
        kubelet lists now. Empty if the limit fits, or if there is none.
        """
        for card in cards.holding(one for record in made for one in record.ids):
            limits = self._of_each_pod(card, made, listed, cards)
            own = max(needed_mib(limits.get(_whose(one), ())) for one in made)
            needed = self._sum_mib(card, limits)
            has = self.offer.usable_mib(card.uuid)
            if own > has:
                return (
                    f"the hard limits of its own containers on card {card.uuid} would "
                    f"be {own} MiB, and the card has {has}; give the pod fewer units "
                    "or fewer containers"
                )
            if needed > has:
                return (
                    f"with it the hard limits of containers on card {card.uuid} would "
                    f"be {needed} MiB, and the card has {has}; the container starts "
                    "when others have ended"
                )
        return ""

    def sum_mib(
        self, card: Card, made: Collection[Record], listed: Listed, cards: Cards
    ) -> int:
        """Return the sum of the hard limits on a card, those of ``made`` included.

        Hold ``PreStart.filling`` from here until the container or claim is noted.
        """
        return self._sum_mib(card, self._of_each_pod(card, made, listed, cards))

    def _sum_mib(
        self, card: Card, limits: Mapping[str, Sequence[tuple[Role, int]]]
    ) -> int:
        return sum(map(needed_mib, limits.values())) + self.claims_mib(card.uuid)

    def _of_each_pod(
        self, card: Card, made: Collection[Record], listed: Listed, cards: Cards
    ) -> Mapping[str, Sequence[tuple[Role, int]]]:
        """Return role and limit in MiB of containers on a card, ``made`` included."""
        pods = {pod.uid: pod for pod in self.pods.all()}
        found: dict[str, list[tuple[Role, int]]] = {}
        for record in self.records.all():
            limit = self.records.limit(record)
            if limit is None or card not in cards.holding(record.ids):
                continue
            if record in made or (
                self.records.may_start(record)
                and self._has_not_ended(record, pods, listed)
            ):
                role = _role(pods.get(record.uid), record.container)
                its = found.setdefault(_whose(record), [])
                its.append((role, limit.needed_mib))
        return found

    def _has_not_ended(
        self, record: Record, pods: Collection[PodUID], listed: Listed
    ) -> bool:
        """Tell whether the pod of a container that was let start may still run.

        The API server says it of a pod's UID. kubelet, which tells no UIDs, says it of
        pods that only it knows, and of all while the API server has not answered yet:
        such a pod has ended if another one has its devices.
        """
        if record.uid in pods:
            return True
        if record.uid and self.synced.is_set():
            return False
        if record.pod == UNKNOWN_POD:
            return any(one in listed.holder for one in record.ids)
        holders = {listed.holder.get(one, record.pod) for one in record.ids}
        return record.pod in listed.pods and holders == {record.pod}


def _whose(record: Record) -> str:
    """Name the pod whose containers' limits are taken together."""
    return record.uid or f"{record.pod} {record.ids}"


def _role(pod: NodePod | None, container: str) -> Role:
    known = () if pod is None else pod.gpu_containers
    return next((one.role for one in known if one.name == container), Role.APP)
