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

from extender.server.tls import (
    ServerTls,
    TlsFiles,
    complaints,
    expires_at,
    server_context,
)
from extender.settings import ExtenderSettings
from gpusharectl.pki import read_pair
from tests.testbed.certificates import Certificates, certificates


@pytest.fixture
def held(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "tls")


def files(held: Certificates) -> TlsFiles:
    return TlsFiles(*held.settings.values())


def serve(link: socket.socket, context: ssl.SSLContext) -> bytes:
    """Take one client's word, as gunicorn would; empty when it is not let in."""
    with link, suppress(OSError), context.wrap_socket(link, server_side=True) as tls:
        return bytes(tls.recv(10))
    return b""


@contextmanager
def meeting(context: ssl.SSLContext) -> Iterator[tuple[socket.socket, Future[bytes]]]:
    """Give a client's end of a connection, and what the server hears on its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), timeout=60)
        far, _ = listener.accept()
    with near, ThreadPoolExecutor(1) as pool:
        yield near, pool.submit(serve, far, context)


def heard(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """Give what a server hears of a client that says ``bind``."""
    with meeting(server) as (near, answer):
        with (
            suppress(OSError),
            client.wrap_socket(near, server_hostname="localhost") as tls,
        ):
            tls.send(b"bind")
            tls.recv(1)
        return answer.result(60)


def serial(server: ssl.SSLContext, client: ssl.SSLContext) -> int:
    """Give the serial number of the certificate that a server shows."""
    with (
        meeting(server) as (near, _),
        client.wrap_socket(near, server_hostname="localhost") as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
        assert shown
        return x509.load_der_x509_certificate(shown).serial_number


def test_kube_schedulers_certificate_is_let_in(held: Certificates) -> None:
    """The one that the authority signed for a client."""
    assert heard(server_context(files(held)), held.client()) == b"bind"


@pytest.mark.parametrize("who", [None, "expired", "stranger", "server"])
def test_nobody_else_is(held: Certificates, who: str | None) -> None:
    """Not without, not too late, not another authority's, not the extender's own."""
    held.expired()
    held.stranger()
    assert heard(server_context(files(held)), held.client(who)) == b""


@pytest.mark.parametrize("words", [b"POST /scheduler/bind HTTP/1.1\r\n\r\n", b"\x16"])
def test_plain_words_are_not_heard(held: Certificates, words: bytes) -> None:
    """HTTP without TLS, and half a beginning of it."""
    with meeting(server_context(files(held))) as (near, answer):
        near.sendall(words)
        # It may have hung up on us already.
        with suppress(OSError):
            near.shutdown(socket.SHUT_WR)
        assert answer.result(60) == b""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", ["TLSv1_1", "TLSv1_2", "TLSv1_3"])
def test_old_versions_are_not_spoken(held: Certificates, version: str) -> None:
    """From 1.2 on, which is what kube-scheduler begins with."""
    client = held.client()
    client.set_ciphers("DEFAULT:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = ssl.TLSVersion[version]
    server = server_context(files(held))
    server.set_ciphers("DEFAULT:@SECLEVEL=0")
    assert heard(server, client) == (b"" if version == "TLSv1_1" else b"bind")


def test_new_certificates_are_shown_on_new_connections(held: Certificates) -> None:
    """And the context is made anew only when the files are."""
    tls = ServerTls(files(held))
    first = tls.context(None, None)
    assert isinstance(first, ssl.SSLContext)
    assert tls.context(None, None) is first
    before = serial(first, held.client())
    renewed = held.renew("server")
    assert serial(tls.context(None, None), held.client()) == renewed
    assert renewed != before


def test_a_new_authority_counts_at_once(held: Certificates) -> None:
    """Who shows the old one's certificate is a stranger from then on."""
    tls = ServerTls(files(held))
    old = held.client()
    assert heard(tls.context(None, None), old) == b"bind"
    held.renew("ca")
    old.load_verify_locations(held.path("ca.crt"))
    assert heard(tls.context(None, None), old) == b""
    assert heard(tls.context(None, None), held.client()) == b"bind"


