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
from typing import Any

from gunicorn import http
from gunicorn.sock import ssl_wrap_socket
from gunicorn.workers.gthread import TConn, ThreadWorker

from extender.wholerequest import Heard

REQUEST_S = 5.0
"""In which a handshake or a request has to come in. The API server itself gives a
review no longer, as the configurations say."""
_SPARE = 8
"""Connections kept free, so that the next one always finds a place."""
_MOST_KEPT = 64 << 20
"""Bytes of requests, half and whole, that are kept at a time."""
_ALWAYS_KEPT = 1 << 20
"""Bytes that anyone may have there, however full it is."""


class WaitingWorker(ThreadWorker):  # type: ignore[misc]
    """Serves connections of a ``WholeRequestSocket``.

    Where there are too many, or too many bytes of them, whoever has most gives way:
    the API server is another address than who floods it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        # By when each came, so that the first is the first to be late.
        self._guests: dict[TConn, float] = {}
        self._sizes: dict[TConn, int] = {}

    def accept(self, listener: socket) -> None:
        """Let a client in, without waiting for anything he is to say."""
        try:
            client, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        try:
            client.setblocking(True)  # noqa: FBT003
            wrapped = ssl_wrap_socket(client, self.cfg)
        except OSError:
            client.close()
            return
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
        if fs.cancelled() or fs.exception() or not fs.result():
            self._close(conn)
        elif conn.sock.begin_anew(conn.parser.unreader.take_buffered()):
            conn.sock.setblocking(False)  # noqa: FBT003
            self._hear(conn)
        else:
            super().finish_request(conn, fs)

    def murder_pending(self) -> None:
        """Close who is late or too many; gunicorn's loop calls it after all news.

        Not before: what was closed must not be among the news.
        """
        now = time.monotonic()
        for conn in [one for one, until in self._guests.items() if until <= now]:
            self._leave(conn)
        while self.nr_conns > self.worker_connections - _SPARE:
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
        if heard is Heard.PART:
            self._wait(conn)
        elif heard is Heard.NOTHING:
            self._unwait(conn)
            conn.set_timeout()
            self.keepalived_conns.append(conn)
            ready = partial(self.on_client_socket_readable, conn)
            self.poller.register(conn.sock, EVENT_READ, ready)
        else:
            self._unwait(conn)
            self._sizes[conn] = len(conn.sock.pieces.kept)
            self.enqueue_req(conn)

    def _wait(self, conn: TConn) -> None:
        if conn not in self._guests:
            self._guests[conn] = time.monotonic() + REQUEST_S
            ready = partial(self._hear, conn)
            self.poller.register(conn.sock, EVENT_READ, ready)
        self._sizes[conn] = len(conn.sock.pieces.kept)

    def _unwait(self, conn: TConn) -> None:
        if self._guests.pop(conn, None) is not None:
            self.poller.unregister(conn.sock)

    def _send_away(self, weigh: Callable[[TConn], int], least: int = 0) -> bool:
        """Close one connection of the address that has most; False where none has.

        One that is heard first, then one that is silent between two requests.
        """
        waiting = (*self._guests, *self.keepalived_conns)
        weights: Counter[str] = Counter()
        for conn in waiting:
            weights[conn.client[0]] += weigh(conn)
        address = max(weights, key=weights.__getitem__, default="")
        if weights[address] <= least:
            return False
        self._leave(next(conn for conn in waiting if conn.client[0] == address))
        return True

    def _leave(self, conn: TConn) -> None:
        self._unwait(conn)
        if conn in self.keepalived_conns:
            self.keepalived_conns.remove(conn)
            self.poller.unregister(conn.sock)
        self._close(conn)

    def _close(self, conn: TConn) -> None:
        self._sizes.pop(conn, None)
        self.nr_conns -= 1
        conn.close()
