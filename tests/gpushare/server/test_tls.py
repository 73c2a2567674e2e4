"""Mutual TLS: who is let in, and which certificates are shown."""

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from gpushare.server.tls import (
    ServerTls,
    TlsFiles,
    check_tls_files,
    make_server_context,
    read_expiry,
)
from gpusharectl.installer.pki import read_pair
from tests.testbed.certificates import Certificates, certificates


def files(held: Certificates) -> TlsFiles:
    return TlsFiles(*held.settings.values())


@pytest.fixture
def held(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "tls")


@pytest.fixture
def context(held: Certificates) -> ssl.SSLContext:
    return make_server_context(files(held))


def serve(link: socket.socket, context: ssl.SSLContext) -> bytes:
    """Read from one client; empty if it is not let in."""
    with link, suppress(OSError), context.wrap_socket(link, server_side=True) as tls:
        return bytes(tls.recv(10))
    return b""


@contextmanager
def meeting(context: ssl.SSLContext) -> Iterator[tuple[socket.socket, Future[bytes]]]:
    """Give a client's end of a connection, and what the server hears on its own."""
    near, far = socket.socketpair()
    near.settimeout(60)
    with near, ThreadPoolExecutor(1) as pool:
        yield near, pool.submit(serve, far, context)


def met(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[bytes, int]:
    """Return what a server hears of a client, and the serial number that it shows."""
    number = 0
    with meeting(server) as (near, answer):
        with (
            suppress(OSError),
            client.wrap_socket(near, server_hostname="localhost") as tls,
        ):
            if shown := tls.getpeercert(binary_form=True):
                number = x509.load_der_x509_certificate(shown).serial_number
            tls.send(b"bind")
            tls.recv(1)
        return answer.result(60), number


@pytest.mark.parametrize("who", ["client", None, "expired", "stranger", "server"])
def test_a_client_needs_a_certificate(
    held: Certificates, context: ssl.SSLContext, who: str | None
) -> None:
    """The one that the authority signed for a client, not the extender's own."""
    held.expired()
    held.stranger()
    client = held.client() if who == "client" else held.client(who)
    assert met(context, client)[0] == (b"bind" if who == "client" else b"")


@pytest.mark.parametrize("words", [b"POST /scheduler/bind HTTP/1.1\r\n\r\n", b"\x16"])
def test_plain_words_are_not_heard(context: ssl.SSLContext, words: bytes) -> None:
    with meeting(context) as (near, answer):
        near.sendall(words)
        # It may have hung up on us already.
        with suppress(OSError):
            near.shutdown(socket.SHUT_WR)
        assert answer.result(60) == b""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", ["TLSv1_1", "TLSv1_2", "TLSv1_3"])
def test_old_versions_are_not_spoken(
    held: Certificates, context: ssl.SSLContext, version: str
) -> None:
    """From 1.2 on, which is what kube-scheduler begins with."""
    client = held.client()
    client.minimum_version = client.maximum_version = ssl.TLSVersion[version]
    for end in (client, context):
        end.set_ciphers("DEFAULT:@SECLEVEL=0")
    assert met(context, client)[0] == (b"" if version == "TLSv1_1" else b"bind")


def test_new_certificates_are_shown_on_new_connections(held: Certificates) -> None:
    tls = ServerTls(files(held))
    first = tls.context()
    assert tls.context() is first
    _, before = met(first, held.client())
    renewed = held.renew("server")
    assert met(tls.context(), held.client()) == (b"bind", renewed)
    assert renewed != before


def test_a_new_authority_counts_at_once(held: Certificates) -> None:
    """Who shows the old one's certificate is a stranger from then on."""
    tls = ServerTls(files(held))
    old = held.client()
    assert met(tls.context(), old)[0] == b"bind"
    held.renew("ca")
    old.load_verify_locations(held.path("ca.crt"))
    assert met(tls.context(), old)[0] == b""
    assert met(tls.context(), held.client())[0] == b"bind"


@pytest.mark.parametrize("harm", ["halfway", "missing", "nonsense"])
def test_the_last_good_ones_stay_while_the_files_are_not(
    held: Certificates, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, not at each connection; when they are good again, they count."""
    tls = ServerTls(files(held))
    good = tls.context()
    text = held.read()["server.key"]
    if harm == "missing":
        Path(held.path("server.key")).unlink()
    else:
        other = b"nonsense" if harm == "nonsense" else held.read()["client.key"]
        held.replace("server.key", other)
    assert [tls.context() for _ in range(3)] == [good] * 3
    (record,) = caplog.records
    assert "cannot be used" in record.message
    held.replace("server.key", text)
    again = tls.context()
    assert again is not good
    assert met(again, held.client())[0] == b"bind"


def test_there_is_none_before_the_first_good_one(held: Certificates) -> None:
    """No connection is better than one that anybody may use."""
    held.replace("ca.crt", b"")
    tls = ServerTls(files(held))
    with pytest.raises(ssl.SSLError):
        tls.context()


SERVER = ("server.crt", "server.key")


@pytest.mark.parametrize(
    ("paths", "content", "told"),
    [
        pytest.param(SERVER, {}, {}, id="without-client-certificates"),
        pytest.param((*SERVER, "ca.crt"), {}, {}, id="good"),
        pytest.param(
            SERVER, {"server.crt": b""}, {"CERT": "has no certificate; give"}, id="none"
        ),
        pytest.param(
            SERVER, {"server.key": b"x"}, {"KEY": "has no key; give"}, id="no-key"
        ),
        pytest.param(
            (*SERVER, "ca.crt"),
            {"server.crt": b"", "server.key": b"", "ca.crt": b""},
            {"CERT": "has no cert", "CLIENT_CA": "has no CA certificate; give"},
            id="all-at-once-but-a-key-that-cannot-be-compared",
        ),
        pytest.param(
            ("no.crt", ".", "ca.crt"),
            {},
            {
                "CERT": "no.crt cannot be read (No such",
                "KEY": "cannot be read (Is a directory",
            },
            id="not-readable",
        ),
        pytest.param(
            ("server.crt", "client.key"),
            {},
            {"KEY": "not the key of the certificate in"},
            id="another-key",
        ),
        pytest.param(
            (*SERVER, "client.crt"), {}, {"CLIENT_CA": ""}, id="not-an-authority"
        ),
    ],
)
def test_files_that_cannot_be_used(
    held: Certificates,
    paths: tuple[str, ...],
    content: dict[str, bytes],
    told: dict[str, str],
) -> None:
    """Each is named by its setting; a slip would show at the first connection only."""
    for name, text in content.items():
        held.replace(name, text)
    found = check_tls_files(TlsFiles(*(held.path(path) for path in paths)))
    assert [text.partition(":")[0] for text in found] == [
        f"GPUSHARE_TLS_{setting}" for setting in told
    ]
    for text, words in zip(found, told.values(), strict=True):
        assert words in text


def test_a_key_with_a_password(held: Certificates) -> None:
    pair = read_pair(held.read(), "server")
    assert pair
    locked = pair.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    held.replace("server.key", locked)
    (complaint,) = check_tls_files(files(held))
    assert "without a password" in complaint


def test_the_first_of_several_ends_first(held: Certificates) -> None:
    """In a file with a chain or two authorities, the soonest end counts."""
    both = held.read()["ca.crt"] + held.read()["server.crt"]
    held.replace("both.crt", both)
    assert read_expiry(held.path("both.crt")) == read_expiry(held.path("server.crt"))
    assert read_expiry(held.path("ca.crt")) > read_expiry(held.path("server.crt"))
