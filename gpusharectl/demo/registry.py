"""kubelet's registry: which plugin offers which devices, and how they are."""

import re
from collections.abc import Sequence
from pathlib import Path
from threading import Lock, Thread

import grpc

from gpushare.kube.proto.deviceplugin_pb2 import Device, Empty, RegisterRequest
from gpushare.kube.proto.deviceplugin_pb2_grpc import RegistrationServicer
from gpusharectl.demo.endpoint import CallFailedError, Endpoint

VERSION = "v1beta1"
HEALTHY = "Healthy"
"""The one word, to the letter, that makes a device usable (contracts 2.2)."""
_EXTENDED = re.compile(r"(?!([^/]*\.)?kubernetes\.io/)[a-z0-9.-]+/[-\w.]{1,63}")


class Registry(RegistrationServicer):
    """Registration, and the streams of those who registered.

    Left out: the five minutes after which kubelet counts a resource without a plugin
    as none; here it keeps its capacity.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._endpoints: dict[str, Endpoint] = {}
        self._connected: dict[str, Endpoint] = {}
        self._healthy: dict[str, frozenset[str]] = {}
        self._unhealthy: dict[str, frozenset[str]] = {}
        self._followed: list[tuple[Endpoint, Thread]] = []

    def Register(  # noqa: N802
        self, request: RegisterRequest, context: grpc.ServicerContext
    ) -> Empty:
        """Connect back to the plugin before answering, then follow its devices."""
        if complaint := _complaint(request):
            context.abort(grpc.StatusCode.UNKNOWN, complaint)
        endpoint = Endpoint(self._folder / request.endpoint)
        resource = request.resource_name
        with self._lock:
            self._connected[resource] = endpoint
        try:
            endpoint.connect()
        except CallFailedError as error:
            with self._lock:
                self._connected.pop(resource, None)
            endpoint.close()
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        follower = Thread(target=self._follow, args=(resource, endpoint), daemon=True)
        with self._lock:
            self._endpoints[resource] = endpoint
            self._followed.append((endpoint, follower))
        follower.start()
        return Empty()

    def endpoint(self, resource: str) -> Endpoint | None:
        """Give the plugin that last registered a resource, gone or not."""
        with self._lock:
            return self._endpoints.get(resource)

    def healthy(self, resource: str) -> frozenset[str] | None:
        """Give the usable devices; None for a resource that was never told of."""
        with self._lock:
            return self._healthy.get(resource)

    def capacity(self) -> dict[str, int]:
        """Count all devices of each resource."""
        with self._lock:
            return {
                resource: len(healthy) + len(self._unhealthy[resource])
                for resource, healthy in self._healthy.items()
            }

    def allocatable(self) -> dict[str, int]:
        """Count the usable devices of each resource."""
        with self._lock:
            return {resource: len(ids) for resource, ids in self._healthy.items()}

    def close(self) -> None:
        """Hang up on all plugins; their streams end."""
        with self._lock:
            followed = list(self._followed)
        for endpoint, _ in followed:
            endpoint.close()
        for _, follower in followed:
            follower.join()

    def _follow(self, resource: str, endpoint: Endpoint) -> None:
        endpoint.follow(lambda devices: self._told(resource, devices))
        # By name and not by endpoint: where a second plugin registered meanwhile, it is
        # the one to be hung up on, which is kubelet's own mistake (contracts 2.7).
        with self._lock:
            ended = self._connected.pop(resource, None)
            if ended is not None and resource in self._healthy:
                self._unhealthy[resource] |= self._healthy[resource]
                self._healthy[resource] = frozenset()
        if ended is not None:
            ended.close()

    def _told(self, resource: str, devices: Sequence[Device]) -> None:
        """Take over a whole list; what is not in it is no more."""
        healthy = frozenset(one.ID for one in devices if one.health == HEALTHY)
        unhealthy = frozenset(one.ID for one in devices) - healthy
        with self._lock:
            self._healthy[resource] = healthy
            self._unhealthy[resource] = unhealthy


def _complaint(request: RegisterRequest) -> str:
    if request.version != VERSION:
        return (
            f'requested API version "{request.version}" is not supported by kubelet. '
            f"Supported version is [{VERSION}]"
        )
    if not _EXTENDED.fullmatch(request.resource_name):
        return f'the ResourceName "{request.resource_name}" is invalid'
    return ""
