"""The DevicePlugin services that kubelet calls: cores, memory and the Bitfusion quota.

``bitfusion.io/gpu`` is offered so that quotas can go on counting it; it does nothing. A
pod that was written for Bitfusion may keep it beside its real request
(``docs/bitfusion.md``). kubelet must know the resource, else no node accepts the pod.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from deviceplugin.allocation.device_chooser import (
    Assignment,
    DeniedError,
    DeviceChooser,
    DeviceQuestion,
)
from deviceplugin.allocation.injection import CardSetup
from deviceplugin.allocation.prestart import NotYetError, PreStart
from deviceplugin.allocation.records import AllocationRecord, AllocationRecords
from deviceplugin.cards.advertised import Offer
from deviceplugin.kubelet.registration import Service
from deviceplugin.metrics import PluginMetrics
from gpushare.domain.model import CORES_PER_CARD
from gpushare.files import replace_file
from gpushare.kube import names
from gpushare.kube.proto import deviceplugin_pb2 as pb

logger = logging.getLogger(__name__)

_STARTING_AT_ONCE = 16
_OPTIONS = pb.DevicePluginOptions(
    pre_start_required=True, get_preferred_allocation_available=True
)


@dataclass(frozen=True, slots=True)
class AllocationParts:
    """What the services of all resources share."""

    offer: Offer
    device_chooser: DeviceChooser
    prestart: PreStart
    records: AllocationRecords
    setup: CardSetup
    metrics: PluginMetrics


class DevicePlugin(Service):
    """One resource's service; the methods' names are kubelet's.

    Each call works on one snapshot of the cards.
    """

    def __init__(self, resource: str, parts: AllocationParts) -> None:
        devices = partial(parts.offer.devices, resource)
        super().__init__(resource, devices, parts.offer, _OPTIONS)
        self._starting = threading.BoundedSemaphore(_STARTING_AT_ONCE)
        self._parts = parts

    def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> pb.PreferredAllocationResponse:
        """Choose ids of the card that was chosen for the pod being admitted."""
        answer = pb.PreferredAllocationResponse()
        with self._answering("GetPreferredAllocation", context):
            cards = self.offer.cards
            for container in request.container_requests:
                question = DeviceQuestion(
                    cards,
                    self.resource,
                    container.available_deviceIDs,
                    container.must_include_deviceIDs,
                    container.allocation_size,
                )
                chosen = self._parts.device_chooser.prefer(question)
                answer.container_responses.add(deviceIDs=chosen)
        return answer

    def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        """Return what the container needs for the card of these ids; makes no calls."""
        answer = pb.AllocateResponse()
        with self._answering("Allocate", context):
            cards = self.offer.cards
            for container in request.container_requests:
                ids = list(container.devices_ids)
                assigned = self._parts.device_chooser.allocate(
                    cards, self.resource, ids
                )
                answer.container_responses.append(self._setup(assigned, ids))
        return answer

    def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        """Let the container start if its devices are those that it should have."""
        with self._answering("PreStartContainer", context):
            if not self._starting.acquire(blocking=False):
                # It may wait for the API server; kubelet's admissions must not.
                raise NotYetError("busy with other containers; ask again")
            try:
                ids = list(request.devices_ids)
                self._parts.prestart.let_start(self.offer.cards, self.resource, ids)
            finally:
                self._starting.release()
        return pb.PreStartContainerResponse()

    @contextmanager
    def _answering(self, call: str, context: grpc.ServicerContext) -> Iterator[None]:
        metrics = self._parts.metrics
        with metrics.calls.labels(call, self.resource).time():
            try:
                yield
            except (DeniedError, NotYetError) as error:
                metrics.refused.labels(call, self.resource).inc()
                logger.warning("refused", extra={"call": call, "because": str(error)})
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    def _setup(
        self, assigned: Assignment, ids: list[str]
    ) -> pb.ContainerAllocateResponse:
        setup, records = self._parts.setup, self._parts.records
        if wrong := setup.why_refused(assigned.cards):
            raise DeniedError(wrong)
        limit = setup.isolation.limit(assigned.limited_units)
        pod, container, cards = assigned.pod, assigned.container, assigned.cards
        record = AllocationRecord(
            *pod, assigned.uid, container, self.resource, tuple(sorted(ids))
        )
        facts: dict[str, object] = {
            "pod": "/".join(pod),
            "container": container,
            "resource": self.resource,
            "count": len(ids),
            "cards": ",".join(card.uuid for card in cards),
        }
        if limit is not None:
            facts |= {"isolation": limit.tier, "limit_mib": limit.mib}
        logger.info("allocated", extra=facts)
        try:
            records.write(record, limit)
        except OSError as error:
            # Failing here would end the pod for good; PreStartContainer tries again.
            facts |= {"because": str(error)}
            logger.warning("allocation not written down", extra=facts)
        folder = records.folder(record)
        return setup.answer(self.resource, len(ids), cards, limit, folder)


_MOST = 1000
"""More cards than this in the file are taken for a damaged file."""


class CardCountFile:
    """The highest number of cards that this node ever had, kept over restarts.

    kubelet rejects a pod whose devices are not offered any more, as after a reboot that
    one card of two did not survive. Quota devices belong to no card, so the pod may be
    on the other card.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._most = self._read()

    def with_now(self, cards: int) -> int:
        """Return the highest number, this one included; write it if it has grown."""
        with self._lock:
            if cards > self._most:
                self._most = cards
                self._write()
            return self._most

    def _read(self) -> int:
        try:
            text = self._path.read_text(encoding="ascii").strip()
            if text.isdigit() and len(text) <= len(f"{_MOST}") and int(text) <= _MOST:
                return int(text)
            self._warn(f"it does not hold a number up to {_MOST}")
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            self._warn(str(error))
        return 0

    def _write(self) -> None:
        try:
            replace_file(self._path, f"{self._most}\n")
        except OSError as error:
            self._warn(str(error))

    def _warn(self, because: str) -> None:
        logger.warning(
            "the highest number of cards cannot be kept; after a restart it is counted "
            "anew",
            extra={"file": str(self._path), "because": because},
        )


class QuotaPlugin(Service):
    """100 devices for each card that the node has or had; all are always healthy.

    kubelet chooses among them at random, so a pod's quota devices say nothing about its
    card: if some became unhealthy with a card, kubelet would reject pods of other cards
    at its next restart. That a sick card takes no pods follows from its core devices.
    """

    def __init__(
        self, offer: Offer, most: CardCountFile, metrics: PluginMetrics
    ) -> None:
        # Neither of the other two calls: kubelet may choose as it likes.
        plain = pb.DevicePluginOptions()
        super().__init__(names.BITFUSION_GPU, self._numbered, offer, plain)
        self._most = most
        self._metrics = metrics

    def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        """Return nothing: ``baidu.com/vcuda-*`` in the same request brings the card."""
        del context
        answer = pb.AllocateResponse()
        with self._metrics.calls.labels("Allocate", self.resource).time():
            for _ in request.container_requests:
                answer.container_responses.add()
        return answer

    def _numbered(self) -> list[tuple[str, bool]]:
        """Return ids that never change, as kubelet requires (contracts 2.2)."""
        cards = self._most.with_now(len(self.offer.cards.all))
        return [(f"quota-{n:05d}", True) for n in range(cards * CORES_PER_CARD)]
