"""TLS for the webhook: clients without a certificate, and only prompt ones."""

import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from extender.metrics import CertificateCollector
from extender.tls import PromptSocket, ServerTls, TlsFiles, complaints, server_context
from tests.testbed.certificates import Certificates, certificates


@pytest.fixture
def held(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "tls")


def files(held: Certificates) -> TlsFiles:
    return TlsFiles(held.path("server.crt"), held.path("server.key"))


@contextmanager
def meeting(
    held: Certificates, request_s: float | None
) -> Iterator[tuple[ssl.SSLSocket, PromptSocket]]:
    """Give both ends of a connection, shaken hands without a client's certificate."""
    context = ServerTls(files(held), request_s).context(None, None)
    far, near = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        ready = pool.submit(context.wrap_socket, far, server_side=True)
        with (
            held.client(None).wrap_socket(near, server_hostname="localhost") as client,
            ready.result(10) as server,
        ):
            assert isinstance(server, PromptSocket)
            yield client, server


def test_no_client_needs_a_certificate(held: Certificates) -> None:
    """The API server shows none unless it is told to."""
    with meeting(held, 30) as (client, server):
        client.sendall(b"POST")
        assert server.recv(10) == b"POST"
        server.sendall(b"200")
        assert client.recv(10) == b"200"


def test_the_files_are_two(held: Certificates) -> None:
    """Nothing is asked for an authority, neither at the start nor by the metrics."""
    assert complaints(files(held)) == []
    held.replace("server.key", b"nonsense")
    (complaint,) = complaints(files(held))
    assert complaint.startswith("GPUSHARE_TLS_KEY: ")
    (family,) = CertificateCollector(files(held)).collect()
    assert [sample.labels for sample in family.samples] == [{"file": "server"}]


def test_a_request_that_does_not_come_is_hung_up_on(held: Certificates) -> None:
    """As gunicorn takes for a client that went away."""
    with meeting(held, 0.2) as (_, server), pytest.raises(ssl.SSLEOFError) as raised:
        server.recv(10)
    assert raised.value.args[0] == ssl.SSL_ERROR_EOF


def test_a_byte_now_and_then_does_not_help(held: Certificates) -> None:
    """The time is for the whole request, however it is spent."""
    with meeting(held, 0.5) as (client, server), ThreadPoolExecutor(1) as pool:
        ended = pool.submit(drained, server)
        while not ended.done():
            with suppress(OSError):
                client.sendall(b"x")
            time.sleep(0.01)
        assert isinstance(ended.exception(), ssl.SSLEOFError)


def drained(server: PromptSocket) -> None:
    """Read until the time is up."""
    while True:
        server.recv(1)


def test_each_request_of_a_connection_has_its_own_time(held: Certificates) -> None:
    """And between two of them there is no limit: gunicorn waits elsewhere then."""
    with meeting(held, 30) as (client, server):
        first = server.gettimeout()
        server.setblocking(False)
        assert server.gettimeout() == 0
        with pytest.raises(ssl.SSLWantReadError):
            server.recv(1)
        server.setblocking(True)
        client.sendall(b"more")
        assert server.recv(10) == b"more"
        left = server.gettimeout()
        assert first is None
        assert left is not None
        assert 0 < left <= 30


def test_the_extenders_own_has_no_limit(held: Certificates) -> None:
    """kube-scheduler's connection may be silent for as long as no pod comes."""
    with meeting(held, None) as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        assert server.gettimeout() is None
    assert server_context(files(held)).request_s is None
