"""The read-only listener."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from extender.main import complaints
from extender.public import PublicServer, serve_public
from gpushare.listening import free_address, why_not_listen
from gpushare.settings import Address
from tests.testbed.waiting import wait_until


def hello(_environ: object, start: object) -> list[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])  # type: ignore[operator]
    return [b"hello"]


@pytest.fixture
def server() -> Iterator[PublicServer]:
    made = serve_public(free_address(), hello)  # type: ignore[arg-type]
    yield made
    made.shutdown()
    made.server_close()


def get(server: PublicServer) -> bytes:
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        link.request("GET", "/")
        return link.getresponse().read()
    finally:
        link.close()


def test_it_answers(server: PublicServer) -> None:
    """One request a connection."""
    assert get(server) == b"hello"
    assert get(server) == b"hello"


def test_connections_that_say_nothing_do_not_shut_it_for_ever(
    server: PublicServer,
) -> None:
    """They are hung up on after five seconds, and take nobody's place but here."""
    where = ("127.0.0.1", server.server_port)
    with ExitStack() as links:
        idle = [links.enter_context(socket.create_connection(where)) for _ in range(40)]
        last = idle[-1]
        last.settimeout(10)
        assert last.recv(1) == b""  # all places are taken
        first = idle[0]
        first.settimeout(20)
        assert first.recv(1) == b""  # its time is over
        # A place is given back a moment after its connection was hung up on.
        wait_until(lambda: answers(server), "free place")


def answers(server: PublicServer) -> bool:
    """Tell whether there is a place for one more."""
    try:
        return get(server) == b"hello"
    except ConnectionError:
        return False


def test_a_taken_port_is_an_error(server: PublicServer) -> None:
    """Told at the start, not by a silent absence of metrics."""
    here = Address("127.0.0.1", server.server_port)
    assert "in use" in why_not_listen(here)
    (complaint,) = (
        text
        for text in complaints({"GPUSHARE_PUBLIC_LISTEN": str(here)})
        if "PUBLIC_LISTEN" in text
    )
    assert "give another host:port" in complaint
    assert why_not_listen(free_address()) == ""
    with pytest.raises(OSError, match="in use"):
        PublicServer(here, hello)  # type: ignore[arg-type]


def test_a_host_that_is_no_name() -> None:
    """Said in words like any other reason, and not raised."""
    assert "label empty" in why_not_listen(Address("a..b", 1))
