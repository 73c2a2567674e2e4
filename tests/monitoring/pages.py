"""A small HTTP server for what a test wants read, or taken."""

import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import NamedTuple, Self

LOOPBACK = "127.0.0.1"


class PageAnswer(NamedTuple):
    status: int
    kind: str
    body: bytes


class PageServer:
    """Answers each GET with ``answer(path)``, the query included.

    The body of a POST goes to ``take`` with its path.
    """

    def __init__(
        self,
        answer: Callable[[str], PageAnswer],
        host: str = LOOPBACK,
        tls: SSLContext | None = None,
        take: Callable[[str, bytes], None] = lambda _path, _body: None,
    ) -> None:
        class Request(BaseHTTPRequestHandler):
            # A caller that hangs must not keep the server from closing.
            timeout = 10

            def do_GET(self) -> None:
                made = answer(self.path)
                self.send_response(made.status)
                self.send_header("Content-Type", made.kind)
                self.send_header("Content-Length", str(len(made.body)))
                # Who lost patience on a busy machine asks again.
                with suppress(ConnectionError):
                    self.end_headers()
                    self.wfile.write(made.body)

            def do_POST(self) -> None:
                take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer((host, 0), Request)
        # Else the server would not end while somebody hangs, nor say what went wrong.
        self._server.daemon_threads = False
        if tls is not None:
            # The handshake is each request's own, or one caller would hold up all.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.port = int(self._server.server_address[1])
        self.address = f"{host}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class MetricsPage:
    """A page of metrics that a test writes, and writes anew."""

    text = ""

    def answer(self, _path: str) -> PageAnswer:
        return PageAnswer(200, "text/plain; version=0.0.4", self.text.encode())
