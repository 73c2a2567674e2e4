"""Several sources of cards as one: the driver's cards and those of an inventory."""

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from gpushare.cards.source import (
    CardReading,
    CardSource,
    DriverLost,
    FindsCards,
    FoundCard,
    FoundCards,
    LeftOut,
    NoCardsYet,
    XidEvent,
)

logger = logging.getLogger(__name__)

_SLICE_S = 0.25


Source = TypeVar("Source", bound=FindsCards)


class Combined(Generic[Source]):
    """What combined cards and combined telemetry have in common.

    The first source keeps its indices; a card of a later one keeps its own too if it is
    free, else it gets the next after all earlier ones. A source that has nothing to ask
    yet does not hide the others. Once it has found cards they stay listed, and their
    readings fail while it is gone.
    """

    expected: type[Exception] = NoCardsYet
    """Which errors of one source must not hide the others."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._lock = threading.Lock()
        self._found: dict[int, FoundCards] = {}
        self._reasons: dict[int, str] = {}
        self._closed = threading.Event()

    def cards(self) -> FoundCards:
        """Look at all sources; ``NoCardsYet`` with all reasons if none has a card.

        Raises ``DriverLost`` if the process is to end for a source (``_ends_all``).
        """
        for number, source in enumerate(self._sources):
            try:
                self._note_found(number, source.cards())
            except DriverLost:
                if _ends_all(number, self._noted()[0]):
                    raise
            except self.expected as error:
                self._note_none(number, error_text(error))
        all_found, reasons = self._noted()
        joined = self._join(all_found.values())
        # Cards that were left out are the reason then, whatever other sources miss.
        if not joined.cards and not joined.left_out and reasons:
            raise NoCardsYet("; ".join(reasons))
        return joined

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait at all sources in turn, a moment at each; they keep what comes."""
        ends = time.monotonic() + timeout_s
        while not self._closed.is_set():
            for source in self._sources:
                left_s = max(0.0, ends - time.monotonic())
                event = source.wait_for_event(min(_SLICE_S, left_s))
                if event is not None:
                    return event
            if time.monotonic() >= ends:
                break
        return None

    def close(self) -> None:
        """Close all."""
        self._closed.set()
        for source in self._sources:
            source.close()

    def _twice(self, _: FoundCard, card: FoundCard) -> FoundCard | LeftOut:
        """Return what becomes of a card that an earlier source has, too."""
        return LeftOut(card.uuid, "another source has it already")

    def _log_found(self, number: int, cards: FoundCards) -> None:
        """Log that a source has cards again; nothing by default."""

    def _log_none(self, _: int, because: str) -> None:
        logger.warning("a source has no cards yet", extra={"because": because})

    def _join(self, all_found: Iterable[FoundCards]) -> FoundCards:
        cards: dict[str, FoundCard] = {}
        left_out: list[LeftOut] = []
        for of_source in all_found:
            taken = {card.index for card in cards.values()}
            beside = {card.index for card in of_source.cards} | taken
            left_out += of_source.left_out
            for card in of_source.cards:
                if card.uuid in cards:
                    made = self._twice(cards[card.uuid], card)
                    if isinstance(made, LeftOut):
                        left_out.append(made)
                    else:
                        cards[card.uuid] = made
                    continue
                index = max(beside) + 1 if card.index in taken else card.index
                beside.add(index)
                cards[card.uuid] = replace(card, index=index)
        by_index = sorted(cards.values(), key=lambda card: card.index)
        return FoundCards(tuple(by_index), tuple(left_out))

    def _note_found(self, number: int, cards: FoundCards) -> None:
        with self._lock:
            self._found[number] = cards
            if self._reasons.pop(number, None) is not None:
                self._log_found(number, cards)

    def _note_none(self, number: int, because: str) -> None:
        with self._lock:
            if self._reasons.get(number) != because:
                self._log_none(number, because)
            self._reasons[number] = because

    def _noted(self) -> tuple[dict[int, FoundCards], list[str]]:
        with self._lock:
            by_number = {number: self._found[number] for number in sorted(self._found)}
            reasons = [self._reasons[number] for number in sorted(self._reasons)]
            return by_number, reasons


class CombinedCards(Combined[CardSource]):
    """A ``CardSource`` over others; the first one's cards come first."""

    def readings(self) -> Sequence[CardReading]:
        """Read all sources' cards, each once."""
        all_found, reasons = self._noted()
        readings: dict[str, CardReading] = {}
        for number, of_source in all_found.items():
            for reading in self._read(self._sources[number], of_source):
                readings.setdefault(reading.uuid, reading)
        left_out = any(of_source.left_out for of_source in all_found.values())
        if not readings and not left_out and reasons:
            raise NoCardsYet("; ".join(reasons))
        return list(readings.values())

    def driver_load(self) -> str:
        """Return the first one's: only NVIDIA's driver reports faults."""
        return self._sources[0].driver_load()

    def _read(self, source: CardSource, cards: FoundCards) -> Sequence[CardReading]:
        try:
            return source.readings()
        except NoCardsYet as error:
            because = str(error)
            return [CardReading(card.uuid, None, because) for card in cards.cards]


def error_text(error: Exception) -> str:
    """Return an error's text, with its type if it is an unexpected one."""
    kind = "" if isinstance(error, NoCardsYet) else f"{type(error).__name__}: "
    return f"{kind}{error}"


def _ends_all(number: int, by_source: Mapping[int, FoundCards]) -> bool:
    """Return whether the process is to end because this source's driver is lost.

    Not if this process never had cards of it and serves others: a new process would
    find the same, and end again and again.
    """
    of_source_itself = by_source.get(number)
    return bool(of_source_itself and of_source_itself.cards) or not any(
        of_source.cards for of_source in by_source.values()
    )
