"""A bind's POST, on connections that are kept, and what a server may do to it."""

import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, Thread

import orjson
import pytest
from kubernetes import client

from gpushare.kube.apiserver.api import ApiServer
from gpushare.kube.cluster import PodTarget
from gpushare.kube.errors import (
    ClusterError,
    Conflict,
    Throttled,
    Unavailable,
    Unreachable,
)
from gpushare.kube.names import EXTENDER_SERVER_NAME
from gpushare.server.tls import TlsFiles, make_server_context
from tests.testbed.certificates import certificates

LONG_S = 60.0
POD = PodTarget("default", "pod", "uid-pod")
SUCCESS = b'{"kind":"Status","status":"Success","code":201}'
REFUSAL = b'{"kind":"Status","message":"in its own words"}'
Answering = Callable[[bytes], bytes | None]
"""Gives what to answer a request; None to hang up."""


def said(status: int, body: bytes, *headers: str, length: bool = True) -> bytes:
    lines = [f"HTTP/1.1 {status} Words of it", *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


CREATED = said(201, SUCCESS)
CHUNKS = said(
    409, b"", "Transfer-Encoding: chunked", length=False
) + b"5;x=y\r\n%s\r\n%x\r\n%s\r\n0\r\nTrailer: a\r\n\r\n" % (
    REFUSAL[:5],
    len(REFUSAL) - 5,
    REFUSAL[5:],
)


@dataclass
class Server:
    """Notes what it is sent, whole requests only, connection by connection."""

    listener: socket.socket
    answering: Answering
    context: ssl.SSLContext | None = None
    connections: list[list[bytes]] = field(default_factory=list)
    links: list[socket.socket] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = self.listener.getsockname()[1]

    @property
    def requests(self) -> list[bytes]:
        return [request for each in self.connections for request in each]

    @property
    def url(self) -> str:
        scheme = "https" if self.context else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    def hang_up(self) -> None:
        """Close all connections from this side, as one that ends or is idle."""
        for link in self.links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for thread in self.threads[1:]:
            thread.join()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                link, _ = self.listener.accept()
                self.links.append(link)
                self._start(self._serve, link)

    def _start(self, target: Callable[..., None], *given: object) -> None:
        self.threads.append(Thread(target=target, args=given))
        self.threads[-1].start()

    def _serve(self, link: socket.socket) -> None:
        heard: list[bytes] = []
        self.connections.append(heard)
        with suppress(OSError), link:
            if self.context:
                link = self.context.wrap_socket(link, server_side=True)
            with link:
                while request := whole(link):
                    heard.append(request)
                    answer = self.answering(request)
                    if answer is None:
                        return
                    link.sendall(answer)


def whole(link: socket.socket) -> bytes:
    """Read one request with its body."""
    text = b""
    while part := link.recv(1 << 16):
        text += part
        head, end, body = text.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if end and len(body) >= int(length):
            return text
    return b""


@contextmanager
def serving(
    answering: Answering, context: ssl.SSLContext | None = None
) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener, answering, context)
        server._start(server.accept)
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.threads[0].join()
            server.hang_up()


@contextmanager
def connected(url: str, **settings: object) -> Iterator[ApiServer]:
    chosen = client.Configuration()
    chosen.host = url
    chosen.retries = False
    for name, value in settings.items():
        setattr(chosen, name, value)
    cluster = ApiServer(client.ApiClient(chosen))
    try:
        yield cluster
    finally:
        cluster.close()


def bind(cluster: ApiServer, timeout_s: float = LONG_S) -> None:
    cluster.bind(POD, "node", {"a": "b"}, timeout_s=timeout_s)


def test_what_is_sent() -> None:
    """The Binding, to the pod, with what the client's settings say of its user."""
    settings = {"api_key": {"BearerToken": "Bearer abc"}}
    with serving(lambda _: CREATED) as server, connected(server.url, **settings) as api:
        bind(api)
    (request,) = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /api/v1/namespaces/default/pods/pod/binding HTTP/1.1"
    assert f"Host: {server.url.removeprefix('http://')}" in lines
    assert {"Content-Type: application/json", "authorization: Bearer abc"} < {*lines}
    assert orjson.loads(body) == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": "pod",
            "namespace": "default",
            "uid": "uid-pod",
            "annotations": {"a": "b"},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node"},
    }


