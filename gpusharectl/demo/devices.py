"""The devices of one node, kept as kubelet keeps them, over its real gRPC interfaces.

A device plugin cannot tell it from kubelet by what it sees: sockets in a folder, the
order of calls, who is asked what, and what a failure does (contracts 2).

Which devices a container gets: kubelet's own steps, plugin calls included.

The source is ``pkg/kubelet/cm/devicemanager/manager.go`` (1.36), without alignment to
NUMA nodes. The house's device plugin is played against it, so it keeps to the order of
calls, to chance where kubelet leaves things to chance, and to the words of complaints.

What a container gets of its devices: the plugins' answers, merged. Pure.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from secrets import SystemRandom
from threading import Lock
from types import TracebackType
from typing import Self

import grpc

from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Reader
from gpushare.kube.proto.deviceplugin_pb2 import (
    ContainerAllocateResponse,
    DeviceSpec,
    Mount,
)
from gpushare.kube.proto.deviceplugin_pb2_grpc import add_RegistrationServicer_to_server
from gpushare.kube.proto.podresources_pb2_grpc import (
    add_PodResourcesListerServicer_to_server,
)
from gpusharectl.demo.plugin_registry import CallFailedError, Registry
from gpusharectl.demo.pod_resources import (
    Asked,
    Held,
    Holdings,
    PodResourcesLister,
    asked_of,
)

CHANCE = SystemRandom()
"""Go gives maps and sets in another order each time."""


class NotAdmittedError(Exception):
    """A container cannot get its devices; says why in kubelet's words."""


class Admission:
    """Gives devices to containers, one pod after the other; never two at once."""

    def __init__(self, registry: Registry, holdings: Holdings) -> None:
        self._registry = registry
        self._holdings = holdings

    def admit(self, uid: str, containers: Iterable[Asked]) -> None:
        """Give each container its devices, in this order; ``NotAdmittedError``.

        Later containers take over those of an init container that has ended.
        """
        reusable: dict[str, set[str]] = {}
        for container in containers:
            self._allocate(uid, container, reusable)
            for resource, held in self._holdings.of(uid, container.name).items():
                left = reusable.setdefault(resource, set())
                if container.ends:
                    left |= held.ids
                else:
                    left -= held.ids

    def knows(self, resource: str) -> bool:
        """Tell whether devices of this resource are offered, or ever were taken."""
        return (
            self._registry.healthy(resource) is not None
            or self._holdings.in_use(resource) is not None
        )

    def _allocate(
        self, uid: str, container: Asked, reusable: dict[str, set[str]]
    ) -> None:
        known = [name for name in shuffled(container.amounts) if self.knows(name)]
        if known:
            self._holdings.sweep()
        for resource in known:
            size = container.amounts[resource]
            if self._has_all(uid, container.name, resource, size):
                continue
            ids = self._choose(resource, size, reusable.get(resource, set()))
            held = self._give(resource, ids)
            self._holdings.record(uid, container.name, resource, held)

    def _has_all(self, uid: str, container: str, resource: str, size: int) -> bool:
        """Tell whether a container needs no more; complain where nobody can have any.

        The second comes first, so that even a container that asks for none is refused
        where no device is well, as with kubelet (contracts 2.4).
        """
        before = self._holdings.of(uid, container).get(resource)
        ids = before.ids if before else frozenset()
        if before and len(ids) != size:
            raise NotAdmittedError(
                f'pod "{uid}" container "{container}" changed request for resource '
                f'"{resource}" from {len(ids)} to {size}'
            )
        healthy = self._registry.healthy(resource)
        if healthy is None:
            raise NotAdmittedError(f"cannot allocate unregistered device {resource}")
        sick = f"cannot allocate unhealthy devices {resource}"
        if not healthy:
            raise NotAdmittedError(f"no healthy devices present; {sick}")
        if not ids <= healthy:
            text = "previously allocated devices are no longer healthy"
            raise NotAdmittedError(f"{text}; {sick}")
        return len(ids) == size

    def _choose(self, resource: str, size: int, reusable: set[str]) -> frozenset[str]:
        chosen = set(_some(reusable, size))
        self._holdings.take(resource, chosen)
        if len(chosen) == size:
            return frozenset(chosen)
        healthy = self._registry.healthy(resource) or frozenset()
        available = healthy - (self._holdings.in_use(resource) or frozenset())
        needed = size - len(chosen)
        if len(available) < needed:
            raise NotAdmittedError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        preferred = self._preferred(resource, available | chosen, chosen, size)
        for source in (preferred & available, available):
            chosen |= _some(source - chosen, size - len(chosen))
        self._holdings.take(resource, chosen)
        return frozenset(chosen)

    def _preferred(
        self, resource: str, available: Collection[str], must: set[str], size: int
    ) -> frozenset[str]:
        endpoint = self._registry.endpoint(resource)
        if endpoint is None:
            text = "endpoint not found in cache for a registered resource"
            raise NotAdmittedError(f"{text}: {resource}")
        if not endpoint.options.get_preferred_allocation_available:
            return frozenset()
        try:
            return endpoint.preferred(shuffled(available), shuffled(must), size)
        except CallFailedError as error:
            raise NotAdmittedError(str(error)) from error

    def _give(self, resource: str, ids: frozenset[str]) -> Held:
        endpoint = self._registry.endpoint(resource)
        try:
            if endpoint is None:
                raise NotAdmittedError(f"unknown Device Plugin {resource}")
            return Held(ids, endpoint.allocate(shuffled(ids)))
        except CallFailedError as error:
            self._holdings.untake()
            raise NotAdmittedError(str(error)) from error


