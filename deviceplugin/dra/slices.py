"""The node's cards as ResourceSlices, from which kube-scheduler allocates claims.

Each card is a device that several claims may share. Its capacity is what classic pods
have left of it. What claims consume is not subtracted, because kube-scheduler does that
itself. So a value is right for one moment only: it tells kube-scheduler which card is
worth trying. What a claim really gets is decided elsewhere.
"""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from time import monotonic

from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.cards.advertised import Offer, OwnNode
from deviceplugin.settings import DeviceOrder
from gpushare.domain.model import CORES_PER_CARD, UNIT_MIB, Amount, Card, CardUUID
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.errors import ClusterError, Forbidden, NotFound
from gpushare.kube.names import DRA_CORES, DRA_DRIVER, DRA_MEMORY
from gpushare.kube.reflector import Sink
from gpushare.kube.resource_claims.allocated import name_device

logger = logging.getLogger(__name__)

SICK = f"{DRA_DRIVER}/sick"
"""Taint of a card that is sick: no new claims."""
CORDONED = f"{DRA_DRIVER}/cordoned"
"""Taint of a card that an operator has closed."""
FULL = f"{DRA_DRIVER}/full"
"""Taint of a card of which classic pods have left too little for a claim."""
DEVICES_PER_SLICE = 64
"""The API server's limit for slices with taints."""
_LEAST_UNITS = 1
_LEAST_CORES = 2
"""The API server refuses a capacity below one step above the range's minimum."""
_LONGEST_TEXT = 64
"""Bytes of an attribute, by the API server."""
_MIB_PER_GIB = 1024
_LOOK_S = 0.2
"""So long a change waits, and others with it: each write wakes kube-scheduler."""
_ANYWAY_S = 5.0
"""What pods hold may change without a change of a pod, for example in Allocate."""
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 15.0


_NOT_SHARED = (
    "the API server lets no two claims share a device: its feature gate "
    "DRAConsumableCapacity is off; it is on by default from Kubernetes 1.36"
)


class NotSharedError(Exception):
    """The API server does not let claims share a device; ``str()`` says what to do."""


def slice_device(card: Card, available: Amount) -> Json:
    """Return a card as a device; ``available`` is what classic pods left of it.

    The API server accepts no device without capacity. So a card with too little left
    has the least that it accepts, and a taint, as a sick or cordoned card has. All
    cores of a card mean that nothing else is on it. So if pods have memory alone, a
    claim can have all cores but one: kube-scheduler would try this card for ever.

    Every device has every attribute, an empty one if it is not known: a selector that
    names one which some device lacks fails the pods that use it on all nodes.
    """
    full = available.units < _LEAST_UNITS or available.cores < _LEAST_CORES
    states = ((SICK, not card.healthy), (CORDONED, card.cordoned), (FULL, full))
    taints = [{"key": key, "effect": "NoSchedule"} for key, holds in states if holds]
    name = name_device(card.uuid)
    # A cut UUID could be two cards', and claims ask for parts with the same one.
    uuid = card.uuid if _cut(card.uuid) == card.uuid else name
    texts = {"uuid": uuid, "model": _cut(card.model), "parent": _cut(card.parent)}
    attributes: Json = {key: {"string": text} for key, text in texts.items()}
    unit = _quantity(1)
    memory, cores = (
        max(available.units, _LEAST_UNITS),
        max(available.cores, _LEAST_CORES),
    )
    memory_alone = available.units < card.units and available.cores == CORES_PER_CARD
    most = str(CORES_PER_CARD - 1) if memory_alone else ""
    device: Json = {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": attributes | {"index": {"int": card.index}},
        "capacity": {
            # With a minimum of one unit, a card of one unit would be refused.
            DRA_MEMORY: _capacity(_quantity(memory), unit, least="0", step=unit),
            DRA_CORES: _capacity(str(cores), "1", least="1", step="1", most=most),
        },
    }
    return device | ({"taints": taints} if taints else {})


def _cut(text: str) -> str:
    """Return as many whole characters as an attribute may have."""
    return text.encode()[:_LONGEST_TEXT].decode(errors="ignore")


