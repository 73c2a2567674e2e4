"""A telemetry that a test controls, and a sampler with its store over it."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread

from exporter.owners.limit_folders import LimitFolders
from exporter.owners.procfs import ProcFs
from exporter.sampler import Sampler, SnapshotStore
from exporter.selection import Flags, choose
from exporter.snapshot import TelemetrySnapshot
from exporter.telemetry.base import CardAnswer, ProcessesAnswer
from exporter.telemetry.fields import FieldGroup
from gpushare.cards.source import FoundCard, FoundCards, XidEvent
from gpushare.domain.model import CardUUID
from tests.deviceplugin.node_fixture import UUIDS, found_card

A, B = UUIDS[:2]
QUICK = 0.01


class ScriptedTelemetry:
    """Cards that say 1 of every field; what differs is said beforehand.

    ``away`` is raised by every question, ``breaks`` by a group or by a look for
    ``cards``; ``says`` and ``lists`` are a card's answers.
    """

    def __init__(self, *cards: FoundCard) -> None:
        self.found = FoundCards(cards or (found_card(0), found_card(1)))
        self.version = "550.54.15"
        self.away: Exception | None = None
        self.breaks: dict[str, BaseException] = {}
        self.says: dict[CardUUID, CardAnswer] = {}
        self.lists: dict[CardUUID, ProcessesAnswer] = {}
        self.holds: dict[str, Event] = {}
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.events: Queue[XidEvent | Exception] = Queue()

    def cards(self) -> FoundCards:
        self._check("cards")
        return self.found

    def driver_version(self) -> str:
        return self.version

    def read(
        self, group: str, fields: Collection[str]
    ) -> Mapping[CardUUID, CardAnswer]:
        self.asked.append((group, tuple(fields)))
        self._check(group)
        plain = CardAnswer(dict.fromkeys(fields, 1.0))
        return {card.uuid: self.says.get(card.uuid, plain) for card in self.found.cards}

    def processes(self) -> Mapping[CardUUID, ProcessesAnswer]:
        self.asked.append(("processes", ()))
        self._check("processes")
        none = ProcessesAnswer()
        return {card.uuid: self.lists.get(card.uuid, none) for card in self.found.cards}

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        try:
            event = self.events.get(timeout=min(timeout_s, 0.02))
        except Empty:
            return None
        if isinstance(event, Exception):
            raise event
        return event

    def close(self) -> None:
        for held in self.holds.values():
            held.set()

    def hold(self, what: str) -> Event:
        """Keep this question waiting until the event is set."""
        held = self.holds[what] = Event()
        return held

    def times(self, group: str) -> int:
        return sum(name == group for name, _ in self.asked)

    def _check(self, what: str) -> None:
        if what in self.holds:
            self.holds[what].wait(60)
        if error := self.away or self.breaks.get(what):
            raise error


class SamplerFixture:
    """A sampler with its board, whose rounds are made by hand."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.telemetry = ScriptedTelemetry()
        self.board = SnapshotStore()
        self.sampler = Sampler(
            self.telemetry,
            self.board,
            ProcFs(root),
            look_every_s=QUICK,
            folders=LimitFolders(root / "state"),
        )
        self.sampler.choose(choose(Flags()))

    @property
    def seen(self) -> TelemetrySnapshot:
        return self.board.read()

    def value(self, group: str, name: str, uuid: CardUUID = A) -> float | None:
        return self.seen.rounds[group].cards[uuid].values.get(name)

    @contextmanager
    def working(self, *groups: FieldGroup) -> Iterator[None]:
        """Run the threads of these groups, and the one that looks for cards."""
        stop = Event()
        threads = [Thread(target=self.sampler.look_for_cards, args=(stop,))]
        threads += [
            Thread(target=self.sampler.sample, args=(group, stop)) for group in groups
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            self.telemetry.close()
            self.sampler.wake()
            for thread in threads:
                thread.join(30)
            assert not [thread for thread in threads if thread.is_alive()]


def fast(name: str) -> FieldGroup:
    return FieldGroup(name, QUICK, "")
