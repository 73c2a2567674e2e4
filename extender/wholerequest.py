"""A TLS socket that keeps what it hears until a whole request is there.

Who answers requests in threads must not wait in one of them for somebody's next byte:
a few clients that send half a request would take all the threads.
"""

import select
import ssl
import time
from enum import Enum

MOST_HEAD = 64 << 10
"""Bytes of a request line and its headers; more the parser may judge."""
_RECORD = 16 << 10
_RECORDS = 64
"""Heard at a time, so that nobody has the main loop for himself."""
_END = b"\r\n\r\n"
_MOST_DIGITS = 15
_UNHEARD = {b"transfer-encoding", b"expect"}
"""Fields of requests whose body is not waited for; no API server sends one."""
_LEAST_S = 0.001
"""Left for a piece of an answer that there is room for."""


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
        found = bytes(self.kept[:most])
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


class WholeRequestSocket(ssl.SSLSocket):
    """Hears without waiting, and is read without waiting: ``recv`` gives what is kept.

    gunicorn takes an empty answer for a client that hung up.
    """

    most_body = 8 << 20
    """Bytes of a body that is kept."""
    answer_s = 1.0
    """In which an answer has to go out, from its first byte on to its last."""
    _shaken = False
    _until: float | None = None
    _pieces: Pieces | None = None

    @property
    def pieces(self) -> Pieces:
        """What came and was not read."""
        if self._pieces is None:
            self._pieces = Pieces(self.most_body)
        return self._pieces

    def begin_anew(self, unread: bytes) -> bool:
        """Wait for another request; True where some of it came with the one before."""
        begun = unread + self.pieces.kept
        self._pieces = Pieces(self.most_body)
        if begun:
            self._pieces.add(begun)
        return bool(begun)

    def hear(self) -> Heard:
        """Take over what came, without waiting for more; ``OSError`` if he hung up."""
        try:
            if not self._shaken:
                self.do_handshake()
                self._shaken = True
            # Each is one record of TLS, so what is left shows as readable again.
            for _ in range(_RECORDS):
                if self.pieces.heard() is Heard.WHOLE:
                    break
                piece = super().recv(_RECORD)
                if not piece:
                    raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "hung up")
                self.pieces.add(piece)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        return self.pieces.heard() if self._shaken else Heard.PART

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001
        """Begin an answer, which may not take for ever, or end it."""
        self._until = None
        self.settimeout(self.answer_s if flag else 0.0)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Give what is kept; nothing where the request was not whole after all."""
        del flags
        return self.pieces.take(buflen)

    def takes_answers(self) -> bool:
        """Tell whether there is room for one; else he reads none, and has many."""
        looking = select.poll()
        looking.register(self, select.POLLOUT)
        return bool(looking.poll(0))

    def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]
        """Send; ``ssl.SSLEOFError`` for who does not take his answer."""
        del flags
        if self._until is None:
            self._until = time.monotonic() + self.answer_s
        left = memoryview(data)
        try:
            while left:
                self.settimeout(max(self._until - time.monotonic(), _LEAST_S))
                left = left[self.send(left) :]
        except TimeoutError as error:
            # gunicorn takes this one for a client that went away.
            raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "answer not taken") from error
