"""Serve kubelet's PodResources: which container holds which devices."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import Lock

import grpc

from gpushare.domain.quantity import parse_whole
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Reader
from gpushare.kube.proto.deviceplugin_pb2 import ContainerAllocateResponse
from gpushare.kube.proto.podresources_pb2 import (
    ContainerDevices,
    ContainerResources,
    GetPodResourcesRequest,
    GetPodResourcesResponse,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    PodResources,
)


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
