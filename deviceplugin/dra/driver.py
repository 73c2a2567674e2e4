"""The DRA driver on this node: its sockets, its registration, kubelet's calls.

kubelet finds the registration socket in its folder by itself, also after its restart,
and then connects to the other socket. So there is nothing to register anew as long as
both sockets stay.
"""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Self

import grpc

from deviceplugin.cards.advertised import Offer
from deviceplugin.dra.prepare import ClaimRef, NotPreparedError, Preparer
from deviceplugin.dra.prepared import PreparedClaim
from deviceplugin.dra.slices import (
    NotSharedError,
    SlicePublisher,
    own_slices,
    why_not_served,
)
from deviceplugin.kubelet.registration import look
from deviceplugin.metrics import PluginMetrics
from deviceplugin.threads import Loop, start
from gpushare.domain.model import NodeName
from gpushare.kube.claims.allocated import device_name
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import ClusterError
from gpushare.kube.names import DRA_DRIVER
from gpushare.kube.proto import dra_pb2 as dra
from gpushare.kube.proto import drahealth_pb2 as health
from gpushare.kube.proto import pluginregistration_pb2 as registration
from gpushare.kube.proto.dra_pb2_grpc import (
    DRAPluginServicer,
    add_DRAPluginServicer_to_server,
)
from gpushare.kube.proto.drahealth_pb2_grpc import (
    DRAResourceHealthServicer,
    add_DRAResourceHealthServicer_to_server,
)
from gpushare.kube.proto.pluginregistration_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from gpushare.kube.reflector import Reflector

logger = logging.getLogger(__name__)

SERVICES = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""What the driver serves, in kubelet's words."""
_TYPE = "DRAPlugin"
_THREADS = 16
_AGAIN_S = 60.0
"""How often a driver that is off looks whether it can be on."""
_WAIT_S = 2.0
_LOOK_S = 0.5
_SWEEP_S = 60.0
_HEALTH_LOOK_S = 0.25
_HEALTH_AGAIN_S = 10.0
"""kubelet takes a health that it did not hear for 30 s for unknown."""
_STOP_WITHIN_S = 5.0
_GRACE_S = 0.5


class CannotListenError(Exception):
    """A socket could not be made; ``str()`` says why."""


@dataclass(eq=False)
class Registration(RegistrationServicer):
    """Tells kubelet who the driver is. The methods' names are kubelet's."""

    endpoint: Path
    done: Event
    """Set once kubelet has registered the driver."""

    def GetInfo(  # noqa: N802
        self, request: registration.InfoRequest, context: grpc.ServicerContext
    ) -> registration.PluginInfo:
        """Return where the driver listens; kubelet waits a second for it."""
        del request, context
        return registration.PluginInfo(
            type=_TYPE,
            name=DRA_DRIVER,
            endpoint=str(self.endpoint),
            supported_versions=SERVICES,
        )

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration.RegistrationStatusResponse:
        """Log how it went."""
        del context
        if request.plugin_registered:
            logger.info("registered", extra={"driver": DRA_DRIVER})
            self.done.set()
        else:
            facts = {"driver": DRA_DRIVER, "because": request.error}
            logger.warning("kubelet does not register the DRA driver", extra=facts)
        return registration.RegistrationStatusResponse()


@dataclass(eq=False)
class DraPlugin(DRAPluginServicer, DRAResourceHealthServicer):
    """What kubelet calls for claims and devices; the methods' names are its own."""

    node: NodeName
    offer: Offer
    preparer: Preparer
    metrics: PluginMetrics

    def NodePrepareResources(  # noqa: N802
        self,
        request: dra.NodePrepareResourcesRequest,
        context: grpc.ServicerContext,
    ) -> dra.NodePrepareResourcesResponse:
        """Prepare each claim; kubelet insists on an answer about each."""
        del context
        answer = dra.NodePrepareResourcesResponse()
        for one in request.claims:
            call = "NodePrepareResources"
            with self.metrics.calls.labels(call, DRA_DRIVER).time():
                try:
                    prepared = self.preparer.prepare(_ref(one))
                except NotPreparedError as error:
                    self.metrics.refused.labels(call, DRA_DRIVER).inc()
                    answer.claims[one.uid].error = str(error)
                else:
                    answer.claims[one.uid].CopyFrom(self._answer(prepared))
        return answer

    def NodeUnprepareResources(  # noqa: N802
        self,
        request: dra.NodeUnprepareResourcesRequest,
        context: grpc.ServicerContext,
    ) -> dra.NodeUnprepareResourcesResponse:
        """Take back each claim, also one that is unknown here."""
        del context
        answer = dra.NodeUnprepareResourcesResponse()
        for one in request.claims:
            call = "NodeUnprepareResources"
            with self.metrics.calls.labels(call, DRA_DRIVER).time():
                answer.claims[one.uid].SetInParent()
                try:
                    self.preparer.unprepare(_ref(one))
                except NotPreparedError as error:
                    self.metrics.refused.labels(call, DRA_DRIVER).inc()
                    answer.claims[one.uid].error = str(error)
        return answer

    def NodeWatchResources(  # noqa: N802
        self,
        request: health.NodeWatchResourcesRequest,
        context: grpc.ServicerContext,
    ) -> Iterator[health.NodeWatchResourcesResponse]:
        """Send the health of all cards now, at each change, and every so often."""
        del request
        while context.is_active():
            version, sent_at = self.offer.version, time.monotonic()
            yield self._health()
            while context.is_active():
                if self.offer.wait_for_change(version, _HEALTH_LOOK_S):
                    break
                if time.monotonic() - sent_at >= _HEALTH_AGAIN_S:
                    break

    def _answer(self, prepared: PreparedClaim) -> dra.NodePrepareResourceResponse:
        answer = dra.NodePrepareResourceResponse()
        for one in prepared.devices:
            answer.devices.add(
                request_names=[one.request],
                pool_name=self.node,
                device_name=one.device,
                cdi_device_ids=one.cdi,
                share_id=one.share_id or None,
            )
        return answer

    def _health(self) -> health.NodeWatchResourcesResponse:
        answer, now = health.NodeWatchResourcesResponse(), int(time.time())
        for card in self.offer.cards.all:
            answer.devices.add(
                device=health.DeviceIdentifier(
                    pool_name=self.node, device_name=device_name(card.uuid)
                ),
                health=health.HEALTHY if card.healthy else health.UNHEALTHY,
                last_updated_time=now,
                message="" if card.healthy else card.reason,
            )
        return answer


