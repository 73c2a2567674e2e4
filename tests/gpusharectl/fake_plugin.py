"""A device plugin whose answers a test gives; it remembers what it was asked."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import grpc

from gpushare.kube import names
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kubelet.services import (
    DEVICE_PLUGIN,
    REGISTRATION,
    add_servicer,
    make_stub,
)

LETTERS = {names.MEMORY: "m", names.CORE: "c"}


def ids_of(resource: str, count: int) -> list[str]:
    return [f"{LETTERS[resource]}{number:03}" for number in range(count)]


class FakePlugin:
    """One resource, offered over a socket of its own."""

    def __init__(self, folder: Path, resource: str = names.MEMORY) -> None:
        self.folder = folder
        self.resource = resource
        self.endpoint = f"{resource.replace('/', '-')}.sock"
        self.calls: list[tuple[str, Any]] = []
        self.options = pb.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        )
        self.prefer: Callable[[Any], Sequence[str]] = lambda asked: sorted(
            asked.available_deviceIDs
        )[: asked.allocation_size]
        self.answer = pb.ContainerAllocateResponse()
        self.errors: dict[str, str] = {}
        self.during: Callable[[str], None] = lambda _call: None
        self.gone = Event()
        self._lists: SimpleQueue[list[pb.Device] | None] = SimpleQueue()

    def offer(self, *ids: str, sick: Sequence[str] = ()) -> None:
        """Send a new list; it replaces the one before."""
        self._lists.put(
            [pb.Device(ID=one, health="Healthy") for one in ids]
            + [pb.Device(ID=one, health="Unhealthy") for one in sick]
        )

    def hang_up(self) -> None:
        """End the stream."""
        self._lists.put(None)

    def register(self, **wrong: str) -> None:
        with grpc.insecure_channel(f"unix:{self.folder / 'kubelet.sock'}") as channel:
            asked = {"version": "v1beta1", "endpoint": self.endpoint}
            asked["resource_name"] = self.resource
            make_stub(channel, REGISTRATION).Register(
                pb.RegisterRequest(**(asked | wrong))
            )

    def names_of_calls(self) -> list[str]:
        return [call for call, _ in self.calls]

    def last(self, call: str) -> Any:
        return next(asked for name, asked in reversed(self.calls) if name == call)

    @contextmanager
    def served(self) -> Iterator["FakePlugin"]:
        server = grpc.server(ThreadPoolExecutor(4))
        add_servicer(server, DEVICE_PLUGIN, self)
        server.add_insecure_port(f"unix:{self.folder / self.endpoint}")
        server.start()
        try:
            yield self
        finally:
            self.hang_up()
            server.stop(None).wait()

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._note("options", request, context)
        return self.options

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        context.add_callback(self.gone.set)
        while (listed := self._lists.get()) is not None:
            yield pb.ListAndWatchResponse(devices=listed)

    def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        (asked,) = request.container_requests
        self._note("prefer", asked, context)
        chosen = pb.ContainerPreferredAllocationResponse(deviceIDs=self.prefer(asked))
        return pb.PreferredAllocationResponse(container_responses=[chosen])

    def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        (asked,) = request.container_requests
        self._note("allocate", list(asked.devices_ids), context)
        return pb.AllocateResponse(container_responses=[self.answer])

    def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._note("start", list(request.devices_ids), context)
        return pb.PreStartContainerResponse()

    def _note(self, call: str, asked: Any, context: Any) -> None:
        self.calls.append((call, asked))
        self.during(call)
        if call in self.errors:
            context.abort(grpc.StatusCode.INTERNAL, self.errors[call])
