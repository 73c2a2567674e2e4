"""Several sources of cards as one: the driver's cards, and those of an inventory.

What several sources of cards have in common when they are taken as one.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from deviceplugin.cards.source import (
    CardReading,
    CardSource,
    DriverLost,
    Found,
    FoundCard,
    LeftOut,
    NoCardsYet,
    XidEvent,
)

_SLICE_S = 0.25

Again = Callable[[FoundCard, FoundCard], FoundCard | LeftOut]
"""Make something of a card that an earlier source has, and a later one too."""


class Reporting(Protocol):
    """Whatever reports faults."""

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait for a fault."""
        ...


def joined(all_found: Iterable[Found], again: Again) -> Found:
    """Put what was found together, the first one's cards first.

    The first keeps its indices; a later one's card keeps its own too where it is free,
    else it gets the next after all earlier ones.
    """
    cards: dict[str, FoundCard] = {}
    left_out: list[LeftOut] = []
    for found in all_found:
        taken = {card.index for card in cards.values()}
        beside = {card.index for card in found.cards} | taken
        left_out += found.left_out
        for card in found.cards:
            if card.uuid in cards:
                made = again(cards[card.uuid], card)
                if isinstance(made, LeftOut):
                    left_out.append(made)
                else:
                    cards[card.uuid] = made
                continue
            index = max(beside) + 1 if card.index in taken else card.index
            beside.add(index)
            cards[card.uuid] = replace(card, index=index)
    by_index = sorted(cards.values(), key=lambda card: card.index)
    return Found(tuple(by_index), tuple(left_out))


def ends_all(number: int, found: Mapping[int, Found]) -> bool:
    """Tell whether the process is to end for a source whose driver is lost to it.

    Not where this process never had cards of it and serves others: a new one would be
    in the same place, and end again and again.
    """
    its = found.get(number)
    return bool(its and its.cards) or not any(one.cards for one in found.values())


def wait_in_turn(
    sources: Sequence[Reporting], timeout_s: float, closed: Callable[[], bool]
) -> XidEvent | None:
    """Wait at all sources in turn, a moment at each; they keep what comes."""
    ends = time.monotonic() + timeout_s
    while not closed():
        for source in sources:
            left_s = max(0.0, ends - time.monotonic())
            event = source.wait_for_event(min(_SLICE_S, left_s))
            if event is not None:
                return event
        if time.monotonic() >= ends:
            break
    return None


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
