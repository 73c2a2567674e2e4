"""Keep kubelet's registry of device plugins: their connections, calls and devices."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread

import grpc

from gpushare.kube.proto.deviceplugin_pb2 import (
    AllocateRequest,
    ContainerAllocateRequest,
    ContainerAllocateResponse,
    ContainerPreferredAllocationRequest,
    Device,
    DevicePluginOptions,
    Empty,
    PreferredAllocationRequest,
    PreStartContainerRequest,
    RegisterRequest,
)
from gpushare.kubelet.services import DEVICE_PLUGIN, make_stub

_DIAL_S = 10.0
_PRE_START_S = 30.0
_GO_WORDS = {grpc.StatusCode.CANCELLED: "Canceled"}
"""Codes that Go names differently."""


class CallFailedError(Exception):
    """A call to a plugin failed; ``str()`` is kubelet's message."""


class Endpoint:
    """A registered plugin. All calls raise ``CallFailedError``.

    Only PreStartContainer has a deadline: kubelet waits for the others without limit
    (contracts 2.3).
    """

    def __init__(self, socket: Path) -> None:
        options = (("grpc.default_authority", "localhost"),)
        self._channel = grpc.insecure_channel(f"unix:{socket}", options)
        self._stub = make_stub(self._channel, DEVICE_PLUGIN)
        self.options = DevicePluginOptions()

    def connect(self) -> None:
        """Connect to the plugin's socket and ask for its options."""
        try:
            grpc.channel_ready_future(self._channel).result(_DIAL_S)
        except grpc.FutureTimeoutError as error:
            text = "failed to dial device plugin: context deadline exceeded"
            raise CallFailedError(text) from error
        with _call_errors("failed to get device plugin options: "):
            self.options = self._stub.GetDevicePluginOptions(Empty())

    def follow(self, on_devices: Callable[[Sequence[Device]], None]) -> None:
        """Pass on each list of devices until the stream ends."""
        try:
            for message in self._stub.ListAndWatch(Empty()):
                on_devices(message.devices)
        except (grpc.RpcError, ValueError):
            return

    def preferred(
        self, available: Collection[str], must: Collection[str], size: int
    ) -> frozenset[str]:
        """Return the devices that the plugin would prefer."""
        container_request = ContainerPreferredAllocationRequest(
            available_deviceIDs=available,
            must_include_deviceIDs=must,
            allocation_size=size,
        )
        request = PreferredAllocationRequest(container_requests=[container_request])
        with _call_errors("device plugin GetPreferredAllocation rpc failed with err: "):
            answer = self._stub.GetPreferredAllocation(request)
        first = answer.container_responses[:1]
        return frozenset(first[0].deviceIDs if first else ())

    def allocate(self, ids: Collection[str]) -> ContainerAllocateResponse:
        """Return the plugin's answer for the devices that a container gets."""
        container_request = ContainerAllocateRequest(devices_ids=ids)
        with _call_errors():
            answer = self._stub.Allocate(
                AllocateRequest(container_requests=[container_request])
            )
        responses: Sequence[ContainerAllocateResponse] = answer.container_responses
        if not responses:
            text = f"no containers return in allocation response {answer}"
            raise CallFailedError(text)
        return responses[0]

    def pre_start(self, ids: Collection[str]) -> None:
        """Tell the plugin that a container with these devices is about to start."""
        request = PreStartContainerRequest(devices_ids=ids)
        with _call_errors("device plugin PreStartContainer rpc failed with err: "):
            self._stub.PreStartContainer(request, timeout=_PRE_START_S)

    def close(self) -> None:
        """Close the connection; calls in progress end."""
        self._channel.close()


@contextmanager
def _call_errors(before: str = "") -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        text = str(error)
        if isinstance(error, grpc.Call):
            code = error.code()
            word = code.name.replace("_", " ").title().replace(" ", "")
            word = _GO_WORDS.get(code, word)
            text = f"rpc error: code = {word} desc = {error.details()}"
        raise CallFailedError(before + text) from error
    except ValueError as error:
        # The channel raises this when it is closed.
        text = "code = Canceled desc = grpc: the client connection is closing"
        raise CallFailedError(f"{before}rpc error: {text}") from error


VERSION = "v1beta1"
HEALTHY = "Healthy"
"""The only value that makes a device usable (contracts 2.2)."""
_EXTENDED = re.compile(r"(?!([^/]*\.)?kubernetes\.io/)[a-z0-9.-]+/[-\w.]{1,63}")


class Registry:
    """Serves registration and follows the streams of registered plugins.

    Left out: kubelet counts a resource as none after five minutes without a plugin;
    here it keeps its capacity.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._endpoints: dict[str, Endpoint] = {}
        self._connected: dict[str, Endpoint] = {}
        self._devices: dict[str, dict[str, bool]] = {}
        """Whether each device is usable, by resource."""
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
        """Return the plugin that registered a resource last, even if it is gone."""
        with self._lock:
            return self._endpoints.get(resource)

    def healthy(self, resource: str) -> frozenset[str] | None:
        """Return the usable devices; None for a resource that was never offered."""
        with self._lock:
            devices = self._devices.get(resource)
        if devices is None:
            return None
        return frozenset(name for name, usable in devices.items() if usable)

    def capacity(self) -> dict[str, int]:
        """Count all devices of each resource."""
        with self._lock:
            return {resource: len(ids) for resource, ids in self._devices.items()}

    def allocatable(self) -> dict[str, int]:
        """Count the usable devices of each resource."""
        with self._lock:
            return {name: sum(ids.values()) for name, ids in self._devices.items()}

    def close(self) -> None:
        """Close the connections to all plugins; their streams end."""
        with self._lock:
            followed = list(self._followed)
        for endpoint, _ in followed:
            endpoint.close()
        for _, follower in followed:
            follower.join()

    def _follow(self, resource: str, endpoint: Endpoint) -> None:
        endpoint.follow(lambda devices: self._set_devices(resource, devices))
        # By name and not by endpoint: if a second plugin registered meanwhile, its
        # connection is closed, which is a bug of kubelet itself (contracts 2.7).
        with self._lock:
            ended = self._connected.pop(resource, None)
            if ended is not None and resource in self._devices:
                self._devices[resource] = dict.fromkeys(self._devices[resource], False)
        if ended is not None:
            ended.close()

    def _set_devices(self, resource: str, devices: Sequence[Device]) -> None:
        with self._lock:
            self._devices[resource] = {
                device.ID: device.health == HEALTHY for device in devices
            }


def _complaint(request: RegisterRequest) -> str:
    if request.version != VERSION:
        return (
            f'requested API version "{request.version}" is not supported by kubelet. '
            f"Supported version is [{VERSION}]"
        )
    if not _EXTENDED.fullmatch(request.resource_name):
        return f'the ResourceName "{request.resource_name}" is invalid'
    return ""
