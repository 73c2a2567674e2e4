"""The DevicePlugin service, one for cores and one for memory; kubelet calls it.

``bitfusion.io/gpu``, offered so that quotas can go on counting it; it does nothing.

A pod that was written for Bitfusion may keep it beside what it really asks
(``docs/bitfusion.md``). kubelet must know the resource, else no node takes the pod.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

import grpc

from deviceplugin.allocation.preferred import Admission, Assigned, DeniedError
from deviceplugin.allocation.prestart import NotYetError, Starter
from deviceplugin.allocation.records import Record, Records
from deviceplugin.allocation.response import Given, Injection, given, what_is_missing
from deviceplugin.cards.advertised import Offer
from deviceplugin.kubelet.registration import Pace, Service
from deviceplugin.metrics import PluginMetrics
from gpushare.domain.model import CORES_PER_CARD
from gpushare.kube import names
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
    pace: Pace = field(default_factory=Pace)


class DevicePlugin(Service):
    """One resource's service; the methods' names are kubelet's."""

    def __init__(self, resource: str, parts: Parts) -> None:
        devices = partial(parts.offer.devices, resource)
        super().__init__(resource, devices, parts.offer, _OPTIONS, parts.pace)
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


_MOST = 1000
"""Cards that a file may say; what is more nobody has written who can count them."""


class MostCards:
    """The most cards that this node was ever seen with, kept over restarts.

    kubelet turns a pod away whose devices are told no more, as after a reboot that one
    card of two did not live through: they may be the numbers of the lost one, whatever
    card the pod is on.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._most = self._read()

    def with_now(self, cards: int) -> int:
        """Give the most, these included, and write it down where it has grown."""
        with self._lock:
            if cards > self._most:
                self._most = cards
                self._write()
            return self._most

    def _read(self) -> int:
        try:
            text = self._path.read_text(encoding="ascii").strip()
            found = int(text) if text.isdigit() and len(text) < 10 else _MOST + 1  # noqa: PLR2004
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            self._tell(str(error))
            return 0
        if found > _MOST:
            self._tell(f"it does not hold a number up to {_MOST}")
            return 0
        return found

    def _write(self) -> None:
        unfinished = self._path.with_name(f"{self._path.name}.unfinished")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(f"{self._most}\n", encoding="ascii")
            unfinished.replace(self._path)
        except OSError as error:
            self._tell(str(error))

    def _tell(self, because: str) -> None:
        logger.warning(
            "the most cards ever seen cannot be kept; after a restart they are counted "
            "anew",
            extra={"file": str(self._path), "because": because},
        )


class QuotaPlugin(Service):
    """100 devices for each card that the node has or had; all of them always well.

    kubelet chooses among them at random, so which of them a pod gets says nothing of
    its card: were some told sick with a card, pods of other cards would be turned away
    at the next restart of kubelet. What a sick card cannot take, its cores say.
    """

    def __init__(
        self,
        offer: Offer,
        most: MostCards,
        metrics: PluginMetrics,
        pace: Pace | None = None,
    ) -> None:
        # Neither of the other two calls: kubelet may choose as it likes.
        plain = pb.DevicePluginOptions()
        super().__init__(
            names.BITFUSION_GPU, self._numbered, offer, plain, pace or Pace()
        )
        self._most = most
        self._metrics = metrics

    def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        """Give nothing: the container's card comes with what it asks of ours."""
        del context
        answer = pb.AllocateResponse()
        with self._metrics.calls.labels("Allocate", self.resource).time():
            for _ in request.container_requests:
                answer.container_responses.add()
        return answer

    def _numbered(self) -> list[tuple[str, bool]]:
        """Give ids that stay the same for ever, which kubelet wants (contracts 2.2)."""
        cards = self._most.with_now(len(self.offer.cards().all))
        return [(f"quota-{n:05d}", True) for n in range(cards * CORES_PER_CARD)]
