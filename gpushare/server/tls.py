"""Set up TLS: mutual for the verbs, so that only clients with a certificate can bind.

The webhook lets in clients without one: it has no secrets, and answers only about the
pod that it was sent.

The files are checked for each new connection, so renewed ones are used without a
restart. While they do not match, as between the writes of a certificate and its key,
the last matching ones stay in use.
"""

import logging
import os
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpushare.logs import LogOnce
from gpushare.settings import PREFIX

logger = logging.getLogger(__name__)

SETTINGS = ("TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA")
"""All of them or none."""
Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files."""

    cert: str
    key: str
    client_ca: str | None = None
    """CA of the clients' certificates; None lets in clients without one."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths in the order of ``SETTINGS``."""
        always = (self.cert, self.key)
        return always if self.client_ca is None else (*always, self.client_ca)

    def stamp(self) -> Stamp:
        """Return a value that changes when a file is replaced; ``OSError``."""
        files = [Path(path).stat() for path in self.paths]
        return tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in files)


class TellingWhyNot(ssl.SSLObject):
    """One TLS connection whose client is told why its handshake failed.

    asyncio closes a connection when the handshake raises, and does not send the alert
    that OpenSSL has written, such as "expired certificate". It does send what is
    written when a handshake waits for the client. So the first failure looks like a
    wait. A client hangs up when it reads the alert; else the handshake's deadline ends.
    """

    _failed: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Go on with the handshake, as asyncio asks for."""
        if self._failed is not None:
            raise self._failed
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self._failed = error
            raise ssl.SSLWantReadError from None


def make_server_context(files: TlsFiles) -> ssl.SSLContext:
    """Make a server's context; it requires client certificates if there is a CA.

    ``OSError`` if a file cannot be read, ``ssl.SSLError`` if it has the wrong content
    or the files do not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = TellingWhyNot
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.client_ca)
    _load_pair(context, files)
    return context


class ServerTls:
    """Give the context for each new connection."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._current: tuple[Stamp, ssl.SSLContext] | None = None
        self._log_once = LogOnce(logger)

    def context(self) -> ssl.SSLContext:
        """Return the context; ``OSError`` if the files were never usable."""
        last = self._current
        try:
            return self._newest(last)
        except OSError as error:
            if last is None:
                raise
            self._log_once.problem(
                "files",
                str(error),
                "new TLS files cannot be used; the previous ones stay in use",
                cert=self._files.cert,
                because=str(error),
            )
            return last[1]

    def _newest(self, last: tuple[Stamp, ssl.SSLContext] | None) -> ssl.SSLContext:
        # Before they are read, so that a change meanwhile is noticed the next time.
        stamp = self._files.stamp()
        if last is not None and last[0] == stamp:
            return last[1]
        context = make_server_context(self._files)
        self._current = stamp, context
        self._log_once.recovered("files")
        if last is not None:
            logger.info("new certificates", extra={"cert": self._files.cert})
        return context


def check_tls_files(files: TlsFiles, part: str = "") -> list[str]:
    """Return what is wrong with the files, each with its setting and a remedy.

    The names of the settings begin with ``part``.
    """
    prefix = f"{PREFIX}{part}"
    unreadable = [
        _unreadable(f"{prefix}{name}", path)
        for name, path in zip(SETTINGS, files.paths, strict=False)
    ]
    if any(unreadable):
        return [complaint for complaint in unreadable if complaint]
    return [
        f"{prefix}{setting}: {path} {problem}"
        for setting, path, problem in (
            ("TLS_CERT", files.cert, _no_certificate(files.cert)),
            ("TLS_KEY", files.key, _no_key(files)),
            ("TLS_CLIENT_CA", files.client_ca, _no_authority(files.client_ca)),
        )
        if problem
    ]


def read_expiry(path: str) -> datetime:
    """Return when a file's first certificate expires; ``OSError, ValueError``."""
    chain = x509.load_pem_x509_certificates(Path(path).read_bytes())
    return min(certificate.not_valid_after_utc for certificate in chain)


def _unreadable(setting: str, path: str) -> str:
    try:
        Path(path).read_bytes()
    except OSError as error:
        fix = f"give the path of a file that uid {os.getuid()} can read"
        return f"{setting}: {path} cannot be read ({error.strerror}); {fix}"
    return ""


def _no_certificate(path: str) -> str:
    try:
        read_expiry(path)
    except ValueError:
        return "has no certificate; give a PEM file with the server's own first"
    return ""


def _no_key(files: TlsFiles) -> str:
    try:
        _load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"is not the key of the certificate in {files.cert}; give that"
        if not _no_certificate(files.cert):
            return "has no key; give a PEM file without a password"
    return ""


def _no_authority(path: str | None) -> str:
    if path is None:
        return ""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with suppress(ssl.SSLError):
        context.load_verify_locations(path)
    if context.cert_store_stats()["x509_ca"]:
        return ""
    return "has no CA certificate; give the CA that signs the clients' certificates"


def _load_pair(context: ssl.SSLContext, files: TlsFiles) -> None:
    # Without a password given, OpenSSL would ask for one on the terminal.
    context.load_cert_chain(files.cert, files.key, password="")


class CertificateCollector(Collector):
    """When the certificates expire, read from the files at each scrape.

    Two small files cost less than the cards of one node. The webhook has a metric
    ``name`` of its own, as its certificate may be renewed by others, and later.
    """

    def __init__(
        self,
        files: TlsFiles,
        name: str = "vcuda_certificate_not_after_timestamp_seconds",
    ) -> None:
        self._name = name
        self._paths = {"server": files.cert}
        if files.client_ca is not None:
            self._paths["ca"] = files.client_ca
        self._log_once = LogOnce(logger)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield a gauge with a line for each file that can be read."""
        ends = {}
        for file, path in self._paths.items():
            try:
                ends[file] = read_expiry(path).timestamp()
                self._log_once.recovered(file)
            except (OSError, ValueError) as error:
                why, message = str(error), "certificate cannot be read"
                self._log_once.problem(file, why, message, path=path, because=why)
        text = "When the certificate expires; the soonest of a file with several."
        family = GaugeMetricFamily(self._name, text, labels=["file"])
        for file, end in ends.items():
            family.add_metric([file], end)
        yield family
