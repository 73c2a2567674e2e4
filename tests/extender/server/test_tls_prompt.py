"""TLS for the webhook: clients without a certificate, heard without waiting."""

import errno
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from extender.server.metrics import CertificateCollector
from extender.server.tls import ServerTls, TlsFiles, complaints
from extender.server.workers import Heard, WholeRequestTlsSocket
from tests.testbed.certificates import Certificates, certificates
from tests.testbed.waiting import wait_until

MANY = 500
REQUEST = b"POST /mutate HTTP/1.1\r\nContent-Length: 4\r\n\r\n"


@pytest.fixture
def held(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "tls")


def files(held: Certificates) -> TlsFiles:
    return TlsFiles(held.path("server.crt"), held.path("server.key"))


@contextmanager
def meeting(
    held: Certificates,
) -> Iterator[tuple[ssl.SSLSocket, WholeRequestTlsSocket]]:
    """Give both ends of a connection, shaken hands without a client's certificate."""
    context = ServerTls(files(held), WholeRequestTlsSocket).context(None, None)
    far, near = socket.socketpair()
    wrapped = context.wrap_socket(far, server_side=True, do_handshake_on_connect=False)
    with wrapped as server, ThreadPoolExecutor(1) as pool:
        assert isinstance(server, WholeRequestTlsSocket)
        server.setblocking(False)
        assert server.hear() is Heard.PART
        meet = held.client(None).wrap_socket
        shaking = pool.submit(meet, near, server_hostname="localhost")
        wait_until(server.hear, "hands", accept=lambda one: one is Heard.NOTHING)
        with shaking.result(30) as client:
            yield client, server


def hears(server: WholeRequestTlsSocket, wanted: Heard) -> None:
    wait_until(server.hear, wanted.value, accept=lambda heard: heard is wanted)


def test_half_a_request_keeps_nobody_waiting(held: Certificates) -> None:
    """Whoever asks how much has come hears it at once; the last byte makes it whole."""
    with meeting(held) as (client, server):
        for piece in (REQUEST[:9], REQUEST[9:], b"bod"):
            client.sendall(piece)
            before = len(server.pieces.kept)
            wait_until(
                lambda: server.hear() and len(server.pieces.kept),
                "a piece",
                accept=lambda seen, before=before: seen > before,  # type: ignore[misc]
            )
            assert server.hear() is Heard.PART
        client.sendall(b"y")
        hears(server, Heard.WHOLE)
        server.setblocking(True)
        assert server.recv(9) == REQUEST[:9]
        assert server.recv(1000) == REQUEST[9:] + b"body"
        # Not a wait for more, whatever the parser thinks of it.
        assert server.recv(1) == b""
        server.sendall(b"200")
        assert client.recv(10) == b"200"
        assert not server.begin_anew(b"")
        server.setblocking(False)
        assert server.hear() is Heard.NOTHING


def test_what_came_of_the_next_request_is_not_lost(held: Certificates) -> None:
    """Some of it the parser may have read already."""
    with meeting(held) as (client, server):
        client.sendall(REQUEST + b"body" + REQUEST)
        hears(server, Heard.WHOLE)
        first = server.recv(len(REQUEST) + 8)
        assert server.begin_anew(first[len(REQUEST) + 4 :])
        assert server.hear() is Heard.PART
        client.sendall(b"more")
        hears(server, Heard.WHOLE)
        assert server.recv(1000) == REQUEST + b"more"


def gone(server: WholeRequestTlsSocket) -> bool:
    try:
        server.hear()
    except OSError:
        return True
    return False


@pytest.mark.parametrize(
    "leave",
    [
        lambda client: client.close(),
        lambda client: socket.socket.sendall(client, b"\x15\x03\x03 nonsense"),
    ],
    ids=["hangs up", "talks nonsense"],
)
def test_who_leaves_is_noticed(
    held: Certificates, leave: Callable[[ssl.SSLSocket], None]
) -> None:
    """Before and after he has sent something."""
    with meeting(held) as (client, server):
        client.sendall(REQUEST)
        hears(server, Heard.PART)
        leave(client)
        wait_until(lambda: gone(server), "it to be noticed")


def test_an_answer_that_is_not_taken(held: Certificates) -> None:
    """gunicorn hears of it as of a client that went away."""
    with meeting(held) as (_, server):
        server.answer_s = 0.2
        server.setblocking(True)
        with pytest.raises(ConnectionResetError) as raised:
            server.sendall(bytes(64 << 20))
    assert raised.value.errno == errno.ECONNRESET


def test_an_answer_that_is_taken_bit_by_bit(held: Certificates) -> None:
    """There is a time for all of it, not for each piece."""
    with meeting(held) as (client, server), ThreadPoolExecutor(1) as pool:
        over = Event()

        def sips() -> int:
            count = 0
            while count < MANY and not over.wait(0.02):
                client.recv(1 << 16)
                count += 1
            return count

        assert server.takes_answers()
        server.answer_s = 0.2
        server.setblocking(True)
        sipping = pool.submit(sips)
        with pytest.raises(ConnectionResetError):
            server.sendall(bytes(64 << 20))
        over.set()
        assert sipping.result(60) < MANY


def test_who_takes_no_answer_has_no_room_for_another(held: Certificates) -> None:
    """It shows before a thread would wait for him."""
    with meeting(held) as (_, server):
        assert server.takes_answers()
        server.answer_s = 0.2
        server.setblocking(True)
        with pytest.raises(ConnectionResetError):
            server.sendall(bytes(64 << 20))
        assert not server.takes_answers()


def test_the_files_are_two(held: Certificates) -> None:
    """Nothing is asked for an authority, neither at the start nor by the metrics."""
    assert complaints(files(held)) == []
    held.replace("server.key", b"nonsense")
    (complaint,) = complaints(files(held))
    assert complaint.startswith("GPUSHARE_TLS_KEY: ")
    (family,) = CertificateCollector(files(held)).collect()
    assert [sample.labels for sample in family.samples] == [{"file": "server"}]
