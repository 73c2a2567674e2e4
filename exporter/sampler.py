"""Reads cards, group by group, each at its own interval, and counts their faults.

What was read last is kept in one snapshot, from which all pages are made.

Every group has a thread, so that one that hangs delays only itself; the telemetry gives
a card that hangs up after a deadline. An error of any kind becomes the failure of its
round, because the other groups must go on.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Event, Lock

from exporter.held import ContainerLimit, NodeLimits
from exporter.owners.limit_folders import LimitFolders, merge_limits
from exporter.owners.owner_pods import Owner
from exporter.owners.procfs import ProcFs
from exporter.selection import Chosen
from exporter.snapshot import ProcessRound, Round, TelemetrySnapshot, XidTally
from exporter.telemetry.base import Answer, CardAnswer, Telemetry
from exporter.telemetry.fields import FIELDS, GROUPS, PROCESSES, XID_ERRORS, FieldGroup
from gpushare.cards.combined import error_text
from gpushare.cards.source import DriverLost, NoCardsYet, XidEvent
from gpushare.domain.model import CardUUID
from gpushare.logs import LogOnce

logger = logging.getLogger(__name__)

_NO_CARD = "there is no card on this node"
LATE_S = 30.0
"""How long a round may take beyond its group's interval, because the kinds of cards are
read one after the other, each with a deadline. Then its values are dropped."""
_EVERY_S = {group.name: group.every_s for group in GROUPS}


class SnapshotStore:
    """The newest snapshot; many threads write parts of it, scrapes read it whole.

    ``clock`` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._snapshot = TelemetrySnapshot()
        self._put_at: dict[str, float] = {}
        self._last: (
            tuple[TelemetrySnapshot, frozenset[str], TelemetrySnapshot] | None
        ) = None

    def read(self) -> TelemetrySnapshot:
        """Return what is known now, as an immutable object; never waits.

        A round that is too old has no values any more, and has a failure instead.
        """
        snapshot, now, last = self._snapshot, self._clock(), self._last
        late = frozenset(
            group
            for group, put_at in list(self._put_at.items())
            if now - put_at > _EVERY_S[group] + LATE_S
        )
        if not late:
            return snapshot
        if last is None or last[0] is not snapshot or last[1] != late:
            last = self._last = (snapshot, late, _without_late(snapshot, late))
        return last[2]

    def change(self, change: Callable[[TelemetrySnapshot], TelemetrySnapshot]) -> None:
        """Replace the snapshot."""
        with self._lock:
            self._snapshot = change(self._snapshot)

    def put_round(self, round_: Round[CardAnswer]) -> None:
        """Replace a group's last round by its newest."""
        self._put_at[round_.group] = self._clock()
        self.change(
            lambda was: replace(was, rounds={**was.rounds, round_.group: round_})
        )

    def put_processes(self, round_: ProcessRound | None, trouble: str) -> None:
        """Replace the round of processes, with the reason if owners are not known.

        Both at once: a process without an owner would otherwise look like an ended one.
        """
        self._put_at[PROCESSES] = self._clock()
        self.change(
            lambda was: replace(
                _with_trouble(was, PROCESSES, trouble), processes=round_
            )
        )

    def set_trouble(self, about: str, words: str) -> None:
        """Set what is missing and why; empty if nothing is."""
        if self._snapshot.troubles.get(about, "") != words:
            self.change(lambda was: _with_trouble(was, about, words))


def _without_late(
    snapshot: TelemetrySnapshot, late: frozenset[str]
) -> TelemetrySnapshot:
    rounds, troubles = dict(snapshot.rounds), dict(snapshot.troubles)
    processes = snapshot.processes
    for group in sorted(late):
        why = f"{group} was not read for over {_EVERY_S[group] + LATE_S:.0f} s"
        if group == PROCESSES and processes is not None:
            processes = replace(processes, cards={}, owners={}, failure=why)
        elif group in rounds:
            rounds[group] = replace(rounds[group], cards={}, failure=why)
        else:
            continue
        troubles.setdefault(group, why)
    return replace(snapshot, rounds=rounds, processes=processes, troubles=troubles)


def _with_trouble(was: TelemetrySnapshot, about: str, words: str) -> TelemetrySnapshot:
    troubles = {**was.troubles, about: words}
    return replace(was, troubles={key: why for key, why in troubles.items() if why})


