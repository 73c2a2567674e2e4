"""Slow clients of the real webhook do not delay others."""

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

import orjson
import pytest

from tests.builders import pod_json
from tests.extender.test_webhook_conf import Served, serving
from tests.extender.webhook_client import asked

pytestmark = pytest.mark.processes

SLOW = 200
ROOM = 230
"""Connections at a time: fewer than the floods below."""
STRANGER = "127.0.0.2"
HEAD = b"POST /mutate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With two threads and room for few."""
    room = f"--worker-connections={ROOM}"
    with serving(tmp_path_factory.mktemp("webhook"), room, THREADS="2") as found:
        yield found


@dataclass(frozen=True)
class Slow:
    """One way of keeping a server waiting."""

    what: str
    says: bytes
    shakes: bool = True


WAYS = (
    Slow("half a head", HEAD),
    Slow("half a body", HEAD + b"Content-Length: 99\r\n\r\n{"),
    Slow("a handshake alone", b""),
    Slow("half a handshake", b"\x16\x03\x01\x02\x00\x01", shakes=False),
    Slow("nothing", b"", shakes=False),
)


def come(served: Served, stack: ExitStack, way: Slow, source: str) -> socket.socket:
    plain = socket.create_connection(
        ("127.0.0.1", served.port), timeout=60, source_address=(source, 0)
    )
    link = stack.enter_context(closing(plain))
    if way.shakes:
        meet = served.held.client(None).wrap_socket
        link = stack.enter_context(closing(meet(link, server_hostname="localhost")))
    with suppress(ConnectionError, ssl.SSLError):
        link.sendall(way.says)
    return link


def test_nobody_waits_for_the_slow(served: Served) -> None:
    """From the same address, forty of each kind, and all of them still there."""
    with ExitStack() as stack, closing(served.connect()) as before:
        assert served.ask(before, asked(pod_json()))["allowed"]
        for number in range(SLOW):
            come(served, stack, WAYS[number % len(WAYS)], "127.0.0.1")
        for number in range(5):
            assert served.ask(before, asked(pod_json(), uid=f"{number}"))["allowed"]
            with closing(served.connect()) as new:
                assert served.ask(new, asked(pod_json(units=4)))["patch"]


def test_a_flood_drowns_itself(served: Served) -> None:
    """More than there is room for: the address that has most gives way to others."""
    with ExitStack() as stack, closing(served.connect()) as before:
        assert served.ask(before, asked(pod_json()))["allowed"]
        for _ in range(2 * ROOM):
            come(served, stack, WAYS[-1], STRANGER)
        assert served.ask(before, asked(pod_json()))["allowed"]
        with closing(served.connect()) as new:
            assert served.ask(new, asked(pod_json()))["allowed"]


def test_who_is_slow_is_hung_up_on(served: Served) -> None:
    """His connection would otherwise be there for ever."""
    with ExitStack() as stack:
        links = [come(served, stack, way, STRANGER) for way in WAYS]
        for way, link in zip(WAYS, links, strict=True):
            heard = b""
            with suppress(ConnectionError, ssl.SSLError):
                heard = link.recv(10)
            assert heard == b"", way


def test_who_does_not_hang_up_is_hung_up_on(served: Served) -> None:
    """Answered with an error, and silent: nobody waits for him to close first."""
    with ExitStack() as stack:
        for _ in range(20):
            link = come(served, stack, Slow("bad", b"nonsense\r\n\r\n"), "127.0.0.1")
            assert link.recv(12) == b"HTTP/1.1 400"
        with closing(served.connect()) as honest:
            assert served.ask(honest, asked(pod_json()))["allowed"]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"411"),
        (b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n", b"417"),
        (b"Content-Length: %d\r\n\r\n" % 10**16, b"413"),
        (b"Content-Length: %d\r\n\r\n" % (9 << 20) + b" " * (9 << 20), b"413"),
    ],
    ids=["chunks", "expect", "no end", "long"],
)
def test_after_a_body_that_is_not_kept_nothing_follows(
    served: Served, more: bytes, status: bytes
) -> None:
    """He is told at once, and hung up on: his next bytes may be the body's rest."""
    with ExitStack() as stack:
        link = come(served, stack, Slow("odd", HEAD + more), STRANGER)
        heard = b"".join(iter(lambda: link.recv(1 << 16), b""))
        assert heard.startswith(b"HTTP/1.1 " + status)
        assert b"\r\nConnection: close\r\n" in heard
        assert heard.endswith(b"}")


def test_three_megabytes_come_in_pieces(served: Served) -> None:
    pod = pod_json(annotations={"a": "x" * (3 << 20)})
    with closing(served.connect()) as link:
        assert served.ask(link, asked(pod))["allowed"]


def test_two_requests_at_once_on_a_connection(served: Served) -> None:
    """Whoever does not wait for the first answer has both."""
    body = orjson.dumps(asked(pod_json()))
    one = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with ExitStack() as stack:
        link = come(served, stack, Slow("two", one + one[:50]), "127.0.0.1")
        heard = read_until(link, lambda seen: seen.count(b"HTTP/1.1 200") == 1)
        link.sendall(one[50:] + one)
        heard += read_until(
            link, lambda seen: (heard + seen).count(b'"allowed":true') == 3
        )
        assert heard.count(b"HTTP/1.1 200") == 3


def read_until(link: socket.socket, done: Callable[[bytes], bool]) -> bytes:
    seen = b""
    while not done(seen):
        piece = link.recv(1 << 16)
        assert piece, seen
        seen += piece
    return seen
