"""The HTTP server: nobody who hangs holds up another."""

import http.client
import logging
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from gpushare.addresses import (
    LOOPBACK,
    find_free_address,
    socket_address,
    why_not_listen,
)
from gpushare.server.listener import MOST_CONNECTIONS, Listener
from gpushare.settings import Address
from tests.machine import needs
from tests.testbed.waiting import wait_until

LONG = b"x" * (12 << 20)
"""More than the kernel keeps for one who reads nothing."""
WITHIN_S = 30
MANY = 300


def echo(environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
    """Say what was asked; ``/long`` is long, ``/bad`` a defect."""
    match environ["PATH_INFO"]:
        case "/long":
            said = LONG
        case "/bad":
            raise RuntimeError("a defect")
        case path:
            names = ("REQUEST_METHOD", "QUERY_STRING", "HTTP_X_ODD")
            said = f"{path} {[environ.get(name) for name in names]}\n".encode()
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "1")])
    # As Flask and werkzeug do it.
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [said]


HOME = b"/ ['GET', '', None]\n"


@pytest.fixture
def at() -> Iterator[Address]:
    address = find_free_address()
    with Listener({address: echo}):
        yield address


def ask(
    at: Address, path: str = "/", method: str = "GET", **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    link = http.client.HTTPConnection(at.host.strip("[]"), at.port, timeout=WITHIN_S)
    try:
        link.request(method, path, headers=headers)
        answer = link.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        link.close()


def linked(at: Address) -> socket.socket:
    return socket.create_connection((at.host, at.port), WITHIN_S)


def say(at: Address, words: bytes) -> bytes:
    """Send these bytes, and give all that comes until the end."""
    with linked(at) as link:
        # It may have heard enough already, and have hung up.
        with suppress(ConnectionError):
            link.sendall(words)
        return taken(link)


def taken(link: socket.socket) -> bytes:
    """All that comes until the end, however it ends."""
    parts = []
    with suppress(ConnectionError):
        while part := link.recv(1 << 20):
            parts.append(part)
    return b"".join(parts)


def body_of(at: Address, path: str = "/") -> bytes | None:
    """What is answered; None where one was too slow oneself, and was cut off."""
    try:
        return ask(at, path)[1]
    except (ConnectionError, http.client.HTTPException):
        return None


@contextmanager
def hanging(at: Address, count: int, words: bytes = b"") -> Iterator[None]:
    """So many who have connected, have said this, and do nothing any more."""
    with ExitStack() as stack:
        for _ in range(count):
            link = stack.enter_context(linked(at))
            link.sendall(words)
        yield


def test_a_page_is_answered(at: Address) -> None:
    asked = "/a%20b?name[]=x&name[]=y"
    status, body, headers = ask(at, asked, **{"X-Odd": "Word"})
    said = b"/a b ['GET', 'name[]=x&name[]=y', 'Word']\n"
    assert (status, body) == (200, said)
    assert headers.get_all("Content-Length") == [str(len(body))]
    assert headers["Connection"] == "close"


@pytest.mark.parametrize(
    ("method", "status", "allowed"),
    [("HEAD", 200, None)]
    + [(method, 405, "GET, HEAD") for method in ("POST", "PUT", "DELETE", "OPTIONS")],
)
def test_methods_that_have_no_page(
    at: Address, method: str, status: int, allowed: str | None
) -> None:
    found, body, headers = ask(at, "/long", method)
    assert (found, headers["Allow"]) == (status, allowed)
    if method == "HEAD":
        assert (body, headers["Content-Length"]) == (b"", str(len(LONG)))


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1 <b>\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET http://[::1 HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70000 + b"\r\n\r\n", 431),
    ],
)
def test_nonsense_is_a_bad_request(at: Address, words: bytes, status: int) -> None:
    head, _, body = say(at, words).partition(b"\r\n\r\n")
    phrase = HTTPStatus(status).phrase
    assert head.startswith(f"HTTP/1.1 {status} {phrase}\r\n".encode())
    assert body == f"{phrase.lower()}\n".encode()
    assert ask(at)[0] == HTTPStatus.OK