def shuffled(names: Iterable[str]) -> list[str]:
    """Give them in an order of chance."""
    return CHANCE.sample(listed := list(names), len(listed))


def _some(ids: Iterable[str], most: int) -> set[str]:
    """Take so many at random, all where there are fewer."""
    listed = list(ids)
    return set(CHANCE.sample(listed, min(most, len(listed))))


@dataclass(frozen=True, slots=True)
class Given:
    """All that kubelet tells the runtime to put into one container.

    Mounts and devices are by their path in the container.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, Mount] = field(default_factory=dict)
    devices: Mapping[str, DeviceSpec] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()


def merged(answers: Iterable[ContainerAllocateResponse]) -> Given:
    """Merge what was answered for each of a container's resources.

    The first wins where two differ, and who is first is chance with kubelet (contracts
    2.3): answers that agree are the plugin's business.
    """
    envs: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    devices: dict[str, DeviceSpec] = {}
    annotations: dict[str, str] = {}
    cdi: dict[str, None] = {}
    for answer in answers:
        envs = {**answer.envs, **envs}
        annotations = {**answer.annotations, **annotations}
        mounts = {mount.container_path: mount for mount in answer.mounts} | mounts
        devices = {spec.container_path: spec for spec in answer.devices} | devices
        cdi |= {device.name: None for device in answer.cdi_devices}
    return Given(envs, mounts, devices, annotations, tuple(cdi))


LONGEST_PATH = 107
"""Bytes that the path of a unix socket may have."""
_SOCKET = "kubelet.sock"
_CALLERS = 4


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why kubelet will not run a pod: its status gets both, its event the second."""

    reason: str
    because: str

    @property
    def message(self) -> str:
        """What the pod's status says."""
        return f"Pod was rejected: {self.because}"


class CannotStartYetError(Exception):
    """A plugin would not let a container start; ``str()`` is kubelet's message.

    The container waits as ``CreateContainerConfigError``, and kubelet tries again.
    """