class Rounds:
    """Makes rounds; any thread may call, but one group only once at a time."""

    def __init__(
        self, telemetry: Telemetry, procfs: ProcFs, folders: LimitFolders | None
    ) -> None:
        self._telemetry = telemetry
        self._procfs = procfs
        self._folders = folders
        self._log_once = LogOnce(logger)
        self._lacking: dict[tuple[str, CardUUID], frozenset[str]] = {}

    def cards(self, group: str, names: Sequence[str]) -> Round[CardAnswer]:
        """Read these fields of all cards."""
        began, failure = time.monotonic(), ""
        try:
            cards = self._telemetry.read(group, names)
        except Exception as error:  # noqa: BLE001  whatever it is, it stays here
            cards, failure = {}, self._failed(group, error)
        took_s = time.monotonic() - began
        self._log_answers(group, failure, cards)
        for uuid, says in cards.items():
            self._log_unsupported((group, uuid), says)
        return Round(group, time.time(), took_s, cards, failure)

    def processes(self) -> tuple[ProcessRound, str]:
        """Read the processes of all cards; also why their owners are not known."""
        began, failure, limits = time.monotonic(), "", NodeLimits()
        try:
            before = self._folders.read() if self._folders else {}
            cards = self._telemetry.processes()
            pids = {use.pid for says in cards.values() for use in says.processes}
            owners = self._procfs.owners(pids)
            if self._folders and owners:
                limits = self._limits(self._folders, before, owners)
        except Exception as error:  # noqa: BLE001  whatever it is, it stays here
            cards, owners, failure = {}, {}, self._failed(PROCESSES, error)
        took_s = time.monotonic() - began
        self._log_answers(PROCESSES, failure, cards)
        made = ProcessRound(
            PROCESSES, time.time(), took_s, cards, failure, owners, limits
        )
        return made, self._procfs.trouble

    def _limits(
        self,
        folders: LimitFolders,
        before: Mapping[str, ContainerLimit],
        owners: Mapping[int, Owner],
    ) -> NodeLimits:
        containers = merge_limits(before, folders.read())
        pids = [pid for pid, owner in owners.items() if owner.pod]
        return NodeLimits(containers, self._procfs.inside(pids) if containers else {})

    def _failed(self, group: str, error: Exception) -> str:
        if isinstance(error, NoCardsYet):
            # ``look_once`` logs it, once for all groups.
            return str(error)
        why = error_text(error)
        message = "a group cannot be read"
        self._log_once.problem(group, why, message, group=group, because=why)
        return why

    def _log_unsupported(self, who: tuple[str, CardUUID], says: CardAnswer) -> None:
        known = self._lacking.get(who, frozenset())
        if new := says.unsupported - known:
            self._lacking[who] = known | new
            facts = {"card": who[1], "metrics": ",".join(sorted(new))}
            logger.info("a card does not have all metrics", extra=facts)

    def _log_answers(
        self, group: str, failure: str, cards: Mapping[CardUUID, Answer]
    ) -> None:
        if not failure:
            self._log_once.recovered(group, "a group is read again", group=group)
        for uuid, says in cards.items():
            about, facts = (group, uuid), {"card": uuid, "group": group}
            if why := says.failure:
                message = "a card does not answer"
                self._log_once.problem(about, why, message, because=why, **facts)
            else:
                self._log_once.recovered(about, "a card answers again", **facts)


