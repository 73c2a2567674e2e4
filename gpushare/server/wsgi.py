"""Call a WSGI application for a request that another server has parsed."""

import sys
from collections.abc import Iterable
from io import BytesIO
from typing import Any
from urllib.parse import unquote_to_bytes
from wsgiref.types import WSGIApplication, WSGIEnvironment

Headers = list[tuple[str, str]]


def make_environ(
    method: str, path: str | bytes, query: str, headers: Iterable[tuple[str, str]]
) -> WSGIEnvironment:
    """Describe a request without its body; ``path`` is as in the request."""
    fields = {f"HTTP_{n.upper().replace('-', '_')}": value for n, value in headers}
    return {
        **fields,
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


def make_page(
    application: WSGIApplication, environ: WSGIEnvironment
) -> tuple[int, Headers, tuple[bytes, ...]]:
    """Return status, headers and the pieces of the body; raise what it raises."""
    begun: list[Any] = []

    def start(status: str, headers: Headers, *_: Any) -> Any:  # noqa: ANN401
        begun[:] = int(status[:3]), headers

    pieces = application(environ, start)
    try:
        body = tuple(pieces)
    finally:
        getattr(pieces, "close", bool)()
    status, headers = begun
    return status, headers, body
