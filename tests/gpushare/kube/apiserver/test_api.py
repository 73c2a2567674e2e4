"""What the API server, or the lack of one, does to us.

The behaviour of one that answers is in ``tests/contract``; here it does not.
"""

import gzip
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest
from kubernetes import client

from gpushare.kube.apiserver.api import ApiObjects, ApiServer
from gpushare.kube.cluster import Kind, PodTarget
from gpushare.kube.errors import (
    Forbidden,
    Gone,
    NotFound,
    Throttled,
    Unavailable,
    Unreachable,
)
from gpushare.kube.objects import Ref

LONG_S = 60.0
"""For who is to be answered; a busy machine takes its time."""
POD = PodTarget("default", "pod", "uid-pod")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}\n'
EXPIRED = b'{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"old"}}\n'


def chunk(line: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(line), line)


def refusal(status: int, *headers: str) -> bytes:
    body = b'{"kind":"Status","message":"in its own words"}'
    lines = [f"HTTP/1.1 {status} No", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextmanager
def saying(
    answer: bytes,
    *,
    hang: bool = False,
    watch_grace_s: float = LONG_S,
    heard: list[bytes] | None = None,
) -> Iterator[ApiServer]:
    """Listen, answer every request with these bytes, and then close, or hang."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        links: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                links.append(link)
                # Who asked may have lost patience.
                with suppress(ConnectionError):
                    request = link.recv(65536)
                    if heard is not None:
                        heard.append(request)
                    link.sendall(answer)
                if not hang:
                    link.close()

        thread = Thread(target=serve)
        thread.start()
        cluster = api(server.getsockname()[1], watch_grace_s)
        try:
            yield cluster
        finally:
            cluster.close()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for link in links:
                link.close()


def api(port: int, watch_grace_s: float = LONG_S) -> ApiServer:
    settings = client.Configuration()
    settings.host = f"http://127.0.0.1:{port}"
    settings.retries = False
    return ApiServer(client.ApiClient(settings), watch_grace_s=watch_grace_s)


def watch(cluster: ApiServer) -> Iterator[str]:
    for event in cluster.watch(Kind.PODS, resource_version="1", timeout_s=0.1):
        yield event.type


def bind(cluster: ApiServer, timeout_s: float = LONG_S) -> None:
    cluster.bind(POD, "node", {}, timeout_s=timeout_s)


def test_nobody_listens() -> None:
    """Nothing was sent, and that is certain: a bind's reservation may go."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    cluster = api(port)
    with pytest.raises(Unreachable):
        bind(cluster)
    cluster.close()


def test_a_bind_without_an_answer() -> None:
    """Nobody knows whether it took place."""
    with saying(b"", hang=True) as cluster, pytest.raises(Unavailable):
        bind(cluster, 0.2)


def test_a_half_open_watch_is_noticed() -> None:
    """Silence past the watch's own end and a grace is a dead connection."""
    told = CHUNKED + chunk(BOOKMARK)
    with saying(told, hang=True, watch_grace_s=1.0) as cluster:
        events = watch(cluster)
        assert next(events) == "BOOKMARK"
        with pytest.raises(Unavailable):
            next(events)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (CHUNKED + chunk(EXPIRED), Gone),
        (CHUNKED + chunk(b"{nonsense}\n"), Unavailable),
        (CHUNKED + b"5\r\n{", Unavailable),
        (refusal(410), Gone),
        (refusal(403), Forbidden),
        (refusal(500), Unavailable),
    ],
    ids=["expired", "no-json", "cut-off", "410", "403", "500"],
)
def test_a_watch_that_fails(answer: bytes, error: type[Exception]) -> None:
    """Whatever goes wrong is one of our words, so that the reflector lives on."""
    with saying(answer) as cluster, pytest.raises(error):
        list(watch(cluster))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (HEAD + b"Content-Length: 4\r\n\r\nnull", Unavailable),
        (HEAD + b"Content-Length: 2\r\n\r\n{}", Unavailable),
        (HEAD + b"Content-Length: 1\r\n\r\n{", Unavailable),
        (b"nonsense\r\n\r\n", Unavailable),
        (refusal(410), Gone),
    ],
    ids=["null", "no-metadata", "no-json", "no-http", "410"],
)
def test_a_list_that_fails(answer: bytes, error: type[Exception]) -> None:
    with saying(answer) as cluster, pytest.raises(error):
        cluster.list_page(Kind.PODS, limit=10)


def test_a_compressed_list() -> None:
    """kube-apiserver compresses what is large, because it was asked to."""
    item = '{"metadata":{"name":"a","managedFields":[{"manager":"m"}]},"spec":{}}'
    text = f'{{"metadata":{{"resourceVersion":"7"}},"items":[{item}]}}'
    packed = gzip.compress(text.encode())
    fields = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    heard = list[bytes]()
    with saying(HEAD + fields + packed, heard=heard) as cluster:
        page = cluster.list_page(Kind.PODS, limit=500)
    assert b"\r\naccept-encoding: gzip\r\n" in heard[0].lower()
    assert page.items == ({"metadata": {"name": "a"}, "spec": {}},)


OTHERS = b'{"resources":[{"name":"jobs","kind":"Job","namespaced":true}]}'
LAST = "Connection: close"
"""A client that is told so makes a new connection for its next request."""


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + f"{LAST}\r\nContent-Length: {len(OTHERS)}\r\n\r\n".encode() + OTHERS,
        refusal(404, LAST),
    ],
    ids=["others", "nothing"],
)
def test_a_kind_that_is_not_served(answer: bytes) -> None:
    """Its group and version have other kinds, or there are none of them."""
    ref = Ref("batch/v1", "CronJob", "a", "default")
    with saying(answer) as cluster:
        objects = ApiObjects(cluster._api)
        assert objects.get(ref) is None
        with pytest.raises(NotFound, match="does not serve CronJob of batch/v1"):
            objects.merge(ref, {})


def test_a_refusal_keeps_the_servers_words_and_how_long_to_wait() -> None:
    answer = refusal(429, "Retry-After: 3")
    with saying(answer) as cluster, pytest.raises(Throttled, match="own words") as said:
        bind(cluster)
    assert said.value.retry_after_s == 3.0


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", "words", "clusters: 3", "current-context: none", None],
    ids=["no-yaml", "list", "words", "odd-field", "no-context", "no-file"],
)
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str | None) -> None:
    """A complaint in one line, and no traceback."""
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Unavailable, match=str(path)) as caught:
        ApiServer.connect(str(path))
    assert "\n" not in str(caught.value)
