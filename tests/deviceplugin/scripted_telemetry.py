"""A telemetry that a test controls, and a sampler with its store over it."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread

from deviceplugin.cards.source import Found, FoundCard, NoCardsYet, XidEvent
from deviceplugin.exporter.procfs import ProcFs
from deviceplugin.exporter.sampler import Sampler
from deviceplugin.exporter.selection import Flags, choose
from deviceplugin.exporter.snapshot import Snapshot
from deviceplugin.exporter.snapshot_store import SnapshotStore
from deviceplugin.telemetry.base import CardAnswer, ProcessesAnswer, ProcessUse
from deviceplugin.telemetry.fields import Group
from gpushare.domain.model import CardUUID
from tests.deviceplugin.node_fixture import UUIDS, found_card


class ScriptedTelemetry:
    """Cards that say 1 of every field; what differs is said beforehand.

    ``away`` says why there is nothing to ask, ``breaks`` is raised by a group, ``says``
    is a card's answer in every group, ``exits`` ends the thread that looks.
    """

    def __init__(self, *cards: FoundCard) -> None:
        self.found = Found(cards or (found_card(0), found_card(1)))
        self.away = ""
        self.exits = False
        self.breaks: dict[str, Exception] = {}
        self.says: dict[CardUUID, CardAnswer] = {}
        self.uses: dict[CardUUID, tuple[ProcessUse, ...]] = {}
        self.holds: dict[str, Event] = {}
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.events: Queue[XidEvent | Exception] = Queue()

    def cards(self) -> Found:
        if self.exits:
            raise SystemExit
        self._check("cards")
        return self.found

    def driver_version(self) -> str:
        return "550.54.15"

    def read(
        self, group: str, fields: Collection[str]
    ) -> Mapping[CardUUID, CardAnswer]:
        self.asked.append((group, tuple(fields)))
        self._check(group)
        plain = CardAnswer(dict.fromkeys(fields, 1.0))
        return {one.uuid: self.says.get(one.uuid, plain) for one in self.found.cards}

    def processes(self) -> Mapping[CardUUID, ProcessesAnswer]:
        self.asked.append(("processes", ()))
        self._check("processes")
        return {
            one.uuid: ProcessesAnswer(self.uses.get(one.uuid, ()))
            for one in self.found.cards
        }

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
        if self.away:
            raise NoCardsYet(self.away)
        if what in self.breaks:
            raise self.breaks[what]


A, B = UUIDS[:2]


QUICK = 0.01


class SamplerFixture:
    """A sampler with its board, whose rounds are made by hand."""

    def __init__(self, root: Path = Path("/"), flags: Flags | None = None) -> None:
        self.telemetry = ScriptedTelemetry()
        self.board = SnapshotStore()
        self.sampler = Sampler(
            self.telemetry, self.board, ProcFs(root), look_every_s=QUICK
        )
        self.sampler.choose(choose(flags or Flags()))

    @property
    def seen(self) -> Snapshot:
        return self.board.read()

    def value(self, group: str, name: str, uuid: CardUUID = A) -> float | None:
        return self.seen.rounds[group].cards[uuid].values.get(name)


@contextmanager
def working(fixture: SamplerFixture, *groups: Group) -> Iterator[SamplerFixture]:
    """Run the threads of these groups, and the one that looks for cards."""
    stop = Event()
    threads = [Thread(target=fixture.sampler.look, args=(stop,))]
    threads += [
        Thread(target=fixture.sampler.sample, args=(one, stop)) for one in groups
    ]
    for thread in threads:
        thread.start()
    try:
        yield fixture
    finally:
        stop.set()
        fixture.telemetry.close()
        fixture.sampler.wake()
        for thread in threads:
            thread.join(30)
        assert not [thread for thread in threads if thread.is_alive()]


def fast(name: str) -> Group:
    return Group(name, QUICK, "")
