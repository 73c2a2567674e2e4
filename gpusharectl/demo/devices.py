"""Manage the devices of one node as kubelet does, over its real gRPC interfaces.

The source is ``pkg/kubelet/cm/devicemanager/manager.go`` (1.36), without alignment to
NUMA nodes. The device plugin is tested against this module. So it keeps kubelet's
order of calls, its random choices, its messages and its failures (contracts 2).
"""

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from secrets import SystemRandom
from threading import Lock
from typing import Self

import grpc

from gpushare.domain.quantity import parse_whole
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Reader
from gpushare.kube.proto.deviceplugin_pb2 import (
    ContainerAllocateResponse,
    DeviceSpec,
    Mount,
)
from gpushare.kube.proto.podresources_pb2 import (
    ContainerDevices,
    ContainerResources,
    GetPodResourcesRequest,
    GetPodResourcesResponse,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    PodResources,
)
from gpushare.kubelet.services import POD_RESOURCES, REGISTRATION, add_servicer
from gpusharectl.demo.plugin_registry import CallFailedError, Registry


@dataclass(frozen=True, slots=True)
class AllocatedDevices:
    """One container's devices of one resource, and the plugin's answer for them."""

    ids: frozenset[str]
    answer: ContainerAllocateResponse


class Holdings:
    """Active pods, their recorded devices, and devices taken before they are recorded.

    What an ended pod held becomes free at the next ``sweep`` only. A sweep that frees
    anything forgets what is taken but not recorded: a bug of kubelet that a plugin must
    survive (contracts 2.7), so it is kept.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pods: dict[str, Json] = {}
        self._held: dict[str, dict[str, dict[str, AllocatedDevices]]] = {}
        self._taken: dict[str, set[str]] = {}

    def begin(self, pod: Json) -> None:
        """Make a pod active; its admission begins."""
        with self._lock:
            self._pods[pod["metadata"]["uid"]] = pod

    def end(self, uid: str) -> None:
        """Make a pod inactive."""
        with self._lock:
            self._pods.pop(uid, None)

    def active(self) -> tuple[Json, ...]:
        """Return the active pods."""
        with self._lock:
            return tuple(self._pods.values())

    def sweep(self) -> None:
        """Free what ended pods held."""
        with self._lock:
            ended = self._held.keys() - self._pods.keys()
            for uid in ended:
                del self._held[uid]
            if ended:
                self._recount()

    def take(self, resource: str, ids: Collection[str]) -> None:
        """Reserve devices while their container is being admitted."""
        with self._lock:
            self._taken.setdefault(resource, set()).update(ids)

    def record(
        self, uid: str, container: str, resource: str, devices: AllocatedDevices
    ) -> None:
        """Record what a container holds."""
        with self._lock:
            containers = self._held.setdefault(uid, {})
            containers.setdefault(container, {})[resource] = devices

    def untake(self) -> None:
        """Release everything that is taken and not recorded."""
        with self._lock:
            self._recount()

    def in_use(self, resource: str) -> frozenset[str] | None:
        """Return the devices that are taken; None if none ever was."""
        with self._lock:
            ids = self._taken.get(resource)
            return None if ids is None else frozenset(ids)

    def of(self, uid: str, container: str) -> Mapping[str, AllocatedDevices]:
        """Return what a container holds, by resource."""
        with self._lock:
            return dict(self._held.get(uid, {}).get(container, {}))

    def _recount(self) -> None:
        self._taken = {}
        for containers in self._held.values():
            for resources in containers.values():
                for resource, devices in resources.items():
                    self._taken.setdefault(resource, set()).update(devices.ids)


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """One container: its limits on extended resources, in whole numbers.

    ``ends``: an init container that is over before the other containers begin, so that
    they take over its devices. A sidecar keeps its own.
    """

    name: str
    amounts: Mapping[str, int]
    ends: bool = False


def limits_of(pod: Reader) -> list[ContainerLimits]:
    """Return the limits of all containers, init containers first.

    Kubelet looks at limits only: requests are equal to them (contracts 5).
    """
    limits = []
    for key in ("initContainers", "containers"):
        for container in pod.object("spec").optional_objects(key):
            stays = container.optional_text("restartPolicy") == "Always"
            ends = key == "initContainers" and not stays
            limits.append(
                ContainerLimits(container.text("name"), _amounts(container), ends=ends)
            )
    return limits


def _amounts(container: Reader) -> dict[str, int]:
    limits = container.optional_object("resources").optional_object("limits").raw
    # A domain in the name is what makes a resource an extended one.
    return {name: parse_whole(raw) for name, raw in limits.items() if "/" in name}


class PodResourcesServer:
    """Answers as kubelet does from 1.34 on: active pods only (contracts 2.6).

    An init container that ends is not listed, and each device is an entry of its own.
    There is no limit on how often one may ask.
    """

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def List(  # noqa: N802
        self,
        request: ListPodResourcesRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> ListPodResourcesResponse:
        """List all active pods; this also frees the devices of ended pods."""
        pods = self._holdings.active()
        self._holdings.sweep()
        return ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in pods])

    def Get(  # noqa: N802
        self, request: GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> GetPodResourcesResponse:
        """Return one pod."""
        wanted = (request.pod_namespace, request.pod_name)
        for pod in self._holdings.active():
            metadata = pod["metadata"]
            if (metadata["namespace"], metadata["name"]) == wanted:
                return GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return context.abort(grpc.StatusCode.UNKNOWN, text)

    def _pod(self, pod: Json) -> PodResources:
        metadata = pod["metadata"]
        resources = PodResources(name=metadata["name"], namespace=metadata["namespace"])
        for name in (
            device_id.name for device_id in limits_of(Reader(pod)) if not device_id.ends
        ):
            devices = [
                ContainerDevices(resource_name=resource, device_ids=[device_id])
                for resource, recorded in self._holdings.of(
                    metadata["uid"], name
                ).items()
                for device_id in recorded.ids
            ]
            resources.containers.append(ContainerResources(name=name, devices=devices))
        return resources


CHANCE = SystemRandom()
"""Go iterates maps and sets in a random order."""


class NotAdmittedError(Exception):
    """A container cannot get its devices; says why in kubelet's words."""


