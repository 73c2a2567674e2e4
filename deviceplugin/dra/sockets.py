"""The sockets by which kubelet finds a DRA driver, and calls it.

kubelet finds the registration socket in its folder by itself, also after its restart,
and then connects to the other socket. So there is nothing to register anew as long as
both sockets stay.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Self

import grpc

from deviceplugin.kubelet.registration import identify_socket
from gpushare.kube.names import DRA_DRIVER
from gpushare.kube.proto import pluginregistration_pb2 as registration
from gpushare.kubelet.services import DRIVER_REGISTRATION, add_servicer

logger = logging.getLogger(__name__)

SERVICES = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""What the driver serves, in kubelet's words."""
_TYPE = "DRAPlugin"
_THREADS = 16
_WAIT_S = 2.0
_LOOK_S = 0.5
_STOP_WITHIN_S = 5.0
_GRACE_S = 0.5


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
