"""Reads cards, group by group, each at its own pace, and keeps the snapshot true.

Every group has a thread, so that one that hangs holds up itself alone; a card that
hangs is the telemetry's business, which gives it up after a deadline.

One pass of a group over all cards: asks the telemetry, and remarks on what is news.

Whatever goes wrong ends in the round, in words: the other groups must go on.

Counts the faults that cards report while the process lives.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Event

from deviceplugin.cards.source import DriverLost, Found, NoCardsYet, XidEvent
from deviceplugin.exporter.owners import Owner
from deviceplugin.exporter.procfs import ProcFs
from deviceplugin.exporter.selection import Chosen
from deviceplugin.exporter.snapshot import ProcessRound, Round, Snapshot, XidTally
from deviceplugin.exporter.snapshot_store import Board
from deviceplugin.log_once import Remarks
from deviceplugin.telemetry.base import CardSays, ProcessesSay, Telemetry
from deviceplugin.telemetry.fields import FIELDS, GROUPS, PROCESSES, XID_ERRORS, Group
from gpushare.domain.model import CardUUID

logger = logging.getLogger(__name__)

Processes = Mapping[CardUUID, ProcessesSay]


class Rounds:
    """Makes rounds. Methods may be called from any thread, one a group at a time."""

    def __init__(self, telemetry: Telemetry, whose: ProcFs) -> None:
        self._telemetry = telemetry
        self._whose = whose
        self._remarks = Remarks()
        self._lacking: dict[tuple[str, CardUUID], frozenset[str]] = {}

    def cards(self, group: str, names: Sequence[str]) -> Round:
        """Read these fields of all cards."""
        began = time.monotonic()
        cards: Mapping[CardUUID, CardSays] = {}
        failure = ""
        try:
            cards = self._telemetry.read(group, names)
        except Exception as error:  # noqa: BLE001  whatever it is, it stays here
            failure = self._failed(group, error)
        took_s = time.monotonic() - began
        self._remark(group, failure, cards)
        for uuid, says in cards.items():
            self._remark_lacking((group, uuid), says)
        return Round(group, time.time(), took_s, cards, failure)

    def processes(self) -> tuple[ProcessRound, str]:
        """Read the processes of all cards, and why owners cannot be told, if so."""
        began = time.monotonic()
        cards: Processes = {}
        owners: Mapping[int, Owner] = {}
        failure = ""
        try:
            cards = self._telemetry.processes()
            owners = self._owners(cards)
        except Exception as error:  # noqa: BLE001  whatever it is, it stays here
            cards, failure = {}, self._failed(PROCESSES, error)
        took_s = time.monotonic() - began
        self._remark(PROCESSES, failure, cards)
        made = ProcessRound(time.time(), took_s, cards, owners, failure)
        return made, self._whose.trouble

    def _owners(self, cards: Processes) -> Mapping[int, Owner]:
        return self._whose.owners(
            {use.pid for says in cards.values() for use in says.processes}
        )

    def _failed(self, group: str, error: Exception) -> str:
        if isinstance(error, NoCardsYet):
            # Whoever looks for cards tells of it, once for all groups.
            return str(error)
        why = in_words(error)
        facts = {"group": group, "because": why}
        self._remarks.about(group, why, "a group cannot be read", **facts)
        return why

    def _remark_lacking(self, who: tuple[str, CardUUID], says: CardSays) -> None:
        """Log what a card does not have, each once and for good."""
        known = self._lacking.get(who, frozenset())
        if new := says.unsupported - known:
            self._lacking[who] = known | new
            facts = {"card": who[1], "metrics": ",".join(sorted(new))}
            logger.info("a card does not have all metrics", extra=facts)

    def _remark(
        self, group: str, failure: str, cards: Mapping[CardUUID, CardSays] | Processes
    ) -> None:
        if not failure:
            self._remarks.about(group, "", "a group is read again", group=group)
        for uuid, says in cards.items():
            facts = {"card": uuid, "group": group}
            line = "a card answers again"
            if says.failure:
                facts["because"] = says.failure
                line = "a card does not answer"
            self._remarks.about((group, uuid), says.failure, line, **facts)


def in_words(error: Exception) -> str:
    """Give an error's words, with its kind where nobody expected it."""
    kind = "" if isinstance(error, NoCardsYet) else f"{type(error).__name__}: "
    return f"{kind}{error}"


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
