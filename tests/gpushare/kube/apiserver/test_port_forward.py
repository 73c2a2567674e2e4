"""A page over a stream, with TLS and without; the rest needs a kubelet."""

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from kubernetes import client
from websocket import (
    ABNF,
    WebSocketBadStatusException,
    WebSocketConnectionClosedException,
)

from gpushare.kube.apiserver import port_forward
from gpushare.kube.apiserver.port_forward import Link, TlsLink, read_page
from gpushare.kube.errors import Forbidden, NotFound, Unavailable, Unreachable
from gpushare.kube.names import EXTENDER_SERVER_NAME
from gpushare.kube.objects import Ref
from gpushare.server.tls import TlsFiles, make_server_context
from tests.testbed.certificates import Certificates, certificates


def head(status: int, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} x", *lines, "", ""]).encode()


def chunked(*parts: bytes) -> bytes:
    whole = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))
    return head(200, "Transfer-Encoding: chunked") + whole


@pytest.mark.parametrize(
    "answer",
    [
        head(200, "Content-Length: 4") + b"page",
        chunked(b"pa", b"ge"),
        head(200) + b"page",
    ],
    ids=["length", "chunks", "until the end"],
)
def test_a_page_comes_whole(answer: bytes) -> None:
    """It is asked of loopback, as whoever is on the host would."""
    with saying(answer) as (near, far):
        assert read_page(near, 39999, "/snapshot") == b"page"
        asked = far.recv(1 << 16)
    assert asked.startswith(b"GET /snapshot HTTP/1.1\r\nHost: 127.0.0.1:39999\r\n")
    assert b"Connection: close\r\n" in asked


@pytest.mark.parametrize("answer", [head(200) + b"page", chunked(b"pa", b"ge")])
def test_a_page_has_an_end(answer: bytes) -> None:
    """A node's own exporter must not fill the memory of who looks at it."""
    with saying(answer) as (near, _):
        assert read_page(near, 9400, "/metrics", 4) == b"page"
    with (
        saying(answer) as (near, _),
        pytest.raises(Unavailable, match="/metrics answers with more than 3 bytes"),
    ):
        read_page(near, 9400, "/metrics", 3)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (
            head(503) + b"not\nlisted yet",
            Unavailable,
            r"^/a answers 503: not listed yet",
        ),
        (head(404) + b"x" * 10_000, NotFound, r"^/a answers 404: x{200}$"),
    ],
)
def test_a_refusal_is_told_with_its_words(
    answer: bytes, error: type[Exception], words: str
) -> None:
    """On one line, and not without end."""
    with saying(answer) as (near, _), pytest.raises(error, match=words):
        read_page(near, 39999, "/a")


