"""What kubelet listens to: the devices of one resource, told again when they change."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc

from deviceplugin.offer import Offer
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kube.proto.deviceplugin_pb2_grpc import DevicePluginServicer

HEALTHY = "Healthy"
SICK = "Unhealthy"
_LOOK_S = 0.25
"""How often a stream looks whether kubelet still listens."""


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


@dataclass(eq=False)
class Service(DevicePluginServicer):
    """One resource's service, as far as all are alike: options and lists.

    ``devices`` gives the ids that are told, each with whether it is healthy; it is
    asked again after each change of the offer. The methods' names are kubelet's.
    """

    resource: str
    devices: Callable[[], Sequence[tuple[str, bool]]]
    offer: Offer
    options: pb.DevicePluginOptions
    streams: Streams = field(default_factory=Streams)

    def GetDevicePluginOptions(  # noqa: N802
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> pb.DevicePluginOptions:
        """Tell kubelet which calls to make."""
        del request, context
        return self.options

    def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> Iterator[pb.ListAndWatchResponse]:
        """Give all devices, and again whenever a card falls sick or is well again."""
        del request
        self.streams.opened(1)
        try:
            shown: Sequence[tuple[str, bool]] | None = None
            while context.is_active():
                version = self.offer.version()
                devices = self.devices()
                if devices != shown:
                    shown = devices
                    yield _listed(devices)
                while context.is_active():
                    if self.offer.wait_for_change(version, _LOOK_S):
                        break
        finally:
            self.streams.opened(-1)


def _listed(devices: Sequence[tuple[str, bool]]) -> pb.ListAndWatchResponse:
    answer = pb.ListAndWatchResponse()
    for name, healthy in devices:
        answer.devices.add(ID=name, health=HEALTHY if healthy else SICK)
    return answer
