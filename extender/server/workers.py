"""Extend gunicorn's threaded worker: a thread gets a request only when it is complete.

gunicorn passes a connection to a thread with its first byte, and the thread waits for
the rest. So as many slow clients as there are threads block all others. Here the main
loop reads from all connections, into sockets that keep the bytes of a request.

``LingeringWorker``, for the verbs, also lets a thread wait for a client's next request.
gunicorn returns the connection to the main loop after each request; the loop then wakes
another thread, and all of them compete for the interpreter's lock. While kube-scheduler
works on a queue of pods, its next call comes within milliseconds, and that was a third
of the extender's time.
"""

import errno
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from selectors import EVENT_READ
from typing import TYPE_CHECKING, Any, Self

from gunicorn import http
from gunicorn.sock import ssl_wrap_socket
from gunicorn.workers.gthread import TConn, ThreadWorker

if TYPE_CHECKING:
    from concurrent.futures import Future
from threading import Semaphore

MOST_HEAD = 64 << 10
"""Bytes of a request line and its headers; the parser refuses longer ones."""
_RECORD = 64 << 10
_RECORDS = 64
"""Read at a time, so that no client blocks the main loop."""
_END = b"\r\n\r\n"
_MOST_DIGITS = 15
_BODY_COMES_LATER = {b"transfer-encoding", b"expect"}
"""Headers of requests whose body is not waited for; no API server sends them."""


class Received(Enum):
    """How much of a request has arrived."""

    NOTHING = "nothing"
    """The handshake is done, and no byte came after it."""
    PART = "part"
    WHOLE = "whole"


class RequestBuffer:
    """The bytes of a request as they arrive; ``kept`` are those not read yet.

    No byte of a body longer than ``most_body`` is kept, since its length is enough to
    refuse it. A body whose length is not in the head is not waited for.
    """

    def __init__(self, most_body: int) -> None:
        self.kept = bytearray()
        self._most_body = most_body
        self.cut = False
        """Whether bytes were dropped, so that no other request can follow."""
        self._left: int | None = None

    def add(self, piece: bytes) -> None:
        """Add what arrived."""
        if self._left is None:
            self.kept += piece
            self._look_for_head()
            return
        self._left -= len(piece)
        if not self.cut:
            self.kept += piece

    def received(self) -> Received:
        """Tell whether there is enough for an answer, even if it is an error."""
        if self._left is not None:
            return Received.WHOLE if self._left <= 0 else Received.PART
        if not self.kept:
            return Received.NOTHING
        return Received.WHOLE if len(self.kept) > MOST_HEAD else Received.PART

    def take(self, most: int) -> bytes:
        """Remove and return the next bytes; empty if there are none."""
        with memoryview(self.kept) as kept:
            found = bytes(kept[:most])
        del self.kept[:most]
        return found

    def _look_for_head(self) -> None:
        end = self.kept.find(_END)
        if end < 0:
            return
        lines = bytes(self.kept[:end]).split(b"\r\n")[1:]
        pairs = (line.partition(b":") for line in lines)
        fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
        length = fields.get(b"content-length", b"0")
        right = length.isdigit() and len(length) <= _MOST_DIGITS
        known = right and not fields.keys() & _BODY_COMES_LATER
        body = int(length) if known else 0
        self._left = body - (len(self.kept) - end - len(_END))
        self.cut = not known or body > self._most_body
        if self.cut:
            del self.kept[end + len(_END) :]


