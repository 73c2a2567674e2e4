"""Counts the faults that cards report while the process lives."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from threading import Event

from deviceplugin.board import Board
from deviceplugin.cards import XidEvent
from deviceplugin.remarks import Remarks
from deviceplugin.snapshot import Snapshot, XidTally
from deviceplugin.telemetry import Telemetry
from gpushare.domain.model import CardUUID

logger = logging.getLogger(__name__)


class XidTallies:
    """Keeps ``Snapshot.xids``: of each card the last fault, and how often each came."""

    def __init__(
        self, telemetry: Telemetry, board: Board, *, wait_s: float = 5.0
    ) -> None:
        self._wait_s = wait_s
        self._telemetry = telemetry
        self._board = board
        self._remarks = Remarks()

    def hear(self, stop: Event) -> None:
        """Hear faults as the driver reports them, until ``stop`` is set."""
        while not stop.is_set():
            try:
                event = self._telemetry.wait_for_event(self._wait_s)
            except Exception as error:  # noqa: BLE001  a later fault may be heard
                why = f"{type(error).__name__}: {error}"
                line = "faults are not heard"
                self._remarks.about("faults", why, line, because=why)
                stop.wait(self._wait_s)
                continue
            self._remarks.about("faults", "", "faults are heard again")
            if event is not None:
                self.note(event)

    def note(self, event: XidEvent) -> None:
        """Count a fault; one of no card in particular is every card's of the driver.

        The device plugin takes those cards for sick, too.
        """
        facts = {"card": event.uuid or "unknown", "xid": event.xid}
        logger.info("a card reported a fault", extra=facts)
        self._board.change(
            lambda was: replace(was, xids=_noted(was.xids, _meant(event, was), event))
        )


def _meant(event: XidEvent, was: Snapshot) -> tuple[CardUUID, ...]:
    if event.uuid is not None:
        return (event.uuid,)
    found = () if was.found is None else was.found.cards
    return tuple(card.uuid for card in found if card.known_to_driver)


def _noted(
    xids: Mapping[CardUUID, XidTally], cards: tuple[CardUUID, ...], event: XidEvent
) -> dict[CardUUID, XidTally]:
    new = dict(xids)
    for uuid in cards:
        counts = dict(new.get(uuid, XidTally()).counts)
        counts[event.xid] = counts.get(event.xid, 0) + 1
        new[uuid] = XidTally(event.xid, counts)
    return new
