"""A page over a socket that somebody else connected; the rest needs a kubelet."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from websocket import (
    ABNF,
    WebSocketBadStatusException,
    WebSocketConnectionClosedException,
)

from gpushare.kube import port_forward
from gpushare.kube.errors import Forbidden, NotFound, Unavailable, Unreachable
from gpushare.kube.port_forward import Link, page

PAGE = b'{"nodes": []}' * 20_000


class Pages(BaseHTTPRequestHandler):
    """As gunicorn does: HTTP/1.1, with a length or in chunks."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert self.headers["Connection"] == "close"
        if self.path == "/chunks":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for half in (PAGE[:100_000], PAGE[100_000:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(half), half))
            self.wfile.write(b"0\r\n\r\n")
        elif self.path == "/snapshot":
            self._send(200, PAGE)
        elif self.path == "/host":
            self._send(200, self.headers["Host"].encode())
        elif self.path == "/readyz":
            self._send(503, b"pods have not\nbeen listed yet")
        else:
            self._send(404, b"x" * 10_000)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(port: int, path: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as link:
        return page(link, port, path)


@pytest.mark.parametrize("path", ["/snapshot", "/chunks"])
def test_a_page_comes_whole(port: int, path: str) -> None:
    """By its length, or in chunks."""
    assert ask(port, path) == PAGE


def test_the_page_is_asked_of_loopback(port: int) -> None:
    """As whoever is on the host would."""
    assert ask(port, "/host") == f"127.0.0.1:{port}".encode()


def test_a_refusal_is_told_with_its_words(port: int) -> None:
    """On one line, and not without end."""
    with pytest.raises(Unavailable, match=r"^/readyz answers 503: pods have not been"):
        ask(port, "/readyz")
    with pytest.raises(NotFound, match=r"^/none answers 404: x{200}$"):
        ask(port, "/none")


@contextmanager
def saying(words: bytes) -> Iterator[socket.socket]:
    """The near end of a connection whose far end says this, and no more."""
    near, far = socket.socketpair()
    with near, far:
        far.sendall(words)
        far.shutdown(socket.SHUT_WR)
        yield near


@pytest.mark.parametrize(
    "words",
    [b"", b"SSH-2.0-none\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"],
    ids=["nothing", "no-http", "half"],
)
def test_what_is_no_answer(words: bytes) -> None:
    """``fetched`` makes a sentence of these two."""
    with saying(words) as link, pytest.raises((OSError, http.client.HTTPException)):
        page(link, 39999, "/snapshot")


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
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage"


@pytest.mark.parametrize(
    "end", [[], [(CLOSE, b"")], [(BINARY, b"\0more")]], ids=["cut", "closed", "open"]
)
def test_a_page_out_of_frames(end: list[tuple[int, bytes]]) -> None:
    """Cut anywhere, with others between, and however the stream goes on or ends."""
    parts = [(BINARY, b"\0" + ANSWER[:30]), (PING, b""), (BINARY, b"\0" + ANSWER[30:])]
    frames = Frames(*BEGINNING, *parts, *end)
    assert page(Link(frames), 8080, "/a") == b"page"
    assert b"".join(frames.sent).startswith(b"\0GET /a HTTP/1.1\r\n")


def test_a_page_without_a_length() -> None:
    """Its end is the stream's."""
    text = b"\0HTTP/1.1 200 OK\r\n\r\npage"
    assert page(Link(Frames(*BEGINNING, (BINARY, text))), 80, "/") == b"page"


def test_kubelets_own_words() -> None:
    """On the second channel, when there is nobody on that port."""
    said = (BINARY, b"\1connection refused")
    with pytest.raises(OSError, match="connection refused"):
        page(Link(Frames(*BEGINNING, said)), 80, "/")


def test_what_the_api_server_says_to_it() -> None:
    """A refusal is one; where nobody listens nothing was sent."""
    body = b'{"kind": "Status", "message": "pods is forbidden"}'
    refusal = WebSocketBadStatusException("Handshake status %d %s", 403, "No", {}, body)
    found = port_forward._not_opened(refusal)
    assert isinstance(found, Forbidden)
    assert str(found) == "pods is forbidden"
    assert isinstance(port_forward._not_opened(ConnectionRefusedError()), Unreachable)
    silence = port_forward._not_opened(OSError("timed\nout"))
    assert isinstance(silence, Unavailable)
    assert str(silence) == "no answer from the API server: timed out"
