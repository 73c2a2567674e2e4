"""The DevicePlugin service, one for cores and one for memory; kubelet calls it."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import grpc

from deviceplugin.admission import Admission, Assigned, DeniedError
from deviceplugin.allocation import Given, Injection, given
from deviceplugin.metrics import PluginMetrics
from deviceplugin.offer import Offer
from deviceplugin.prestart import NotYetError, Starter
from deviceplugin.records import Record, Records
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kube.proto.deviceplugin_pb2_grpc import DevicePluginServicer

logger = logging.getLogger(__name__)

HEALTHY = "Healthy"
SICK = "Unhealthy"
_STARTING_AT_ONCE = 16
_LOOK_S = 0.25
"""How often a stream looks whether kubelet still listens."""

OPTIONS = pb.DevicePluginOptions(
    pre_start_required=True, get_preferred_allocation_available=True
)


class Streams:
    """The open ListAndWatch streams of one resource: at most one, or trouble."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = 0

    def opened(self, by: int) -> None:
        """Count one in, or out."""
        with self._changed:
            self._open += by
            self._changed.notify_all()

    def wait_for(self, *, some: bool, timeout_s: float) -> bool:
        """Wait until a stream is open, or none is; tell whether that came about."""
        with self._changed:
            return self._changed.wait_for(lambda: (self._open > 0) == some, timeout_s)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the services of both resources share."""

    offer: Offer
    admission: Admission
    starter: Starter
    records: Records
    injection: Callable[[], Injection]
    metrics: PluginMetrics


class DevicePlugin(DevicePluginServicer):
    """One resource's service; the methods' names are kubelet's."""

    def __init__(self, resource: str, parts: Parts) -> None:
        self.resource = resource
        self.streams = Streams()
        self._starting = threading.BoundedSemaphore(_STARTING_AT_ONCE)
        self._offer = parts.offer
        self._admission = parts.admission
        self._starter = parts.starter
        self._records = parts.records
        self._injection = parts.injection
        self._metrics = parts.metrics

    def GetDevicePluginOptions(  # noqa: N802
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> pb.DevicePluginOptions:
        """Tell kubelet which calls to make."""
        del request, context
        return OPTIONS

    def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> Iterator[pb.ListAndWatchResponse]:
        """Give all devices, and again whenever a card falls sick or is well again."""
        del request
        self.streams.opened(1)
        try:
            shown: list[tuple[str, bool]] | None = None
            while context.is_active():
                version = self._offer.version()
                devices = self._offer.devices(self.resource)
                if devices != shown:
                    shown = devices
                    yield _listed(devices)
                while context.is_active():
                    if self._offer.wait_for_change(version, _LOOK_S):
                        break
        finally:
            self.streams.opened(-1)

    def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> pb.PreferredAllocationResponse:
        """Choose the ids of the card that was chosen for the pod whose turn it is."""
        answer = pb.PreferredAllocationResponse()
        with self._metrics.calls.labels("GetPreferredAllocation", self.resource).time():
            for one in request.container_requests:
                try:
                    chosen = self._admission.prefer(
                        self.resource,
                        one.available_deviceIDs,
                        one.must_include_deviceIDs,
                        one.allocation_size,
                    )
                except DeniedError as error:
                    self._refuse(context, "GetPreferredAllocation", error)
                answer.container_responses.add(deviceIDs=chosen)
        return answer

    def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        """Give what the container needs for the card of these ids; asks nobody."""
        answer = pb.AllocateResponse()
        with self._metrics.calls.labels("Allocate", self.resource).time():
            for one in request.container_requests:
                ids = list(one.devices_ids)
                try:
                    assigned = self._admission.allocate(self.resource, ids)
                except DeniedError as error:
                    self._refuse(context, "Allocate", error)
                found = self._given(assigned, ids)
                answer.container_responses.append(_response(found))
        return answer

    def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        """Let the container start if its devices are where they should be."""
        if not self._starting.acquire(blocking=False):
            # It may wait for the API server; kubelet's admissions must not wait for it.
            busy = NotYetError("busy with other containers; ask again")
            self._refuse(context, "PreStartContainer", busy)
        try:
            with self._metrics.calls.labels("PreStartContainer", self.resource).time():
                self._starter.start(self.resource, list(request.devices_ids))
        except NotYetError as error:
            self._refuse(context, "PreStartContainer", error)
        finally:
            self._starting.release()
        return pb.PreStartContainerResponse()

    def _given(self, assigned: Assigned, ids: list[str]) -> Given:
        self._records.write(
            Record(
                *assigned.pod,
                assigned.uid,
                assigned.container,
                self.resource,
                tuple(sorted(ids)),
            )
        )
        found = [self._offer.found(uuid) for uuid in assigned.cards]
        cards = [card for card in found if card is not None]
        folder = str(self._records.folder(ids, assigned.container))
        facts = {
            "pod": "/".join(assigned.pod),
            "container": assigned.container,
            "resource": self.resource,
            "count": len(ids),
            "cards": ",".join(assigned.cards),
        }
        logger.info("allocated", extra=facts)
        return given(self.resource, len(ids), cards, self._injection(), folder)

    def _refuse(
        self, context: grpc.ServicerContext, call: str, error: Exception
    ) -> NoReturn:
        self._metrics.refused.labels(call, self.resource).inc()
        logger.warning("refused", extra={"call": call, "because": str(error)})
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError from error


def _listed(devices: list[tuple[str, bool]]) -> pb.ListAndWatchResponse:
    answer = pb.ListAndWatchResponse()
    for name, healthy in devices:
        answer.devices.add(ID=name, health=HEALTHY if healthy else SICK)
    return answer


def _response(found: Given) -> pb.ContainerAllocateResponse:
    answer = pb.ContainerAllocateResponse(envs=found.variables)
    for mount in found.mounts:
        answer.mounts.add(
            container_path=mount.inside, host_path=mount.host, read_only=True
        )
    for node in found.nodes:
        answer.devices.add(container_path=node, host_path=node, permissions="rw")
    for name in found.cdi:
        answer.cdi_devices.add(name=name)
    return answer
