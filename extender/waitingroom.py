"""gunicorn's threaded worker, with a room where half a request waits for the rest.

gunicorn's own hands a connection to a thread with its first byte, and the thread waits
for the others: as many slow clients as there are threads keep everybody else waiting.
Here the main loop hears all of them, and a thread gets a request that is whole.
"""

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from selectors import EVENT_READ
from socket import socket
from typing import TYPE_CHECKING, Any

from gunicorn import http
from gunicorn.sock import ssl_wrap_socket
from gunicorn.workers.gthread import TConn, ThreadWorker

from extender.wholerequest import Heard, WholeRequestSocket

if TYPE_CHECKING:
    from concurrent.futures import Future

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

    def accept(self, listener: socket) -> None:
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

    def on_client_socket_readable(self, conn: TConn, client: socket) -> None:
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
        """Give all connections, those first that are missed least.

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