def shuffled(names: Iterable[str]) -> list[str]:
    """Return them in a random order."""
    return CHANCE.sample(listed := list(names), len(listed))


def _some(ids: Iterable[str], most: int) -> set[str]:
    listed = list(ids)
    return set(CHANCE.sample(listed, min(most, len(listed))))


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """Everything that kubelet tells the runtime to put into one container.

    Mounts and devices are by their path in the container.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, Mount] = field(default_factory=dict)
    devices: Mapping[str, DeviceSpec] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()


def merge_answers(answers: Iterable[ContainerAllocateResponse]) -> ContainerConfig:
    """Merge the plugins' answers for all resources of a container.

    If two differ the first wins, and which is first is random in kubelet (contracts
    2.3): plugins must give answers that agree.
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
    return ContainerConfig(envs, mounts, devices, annotations, tuple(cdi))


LONGEST_PATH = 107
"""The most bytes that the path of a Unix socket may have."""
_SOCKET = "kubelet.sock"
_CALLERS = 4


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why kubelet will not run a pod: its status has both, its event the second."""

    reason: str
    because: str

    @property
    def message(self) -> str:
        """The message of the pod's status."""
        return f"Pod was rejected: {self.because}"


class CannotStartYetError(Exception):
    """A plugin refused to let a container start; ``str()`` is kubelet's message.

    The container waits as ``CreateContainerConfigError``, and kubelet tries again.
    """


