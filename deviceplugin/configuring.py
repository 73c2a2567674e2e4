"""Keeps to the file of fields while it changes; a bad one leaves what was before."""

import logging
from pathlib import Path
from threading import Event

from deviceplugin.board import Board
from deviceplugin.fieldfile import BadFieldFile, FieldFile, parse
from deviceplugin.remarks import Remarks
from deviceplugin.sampler import Sampler
from deviceplugin.switches import Flags, choose

logger = logging.getLogger(__name__)

CONFIG = "config"
"""What the trouble is about in ``Snapshot.troubles`` while the file is bad."""
_MOST_BYTES = 1 << 20


class Configuring:
    """The flags of the command line, and the file of fields if there is one.

    The file is read at every look: it is short, and neither its time nor its inode
    tells all changes that a ConfigMap's links and an editor make.
    """

    def __init__(
        self, flags: Flags, path: Path | None, sampler: Sampler, board: Board
    ) -> None:
        self._flags = flags
        self._path = path
        self._sampler = sampler
        self._board = board
        self._seen: bytes | None = None
        self._looked = False
        self._remarks = Remarks()

    def run(self, stop: Event, every_s: float) -> None:
        """Look at the file every so often until ``stop`` is set."""
        while not stop.wait(every_s):
            self.look()

    def look(self) -> None:
        """Do what the file says now, if that is news. The first look always chooses."""
        first, self._looked = not self._looked, True
        try:
            raw = self._read()
            if raw == self._seen and not first and not self._is_bad():
                return
            self._seen = raw
            listed = None if raw is None else parse(raw.decode())
        except (BadFieldFile, UnicodeDecodeError, OSError) as error:
            if first:
                self._sampler.choose(choose(self._flags))
            why = _because(self._path, error)
            line = "the file of fields will not do"
            self._remarks.about(CONFIG, why, line, because=why)
            self._board.trouble(CONFIG, why)
            return
        self._take(listed)

    def _take(self, listed: FieldFile | None) -> None:
        if listed is None:
            self._sampler.choose(choose(self._flags))
        else:
            self._sampler.choose(choose(self._flags, listed.fields))
            facts = {"file": str(self._path), "fields": len(listed.fields)}
            logger.info("fields chosen", extra=facts)
            if listed.unknown:
                facts = {"file": str(self._path), "fields": ",".join(listed.unknown)}
                logger.warning("fields not known here", extra=facts)
        self._remarks.about(CONFIG, "", "the file of fields will do again")
        self._board.trouble(CONFIG, "")

    def _is_bad(self) -> bool:
        return CONFIG in self._board.read().troubles

    def _read(self) -> bytes | None:
        """Give the file; None where there is none. ``OSError``, ``BadFieldFile``."""
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as opened:
                raw = opened.read(_MOST_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(raw) > _MOST_BYTES:
            raise BadFieldFile(f"it is longer than {_MOST_BYTES} bytes")
        return raw


def _because(path: Path | None, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        words = "it is no UTF-8 text"
    elif isinstance(error, OSError):
        words = f"it cannot be read ({error.strerror})"
    else:
        words = str(error)
    return f"{path}: {words}; what was chosen before stays"
