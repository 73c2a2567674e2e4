"""The plugin's admission alone, and a kubelet without sockets that calls it."""

from collections.abc import Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import strategies as st

from deviceplugin.allocation.device_chooser import DeviceChooser, DeviceQuestion
from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.cards.devices import Cards, count_of, device_ids
from gpushare.cards.source import FoundCard
from gpushare.domain.model import Card, CardUUID, Placement
from gpushare.domain.request import Role
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json
from gpushare.kubelet.node_pods import EventRecorder, NodePods
from gpushare.kubelet.pods import (
    KINDS,
    HeldDevices,
    ListedDevices,
    NodePod,
    PodName,
    read_node_pod,
)
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import AT, container_json, event, pod_json
from tests.deviceplugin.node_fixture import NODE

RESOURCES = (names.CORE, names.MEMORY)
Shown = dict[str, list[CardUUID]]
"""Of each container, the cards that it sees."""


class AdmissionFixture:
    """One node's admission: pods are bound to it, admitted, forgotten and ended."""

    def __init__(self, *cards: Card, chance: Random | None = None) -> None:
        self.chance = chance or Random(0)
        found = {
            card.uuid: FoundCard(card.uuid, card.index, card.units * 256)
            for card in cards
        }
        self.cards = Cards(cards, found)
        self.pods = NodePods(Embedded(), NODE)
        resources = cast("Any", SimpleNamespace(list=lambda _: self.listed()))
        self.occupancy = Occupancy(NODE, self.pods, resources)
        recorder = EventRecorder(Embedded(), NODE)
        self.chooser = DeviceChooser(self.occupancy, recorder)
        self.active: dict[PodName, NodePod] = {}
        self.held: dict[PodName, dict[str, dict[str, frozenset[str]]]] = {}

    def listed(self) -> ListedDevices:
        """What kubelet lists: no init containers that end."""
        found: dict[PodName, Mapping[str, HeldDevices]] = {
            name: {
                container.name: dict(self.held.get(name, {}).get(container.name, {}))
                for container in pod.gpu_containers
                if container.role is not Role.INIT
            }
            for name, pod in self.active.items()
        }
        return ListedDevices(found)

    def bind(self, body: Json, placement: Placement | None = None) -> NodePod:
        """Let the watch tell of a pod of this node."""
        body["spec"]["nodeName"] = NODE
        if placement is not None:
            notes = body["metadata"].setdefault("annotations", {})
            notes[names.PLACEMENT] = encode_placement(placement, AT)
        self.pods.apply(event("ADDED", body))
        return read_node_pod(body)

    def admit(self, pod: NodePod, order: Sequence[str] | None = None) -> Shown:
        """Ask for each container's devices in turn; ``DeniedError`` as it comes."""
        self.active[pod.name] = pod
        shown: Shown = {}
        reusable: set[str] = set()
        for container in pod.gpu_containers:
            mine = self.held.setdefault(pod.name, {}).setdefault(container.name, {})
            for resource in order or self.chance.sample(RESOURCES, 2):
                count = count_of(container.amount, resource)
                if not count or resource in mine:
                    continue
                ids = self.choose(resource, count, reusable)
                cards = list(self._allocate(resource, ids))
                assert shown.setdefault(container.name, cards) == cards
                mine[resource] = frozenset(ids)
            ids_held = {device_id for ids in mine.values() for device_id in ids}
            if container.role is Role.INIT:
                reusable |= ids_held
            else:
                reusable -= ids_held
        return shown

    def _allocate(self, resource: str, ids: Sequence[str]) -> list[CardUUID]:
        assigned = self.chooser.allocate(self.cards, resource, ids)
        return [card.uuid for card in assigned.cards]

    def choose(self, resource: str, count: int, reusable: set[str]) -> Sequence[str]:
        """Choose as kubelet does, who prefers what we prefer if it is to be had."""
        every = [
            device_id
            for card in self.cards.all
            if card.healthy
            for device_id in device_ids(card, KINDS[resource])
        ]
        again = [device_id for device_id in every if device_id in reusable]
        must = self.chance.sample(again, min(count, len(again)))
        if len(must) == count:
            return must
        used = self.used() - set(must)
        free = self.chance.sample(every, len(every))
        free = [device_id for device_id in free if device_id not in used]
        chosen = self.chooser.prefer(
            DeviceQuestion(self.cards, resource, free, must, count)
        )
        assert len(chosen) == len(set(chosen)) == count
        assert set(must) <= set(chosen) <= set(free)
        return chosen

    def used(self) -> set[str]:
        return {
            device_id
            for containers in self.held.values()
            for held in containers.values()
            for ids in held.values()
            for device_id in ids
        }

    def forget(self, pod: NodePod) -> None:
        """As a kubelet that ended before it had written anything down."""
        self.held.pop(pod.name, None)
        self.active.pop(pod.name, None)

    def end(self, pod: NodePod, body: Json) -> None:
        """The pod is deleted, and its containers have ended."""
        self.forget(pod)
        self.pods.apply(event("DELETED", body))
        self.occupancy.forget_ended()

    def charged(self) -> dict[str, list[int]]:
        node = self.occupancy.charged(self.listed(), self.cards)
        return {str(uuid): list(pair) for uuid, pair in node.charged.items()}


small = st.tuples(st.integers(0, 9), st.integers(0, 20))
large = st.tuples(st.integers(0, 9), st.sampled_from([100, 200]))
inits = st.lists(st.tuples(small, st.sampled_from([None, "Always"])), max_size=2)


def shaped(
    name: str,
    apps: Sequence[tuple[int, int]],
    first: Sequence[tuple[tuple[int, int], str | None]] = (),
    *,
    apart: bool = False,
) -> Json:
    """A pod with containers ``c0``... after init containers ``i0``...; units, cores."""
    return pod_json(
        name,
        containers=[
            container_json(f"c{i}", units, cores)
            for i, (units, cores) in enumerate(apps)
        ],
        init=[
            container_json(f"i{i}", *amounts, restart=restart)
            for i, (amounts, restart) in enumerate(first)
        ],
        annotations={names.CONTAINERS: names.APART} if apart else None,
    )


def shapes(name: str = "pod") -> st.SearchStrategy[Json]:
    """Shares of a card with init containers and sidecars; whole cards; cards apart."""
    several = st.lists(small, min_size=1, max_size=3)
    return st.one_of(
        st.builds(lambda apps, first: shaped(name, apps, first), several, inits),
        st.builds(lambda first: shaped(name, [first]), large),
        st.builds(lambda two: shaped(name, [two, two]), st.just((4, 100))),
        st.builds(lambda apps: shaped(name, apps, apart=True), several),
        st.builds(
            lambda first, more: shaped(name, [first, *more], apart=True), large, several
        ),
    )
