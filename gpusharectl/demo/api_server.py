"""Serve the cluster in memory over loopback HTTP, at the paths of the API server.

A real kubectl works with it by its default flags, and so do the extender and the device
plugin. Connections are kept and watches are chunked, as with the real one;
docs/decisions (0012) says why this is not a server of werkzeug.
"""

import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from pathlib import Path
from socketserver import TCPServer
from threading import Event, Lock, Thread
from types import MappingProxyType
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson

from gpushare.addresses import LOOPBACK
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Invalid
from gpushare.kube.json_reader import Malformed
from gpusharectl.demo.api_verbs import (
    ApiAnswer,
    ApiPath,
    ApiRequest,
    ApiVerbs,
    RequestRefused,
    failure_answer,
)
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.demo.kubectl import discovery_documents

LARGEST_BODY = 3 * 1024 * 1024
"""The largest body in bytes, as on the real one."""
_UNREAD = (HTTPStatus.LENGTH_REQUIRED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
"""Refusals after which the rest of the connection cannot be read."""
_DRAINED = 16 * LARGEST_BODY
_CHUNK = 1 << 16


def _read_body(headers: Message, stream: BufferedIOBase) -> Json:
    """Read a JSON object; empty if there is no body. Raises ``RequestRefused``."""
    raw = _read_bytes(headers, stream)
    if not raw:
        return {}
    kind = headers.get_content_type() if "Content-Type" in headers else "of no type"
    if not kind.endswith("json"):
        message = f"the body is {kind}; send JSON"
        raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        message = f"the body is no JSON: {error}"
        raise RequestRefused(HTTPStatus.BAD_REQUEST, message) from error
    if not isinstance(body, dict):
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "the body must be an object")
    return body


def _read_bytes(headers: Message, stream: BufferedIOBase) -> bytes:
    text = headers.get("Content-Length", "0")
    if "Transfer-Encoding" in headers or not text.isdecimal():
        raise RequestRefused(HTTPStatus.LENGTH_REQUIRED, "send a Content-Length")
    if (length := int(text)) <= LARGEST_BODY:
        return stream.read(length)
    _drain(stream, min(length, _DRAINED))
    message = f"the body has {length} bytes; the limit is {LARGEST_BODY}"
    raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)


def _drain(stream: BufferedIOBase, remaining: int) -> None:
    # If the connection were closed now, the client would be reset before it reads why.
    while remaining > 0 and (read := stream.read(min(remaining, _CHUNK))):
        remaining -= len(read)


logger = logging.getLogger(__name__)

_BUFFER = 1 << 16
_POLL_S = 0.05
"""How soon the thread that accepts connections notices that it is to end."""
_JSON = "application/json"
_HEALTH = ("/healthz", "/livez", "/readyz")
_OURS = (LOOPBACK, "localhost")


class ApiRequestHandler(BaseHTTPRequestHandler):
    """One connection of one client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = _BUFFER
    server: "ApiServerOnLoopback"

    def handle(self) -> None:
        """Serve until the client closes the connection, which is not an error."""
        with self.server.remembered(self.connection), suppress(ConnectionError):
            super().handle()

    def finish(self) -> None:
        """Close; what cannot be sent any more is dropped."""
        with suppress(ConnectionError):
            super().finish()

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Answer what is not proper HTTP with a Status, as every other error."""
        self.close_connection = True
        status = HTTPStatus(code)
        text = message or explain or status.phrase
        self._send(failure_answer(RequestRefused(status, text)))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log requests for debugging only."""
        logger.debug("request", extra={"request": format % args})

    def _serve(self) -> None:
        try:
            answer = self._answer()
        except RequestRefused as error:
            self.close_connection = self.close_connection or error.status in _UNREAD
            answer = failure_answer(error)
        except ClusterError as error:
            answer = failure_answer(error)
        except Malformed as error:
            answer = failure_answer(Invalid(str(error)))
        self._send(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _answer(self) -> ApiAnswer:
        body = _read_body(self.headers, self.rfile)
        url = urlsplit(self.path)
        # A page in a browser can make any name mean this machine, but not this header.
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in _OURS:
            raise RequestRefused(
                HTTPStatus.FORBIDDEN, "this server is for this machine alone"
            )
        path = unquote(url.path)
        if self.command == "GET" and path in self.server.documents:
            return ApiAnswer(HTTPStatus.OK, self.server.documents[path])
        if self.command == "GET" and path in self.server.elsewhere:
            return ApiAnswer(HTTPStatus.FOUND, "", self.server.elsewhere[path])
        accept = self.headers.get("Accept", "")
        if accept and "json" not in accept and "*" not in accept:
            raise RequestRefused(
                HTTPStatus.NOT_ACCEPTABLE, f"only JSON is served, no {accept}"
            )
        request = ApiRequest(
            method=self.command,
            place=ApiPath.parse(path),
            query=dict(parse_qsl(url.query, keep_blank_values=True)),
            body=body,
            content_type=self.headers["Content-Type"]
            and self.headers.get_content_type(),
            accept=accept,
        )
        return self.server.verbs.answer(request)

    def _send(self, answer: ApiAnswer) -> None:
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
        if answer.location:
            self.send_header("Location", answer.location)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def _stream(self, events: Iterator[Json]) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", _JSON)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        with closing(events):  # type: ignore[type-var]
            for event in events:
                if self.server.stopping.is_set() or self._is_alone():
                    self.close_connection = True
                    return
                if event:
                    line = orjson.dumps(event) + b"\n"
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


class ApiServerOnLoopback(ThreadingHTTPServer):
    """Serves a cluster to this machine alone, without TLS and without passwords.

    Watches end within the cluster's interval between bookmarks after ``stop``.
    ``build`` ends the version by which clients know what this is. A GET of a path of
    ``elsewhere`` is redirected to its URL.
    """

    daemon_threads = False
    request_queue_size = 128

    def __init__(
        self,
        cluster: Embedded,
        build: str = "",
        elsewhere: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.verbs = ApiVerbs(cluster)
        self.elsewhere = elsewhere
        self.documents: dict[str, Json | str] = {**discovery_documents(build)}
        self.documents |= dict.fromkeys(_HEALTH, "ok")
        self.stopping = Event()
        self._open: set[socket.socket] = set()
        self._lock = Lock()
        super().__init__((LOOPBACK, 0), ApiRequestHandler)
        self._thread = Thread(
            target=self.serve_forever, args=(_POLL_S,), name="demo-apiserver"
        )

    @property
    def url(self) -> str:
        """Where it serves: ``http://127.0.0.1:<port>``."""
        return f"http://{LOOPBACK}:{self.server_port}"

    def start(self) -> None:
        """Begin to serve; the port is taken since the constructor."""
        self._thread.start()

    def stop(self) -> None:
        """End all connections and release the port."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        self.stopping.set()
        with self._lock:
            for connection in self._open:
                # Closing alone would not wake the thread that reads from it.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        # This waits for the threads of all connections.
        self.server_close()

    def server_bind(self) -> None:
        """Bind the port without asking DNS."""
        # HTTPServer's own asks DNS for the machine's name, which may take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, int(self.server_address[1])

    @contextmanager
    def remembered(self, connection: socket.socket) -> Iterator[None]:
        """Know a connection while it is served."""
        with self._lock:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(connection)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Log an unexpected error; the client loses its connection only."""
        # This is called while the exception is being handled.
        facts = {"client": str(client_address)}
        logger.exception("request failed", extra=facts)  # noqa: LOG004

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for this server, readable by its owner alone."""
        name = "gpushare-demo"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": self.url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        return path

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
