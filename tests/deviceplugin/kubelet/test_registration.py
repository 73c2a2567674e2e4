"""Registration with kubelet: again whenever it is lost, and never twice at once."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, cast

import grpc
import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.cards.advertised import Offer
from deviceplugin.kubelet import registration
from deviceplugin.kubelet.plugin import AllocationParts, DevicePlugin
from deviceplugin.kubelet.registration import Registrar
from deviceplugin.metrics import PluginMetrics
from gpushare.kube import names
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kubelet.services import REGISTRATION, add_servicer
from gpusharectl.demo.devices import Devices
from tests.deviceplugin.node_fixture import because, found_card, hasten
from tests.testbed.waiting import wait_until

M = names.MEMORY
SOCKET = "baidu.com_vcuda-memory.sock"


class Streams:
    """Counts the open ListAndWatch streams, as the real one does, and the most."""

    def __init__(self, real: Any) -> None:
        self._real, self._lock = real, Lock()
        self.open = self.most = 0

    def opened(self, by: int) -> None:
        with self._lock:
            self.open += by
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
        parts = AllocationParts(self.offer, *[nobody] * 4, metrics)
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


class Refusing:
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
    add_servicer(server, REGISTRATION, servicer)
    server.add_insecure_port(f"unix:{registrar.plugins / 'kubelet.sock'}")
    server.start()
    try:
        yield servicer
    finally:
        server.stop(None).wait()


@pytest.fixture
def registrar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> RegistrarFixture:
    """With less patience than it has in earnest."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(registration, "_FIRST_WAIT_S", 0.05)
    hasten(monkeypatch)
    return RegistrarFixture(tmp_path)


def remove_our_socket(registrar: RegistrarFixture) -> None:
    (registrar.plugins / SOCKET).unlink()


def make_kubelets_socket_anew(registrar: RegistrarFixture) -> None:
    """As a kubelet that starts while the streams of its forerunner still hang."""
    path = registrar.plugins / "kubelet.sock"
    path.rename(registrar.plugins / "before")
    path.hardlink_to(registrar.plugins / "before")
    (registrar.plugins / "before").unlink()


