"""A pod of this node, the devices that pods hold, and which pod kubelet admits. Pure.

kubelet admits one pod at a time, container by container, the resources of a container
in random order, and never interleaves two pods (contracts 2.3). So the pod that kubelet
lists without all its devices is the pod that it admits now. A container that runs
without devices is not asked for again: kubelet lost its checkpoint, or admitted the pod
before there was a device plugin.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from gpushare.domain.model import (
    Amount,
    CardUUID,
    Claim,
    ContainerAmount,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
    Refusal,
)
from gpushare.domain.request import Role
from gpushare.kube import codec, facts, names
from gpushare.kube.cluster import Json, PodTarget
from gpushare.kube.codec import PodRecord, Unmeetable, read_containers
from gpushare.kube.resource_claims.allocated import (
    ResourceClaimUse,
    read_claim_names,
    read_claim_uses,
)

PodName = tuple[str, str]
"""Namespace and name: all that kubelet's pod resources tell of a pod."""
UNKNOWN_POD: PodName = ("", "")
"""Stands for a pod whose name is not known."""


@dataclass(frozen=True, slots=True)
class GpuContainer:
    """A container that asks for cards, in kubelet's order of admission."""

    name: str
    role: Role
    amount: Amount


@dataclass(frozen=True, slots=True)
class AllocationStep:
    """One allocation of kubelet: so many devices of one resource for a container."""

    container: str
    resource: str
    count: int


@dataclass(frozen=True)
class NodePod:
    """One pod of this node.

    ``bound`` is when it was bound to the node, by the API server's clock; it serves to
    order pods. ``running`` names the containers that run, by the pod's status.
    ``isolation`` is the tier that its annotation names; empty without it. ``claims``
    are the names of its ResourceClaims, and ``claim_uses`` the containers that use
    them.
    """

    record: PodRecord
    gpu_containers: tuple[GpuContainer, ...]
    bound: str
    running: frozenset[str] = frozenset()
    isolation: str = ""
    claims: frozenset[str] = frozenset()
    claim_uses: tuple[ResourceClaimUse, ...] = ()

    @cached_property
    def steps(self) -> tuple[AllocationStep, ...]:
        """All allocations of the pod, in the order of its containers."""
        return tuple(
            AllocationStep(container.name, resource, count)
            for container in self.gpu_containers
            for resource, count in (
                (names.CORE, container.amount.cores),
                (names.MEMORY, container.amount.units),
            )
            if count
        )

    @cached_property
    def regular_init_containers(self) -> frozenset[str]:
        """The init containers that end before the next container starts."""
        return frozenset(a.name for a in self.gpu_containers if a.role is Role.INIT)

    @property
    def ref(self) -> PodRef:
        """Which pod it is."""
        return self.record.pod

    @property
    def uid(self) -> PodUID:
        """Its UID."""
        return self.record.pod.uid

    @property
    def name(self) -> PodName:
        """Its namespace and name."""
        return (self.record.pod.namespace, self.record.pod.name)

    @property
    def target(self) -> PodTarget:
        """The pod as the target of a write."""
        return PodTarget(*self.name, self.uid)

    @property
    def placement(self) -> Placement | None:
        """The actual placement if it has one, else the planned one."""
        return self.record.placement

    def why_refused(self) -> str:
        """Say why the request can never be met; empty if it can."""
        request = self.record.request
        return codec.refusal_text(request) if isinstance(request, Refusal) else ""


def read_node_pod(pod: Json) -> NodePod:
    """Read a pod; ``Malformed`` for an object that no API server sends."""
    record = codec.read_pod_record(pod)
    try:
        specs = read_containers(pod)
    except Unmeetable:
        specs = []
    asking = tuple(GpuContainer(s.name, s.role, s.amount) for s in specs if s.amount)
    tier = facts.annotation(pod, names.ISOLATION)
    return NodePod(
        record,
        asking,
        _bound(pod),
        _running(pod),
        tier,
        claims=frozenset(filter(None, read_claim_names(pod).values())),
        claim_uses=read_claim_uses(pod),
    )