@contextmanager
def saying(words: bytes) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection whose far end says this, and no more."""
    near, far = socket.socketpair()
    with near, far:
        far.sendall(words)
        far.shutdown(socket.SHUT_WR)
        yield near, far


@pytest.mark.parametrize(
    "words", [b"", b"SSH-2.0-none\r\n", head(200, "Content-Length: 9") + b"half"]
)
def test_what_is_no_answer(words: bytes) -> None:
    """``fetched`` makes a sentence of these two."""
    with (
        saying(words) as (near, _),
        pytest.raises((OSError, http.client.HTTPException)),
    ):
        read_page(near, 39999, "/snapshot")


class Frames:
    """A websocket that says these frames and then ends."""

    def __init__(self, *frames: tuple[int, bytes]) -> None:
        self._frames = [*frames]
        self.sent: list[bytes] = []

    def send_binary(self, data: bytes) -> None:
        self.sent.append(data)

    def recv_data_frame(self, *, control_frame: bool) -> tuple[int, ABNF]:
        assert control_frame
        if not self._frames:
            raise WebSocketConnectionClosedException
        code, data = self._frames.pop(0)
        return code, ABNF(data=data)


BINARY, PING, CLOSE = ABNF.OPCODE_BINARY, ABNF.OPCODE_PING, ABNF.OPCODE_CLOSE
BEGINNING = [(BINARY, b"\0\x90\x1f"), (BINARY, b"\1\x90\x1f")]


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (head(200) + b"page", []),
        (head(200) + b"page", [(CLOSE, b"")]),
        (head(200, "Content-Length: 4") + b"page", [(BINARY, b"\0more")]),
    ],
    ids=["cut", "closed", "open"],
)
def test_a_page_out_of_frames(answer: bytes, end: list[tuple[int, bytes]]) -> None:
    parts = [(BINARY, b"\0" + answer[:9]), (PING, b""), (BINARY, b"\0" + answer[9:])]
    frames = Frames(*BEGINNING, *parts, *end)
    assert read_page(Link(frames), 8080, "/a") == b"page"
    assert b"".join(frames.sent).startswith(b"\0GET /a HTTP/1.1\r\n")


def test_kubelets_own_words() -> None:
    """On the second channel, when there is nobody on that port."""
    said = (BINARY, b"\1connection refused")
    with pytest.raises(OSError, match="connection refused"):
        read_page(Link(Frames(*BEGINNING, said)), 80, "/")


def test_what_the_api_server_says_to_it() -> None:
    body = b'{"kind": "Status", "message": "pods is forbidden"}'
    refusal = WebSocketBadStatusException("Handshake status %d %s", 403, "No", {}, body)
    found = port_forward._not_opened(refusal)
    assert isinstance(found, Forbidden)
    assert str(found) == "pods is forbidden"
    assert isinstance(port_forward._not_opened(ConnectionRefusedError()), Unreachable)
    silence = port_forward._not_opened(OSError("timed\nout"))
    assert isinstance(silence, Unavailable)
    assert str(silence) == "no answer from the API server: timed out"


@pytest.mark.parametrize("host", ["http://127.0.0.1:{}", "https://127.0.0.1:{}"])
def test_an_api_server_that_says_nothing(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """It waits for a kubelet that hangs, for instance; the wait has an end."""
    monkeypatch.setattr(port_forward, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        api = client.ApiClient(client.Configuration(host=host.format(port)))
        with pytest.raises(Unavailable, match=r"API server: .*timed"):
            port_forward.fetch_page(api, EXTENDER, 39999, "/ui")


BODY = b'{"nodes": []}' * 20_000


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = certificates(tmp_path_factory.mktemp("tls") / "own")
    made.stranger()
    return made


@contextmanager
def served(held: Certificates, answer: bytes, *, curt: bool = False) -> Iterator[int]:
    """An extender's end of one connection; ``curt`` hangs up without a good-bye."""
    files = TlsFiles(
        *(held.path(f"{n}") for n in ("server.crt", "server.key", "ca.crt"))
    )
    context = make_server_context(files)

    def serve() -> None:
        with suppress(OSError):
            near, _ = listener.accept()
            with near, context.wrap_socket(near, server_side=True) as link:
                while b"\r\n\r\n" not in link.recv(65536):
                    pass
                link.sendall(answer)
                if not curt:
                    link.unwrap()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


EXTENDER = Ref("v1", "Pod", "extender", "kube-system")
DENIED = head(403, "Content-Length: 46") + (
    b'{"kind": "Status", "message": "no, says RBAC"}'
)


def fetch_by(port: int, **settings: Any) -> bytes:
    """Fetch a pod's page through an API server on loopback."""
    wanted = client.Configuration(host=f"https://127.0.0.1:{port}")
    for name, value in settings.items():
        setattr(wanted, name, value)
    api = client.ApiClient(wanted)
    return port_forward.fetch_page(api, EXTENDER, 39999, "/ui")