Charged = Mapping[CardUUID, tuple[int, int]]
"""Cores and units that are held of each card."""


def order_cards(
    cards: Iterable[Card], charged: Charged, order: DeviceOrder
) -> list[Card]:
    """Return cards in the order in which kube-scheduler is to try them.

    It takes the first one that fits. ``charged`` is what pods and claims hold. Cards
    with as many units left keep their order.
    """
    sign = {"index": 0, "fullest": 1, "emptiest": -1}[order]

    def units_left(card: Card) -> int:
        return sign * (card.units - charged.get(card.uuid, (0, 0))[1])

    return sorted(cards, key=units_left)


def slice_devices(cards: Iterable[Card], charged: Charged) -> list[Json]:
    """Return the cards as devices; ``charged`` is what classic pods hold."""
    return [
        slice_device(card, Amount(CORES_PER_CARD - cores, card.units - units))
        for card in cards
        for cores, units in (charged.get(card.uuid, (0, 0)),)
    ]


def build_slices(
    node: str, uid: str, wanted: Sequence[Json], generation: int
) -> list[Json]:
    """Return the ResourceSlices of a node; ``uid`` is the node's.

    They are one pool, which has the node's name. Without devices it is an empty slice.
    """
    parts = [
        wanted[start : start + DEVICES_PER_SLICE]
        for start in range(0, len(wanted) or 1, DEVICES_PER_SLICE)
    ]
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node,
        "uid": uid,
        "controller": True,
    }
    pool = {"name": node, "generation": generation, "resourceSliceCount": len(parts)}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": f"{node}-{DRA_DRIVER}-{number:02d}",
                "ownerReferences": [owner],
            },
            "spec": {
                "driver": DRA_DRIVER,
                "nodeName": node,
                "pool": pool,
                "devices": list(part),
            },
        }
        for number, part in enumerate(parts)
    ]


def _quantity(units: int) -> str:
    """Return units as memory in the form that the API server writes."""
    mib = units * UNIT_MIB
    if mib % _MIB_PER_GIB:
        return f"{mib}Mi"
    return f"{mib // _MIB_PER_GIB}Gi"


def _capacity(
    value: str, default: str, *, least: str, step: str, most: str = ""
) -> Json:
    valid = {"min": least, "step": step} | ({"max": most} if most else {})
    return {"value": value, "requestPolicy": {"default": default, "validRange": valid}}


def own_slices(node: str) -> str:
    """Return the field selector of the slices that this driver has on a node."""
    return f"spec.driver={DRA_DRIVER},spec.nodeName={node}"


def why_not_served(cluster: Cluster, node: str) -> str:
    """Say why the API server cannot take our slices; empty if it can.

    Whether claims may share a device is asked by a dry run: kube-scheduler would give
    away a whole card that was offered for a moment only. Raises ``ClusterError`` if the
    API server does not answer.
    """
    selector, card = own_slices(node), Card(CardUUID("GPU-0"), 0, 2)
    (wanted,) = build_slices(node, "", [slice_device(card, card.capacity)], 1)
    wanted["metadata"] = {"name": f"{node}-{DRA_DRIVER}-asked"}
    try:
        cluster.list_page(Kind.SLICES, limit=1, field_selector=selector)
        stored = cluster.create(Kind.SLICES, wanted, dry_run=True)
    except NotFound:
        return (
            "the API server does not serve resource.k8s.io/v1; Kubernetes 1.36 or "
            "newer does what is needed"
        )
    except Forbidden as error:
        return f"{error}; gpusharectl install --dra gives this right"
    return "" if _is_shared(stored["spec"]) else _NOT_SHARED


def _is_shared(spec: Json) -> bool:
    """Return whether the API server kept that claims share the devices of a slice."""
    devices = spec.get("devices") or ()
    return all(device.get("allowMultipleAllocations") for device in devices)


