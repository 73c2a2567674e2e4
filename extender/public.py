"""The read-only listener, with threads, connections and deadlines of its own.

Anybody in the cluster may reach it. Were it one of gunicorn's listeners, a handful of
connections that never finish their request would take the threads that answer
kube-scheduler; here they take one another's places.
"""

from socketserver import TCPServer, ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

from gpushare.listening import socket_address
from gpushare.settings import Address

_MOST_CONNECTIONS = 32
_SILENCE_S = 5.0


class PublicServer(ThreadingMixIn, WSGIServer):
    """Serves one application, each request on a connection and thread of its own."""

    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, address: Address, application: WSGIApplication) -> None:
        self.address_family, where = socket_address(address)
        self._free = BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(where, _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Bind, without asking DNS for the host's name as the parent would."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Answer in a thread; hang up when all of them are taken."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Give the place back, whatever came of the request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Say nothing of clients that hang up; the application logs its own errors."""


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: probes and scrapes come all the time."""


def serve_public(address: Address, application: WSGIApplication) -> PublicServer:
    """Listen and answer, in a thread that ends with the process; ``OSError``."""
    server = PublicServer(address, application)
    Thread(target=server.serve_forever, name="public", daemon=True).start()
    return server