def _bound(pod: Json) -> str:
    """Return when the pod was bound, or created if nothing bound it."""
    if facts.holds(pod, "PodScheduled"):
        return str(facts.condition(pod, "PodScheduled").get("lastTransitionTime") or "")
    return facts.created(pod)


def _running(pod: Json) -> frozenset[str]:
    status = pod.get("status") or {}
    statuses = (
        container
        for key in ("initContainerStatuses", "containerStatuses")
        for container in status.get(key) or ()
    )
    return frozenset(
        str(container.get("name"))
        for container in statuses
        if "running" in (container.get("state") or {})
    )


def may_be_static(name: PodName, node: NodeName) -> bool:
    """Return whether the name is one that kubelet gives to static pods of this node."""
    return name[1].endswith(f"-{node}")


def pod_known_to_kubelet(name: PodName, amount: Amount) -> NodePod:
    """Return a pod for one that kubelet lists and the API server has not told of.

    It has an empty UID and one container without a name. ``amount`` is of one resource;
    the other one is not known yet, so the policy is ``spread``: the emptiest card has
    most room for it.
    """
    ref = PodRef(PodUID(""), *name)
    claim = Claim(amount, (ContainerAmount("", amount),))
    record = PodRecord(
        pod=ref,
        request=PodRequest(ref, (claim,), "spread"),
        node=NodeName(""),
        placement=None,
        terminal=False,
        terminating=False,
        nominated=NodeName(""),
        labels={},
    )
    return NodePod(record, (GpuContainer("", Role.APP, amount),), "")


_HEX = re.compile(r"[0-9a-f]{8}")
_DEVICE = re.compile(r"(?P<key>[0-9a-f]{8})-(?P<kind>[cm])(?P<number>\d{3,7})")

CORE_KIND = "c"
MEMORY_KIND = "m"
KINDS: Mapping[str, str] = {names.CORE: CORE_KIND, names.MEMORY: MEMORY_KIND}
"""The letter in the device ids of each resource."""


@dataclass(frozen=True, slots=True)
class DeviceId:
    """One device as kubelet knows it: one unit or one core of one card.

    ``1f9c27aa-m0017``: the card's key, ``m`` for memory or ``c`` for cores, a number.
    At most 16 characters, because kubelet writes all of them down again and again
    (contracts 2.5). The same over restarts, reboots and versions.
    """

    key: str
    kind: str
    number: int

    def __str__(self) -> str:
        width = 3 if self.kind == "c" else 4
        return f"{self.key}-{self.kind}{self.number:0{width}d}"

    @classmethod
    def parse(cls, text: str) -> "DeviceId | None":
        """Parse an id; None if it has not the form of this plugin's ids."""
        match = _DEVICE.fullmatch(text)
        if match is None:
            return None
        return cls(match["key"], match["kind"], int(match["number"]))