def test_a_request_may_come_in_pieces(at: Address) -> None:
    with linked(at) as link:
        for piece in (b"GET /pie", b"ces HTTP/1.1\r\nHost:", b" x\r\n\r", b"\n"):
            link.sendall(piece)
            assert ask(at)[0] == HTTPStatus.OK
        assert b"/pieces ['GET'" in b"".join(iter(lambda: link.recv(65536), b""))


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(b"", id="send-nothing"),
        pytest.param(b"GET / HT", id="send-half"),
        pytest.param(b"GET /long HTTP/1.1\r\n\r\n", id="read-nothing"),
    ],
)
def test_those_who_hang_hold_nobody_up(at: Address, words: bytes) -> None:
    """However many: each of these answers comes while all of them still hang."""
    with hanging(at, 8 if b"long" in words else 200, words):
        for _ in range(20):
            assert ask(at)[0] == HTTPStatus.OK


def test_the_one_that_hangs_longest_goes_first() -> None:
    at = find_free_address()
    with Listener({at: echo}, within_s=3600.0), ExitStack() as stack:
        first = stack.enter_context(linked(at))
        assert ask(at)[0] == HTTPStatus.OK
        stack.enter_context(hanging(at, MOST_CONNECTIONS))
        assert first.recv(1) == b""


