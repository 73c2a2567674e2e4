"""TLS over a stream that is no socket, against a server with real certificates."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from extender.server.tls import TlsFiles, server_context
from gpushare.kube.port_forward import TlsLink, page
from gpusharectl.pki import SERVER_NAME
from tests.testbed.certificates import Certificates, certificates

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
    context = server_context(files)

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


def ask(port: int, context: ssl.SSLContext, name: str = SERVER_NAME) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 30) as link:
        return page(TlsLink(link, context, name), port, "/ui")  # type: ignore[arg-type]


def http(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize("curt", [False, True], ids=["good-bye", "hung-up"])
def test_a_page_comes_whole(held: Certificates, curt: bool) -> None:
    """Larger than any of its buffers, however the connection ends."""
    with served(held, http(BODY), curt=curt) as port:
        assert ask(port, held.client()) == BODY


def test_half_a_page_is_none(held: Certificates) -> None:
    """An end that comes too early is told."""
    with (
        served(held, http(BODY)[:-1]) as port,
        pytest.raises(Exception, match="1 more"),
    ):
        ask(port, held.client())


def test_a_server_that_is_not_the_extender(held: Certificates) -> None:
    """The name is looked at, and who has signed."""
    with served(held, http(b"")) as port, pytest.raises(ssl.SSLError, match="mismatch"):
        ask(port, held.client(), "kubernetes.default.svc")
    nobody = ssl.create_default_context()
    with served(held, http(b"")) as port, pytest.raises(ssl.SSLError, match="verify"):
        ask(port, nobody)


@pytest.mark.parametrize("name", [None, "stranger"])
def test_a_client_whom_the_extender_does_not_know(
    held: Certificates, name: str | None
) -> None:
    """With TLS 1.3 it is told when the answer is read."""
    with (
        served(held, http(b"")) as port,
        pytest.raises(OSError, match=r"(?i)alert|EOF|reset|clos"),
    ):
        ask(port, held.client(name))