def card_key(uuid: CardUUID) -> str:
    """Return the eight hex digits that a card's device ids begin with.

    They are the first eight of its UUID, with or without a vendor's prefix, or of the
    UUID's SHA-256 if it does not begin with hex digits.

    >>> card_key(CardUUID("GPU-9F12F917-e458-4bb8-3d9d-8dc7fd6cddf7"))
    '9f12f917'
    """
    lowered = uuid.lower()
    for text in (lowered, lowered.partition("-")[2]):
        if _HEX.match(text):
            return text[:8]
    return hashlib.sha256(uuid.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class HardLimit:
    """What holds one container to its share of a card, and how much it may have.

    ``needed_mib`` is what it may take of the card's memory, its contexts included. It
    is ``mib``, except where an earlier version allocated: tier ``preload`` counted no
    contexts then.
    """

    tier: str
    mib: int
    needed_mib: int

    @property
    def counts_contexts(self) -> bool:
        """Whether contexts are counted in ``mib``."""
        return self.needed_mib <= self.mib

    @classmethod
    def read(cls, record: Json) -> Self:
        """Read what is on disk. Raises ``KeyError`` and ``TypeError``."""
        mib: int = record["mib"]
        return cls(record["tier"], mib, record.get("needed_mib", mib))


HeldDevices = Mapping[str, frozenset[str]]
"""Device ids by resource, of one container."""


@dataclass(frozen=True)
class ListedDevices:
    """One answer of kubelet: the active pods, each container with our devices.

    A pod that asks for none of our resources is listed too, its containers without
    devices; init containers that end are not listed (contracts 2.6).
    """

    pods: Mapping[PodName, Mapping[str, HeldDevices]]

    def holders(self) -> Iterator[tuple[PodName, str, str, frozenset[str]]]:
        """Return pod, container, resource and device ids of all that holds any."""
        for pod, of_pod in self.pods.items():
            for container, devices in of_pod.items():
                for resource, ids in devices.items():
                    yield pod, container, resource, ids

    @cached_property
    def holder(self) -> Mapping[str, PodName]:
        """Which pod holds each device id that is held."""
        return {device: pod for pod, _, _, ids in self.holders() for device in ids}

    def held_by(self, pod: PodName) -> Mapping[str, HeldDevices]:
        """Return what each listed container of a pod holds; empty if not listed."""
        return self.pods.get(pod, {})


Allocated = Collection[tuple[PodUID, str, str]]
"""Pod, container and resource of the allocations that were made."""


def steps_left(
    pod: NodePod, listed: ListedDevices, allocated: Allocated
) -> tuple[AllocationStep, ...]:
    """Return the allocations that kubelet has still to make; none once it is admitted.

    kubelet's list tells what a listed container holds. Init containers that end are not
    listed; ``allocated`` tells of those.
    """
    containers = listed.held_by(pod.name)
    init = pod.regular_init_containers
    steps = [step for step in pod.steps if step.container not in init]
    lacking = [
        step
        for step in steps
        if step.resource not in containers.get(step.container, ())
        and step.container not in pod.running
    ]
    if not init:
        return tuple(lacking)
    if steps and not lacking:
        return ()
    return tuple(
        step
        for step in pod.steps
        if step in lacking
        or (
            step.container in init
            and (pod.uid, step.container, step.resource) not in allocated
        )
    )


def admission_candidates(
    pods: Iterable[NodePod],
    listed: ListedDevices,
    allocated: Allocated,
    step: tuple[str, int],
) -> list[NodePod]:
    """Return the pods that kubelet may be admitting when it asks ``(resource, count)``.

    The pod that was bound last comes first: kubelet adds a pod to its list right before
    it admits the pod, so it has passed over all others that lack devices.
    """
    lacking = []
    for pod in pods:
        if pod.name in listed.pods:
            steps = steps_left(pod, listed, allocated)
            if any(
                (step_left.resource, step_left.count) == step for step_left in steps
            ):
                lacking.append(pod)
    return sorted(lacking, key=lambda pod: (pod.bound, pod.name), reverse=True)


@dataclass(frozen=True, slots=True)
class ActivePod:
    """The pod that kubelet admits now, its placement and the allocations left."""

    pod: NodePod
    placement: Placement
    remaining: tuple[AllocationStep, ...]

    def step(self, resource: str, count: int) -> AllocationStep | None:
        """Return the step that such a call makes; None if no step of it fits."""
        for step in self.remaining:
            if (step.resource, step.count) == (resource, count):
                return step
        return None

    def after(self, step: AllocationStep) -> "ActivePod":
        """Return the pod after this step; earlier containers are done then."""
        order = [container.name for container in self.pod.gpu_containers]
        here = order.index(step.container)
        steps = tuple(
            other
            for other in self.remaining
            if other != step and order.index(other.container) >= here
        )
        return replace(self, remaining=steps)
