"""Several sources of cards as one: the driver's cards, and those of an inventory."""

import logging
import threading
from collections.abc import Sequence

from deviceplugin.cards import (
    CardReading,
    CardSource,
    DriverLost,
    Found,
    FoundCard,
    LeftOut,
    NoCardsYet,
    XidEvent,
)
from deviceplugin.joining import ends_all, joined, wait_in_turn

logger = logging.getLogger(__name__)


class JoinedCards:
    """A ``CardSource`` over others; the first one's cards come first.

    The first keeps its indices; a later one's card keeps its own too where it is free,
    else it gets the next after all earlier ones. A source that has nothing to ask yet
    does not hide the others; once it has found cards they stay listed, and their
    readings fail while it is gone.
    """

    def __init__(self, sources: Sequence[CardSource]) -> None:
        self._sources = tuple(sources)
        self._lock = threading.Lock()
        self._found: dict[int, Found] = {}
        self._reasons: dict[int, str] = {}
        self._closed = threading.Event()

    def cards(self) -> Found:
        """Look at all sources; ``NoCardsYet`` only where none has a card.

        ``DriverLost`` where that is to end them all (``ends_all``).
        """
        for number, source in enumerate(self._sources):
            try:
                self._note_found(number, source.cards())
            except DriverLost:
                if ends_all(number, self._noted()[0]):
                    raise
            except NoCardsYet as error:
                self._note_none(number, str(error))
        all_found, reasons = self._noted()
        found = joined(all_found.values(), _left_out)
        if not found.cards and reasons:
            raise NoCardsYet("; ".join(reasons))
        return found

    def readings(self) -> Sequence[CardReading]:
        """Read all sources' cards, each once."""
        all_found, reasons = self._noted()
        readings: dict[str, CardReading] = {}
        for number, found in all_found.items():
            for reading in self._read(self._sources[number], found):
                readings.setdefault(reading.uuid, reading)
        if not readings and reasons:
            raise NoCardsYet("; ".join(reasons))
        return list(readings.values())

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait at all sources in turn, a moment at each; they keep what comes."""
        return wait_in_turn(self._sources, timeout_s, self._closed.is_set)

    def driver_load(self) -> str:
        """Give the first one's word: faults are reported by NVIDIA's driver alone."""
        return self._sources[0].driver_load()

    def close(self) -> None:
        """Close all."""
        self._closed.set()
        for source in self._sources:
            source.close()

    def _read(self, source: CardSource, found: Found) -> Sequence[CardReading]:
        try:
            return source.readings()
        except NoCardsYet as error:
            because = str(error)
            return [CardReading(card.uuid, None, because) for card in found.cards]

    def _note_found(self, number: int, found: Found) -> None:
        with self._lock:
            self._found[number] = found
            self._reasons.pop(number, None)

    def _note_none(self, number: int, because: str) -> None:
        with self._lock:
            if self._reasons.get(number) != because:
                logger.warning("a source has no cards yet", extra={"because": because})
            self._reasons[number] = because

    def _noted(self) -> tuple[dict[int, Found], list[str]]:
        with self._lock:
            by_number = {number: self._found[number] for number in sorted(self._found)}
            return by_number, list(self._reasons.values())


def _left_out(_: FoundCard, card: FoundCard) -> LeftOut:
    return LeftOut(card.uuid, "another source has it already")
