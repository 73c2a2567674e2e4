"""TLS: mutual for the verbs, so that whoever has no certificate cannot bind pods.

The webhook's listener lets in clients without one: it knows nothing, and gives nothing
away that its client did not bring.

The files are looked at for each new connection, so that renewed ones count from there
on, without a restart. While they do not fit together, as between the writes of a
certificate and its key, the last that did are used.
"""

import logging
import os
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

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
    """Whose client certificates are let in; None lets in clients without one."""

    @property
    def paths(self) -> tuple[str, ...]:
        """In the order of their settings."""
        always = (self.cert, self.key)
        return always if self.client_ca is None else (*always, self.client_ca)

    def stamp(self) -> Stamp:
        """Return what is another after one of them was replaced; ``OSError``."""
        seen = [Path(path).stat() for path in self.paths]
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in seen)


def server_context(
    files: TlsFiles, sockets: type[ssl.SSLSocket] = ssl.SSLSocket
) -> ssl.SSLContext:
    """Make a server's context, which wants a client's certificate if the files say so.

    Its connections are of the class ``sockets``.

    ``OSError`` where a file cannot be read, ``ssl.SSLError`` where it is not what it
    should be or the files do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = sockets
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.client_ca)
    _load_pair(context, files)
    return context


class ServerTls:
    """Gives gunicorn the context for each new connection."""

    def __init__(
        self, files: TlsFiles, sockets: type[ssl.SSLSocket] = ssl.SSLSocket
    ) -> None:
        self._files = files
        self._sockets = sockets
        self._current: tuple[Stamp, ssl.SSLContext] | None = None
        self._told = ""

    def context(self, _config: object, _default: object) -> ssl.SSLContext:
        """Be gunicorn's ``ssl_context``; ``OSError`` while there was never a good one.

        Called by many threads: what it keeps is put in place whole, in one step.
        """
        last = self._current
        try:
            return self._newest(last)
        except OSError as error:
            if last is None:
                raise
            self._tell(str(error))
            return last[1]

    def _newest(self, last: tuple[Stamp, ssl.SSLContext] | None) -> ssl.SSLContext:
        # Before they are read, so that a change meanwhile is seen the next time.
        stamp = self._files.stamp()
        if last is not None and last[0] == stamp:
            return last[1]
        made = server_context(self._files, self._sockets)
        self._current = stamp, made
        self._told = ""
        if last is not None:
            logger.info("new certificates", extra={"cert": self._files.cert})
        return made

    def _tell(self, because: str) -> None:
        """Warn once, not at each connection."""
        if because != self._told:
            self._told = because
            logger.warning(
                "the files for TLS cannot be used; the ones before still are",
                extra={"cert": self._files.cert, "because": because},
            )


def complaints(files: TlsFiles) -> list[str]:
    """Say what is wrong with the files, each with its setting and a fix."""
    unreadable = [
        _unreadable(*each) for each in zip(SETTINGS, files.paths, strict=False)
    ]
    if any(unreadable):
        return [complaint for complaint in unreadable if complaint]
    return [
        f"{PREFIX}{setting}: {path} {problem}"
        for setting, path, problem in (
            ("TLS_CERT", files.cert, _no_certificate(files.cert)),
            ("TLS_KEY", files.key, _no_key(files)),
            ("TLS_CLIENT_CA", files.client_ca, _no_authority(files.client_ca)),
        )
        if problem
    ]


def expires_at(path: str) -> datetime:
    """Say when a file's certificates expire, the soonest; ``OSError, ValueError``."""
    found = x509.load_pem_x509_certificates(Path(path).read_bytes())
    return min(each.not_valid_after_utc for each in found)


def _unreadable(setting: str, path: str) -> str:
    try:
        Path(path).read_bytes()
    except OSError as error:
        fix = f"give the path of a file that uid {os.getuid()} can read"
        return f"{PREFIX}{setting}: {path} cannot be read ({error.strerror}); {fix}"
    return ""


def _no_certificate(path: str) -> str:
    try:
        expires_at(path)
    except ValueError:
        return "holds no certificate; give a PEM file with the server's own first"
    return ""


def _no_key(files: TlsFiles) -> str:
    try:
        _load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"is not the key of the certificate in {files.cert}; give its own"
        if not _no_certificate(files.cert):
            return "holds no key; give a PEM file that needs no password"
    return ""


def _no_authority(path: str | None) -> str:
    if path is None:
        return ""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with suppress(ssl.SSLError):
        context.load_verify_locations(path)
    if context.cert_store_stats()["x509_ca"]:
        return ""
    return "holds no certificate of an authority; give the one that signs clients"


def _load_pair(context: ssl.SSLContext, files: TlsFiles) -> None:
    # Without a password given, OpenSSL would ask for one on the terminal.
    context.load_cert_chain(files.cert, files.key, password="")
