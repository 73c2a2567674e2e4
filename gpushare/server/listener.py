"""An HTTP server for read-only pages, used by all processes.

One thread waits for all clients, so a slow client costs a socket and no thread. Each
request has a deadline. The number of connections is limited: a new one replaces the
oldest one that waits for its client. A connection serves one request, because scrapes
and probes come seconds apart (decision 0021).
"""

import asyncio
import logging
import math
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from threading import Thread
from typing import Self
from urllib.parse import urlsplit
from wsgiref.types import WSGIApplication, WSGIEnvironment

from gpushare.addresses import listen
from gpushare.server.wsgi import make_environ, make_page
from gpushare.settings import Address

logger = logging.getLogger(__name__)

WITHIN_S = 30.0
"""From the connection to the last byte of the answer. Prometheus gives up after 10 s
by default."""
MOST_CONNECTIONS = 64
"""For all addresses of a listener together."""
_MOST_HEAD = 64 << 10
_END = b"\r\n\r\n"
_BACKLOG = 128
_AGAIN_S = 0.1
"""The pause after ``accept`` failed."""
_WARN_EVERY_S = 60.0


class Listener:
    """Serve an application on each of several addresses; a context manager.

    The constructor binds the addresses and raises ``OSError`` if it cannot. An
    application is called in a thread, for GET and HEAD only.
    """

    def __init__(
        self, served: Mapping[Address, WSGIApplication], *, within_s: float = WITHIN_S
    ) -> None:
        self._within_s = within_s
        with ExitStack() as unless_all:
            self._served = [
                (unless_all.enter_context(_bound(address)), application)
                for address, application in served.items()
            ]
            unless_all.pop_all()
        # As many as connections, so that slow pages do not delay a probe.
        self._free_threads = asyncio.Semaphore(MOST_CONNECTIONS)
        self._open: dict[asyncio.Task[None], bool] = {}
        """Oldest first; whether it waits for the application and not its client."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Serve in daemon threads."""
        self._loop = asyncio.new_event_loop()
        self._accepting = [
            self._loop.create_task(self._accept(listening, application))
            for listening, application in self._served
        ]
        self._thread = Thread(target=self._loop.run_forever, name="http", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; open requests are cut off."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        ending = [*self._accepting, *self._open]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for listening, _ in self._served:
            listening.close()

    async def _accept(
        self, listening: socket.socket, application: WSGIApplication
    ) -> None:
        """Accept connections; wait if the process has no file descriptor left."""
        warned_at = -math.inf
        while True:
            try:
                client, _ = await self._loop.sock_accept(listening)
            except OSError as error:
                if self._loop.time() > warned_at + _WARN_EVERY_S:
                    logger.warning("cannot accept", extra={"because": str(error)})
                    warned_at = self._loop.time()
                self._close_oldest()
                await asyncio.sleep(_AGAIN_S)
                continue
            if len(self._open) >= MOST_CONNECTIONS:
                self._close_oldest()
            task = self._loop.create_task(self._serve(client, application))
            self._open[task] = False
            task.add_done_callback(lambda done: self._open.pop(done, None))
            # Otherwise accepting new connections would starve the open ones.
            await asyncio.sleep(0)

    def _close_oldest(self) -> None:
        """Close the oldest connection that waits for its client, else the oldest."""
        waiting = (task for task, for_us in self._open.items() if not for_us)
        oldest = next(waiting, None) or next(iter(self._open), None)
        if oldest is not None:
            del self._open[oldest]
            oldest.cancel()

    async def _serve(self, client: socket.socket, application: WSGIApplication) -> None:
        """Answer one request; ``TimeoutError`` is an ``OSError`` too.

        ``RuntimeError`` means that the interpreter exits and starts no more threads.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  it is one
        with client, suppress(OSError, RuntimeError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._within_s):
                if not (head := await self._head(client)):
                    return
                self._open[task] = True
                exchange = await self._call(head, application)
                self._open[task] = False
                for piece in exchange.pieces:
                    await self._loop.sock_sendall(client, piece)

    async def _call(self, head: bytes, application: WSGIApplication) -> "_Exchange":
        """Call the application in a daemon thread.

        The process would not end before the threads of an executor, however long the
        application waits for others.
        """
        await self._free_threads.acquire()
        future = Future["_Exchange"]()

        def run() -> None:
            try:
                future.set_result(_Exchange(head, application))
            except BaseException as error:  # noqa: BLE001  the waiting task raises it
                future.set_exception(error)
            # The loop is closed when the listener is.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._free_threads.release)

        future.set_running_or_notify_cancel()
        try:
            Thread(target=run, name="page", daemon=True).start()
        except RuntimeError:
            self._free_threads.release()
            raise
        return await asyncio.wrap_future(future)

    async def _head(self, client: socket.socket) -> bytes:
        """Read a request's head; empty if the client closed before its end."""
        head = bytearray()
        while _END not in head and len(head) < _MOST_HEAD:
            piece = await self._loop.sock_recv(client, _MOST_HEAD)
            if not piece:
                return b""
            head += piece
        return bytes(head)


def _bound(address: Address) -> socket.socket:
    listening = listen(address, _BACKLOG)
    listening.setblocking(False)  # noqa: FBT003
    return listening


class _Exchange(BaseHTTPRequestHandler):
    """One request and its answer, in memory."""

    protocol_version = "HTTP/1.1"

    def __init__(self, head: bytes, application: WSGIApplication) -> None:
        # Without the parent's constructor, which would read from a socket.
        self.rfile, self.wfile = BytesIO(head), BytesIO()
        self._body: tuple[bytes, ...] = ()
        self.raw_requestline = self.rfile.readline()
        if self.parse_request():
            self._apply(application, whole=_END in head)
        body = () if self.command == "HEAD" else self._body
        # The answer; a long page is not copied.
        self.pieces = (self.wfile.getvalue(), *body)

    def _apply(self, application: WSGIApplication, *, whole: bool) -> None:
        if not whole:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self.request_version == self.default_request_version:
            # HTTP/0.9, which no client has used for decades.
            self.send_error(HTTPStatus.BAD_REQUEST)
        elif self.command not in {"GET", "HEAD"}:
            words = b"use GET\n"
            self._say(HTTPStatus.METHOD_NOT_ALLOWED, words, [("Allow", "GET, HEAD")])
        else:
            try:
                target = urlsplit(self.path)
            except ValueError:
                self.send_error(HTTPStatus.BAD_REQUEST)
                return
            # An application may leave the body out for HEAD, whose length is GET's.
            headers = self.headers.items()
            environ = make_environ("GET", target.path, target.query, headers)
            self._call(application, environ)

    def _call(self, application: WSGIApplication, environ: WSGIEnvironment) -> None:
        try:
            status, headers, body = make_page(application, environ)
            http_status = HTTPStatus(status)
        except Exception:
            logger.exception("no answer", extra={"path": environ["PATH_INFO"]})
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self._begin(http_status, sum(map(len, body)), headers)
        self._body = body

    def _say(
        self, status: HTTPStatus, words: bytes, more: Iterable[tuple[str, str]] = ()
    ) -> None:
        plain = ("Content-Type", "text/plain; charset=utf-8")
        self._begin(status, len(words), [plain, *more])
        self._body = (words,)

    def _begin(
        self, status: HTTPStatus, length: int, headers: Iterable[tuple[str, str]]
    ) -> None:
        # Otherwise a request without a version gets an answer without a head.
        self.request_version = self.protocol_version
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"content-length", "connection"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Answer with the status only; nothing of the request is repeated."""
        del message, explain
        status = HTTPStatus(code)
        self._say(status, f"{status.phrase.lower()}\n".encode())