def test_both_sides_show_certificates(held: Certificates) -> None:
    """As the kubeconfig has them; the API server's refusal is understood."""
    ours = {"cert_file": held.path("client.crt"), "key_file": held.path("client.key")}
    named = {"tls_server_name": EXTENDER_SERVER_NAME}
    with (
        served(held, DENIED) as port,
        pytest.raises(Forbidden, match="no, says RBAC"),
    ):
        fetch_by(port, ssl_ca_cert=held.path("ca.crt"), **named, **ours)
    with (
        served(held, DENIED) as port,
        pytest.raises(Unavailable, match=r"(?i)alert|EOF|reset|clos"),
    ):
        fetch_by(port, ssl_ca_cert=held.path("ca.crt"), **named)


def test_an_api_server_that_is_not_trusted_gets_no_token(
    held: Certificates, tmp_path: Path
) -> None:
    """Nor one of another name; without verification it is what was asked for."""
    ours = {"cert_file": held.path("client.crt"), "key_file": held.path("client.key")}
    other = certificates(tmp_path / "other").path("ca.crt")
    for wrong in (
        {"ssl_ca_cert": other, "tls_server_name": EXTENDER_SERVER_NAME},
        {"ssl_ca_cert": held.path("ca.crt"), "tls_server_name": "kubernetes"},
        {},
    ):
        with (
            served(held, DENIED) as port,
            pytest.raises(Unavailable, match="certificate verify failed"),
        ):
            fetch_by(port, **wrong, **ours)
    with served(held, DENIED) as port, pytest.raises(Forbidden):
        fetch_by(port, verify_ssl=False, **ours)


def test_what_the_api_server_is_asked() -> None:
    """The token of the kubeconfig, and the pod's port by the protocol of channels."""
    asked: list[bytes] = []

    def serve() -> None:
        near, _ = listener.accept()
        with near:
            asked.append(near.recv(1 << 16))
            near.sendall(DENIED)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve)
        thread.start()
        host = f"http://127.0.0.1:{listener.getsockname()[1]}"
        token = {"BearerToken": "Bearer secret"}
        api = client.ApiClient(client.Configuration(host=host, api_key=token))
        with pytest.raises(Forbidden):
            port_forward.fetch_page(api, EXTENDER, 39999, "/ui")
        thread.join()
    (request,) = asked
    path = b"/api/v1/namespaces/kube-system/pods/extender/portforward?ports=39999"
    assert request.startswith(b"GET %s HTTP/1.1\r\n" % path)
    assert b"authorization: Bearer secret\r\n" in request
    assert b"Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n" in request


def ask_by_tls(
    port: int, context: ssl.SSLContext, name: str = EXTENDER_SERVER_NAME
) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 30) as link:
        return read_page(TlsLink(link, context, name), port, "/ui")  # type: ignore[arg-type]


def answering(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize("curt", [False, True], ids=["good-bye", "hung-up"])
def test_a_page_comes_whole_by_tls(held: Certificates, curt: bool) -> None:
    with served(held, answering(BODY), curt=curt) as port:
        assert ask_by_tls(port, held.client()) == BODY


def test_half_a_page_is_none(held: Certificates) -> None:
    with (
        served(held, answering(BODY)[:-1]) as port,
        pytest.raises(Exception, match="1 more"),
    ):
        ask_by_tls(port, held.client())


def test_a_server_that_is_not_the_extender(held: Certificates) -> None:
    """The name is looked at, and who has signed."""
    with (
        served(held, answering(b"")) as port,
        pytest.raises(ssl.SSLError, match="mismatch"),
    ):
        ask_by_tls(port, held.client(), "kubernetes.default.svc")
    nobody = ssl.create_default_context()
    with (
        served(held, answering(b"")) as port,
        pytest.raises(ssl.SSLError, match="verify"),
    ):
        ask_by_tls(port, nobody)


@pytest.mark.parametrize("name", [None, "stranger"])
def test_a_client_whom_the_extender_does_not_know(
    held: Certificates, name: str | None
) -> None:
    """With TLS 1.3 it is told when the answer is read."""
    with (
        served(held, answering(b"")) as port,
        pytest.raises(OSError, match=r"(?i)alert|EOF|reset|clos"),
    ):
        ask_by_tls(port, held.client(name))
