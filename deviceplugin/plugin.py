"""The DevicePlugin service, one for cores and one for memory; kubelet calls it."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import grpc

from deviceplugin.admission import Admission, Assigned, DeniedError
from deviceplugin.allocation import Given, Injection, given, what_is_missing
from deviceplugin.metrics import PluginMetrics
from deviceplugin.offer import Offer
from deviceplugin.prestart import NotYetError, Starter
from deviceplugin.records import Record, Records
from deviceplugin.streams import Service
from gpushare.kube.proto import deviceplugin_pb2 as pb

logger = logging.getLogger(__name__)

_STARTING_AT_ONCE = 16
_OPTIONS = pb.DevicePluginOptions(
    pre_start_required=True, get_preferred_allocation_available=True
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the services of both resources share."""

    offer: Offer
    admission: Admission
    starter: Starter
    records: Records
    injection: Callable[[], Injection]
    metrics: PluginMetrics


class DevicePlugin(Service):
    """One resource's service; the methods' names are kubelet's."""

    def __init__(self, resource: str, parts: Parts) -> None:
        devices = partial(parts.offer.devices, resource)
        super().__init__(resource, devices, parts.offer, _OPTIONS)
        self._starting = threading.BoundedSemaphore(_STARTING_AT_ONCE)
        self._admission = parts.admission
        self._starter = parts.starter
        self._records = parts.records
        self._injection = parts.injection
        self._metrics = parts.metrics

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
                    found = self._given(assigned, ids)
                except DeniedError as error:
                    self._refuse(context, "Allocate", error)
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
        injection = self._injection()
        found = [self.offer.found(uuid) for uuid in assigned.cards]
        cards = [card for card in found if card is not None]
        if wrong := what_is_missing(cards, injection):
            raise DeniedError(wrong)
        record = Record(
            *assigned.pod,
            assigned.uid,
            assigned.container,
            self.resource,
            tuple(sorted(ids)),
        )
        self._write_down(record)
        facts = {
            "pod": "/".join(assigned.pod),
            "container": assigned.container,
            "resource": self.resource,
            "count": len(ids),
            "cards": ",".join(assigned.cards),
        }
        logger.info("allocated", extra=facts)
        folder = str(self._records.folder(record))
        return given(self.resource, len(ids), cards, injection, folder)

    def _write_down(self, record: Record) -> None:
        try:
            self._records.write(record)
        except OSError as error:
            # Failing here would end the pod for good; PreStartContainer tries again.
            facts = {"pod": "/".join(record.pod), "because": str(error)}
            logger.warning("allocation not written down", extra=facts)

    def _refuse(
        self, context: grpc.ServicerContext, call: str, error: Exception
    ) -> NoReturn:
        self._metrics.refused.labels(call, self.resource).inc()
        logger.warning("refused", extra={"call": call, "because": str(error)})
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError from error


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
