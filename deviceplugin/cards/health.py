"""Which cards are sick and why: failed readings, and the driver's faults (XIDs).

A card is sick for either of two reasons. A card whose reading fails is sick at once,
and well after three good readings in a row. A card with a fault still answers: it stays
sick until the driver is loaded again, or until an operator clears the fault. Faults are
kept in a file, because they must outlive a restart of the process.
"""

import json
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpushare.cards.source import CardReading, XidEvent
from gpushare.cards.xids import PROGRAM_XIDS
from gpushare.domain.model import CardUUID
from gpushare.files import replace_file
from gpushare.kube.json_reader import Malformed, Reader

logger = logging.getLogger(__name__)

GOOD_READINGS = 3
"""So many in a row make a card well again; one that comes and goes is useless."""

_VERSION = 1


class Health:
    """The faults and failures of all cards. Any thread may call.

    ``harmless`` are further XIDs that leave a card well. ``file`` keeps the faults over
    a restart; an error with it is only logged.
    """

    def __init__(self, harmless: Iterable[int] = (), file: Path | None = None) -> None:
        self._harmless = frozenset(PROGRAM_XIDS) | frozenset(harmless)
        self._lock = threading.Lock()
        self._known: frozenset[CardUUID] = frozenset()
        self._load = ""
        self._faults: dict[CardUUID | None, dict[int, str]] = {}
        self._failures: dict[CardUUID, _Failure] = {}
        self._file = file
        self._saving = threading.Lock()
        self._saved = ""
        if file is not None:
            self._load_file(file)

    def set_known(self, uuids: Iterable[CardUUID]) -> None:
        """Set the driver's cards; a fault without a card makes all of them sick."""
        with self._lock:
            self._known = frozenset(uuids)
            if self._known:
                for xid, load in self._faults.pop(None, {}).items():
                    self._spread(xid, load)

    def set_driver_load(self, name: str) -> None:
        """Set the name of the driver's present loading, empty if it is unknown.

        Call it before ``record_fault``: a fault ends when a later loading has another
        name.
        """
        with self._lock:
            if name:
                self._load = name
                self._forget_outlived()

    def record_fault(self, event: XidEvent) -> bool:
        """Record a fault; return whether it makes its card, or all cards, sick."""
        if event.xid in self._harmless:
            return False
        with self._lock:
            if event.uuid is not None:
                self._faults.setdefault(event.uuid, {})[event.xid] = self._load
            else:
                self._spread(event.xid, self._load)
        return True

    def read(self, readings: Iterable[CardReading]) -> None:
        """Record one reading of each card."""
        with self._lock:
            for reading in readings:
                if reading.failure:
                    self._failures[reading.uuid] = _Failure(reading.failure)
                elif (failure := self._failures.get(reading.uuid)) is not None:
                    failure.good += 1
                    if failure.good >= GOOD_READINGS:
                        del self._failures[reading.uuid]

    def clear(self, uuid: CardUUID) -> bool:
        """Forget a card's faults, not its failing reading; return if it had any."""
        with self._lock:
            return self._faults.pop(uuid, None) is not None

    def sick(self) -> dict[CardUUID, str]:
        """Return each sick card and what is wrong with it, for an operator."""
        with self._lock:
            reasons = {
                uuid: [failure.because] for uuid, failure in self._failures.items()
            }
            for uuid, xids in self._faults.items():
                if uuid is not None:
                    reasons.setdefault(uuid, []).append(_fault_text(xids))
        return {uuid: "; ".join(parts) for uuid, parts in sorted(reasons.items())}

    def save(self) -> None:
        """Write the faults if they changed."""
        if self._file is None:
            return
        # The lock is taken before the state is read, so that no older one is written
        # last.
        with self._saving:
            text = self.state()
            if text == self._saved:
                return
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self._file, text, synced=True)
                self._saved = text
            except OSError as error:
                why = (
                    f"{self._file}: {error.strerror}; after a restart the faults are "
                    "forgotten"
                )
                logger.warning("health cannot be saved", extra={"because": why})

    def state(self) -> str:
        """Return the faults as JSON; the same text while they are unchanged."""
        with self._lock:
            faults = [
                {"card": uuid or "", "xid": xid, "load": load}
                for uuid, xids in self._faults.items()
                for xid, load in xids.items()
            ]
        faults.sort(key=lambda fault: (str(fault["card"]), fault["xid"]))
        return json.dumps({"v": _VERSION, "faults": faults})

    def restore(self, text: str | bytes) -> None:
        """Restore what ``state`` returned, all or nothing. Raises ``Malformed``."""
        reader = Reader.parse(text, "health")
        reader.version(_VERSION)
        faults: dict[CardUUID | None, dict[int, str]] = {}
        for fault in reader.objects("faults"):
            uuid = CardUUID(fault.optional_text("card")) or None
            xid, load = fault.integer("xid"), fault.optional_text("load")
            faults.setdefault(uuid, {})[xid] = load
        with self._lock:
            self._faults = faults
            self._forget_outlived()

    def _load_file(self, file: Path) -> None:
        try:
            self.restore(file.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, Malformed) as error:
            complaint = f"{file}: {error}; faults from before are forgotten"
            logger.warning("health cannot be restored", extra={"because": complaint})

    def _spread(self, xid: int, load: str) -> None:
        for uuid in self._known or {None}:
            self._faults.setdefault(uuid, {})[xid] = load

    def _forget_outlived(self) -> None:
        if not self._load:
            return
        for uuid, xids in list(self._faults.items()):
            # A fault without a loading's name is of this loading, or of an earlier one.
            now = ("", self._load)
            if kept := {xid: self._load for xid, load in xids.items() if load in now}:
                self._faults[uuid] = kept
            else:
                del self._faults[uuid]


@dataclass(slots=True)
class _Failure:
    """Why a card's reading failed last, and how many good ones came since."""

    because: str
    good: int = 0


def _fault_text(xids: Iterable[int]) -> str:
    numbers = ", ".join(str(xid) for xid in sorted(xids))
    return f"XID {numbers}, until the driver is loaded again or an operator clears it"