def test_an_address_with_a_path() -> None:
    """As of an API server behind another server that chooses by the path."""
    with serving(lambda _: CREATED) as server:
        with connected(f"{server.url}/k8s/clusters/c-1") as api:
            bind(api)
        assert server.requests[0].startswith(b"POST /k8s/clusters/c-1/api/v1/names")


def test_a_token_that_was_renewed() -> None:
    """Each request asks the client, which reads the token again when it is due."""
    tokens = iter(["first", "second"])

    def renew(settings: client.Configuration) -> None:
        settings.api_key["BearerToken"] = next(tokens)

    hook = {"refresh_api_key_hook": renew, "api_key": {"BearerToken": ""}}
    with serving(lambda _: CREATED) as server, connected(server.url, **hook) as api:
        bind(api)
        bind(api)
    first, second = server.requests
    assert b"\r\nauthorization: first\r\n" in first
    assert b"\r\nauthorization: second\r\n" in second


def test_a_token_with_a_line_break_is_not_sent() -> None:
    """Otherwise the rest of a broken file would be headers of the request."""
    settings = {"api_key": {"BearerToken": "abc\r\nImpersonate-User: admin"}}
    with (
        serving(lambda _: CREATED) as server,
        connected(server.url, **settings) as api,
        pytest.raises(Unavailable, match="line break"),
    ):
        bind(api)
    assert not server.requests


def test_a_connection_is_used_again() -> None:
    with serving(lambda _: CREATED) as server, connected(server.url) as api:
        for _ in range(3):
            bind(api)
    assert list(map(len, server.connections)) == [3]


def test_binds_do_not_wait_for_each_other() -> None:
    """No answer comes before all have arrived; all connections are kept."""
    together = 40
    arrived = Barrier(together, timeout=LONG_S)

    def answering(_: bytes) -> bytes:
        arrived.wait()
        return CREATED

    with (
        serving(answering) as server,
        connected(server.url) as api,
        ThreadPoolExecutor(together) as pool,
    ):
        for _ in range(2):
            for one in [pool.submit(bind, api) for _ in range(together)]:
                one.result(LONG_S)
        assert list(map(len, server.connections)) == [2] * together


def test_a_connection_that_the_server_closed_is_not_used() -> None:
    """It is seen before anything is sent, so no bind has an unknown result."""
    with serving(lambda _: CREATED) as server, connected(server.url) as api:
        bind(api)
        server.hang_up()
        bind(api)
    assert list(map(len, server.connections)) == [1, 1]


@pytest.mark.parametrize(
    "answer",
    [
        CREATED,
        said(201, SUCCESS, "Connection: Close"),
        said(201, b"", "Transfer-Encoding: chunked", length=False) + b"0\r\n\r\n",
        said(100, b"", length=False) + CREATED,
        said(204, b"", length=False),
        CREATED.replace(b" Words of it", b""),
    ],
    ids=["length", "close", "chunks", "continue", "no-content", "no-reason"],
)
def test_a_success(answer: bytes) -> None:
    """The second bind shows that nothing of the first answer is left."""
    with serving(lambda _: answer) as server, connected(server.url) as api:
        bind(api)
        bind(api)
    expected = [1, 1] if b"Close" in answer else [2]
    assert list(map(len, server.connections)) == expected


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (said(409, REFUSAL), Conflict),
        (CHUNKS, Conflict),
        (said(500, REFUSAL), Unavailable),
        (said(429, REFUSAL, "Retry-After: 3"), Throttled),
    ],
    ids=["length", "chunks", "500", "429"],
)
def test_a_refusal(answer: bytes, error: type[ClusterError]) -> None:
    """It has the server's words, and the connection is used again."""
    with serving(lambda _: answer) as server, connected(server.url) as api:
        for _ in range(2):
            with pytest.raises(error, match="in its own words"):
                bind(api)
    assert list(map(len, server.connections)) == [2]


