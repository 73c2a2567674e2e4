"""The page on this machine's loopback: its two paths, and no way to anything else.

A bare port-forward would open the extender's verbs to whatever runs here, pages in the
browser too, and whoever reaches them can bind pods. Here only GET goes through, only to
the page, and only for who knows the address, of which a part is secret.
"""

import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

import orjson

from gpushare.kube.errors import ClusterError
from gpushare.kube.pagepolicy import STATE_HEADERS, page_headers
from gpushare.listening import LOOPBACK

PAGE, STATE = "/ui", "/ui/state"
_JSON = {"Content-Type": "application/json"}
_NAMES = frozenset({LOOPBACK, "localhost"})
_SECRET_BYTES = 12
_SILENCE_S = 10.0


class Window(ThreadingHTTPServer):
    """Serves what ``get`` reads of an extender; ``OSError`` where the port is taken.

    ``port`` 0 takes a free one.
    """

    daemon_threads = True

    def __init__(self, port: int, get: Callable[[str], bytes]) -> None:
        self.get = get
        self.place = f"/{secrets.token_urlsafe(_SECRET_BYTES)}"
        super().__init__((LOOPBACK, port), _Handler)

    def server_bind(self) -> None:
        """Bind, without asking DNS for the host's name as the parent would."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    @property
    def url(self) -> str:
        """The whole address, the secret with it."""
        return f"http://{LOOPBACK}:{self.server_port}{self.place}{PAGE}"


class _Handler(BaseHTTPRequestHandler):
    server: Window
    timeout = _SILENCE_S

    def do_GET(self) -> None:
        """Answer the page and its state; whatever else is not there."""
        if not self._is_for_us():
            self._refuse(HTTPStatus.NOT_FOUND, "not here: see what gpusharectl ui says")
            return
        path = self.path.partition("?")[0].removeprefix(self.server.place)
        try:
            body = self.server.get(path)
        except ClusterError as error:
            self._refuse(HTTPStatus.BAD_GATEWAY, str(error))
            return
        headers = page_headers(body) if path == PAGE else {**STATE_HEADERS, **_JSON}
        self._send(HTTPStatus.OK, body, headers)

    def _is_for_us(self) -> bool:
        # By another name it is a page from elsewhere, whose DNS has come to point here.
        if self.headers.get("Host", "").partition(":")[0] not in _NAMES:
            return False
        asked = self.path.partition("?")[0].encode()
        ours = ((self.server.place + path).encode() for path in (PAGE, STATE))
        return any(secrets.compare_digest(asked, path) for path in ours)

    def _refuse(self, status: HTTPStatus, words: str) -> None:
        body = orjson.dumps({"error": words})
        self._send(status, body, {**STATE_HEADERS, **_JSON})

    def _send(
        self, status: HTTPStatus, body: bytes, headers: Mapping[str, str]
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: the page asks all the time."""
