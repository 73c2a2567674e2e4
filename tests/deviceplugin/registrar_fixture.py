"""A registrar at kubelet's socket, with a count of its streams."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, cast

import grpc
import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.cards.advertised import Offer
from deviceplugin.kubelet.plugin import DevicePlugin, Parts
from deviceplugin.kubelet.registration import Registrar
from deviceplugin.metrics import PluginMetrics
from gpushare.kube import names
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kube.proto.deviceplugin_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from gpusharectl.demo.devices import Devices
from tests.deviceplugin.node_fixture import HASTY, found_card
from tests.testbed.waiting import wait_until

M = names.MEMORY
SOCKET = "baidu.com_vcuda-memory.sock"


class Streams:
    """Counts the open ListAndWatch streams, as the real one does, and the most."""

    def __init__(self, real: Any) -> None:
        self._real, self._lock = real, Lock()
        self.open = self.most = self.ever = 0

    def opened(self, by: int) -> None:
        with self._lock:
            self.open += by
            self.ever += max(by, 0)
            self.most = max(self.most, self.open)
        self._real.opened(by)

    def wait_for(self, **how: Any) -> bool:
        return bool(self._real.wait_for(**how))


class RegistrarFixture:
    """A registrar for memory alone, with a card, over a folder of kubelet's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plugins = folder / "device-plugins"
        self.devices = Devices(folder)
        self.offer = Offer(0)
        self.offer.set_found([found_card(0)])
        self.registry = CollectorRegistry()
        metrics = PluginMetrics(self.registry)
        nobody = cast("Any", None)
        parts = Parts(self.offer, nobody, nobody, nobody, lambda: "env", metrics, HASTY)
        plugin = DevicePlugin(M, parts)
        plugin.streams = self.streams = cast("Any", Streams(plugin.streams))
        self.registrar = Registrar(plugin, self.plugins, metrics)
        self.stop = Event()
        self.thread = Thread(target=self.registrar.run, args=(self.stop,))

    def value(self, name: str) -> float:
        found = self.registry.get_sample_value(name, {"resource": M})
        return found or 0.0

    def times(self) -> int:
        return int(self.value("vcuda_plugin_registrations_total"))

    def wait_times(self, times: int, devices: Devices) -> None:
        wait_until(
            lambda: self.times() >= times and devices.allocatable().get(M) == 29,
            f"registration {times}",
            every_s=0.01,
        )


@contextmanager
def running(registrar: RegistrarFixture) -> Iterator[RegistrarFixture]:
    registrar.thread.start()
    try:
        yield registrar
    finally:
        registrar.stop.set()
        registrar.thread.join(30)
        assert not registrar.thread.is_alive()


def because(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [
        one.because  # type: ignore[attr-defined]
        for one in caplog.records
        if one.message == words
    ]


class Refusing(RegistrationServicer):
    """A kubelet that takes nobody, or never listens to whom it took."""

    def __init__(self, words: str = "") -> None:
        self.words = words
        self.asked: list[pb.RegisterRequest] = []

    def Register(  # noqa: N802
        self, request: pb.RegisterRequest, context: grpc.ServicerContext
    ) -> pb.Empty:
        self.asked.append(request)
        if self.words:
            context.abort(grpc.StatusCode.UNKNOWN, self.words)
        return pb.Empty()


@contextmanager
def stand_in(registrar: RegistrarFixture, servicer: Refusing) -> Iterator[Refusing]:
    registrar.plugins.mkdir(exist_ok=True)
    server = grpc.server(ThreadPoolExecutor(2))
    add_RegistrationServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{registrar.plugins / 'kubelet.sock'}")
    server.start()
    try:
        yield servicer
    finally:
        server.stop(None).wait()
