"""kubelet's side of one device plugin: the connection, the calls and the stream."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

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
)
from gpushare.kube.proto.deviceplugin_pb2_grpc import DevicePluginStub

_DIAL_S = 10.0
_PRE_START_S = 30.0
_GO_WORDS = {grpc.StatusCode.CANCELLED: "Canceled"}
"""Codes that Go calls otherwise than by the words of their names."""


class CallFailedError(Exception):
    """A call to a plugin failed; ``str()`` is what kubelet makes of it."""


class Endpoint:
    """A plugin that registered. All calls raise ``CallFailedError``s.

    Only PreStartContainer has a deadline: kubelet waits for the others for ever
    (contracts 2.3).
    """

    def __init__(self, socket: Path) -> None:
        options = (("grpc.default_authority", "localhost"),)
        self._channel = grpc.insecure_channel(f"unix:{socket}", options)
        self._stub = DevicePluginStub(self._channel)
        self.options = DevicePluginOptions()

    def connect(self) -> None:
        """Connect to the plugin's socket and ask for its options."""
        try:
            grpc.channel_ready_future(self._channel).result(_DIAL_S)
        except grpc.FutureTimeoutError as error:
            text = "failed to dial device plugin: context deadline exceeded"
            raise CallFailedError(text) from error
        with _translated("failed to get device plugin options: "):
            self.options = self._stub.GetDevicePluginOptions(Empty())

    def follow(self, told: Callable[[Sequence[Device]], None]) -> None:
        """Tell each list of devices, until the stream ends."""
        try:
            for message in self._stub.ListAndWatch(Empty()):
                told(message.devices)
        except (grpc.RpcError, ValueError):
            return

    def preferred(
        self, available: Collection[str], must: Collection[str], size: int
    ) -> frozenset[str]:
        """Ask which devices the plugin would like to see used."""
        asked = ContainerPreferredAllocationRequest(
            available_deviceIDs=available,
            must_include_deviceIDs=must,
            allocation_size=size,
        )
        request = PreferredAllocationRequest(container_requests=[asked])
        with _translated("device plugin GetPreferredAllocation rpc failed with err: "):
            answer = self._stub.GetPreferredAllocation(request)
        first = answer.container_responses[:1]
        return frozenset(first[0].deviceIDs if first else ())

    def allocate(self, ids: Collection[str]) -> ContainerAllocateResponse:
        """Tell which devices a container gets, and hear what comes with them."""
        asked = ContainerAllocateRequest(devices_ids=ids)
        with _translated():
            answer = self._stub.Allocate(AllocateRequest(container_requests=[asked]))
        responses: Sequence[ContainerAllocateResponse] = answer.container_responses
        if not responses:
            text = f"no containers return in allocation response {answer}"
            raise CallFailedError(text)
        return responses[0]

    def pre_start(self, ids: Collection[str]) -> None:
        """Tell that a container with these devices is about to start."""
        request = PreStartContainerRequest(devices_ids=ids)
        with _translated("device plugin PreStartContainer rpc failed with err: "):
            self._stub.PreStartContainer(request, timeout=_PRE_START_S)

    def close(self) -> None:
        """Hang up; what is under way ends."""
        self._channel.close()


@contextmanager
def _translated(before: str = "") -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        _raise(before, error)
    except ValueError as error:
        # That is how the channel says that it was closed.
        text = "code = Canceled desc = grpc: the client connection is closing"
        raise CallFailedError(f"{before}rpc error: {text}") from error


def _raise(before: str, error: grpc.RpcError) -> NoReturn:
    if not isinstance(error, grpc.Call):
        raise CallFailedError(f"{before}{error}") from error
    code = error.code()
    word = _GO_WORDS.get(code) or code.name.replace("_", " ").title().replace(" ", "")
    text = f"rpc error: code = {word} desc = {error.details()}"
    raise CallFailedError(before + text) from error
