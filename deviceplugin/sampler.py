"""Reads cards, group by group, each at its own pace, and keeps the snapshot true.

Every group has a thread, so that one that hangs holds up itself alone; a card that
hangs is the telemetry's business, which gives it up after a deadline.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from threading import Event

from deviceplugin.board import Board
from deviceplugin.cards import DriverLost, Found
from deviceplugin.fields import FIELDS, GROUPS, PROCESSES, XID_ERRORS, Group
from deviceplugin.procfs import ProcFs
from deviceplugin.remarks import Remarks
from deviceplugin.rounds import Rounds, in_words
from deviceplugin.snapshot import Snapshot, XidTally
from deviceplugin.switches import Chosen
from deviceplugin.telemetry import CardSays, Telemetry
from gpushare.domain.model import CardUUID

logger = logging.getLogger(__name__)

_NO_CARD = "there is no card on this node"


class Sampler:
    """One loop for each thread: ``look``, and ``sample`` for each group.

    A loop ends when ``stop`` is set and ``ring`` was called.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        board: Board,
        whose: ProcFs,
        *,
        look_every_s: float = 5.0,
    ) -> None:
        self._telemetry = telemetry
        self._board = board
        self._rounds = Rounds(telemetry, whose)
        self._look_every_s = look_every_s
        self._bell = threading.Condition()
        self._rung = 0
        self._chosen = Chosen()
        self._remarks = Remarks()

    def choose(self, chosen: Chosen) -> None:
        """Switch groups and fields from now on; what is off is gone at once."""
        self._chosen = chosen
        self._board.change(
            lambda was: replace(
                was,
                groups=chosen.groups,
                fields=chosen.fields,
                rounds={k: v for k, v in was.rounds.items() if k in chosen.read},
            )
        )
        if PROCESSES not in chosen.groups:
            self._board.put_processes(None, "")
        self.ring()

    def ring(self) -> None:
        """Wake all threads: each sees what there is to do now."""
        with self._bell:
            self._rung += 1
            self._bell.notify_all()

    def look(self, stop: Event) -> None:
        """Look for cards every so often.

        It ends before ``stop`` where only a new process can have the cards back.
        """
        while not stop.is_set():
            rung = self._rung
            try:
                others = self.look_once()
            except DriverLost as error:
                facts = {"because": str(error)}
                logger.error("driver lost, the process ends", extra=facts)  # noqa: TRY400
                return
            if others:
                self.ring()
                rung = self._rung
            self._rest(rung, self._look_every_s)

    def look_once(self) -> bool:
        """Look for cards; tell whether there are others to ask than before.

        ``DriverLost`` as the telemetry raises it.
        """
        was = self._board.read()
        try:
            found, driver = self._telemetry.cards(), self._telemetry.driver_version()
        except DriverLost:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the page stays
            self._note_none(in_words(error))
            return False
        for one in found.left_out:
            facts = {"card": one.name, "because": one.because}
            about = ("left out", one.name)
            self._remarks.about(about, one.because, "card left out", **facts)
        self._board.change(lambda now: replace(now, found=found, driver_version=driver))
        self._note_none("" if found.cards else _NO_CARD)
        others = _uuids(was.found) != _uuids(found)
        return bool(found.cards) and (others or bool(was.no_cards))

    def sample(self, group: Group, stop: Event) -> None:
        """Read one group at its pace while it is on."""
        while not stop.is_set():
            rung = self._rung
            began = time.monotonic()
            if self.sample_once(group.name):
                left_s = began + group.every_s - time.monotonic()
                self._rest(rung, max(0.0, left_s))
            else:
                self._rest(rung, None)

    def sample_once(self, group: str) -> bool:
        """Read one group; False where it is off, or no card is known."""
        found = self._board.read().found
        if found is None or not found.cards:
            return False
        if group == PROCESSES:
            return self._sample_processes()
        names = self._chosen.read.get(group)
        if names is None:
            return False
        one = self._rounds.cards(group, names)
        # By what is on now: it may have been switched off in the meantime.
        if group in self._chosen.read:
            self._board.put_round(one)
        if XID_ERRORS in names:
            self._board.change(lambda was: _able_to_report(was, one.cards))
        return True

    def _sample_processes(self) -> bool:
        if PROCESSES not in self._chosen.groups:
            return False
        one, trouble = self._rounds.processes()
        if PROCESSES in self._chosen.groups:
            self._board.put_processes(one, trouble)
        return True

    def _note_none(self, why: str) -> None:
        facts = {"because": why} if why else {}
        line = "no cards to read yet" if why else "there are cards to read"
        self._remarks.about("cards", why, line, **facts)
        if self._board.read().no_cards != why:
            self._board.change(lambda was: replace(was, no_cards=why))

    def _rest(self, rung: int, longest_s: float | None) -> None:
        """Wait so long, or until the bell rings after ``rung``."""
        with self._bell:
            self._bell.wait_for(lambda: self._rung != rung, longest_s)


def groups_read() -> tuple[Group, ...]:
    """Give the groups that are asked of cards; the others follow from pods."""
    asked = {PROCESSES, *(one.group for one in FIELDS)}
    return tuple(group for group in GROUPS if group.name in asked)


def _able_to_report(was: Snapshot, cards: Mapping[CardUUID, CardSays]) -> Snapshot:
    """Say of the cards that report faults that none came, where none did."""
    able = [
        uuid
        for uuid, says in cards.items()
        if not says.failure and XID_ERRORS not in says.unsupported
    ]
    return replace(was, xids={**dict.fromkeys(able, XidTally()), **was.xids})


def _uuids(found: Found | None) -> frozenset[CardUUID]:
    return frozenset(() if found is None else (card.uuid for card in found.cards))
