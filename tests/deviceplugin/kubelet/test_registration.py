"""Registration with kubelet: again whenever it is lost, and never twice at once."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.kubelet import registration
from deviceplugin.kubelet.registration import look
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpusharectl.demo.devices import Devices
from tests.deviceplugin.registrar_fixture import (
    SOCKET,
    M,
    Refusing,
    RegistrarFixture,
    because,
    running,
    stand_in,
)
from tests.testbed.waiting import wait_until


@pytest.fixture
def registrar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> RegistrarFixture:
    """With less patience than it has in earnest, but for a kubelet on a busy machine.

    That one takes its time to notice that a stream has ended.
    """
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(registration, "_SETTLE_S", 1.0)
    monkeypatch.setattr(registration, "_FIRST_WAIT_S", 0.05)
    return RegistrarFixture(tmp_path)


def test_registered_while_it_runs(
    registrar: RegistrarFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Its socket is root's alone, and gone when it has ended."""
    with Devices(registrar.folder) as devices:
        with running(registrar):
            registrar.wait_times(1, devices)
            assert (registrar.plugins / SOCKET).stat().st_mode & 0o777 == 0o600
            # It is counted a moment before.
            wait_until(
                lambda: registrar.value("vcuda_plugin_registered") == 1, "the word"
            )
        assert not (registrar.plugins / SOCKET).exists()
        assert registrar.value("vcuda_plugin_registered") == 0
        wait_until(lambda: devices.allocatable()[M] == 0, "its end")
    assert registrar.times() == registrar.streams.ever == 1
    assert because(caplog, "registration ended") == ["we are stopping"]


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
        (remove_our_socket, "our socket was removed"),
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
    """Whatever sign there is that kubelet has forgotten us, and never twice at once."""
    with registrar.devices as devices, running(registrar):
        registrar.wait_times(1, devices)
        wait_until(lambda: registrar.streams.open == 1, "its stream")
        trouble(registrar)
        registrar.wait_times(2, devices)
        wait_until(lambda: registrar.streams.open == 1, "its stream")
    assert because(caplog, "registration ended") == [why, "we are stopping"]
    assert registrar.streams.most == 1
    assert registrar.times() == 2


def test_kubelets_restart(registrar: RegistrarFixture) -> None:
    """It removes all sockets and forgets all plugins; its folder stays."""
    with running(registrar):
        for times in (1, 2, 3):
            with Devices(registrar.folder) as devices:
                registrar.wait_times(times, devices)
    assert registrar.streams.most == 1


def test_kubelet_comes_later(
    registrar: RegistrarFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even its folder is there: said with each try, until it is there."""
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
    """Its words are told, and it is asked again, after longer and longer waits."""
    monkeypatch.setattr(registration, "_SETTLE_S", 0.01)
    with stand_in(registrar, Refusing("not today")) as asked, running(registrar):
        wait_until(lambda: len(asked.asked) >= 3, "three tries", every_s=0.01)
    told = [one for one in caplog.records if hasattr(one, "wait_s")]
    assert because(caplog, "not registered with kubelet")[0] == "UNKNOWN: not today"
    waits = [one.wait_s for one in told]
    assert waits[:3] == [0.05, 0.1, 0.2]
    assert registrar.times() == 0
    assert not (registrar.plugins / SOCKET).exists()
    [request] = {one.SerializeToString() for one in asked.asked}
    assert pb.RegisterRequest.FromString(request) == pb.RegisterRequest(
        version="v1beta1",
        endpoint=SOCKET,
        resource_name=M,
        options=pb.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        ),
    )


def test_a_kubelet_that_does_not_listen(
    registrar: RegistrarFixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Registered, but no stream comes: again after a while."""
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
    """Neither for kubelet nor between two tries."""
    monkeypatch.setattr(registration, "_FIRST_WAIT_S", 3600.0)
    with running(registrar):
        wait_until(lambda: caplog.records, "a word")


def test_a_socket_that_cannot_be(
    registrar: RegistrarFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """The words name the path; tried again until it can be."""
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


def test_another_file_of_a_name_looks_different(tmp_path: Path) -> None:
    """By its inode or its age; none at all is None."""
    path = tmp_path / "x"
    assert look(path) is None
    path.touch()
    first = look(path)
    assert look(path) == first
    (tmp_path / "y").touch()
    (tmp_path / "y").replace(path)
    assert look(path) != first
