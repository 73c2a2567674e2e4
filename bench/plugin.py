"""The device plugin's three calls at 8 cards of 560 units, beside an empty call.

The bench plays kubelet: it takes the registration, lists who holds what, and admits 320
pods one after another, until the cards are full.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import grpc
from rich.console import Console

from bench.client import Timing, times_table
from bench.plugin_server import POD_UNITS, PODS, pod_name
from gpushare.kube import names
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kube.proto import podresources_pb2 as podresources_pb
from gpushare.kubelet.services import (
    DEVICE_PLUGIN,
    POD_RESOURCES,
    REGISTRATION,
    add_servicer,
    make_stub,
)

CALLS = ("empty", "GetPreferredAllocation", "Allocate", "PreStartContainer")
COUNTS = {names.MEMORY: POD_UNITS, names.CORE: 1}
_WITHIN_S = 60.0


class Kubelet:
    """What the plugin needs of kubelet: registration, and who holds what."""

    def __init__(self) -> None:
        self.endpoints: dict[str, str] = {}
        self.both = Event()
        self.listed = podresources_pb.ListPodResourcesResponse()

    def Register(self, request: Any, context: Any) -> Any:  # noqa: ANN401, ARG002, N802
        self.endpoints[request.resource_name] = request.endpoint
        if len(self.endpoints) == len(COUNTS):
            self.both.set()
        return pb.Empty()

    def List(self, request: Any, context: Any) -> Any:  # noqa: ANN401, ARG002, N802
        return self.listed

    def Get(self, request: Any, context: Any) -> Any:  # noqa: ANN401, ARG002, N802
        for pod in reversed(self.listed.pod_resources):
            if pod.name == request.pod_name:
                return podresources_pb.GetPodResourcesResponse(pod_resources=pod)
        return podresources_pb.GetPodResourcesResponse()

    def admit(self, name: str) -> None:
        """Begin a pod's turn: it is listed, and holds nothing yet."""
        pod = self.listed.pod_resources.add(name=name, namespace="default")
        pod.containers.add(name="main")

    def give(self, resource: str, ids: Sequence[str]) -> None:
        """Write down what the pod whose turn it is holds, one entry an id."""
        container = self.listed.pod_resources[-1].containers[0]
        for device in ids:
            container.devices.add(resource_name=resource, device_ids=[device])


def plugin_table(console: Console) -> dict[str, Any]:
    """Time the calls of 320 admissions, and show them."""
    took = {call: list[float]() for call in CALLS}
    with plugged() as (kubelet, stubs):
        free = {resource: devices(stub) for resource, stub in stubs.items()}
        for number in range(PODS):
            kubelet.admit(pod_name(number))
            given = {
                resource: allocate(stub, resource, free[resource], took)
                for resource, stub in stubs.items()
                if kubelet.listed.pod_resources
            }
            for resource, ids in given.items():
                kubelet.give(resource, ids)
            for resource, ids in given.items():
                stub = stubs[resource]
                starting = pb.PreStartContainerRequest(devices_ids=ids)
                call_timed(took["PreStartContainer"], stub.PreStartContainer, starting)
                call_timed(took["empty"], stub.GetDevicePluginOptions, pb.Empty())
    timings = {call: Timing.of(seconds) for call, seconds in took.items()}
    empty_s = timings["empty"].percentile(0.5)
    console.print(times_table("device plugin, 8 x 560 units", timings))
    return {
        call: timing.as_ms() | {"ratio": round(timing.percentile(0.5) / empty_s, 2)}
        for call, timing in timings.items()
    }


def allocate(
    stub: Any,  # noqa: ANN401
    resource: str,
    free: set[str],
    took: dict[str, list[float]],
) -> list[str]:
    """Ask for one container's devices, as kubelet does, and take them."""
    request = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=sorted(free), allocation_size=COUNTS[resource]
    )
    preferred = pb.PreferredAllocationRequest(container_requests=[request])
    answer = call_timed(
        took["GetPreferredAllocation"], stub.GetPreferredAllocation, preferred
    )
    ids = list(answer.container_responses[0].deviceIDs)
    wanted = pb.AllocateRequest(
        container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]
    )
    call_timed(took["Allocate"], stub.Allocate, wanted)
    free.difference_update(ids)
    return ids


def call_timed(took: list[float], call: Callable[[Any], Any], request: Any) -> Any:  # noqa: ANN401
    """Make a call, and note how long it took."""
    began = time.perf_counter()
    answer = call(request)
    took.append(time.perf_counter() - began)
    return answer


def devices(stub: Any) -> set[str]:  # noqa: ANN401
    """Read the first list of devices."""
    stream = stub.ListAndWatch(pb.Empty())
    listed = next(stream)
    stream.cancel()
    return {device.ID for device in listed.devices}


@contextlib.contextmanager
def plugged() -> Iterator[tuple[Kubelet, dict[str, Any]]]:
    """Run the plugin in a process of its own, and this one as its kubelet."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        kubelet = Kubelet()
        server = grpc.server(ThreadPoolExecutor(4))
        add_servicer(server, REGISTRATION, kubelet)
        add_servicer(server, POD_RESOURCES, kubelet)
        for place in ("device-plugins", "pod-resources"):
            (folder / place).mkdir()
            server.add_insecure_port(f"unix://{folder / place / 'kubelet.sock'}")
        server.start()
        command = [sys.executable, "-m", "bench.plugin_server", name]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
            if not kubelet.both.wait(_WITHIN_S):
                raise RuntimeError("the device plugin did not register")
            where = {
                resource: f"unix://{folder / 'device-plugins' / endpoint}"
                for resource, endpoint in kubelet.endpoints.items()
            }
            with contextlib.ExitStack() as stack:
                stubs = {
                    resource: make_stub(
                        stack.enter_context(grpc.insecure_channel(target)),
                        DEVICE_PLUGIN,
                    )
                    for resource, target in where.items()
                }
                watching = [stub.ListAndWatch(pb.Empty()) for stub in stubs.values()]
                yield kubelet, stubs
                for stream in watching:
                    stream.cancel()
            assert child.stdin is not None
            child.stdin.close()
        server.stop(None).wait()
