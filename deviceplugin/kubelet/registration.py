"""One resource's server on its own socket, and its registration with kubelet.

kubelet has forgotten a registration if kubelet.sock was created again, if the plugin's
own socket is gone, or if no ListAndWatch stream is open (contracts 2.1). A resource is
never registered twice at once: kubelet would drop the newer registration when the older
one ends (contracts 2.7).
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import grpc

from deviceplugin.cards.advertised import Offer
from deviceplugin.metrics import PluginMetrics
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kubelet.services import (
    DEVICE_PLUGIN,
    REGISTRATION,
    add_servicer,
    make_stub,
)

logger = logging.getLogger(__name__)

VERSION = "v1beta1"
_SOCKET = "kubelet.sock"
_STREAM_WITHIN_S = 5.0
_REGISTER_WITHIN_S = 15.0
"""kubelet connects to the plugin, for 10 s at most, before it answers."""
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 3.0
_SETTLE_S = 1.0
"""How long kubelet gets to notice that a stream has ended."""
_STOP_WITHIN_S = 5.0
_STREAM_LOOK_S = 0.25
"""How long a stream waits for a change of the cards before it looks for kubelet."""
_SOCKETS_LOOK_S = 0.5
_GRACE_S = 0.5
"""For calls that run when a server is stopped."""
_THREADS = 32
"""PreStartContainer uses at most half of them; kubelet's loop waits for the others."""
_MESSAGE = ("grpc.max_receive_message_length", 64 << 20)
HEALTHY = "Healthy"
SICK = "Unhealthy"


