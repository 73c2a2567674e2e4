"""Values of a card from the files of its driver, under ``/sys`` and ``/proc``.

A file that does not exist is a value that the card does not have. One that cannot be
read now is a value that is unknown now.
"""

import errno
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from exporter.telemetry.base import Answer, CardAnswer, answered
from gpushare.cards.deadline import DeadlineCalls
from gpushare.cards.source import FoundCards, WithoutFaults
from gpushare.domain.model import CardUUID

Place = TypeVar("Place")

DEADLINE_S = 5.0
_READ_BYTES = 65536
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.EINVAL}
"""What kernels of different age answer for something that a card does not have."""


class NotThere(Exception):
    """This card, or its driver, does not have this value."""


class FileTelemetry(WithoutFaults, ABC, Generic[Place]):
    """What the telemetries over files of drivers have in common.

    ``root`` is where the host's ``/sys`` and ``/proc`` are found. ``deadline_s`` is how
    long one card may take for one group, or for being found: reading its files calls
    the card, which may hang.
    """

    def __init__(self, root: Path, deadline_s: float) -> None:
        super().__init__()
        self._root = root
        self._calls = DeadlineCalls(deadline_s)
        self._knowing = threading.Lock()
        self._places: dict[CardUUID, Place] = {}
        """Where the files of each known card are."""

    @abstractmethod
    def cards(self) -> FoundCards:
        """Look for cards. ``NoCardsYet``."""

    def driver_version(self) -> str:
        """Return nothing: no file has it."""
        return ""

    def _ask(
        self, kind: type[Answer], group: str, ask: Callable[[Place], Answer]
    ) -> Mapping[CardUUID, Answer]:
        """Ask all cards that are known; look for cards if none is."""
        if not self._places:
            self.cards()
        with self._knowing:
            places = dict(self._places)
        # Another thread shares a call of the same name.
        calls = {(group, uuid): partial(ask, place) for uuid, place in places.items()}
        answers = self._calls.make_all(calls).items()
        by_card = ((uuid, answer) for (_, uuid), answer in answers)
        return answered(kind, by_card, file_error_text)


def read_raw(path: Path) -> bytes:
    """Return a file's first 64 KiB.

    Raises ``NotThere``, or ``OSError`` if it cannot be read now, as during a reset.
    """
    try:
        with path.open("rb") as opened:
            return opened.read(_READ_BYTES)
    except OSError as error:
        if error.errno in _ABSENT:
            raise NotThere(str(path)) from error
        raise


def read_text(path: Path) -> str:
    """Return a file's text without blanks around it. ``NotThere``, ``OSError``."""
    return read_raw(path).decode(errors="replace").strip()


def read_text_or_nothing(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    with suppress(NotThere, OSError):
        return read_text(path)
    return ""


def read_number(path: Path) -> int:
    """Return a file's whole number. ``NotThere``, ``OSError``."""
    try:
        return int(read_text(path))
    except ValueError as error:
        raise NotThere(f"{path} holds no number") from error


def read_number_or_0(path: Path) -> int:
    """Return a file's whole number; 0 if it cannot be read."""
    with suppress(NotThere, OSError):
        return read_number(path)
    return 0


def read_values(
    readers: Mapping[str, Callable[[Place], float]],
    place: Place,
    wanted: Collection[str],
) -> CardAnswer:
    """Read each wanted field of a card; one that cannot be read now is only missing.

    The card has failed if no field could be read and a file had an error. A sensor
    without data (EAGAIN), as that of a part without power, is no error.
    """
    known: dict[str, float] = {}
    unsupported = set(wanted) - readers.keys()
    why = ""
    for name in (name for name in wanted if name in readers):
        try:
            known[name] = readers[name](place)
        except NotThere:
            unsupported.add(name)
        except BlockingIOError:
            continue
        except OSError as error:
            why = file_error_text(error)
    if why and not known:
        return CardAnswer(failure=why)
    return CardAnswer(known, frozenset(unsupported))


def file_error_text(error: Exception) -> str:
    """Return an error's text; of a file's error its path and the cause."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)
