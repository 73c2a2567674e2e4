"""Mutual TLS between the real kube-scheduler and the extender."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from tests.controlplane.books import checked_books
from tests.controlplane.by_hand import NOBODY, bind, binding
from tests.controlplane.extender import Extender, extender
from tests.controlplane.world import EAGER, World, node_of
from tests.testbed.certificates import Certificates, certificates
from tests.testbed.controlplane import ControlPlane
from tests.testbed.kubelet import StandInKubelet
from tests.testbed.objects import read_pod
from tests.testbed.process import ProcessDiedError
from tests.testbed.rest import Json, Rest
from tests.testbed.scheduler import Scheduler
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

EXPIRES = "vcuda_certificate_not_after_timestamp_seconds"


def start_scheduler(
    plane: ControlPlane, ext: Extender, tls_files: Certificates, name: str, **more: Json
) -> Scheduler:
    """Start a kube-scheduler of this name that shows its certificate."""
    settings = replace(
        EAGER, profile={"schedulerName": name}, extender={**tls_files.stanza, **more}
    )
    return plane.start_scheduler(name, extender_url=ext.url, settings=settings)


@contextmanager
def guarded(plane: ControlPlane, folder: Path, name: str) -> Iterator[World]:
    """Run an extender with certificates of its own, and no kube-scheduler yet."""
    tls_files = certificates(folder)
    with (
        extender(plane, f"{name}-extender", tls_files) as ext,
        StandInKubelet(plane.rest) as kubelet,
    ):
        yield World(plane, ext, kubelet, scheduler_name=name)


@pytest.fixture(scope="module")
def fortress(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("fortress") / "tls"
    with guarded(plane, folder, "guarded") as world:
        tls_files = tls_files_of(world)
        with start_scheduler(plane, world.extender, tls_files, "guarded") as process:
            yield replace(world, scheduler=process)


@pytest.fixture
def safe(fortress: World, space: str) -> World:
    """An empty cluster whose extender and kube-scheduler speak mutual TLS."""
    return replace(fortress, namespace=space, nodes=set())


@pytest.fixture
def fresh(plane: ControlPlane, space: str, tmp_path: Path) -> Iterator[World]:
    """One for a test that takes its certificates apart; its scheduler comes later."""
    with guarded(plane, tmp_path / "tls", "fresh") as world:
        yield replace(world, namespace=space)


def tls_files_of(world: World) -> Certificates:
    assert world.extender.certificates
    return world.extender.certificates


def shown(world: World) -> int:
    """Give the serial number of what the extender shows on a new connection."""
    address = ("127.0.0.1", world.extender.port)
    with (
        socket.create_connection(address, timeout=10) as link,
        tls_files_of(world)
        .client()
        .wrap_socket(link, server_hostname="localhost") as tls,
    ):
        certificate = tls.getpeercert(binary_form=True)
        assert certificate
        return x509.load_der_x509_certificate(certificate).serial_number


def test_pods_are_bound_over_mutual_tls(safe: World) -> None:
    """Filter, prioritize and bind, by kube-scheduler's certificate."""
    safe.node("edge", 29, 29)
    assert safe.runs("first", 20, 1) == "edge-0"
    assert safe.runs("second", 20, 1) == "edge-1"
    verdict = safe.verdict(safe.post("third", 12, 1))
    assert "Insufficient baidu.com/vcuda-memory on one card" in verdict.event
    checked_books(safe.rest)


@pytest.mark.parametrize("who", [None, "expired", "stranger", "server", "plain"])
def test_nobody_else_can_bind(safe: World, who: str | None) -> None:
    """Not without a certificate, not late, not by another authority's, not by HTTP."""
    safe.node("edge", 29)
    a_pod = replace(safe, scheduler_name=NOBODY).post("wanted", 4, 1)
    tls_files = tls_files_of(safe)
    tls_files.expired()
    tls_files.stranger()
    context = False if who == "plain" else tls_files.client(who)
    for method, path, body in (
        ("POST", "/scheduler/bind", binding(a_pod, "edge")),
        ("GET", "/snapshot", None),
        ("GET", "/metrics", None),
    ):
        # Dropped by the handshake, so that no answer of any status comes.
        with pytest.raises(OSError) as raised:
            Rest(safe.extender.port, tls=context).request(method, path, body)
        assert not isinstance(raised.value, TimeoutError)
    assert not node_of(read_pod(safe.rest, a_pod))
    assert bind(safe, a_pod, "edge") == ""
    assert node_of(read_pod(safe.rest, a_pod)) == "edge"


