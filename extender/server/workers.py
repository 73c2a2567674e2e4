"""gunicorn's threaded worker, with a room where half a request waits for the rest.

gunicorn's own hands a connection to a thread with its first byte, and the thread waits
for the others: as many slow clients as there are threads keep everybody else waiting.
Here the main loop hears all of them, and a thread gets a request that is whole.

Sockets that keep what they hear until a whole request is there.

Who answers requests in threads must not wait in one of them for somebody's next byte:
a few clients that send half a request would take all the threads.

The worker of the verbs: its threads await a client's next request themselves.

gunicorn's own gives a connection back to the main loop after each request: the loop
wakes, waits for it, and wakes a thread anew, and all of them want the interpreter's one
lock. While kube-scheduler works on a queue of pods its next call comes within
milliseconds, and that was a third of all that the extender did.
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
"""Bytes of a request line and its headers; more the parser may judge."""
_RECORD = 64 << 10
_RECORDS = 64
"""Heard at a time, so that nobody has the main loop for himself."""
_END = b"\r\n\r\n"
_MOST_DIGITS = 15
_UNHEARD = {b"transfer-encoding", b"expect"}
"""Fields of requests whose body is not waited for; no API server sends one."""


class Heard(Enum):
    """How much of a request has come."""

    NOTHING = "nothing"
    """The handshake is done, and no byte came after it."""
    PART = "part"
    WHOLE = "whole"


class Pieces:
    """The bytes of a request, one after the other; ``kept`` are those not read yet.

    Of a body longer than ``most_body`` none is kept: its length alone is answered. One
    whose end the head does not tell is not waited for.
    """

    def __init__(self, most_body: int) -> None:
        self.kept = bytearray()
        self._most_body = most_body
        self.cut = False
        """Whether some was thrown away, so that no other request can follow."""
        self._left: int | None = None

    def add(self, piece: bytes) -> None:
        """Take over what came."""
        if self._left is None:
            self.kept += piece
            self._look_for_head()
            return
        self._left -= len(piece)
        if not self.cut:
            self.kept += piece

    def heard(self) -> Heard:
        """Say whether there is enough to answer, if only that it is refused."""
        if self._left is not None:
            return Heard.WHOLE if self._left <= 0 else Heard.PART
        if not self.kept:
            return Heard.NOTHING
        return Heard.WHOLE if len(self.kept) > MOST_HEAD else Heard.PART

    def take(self, most: int) -> bytes:
        """Return the next bytes; none where all were given."""
        with memoryview(self.kept) as kept:
            found = bytes(kept[:most])
        del self.kept[:most]
        return found

    def _look_for_head(self) -> None:
        end = self.kept.find(_END)
        if end < 0:
            return
        fields = dict(_field(line) for line in self.kept[:end].split(b"\r\n")[1:])
        length = fields.get(b"content-length", b"0")
        right = length.isdigit() and len(length) <= _MOST_DIGITS
        known = right and not fields.keys() & _UNHEARD
        body = int(length) if known else 0
        self._left = body - (len(self.kept) - end - len(_END))
        self.cut = not known or body > self._most_body
        if self.cut:
            del self.kept[end + len(_END) :]


def _field(line: bytes | bytearray) -> tuple[bytes, bytes]:
    name, _, value = bytes(line).partition(b":")
    return name.strip().lower(), value.strip()


class _Whole(socket.socket):
    """What both kinds of sockets do."""

    most_body = 8 << 20
    """Bytes of a body that is kept."""
    answer_s = 1.0
    """In which an answer has to go out, from its first byte on to its last."""
    _until: float | None = None
    _pieces: Pieces | None = None
    _read = False
    """Whether some of what is kept was read."""

    @property
    def pieces(self) -> Pieces:
        """What came and was not read."""
        if self._pieces is None:
            self._pieces = Pieces(self.most_body)
        return self._pieces

    def begin_anew(self, unread: bytes) -> bool:
        """Wait for another request; True where some of it came with the one before."""
        if self._read:
            begun = unread + self.pieces.kept
            self._pieces = Pieces(self.most_body)
            self._read = False
            if begun:
                self._pieces.add(begun)
        return bool(self.pieces.kept)

    def hear(self) -> Heard:
        """Take over what came, without waiting for more; ``OSError`` if he hung up."""
        with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            # Of TLS each is one record, so what is left shows as readable again.
            for _ in range(_RECORDS):
                if self.pieces.heard() is Heard.WHOLE:
                    break
                piece = super().recv(_RECORD)
                if not piece:
                    raise _went_away("hung up")
                self.pieces.add(piece)
        return self.pieces.heard()

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001
        """Begin or end an answer; the socket itself never blocks."""
        del flag
        self._until = None
        if self.gettimeout() != 0:
            self.settimeout(0)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return what is kept; nothing where the request was not whole after all."""
        del flags
        self._read = True
        return self.pieces.take(buflen)

    def takes_answers(self) -> bool:
        """Tell whether there is room for one; else he reads none, and has many."""
        return self._is_ready(select.POLLOUT, 0)

    def sendall(self, data: Any, flags: int = 0) -> None:  # noqa: ANN401
        """Send; ``ConnectionResetError`` for who does not take his answer."""
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
                    raise _went_away("answer not taken") from None

    def _is_ready(self, for_what: int, within_s: float) -> bool:
        looking = select.poll()
        looking.register(self, for_what)
        return bool(looking.poll(within_s * 1000))