class _Whole(socket.socket):
    """What the plain and the TLS socket have in common."""

    most_body = 8 << 20
    """The most bytes of a body."""
    answer_s = 1.0
    """Within which an answer has to be sent, from its first to its last byte."""
    _until: float | None = None
    _buffer: RequestBuffer | None = None
    _read = False
    """Whether a part of the request was read."""

    @property
    def buffer(self) -> RequestBuffer:
        """What arrived and was not read."""
        if self._buffer is None:
            self._buffer = RequestBuffer(self.most_body)
        return self._buffer

    def begin_next(self, unread: bytes) -> bool:
        """Expect another request; True if a part of it came with the previous one."""
        if self._read:
            begun = unread + self.buffer.kept
            self._buffer = RequestBuffer(self.most_body)
            self._read = False
            if begun:
                self._buffer.add(begun)
        return bool(self.buffer.kept)

    def receive(self) -> Received:
        """Read what arrived without waiting; ``OSError`` if the client hung up."""
        with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            # With TLS each read is one record; the rest shows as readable again.
            for _ in range(_RECORDS):
                if self.buffer.received() is Received.WHOLE:
                    break
                piece = super().recv(_RECORD)
                if not piece:
                    raise _client_gone("hung up")
                self.buffer.add(piece)
        return self.buffer.received()

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001
        """Begin or end an answer; the socket itself never blocks."""
        del flag
        self._until = None
        if self.gettimeout() != 0:
            self.settimeout(0)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return what is kept; empty if the request was not complete after all."""
        del flags
        self._read = True
        return self.buffer.take(buflen)

    def takes_answers(self) -> bool:
        """Tell whether the client takes answers, or lets them pile up."""
        return self._is_ready(select.POLLOUT, 0)

    def sendall(self, data: Any, flags: int = 0) -> None:  # noqa: ANN401
        """Send; ``ConnectionResetError`` if the client does not take the answer."""
        del flags
        if self._until is None:
            self._until = time.monotonic() + self.answer_s
        left = memoryview(data)
        while left:
            try:
                left = left[self.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                left_s = self._until - time.monotonic()
                if left_s <= 0 or not self._is_ready(select.POLLOUT, left_s):
                    raise _client_gone("answer not taken") from None

    def _is_ready(self, for_what: int, within_s: float) -> bool:
        looking = select.poll()
        looking.register(self, for_what)
        return bool(looking.poll(within_s * 1000))


class WholeRequestSocket(_Whole):
    """A socket that never waits: ``recv`` returns what ``receive`` has kept.

    For gunicorn an empty result means that the client hung up.
    """

    @classmethod
    def of(cls, accepted: socket.socket) -> Self:
        """Take over an accepted connection."""
        return cls(fileno=accepted.detach())


class WholeRequestTlsSocket(_Whole, ssl.SSLSocket):
    """The same over TLS, with a handshake that does not wait either."""

    _shaken = False

    def receive(self) -> Received:
        """Do the handshake, then read what arrived; ``OSError`` on hang-up."""
        if not self._shaken:
            try:
                self.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return Received.PART
            self._shaken = True
        return super().receive()


def _client_gone(text: str) -> ConnectionResetError:
    """Return the error by which gunicorn knows that a client went away."""
    return ConnectionResetError(errno.ECONNRESET, text)


REQUEST_S = 5.0
"""Within which a handshake and the first request, or a later one, has to arrive. The
API server itself does not wait longer for a review, as the configurations say."""
_SPARE = 8
"""Connections kept free for the next client."""
_MOST_KEPT = 64 << 20
"""Bytes of all requests that are incomplete or wait for a thread."""
_ALWAYS_KEPT = 1 << 20
"""Bytes that every client address may use, however many others use."""


class WaitingWorker(ThreadWorker):  # type: ignore[misc]
    """Serve connections without waiting for their clients.

    If there are too many, or too many bytes of them, those of the address with the most
    are closed: a client that floods the server does not displace the API server.
    """

    answer_s = 1.0
    """Within which a client has to take an answer, since it occupies a thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        # Until when each may send its request, the earliest first.
        self._deadlines: dict[TConn, float] = {}
        self._busy: dict[TConn, Future[bool]] = {}
        self._sizes: dict[TConn, int] = {}

    def accept(self, listener: socket.socket) -> None:
        """Accept a client without waiting for its first byte."""
        try:
            client, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        try:
            client.setblocking(True)  # noqa: FBT003
            if self.cfg.is_ssl:
                wrapped = ssl_wrap_socket(client, self.cfg)
            else:
                wrapped = WholeRequestSocket.of(client)
        except OSError:
            client.close()
            return
        wrapped.answer_s = self.answer_s
        self.nr_conns += 1
        conn = TConn(self.cfg, wrapped, address, listener.getsockname())
        conn.initialized = True
        conn.parser = http.get_parser(self.cfg, wrapped, address)
        self._receive(conn)

    def on_client_socket_readable(self, conn: TConn, client: socket.socket) -> None:
        """Read the next request of a known client."""
        self.poller.unregister(client)
        self.keepalived_conns.remove(conn)
        self._receive(conn)

    def finish_request(self, conn: TConn, fs: Any) -> None:  # noqa: ANN401
        """Keep the connection for another request, or close it at once.

        gunicorn waits two seconds in the main loop for the client to close first.
        """
        self._sizes.pop(conn, None)
        dropped = self._busy.pop(conn, None) is None
        if dropped or fs.cancelled() or fs.exception() or not fs.result():
            self._close(conn)
        elif conn.sock.begin_next(conn.parser.unreader.take_buffered()):
            conn.sock.setblocking(False)  # noqa: FBT003
            self._receive(conn)
        else:
            super().finish_request(conn, fs)

    def enqueue_req(self, conn: TConn) -> None:
        """Let a thread answer."""
        fs = self._busy[conn] = self.tpool.submit(self.handle, conn)
        fs.add_done_callback(
            partial(self.method_queue.defer, self.finish_request, conn)
        )

    def handle_request(self, req: Any, conn: TConn) -> Any:  # noqa: ANN401
        """Answer; for the last time if what followed the head was dropped."""
        if conn.sock.buffer.cut:
            req.force_close()
            # Otherwise gunicorn would ask for the body before it is refused.
            req._expected_100_continue = False  # noqa: SLF001
        return super().handle_request(req, conn)

    def murder_keepalived(self, force: bool = False) -> None:  # noqa: FBT001, FBT002
        """Close connections silent for too long, or with ``force`` all silent ones."""
        now = time.monotonic()
        silent = self.keepalived_conns
        while silent and (force or silent[0].timeout <= now):
            self._drop(silent[0])

    def murder_pending(self) -> None:
        """Close what is late or too much; gunicorn's loop calls it after all events.

        Not before, since no event may be about a closed connection.
        """
        now = time.monotonic()
        for conn in [one for one, until in self._deadlines.items() if until <= now]:
            self._drop(conn)
        while len(self._connections()) > self.worker_connections - _SPARE:
            if not self._evict_one(lambda _: 1):
                break
        while sum(self._sizes.values()) > _MOST_KEPT:
            if not self._evict_one(lambda one: self._sizes.get(one, 0), _ALWAYS_KEPT):
                break

    def _receive(self, conn: TConn, _client: object = None) -> None:
        """Read; pass a complete request to a thread, or wait for the rest."""
        try:
            received = conn.sock.receive()
        except OSError:
            self._drop(conn)
            return
        if received is not Received.WHOLE:
            self._wait(conn)
        elif conn.sock.takes_answers():
            self._unwait(conn)
            self._sizes[conn] = len(conn.sock.buffer.kept)
            self.enqueue_req(conn)
        else:
            self._drop(conn)

    def _wait(self, conn: TConn) -> None:
        if conn not in self._deadlines:
            self._deadlines[conn] = time.monotonic() + REQUEST_S
            ready = partial(self._receive, conn)
            self.poller.register(conn.sock, EVENT_READ, ready)
        self._sizes[conn] = len(conn.sock.buffer.kept)

    def _unwait(self, conn: TConn) -> None:
        self._sizes.pop(conn, None)
        if self._deadlines.pop(conn, None) is not None:
            self.poller.unregister(conn.sock)

    def _evict_one(self, weigh: Callable[[TConn], int], least: int = 0) -> bool:
        """Close one connection of the address with the most; False if there is none."""
        connections = self._connections()
        weights: Counter[str] = Counter()
        for conn in connections:
            weights[conn.client[0]] += weigh(conn)
        address = max(weights, key=weights.__getitem__, default="")
        if weights[address] <= least:
            return False
        own = (conn for conn in connections if conn.client[0] == address)
        self._drop(next(conn for conn in own if weigh(conn)))
        return True

    def _connections(self) -> tuple[TConn, ...]:
        """Return all connections in the order in which they may be closed.

        First those that send a request, then those silent between two requests, then
        those being answered, the latest first. Not those that are closing already.
        """
        return (*self._deadlines, *self.keepalived_conns, *reversed(self._busy))

    def _drop(self, conn: TConn) -> None:
        """Close a connection; if a thread answers it, after the answer."""
        self._unwait(conn)
        if fs := self._busy.pop(conn, None):
            # Either way ``finish_request`` is called and closes it.
            fs.cancel()
            return
        if conn in self.keepalived_conns:
            self.keepalived_conns.remove(conn)
            self.poller.unregister(conn.sock)
        self._close(conn)

    def _close(self, conn: TConn) -> None:
        # A request that waits for a thread is still in the queue.
        conn.sock.buffer.kept.clear()
        self.nr_conns -= 1
        conn.close()


