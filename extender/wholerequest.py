"""Sockets that keep what they hear until a whole request is there.

Who answers requests in threads must not wait in one of them for somebody's next byte:
a few clients that send half a request would take all the threads.
"""

import errno
import select
import socket
import ssl
import time
from contextlib import suppress
from enum import Enum
from typing import Any, Self

MOST_HEAD = 64 << 10
"""Bytes of a request line and its headers; more the parser may judge."""
_RECORD = 64 << 10
_RECORDS = 64
"""Heard at a time, so that nobody has the main loop for himself."""
_END = b"\r\n\r\n"
_MOST_DIGITS = 15
_UNHEARD = {b"transfer-encoding", b"expect"}
"""Fields of requests whose body is not waited for; no API server sends one."""


class Heard(Enum):
    """How much of a request has come."""

    NOTHING = "nothing"
    """The handshake is done, and no byte came after it."""
    PART = "part"
    WHOLE = "whole"


class Pieces:
    """The bytes of a request, one after the other; ``kept`` are those not read yet.

    Of a body longer than ``most_body`` none is kept: its length alone is answered. One
    whose end the head does not tell is not waited for.
    """

    def __init__(self, most_body: int) -> None:
        self.kept = bytearray()
        self._most_body = most_body
        self.cut = False
        """Whether some was thrown away, so that no other request can follow."""
        self._left: int | None = None

    def add(self, piece: bytes) -> None:
        """Take over what came."""
        if self._left is None:
            self.kept += piece
            self._look_for_head()
            return
        self._left -= len(piece)
        if not self.cut:
            self.kept += piece

    def heard(self) -> Heard:
        """Say whether there is enough to answer, if only that it is refused."""
        if self._left is not None:
            return Heard.WHOLE if self._left <= 0 else Heard.PART
        if not self.kept:
            return Heard.NOTHING
        return Heard.WHOLE if len(self.kept) > MOST_HEAD else Heard.PART

    def take(self, most: int) -> bytes:
        """Give the next bytes; none where all were given."""
        with memoryview(self.kept) as kept:
            found = bytes(kept[:most])
        del self.kept[:most]
        return found

    def _look_for_head(self) -> None:
        end = self.kept.find(_END)
        if end < 0:
            return
        fields = dict(_field(line) for line in self.kept[:end].split(b"\r\n")[1:])
        length = fields.get(b"content-length", b"0")
        right = length.isdigit() and len(length) <= _MOST_DIGITS
        known = right and not fields.keys() & _UNHEARD
        body = int(length) if known else 0
        self._left = body - (len(self.kept) - end - len(_END))
        self.cut = not known or body > self._most_body
        if self.cut:
            del self.kept[end + len(_END) :]


def _field(line: bytes | bytearray) -> tuple[bytes, bytes]:
    name, _, value = bytes(line).partition(b":")
    return name.strip().lower(), value.strip()


class _Whole(socket.socket):
    """What both kinds of sockets do."""

    most_body = 8 << 20
    """Bytes of a body that is kept."""
    answer_s = 1.0
    """In which an answer has to go out, from its first byte on to its last."""
    _until: float | None = None
    _pieces: Pieces | None = None
    _read = False
    """Whether some of what is kept was read."""

    @property
    def pieces(self) -> Pieces:
        """What came and was not read."""
        if self._pieces is None:
            self._pieces = Pieces(self.most_body)
        return self._pieces

    def begin_anew(self, unread: bytes) -> bool:
        """Wait for another request; True where some of it came with the one before."""
        if self._read:
            begun = unread + self.pieces.kept
            self._pieces = Pieces(self.most_body)
            self._read = False
            if begun:
                self._pieces.add(begun)
        return bool(self.pieces.kept)

    def hear(self) -> Heard:
        """Take over what came, without waiting for more; ``OSError`` if he hung up."""
        with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            # Of TLS each is one record, so what is left shows as readable again.
            for _ in range(_RECORDS):
                if self.pieces.heard() is Heard.WHOLE:
                    break
                piece = super().recv(_RECORD)
                if not piece:
                    raise _went_away("hung up")
                self.pieces.add(piece)
        return self.pieces.heard()

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001
        """Begin or end an answer; the socket itself never blocks."""
        del flag
        self._until = None
        if self.gettimeout() != 0:
            self.settimeout(0)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Give what is kept; nothing where the request was not whole after all."""
        del flags
        self._read = True
        return self.pieces.take(buflen)

    def takes_answers(self) -> bool:
        """Tell whether there is room for one; else he reads none, and has many."""
        return self._is_ready(select.POLLOUT, 0)

    def sendall(self, data: Any, flags: int = 0) -> None:  # noqa: ANN401
        """Send; ``ConnectionResetError`` for who does not take his answer."""
        del flags
        if self._until is None:
            self._until = time.monotonic() + self.answer_s
        left = memoryview(data)
        while left:
            try:
                left = left[self.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                left_s = self._until - time.monotonic()
                if left_s <= 0 or not self._is_ready(select.POLLOUT, left_s):
                    raise _went_away("answer not taken") from None

    def _is_ready(self, for_what: int, within_s: float) -> bool:
        looking = select.poll()
        looking.register(self, for_what)
        return bool(looking.poll(within_s * 1000))


class WholeRequestSocket(_Whole):
    """Hears without waiting, and is read without waiting: ``recv`` gives what is kept.

    gunicorn takes an empty answer for a client that hung up.
    """

    @classmethod
    def of(cls, accepted: socket.socket) -> Self:
        """Take over a connection."""
        return cls(fileno=accepted.detach())


class WholeRequestTlsSocket(_Whole, ssl.SSLSocket):
    """The same over TLS; shakes hands without waiting, too."""

    _shaken = False

    def hear(self) -> Heard:
        """Shake hands, then take over what came; ``OSError`` for who hung up."""
        if not self._shaken:
            try:
                self.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return Heard.PART
            self._shaken = True
        return super().hear()


def _went_away(words: str) -> ConnectionResetError:
    """Give the error that gunicorn takes for a client that went away."""
    return ConnectionResetError(errno.ECONNRESET, words)