@pytest.mark.parametrize("harm", ["halfway", "missing", "nonsense"])
def test_the_last_good_ones_stay_while_the_files_are_not(
    held: Certificates, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, not at each connection; when they are good again, they count."""
    tls = ServerTls(files(held))
    good = tls.context(None, None)
    text = held.read()["server.key"]
    if harm == "missing":
        Path(held.path("server.key")).unlink()
    elif harm == "nonsense":
        held.replace("server.key", b"nonsense")
    else:
        client = held.read()["client.key"]
        held.replace("server.key", client)
    assert [tls.context(None, None) for _ in range(3)] == [good] * 3
    (record,) = caplog.records
    assert "cannot be used" in record.message
    held.replace("server.key", text)
    again = tls.context(None, None)
    assert again is not good
    assert heard(again, held.client()) == b"bind"


def test_there_is_none_before_the_first_good_one(held: Certificates) -> None:
    """No connection is better than one that anybody may use."""
    held.replace("ca.crt", b"")
    tls = ServerTls(files(held))
    with pytest.raises(ssl.SSLError):
        tls.context(None, None)


def test_good_files_give_no_complaint(held: Certificates) -> None:
    """As an installer writes them."""
    assert complaints(files(held)) == []


@pytest.mark.parametrize(
    ("file", "setting", "content", "words"),
    [
        ("server.crt", "TLS_CERT", b"", "has no certificate"),
        ("server.key", "TLS_KEY", b"nonsense", "has no key"),
        ("ca.crt", "TLS_CLIENT_CA", b"", "has no CA certificate"),
    ],
)
def test_a_file_that_is_none(
    held: Certificates, file: str, setting: str, content: bytes, words: str
) -> None:
    """Each is named by its setting, alone."""
    held.replace(file, content)
    (complaint,) = complaints(files(held))
    assert complaint.startswith(f"GPUSHARE_{setting}: {held.path(file)} {words}; give")


def test_all_that_is_wrong_is_said_at_once(held: Certificates) -> None:
    """A key tells nothing while there is no certificate to hold it against."""
    for name in ("server.crt", "server.key", "ca.crt"):
        held.replace(name, b"")
    named = [text.partition(":")[0] for text in complaints(files(held))]
    assert named == ["GPUSHARE_TLS_CERT", "GPUSHARE_TLS_CLIENT_CA"]


def test_a_file_that_cannot_be_read(held: Certificates) -> None:
    """The reason is the system's own; a folder is no file either."""
    missing, folder = held.path("no.crt"), str(held.folder)
    first, second = complaints(TlsFiles(missing, folder, held.path("ca.crt")))
    assert first.startswith(f"GPUSHARE_TLS_CERT: {missing} cannot be read (No such")
    assert second.startswith(f"GPUSHARE_TLS_KEY: {folder} cannot be read (Is a dir")
    assert "that uid" in first


def test_a_key_of_another_certificate(held: Certificates) -> None:
    """A slip of a path that would otherwise be seen at the first connection."""
    swapped = TlsFiles(
        held.path("server.crt"), held.path("client.key"), held.path("ca.crt")
    )
    (complaint,) = complaints(swapped)
    assert complaint.startswith("GPUSHARE_TLS_KEY: ")
    assert f"not the key of the certificate in {held.path('server.crt')}" in complaint


def test_a_key_with_a_password(held: Certificates) -> None:
    """Nobody is there to type it, and nobody is asked."""
    pair = read_pair(held.read(), "server")
    assert pair
    locked = pair.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    held.replace("server.key", locked)
    (complaint,) = complaints(files(held))
    assert "without a password" in complaint


def test_a_clients_certificate_is_no_authority(held: Certificates) -> None:
    """With it, nobody would be let in."""
    swapped = TlsFiles(
        held.path("server.crt"), held.path("server.key"), held.path("client.crt")
    )
    (complaint,) = complaints(swapped)
    assert complaint.startswith("GPUSHARE_TLS_CLIENT_CA: ")


def test_the_first_of_several_ends_first(held: Certificates) -> None:
    """In a file with a chain or two authorities, the soonest end counts."""
    both = held.read()["ca.crt"] + held.read()["server.crt"]
    held.replace("both.crt", both)
    assert expires_at(held.path("both.crt")) == expires_at(held.path("server.crt"))
    assert expires_at(held.path("ca.crt")) > expires_at(held.path("server.crt"))


def complained(**environ: str) -> list[str]:
    _, found = ExtenderSettings.read(
        {f"GPUSHARE_{key}": value for key, value in environ.items()}
    )
    return found


def test_settings_give_all_files_or_none() -> None:
    """What is missing is named; nothing is demanded by half."""
    all_three = {"TLS_CERT": "/a", "TLS_KEY": "/b", "TLS_CLIENT_CA": "/c"}
    assert complained(**all_three) == []
    for name in all_three:
        others = {key: path for key, path in all_three.items() if key != name}
        (complaint,) = complained(**others)
        assert complaint == (
            f"GPUSHARE_{name}: is missing; TLS needs it together with "
            + " and ".join(f"GPUSHARE_{key}" for key in others)
        )
        assert len(complained(**{name: "/x"})) == 2


def test_with_tls_the_verbs_may_listen_anywhere() -> None:
    """Whoever reaches them can bind nothing without a certificate."""
    all_three = {"TLS_CERT": "/a", "TLS_KEY": "/b", "TLS_CLIENT_CA": "/c"}
    assert complained(LISTEN="10.0.0.1:1", **all_three) == []
    found = complained(LISTEN="10.0.0.1:1", TLS_CERT="/a", TLS_KEY="/b")
    assert len(found) == 2
    assert any("is not on loopback" in complaint for complaint in found)