class Devices:
    """Serves ``<folder>/device-plugins`` and ``<folder>/pod-resources``.

    ``with`` it, or ``open`` and ``close`` it. Left out: the checkpoint, so that a
    second one in the same folder is a kubelet that has lost it; ``readmit`` is what
    such a kubelet does with the pods of its node.
    """

    def __init__(self, folder: Path) -> None:
        self.plugins = folder / "device-plugins"
        self.pod_resources = folder / "pod-resources"
        self._registry = Registry(self.plugins)
        self._holdings = Holdings()
        self._admission = Admission(self._registry, self._holdings)
        self._turn = Lock()
        self._servers: list[grpc.Server] = []

    def open(self) -> None:
        """Remove all sockets, plugins' included, as kubelet does, and serve."""
        for folder in (self.plugins, self.pod_resources):
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                if path.is_socket():
                    path.unlink()
        lister = _server(self.pod_resources)
        add_PodResourcesListerServicer_to_server(
            PodResourcesLister(self._holdings), lister
        )
        registration = _server(self.plugins)
        add_RegistrationServicer_to_server(self._registry, registration)
        for server in (lister, registration):
            self._servers.append(server)
            server.start()

    def close(self) -> None:
        """Serve no more; plugins see their streams end."""
        for server in self._servers:
            server.stop(None).wait()
        self._registry.close()

    def capacity(self) -> dict[str, int]:
        """Count the devices of each resource, as the node's status tells it."""
        return self._registry.capacity()

    def allocatable(self) -> dict[str, int]:
        """Count the healthy devices of each resource, taken ones included."""
        return self._registry.allocatable()

    def admit(self, pod: Json) -> Mapping[str, Given] | Rejection:
        """Give a pod's containers their devices: one pod at a time, whoever calls.

        What each container gets is known, but nothing may start yet. A resource that no
        plugin ever offered is passed over in silence, as kubelet does. ``ValueError``
        for a pod that no API server would have stored.
        """
        return self._admit(pod, asked_of(Reader(pod)))

    def readmit(self, pod: Json) -> Mapping[str, Given] | Rejection:
        """Admit a pod as a restarted kubelet does: running containers get nothing.

        kubelet asks the runtime what runs; here the pod's status says it.
        """
        running = _running(pod)
        asked = asked_of(Reader(pod))
        return self._admit(pod, [one for one in asked if one.name not in running])

    def _admit(
        self, pod: Json, containers: Sequence[Asked]
    ) -> Mapping[str, Given] | Rejection:
        uid = pod["metadata"]["uid"]
        with self._turn:
            self._holdings.begin(pod)
            try:
                self._admission.admit(uid, containers)
            except NotAdmittedError as error:
                self._holdings.end(uid)
                because = f"Allocate failed due to {error}, which is unexpected"
                return Rejection("UnexpectedAdmissionError", because)
        return {one.name: self._given(uid, one.name) for one in containers}

    def start(self, uid: str, container: str) -> Given:
        """Ask the plugins before a container's start or restart; give what it gets.

        ``CannotStartYetError`` when one of them says no.
        """
        try:
            for resource in shuffled(self._asked(uid, container)):
                self._pre_start(uid, container, resource)
        except CallFailedError as error:
            raise CannotStartYetError(str(error)) from error
        return self._given(uid, container)

    def release(self, uid: str) -> None:
        """Take a pod as ended: its devices come free when they are next looked for."""
        self._holdings.end(uid)

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _asked(self, uid: str, container: str) -> list[str]:
        found: list[Asked] = []
        for pod in self._holdings.active():
            if pod["metadata"]["uid"] == uid:
                found = [one for one in asked_of(Reader(pod)) if one.name == container]
        return [
            resource
            for one in found
            for resource, amount in one.amounts.items()
            if amount and self._admission.knows(resource)
        ]

    def _pre_start(self, uid: str, container: str, resource: str) -> None:
        endpoint = self._registry.endpoint(resource)
        if endpoint is None or not endpoint.options.pre_start_required:
            return
        held = self._holdings.of(uid, container).get(resource)
        if held is None:
            raise CallFailedError(
                f"no devices found allocated in local cache for pod {uid}, "
                f"container {container}, resource {resource}"
            )
        endpoint.pre_start(shuffled(held.ids))

    def _given(self, uid: str, container: str) -> Given:
        held = self._holdings.of(uid, container)
        return merged(held[resource].answer for resource in shuffled(held))


def _running(pod: Json) -> frozenset[str]:
    status = Reader(pod).optional_object("status")
    return frozenset(
        one.text("name")
        for key in ("initContainerStatuses", "containerStatuses")
        for one in status.optional_objects(key)
        if "running" in one.optional_object("state").raw
    )


def _server(folder: Path) -> grpc.Server:
    path = folder / _SOCKET
    if (length := len(bytes(path))) > LONGEST_PATH:
        text = f"{path} has {length} bytes; a unix socket's path has {LONGEST_PATH}"
        raise ValueError(f"{text} at most")
    server = grpc.server(ThreadPoolExecutor(_CALLERS))
    server.add_insecure_port(f"unix:{path}")
    return server
