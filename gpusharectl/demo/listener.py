"""The demo's API server on the wire: HTTP/1.1 with kept connections and chunks."""

import logging
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Event, Lock
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Invalid
from gpushare.kube.fields import Malformed
from gpushare.listening import LOOPBACK
from gpusharectl.demo.answers import Answer, failure
from gpusharectl.demo.bodies import UNREAD, content_type, read_body
from gpusharectl.demo.discovery import documents
from gpusharectl.demo.requests import Refused, Request, place_of
from gpusharectl.demo.verbs import Verbs

logger = logging.getLogger(__name__)

_BUFFER = 1 << 16
_JSON = "application/json"
_HEALTH = ("/healthz", "/livez", "/readyz")
_OURS = (LOOPBACK, "localhost")


class Handler(BaseHTTPRequestHandler):
    """One connection of one client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = _BUFFER
    server: "Server"

    def setup(self) -> None:
        """Let the server know of the connection."""
        super().setup()
        self.server.met(self.connection)

    def handle(self) -> None:
        """Serve until the client hangs up, which is no error."""
        with suppress(ConnectionError):
            super().handle()

    def finish(self) -> None:
        """Close; what could not be sent is not missed."""
        self.server.parted(self.connection)
        with suppress(ConnectionError):
            super().finish()

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Answer what is no proper HTTP with a Status, as everything else."""
        self.close_connection = True
        status = HTTPStatus(code)
        text = message or explain or status.phrase
        self._send(failure(Refused(status, text)))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say what was asked only to those who want to know everything."""
        logger.debug("request", extra={"request": format % args})

    def _serve(self) -> None:
        try:
            answer = self._answer()
        except Refused as error:
            self.close_connection = self.close_connection or error.status in UNREAD
            answer = failure(error)
        except ClusterError as error:
            answer = failure(error)
        except Malformed as error:
            answer = failure(Invalid(str(error)))
        self._send(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _answer(self) -> Answer:
        body = read_body(self.headers, self.rfile)
        url = urlsplit(self.path)
        # A page in a browser can make any name mean this machine, but not this header.
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in _OURS:
            raise Refused(HTTPStatus.FORBIDDEN, "this server is for this machine alone")
        path = unquote(url.path)
        if self.command == "GET" and path in self.server.documents:
            return Answer(HTTPStatus.OK, self.server.documents[path])
        accept = self.headers.get("Accept", "")
        if accept and "json" not in accept and "*" not in accept:
            raise Refused(
                HTTPStatus.NOT_ACCEPTABLE, f"only JSON is served, no {accept}"
            )
        request = Request(
            method=self.command,
            place=place_of(path),
            query=dict(parse_qsl(url.query, keep_blank_values=True)),
            body=body,
            content_type=content_type(self.headers),
            accept=accept,
        )
        return self.server.verbs.answer(request)

    def _send(self, answer: Answer) -> None:
        if isinstance(answer.body, Iterator):
            self._stream(answer.body)
            return
        if isinstance(answer.body, str):
            kind, content = "text/plain", answer.body.encode()
        else:
            kind, content = _JSON, orjson.dumps(answer.body)
        self.send_response(answer.status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def _stream(self, told: Iterator[Json]) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", _JSON)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        with closing(told):  # type: ignore[type-var]
            for one in told:
                if self.server.stopping.is_set() or self._is_alone():
                    self.close_connection = True
                    return
                if one:
                    line = orjson.dumps(one) + b"\n"
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
                    self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _is_alone(self) -> bool:
        try:
            flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
            return not self.connection.recv(1, flags)
        except BlockingIOError:
            return False


class Server(ThreadingHTTPServer):
    """One thread a connection; it knows them all, so that it can end them."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, port: int, verbs: Verbs) -> None:
        self.verbs = verbs
        self.documents: dict[str, Json | str] = {**documents()}
        self.documents |= dict.fromkeys(_HEALTH, "ok")
        self.stopping = Event()
        self._open: set[socket.socket] = set()
        self._lock = Lock()
        super().__init__((LOOPBACK, port), Handler)

    def server_bind(self) -> None:
        """Take the port, and no time."""
        # HTTPServer's own asks DNS for the machine's name, which may take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, int(self.server_address[1])

    def met(self, connection: socket.socket) -> None:
        """Take note of a connection."""
        with self._lock:
            self._open.add(connection)

    def parted(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._lock:
            self._open.discard(connection)

    def hang_up(self) -> None:
        """End all connections; their threads are waited for in ``server_close``."""
        self.stopping.set()
        with self._lock:
            for connection in self._open:
                # Closing alone would not wake the thread that reads from it.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Log what should not have happened; the client only loses its connection."""
        # It is called while the exception is being handled.
        facts = {"client": str(client_address)}
        logger.exception("request failed", extra=facts)  # noqa: LOG004