def _ref(claim: dra.Claim) -> ClaimRef:
    return ClaimRef(claim.namespace, claim.name, claim.uid)


@dataclass
class DraDriver:
    """All of the driver. It is off, and says why, where the API server lacks DRA."""

    plugin: DraPlugin
    publisher: SlicePublisher
    kubelet_dir: Path
    off: str = field(default="", init=False)
    """Why it is off; empty while it is on."""
    registered: Event = field(default_factory=Event, init=False)
    """Set once kubelet has registered the driver."""

    @property
    def socket(self) -> Path:
        """Where kubelet calls the driver."""
        return self.kubelet_dir / "plugins" / DRA_DRIVER / "dra.sock"

    @property
    def registration(self) -> Path:
        """Where kubelet asks who the driver is."""
        return self.kubelet_dir / "plugins_registry" / f"{DRA_DRIVER}-reg.sock"

    def run(self, stop: Event) -> None:
        """Serve until ``stop`` is set, once the API server has what is needed."""
        logged, one = "", self.publisher
        while not stop.is_set():
            wait_s = _AGAIN_S
            try:
                why = why_not_served(one.cluster, one.name)
                why = why or self._run_while_on(stop)
            except ClusterError as error:
                why, wait_s = f"the API server does not answer: {error}", _WAIT_S
            self.off = why
            if why not in ("", logged):
                logger.warning("DRA is off", extra={"because": why})
                logged = why
            stop.wait(wait_s)

    def _run_while_on(self, stop: Event) -> str:
        """Publish and serve; return why that ended, empty for ``stop``."""
        self.off, over, reasons = "", Event(), list[str]()
        self.plugin.preparer.claims.restore()
        publisher = self.publisher
        follow = Reflector(
            publisher.cluster,
            Kind.SLICES,
            publisher,
            field_selector=own_slices(publisher.name),
        )

        def publish(ended: Event) -> None:
            # kubelet looks at a pod that came before its driver a minute later only.
            while not ended.is_set() and not self.registered.wait(_LOOK_S):
                pass
            try:
                publisher.run(ended)
            except NotSharedError as error:
                reasons.append(str(error))

        loops: list[tuple[str, Loop]] = [
            ("follow slices", follow.run),
            ("publish slices", publish),
            ("serve dra", self._serve),
            ("sweep claims", self._sweep),
        ]
        threads = start(loops, over)
        while not stop.wait(_LOOK_S) and all(one.is_alive() for one in threads):
            pass
        over.set()
        for thread in threads:
            if thread.name != "follow slices":
                # A watch ends when the API server says something.
                thread.join(_STOP_WITHIN_S)
        if stop.is_set():
            return ""
        return "; ".join(reasons) or "a thread of the driver ended"

    def _serve(self, stop: Event) -> None:
        """Keep both sockets there until ``stop`` is set."""
        while not stop.is_set():
            try:
                self._serve_once(stop)
            except CannotListenError as error:
                facts = {"because": str(error), "wait_s": _WAIT_S}
                logger.warning("the DRA driver cannot listen", extra=facts)
                stop.wait(_WAIT_S)

    def _serve_once(self, stop: Event) -> None:
        with _Server(self.socket) as server:
            add_DRAPluginServicer_to_server(self.plugin, server.grpc)
            add_DRAResourceHealthServicer_to_server(self.plugin, server.grpc)
            server.start()
            with _Server(self.registration) as registers:
                info = Registration(self.socket, self.registered)
                add_RegistrationServicer_to_server(info, registers.grpc)
                registers.start()
                while not stop.wait(_LOOK_S):
                    if not (server.is_there() and registers.is_there()):
                        logger.info("a socket of the DRA driver was removed")
                        return

    def _sweep(self, stop: Event) -> None:
        while not stop.wait(_SWEEP_S):
            preparer = self.plugin.preparer
            preparer.claims.cut_regions()
            with suppress(ClusterError, NotPreparedError):
                preparer.forget_gone(time.monotonic())


class _Server:
    """A gRPC server on one socket file, which is gone afterwards."""

    def __init__(self, path: Path) -> None:
        self._path = path
        workers = ThreadPoolExecutor(_THREADS, thread_name_prefix=path.name)
        self.grpc = grpc.server(workers)

    def start(self) -> None:
        """Listen; only root, as kubelet is, may connect."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            self.grpc.add_insecure_port(f"unix://{self._path}")
            self.grpc.start()
            self._path.chmod(0o600)
        except (OSError, RuntimeError) as error:
            raise CannotListenError(f"{self._path}: {error}") from error
        self._own = look(self._path)

    def is_there(self) -> bool:
        """Return whether the socket is still the one that was made."""
        return look(self._path) == self._own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # First the file, by which kubelet learns that the driver has ended.
        if self.is_there():
            with suppress(OSError):
                self._path.unlink()
        self.grpc.stop(grace=_GRACE_S).wait(_STOP_WITHIN_S)

    _own: object = None
