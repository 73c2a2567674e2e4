"""The DRA driver on this node: what kubelet calls, and when the driver is on.

A driver that is off, by its setting or because the API server lacks DRA, offers nothing
and prepares nothing. But it still takes claims back where it can: kubelet ends no pod
with a prepared claim before.

kubelet finds the registration socket in its folder by itself, also after its restart,
and then connects to the other socket. So there is nothing to register anew as long as
both sockets stay.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from threading import Event, Thread
from typing import Self

import grpc

from deviceplugin.cards.advertised import Offer
from deviceplugin.dra.checks import NotPreparedError
from deviceplugin.dra.prepare import ResourceClaimPreparer, ResourceClaimRef
from deviceplugin.dra.slices import (
    NotSharedError,
    SlicePublisher,
    own_slices,
    why_not_served,
)
from deviceplugin.dra.sweep import Sweeper
from deviceplugin.kubelet.registration import identify_socket
from deviceplugin.metrics import PluginMetrics
from gpushare.domain.model import NodeName
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.names import DRA_DRIVER
from gpushare.kube.proto import dra_pb2 as dra
from gpushare.kube.proto import drahealth_pb2 as health
from gpushare.kube.proto import pluginregistration_pb2 as registration
from gpushare.kube.reflector import Reflector
from gpushare.kube.resource_claims.allocated import name_device
from gpushare.kubelet.claim_records import PreparedResourceClaim
from gpushare.kubelet.pods import ListedDevices
from gpushare.kubelet.services import (
    DRA_HEALTH,
    DRA_PLUGIN,
    DRIVER_REGISTRATION,
    add_servicer,
)
from gpushare.process import Loop, start_threads

logger = logging.getLogger(__name__)

SERVICES = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""What the driver serves, in kubelet's words."""
_TYPE = "DRAPlugin"
_THREADS = 16
_GRACE_S = 0.5
_AGAIN_S = 60.0
"""How often a driver that is off looks whether it can be on."""
_WAIT_S = 2.0
_LOOK_S = 0.5
_SWEEP_S = 60.0
_HEALTH_LOOK_S = 0.25
_HEALTH_AGAIN_S = 10.0
"""kubelet takes a health that it did not hear for 30 s for unknown."""
_STOP_WITHIN_S = 5.0
_SWITCHED_OFF = "DRA is switched off on this node by GPUSHARE_DRA"
_GONE = "this node has no such card any more"
_NO_CARDS = "no card of this node has been found yet"