def test_the_public_listener_stays_plain(safe: World) -> None:
    """Probes and Prometheus have no certificate; there is nothing to bind there."""
    assert safe.extender.public.get("/healthz")[0] == 200
    assert safe.extender.public.post("/scheduler/bind", {})[0] == 405
    ends = {file: safe.extender.metrics()[key(file)] for file in ("server", "ca")}
    assert ends["ca"] - ends["server"] == (3652 - 365) * 24 * 3600


def key(file: str) -> str:
    return f'{EXPIRES}{{file="{file}"}}'


def test_half_a_handshake_keeps_nobody_waiting(safe: World) -> None:
    """More than there are threads begin one and say no more."""
    safe.node("edge", 29)
    address = ("127.0.0.1", safe.extender.port)
    with ExitStack() as links:
        for _ in range(24):
            link = links.enter_context(socket.create_connection(address))
            link.sendall(b"\x16")
        assert safe.runs("patient", 4, 1) == "edge-0"


def test_a_renewed_server_is_shown_without_a_restart(safe: World) -> None:
    """On new connections; kube-scheduler's own is not even interrupted."""
    safe.node("edge", 29)
    safe.runs("before", 4, 1)
    old, workers = shown(safe), safe.extender.workers()
    expires = safe.extender.metrics()[key("server")]
    new = tls_files_of(safe).renew("server")
    assert shown(safe) == new != old
    assert safe.extender.workers() == workers
    assert safe.extender.metrics()[key("server")] > expires
    safe.runs("after", 4, 1)


def test_kube_scheduler_takes_up_its_renewed_certificate(fresh: World) -> None:
    """With an expired one pods wait and say so; the new one needs no restart."""
    tls_files = tls_files_of(fresh)
    good = tls_files.read()
    fresh.node("edge", 29)
    tls_files.expired()
    tls_files.replace("client.crt", tls_files.read()["expired.crt"])
    tls_files.replace("client.key", tls_files.read()["expired.key"])
    with start_scheduler(fresh.plane, fresh.extender, tls_files, "fresh"):
        a_pod = fresh.post("waits", 4, 1)
        # A client that still sends when it is refused may read a reset instead.
        expired = "tls: expired certificate"
        wait_until(
            lambda: [
                message for message in fresh.messages(a_pod) if expired in message
            ],
            "refusal in words",
            60,
        )
        tls_files.replace("client.crt", good["client.crt"])
        tls_files.replace("client.key", good["client.key"])
        assert fresh.bound(a_pod).node == "edge"


def test_kube_scheduler_must_start_anew_for_a_new_authority(fresh: World) -> None:
    """It goes on trusting the old one alone; the extender takes up the new one."""
    tls_files = tls_files_of(fresh)
    fresh.node("edge", 29)
    with start_scheduler(fresh.plane, fresh.extender, tls_files, "fresh"):
        fresh.runs("before", 4, 1)
        tls_files.renew("ca")
        # Ends kube-scheduler's connection, on which it would not ask again.
        fresh.extender.kill()
        fresh.extender.start()
        a_pod = fresh.post("waits", 4, 1)
        words = wait_until(lambda: fresh.messages(a_pod), "refusal")
        assert "x509: certificate signed by unknown authority" in words[-1]
        assert not node_of(read_pod(fresh.rest, a_pod))
    with start_scheduler(fresh.plane, fresh.extender, tls_files, "fresh"):
        assert fresh.bound(a_pod).node == "edge"


@pytest.mark.parametrize("file", ["caFile", "certFile"])
def test_kube_scheduler_does_not_start_without_a_file(fresh: World, file: str) -> None:
    """So an installer writes the files before it touches the configuration."""
    tls_files = tls_files_of(fresh)
    tls = {**tls_files.stanza["tlsConfig"], file: "/nonexistent/x.crt"}
    with pytest.raises(
        ProcessDiedError, match=r"open /nonexistent/x.crt: no such file"
    ):
        start_scheduler(fresh.plane, fresh.extender, tls_files, "fresh", tlsConfig=tls)


def test_kube_scheduler_wants_the_right_name(fresh: World) -> None:
    """One that another host's extender would not have."""
    tls_files = tls_files_of(fresh)
    fresh.node("edge", 29)
    tls = {**tls_files.stanza["tlsConfig"], "serverName": "another.kube-system.svc"}
    with start_scheduler(
        fresh.plane, fresh.extender, tls_files, "fresh", tlsConfig=tls
    ):
        a_pod = fresh.post("waits", 4, 1)
        words = wait_until(lambda: fresh.messages(a_pod), "refusal")
        assert "not another.kube-system.svc" in words[-1]