class Devices:
    """Serves ``<folder>/device-plugins`` and ``<folder>/pod-resources``.

    Use it with ``with``, or ``open`` and ``close`` it. There is no checkpoint: a second
    one in the same folder is a kubelet that has lost it, and ``admit`` is what such a
    kubelet does with the pods of its node.
    """

    def __init__(self, folder: Path) -> None:
        self.plugins = folder / "device-plugins"
        self.pod_resources = folder / "pod-resources"
        self._registry = Registry(self.plugins)
        self._holdings = Holdings()
        self._turn = Lock()
        self._servers: list[grpc.Server] = []

    def open(self) -> None:
        """Remove all sockets, also those of plugins, as kubelet does, and serve."""
        for folder in (self.plugins, self.pod_resources):
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                if path.is_socket():
                    path.unlink()
        lister = _server(self.pod_resources)
        add_servicer(lister, POD_RESOURCES, PodResourcesServer(self._holdings))
        registration = _server(self.plugins)
        add_servicer(registration, REGISTRATION, self._registry)
        for server in (lister, registration):
            self._servers.append(server)
            server.start()

    def close(self) -> None:
        """Stop serving; the streams of plugins end."""
        for server in self._servers:
            server.stop(None).wait()
        self._registry.close()

    def capacity(self) -> dict[str, int]:
        """Count the devices of each resource, for the node's status."""
        return self._registry.capacity()

    def allocatable(self) -> dict[str, int]:
        """Count the healthy devices of each resource, taken ones included."""
        return self._registry.allocatable()

    def admit(
        self, pod: Json, running: Collection[str] = ()
    ) -> Mapping[str, ContainerConfig] | Rejection:
        """Give a pod's containers their devices: one pod at a time, whoever calls.

        Returns what each container gets; nothing may start yet. A resource that no
        plugin ever offered is ignored, as in kubelet. A restarted kubelet gives nothing
        to containers that are ``running``. ``ValueError`` for a pod that no API server
        accepts.
        """
        containers = [
            container
            for container in limits_of(Reader(pod))
            if container.name not in running
        ]
        uid = pod["metadata"]["uid"]
        reusable: dict[str, set[str]] = {}
        with self._turn:
            self._holdings.begin(pod)
            try:
                for container in containers:
                    self._allocate(uid, container, reusable)
                    container_devices = self._holdings.of(uid, container.name)
                    for resource, resource_devices in container_devices.items():
                        free_ids = reusable.setdefault(resource, set())
                        # Others take over what an init container that ends has had.
                        if container.ends:
                            free_ids |= resource_devices.ids
                        else:
                            free_ids -= resource_devices.ids
            except NotAdmittedError as error:
                self._holdings.end(uid)
                because = f"Allocate failed due to {error}, which is unexpected"
                return Rejection("UnexpectedAdmissionError", because)
        return {
            container.name: self._given(uid, container.name) for container in containers
        }

    def start(self, uid: str, container: str) -> ContainerConfig:
        """Ask the plugins before a container's start or restart; return what it gets.

        ``CannotStartYetError`` if one of them refuses.
        """
        try:
            for resource in shuffled(self._asked(uid, container)):
                self._pre_start(uid, container, resource)
        except CallFailedError as error:
            raise CannotStartYetError(str(error)) from error
        return self._given(uid, container)

    def release(self, uid: str) -> None:
        """Forget a pod that ended; its devices are free at the next allocation."""
        self._holdings.end(uid)

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _asked(self, uid: str, container: str) -> list[str]:
        return [
            resource
            for pod in self._holdings.active()
            if pod["metadata"]["uid"] == uid
            for container_limits in limits_of(Reader(pod))
            if container_limits.name == container
            for resource, amount in container_limits.amounts.items()
            if amount and self._knows(resource)
        ]

    def _knows(self, resource: str) -> bool:
        return (
            self._registry.healthy(resource) is not None
            or self._holdings.in_use(resource) is not None
        )

    def _allocate(
        self, uid: str, container: ContainerLimits, reusable: dict[str, set[str]]
    ) -> None:
        known = [name for name in shuffled(container.amounts) if self._knows(name)]
        if known:
            self._holdings.sweep()
        for resource in known:
            size = container.amounts[resource]
            if self._has_all(uid, container.name, resource, size):
                continue
            ids = self._choose(resource, size, reusable.get(resource, set()))
            devices = self._give(resource, ids)
            self._holdings.record(uid, container.name, resource, devices)

    def _has_all(self, uid: str, container: str, resource: str, size: int) -> bool:
        """Tell whether a container needs no more devices.

        Raises ``NotAdmittedError`` if no device is healthy, even if the container asks
        for none, as kubelet does (contracts 2.4).
        """
        devices = self._holdings.of(uid, container).get(resource)
        ids = devices.ids if devices else frozenset()
        if devices and len(ids) != size:
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

    def _give(self, resource: str, ids: frozenset[str]) -> AllocatedDevices:
        endpoint = self._registry.endpoint(resource)
        try:
            if endpoint is None:
                raise NotAdmittedError(f"unknown Device Plugin {resource}")
            return AllocatedDevices(ids, endpoint.allocate(shuffled(ids)))
        except CallFailedError as error:
            self._holdings.untake()
            raise NotAdmittedError(str(error)) from error

    def _pre_start(self, uid: str, container: str, resource: str) -> None:
        endpoint = self._registry.endpoint(resource)
        if endpoint is None or not endpoint.options.pre_start_required:
            return
        devices = self._holdings.of(uid, container).get(resource)
        if devices is None:
            raise CallFailedError(
                f"no devices found allocated in local cache for pod {uid}, "
                f"container {container}, resource {resource}"
            )
        endpoint.pre_start(shuffled(devices.ids))

    def _given(self, uid: str, container: str) -> ContainerConfig:
        devices = self._holdings.of(uid, container)
        return merge_answers(devices[resource].answer for resource in shuffled(devices))


def _server(folder: Path) -> grpc.Server:
    path = folder / _SOCKET
    if (length := len(bytes(path))) > LONGEST_PATH:
        text = f"{path} has {length} bytes; a unix socket's path has {LONGEST_PATH}"
        raise ValueError(f"{text} at most")
    server = grpc.server(ThreadPoolExecutor(_CALLERS))
    server.add_insecure_port(f"unix:{path}")
    return server