LINGER_S = 0.05
"""How long a thread waits for the next request before the main loop does."""


class LingeringWorker(WaitingWorker):
    """Let up to half of the threads wait for a client's next request.

    The other half answers any client. So even if there are as many busy clients as
    threads, another client waits for one request at most.
    """

    answer_s = 30.0
    """/snapshot of a large cluster goes through a port-forward."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._lingering = Semaphore(self.cfg.threads // 2)

    def is_parent_alive(self) -> bool:
        """Check the master, and stop lingering threads if it is gone."""
        alive = bool(super().is_parent_alive())
        self.alive &= alive
        return alive

    def handle(self, conn: TConn) -> Any:  # noqa: ANN401
        """Answer a request and those that follow closely; return whether to keep it."""
        kept = super().handle(conn)
        if not self._lingering.acquire(blocking=False):
            return kept
        try:
            while kept is True and self.alive and _asks_again(conn):
                kept = super().handle(conn)
            return kept
        finally:
            self._lingering.release()


def _asks_again(conn: TConn) -> bool:
    """Wait a moment for the complete next request; keep what has arrived of it."""
    sock, until = conn.sock, time.monotonic() + LINGER_S
    sock.begin_next(conn.parser.unreader.take_buffered())
    sock.setblocking(False)  # noqa: FBT003
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    try:
        # Before the poll, which does not see bytes that TLS has already decrypted.
        while sock.receive() is not Received.WHOLE:
            left_s = until - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                return False
    except OSError:
        # The main loop will notice it too.
        return False
    return bool(sock.takes_answers())
