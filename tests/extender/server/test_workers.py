"""The sockets and workers that wait for complete requests, without a server."""

import errno
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from extender.server.tls import ServerTls, TlsFiles
from extender.server.workers import (
    MOST_HEAD,
    REQUEST_S,
    Received,
    RequestBuffer,
    WaitingWorker,
    WholeRequestTlsSocket,
)
from tests.testbed.certificates import Certificates, certificates
from tests.testbed.waiting import wait_until

LINE = b"POST /mutate HTTP/1.1\r\n"
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"
EXPECTING = LINE + b"Content-Length: 4\r\nexpect: 100-continue\r\n\r\n"
MOST = 1000


def of_length(length: int, body: bytes = b"") -> bytes:
    return LINE + b"Host: a\r\ncontent-length:  %d \r\n\r\n" % length + body


@pytest.mark.parametrize(
    ("data", "received", "cut"),
    [
        (b"", Received.NOTHING, False),
        (b"P", Received.PART, False),
        (LINE, Received.PART, False),
        (LINE + b"\r\n", Received.WHOLE, False),
        (of_length(4), Received.PART, False),
        (of_length(4, b"bod"), Received.PART, False),
        (of_length(4, b"body"), Received.WHOLE, False),
        (of_length(4, b"body and more"), Received.WHOLE, False),
        (CHUNKED, Received.WHOLE, True),
        (CHUNKED + b"4\r\nbody\r\n", Received.WHOLE, True),
        (EXPECTING, Received.WHOLE, True),
        (LINE + b"A: " + bytes(MOST_HEAD), Received.WHOLE, False),
        (LINE + b"Content-Length: many\r\n\r\n", Received.WHOLE, True),
        (LINE + b"Content-Length: -1\r\n\r\n", Received.WHOLE, True),
        (LINE + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", Received.WHOLE, True),
        (b"\r\n\r\n", Received.WHOLE, False),
    ],
)
@pytest.mark.parametrize("size", [7, 1 << 20])
def test_how_much_there_is(
    data: bytes, received: Received, size: int, *, cut: bool
) -> None:
    """However the bytes come; what is no request is for the parser to say.

    Another request may follow one that was kept whole, and not one that was cut.
    """
    buffer = RequestBuffer(MOST)
    for at in range(0, len(data), size):
        buffer.add(data[at : at + size])
    assert (buffer.received(), buffer.cut) == (received, cut)
    if not cut:
        assert b"".join(iter(lambda: buffer.take(3), b"")) == data


@pytest.mark.parametrize("head", [CHUNKED, EXPECTING, of_length(10**20)])
def test_a_body_whose_end_is_not_known(head: bytes) -> None:
    """Its head alone is answered; what comes after it is no request."""
    buffer = RequestBuffer(MOST)
    buffer.add(head + b"4\r\nPOST")
    buffer.add(b" / HTTP/1.1\r\n\r\n")
    assert buffer.cut
    assert buffer.received() is Received.WHOLE
    assert buffer.take(10 * MOST) == head


@pytest.mark.parametrize("size", [100, 5000])
def test_a_body_that_is_too_long_is_heard_out_and_not_kept(size: int) -> None:
    """Its length is refused; hung up on before its end, a client would not see that."""
    buffer = RequestBuffer(MOST)
    data = of_length(MOST + 1, bytes(MOST + 1))
    kept = 0
    for at in range(0, len(data), size):
        assert buffer.received() is not Received.WHOLE
        buffer.add(data[at : at + size])
        kept = max(kept, len(buffer.kept))
    assert buffer.received() is Received.WHOLE
    assert buffer.cut
    assert buffer.take(10 * MOST) == of_length(MOST + 1)
    assert kept <= len(of_length(MOST + 1)) + size


MANY = 500
REQUEST = b"POST /mutate HTTP/1.1\r\nContent-Length: 4\r\n\r\n"


@pytest.fixture
def held(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "tls")


@contextmanager
def meeting(
    held: Certificates,
) -> Iterator[tuple[ssl.SSLSocket, WholeRequestTlsSocket]]:
    """Give both ends of a connection, shaken hands without a client's certificate."""
    files = TlsFiles(held.path("server.crt"), held.path("server.key"))
    context = ServerTls(files, WholeRequestTlsSocket).context(None, None)
    far, near = socket.socketpair()
    wrapped = context.wrap_socket(far, server_side=True, do_handshake_on_connect=False)
    with wrapped as server, ThreadPoolExecutor(1) as pool:
        assert isinstance(server, WholeRequestTlsSocket)
        server.setblocking(False)
        assert server.receive() is Received.PART
        meet = held.client(None).wrap_socket
        shaking = pool.submit(meet, near, server_hostname="localhost")
        wait_until(server.receive, "hands", accept=lambda one: one is Received.NOTHING)
        with shaking.result(30) as client:
            yield client, server


def hears(server: WholeRequestTlsSocket, wanted: Received) -> None:
    wait_until(server.receive, wanted.value, accept=lambda one: one is wanted)


def test_half_a_request_keeps_nobody_waiting(held: Certificates) -> None:
    """Whoever asks how much has come hears it at once; the last byte makes it whole."""
    with meeting(held) as (client, server):
        for piece in (REQUEST[:9], REQUEST[9:], b"bod"):
            client.sendall(piece)
            before = len(server.buffer.kept)
            wait_until(
                lambda: server.receive() and len(server.buffer.kept),
                "a piece",
                accept=lambda seen, before=before: seen > before,  # type: ignore[misc]
            )
            assert server.receive() is Received.PART
        client.sendall(b"y")
        hears(server, Received.WHOLE)
        server.setblocking(True)
        assert server.recv(9) == REQUEST[:9]
        assert server.recv(1000) == REQUEST[9:] + b"body"
        # Not a wait for more, whatever the parser thinks of it.
        assert server.recv(1) == b""
        server.sendall(b"200")
        assert client.recv(10) == b"200"
        assert not server.begin_next(b"")
        server.setblocking(False)
        assert server.receive() is Received.NOTHING


def test_what_came_of_the_next_request_is_not_lost(held: Certificates) -> None:
    with meeting(held) as (client, server):
        client.sendall(REQUEST + b"body" + REQUEST)
        hears(server, Received.WHOLE)
        first = server.recv(len(REQUEST) + 8)
        assert server.begin_next(first[len(REQUEST) + 4 :])
        assert server.receive() is Received.PART
        client.sendall(b"more")
        hears(server, Received.WHOLE)
        assert server.recv(1000) == REQUEST + b"more"


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
    with meeting(held) as (client, server):
        client.sendall(REQUEST)
        hears(server, Received.PART)
        leave(client)
        with pytest.raises(OSError):
            wait_until(server.receive, "the end", accept=lambda _: False)


def test_an_answer_that_is_not_taken(held: Certificates) -> None:
    """gunicorn hears of it as of a client that went away; he gets no other thread."""
    with meeting(held) as (_, server):
        assert server.takes_answers()
        server.answer_s = 0.05
        server.setblocking(True)
        with pytest.raises(ConnectionResetError) as raised:
            server.sendall(bytes(64 << 20))
        assert not server.takes_answers()
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


MIB = 1 << 20


@dataclass(eq=False)
class Sock:
    """A client who has said so much, and reads its answers or not."""

    received: Received = Received.WHOLE
    reads: bool = True
    buffer: RequestBuffer = field(default_factory=lambda: RequestBuffer(8 * MIB))

    def receive(self) -> Received:
        return self.received

    def takes_answers(self) -> bool:
        return self.reads


@dataclass(eq=False)
class Conn:
    """A connection of this address; ``sock`` is what the poller knows of it."""

    address: str
    closed: bool = False
    sock: Sock = field(default_factory=Sock)
    timeout: float = 0

    @property
    def client(self) -> tuple[str, int]:
        return self.address, 1

    def close(self) -> None:
        self.closed = True


def room(most: int = 900) -> Any:
    """A worker that has nobody yet, and no process around it; no thread answers."""
    worker: Any = WaitingWorker.__new__(WaitingWorker)
    worker._deadlines, worker._sizes, worker._busy = {}, {}, {}
    watched: list[object] = []
    worker.watched, worker.news = watched, []
    worker.poller = SimpleNamespace(
        register=lambda one, *_: watched.append(one), unregister=watched.remove
    )
    worker.tpool = SimpleNamespace(submit=lambda *_: Future())
    worker.method_queue = SimpleNamespace(
        defer=lambda *call: worker.news.append(partial(*call))
    )
    worker.keepalived_conns, worker.nr_conns = deque(), 0
    worker.worker_connections = most
    return worker


def comes(
    worker: Any, address: str, size: int = 0, *, silent: bool = False, late: float = -60
) -> Conn:
    """One more half request of so many bytes, or one who is between two."""
    conn = Conn(address)
    worker.nr_conns += 1
    worker.watched.append(conn.sock)
    if silent:
        worker.keepalived_conns.append(conn)
    else:
        worker._deadlines[conn] = time.monotonic() - late
        worker._sizes[conn] = size
    return conn


def asks(worker: Any, address: str, size: int = 0, sock: Sock | None = None) -> Conn:
    """One whose request is whole: a thread answers him, or will."""
    conn = Conn(address, sock=sock or Sock())
    worker.nr_conns += 1
    conn.sock.buffer.kept += bytes(size)
    worker._receive(conn)
    return conn


def seen(worker: Any, *conns: Conn) -> list[bool]:
    """Have it look around, and hear of the threads; who was closed."""
    worker.murder_pending()
    while worker.news:
        worker.news.pop(0)()
    return [one.closed for one in conns]


def looked(worker: Any, *conns: Conn) -> list[bool]:
    """The same of all that wait: of who was closed it knows nothing more."""
    closed = seen(worker, *conns)
    waiting = (*worker._deadlines, *worker.keepalived_conns)
    assert not [one for one in waiting if one.closed]
    assert worker.nr_conns == len(waiting)
    assert worker.watched == [one.sock for one in conns if not one.closed]
    assert set(worker._sizes) <= set(waiting)
    return closed


def test_the_address_that_has_most_gives_way() -> None:
    """Its oldest half request first, and then who of it is silent."""
    worker = room(most=12)
    conns = [
        comes(worker, address, silent=silent)
        for address, silent in (
            *(("server", False), ("server", True), ("flood", True)),
            *(("flood", False), ("flood", False), ("flood", True)),
        )
    ]
    assert looked(worker, *conns) == [False, False, False, True, True, False]
    conns += [comes(worker, "flood", silent=True)]
    assert looked(worker, *conns)[2] is True


def test_the_bytes_of_half_requests_have_a_limit() -> None:
    """They are in memory. Of two addresses the one with more of them gives way.

    Where many addresses have a little, nobody has most.
    """
    worker = room()
    conns = [comes(worker, "server", 3 * MIB)]
    conns += [comes(worker, "flood", 7 * MIB) for _ in range(10)]
    assert looked(worker, *conns) == [False, True, True] + [False] * 8
    worker = room()
    conns = [comes(worker, f"pod-{number}", MIB) for number in range(65)]
    assert looked(worker, *conns) == [False] * 65


def test_who_is_always_busy_counts_as_well() -> None:
    """Else he had connections closed who is silent between two requests."""
    worker = room(most=12)
    server = [comes(worker, "server", silent=True) for _ in range(2)]
    flood = [asks(worker, "flood") for _ in range(3)]
    answering = worker._busy[flood[-1]]
    answering.set_running_or_notify_cancel()
    assert seen(worker, *flood) == [False, False, False]
    answering.set_result(True)
    assert seen(worker, *flood) == [False, False, True]
    flood.append(comes(worker, "flood"))
    assert seen(worker, *flood) == [False, False, True, True]
    flood.append(asks(worker, "flood"))
    assert seen(worker, *flood) == [False, False, True, True, True]
    assert seen(worker, *server) == [False, False]
    assert worker.nr_conns == 4


def test_bytes_that_wait_their_turn_count_as_well() -> None:
    """They are not answered any more, and are not kept until their turn comes."""
    worker = room()
    server = asks(worker, "server", MIB)
    flood = [asks(worker, "flood", 7 * MIB) for _ in range(10)]
    assert seen(worker, *flood) == [False] * 9 + [True]
    assert not server.closed
    assert sum(len(one.sock.buffer.kept) for one in flood) == 63 * MIB
    assert set(worker._sizes) == {server, *flood[:9]}


def test_who_reads_no_answers_gets_no_thread() -> None:
    worker = room()
    assert asks(worker, "slow", sock=Sock(reads=False)).closed
    assert (worker.nr_conns, worker._busy, worker._sizes) == (0, {}, {})


def test_who_shakes_hands_and_says_nothing() -> None:
    worker, began = room(), time.monotonic()
    conn = asks(worker, "idle", sock=Sock(Received.PART))
    conn.sock.received = Received.NOTHING
    worker._receive(conn)
    assert began <= worker._deadlines[conn] <= time.monotonic() + REQUEST_S
    worker._deadlines[conn] = 0
    assert looked(worker, conn) == [True]
    assert worker._sizes == {}


def test_who_has_been_silent_for_long() -> None:
    worker = room()
    old, new = (comes(worker, "server", silent=True) for _ in range(2))
    new.timeout = time.monotonic() + 60
    worker._sizes[old] = 0
    worker.murder_keepalived()
    assert looked(worker, old, new) == [True, False]
    worker.murder_keepalived(force=True)
    assert looked(worker, old, new) == [True, True]
