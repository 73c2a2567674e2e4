"""POST small bodies to the API server over connections that are kept.

Each bind is one POST. The kubernetes client and urllib3 take 0.8 ms of CPU for it, much
of it for the answer's headers, which they parse as those of an e-mail. This module
takes 0.07 ms (decision 0060). The client still brings all that differs between
clusters: the address, TLS with its certificates, credentials and their renewal. Only
the request and the answer are written and read here, as HTTP/1.1 (RFC 9112) with one
request at a time on a connection.
"""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from typing import cast
from weakref import finalize

import urllib3
from kubernetes import client
from urllib3.connection import HTTPConnection
from urllib3.util import parse_url, wait_for_read

from gpushare.kube.errors import Unreachable

_LONGEST_LINE = 1 << 16
_MOST_HEADERS = 100
_FIRST_FINAL_STATUS = 200
"""Lower ones announce another answer."""
_NO_CONTENT = 204


@dataclass(frozen=True, slots=True)
class PostAnswer:
    """What the API server said; ``retry_after`` is empty without that header."""

    status: int
    reason: str
    retry_after: str
    body: bytes


@dataclass(frozen=True, slots=True)
class _KeptConnection:
    """An open connection. Its reader holds nothing between two answers."""

    connection: HTTPConnection
    reader: BufferedReader

    def ended(self) -> bool:
        """Tell whether the server closed it: it says nothing else unasked."""
        return wait_for_read(self.connection.sock, timeout=0)

    def close(self) -> None:
        with suppress(OSError):
            self.reader.close()
        self.connection.close()


class Poster:
    """POST to one API server. Any thread may call; no call waits for another.

    There are as many connections as there were calls at a time. The one that was used
    last is used first.
    """

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        manager = api.rest_client.pool_manager
        url = parse_url(api.configuration.host)
        self._prefix, self._host = url.path or "", url.netloc
        self._pool = manager.connection_from_url(api.configuration.host)
        self._idle: deque[_KeptConnection] = deque()
        # As urllib3's pools do, for those who never close this.
        finalize(self, _close_all, self._idle)
        self.direct = type(manager) is urllib3.PoolManager
        """False if there is a proxy on the way; then this class cannot connect."""

    def post(
        self, path: str, body: bytes, *, connect_timeout_s: float, timeout_s: float
    ) -> PostAnswer:
        """Send one body of JSON and return the answer, whatever its status.

        ``Unreachable`` if nothing was sent. ``OSError`` without an answer, which
        includes a silence of ``timeout_s``; ``ValueError`` for one that is not HTTP.
        """
        request = self._head(path, len(body)) + body
        link = self._idle_link() or self._connect(connect_timeout_s)
        try:
            link.connection.sock.settimeout(timeout_s)
            link.connection.sock.sendall(request)
            answer, is_last = _read(link.reader)
        except BaseException:
            link.close()
            # They lead to the same server. If it hangs, each would cost a deadline.
            self.close()
            raise
        if is_last:
            link.close()
        else:
            self._idle.append(link)
        return answer

    def close(self) -> None:
        """Close the connections that no call uses."""
        _close_all(self._idle)

    def _head(self, path: str, length: int) -> bytes:
        headers = {
            "Host": self._host,
            "Accept": "application/json",
            "Content-Type": "application/json",
            "Content-Length": str(length),
            **self._api.default_headers,
        }
        # Renews a token that expires.
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, "POST", {})
        lines = [f"{name}: {value}" for name, value in headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header for the API server has a line break")
        head = (f"POST {self._prefix}{path} HTTP/1.1", *lines, "", "")
        return "\r\n".join(head).encode("latin-1")

    def _idle_link(self) -> _KeptConnection | None:
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return None
            if not link.ended():
                return link
            link.close()

    def _connect(self, timeout_s: float) -> _KeptConnection:
        # urllib3 has no public way to a connection with all of a pool's settings.
        new = self._pool._new_conn()  # noqa: SLF001
        connection = cast("HTTPConnection", new)
        connection.timeout = timeout_s
        try:
            connection.connect()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            connection.close()
            raise Unreachable(f"no answer from the API server: {error}") from error
        return _KeptConnection(connection, connection.sock.makefile("rb"))


def _close_all(links: deque[_KeptConnection]) -> None:
    while links:
        with suppress(IndexError):
            links.pop().close()


def _read(reader: BufferedReader) -> tuple[PostAnswer, bool]:
    """Read one answer, and whether it is the last on its connection."""
    status = 0
    while status < _FIRST_FINAL_STATUS:
        version, _, rest = _line(reader).partition(b" ")
        code, _, reason = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ValueError("the answer is not HTTP")
        status, headers = int(code), _headers(reader)
    chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
    length = headers.get(b"content-length")
    is_last = (
        version == b"HTTP/1.0" or headers.get(b"connection", b"").lower() == b"close"
    )
    if status == _NO_CONTENT:
        body = b""
    elif chunked:
        body = _chunks(reader)
    elif length is not None:
        body = _exactly(reader, int(length))
    else:
        body, is_last = reader.read(), True
    after = headers.get(b"retry-after", b"")
    answer = PostAnswer(status, reason.decode("latin-1"), after.decode("latin-1"), body)
    return answer, is_last


def _line(reader: BufferedReader) -> bytes:
    line = reader.readline(_LONGEST_LINE)
    if not line:
        raise ConnectionError("the connection was closed without a whole answer")
    return line.rstrip(b"\r\n")


def _headers(reader: BufferedReader) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for _ in range(_MOST_HEADERS):
        line = _line(reader)
        if not line:
            return headers
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    raise ValueError("the answer has too many headers")


def _exactly(reader: BufferedReader, length: int) -> bytes:
    if length < 0:
        raise ValueError("the answer has a negative length")
    body = reader.read(length)
    if len(body) < length:
        raise ConnectionError("the connection was closed in the middle of an answer")
    return body


def _chunks(reader: BufferedReader) -> bytes:
    chunks = []
    while size := int(_line(reader).partition(b";")[0], 16):
        chunks.append(_exactly(reader, size))
        _line(reader)
    # What follows are headers, mostly none.
    _headers(reader)
    return b"".join(chunks)