@dataclass
class SlicePublisher(Sink):
    """Keeps the node's slices equal to its cards, whoever changes or deletes them.

    kubelet deletes them when it starts. It is also the sink of the watch of them, which
    only tells that there is something to look at.
    """

    node: OwnNode
    offer: Offer
    occupancy: Occupancy
    order: DeviceOrder = "index"
    _wanted: list[Json] | None = None
    _stored: dict[str, Json] = field(default_factory=dict)
    """The specs as the API server has stored them."""
    _generation: int = 0
    _disturbed: threading.Event = field(default_factory=threading.Event)

    def begin_list(self) -> AbstractSet[str]:
        """Return the names of the slices as they were written."""
        return set(self._stored)

    def put(self, body: Json) -> None:
        """Note a slice that is not as it was written."""
        if self._stored.get(body["metadata"]["name"]) != body.get("spec"):
            self._disturbed.set()

    def drop(self, _key: str) -> None:
        """Note that a slice is gone."""
        self._disturbed.set()

    def run(self, stop: threading.Event) -> None:
        """Write whenever something changed, until ``stop`` is set.

        It ends earlier with ``NotSharedError`` if the API server cannot do it.
        """
        wait_s, looked_at, seen = _FIRST_WAIT_S, 0.0, (-1, -1)
        while not stop.wait(_LOOK_S):
            now = (self.offer.version, self.occupancy.version)
            due = monotonic() - looked_at >= _ANYWAY_S
            if now == seen and not due and not self._disturbed.is_set():
                continue
            try:
                self.publish()
            except ClusterError as error:
                facts = {"because": str(error), "wait_s": wait_s}
                logger.warning("resource slices not written", extra=facts)
                stop.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            else:
                wait_s, looked_at, seen = _FIRST_WAIT_S, monotonic(), now

    def publish(self) -> None:
        """Write what differs. Raises ``ClusterError`` and ``NotSharedError``."""
        if not self.node.uid():
            return
        wanted = self._devices()
        if wanted == self._wanted and not self._disturbed.is_set():
            return
        self._disturbed.clear()
        try:
            self._write(wanted)
        except ClusterError:
            self._disturbed.set()
            raise

    def withdraw(self) -> None:
        """Remove all slices of this driver on the node. Raises ``ClusterError``."""
        for stored in self._list():
            self.node.cluster.delete(Kind.SLICES, "", stored["metadata"]["name"])

    def _devices(self) -> list[Json]:
        listed, cards = self.occupancy.as_allocated(), self.offer.cards
        by_all = self.occupancy.charged(listed, cards).charged
        by_pods = self.occupancy.charged_by_pods(listed, cards).charged
        return slice_devices(order_cards(cards.all, by_all, self.order), by_pods)

    def _write(self, wanted: list[Json]) -> None:
        there = {stored["metadata"]["name"]: stored for stored in self._list()}
        same = {name: stored["spec"] for name, stored in there.items()} == self._stored
        if wanted == self._wanted and same:
            return
        generations = [
            stored["spec"]["pool"]["generation"] for stored in there.values()
        ]
        generation = max([self._generation, *generations]) + 1
        self._wanted, self._generation, self._stored = None, generation, {}
        for body in build_slices(self.node.name, self.node.uid(), wanted, generation):
            self._put(body, there.pop(body["metadata"]["name"], None))
        for name in there:
            self.node.cluster.delete(Kind.SLICES, "", name)
        self._wanted = wanted
        facts = {"devices": len(wanted), "generation": generation}
        logger.info("resource slices written", extra=facts)

    def _list(self) -> Sequence[Json]:
        selector = own_slices(self.node.name)
        page = self.node.cluster.list_page(
            Kind.SLICES, limit=500, field_selector=selector
        )
        return page.items

    def _put(self, body: Json, before: Json | None) -> None:
        """Create or replace one slice, and see that nothing of it was dropped."""
        name, cluster = body["metadata"]["name"], self.node.cluster
        if before is None:
            stored = cluster.create(Kind.SLICES, body)
        else:
            version = before["metadata"]["resourceVersion"]
            metadata = {**body["metadata"], "resourceVersion": version}
            stored = cluster.replace(Kind.SLICES, {**body, "metadata": metadata})
        spec = stored["spec"]
        if not _is_shared(spec):
            self.node.cluster.delete(Kind.SLICES, "", name)
            raise NotSharedError(_NOT_SHARED)
        self._stored[name] = spec