def end_the_stream(registrar: RegistrarFixture) -> None:
    for endpoint, _ in registrar.devices._registry._followed:
        endpoint.close()


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        (remove_our_socket, "the plugin's socket was removed"),
        (make_kubelets_socket_anew, "kubelet.sock was created again"),
        (end_the_stream, "the stream ended"),
    ],
)
def test_registered_again(
    registrar: RegistrarFixture,
    trouble: Callable[[RegistrarFixture], None],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with registrar.devices as devices, running(registrar):
        registrar.wait_times(1, devices)
        wait_until(lambda: registrar.streams.open == 1, "its stream")
        trouble(registrar)
        registrar.wait_times(2, devices)
        wait_until(lambda: registrar.streams.open == 1, "its stream")
        assert (registrar.plugins / SOCKET).stat().st_mode & 0o777 == 0o600
        # It is counted a moment before.
        wait_until(lambda: registrar.value("vcuda_plugin_registered") == 1, "the word")
    assert not (registrar.plugins / SOCKET).exists()
    assert registrar.value("vcuda_plugin_registered") == 0
    assert because(caplog, "registration ended") == [why, "the plugin is stopping"]
    assert registrar.streams.most == 1
    assert registrar.times() == 2


def test_a_kubelet_that_starts_while_the_plugin_begins_to_listen(
    registrar: RegistrarFixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is registered with once: pods that come meanwhile would find no devices."""
    listen = Registrar._listen

    def late(self: Registrar) -> grpc.Server:
        make_kubelets_socket_anew(registrar)
        return listen(self)

    monkeypatch.setattr(Registrar, "_listen", late)
    monkeypatch.setattr(registration, "_SOCKETS_LOOK_S", 0.01)
    looks: list[bool] = []
    wait_for = registrar.streams.wait_for

    def counted(**how: Any) -> bool:
        looks.append(True)
        return wait_for(**how)

    monkeypatch.setattr(registrar.streams, "wait_for", counted)
    with registrar.devices as devices, running(registrar):
        registrar.wait_times(1, devices)
        wait_until(lambda: len(looks) > 4 or registrar.times() > 1, "some looks")
    assert because(caplog, "registration ended") == ["the plugin is stopping"]
    assert registrar.times() == 1


def test_kubelets_restart(registrar: RegistrarFixture) -> None:
    """It removes all sockets and forgets all plugins; its folder stays."""
    with running(registrar):
        for times in (1, 2):
            with Devices(registrar.folder) as devices:
                registrar.wait_times(times, devices)
    assert registrar.streams.most == 1


def test_kubelet_comes_later(
    registrar: RegistrarFixture, caplog: pytest.LogCaptureFixture
) -> None:
    with running(registrar):
        wait_until(lambda: caplog.records, "a word")
        with Devices(registrar.folder) as devices:
            registrar.wait_times(1, devices)
    words = because(caplog, "not registered with kubelet")
    assert words[0] == f"there is no {registrar.plugins / 'kubelet.sock'}"


def test_register_refused(
    registrar: RegistrarFixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(registration, "_SETTLE_S", 0.01)
    with stand_in(registrar, Refusing("not today")) as asked, running(registrar):
        wait_until(lambda: len(asked.asked) >= 3, "three tries", every_s=0.01)
    assert because(caplog, "not registered with kubelet")[0] == "UNKNOWN: not today"
    waits = [line.wait_s for line in caplog.records if hasattr(line, "wait_s")]
    assert waits[:3] == [0.05, 0.1, 0.2]
    assert registrar.times() == 0
    assert not (registrar.plugins / SOCKET).exists()
    options = pb.DevicePluginOptions(
        pre_start_required=True, get_preferred_allocation_available=True
    )
    assert asked.asked[0] == pb.RegisterRequest(
        version="v1beta1", endpoint=SOCKET, resource_name=M, options=options
    )


def test_a_kubelet_that_does_not_listen(
    registrar: RegistrarFixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(registration, "_STREAM_WITHIN_S", 0.05)
    monkeypatch.setattr(registration, "_SETTLE_S", 0.01)
    with stand_in(registrar, Refusing()) as asked, running(registrar):
        wait_until(lambda: len(asked.asked) >= 2, "two tries", every_s=0.01)
    assert because(caplog, "registration ended")[0] == "kubelet does not listen"


def test_a_stopped_one_does_not_wait_out_its_time(
    registrar: RegistrarFixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(registration, "_FIRST_WAIT_S", 3600.0)
    with running(registrar):
        wait_until(lambda: caplog.records, "a word")


def test_a_socket_that_cannot_be(
    registrar: RegistrarFixture, caplog: pytest.LogCaptureFixture
) -> None:
    with Devices(registrar.folder) as devices:
        (registrar.plugins / SOCKET).mkdir()
        with running(registrar):
            wait_until(lambda: caplog.records, "a word")
            (registrar.plugins / SOCKET).rmdir()
            registrar.wait_times(1, devices)
    words = because(caplog, "not registered with kubelet")
    assert words[0].startswith(f"cannot listen on {registrar.plugins / SOCKET}: ")


def test_a_socket_that_goes_at_once(
    registrar: RegistrarFixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """kubelet removes all sockets when it starts: tried again, nobody stumbles."""
    real, gone = Path.chmod, []

    def chmod(path: Path, mode: int) -> None:
        if not gone:
            gone.append(path)
            path.unlink()
        real(path, mode)

    with Devices(registrar.folder) as devices:
        monkeypatch.setattr(Path, "chmod", chmod)
        with running(registrar):
            registrar.wait_times(1, devices)
    assert "cannot listen on" in because(caplog, "not registered with kubelet")[0]
