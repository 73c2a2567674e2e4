"""The exporter's HTTP: the standard library's server, and nobody can hold it up.

A thread for each connection, so that one who sends nothing, or reads nothing, keeps
only its own waiting, and that until a deadline; when there are too many connections,
the oldest goes. One request each: a scrape every few seconds has no use for more.
"""

import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from gpushare.listening import socket_address
from gpushare.settings import Address

logger = logging.getLogger(__name__)

WITHIN_S = 10.0
"""How long a client may take to send anything, and to read all of an answer."""
_MOST_CONNECTIONS = 64
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked; names of headers in small letters."""

    method: str
    path: str
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered; the length is told by the server."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Pages = Callable[[Request], Response]
"""Make the answer to a request; from any thread, and without waiting for anybody."""

_BAD = Response(b"bad request\n", status=HTTPStatus.BAD_REQUEST)
_BROKEN = Response(b"error\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)
_READ_ONLY = Response(
    b"use GET\n",
    status=HTTPStatus.METHOD_NOT_ALLOWED,
    headers={"Allow": "GET, HEAD"},
)


class Listener:
    """Serves several addresses, each with pages of its own, while it is entered.

    They are taken when it is made: ``OSError`` where one cannot be had.
    """

    def __init__(
        self, served: Mapping[Address, Pages], *, within_s: float = WITHIN_S
    ) -> None:
        self._connections = _Connections()
        with ExitStack() as unless_all:
            self._servers = [
                unless_all.enter_context(
                    _Server(at, pages, self._connections, within_s)
                )
                for at, pages in served.items()
            ]
            unless_all.pop_all()

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(
                target=server.serve_forever, args=(_POLL_S,), name="http", daemon=True
            ).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Requests under way are cut off.
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._connections.cut_off()


class _Connections:
    """All that are open, oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[socket.socket, None] = OrderedDict()

    def add(self, one: socket.socket) -> None:
        """Take one in; of too many the oldest goes: an answer takes milliseconds."""
        with self._lock:
            self._open[one] = None
            if len(self._open) > _MOST_CONNECTIONS:
                _end(self._open.popitem(last=False)[0])

    def drop(self, one: socket.socket) -> None:
        """Forget one that is about to be closed."""
        with self._lock:
            self._open.pop(one, None)

    def cut_off(self) -> None:
        """End them all."""
        with self._lock:
            while self._open:
                _end(self._open.popitem()[0])


class _Server(ThreadingHTTPServer):
    """One address."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, at: Address, pages: Pages, connections: _Connections, within_s: float
    ) -> None:
        self.address_family, where = socket_address(at)
        self.pages = pages
        self.within_s = within_s
        self._connections = connections
        super().__init__(where, _Handler)

    def server_bind(self) -> None:
        """Take the address, and ask nobody for its name, as HTTPServer would."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Take a connection in."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        """Let a connection go."""
        self._connections.drop(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Say nothing of clients that went away, or were sent away."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: _Server
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        """Give the client its deadlines: of each read, and of all that it is sent."""
        self.request.settimeout(self.server.within_s)
        super().setup()

    def parse_request(self) -> bool:
        """Read the request's head; False where that failed, and was answered."""
        if not super().parse_request():
            return False
        if self.request_version == self.default_request_version:
            # One without a version, as no client has written them for decades.
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        return True

    def do_GET(self) -> None:
        """Answer."""
        self._send(self._page(), silent=False)

    def do_HEAD(self) -> None:
        """Answer without the body."""
        self._send(self._page(), silent=True)

    def do_POST(self) -> None:
        """Refuse: there is nothing to write here."""
        self._send(_READ_ONLY, silent=False)

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815

    def _page(self) -> Response:
        try:
            parts = urlsplit(self.path)
        except ValueError:
            return _BAD
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(
            self.command, unquote(parts.path), parse_qs(parts.query), headers
        )
        try:
            return self.server.pages(request)
        except Exception:
            logger.exception("no answer", extra={"path": request.path})
            return _BROKEN

    def _send(self, response: Response, *, silent: bool) -> None:
        self.send_response_only(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        # It also makes this the connection's last request.
        self.send_header("Connection", "close")
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if not silent:
            self.wfile.write(response.body)

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Answer what could not be read, in one line; nothing of it is given back."""
        del message, explain
        status = HTTPStatus(code)
        words = f"{status.phrase.lower()}\n".encode()
        self.close_connection = True
        # Else what has no version of its own is answered without a head.
        self.request_version = self.protocol_version
        self._send(Response(words, status=status), silent=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: a scrape is no event."""


def _end(one: socket.socket) -> None:
    """Wake whoever waits for it; its own thread closes it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