def test_a_refusal_until_the_end() -> None:
    """Without a length the answer ends with the connection."""

    def answering(_: bytes) -> bytes:
        for link in server.links:
            link.sendall(said(409, REFUSAL, length=False))
            link.shutdown(socket.SHUT_WR)
        return b""

    with (
        serving(answering) as server,
        connected(server.url) as api,
        pytest.raises(Conflict, match="in its own words"),
    ):
        bind(api)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        CREATED[:10],
        CREATED[:-1],
        CREATED.replace(b"HTTP", b"ICY"),
        b"HTTP/1.1 ten Words\r\n\r\n",
        b"HTTP/1.1 201 " + b"x" * (1 << 17),
        said(201, b"", *["A: b"] * 200),
        said(201, b"", "Content-Length: -1", length=False),
        said(201, b"", "Transfer-Encoding: chunked", length=False) + b"x\r\n",
    ],
    ids=[
        "nothing",
        "half-a-line",
        "half-a-body",
        "no-http",
        "no-status",
        "long-line",
        "many-headers",
        "negative",
        "no-chunk",
    ],
)
def test_an_answer_that_is_none(answer: bytes | None) -> None:
    """The bind may have been written; and its connection is not used again."""

    def answering(_: bytes) -> bytes | None:
        if answer is not None:
            server.links[-1].sendall(answer)
        return None

    with serving(answering) as server, connected(server.url) as api:
        for _ in range(2):
            with pytest.raises(Unavailable):
                bind(api)
    assert list(map(len, server.connections)) == [1, 1]


def test_a_server_that_hangs_costs_one_deadline() -> None:
    """The kept connections lead to it too, so the next bind makes a new one."""
    together = 3
    hangs, arrived = False, Barrier(together, timeout=LONG_S)

    def answering(_: bytes) -> bytes:
        if hangs:
            return b""
        arrived.wait()
        return CREATED

    with (
        serving(answering) as server,
        connected(server.url) as api,
        ThreadPoolExecutor(together) as pool,
    ):
        for one in [pool.submit(bind, api) for _ in range(together)]:
            one.result(LONG_S)
        hangs = True
        with pytest.raises(Unavailable):
            bind(api, 0.2)
        server.answering = lambda _: CREATED
        bind(api)
        assert len(server.connections) == together + 1


def test_behind_a_proxy_the_client_sends_it() -> None:
    """Which writes the whole address, and to the proxy."""
    with serving(lambda _: CREATED) as proxy:
        with connected("http://api.example", proxy=proxy.url) as api:
            bind(api)
        (request,) = proxy.requests
    assert request.startswith(b"POST http://api.example/api/v1/namespaces/default/")


def test_both_sides_show_certificates(tmp_path: Path) -> None:
    held = certificates(tmp_path / "tls")
    context = make_server_context(TlsFiles(*held.settings.values()))
    settings = {
        "ssl_ca_cert": held.path("ca.crt"),
        "cert_file": held.path("client.crt"),
        "key_file": held.path("client.key"),
        "tls_server_name": EXTENDER_SERVER_NAME,
        "assert_hostname": EXTENDER_SERVER_NAME,
    }
    with serving(lambda _: CREATED, context) as server:
        with connected(server.url, **settings) as api:
            bind(api)
            bind(api)
        assert list(map(len, server.connections)) == [2]


def test_a_server_that_is_not_trusted_is_told_nothing(tmp_path: Path) -> None:
    """Nothing was sent, so the bind certainly had no effect."""
    held, other = certificates(tmp_path / "a"), certificates(tmp_path / "b")
    context = make_server_context(TlsFiles(*held.settings.values()))
    settings = {
        "ssl_ca_cert": other.path("ca.crt"),
        "tls_server_name": EXTENDER_SERVER_NAME,
    }
    with (
        serving(lambda _: CREATED, context) as server,
        connected(server.url, **settings) as api,
        pytest.raises(Unreachable, match="certificate verify failed"),
    ):
        bind(api)
    assert not server.requests