class Streams:
    """Counts the open ListAndWatch streams of one resource."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = 0

    def opened(self, by: int) -> None:
        """Count a stream that was opened (1) or closed (-1)."""
        with self._changed:
            self._open += by
            self._changed.notify_all()

    def any(self) -> bool:
        """Return whether a stream is open: kubelet has the devices."""
        return self.wait_for(some=True, timeout_s=0)

    def wait_for(self, *, some: bool, timeout_s: float) -> bool:
        """Wait until a stream is open, or none is; return whether that happened."""
        with self._changed:
            return self._changed.wait_for(lambda: (self._open > 0) == some, timeout_s)


@dataclass(eq=False)
class Service:
    """What the services of all resources have in common: options and ListAndWatch.

    ``devices`` returns the device ids, each with whether it is healthy; it is called
    again after each change of the offer. The methods' names are kubelet's.
    """

    resource: str
    devices: Callable[[], Sequence[tuple[str, bool]]]
    offer: Offer
    options: pb.DevicePluginOptions
    streams: Streams = field(default_factory=Streams)

    def GetDevicePluginOptions(  # noqa: N802
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> pb.DevicePluginOptions:
        """Return the calls that kubelet is to make."""
        del request, context
        return self.options

    def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> Iterator[pb.ListAndWatchResponse]:
        """Send all devices, and again whenever the health of a card changes."""
        del request
        self.streams.opened(1)
        try:
            shown: Sequence[tuple[str, bool]] | None = None
            while context.is_active():
                version = self.offer.version
                devices = self.devices()
                if devices != shown:
                    shown = devices
                    yield _listed(devices)
                while context.is_active():
                    if self.offer.wait_for_change(version, _STREAM_LOOK_S):
                        break
        finally:
            self.streams.opened(-1)


def _listed(devices: Sequence[tuple[str, bool]]) -> pb.ListAndWatchResponse:
    answer = pb.ListAndWatchResponse()
    for name, healthy in devices:
        answer.devices.add(ID=name, health=HEALTHY if healthy else SICK)
    return answer


class NotRegisteredError(Exception):
    """kubelet did not accept the registration; ``str()`` is its answer."""


SocketIdentity = tuple[int, int]
"""A socket file at one moment: its inode and when it was made."""


@dataclass(frozen=True)
class Registrar:
    """Serves one resource and keeps it registered until it is stopped."""

    plugin: Service
    folder: Path
    """kubelet's folder of sockets."""
    metrics: PluginMetrics

    @property
    def _endpoint(self) -> str:
        return self.plugin.resource.replace("/", "_") + ".sock"

    def run(self, stop: Event) -> None:
        """Serve, register, wait for the end, and begin again, until ``stop`` is set."""
        wait_s = _FIRST_WAIT_S
        while not stop.is_set():
            try:
                self._serve_once(stop)
                wait_s = _FIRST_WAIT_S
            except NotRegisteredError as error:
                facts = {
                    "resource": self.plugin.resource,
                    "because": str(error),
                    "wait_s": wait_s,
                }
                logger.warning("not registered with kubelet", extra=facts)
                stop.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _serve_once(self, stop: Event) -> None:
        if identify_socket(self.folder / _SOCKET) is None:
            raise NotRegisteredError(f"there is no {self.folder / _SOCKET}")
        server = self._listen()
        plugin_socket = identify_socket(self.folder / self._endpoint)
        registered = self.metrics.registered.labels(self.plugin.resource)
        try:
            self._register()
            registered.set(1)
            # Not before: a kubelet that started meanwhile is the one that has answered,
            # and has no devices while it is registered with anew. One that has ended
            # since is known by its stream.
            kubelet = identify_socket(self.folder / _SOCKET)
            why = self._watch(stop, kubelet, plugin_socket)
            facts = {"resource": self.plugin.resource, "because": why}
            logger.info("registration ended", extra=facts)
        finally:
            registered.set(0)
            self._hang_up(server, stop)

    def _listen(self) -> grpc.Server:
        path = self.folder / self._endpoint
        server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix=self._endpoint),
            options=(_MESSAGE,),
        )
        add_servicer(server, DEVICE_PLUGIN, self.plugin)
        try:
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix://{path}")
            server.start()
            # Only kubelet, which is root, may connect. A kubelet that starts just now
            # may have removed it already.
            path.chmod(0o600)
        except (OSError, RuntimeError) as error:
            server.stop(grace=None)
            raise NotRegisteredError(f"cannot listen on {path}: {error}") from error
        return server

    def _register(self) -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)
        where = f"unix://{self.folder / _SOCKET}"
        with grpc.insecure_channel(where, options=options) as channel:
            try:
                make_stub(channel, REGISTRATION).Register(
                    pb.RegisterRequest(
                        version=VERSION,
                        endpoint=self._endpoint,
                        resource_name=self.plugin.resource,
                        options=self.plugin.options,
                    ),
                    timeout=_REGISTER_WITHIN_S,
                )
            except grpc.RpcError as error:
                text = f"{error.code().name}: {error.details()}"
                raise NotRegisteredError(text) from error
        self.metrics.registrations.labels(self.plugin.resource).inc()
        logger.info("registered", extra={"resource": self.plugin.resource})

    def _watch(
        self,
        stop: Event,
        kubelet: SocketIdentity | None,
        plugin_socket: SocketIdentity | None,
    ) -> str:
        if not self.plugin.streams.wait_for(some=True, timeout_s=_STREAM_WITHIN_S):
            return "kubelet does not listen"
        while not stop.is_set():
            if self.plugin.streams.wait_for(some=False, timeout_s=_SOCKETS_LOOK_S):
                return "the stream ended"
            if identify_socket(self.folder / _SOCKET) != kubelet:
                return "kubelet.sock was created again"
            if identify_socket(self.folder / self._endpoint) != plugin_socket:
                return "the plugin's socket was removed"
        return "the plugin is stopping"

    def _hang_up(self, server: grpc.Server, stop: Event) -> None:
        """End the server and its streams, and let kubelet notice that they ended."""
        server.stop(grace=_GRACE_S).wait(_STOP_WITHIN_S)
        self.plugin.streams.wait_for(some=False, timeout_s=_STOP_WITHIN_S)
        with contextlib.suppress(FileNotFoundError):
            (self.folder / self._endpoint).unlink()
        stop.wait(_SETTLE_S)


def identify_socket(path: Path) -> SocketIdentity | None:
    """Return a socket file as it is now; None if there is none.

    Another file of the same name differs.
    """
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns
