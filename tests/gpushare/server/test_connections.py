"""What a connection's client may take, without a server and with a real TLS one."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.server import connections as bounds
from gpushare.server.connections import (
    MOST_HEAD,
    REQUEST_S,
    ClientConnection,
    Connections,
    ServerTransport,
    Stage,
)
from gpushare.server.tls import ServerTls, TlsFiles
from tests.testbed.certificates import certificates

MIB = 1 << 20
ANSWER_S = 30.0


class Transport(asyncio.Transport):
    """A socket's transport whose client is at some address."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1)})
        self.aborted = False
        self.closing = False
        self.written = b""
        self.unsent = 0
        self.reading: list[bool] = []

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.reading.append(False)

    def resume_reading(self) -> None:
        self.reading.append(True)

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing or self.aborted

    def write(self, data: Any) -> None:
        self.written += data


@dataclass
class Server(asyncio.Protocol):
    """The protocol inside, which notes what it is told."""

    heard: list[bytes] = field(default_factory=list)
    lost: int = 0

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.lost += 1


@dataclass
class Site:
    """A few connections, and what became of them."""

    known: Connections
    seen: list[object] = field(default_factory=list)
    made: list[tuple[ClientConnection, Transport, Server]] = field(default_factory=list)

    def comes(self, address: str, stage: Stage = Stage.ARRIVING, kept: int = 0) -> int:
        """One more connection; gives its number."""
        inside, transport = Server(), Transport(address)
        inside.connection_made = self.seen.append  # type: ignore[method-assign]
        one = ClientConnection(self.known, lambda _: inside, None)
        one.connection_made(transport)
        self.made.append((one, transport, inside))
        if stage is not Stage.ARRIVING or kept:
            one.head_arrived()
            one.body_arrived(kept)
        if stage is not Stage.ARRIVING:
            one.request_arrived()
        if stage is Stage.SILENT:
            one.answer_sent()
            one._rest(one._requests)
        return len(self.made) - 1

    @property
    def closed(self) -> list[int]:
        return [n for n, (_, transport, _) in enumerate(self.made) if transport.aborted]


def on_a_loop(test: Callable[[Site], None], most: int = 900) -> None:
    async def run() -> None:
        test(Site(Connections(most=most, answer_s=ANSWER_S)))

    asyncio.run(run())


def test_the_address_with_the_most_gives_way() -> None:
    """First its oldest that sends a request, then its oldest silent one."""

    def test(site: Site) -> None:
        site.comes("server")
        site.comes("flood", Stage.SILENT)
        site.comes("flood")
        assert site.closed == []
        site.comes("flood", Stage.ANSWERED)
        assert site.closed == [2]
        site.comes("other")
        assert site.closed == [1, 2]
        assert len(site.known) == 3

    on_a_loop(test, most=3)


def test_the_latest_of_those_that_are_answered_gives_way() -> None:
    def test(site: Site) -> None:
        for _ in range(3):
            site.comes("flood", Stage.ANSWERED)
        site.made[2][0].connection_lost(None)
        for _ in range(2):
            site.comes("server", Stage.ANSWERED)
        # Of two addresses with as many, the one that was there first.
        assert site.closed == [1]

    on_a_loop(test, most=3)


def test_the_bytes_of_requests_have_a_limit() -> None:
    """They are in memory. Of two addresses the one with more of them gives way."""

    def test(site: Site) -> None:
        site.comes("server", kept=3 * MIB)
        for _ in range(10):
            site.comes("flood", kept=7 * MIB)
        assert site.closed == [1, 2]

    on_a_loop(test)


def test_many_addresses_with_a_little_have_no_one_with_the_most() -> None:
    def test(site: Site) -> None:
        for number in range(65):
            site.comes(f"pod-{number}", kept=MIB)
        assert site.closed == []

    on_a_loop(test)


def test_bytes_count_until_the_answer() -> None:
    """While it is answered and not after; nor of a connection that is closed."""

    def test(site: Site) -> None:
        first = site.comes("flood", Stage.ANSWERED, 40 * MIB)
        site.comes("flood", kept=30 * MIB)
        assert site.closed == [1]
        site.made[first][0].answer_sent()
        site.comes("flood", kept=60 * MIB)
        site.made[2][0].connection_lost(None)
        site.made[1][0].body_arrived(30 * MIB)
        site.comes("flood", kept=60 * MIB)
        assert site.closed == [1]

    on_a_loop(test)


@pytest.mark.parametrize(
    ("stage", "late"),
    [(Stage.ARRIVING, True), (Stage.SILENT, False), (Stage.ANSWERED, False)],
)
def test_a_request_has_a_deadline(stage: Stage, *, late: bool) -> None:
    """From its first byte to its last, however many come meanwhile."""

    def test(site: Site) -> None:
        one, _, _ = site.made[site.comes("slow", stage)]
        now = asyncio.get_running_loop().time()
        assert not one.is_late(now + REQUEST_S - 1)
        one.data_received(b"P") if stage is Stage.ARRIVING else None
        assert one.is_late(now + REQUEST_S + 1) is late

    on_a_loop(test)


def test_the_second_request_has_a_deadline_too() -> None:
    """Whether its first byte comes alone or with the last of the one before."""

    def test(site: Site) -> None:
        one, _, inside = site.made[site.comes("slow", Stage.SILENT)]
        now = asyncio.get_running_loop().time()
        one.data_received(b"P")
        assert inside.heard == [b"P"]
        assert one.is_late(now + REQUEST_S + 1)
        together, _, _ = site.made[site.comes("slow", Stage.SILENT)]
        together.head_arrived()
        assert together.is_late(now + REQUEST_S + 1)

    on_a_loop(test)


def test_an_answer_that_is_not_taken() -> None:
    """There is a time for all of it, and one for the client to close."""

    def test(site: Site) -> None:
        now = asyncio.get_running_loop().time()
        one, transport, _ = site.made[site.comes("deaf", Stage.SILENT)]
        transport.unsent = 1
        assert not one.is_late(now)
        assert not one.is_late(now + ANSWER_S - 1)
        assert one.is_late(now + ANSWER_S + 1)
        transport.unsent = 0
        assert not one.is_late(now + ANSWER_S + 1)
        transport.unsent = 1
        transport.close()
        assert not one.is_late(now + 50)
        assert not one.is_late(now + 50 + ANSWER_S - 1)
        assert one.is_late(now + 50 + ANSWER_S + 1)
        transport.unsent = 0
        assert not one.is_late(now + 90)
        assert one.is_late(now + 90 + REQUEST_S + 1)

    on_a_loop(test)


def test_who_is_late_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop looks for them by itself, as long as there are connections."""
    monkeypatch.setattr(bounds, "REQUEST_S", 0.0)
    monkeypatch.setattr(bounds, "_LOOK_EVERY_S", 0.01)

    async def run() -> None:
        site = Site(Connections(most=9, answer_s=ANSWER_S))
        for _ in range(2):
            site.comes("slow")
            site.comes("server", Stage.SILENT)
            await until(lambda: site.made[-2][1].aborted)
            silent = site.made[-1][0]
            assert not silent.lost.done()
            silent.connection_lost(None)
            assert silent.lost.done()
        assert site.closed == [0, 2]

    asyncio.run(run())


@pytest.mark.parametrize("size", [1000, MOST_HEAD + 1])
def test_a_head_has_a_limit(size: int) -> None:
    """What comes with its last piece may be a body; more pieces are refused."""

    def test(site: Site) -> None:
        one, transport, inside = site.made[site.comes("flood")]
        while not transport.written:
            one.data_received(bytes(size))
        assert transport.written.startswith(b"HTTP/1.1 431 ")
        assert transport.closing
        assert sum(map(len, inside.heard)) <= MOST_HEAD + size
        other, transport, inside = site.made[site.comes("server")]
        other.data_received(bytes(size))
        other.head_arrived()
        for _ in range(100):
            other.data_received(bytes(size))
        assert len(inside.heard) == 101

    on_a_loop(test)


def test_as_the_process_ends_only_unused_connections_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is answered is closed too if its head could no longer say so."""
    monkeypatch.setattr(bounds, "_LAST_REQUEST_S", 0.0)

    async def run() -> None:
        site = Site(Connections(most=9, answer_s=ANSWER_S))
        new, begun = site.comes("a"), site.comes("b")
        site.made[begun][0].data_received(b"POST /sched")
        silent = site.comes("c", Stage.SILENT)
        answered = site.comes("d", Stage.ANSWERED)
        for one, _, _ in site.made:
            one.end()
        await asyncio.sleep(0.01)
        closing = [n for n, (_, each, _) in enumerate(site.made) if each.closing]
        assert closing == [new, silent]
        site.made[answered][0].answer_sent()
        await asyncio.sleep(0.01)
        assert site.made[answered][1].closing
        assert site.closed == []

    asyncio.run(run())


def test_requests_that_arrive_while_one_is_answered_are_held_back() -> None:
    """uvicorn would parse and keep all of them, and read on after each answer."""

    async def run() -> None:
        site = Site(Connections(most=9, answer_s=ANSWER_S))
        one, transport, inside = site.made[site.comes("flood", Stage.ANSWERED)]
        seen: Any = site.seen[0]
        one.data_received(b"first")
        assert transport.reading == [False]
        one.data_received(b", second")
        seen.resume_reading()
        assert (inside.heard, transport.reading) == ([], [False, False])
        one.answer_sent()
        one.head_arrived()
        await asyncio.sleep(0)
        # uvicorn had one more already.
        assert (one.stage, inside.heard) == (Stage.ARRIVING, [])
        one.request_arrived()
        one.answer_sent()
        await asyncio.sleep(0)
        assert inside.heard == [b"first, second"]
        assert transport.reading == [False, False, True]
        seen.resume_reading()
        assert transport.reading == [False, False, True, True]
        # What is passed on may be enough for uvicorn, which then wants to wait.
        one.request_arrived()
        one.data_received(b"third")
        seen.pause_reading()
        one.answer_sent()
        await asyncio.sleep(0)
        assert inside.heard[1:] == [b"third"]
        assert transport.reading[4:] == [False, False]

    asyncio.run(run())


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ([HEAD, b"body"], [HEAD + b"body"]),
        ([HEAD, b"one", b"two"], [HEAD + b"one", b"two"]),
        ([HEAD], [HEAD]),
        ([HEAD, HEAD, b"x"], [HEAD + HEAD, b"x"]),
        ([HEAD, b"ends like a head\r\n\r\n"], [HEAD + b"ends like a head\r\n\r\n"]),
        ([HEAD, bytes(1 << 20)], [HEAD, bytes(1 << 20)]),
        ([b"body", HEAD], [b"body", HEAD]),
    ],
)
@pytest.mark.parametrize("closed", [True, False])
def test_a_head_leaves_with_its_body(
    written: list[bytes], sent: list[bytes], *, closed: bool
) -> None:
    """Or by itself when the loop goes on, or the connection is closed."""
    seen: list[bytes] = []

    async def run() -> None:
        plain: Any = SimpleNamespace(write=seen.append, close=lambda: seen.append(b""))
        loop = asyncio.get_running_loop()
        joined = ServerTransport(plain, loop, lambda: True)
        for data in written:
            joined.write(data)
        if closed:
            joined.close()
        else:
            await asyncio.sleep(0)

    asyncio.run(run())
    assert seen == [*sent, *([b""] if closed else [])]


def test_a_client_that_left_before_it_was_met() -> None:
    def test(site: Site) -> None:
        transport = Transport("")
        transport._extra = {}  # type: ignore[attr-defined]
        one = ClientConnection(site.known, lambda _: Server(), None)
        one.connection_made(transport)
        assert transport.aborted
        assert len(site.known) == 0

    on_a_loop(test)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110  no event tells of it
            await asyncio.sleep(0.01)


class Echo(asyncio.Protocol):
    """Say in capitals what was heard."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


async def served(
    tmp_path: Path,
    client: Callable[[int, ssl.SSLContext], Any],
    answers: int = 1,
    serve: Callable[[ClientConnection], asyncio.Protocol] = lambda _: Echo(),
    answer_s: float = ANSWER_S,
) -> tuple[list[Any], Connections]:
    """Serve TLS with clients' certificates; call the client so often, in threads."""
    held = certificates(tmp_path / "tls")
    paths = (held.path(name) for name in ("server.crt", "server.key", "ca.crt"))
    tls = ServerTls(TlsFiles(*paths))
    known = Connections(most=50, answer_s=answer_s)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: ClientConnection(known, serve, tls.context), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    calls = [asyncio.to_thread(client, port, held.client()) for _ in range(answers)]
    found = await asyncio.gather(*calls)
    server.close()
    return found, known


def test_the_first_request_may_come_with_the_handshake(tmp_path: Path) -> None:
    """asyncio decrypts it before the handshake's caller runs; no byte is lost."""

    def client(port: int, context: ssl.SSLContext) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        safe = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", port), timeout=30) as link:
            while True:
                try:
                    safe.do_handshake()
                except ssl.SSLWantReadError:
                    link.sendall(outgoing.read())
                    incoming.write(link.recv(65536))
                else:
                    break
            safe.write(b"request")
            # The end of the handshake and the request leave in one piece.
            link.sendall(outgoing.read())
            while True:
                with suppress(ssl.SSLWantReadError):
                    return safe.read(100)
                incoming.write(link.recv(65536))

    found, _ = asyncio.run(served(tmp_path, client, answers=20))
    assert found == [b"REQUEST"] * 20


def test_a_client_is_told_why_its_handshake_failed(tmp_path: Path) -> None:
    """kube-scheduler shows it in the pod's event."""

    def client(port: int, context: ssl.SSLContext) -> str:
        stranger = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.crt")
        del context
        link = socket.create_connection(("127.0.0.1", port), timeout=30)
        try:
            with stranger.wrap_socket(link, server_hostname="localhost") as safe:
                return str(safe.recv(100))
        except ssl.SSLError as error:
            return str(error.reason)

    found, _ = asyncio.run(served(tmp_path, client, answers=5))
    assert found == ["TLSV13_ALERT_CERTIFICATE_REQUIRED"] * 5


@pytest.mark.parametrize("harm", ["no certificate", "nonsense", "leaves"])
def test_a_handshake_that_fails_leaves_nothing(tmp_path: Path, harm: str) -> None:
    def client(port: int, _context: ssl.SSLContext) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as link:
            if harm == "nonsense":
                link.sendall(b"GET / HTTP/1.1\r\n\r\n")
            elif harm == "leaves":
                link.sendall(b"\x16\x03\x01\x02\x00\x01")
                return b""
            else:
                stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
                with suppress(OSError), stranger.wrap_socket(link) as safe:
                    safe.sendall(b"request")
                    return safe.recv(100)
                return b""
            with suppress(OSError):
                while link.recv(100):
                    pass
        return b""

    async def run() -> None:
        found, known = await served(tmp_path, client, answers=3)
        assert found == [b""] * 3
        await until(lambda: not len(known))

    asyncio.run(run())


def test_closing_while_hands_are_shaken(tmp_path: Path) -> None:
    """The flood's silent handshakes give way like any other connection."""

    def client(port: int, context: ssl.SSLContext) -> bytes:
        flood = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        link = socket.create_connection(("127.0.0.1", port), timeout=30)
        with context.wrap_socket(link, server_hostname="localhost") as safe:
            safe.sendall(b"request")
            heard = safe.recv(100)
        for one in flood:
            one.close()
        return heard

    async def run() -> None:
        found, known = await served(tmp_path, client)
        assert found == [b"REQUEST"]
        await until(lambda: not len(known))

    asyncio.run(run())


class Large(Echo):
    """Say more than a socket's buffers hold, and close if told to."""

    SIZE = 24 * MIB

    def __init__(self, lost: threading.Event, one: ClientConnection) -> None:
        self.lost, self.one = lost, one

    def data_received(self, data: bytes) -> None:
        self.one.request_arrived()
        self.transport.write(bytes(self.SIZE))
        self.one.answer_sent()
        if data == b"close":
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


def test_over_tls_who_does_not_take_an_answer_is_closed(tmp_path: Path) -> None:
    """Also if nothing more is to be sent: all of it is in memory, encrypted."""
    lost = threading.Event()

    def client(port: int, context: ssl.SSLContext) -> bool:
        link = socket.create_connection(("127.0.0.1", port), timeout=60)
        with context.wrap_socket(link, server_hostname="localhost") as safe:
            safe.sendall(b"request")
            return lost.wait(20)

    found, _ = asyncio.run(served(tmp_path, client, 1, partial(Large, lost), 0.5))
    assert found == [True]


def test_over_tls_the_last_answer_has_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As through a slow port-forward, whose client asks for one page."""
    monkeypatch.setattr(bounds, "REQUEST_S", 1.0)

    def client(port: int, context: ssl.SSLContext) -> int:
        link = socket.create_connection(("127.0.0.1", port), timeout=60)
        with context.wrap_socket(link, server_hostname="localhost") as safe:
            safe.sendall(b"close")
            time.sleep(2)
            return sum(map(len, iter(lambda: safe.recv(1 << 20), b"")))

    large = partial(Large, threading.Event())
    found, _ = asyncio.run(served(tmp_path, client, 1, large))
    assert found == [Large.SIZE]