@dataclass(eq=False)
class DraPlugin:
    """What kubelet calls for claims and devices; the methods' names are its own."""

    node: NodeName
    offer: Offer
    preparer: ResourceClaimPreparer
    metrics: PluginMetrics
    off: str = ""
    """Why nothing is prepared; empty while the driver is on."""

    def NodePrepareResources(  # noqa: N802
        self, request: dra.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra.NodePrepareResourcesResponse:
        """Prepare each claim; kubelet insists on an answer about each."""
        del context
        answer = dra.NodePrepareResourcesResponse()
        # Once for all: kubelet waits 45 s for the whole answer, and may be slow itself.
        listed = cache(self.preparer.listed)
        for claim in request.claims:
            call = "NodePrepareResources"
            with self.metrics.calls.labels(call, DRA_DRIVER).time():
                try:
                    prepared = self._prepare(_ref(claim), listed)
                except NotPreparedError as error:
                    self.metrics.refused.labels(call, DRA_DRIVER).inc()
                    answer.claims[claim.uid].error = str(error)
                else:
                    answer.claims[claim.uid].CopyFrom(self._answer(prepared))
        return answer

    def NodeUnprepareResources(  # noqa: N802
        self, request: dra.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra.NodeUnprepareResourcesResponse:
        """Take back each claim, also one that is unknown here."""
        del context
        answer = dra.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            call = "NodeUnprepareResources"
            with self.metrics.calls.labels(call, DRA_DRIVER).time():
                answer.claims[claim.uid].SetInParent()
                try:
                    self.preparer.unprepare(_ref(claim))
                except NotPreparedError as error:
                    self.metrics.refused.labels(call, DRA_DRIVER).inc()
                    answer.claims[claim.uid].error = str(error)
        return answer

    def NodeWatchResources(  # noqa: N802
        self, request: health.NodeWatchResourcesRequest, context: grpc.ServicerContext
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

    def _prepare(
        self, ref: ResourceClaimRef, listed: Callable[[], ListedDevices]
    ) -> PreparedResourceClaim:
        if self.off:
            raise NotPreparedError(f"claim {ref} is not prepared: {self.off}")
        return self.preparer.prepare(ref, listed)

    def _answer(
        self, prepared: PreparedResourceClaim
    ) -> dra.NodePrepareResourceResponse:
        answer = dra.NodePrepareResourceResponse()
        for device in prepared.devices:
            answer.devices.add(
                request_names=[device.request],
                pool_name=self.node,
                device_name=device.device,
                cdi_device_ids=device.cdi,
                share_id=device.share_id or None,
            )
        return answer

    def _health(self) -> health.NodeWatchResourcesResponse:
        """Return the health of all cards, and of those that only claims still have.

        kubelet would show what it heard last of a device that is left out.
        """
        cards = self.offer.cards.all
        states = {
            name_device(card.uuid): (
                health.HEALTHY if card.healthy else health.UNHEALTHY,
                "" if card.healthy else card.reason,
            )
            for card in cards
        }
        gone = (health.UNHEALTHY, _GONE) if cards else (health.UNKNOWN, _NO_CARDS)
        for claim in self.preparer.claims.all():
            for device in claim.devices:
                states.setdefault(device.device, gone)
        answer, now = health.NodeWatchResourcesResponse(), int(time.time())
        for name, (state, why) in states.items():
            answer.devices.add(
                device=health.DeviceIdentifier(pool_name=self.node, device_name=name),
                health=state,
                last_updated_time=now,
                message=why,
            )
        return answer


class CannotListenError(Exception):
    """A socket could not be made; ``str()`` says why."""


@dataclass(frozen=True)
class DriverSockets:
    """Both sockets, in kubelet's folder. ``add_services`` adds what is called there."""

    kubelet_dir: Path
    add_services: Callable[[grpc.Server], None]
    registered: Event = field(default_factory=Event)
    """Set once kubelet has registered the driver."""

    @property
    def endpoint(self) -> Path:
        """Where kubelet calls the driver."""
        return self.kubelet_dir / "plugins" / DRA_DRIVER / "dra.sock"

    @property
    def registration(self) -> Path:
        """Where kubelet asks who the driver is."""
        return self.kubelet_dir / "plugins_registry" / f"{DRA_DRIVER}-reg.sock"

    def have_folders(self) -> bool:
        """Return whether both folders are there, as on a node with DRA on."""
        return all(
            socket.parent.is_dir() for socket in (self.endpoint, self.registration)
        )

    def serve(self, stop: Event, wanted: Callable[[], bool]) -> None:
        """Keep both sockets there while they are wanted, until ``stop`` is set."""
        while not stop.is_set():
            if not wanted():
                stop.wait(_LOOK_S)
                continue
            try:
                self._serve_once(stop, wanted)
            except CannotListenError as error:
                facts = {"because": str(error), "wait_s": _WAIT_S}
                logger.warning("the DRA driver cannot listen", extra=facts)
                stop.wait(_WAIT_S)

    def _serve_once(self, stop: Event, wanted: Callable[[], bool]) -> None:
        with _Server(self.endpoint) as server:
            self.add_services(server.grpc)
            server.start()
            with _Server(self.registration) as registers:
                info = _Registration(self.endpoint, self.registered)
                add_servicer(registers.grpc, DRIVER_REGISTRATION, info)
                registers.start()
                while not stop.wait(_LOOK_S) and wanted():
                    if not (server.is_there() and registers.is_there()):
                        logger.info("a socket of the DRA driver was removed")
                        return


@dataclass(eq=False)
class _Registration:
    """Tells kubelet who the driver is. The methods' names are kubelet's."""

    endpoint: Path
    done: Event

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


class _Server:
    """A gRPC server on one socket file, which is gone afterwards.

    It listens under another name first, because gRPC removes the file of that name when
    it stops: of two plugins the older one would remove the newer one's. kubelet heeds
    no file whose name begins with a dot.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        workers = ThreadPoolExecutor(_THREADS, thread_name_prefix=path.name)
        self.grpc = grpc.server(workers)

    def start(self) -> None:
        """Listen; only root, as kubelet is, may connect."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            hidden = self._path.with_name(f".{self._path.name}")
            hidden.unlink(missing_ok=True)
            self.grpc.add_insecure_port(f"unix://{hidden}")
            self.grpc.start()
            hidden.chmod(0o600)
            hidden.replace(self._path)
        except (OSError, RuntimeError) as error:
            raise CannotListenError(f"{self._path}: {error}") from error
        self._own = identify_socket(self._path)

    def is_there(self) -> bool:
        """Return whether the socket is still the one that was made."""
        return identify_socket(self._path) == self._own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # First the file, by which kubelet learns that the driver has ended.
        if self.is_there():
            with suppress(OSError):
                self._path.unlink()
        self.grpc.stop(grace=_GRACE_S).wait(_STOP_WITHIN_S)

    _own: object = None


def _are_alive(threads: Iterable[Thread]) -> bool:
    return all(thread.is_alive() for thread in threads)


def _ref(claim: dra.Claim) -> ResourceClaimRef:
    return ResourceClaimRef(claim.namespace, claim.name, claim.uid)


class DraDriver:
    """All of the driver. ``wanted``: whether it is to be on.

    It is off where the API server lacks DRA, too, and says why. ``synced`` is set once
    the API server has told of all pods of the node.
    """

    def __init__(
        self,
        plugin: DraPlugin,
        publisher: SlicePublisher,
        kubelet_dir: Path,
        synced: Event,
        *,
        wanted: bool,
    ) -> None:
        self.plugin = plugin
        self.publisher = publisher
        self.wanted = wanted
        self.synced = synced
        self.sockets = DriverSockets(kubelet_dir, self._add_services)
        self.sweeper = Sweeper(plugin.preparer)
        self.cards_read = Event()
        """Set once the cards were read, and how they are given to containers."""
        self.plugin.off = _NO_CARDS if wanted else _SWITCHED_OFF
        self._logged = ""
        self._threads: list[Thread] = []

    @property
    def off(self) -> str:
        """Why it is off; empty while it is on."""
        return self.plugin.off

    def run(self, stop: Event) -> None:
        """Serve until ``stop`` is set; it ends earlier if a thread of it has ended."""
        over = Event()
        loops: list[tuple[str, Loop]] = [
            ("dra sockets", partial(self.sockets.serve, wanted=self._is_needed)),
            ("sweep claims", self._sweep),
        ]
        self._threads = start_threads(loops, over)
        while not stop.is_set() and _are_alive(self._threads):
            wait_s = self._run_once(stop) if self.wanted else self._withdraw()
            self._log_why_off()
            until = time.monotonic() + wait_s
            while time.monotonic() < until and not stop.wait(_LOOK_S):
                if not _are_alive(self._threads):
                    break
        over.set()
        for thread in self._threads:
            thread.join(_STOP_WITHIN_S)

    def _add_services(self, server: grpc.Server) -> None:
        add_servicer(server, DRA_PLUGIN, self.plugin)
        add_servicer(server, DRA_HEALTH, self.plugin)

    def _is_needed(self) -> bool:
        """Return whether kubelet is to find the driver.

        While it is off, to take claims back. With ``GPUSHARE_DRA=off`` also without
        prepared claims, where its folders tell that it was on: kubelet wants those
        taken back, too, that were refused.
        """
        if not self.off:
            return True
        claims = self.plugin.preparer.claims
        return self.sockets.have_folders() and (not self.wanted or claims.are_left())

    def _log_why_off(self) -> None:
        if self.wanted and self.off not in ("", _NO_CARDS, self._logged):
            self._logged = self.off
            logger.warning("DRA is off", extra={"because": self.off})
        stuck = not self.wanted and self.plugin.preparer.claims.are_left()
        if stuck and not self.sockets.have_folders() and self._logged != self.off:
            self._logged = self.off
            facts = {"because": f"{_SWITCHED_OFF}, and its folders are not mounted"}
            message = "prepared claims are left, and kubelet cannot end their pods"
            logger.warning(message, extra=facts)

    def _withdraw(self) -> float:
        """Offer nothing any more: kubelet leaves the slices of a driver that it finds.

        Return when to try again.
        """
        if self.sockets.have_folders():
            try:
                self.publisher.withdraw()
            except NotFound:
                # Where the API server has no such objects there are none of ours.
                pass
            except ClusterError as error:
                if self._logged != str(error):
                    facts = {"because": str(error), "wait_s": _AGAIN_S}
                    logger.warning("resource slices not removed", extra=facts)
                self._logged = str(error)
        return _AGAIN_S

    def _run_once(self, stop: Event) -> float:
        """Offer the cards while that can be done; return when to try again."""
        while not self.cards_read.wait(_LOOK_S):
            if stop.is_set() or not _are_alive(self._threads):
                return 0.0
        publisher, node = self.publisher, self.publisher.node
        if not node.exists():
            # It tells what the runtime can do.
            self.plugin.off = _NO_CARDS
            return _WAIT_S
        try:
            self.plugin.off = why_not_served(node.cluster, node.name)
            if not self.off and (
                why := self.plugin.preparer.setup.injection.why_unread()
            ):
                self.plugin.off = why
                publisher.withdraw()
            if not self.off:
                self.plugin.off = self._offer(stop)
        except ClusterError as error:
            self.plugin.off = f"the API server does not answer: {error}"
            return _WAIT_S
        return _AGAIN_S

    def _offer(self, stop: Event) -> str:
        """Publish slices; return why that ended, empty for ``stop``."""
        over, reasons, publisher = Event(), list[str](), self.publisher
        node = publisher.node
        follow = Reflector(
            node.cluster,
            Kind.SLICES,
            publisher,
            field_selector=own_slices(node.name),
        )

        def publish(ended: Event) -> None:
            # kubelet looks at a pod that came before its driver a minute later only.
            registered = self.sockets.registered
            while not ended.is_set() and not registered.wait(_LOOK_S):
                pass
            try:
                publisher.run(ended)
            except NotSharedError as error:
                reasons.append(str(error))

        loops: list[tuple[str, Loop]] = [
            ("follow slices", follow.run),
            ("publish slices", publish),
        ]
        threads = start_threads(loops, over)
        while not stop.wait(_LOOK_S) and _are_alive([*threads, *self._threads]):
            pass
        over.set()
        # A watch ends when the API server says something.
        threads[1].join(_STOP_WITHIN_S)
        if stop.is_set():
            return ""
        return "; ".join(reasons) or "a thread of the driver ended"

    def _sweep(self, stop: Event) -> None:
        """Keep what claims have on disk right, and forget what is for nobody."""
        claims, sweeper, is_clean = self.plugin.preparer.claims, self.sweeper, False
        while True:
            if self.wanted or self.sockets.have_folders():
                with self.plugin.preparer.occupancy.room_lock:
                    claims.restore()
            if not (self.wanted or is_clean or claims.are_left()):
                # Once: without DRA the folder may be read-only.
                claims.remove_stale()
                is_clean = True
            is_first = self.wanted and not sweeper.has_adopted
            if stop.wait(_LOOK_S if is_first else _SWEEP_S):
                return
            with suppress(ClusterError, NotPreparedError):
                if self.wanted and self.cards_read.is_set() and self.synced.is_set():
                    sweeper.adopt()
                    sweeper.repair()
                sweeper.forget_gone(time.monotonic())