class Sampler:
    """One loop for each thread: ``look_for_cards``, and ``sample`` for each group.

    A loop ends when ``stop`` is set and ``wake`` was called.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        store: SnapshotStore,
        procfs: ProcFs,
        *,
        look_every_s: float = 5.0,
        folders: LimitFolders | None = None,
    ) -> None:
        self._telemetry = telemetry
        self._store = store
        self._rounds = Rounds(telemetry, procfs, folders)
        self._look_every_s = look_every_s
        self._wakeup = threading.Condition()
        self._woken = 0
        self._chosen = Chosen()
        self._log_once = LogOnce(logger)

    def choose(self, chosen: Chosen) -> None:
        """Switch groups and fields; the values of a group that is off go at once."""
        self._chosen = chosen
        self._store.change(
            lambda was: replace(
                was,
                groups=chosen.groups,
                fields=chosen.fields,
                rounds={k: v for k, v in was.rounds.items() if k in chosen.read},
            )
        )
        if PROCESSES not in chosen.groups:
            self._store.put_processes(None, "")
        self.wake()

    def wake(self) -> None:
        """Wake all threads, so that each takes over what changed."""
        with self._wakeup:
            self._woken += 1
            self._wakeup.notify_all()

    def look_for_cards(self, stop: Event) -> None:
        """Look for cards every so often.

        It ends before ``stop`` is set if only a new process can have the cards back.
        """
        while not stop.is_set():
            woken = self._woken
            try:
                if self.look_once():
                    self.wake()
                    woken = self._woken
            except DriverLost as error:
                facts = {"because": str(error)}
                logger.error("driver lost, the process ends", extra=facts)  # noqa: TRY400
                return
            self._rest(woken, self._look_every_s)

    def look_once(self) -> bool:
        """Look for cards once; return whether there are new ones to read.

        Raises ``DriverLost``.
        """
        was = self._store.read()
        try:
            on_node, driver = self._telemetry.cards(), self._telemetry.driver_version()
        except DriverLost:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the page stays
            self._note_none(error_text(error))
            return False
        for name, why in ((card.name, card.because) for card in on_node.left_out):
            about = ("left out", name)
            self._log_once.problem(about, why, "card left out", card=name, because=why)
        self._store.change(
            lambda now: replace(now, found=on_node, driver_version=driver)
        )
        because = "; ".join(f"{card.name}: {card.because}" for card in on_node.left_out)
        self._note_none("" if on_node.cards else because or _NO_CARD)
        known = {card.uuid for card in was.cards}
        others = known != {card.uuid for card in on_node.cards}
        return bool(on_node.cards) and (others or bool(was.no_cards))

    def sample(self, group: FieldGroup, stop: Event) -> None:
        """Read one group at its interval while it is on."""
        while not stop.is_set():
            woken, ends = self._woken, time.monotonic() + group.every_s
            on = self.sample_once(group.name)
            self._rest(woken, max(0.0, ends - time.monotonic()) if on else None)

    def sample_once(self, group: str) -> bool:
        """Read one group; False if it is off, or if no card is known."""
        chosen = self._chosen
        if not self._store.read().cards or group not in chosen.groups:
            return False
        if group == PROCESSES:
            processes, trouble = self._rounds.processes()
            if PROCESSES in self._chosen.groups:
                self._store.put_processes(processes, trouble)
            return True
        names = chosen.read[group]
        round_ = self._rounds.cards(group, names)
        # It may have been switched off meanwhile.
        if group in self._chosen.read:
            self._store.put_round(round_)
        if XID_ERRORS in names:
            self._store.change(lambda was: _able_to_report(was, round_.cards))
        return True

    def _note_none(self, why: str) -> None:
        if why:
            self._log_once.problem("cards", why, "no cards to read yet", because=why)
        else:
            self._log_once.recovered("cards", "there are cards to read")
        if self._store.read().no_cards != why:
            self._store.change(lambda was: replace(was, no_cards=why))

    def _rest(self, woken: int, longest_s: float | None) -> None:
        with self._wakeup:
            self._wakeup.wait_for(lambda: self._woken != woken, longest_s)


def groups_read() -> tuple[FieldGroup, ...]:
    """Return the groups that are read from cards; the others follow from pods."""
    groups = {PROCESSES, *(field.group for field in FIELDS)}
    return tuple(group for group in GROUPS if group.name in groups)


def _able_to_report(
    was: TelemetrySnapshot, cards: Mapping[CardUUID, CardAnswer]
) -> TelemetrySnapshot:
    """Count no fault so far for cards that can report faults."""
    able = [
        uuid
        for uuid, says in cards.items()
        if not says.failure and XID_ERRORS not in says.unsupported
    ]
    return replace(was, xids={**dict.fromkeys(able, XidTally()), **was.xids})


class XidTallies:
    """Keeps ``TelemetrySnapshot.xids``: the last fault of each card, and counts."""

    def __init__(
        self, telemetry: Telemetry, store: SnapshotStore, *, wait_s: float = 5.0
    ) -> None:
        self._wait_s = wait_s
        self._telemetry = telemetry
        self._store = store
        self._log_once = LogOnce(logger)

    def watch_faults(self, stop: Event) -> None:
        """Count faults as the driver reports them, until ``stop`` is set."""
        while not stop.is_set():
            try:
                event = self._telemetry.wait_for_event(self._wait_s)
            except Exception as error:  # noqa: BLE001  a later fault may be heard
                why = error_text(error)
                message = "faults are not heard"
                self._log_once.problem("faults", why, message, because=why)
                stop.wait(self._wait_s)
                continue
            self._log_once.recovered("faults", "faults are heard again")
            if event is not None:
                self.note(event)

    def note(self, event: XidEvent) -> None:
        """Count a fault; one without a card counts for every card of the driver.

        The device plugin makes all those cards sick, too.
        """
        facts = {"card": event.uuid or "unknown", "xid": event.xid}
        logger.info("a card reported a fault", extra=facts)
        self._store.change(lambda was: _counted(was, event))


def _counted(was: TelemetrySnapshot, event: XidEvent) -> TelemetrySnapshot:
    everywhere = [card.uuid for card in was.cards if card.known_to_driver]
    xids = dict(was.xids)
    for uuid in everywhere if event.uuid is None else [event.uuid]:
        counts = dict(xids.get(uuid, XidTally()).counts)
        counts[event.xid] = counts.get(event.xid, 0) + 1
        xids[uuid] = XidTally(event.xid, counts)
    return replace(was, xids=xids)
