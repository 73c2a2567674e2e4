"""The newest snapshot, and the usage that is computed from it."""

from dataclasses import replace

import pytest

from exporter.run import WatchedPods
from exporter.snapshot import ProcessRound, Round, TelemetrySnapshot
from exporter.snapshot_store import LATE_S, SnapshotStore, UsageBook
from exporter.telemetry import fields as f
from exporter.telemetry.base import CardAnswer, ProcessesAnswer
from gpushare.kube.cluster import Json
from tests.builders import event, page, pod_json
from tests.deviceplugin.node_fixture import NODE, found_card
from tests.exporter.exporter_data import (
    ALL,
    AT,
    BLIND,
    A,
    held,
    of,
    owner,
    processes,
    snapshot,
    use,
    with_ids,
)
from tests.gpushare.cards.nvml_fixture import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> SnapshotStore:
    made = SnapshotStore(clock)
    made.change(lambda _: snapshot(groups=ALL))
    return made


def told(group: str, name: str) -> Round:
    return Round(group, AT, 0.1, {A: CardAnswer({name: 5.0})})


def test_a_late_round_has_no_values(board: SnapshotStore, clock: Clock) -> None:
    """It failed, and the page says what it lacks; the next round mends all."""
    one, slow = told(f.UTILIZATION, f.GPU_UTIL), told(f.RETIRED, f.RETIRED_SBE)
    board.put_round(one)
    board.put_round(slow)
    clock.now += 2 + LATE_S
    assert board.read().rounds == {f.UTILIZATION: one, f.RETIRED: slow}
    assert board.read() is board.read()
    clock.now += 1
    seen = board.read()
    why = f"utilization was not read for over {2 + LATE_S:.0f} s"
    late = replace(one, cards={}, failure=why)
    assert seen.rounds == {f.UTILIZATION: late, f.RETIRED: slow}
    assert seen.troubles == {f.UTILIZATION: why}
    assert board.read() is seen
    board.put_round(one)
    assert board.read().rounds[f.UTILIZATION] is one
    assert board.read().troubles == {}


def test_late_processes_are_nobodys(board: SnapshotStore, clock: Clock) -> None:
    board.put_processes(ProcessRound(AT, 0.1, {A: ProcessesAnswer()}), "")
    book = UsageBook(board.read)
    assert book.now().at == AT
    clock.now += 3 + LATE_S
    assert book.now().at is None
    assert "was not read for over 32 s" in board.read().troubles[f.PROCESSES]


def test_a_group_that_is_off_is_never_late(board: SnapshotStore, clock: Clock) -> None:
    """Its round went when it was switched off."""
    board.put_round(told(f.UTILIZATION, f.GPU_UTIL))
    board.change(lambda _: snapshot())
    clock.now += 1000
    assert board.read().troubles == {}


class BookFixture:
    """A usage book over a snapshot that a test sets."""

    def __init__(self, *pods: Json) -> None:
        self.watched = WatchedPods()
        self.watched.replace(iter([page(*pods)]))
        self.book = UsageBook(lambda: self.now, self.watched.current)
        self.work(0, 0)

    def work(self, sm: float | None, after_s: float) -> None:
        running = [] if sm == 0 else [use(1, 10, sm)]
        round_ = processes({A: running}, {1: owner("a")}, at=AT + after_s)
        self.now: TelemetrySnapshot = snapshot(found_card(0), round_=round_)

    def last_busy(self) -> float:
        return (of(self.book.now(), "a").last_busy or 0) - AT


def test_the_last_work_is_remembered() -> None:
    """Moved on by work alone, not by a silent driver; another UID begins anew."""
    fixture = BookFixture(held("a"))
    seen = []
    for sm, after_s in ((0, 0), (0, 5), (30, 10), (None, 15), (0, 20)):
        fixture.work(sm, after_s)
        seen.append(fixture.last_busy())
    assert seen == [0, 0, 10, 10, 10]
    new = pod_json("a", uid="second", units=8, node=NODE)
    notes = held("a")["metadata"]["annotations"]
    new["metadata"]["annotations"] = {
        key: text.replace("uid-a", "second") for key, text in notes.items()
    }
    fixture.watched.replace(iter([page(with_ids(new))]))
    fixture.work(0, 60)
    assert fixture.last_busy() == 60


def test_nothing_is_worked_out_twice() -> None:
    """Memory in use, and whether owners can be told, change what a card comes to."""
    fixture = BookFixture(held("a"))
    book, first = fixture.book, fixture.book.now()
    assert book.now() is first
    fixture.work(30, 5)
    second = book.now()
    assert second is not first
    fixture.watched.apply(event("ADDED", held("b")))
    assert [one.pod for one in book.now().containers] == ["a", "b"]
    assert book.now().cards[A].unattributed_mib is None
    memory = snapshot(values={A: {f.FB_USED: 19.0}}).rounds
    fixture.now = replace(fixture.now, rounds=memory)
    assert book.now().cards[A].unattributed_mib == 9
    busy = {**memory, **snapshot(values={A: {f.GPU_UTIL: 1.0}}).rounds}
    before, fixture.now = book.now(), replace(fixture.now, rounds=busy)
    assert book.now() is not before
    fixture.now = replace(fixture.now, troubles=BLIND)
    assert book.now().cards[A].unattributed_mib is None
    alone = UsageBook(lambda: fixture.now)
    assert (alone.has_pods, alone.owner_pods()) == (False, None)
    assert alone.now().cards.keys() == {A}
