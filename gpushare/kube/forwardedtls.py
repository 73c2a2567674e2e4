"""TLS over a forwarded port, which is no socket that ``ssl`` could wrap."""

import io
import ssl
from typing import Any, Protocol

_CHUNK = 1 << 16


class Stream(Protocol):
    """As much of a socket as ``http.client`` needs."""

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        ...

    def makefile(self, mode: str) -> io.BufferedReader:
        """Give what comes."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class TlsLink:
    """A stream with TLS on it, of the same shape; ``ssl.SSLError``, an ``OSError``.

    The handshake is done when it is made.
    """

    def __init__(self, link: Stream, context: ssl.SSLContext, name: str) -> None:
        self._link = link
        self._coming = link.makefile("rb")
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=name)
        self._until_done(self._tls.do_handshake)

    def sendall(self, data: bytes) -> None:
        """Send, encrypted."""
        self._until_done(lambda: self._tls.write(data))

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Give what comes, decrypted."""
        return io.BufferedReader(_Decrypted(self))

    def close(self) -> None:
        """Leave it to who opened the stream."""

    def read(self, size: int) -> bytes:
        """Read some bytes; none at the end."""
        try:
            found: bytes = self._until_done(lambda: self._tls.read(size))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""
        return found

    def _until_done(self, step: Any) -> Any:  # noqa: ANN401
        """Do a step of TLS, with all the sending and receiving that it takes."""
        while True:
            try:
                found = step()
            except ssl.SSLWantReadError:
                self._flush()
                self._feed()
            except ssl.SSLError:
                # The other side is told why.
                self._flush()
                raise
            else:
                self._flush()
                return found

    def _flush(self) -> None:
        if words := self._out.read():
            self._link.sendall(words)

    def _feed(self) -> None:
        if words := self._coming.read1(_CHUNK):
            self._in.write(words)
        else:
            self._in.write_eof()


class _Decrypted(io.RawIOBase):
    def __init__(self, link: TlsLink) -> None:
        self._link = link

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        found = self._link.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)