class WholeRequestSocket(_Whole):
    """Hears without waiting, and is read without waiting: ``recv`` gives what is kept.

    gunicorn takes an empty answer for a client that hung up.
    """

    @classmethod
    def of(cls, accepted: socket.socket) -> Self:
        """Take over a connection."""
        return cls(fileno=accepted.detach())


class WholeRequestTlsSocket(_Whole, ssl.SSLSocket):
    """The same over TLS; shakes hands without waiting, too."""

    _shaken = False

    def hear(self) -> Heard:
        """Shake hands, then take over what came; ``OSError`` for who hung up."""
        if not self._shaken:
            try:
                self.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return Heard.PART
            self._shaken = True
        return super().hear()


def _went_away(words: str) -> ConnectionResetError:
    """Return the error that gunicorn takes for a client that went away."""
    return ConnectionResetError(errno.ECONNRESET, words)


REQUEST_S = 5.0
"""In which a handshake with the first request, or another request, has to come in. The
API server itself gives a review no longer, as the configurations say."""
_SPARE = 8
"""Connections kept free, so that the next one always finds a place."""
_MOST_KEPT = 64 << 20
"""Bytes of requests that are kept at a time, half ones and those that wait their
turn."""
_ALWAYS_KEPT = 1 << 20
"""Bytes that anyone may have there, however full it is."""


