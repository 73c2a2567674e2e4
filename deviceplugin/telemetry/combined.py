"""Several telemetries as one: NVIDIA's cards, an inventory's and AMD's."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from deviceplugin.cards.combined import ends_all, joined, wait_in_turn
from deviceplugin.cards.source import DriverLost, Found, FoundCard, NoCardsYet, XidEvent
from deviceplugin.telemetry.base import CardSays, ProcessesSay, Telemetry
from gpushare.domain.model import CardUUID

logger = logging.getLogger(__name__)

Says = TypeVar("Says", CardSays, ProcessesSay)


class JoinedTelemetry:
    """A ``Telemetry`` over others; the first one's cards come first.

    Indices are given as ``JoinedCards`` gives them, so that a card has one number
    everywhere. A card that several know (an AMD card of the inventory, under the same
    UUID) is one card: what the first cannot tell of it, the next one tells.

    A source that has nothing to ask yet does not hide the others; once it has found
    cards they stay listed, and fail while it is gone, or raises whatever it may.
    """

    def __init__(self, sources: Sequence[Telemetry]) -> None:
        self._sources = tuple(sources)
        self._lock = threading.Lock()
        self._found: dict[int, Found] = {}
        self._reasons: dict[int, str] = {}
        self._closed = threading.Event()

    def cards(self) -> Found:
        """Look at all sources; ``NoCardsYet``, with all reasons, where none has any.

        ``DriverLost`` where that is to end them all (``ends_all``).
        """
        for number, source in enumerate(self._sources):
            try:
                self._note_found(number, source.cards())
            except DriverLost:
                if ends_all(number, self._noted()[0]):
                    raise
            except Exception as error:  # noqa: BLE001  it must not hide the others
                self._note_none(number, _words(error))
        all_found, reasons = self._noted()
        found = joined(all_found.values(), _completed)
        if not found.cards and reasons:
            raise NoCardsYet("; ".join(reasons))
        return found

    def driver_version(self) -> str:
        """Give the first version that any of them has."""
        versions = (source.driver_version() for source in self._sources)
        return next((version for version in versions if version), "")

    def read(self, group: str, fields: Collection[str]) -> Mapping[CardUUID, CardSays]:
        """Read every source's cards."""
        return self._each(
            lambda source: source.read(group, fields),
            lambda because: CardSays(failure=because),
            _both,
        )

    def processes(self) -> Mapping[CardUUID, ProcessesSay]:
        """Read the processes of every source's cards."""
        return self._each(
            lambda source: source.processes(),
            lambda because: ProcessesSay(known=False, failure=because),
            _better,
        )

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait at all sources in turn, a moment at each; they keep what comes."""
        return wait_in_turn(self._sources, timeout_s, self._closed.is_set)

    def close(self) -> None:
        """Close all."""
        self._closed.set()
        for source in self._sources:
            source.close()

    def _each(
        self,
        ask: Callable[[Telemetry], Mapping[CardUUID, Says]],
        failed: Callable[[str], Says],
        merged: Callable[[Says, Says], Says],
    ) -> Mapping[CardUUID, Says]:
        all_found, reasons = self._noted()
        if not all_found and not reasons:
            self.cards()
            all_found, reasons = self._noted()
        told: dict[CardUUID, Says] = {}
        for number, found in all_found.items():
            try:
                answers = ask(self._sources[number])
            except Exception as error:  # noqa: BLE001  it must not hide the others
                because = _words(error)
                answers = {card.uuid: failed(because) for card in found.cards}
            for uuid, says in answers.items():
                told[uuid] = merged(told[uuid], says) if uuid in told else says
        if not told and reasons:
            raise NoCardsYet("; ".join(reasons))
        return told

    def _note_found(self, number: int, found: Found) -> None:
        with self._lock:
            self._found[number] = found
            if self._reasons.pop(number, None) is not None:
                logger.info("a source has cards now", extra={"cards": len(found.cards)})

    def _note_none(self, number: int, because: str) -> None:
        with self._lock:
            if self._reasons.get(number) != because:
                # Few nodes have cards of every kind: only one that had some is news.
                level = logging.WARNING if number in self._found else logging.INFO
                logger.log(level, "a source has no cards", extra={"because": because})
            self._reasons[number] = because

    def _noted(self) -> tuple[dict[int, Found], list[str]]:
        with self._lock:
            by_number = {number: self._found[number] for number in sorted(self._found)}
            reasons = [self._reasons[number] for number in sorted(self._reasons)]
            return by_number, reasons


def _words(error: Exception) -> str:
    """Give an error's words, with its kind where nobody expected it."""
    kind = "" if isinstance(error, NoCardsYet) else f"{type(error).__name__}: "
    return f"{kind}{error}"


def _completed(card: FoundCard, other: FoundCard) -> FoundCard:
    return replace(card, model=card.model or other.model, bus=card.bus or other.bus)


def _both(first: CardSays, second: CardSays) -> CardSays:
    """Put two answers about one card together; a failure of either is the card's."""
    if first.failure or second.failure:
        return CardSays(failure=first.failure or second.failure)
    values = {**second.values, **first.values}
    unsupported = (first.unsupported & second.unsupported) - set(values)
    return CardSays(values, unsupported)


def _better(first: ProcessesSay, second: ProcessesSay) -> ProcessesSay:
    """Take the answer of whoever lists processes; failures as in ``_both``."""
    if first.failure or second.failure:
        return first if first.failure else second
    # An empty list may only stand for no memory in use: one with names is better.
    return second if second.known and not first.processes else first
