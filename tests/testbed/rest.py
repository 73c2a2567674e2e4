"""A REST client for tests: a token, a path and a dict, and no Kubernetes package."""

import http.client
import json
import socket
import ssl
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode


class Watch:
    """Iterate over ``{"type": …, "object": …}``; ``close`` from any thread ends it.

    A refusal comes as an event of type ERROR with the API server's Status.
    """

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        target: str,
        headers: Mapping[str, str],
    ) -> None:
        self._connection = connection
        self._closed = False
        try:
            connection.connect()
            self._socket: socket.socket = connection.sock
            connection.request("GET", target, headers=dict(headers))
        except BaseException:
            connection.close()
            raise

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            response = self._connection.getresponse()
            if response.status != http.client.OK:
                yield {"type": "ERROR", "object": json.loads(response.read())}
                return
            while line := response.readline():
                yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError):
            if not self._closed:
                raise
        finally:
            self._connection.close()

    def close(self) -> None:
        self._closed = True
        try:
            # close() alone would not wake a thread that is reading.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


Json = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"
CLOSED_WHILE_IDLE = (
    http.client.RemoteDisconnected,
    ConnectionResetError,
    BrokenPipeError,
    ssl.SSLEOFError,
)


class ApiError(AssertionError):
    """The API server refused; ``status`` is the HTTP code."""

    def __init__(self, request: str, status: int, answer: Json) -> None:
        super().__init__(f"{request}: {status} {answer.get('message', answer)}")
        self.status = status


class Rest:
    """Calls one API server as one user, from any thread; keeps its connections."""

    def __init__(
        self,
        port: int,
        token: str | None = None,
        *,
        tls: bool | ssl.SSLContext = True,
        host: str = "127.0.0.1",
    ) -> None:
        self._host = host
        self.port = port
        self._token = token
        self._idle: deque[http.client.HTTPConnection] = deque()
        weakref.finalize(self, _close_all, self._idle)
        self._tls = _trusting() if tls is True else tls or None

    def get(self, path: str, **query: str | int) -> tuple[int, Json]:
        return self.request("GET", _with_query(path, query))

    def post(self, path: str, body: Json) -> tuple[int, Json]:
        return self.request("POST", path, body)

    def put(self, path: str, body: Json) -> tuple[int, Json]:
        return self.request("PUT", path, body)

    def patch(self, path: str, body: Json, kind: str = MERGE_PATCH) -> tuple[int, Json]:
        return self.request("PATCH", path, body, kind)

    def delete(self, path: str, body: Json | None = None) -> tuple[int, Json]:
        return self.request("DELETE", path, body)

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        kind: str = "application/json",
    ) -> tuple[int, Json]:
        """Send one request; give the HTTP status and the decoded JSON.

        OSError where nobody listens. A body that is no JSON comes as ``{"text": …}``.
        """
        payload = None if body is None else json.dumps(body).encode()
        headers = self._headers(kind)
        status, text = self._exchange(method, path, payload, headers)
        return status, _decoded(text)

    def must(self, method: str, path: str, body: Json | None = None) -> Json:
        """Send one request and give the JSON; raise ``ApiError`` unless it is 2xx."""
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        status, answer = self.request(method, path, body, kind)
        if status >= http.client.MULTIPLE_CHOICES:
            raise ApiError(f"{method} {path}", status, answer)
        return answer

    def items(self, path: str, **query: str | int) -> list[Json]:
        """List the objects under a path, in the API server's order."""
        answer = self.must("GET", _with_query(path, query))
        found: list[Json] = answer["items"]
        return found

    def watch(self, path: str, **query: str | int) -> Watch:
        """Follow a path's changes; ``resourceVersion`` says from where on."""
        target = _with_query(path, {"watch": 1, "allowWatchBookmarks": "true", **query})
        return Watch(self._connect(), target, self._headers("application/json"))

    def _headers(self, kind: str) -> dict[str, str]:
        headers = {"Content-Type": kind, "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _exchange(
        self, method: str, path: str, payload: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        while (kept := self._kept()) is not None:
            try:
                return self._exchange_on(kept, method, path, payload, headers)
            except CLOSED_WHILE_IDLE:
                # The server closed an idle connection, as it does when it restarts.
                continue
        return self._exchange_on(self._connect(), method, path, payload, headers)

    def _kept(self) -> http.client.HTTPConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _exchange_on(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        payload: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, bytes]:
        try:
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            answer = response.status, response.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self.port, timeout=60)
        return http.client.HTTPSConnection(
            self._host, self.port, timeout=60, context=self._tls
        )


def _trusting() -> ssl.SSLContext:
    # The API server makes its own certificate: there is nothing to check it by.
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    return tls


def _close_all(connections: deque[http.client.HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def _decoded(text: bytes) -> Json:
    try:
        answer = json.loads(text)
    except ValueError:
        return {"text": text.decode(errors="replace")}
    return answer if isinstance(answer, dict) else {"text": answer}


def _with_query(path: str, query: Mapping[str, str | int]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