class WaitingWorker(ThreadWorker):  # type: ignore[misc]
    """Serves connections whose sockets hear without waiting (``wholerequest``).

    Where there are too many, or too many bytes of them, whoever has most gives way:
    the API server is another address than who floods it.
    """

    answer_s = 1.0
    """In which a client has to take an answer: until then he has a thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        # By when each came, so that the first is the first to be late.
        self._guests: dict[TConn, float] = {}
        self._busy: dict[TConn, Future[bool]] = {}
        self._sizes: dict[TConn, int] = {}

    def accept(self, listener: socket.socket) -> None:
        """Let a client in, without waiting for anything he is to say."""
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
        self._hear(conn)

    def on_client_socket_readable(self, conn: TConn, client: socket.socket) -> None:
        """Hear the next request of one who was let in before."""
        self.poller.unregister(client)
        self.keepalived_conns.remove(conn)
        self._hear(conn)

    def finish_request(self, conn: TConn, fs: Any) -> None:  # noqa: ANN401
        """Keep who may ask again, and close the others at once.

        gunicorn waits for them to close first, two seconds each, in the main loop.
        """
        self._sizes.pop(conn, None)
        sent_away = self._busy.pop(conn, None) is None
        if sent_away or fs.cancelled() or fs.exception() or not fs.result():
            self._close(conn)
        elif conn.sock.begin_anew(conn.parser.unreader.take_buffered()):
            conn.sock.setblocking(False)  # noqa: FBT003
            self._hear(conn)
        else:
            super().finish_request(conn, fs)

    def enqueue_req(self, conn: TConn) -> None:
        """Have a thread answer."""
        fs = self._busy[conn] = self.tpool.submit(self.handle, conn)
        fs.add_done_callback(
            partial(self.method_queue.defer, self.finish_request, conn)
        )

    def handle_request(self, req: Any, conn: TConn) -> Any:  # noqa: ANN401
        """Answer; the last time, where what came after the head was thrown away."""
        if conn.sock.pieces.cut:
            req.force_close()
            # Else gunicorn would ask for the body before we refuse it.
            req._expected_100_continue = False  # noqa: SLF001
        return super().handle_request(req, conn)

    def murder_keepalived(self, force: bool = False) -> None:  # noqa: FBT001, FBT002
        """Close who has not asked for long, or with *force* all who are silent."""
        now = time.monotonic()
        silent = self.keepalived_conns
        while silent and (force or silent[0].timeout <= now):
            self._leave(silent[0])

    def murder_pending(self) -> None:
        """Close who is late or too many; gunicorn's loop calls it after all news.

        Not before: what was closed must not be among the news.
        """
        now = time.monotonic()
        for conn in [one for one, until in self._guests.items() if until <= now]:
            self._leave(conn)
        while len(self._everybody()) > self.worker_connections - _SPARE:
            if not self._send_away(lambda _: 1):
                break
        while sum(self._sizes.values()) > _MOST_KEPT:
            if not self._send_away(lambda one: self._sizes.get(one, 0), _ALWAYS_KEPT):
                break

    def _hear(self, conn: TConn, _client: object = None) -> None:
        """Take over what came; hand over what is whole, wait for the rest of a half."""
        try:
            heard = conn.sock.hear()
        except OSError:
            self._leave(conn)
            return
        if heard is not Heard.WHOLE:
            self._wait(conn)
        elif conn.sock.takes_answers():
            self._unwait(conn)
            self._sizes[conn] = len(conn.sock.pieces.kept)
            self.enqueue_req(conn)
        else:
            self._leave(conn)

    def _wait(self, conn: TConn) -> None:
        if conn not in self._guests:
            self._guests[conn] = time.monotonic() + REQUEST_S
            ready = partial(self._hear, conn)
            self.poller.register(conn.sock, EVENT_READ, ready)
        self._sizes[conn] = len(conn.sock.pieces.kept)

    def _unwait(self, conn: TConn) -> None:
        self._sizes.pop(conn, None)
        if self._guests.pop(conn, None) is not None:
            self.poller.unregister(conn.sock)

    def _send_away(self, weigh: Callable[[TConn], int], least: int = 0) -> bool:
        """Close one connection of the address that has most; False where none has."""
        everybody = self._everybody()
        weights: Counter[str] = Counter()
        for conn in everybody:
            weights[conn.client[0]] += weigh(conn)
        address = max(weights, key=weights.__getitem__, default="")
        if weights[address] <= least:
            return False
        his = (conn for conn in everybody if conn.client[0] == address)
        self._leave(next(conn for conn in his if weigh(conn)))
        return True

    def _everybody(self) -> tuple[TConn, ...]:
        """Return all connections, those first that are missed least.

        Who is heard, who is silent between two requests, and who is being answered,
        him whose turn is last before the others. Not who is sent away already.
        """
        return (*self._guests, *self.keepalived_conns, *reversed(self._busy))

    def _leave(self, conn: TConn) -> None:
        """Close a connection; one that a thread answers by now, after its answer."""
        self._unwait(conn)
        if fs := self._busy.pop(conn, None):
            # Either way ``finish_request`` is called, and closes it.
            fs.cancel()
            return
        if conn in self.keepalived_conns:
            self.keepalived_conns.remove(conn)
            self.poller.unregister(conn.sock)
        self._close(conn)

    def _close(self, conn: TConn) -> None:
        # Where its turn has not come, the queue of the threads still knows it.
        conn.sock.pieces.kept.clear()
        self.nr_conns -= 1
        conn.close()


LINGER_S = 0.05
"""How long a thread awaits the next request before the main loop does."""


class LingeringWorker(WaitingWorker):
    """Half of its threads may stay with a client; the others answer whoever comes.

    So as many clients as there are threads, each busy all the time, keep nobody else
    waiting for longer than a request takes.
    """

    answer_s = 30.0
    """/snapshot of a large cluster goes through a port-forward."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._seats = Semaphore(self.cfg.threads // 2)

    def is_parent_alive(self) -> bool:
        """Tell it to those who linger, too: a new master starts a worker of its own."""
        alive = bool(super().is_parent_alive())
        self.alive &= alive
        return alive

    def handle(self, conn: TConn) -> Any:  # noqa: ANN401
        """Answer a request, and those that follow closely; say whether to keep it."""
        kept = super().handle(conn)
        if not self._seats.acquire(blocking=False):
            return kept
        try:
            while kept is True and self.alive and _asks_again(conn):
                kept = super().handle(conn)
            return kept
        finally:
            self._seats.release()


def _asks_again(conn: TConn) -> bool:
    """Wait a moment for the whole next request; what came of a half one is kept."""
    sock, until = conn.sock, time.monotonic() + LINGER_S
    sock.begin_anew(conn.parser.unreader.take_buffered())
    sock.setblocking(False)  # noqa: FBT003
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    try:
        # Before the poll, which does not see what TLS has decrypted already.
        while sock.hear() is not Heard.WHOLE:
            left_s = until - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                return False
    except OSError:
        # The main loop will see it too.
        return False
    return bool(sock.takes_answers())