def test_who_waits_for_us_does_not_give_way() -> None:
    """A page may take longer than it takes others to fill all places."""
    at, held, entered = find_free_address(), Event(), Event()

    def pages(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        entered.set()
        held.wait(60)
        return echo(environ, start)

    with Listener({at: pages}), ExitStack() as stack:
        first = stack.enter_context(linked(at))
        first.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert entered.wait(WITHIN_S)
        second = stack.enter_context(linked(at))
        stack.enter_context(hanging(at, MOST_CONNECTIONS))
        assert second.recv(1) == b""
        held.set()
        assert taken(first).endswith(HOME)


@pytest.mark.parametrize("addresses", [1, 2])
def test_the_limit_is_for_all_addresses_together(addresses: int) -> None:
    """A flood of one leaves no descriptors fewer than a flood of several."""
    at = [find_free_address() for _ in range(addresses)]
    before = descriptors()
    with Listener(dict.fromkeys(at, echo), within_s=3600.0), ExitStack() as stack:
        for one in at:
            stack.enter_context(hanging(one, 200))
        for one in at:
            assert ask(one)[0] == HTTPStatus.OK
        # Two for each connection: the other is the client's.
        few = before + 200 * addresses + MOST_CONNECTIONS + 20
        wait_until(lambda: descriptors() <= few, "few open sockets")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_who_drips_is_cut_off() -> None:
    """However often a byte of it comes, a request has to be whole in time."""
    address = find_free_address()
    drips = 0
    with Listener({address: echo}, within_s=0.5), linked(address) as link:
        link.settimeout(0.1)
        with suppress(ConnectionError):
            while drips < MANY:
                link.sendall(b"G")
                drips += 1
                with suppress(TimeoutError):
                    assert link.recv(1) == b""
                    break
    assert 1 < drips < MANY


def test_who_sips_is_cut_off() -> None:
    """However often a byte of it is taken, an answer has to be taken in time."""
    address = find_free_address()
    with Listener({address: echo}, within_s=0.5), linked(address) as link:
        link.sendall(b"GET /long HTTP/1.1\r\n\r\n")
        seen = 0
        with suppress(ConnectionError):
            while part := link.recv(1 << 15):
                seen += len(part)
                Event().wait(0.01)
    assert seen < len(LONG)


@pytest.mark.parametrize("words", [b"", b"GET / HT"])
def test_who_sends_nothing_is_cut_off(words: bytes) -> None:
    address = find_free_address()
    with Listener({address: echo}, within_s=0.2):
        assert say(address, words) == b""
        wait_until(lambda: body_of(address) == HOME, "an answer to others")


def test_who_reads_nothing_is_cut_off() -> None:
    """After a deadline: what was not taken by then never comes."""
    address = find_free_address()
    with Listener({address: echo}, within_s=0.2):
        before = descriptors()
        with linked(address) as link:
            link.sendall(b"GET /long HTTP/1.1\r\n\r\n")
            assert link.recv(12) == b"HTTP/1.1 200"
            wait_until(lambda: descriptors() <= before + 1, "end of its connection")
            assert len(taken(link)) < len(LONG)
        wait_until(lambda: body_of(address, "/long") == LONG, "all for who reads it")


def test_a_defect_is_one_bad_answer(
    at: Address, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(at, "/bad")[0] == HTTPStatus.INTERNAL_SERVER_ERROR
    (line,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert line.message == "no answer"
    assert line.exc_info is not None
    assert ask(at)[0] == HTTPStatus.OK


def test_what_an_application_complains_of_is_text(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As PEP 3333 has it; it stands with what else the process says."""

    def complaining(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        environ["wsgi.errors"].write("no good\n")
        return echo(environ, start)

    address = find_free_address()
    with Listener({address: complaining}):
        assert ask(address)[0] == HTTPStatus.OK
    assert capfd.readouterr().err == "no good\n"


def test_each_address_has_pages_of_its_own() -> None:
    at = [find_free_address() for _ in range(2)]
    pages = [lambda env, start: echo(env | {"PATH_INFO": "/other"}, start), echo]
    with Listener(dict(zip(at, pages, strict=True))):
        assert [ask(one)[1].split()[0] for one in at] == [b"/other", b"/"]


def test_all_of_ipv6_is_all_of_ipv4_too() -> None:
    """As other servers have it: in a cluster of both, either may scrape."""
    here = find_free_address()
    everywhere = Address("[::]", here.port)
    needs(not why_not_listen(everywhere), "IPv6", "enable IPv6")
    with Listener({everywhere: echo}):
        assert ask(here)[1] == HOME
        assert ask(Address("[::1]", here.port))[1] == HOME
        assert "in use" in why_not_listen(here)
    with socket.create_server((here.host, here.port)):
        assert "in use" in why_not_listen(everywhere)


def test_it_ends_while_others_hang() -> None:
    address = find_free_address()
    with ExitStack() as stack:
        with Listener({address: echo}):
            links = [stack.enter_context(linked(address)) for _ in range(3)]
            links[0].sendall(b"GET /long HTTP/1.1\r\n\r\n")
            assert ask(address)[0] == HTTPStatus.OK
        assert links[1].recv(1) == b""
        wait_until(lambda: not why_not_listen(address), "a free address")


def test_any_number_of_pages_follow_each_other(at: Address) -> None:
    """A thread of the limit is free again after each, whatever became of it."""
    for _ in range(MOST_CONNECTIONS + 1):
        assert ask(at)[0] == HTTPStatus.OK


def test_a_thread_that_cannot_begin_is_free_again(
    at: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has no room for one just then: that client gets no answer."""
    begin = Thread.start

    def fail(self: Thread) -> None:
        if self.name == "page":
            raise RuntimeError("can't start new thread")
        begin(self)

    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", fail)
        for _ in range(MOST_CONNECTIONS + 1):
            assert say(at, b"GET / HTTP/1.1\r\n\r\n") == b""
    assert ask(at)[0] == HTTPStatus.OK


WAITS_FOR_EVER = """
import socket, sys
from threading import Event
from gpushare.server.listener import Listener
from gpushare.settings import Address

called = Event()

def application(environ, start):
    called.set()
    Event().wait()

address = Address("127.0.0.1", int(sys.argv[1]))
with Listener({address: application}), socket.create_connection(
    (address.host, address.port)
) as link:
    link.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
    called.wait()
"""


def test_the_process_ends_while_an_application_waits() -> None:
    """As ``gpusharectl ui`` does on Ctrl-C while the cluster does not answer."""
    port = str(find_free_address().port)
    command = [sys.executable, "-c", WAITS_FOR_EVER, port]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], timeout=90, check=False
    )
    assert done.returncode == 0


def test_an_address_that_is_taken_is_an_error_and_leaves_nothing_behind() -> None:
    free = find_free_address()
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = Address("127.0.0.1", server.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            Listener({free: echo, taken: echo})
    assert not why_not_listen(free)


@pytest.mark.parametrize("loopback", [LOOPBACK, "[::1]"])
def test_a_connection_that_has_the_port_is_named(loopback: str) -> None:
    """Linux takes the ports of outgoing connections from the extender's range."""
    own = Address(loopback, find_free_address().port)
    needs(not why_not_listen(own), loopback, "enable IPv6")
    family, where = socket_address(own)
    with socket.create_server((where[0], 0), family=family) as server:
        with socket.socket(family) as client:
            client.bind(where)
            client.connect(server.getsockname())
            why = why_not_listen(own)
        port = server.getsockname()[1]
    assert "in use" in why
    assert why.endswith(f": a connection to {loopback}:{port} has this port")


def test_a_server_that_has_the_port_is_not_called_a_connection() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        where = server.getsockname()
        with socket.create_connection(where):
            why = why_not_listen(Address(*where))
    assert "in use" in why
    assert "a connection to" not in why


def test_a_host_that_is_no_name_is_an_error() -> None:
    assert "label empty" in why_not_listen(Address("a..b", 1))
