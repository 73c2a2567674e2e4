"""The newest snapshot, and the usage that is computed from it."""

from dataclasses import replace

import pytest

from deviceplugin.cards.source import FoundCard
from deviceplugin.exporter.run import Tenants
from deviceplugin.exporter.snapshot import ProcessRound, Round, Snapshot
from deviceplugin.exporter.snapshot_store import LATE_S, SnapshotStore, UsageBook
from deviceplugin.telemetry.base import CardAnswer, ProcessesAnswer
from deviceplugin.telemetry.fields import (
    FB_USED,
    GPU_UTIL,
    PROCESSES,
    RETIRED,
    RETIRED_SBE,
    UTILIZATION,
)
from gpushare.kube.cluster import Json
from tests.builders import event, page, pod_json
from tests.deviceplugin.exporter_data import (
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
from tests.deviceplugin.exposition_page import ExpositionFixture
from tests.deviceplugin.node_fixture import NODE, found_card
from tests.deviceplugin.nvml_fixture import Clock


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


def test_a_round_in_time_is_as_it_was_put(board: SnapshotStore, clock: Clock) -> None:
    """For its group's pace, and as long as a round may take beyond it."""
    one = told(UTILIZATION, GPU_UTIL)
    board.put_round(one)
    clock.now += 2 + LATE_S
    assert board.read().rounds[UTILIZATION] is one
    assert board.read() is board.read()


def test_a_late_round_has_no_values(board: SnapshotStore, clock: Clock) -> None:
    """It failed, and the page says what it lacks; the next round mends all."""
    board.put_round(told(UTILIZATION, GPU_UTIL))
    board.put_round(told(RETIRED, RETIRED_SBE))
    clock.now += 3 + LATE_S
    fixture = ExpositionFixture(board.read(), pods=[])
    assert fixture.samples(GPU_UTIL) == []
    assert fixture.value("vcuda_collector_success", group=UTILIZATION) == 0
    assert fixture.value("vcuda_collect_timestamp_seconds", group=UTILIZATION) == AT
    assert fixture.value("vcuda_exporter_trouble", about=UTILIZATION) == 1
    # Another group, of another pace, goes on.
    assert fixture.value(RETIRED_SBE, UUID=A) == 5
    assert fixture.value("vcuda_collector_success", group=RETIRED) == 1
    assert board.read() is board.read()
    board.put_round(told(UTILIZATION, GPU_UTIL))
    fixture = ExpositionFixture(board.read(), pods=[])
    assert fixture.value(GPU_UTIL, UUID=A) == 5
    assert fixture.value("vcuda_collector_success", group=UTILIZATION) == 1
    assert fixture.samples("vcuda_exporter_trouble") == []


def test_late_processes_are_nobodys(board: SnapshotStore, clock: Clock) -> None:
    """What containers use is unknown, and no watchdog counts on."""
    board.put_processes(ProcessRound(AT, 0.1, {A: ProcessesAnswer()}), "")
    book = UsageBook(board.read)
    assert book.now().at == AT
    clock.now += 3 + LATE_S
    assert book.now().at is None
    assert "was not read for over 32 s" in board.read().troubles[PROCESSES]


def test_a_group_that_is_off_is_never_late(board: SnapshotStore, clock: Clock) -> None:
    """Its round went when it was switched off."""
    board.put_round(told(UTILIZATION, GPU_UTIL))
    board.change(lambda _: snapshot())
    clock.now += 1000
    assert board.read().troubles == {}


class Moving:
    """A snapshot that changes as a test tells it."""

    def __init__(self, *cards: FoundCard) -> None:
        self.now = snapshot(*(cards or (found_card(0),)), round_=processes({}))

    def read(self) -> Snapshot:
        return self.now

    def work(self, sm: float | None, at: float) -> None:
        running = [] if sm == 0 else [use(1, 10, sm)]
        round_ = processes({A: running}, {1: owner("a")}, at=at)
        self.now = snapshot(found_card(0), round_=round_)


def book_of(moving: Moving, *pods: Json) -> tuple[UsageBook, Tenants]:
    tenants = Tenants()
    tenants.replace(iter([page(*pods)]))
    return UsageBook(moving.read, tenants.current), tenants


def test_the_last_work_is_remembered() -> None:
    """Since it was first seen; moved on by work alone, not by a silent driver."""
    moving = Moving()
    book, _ = book_of(moving, held("a"))
    seen = []
    for sm, after_s in ((0, 0), (0, 5), (30, 10), (None, 15), (0, 20)):
        moving.work(sm, AT + after_s)
        last = of(book.now(), "a").last_busy
        assert last is not None
        seen.append(last - AT)
    assert seen == [0, 0, 10, 10, 10]


def test_a_pod_of_the_same_name_begins_anew() -> None:
    """It is another pod by its UID."""
    moving = Moving()
    moving.work(30, AT)
    book, tenants = book_of(moving, held("a"))
    assert of(book.now(), "a").last_busy == AT
    moving.work(0, AT + 60)
    new = pod_json("a", uid="second", units=8, node=NODE)
    old = held("a")
    notes = old["metadata"]["annotations"]
    new["metadata"]["annotations"] = {
        key: text.replace("uid-a", "second") for key, text in notes.items()
    }
    tenants.replace(iter([page(with_ids(new))]))
    assert of(book.now(), "a").last_busy == AT + 60


def test_nothing_is_worked_out_twice() -> None:
    """The same objects give the same usage; a new round or pod another."""
    moving = Moving()
    book, tenants = book_of(moving, held("a"))
    first = book.now()
    assert book.now() is first
    moving.work(30, AT + 5)
    second = book.now()
    assert second is not first
    tenants.apply(event("ADDED", held("b")))
    third = book.now()
    assert third is not second
    assert [one.pod for one in third.containers] == ["a", "b"]


def test_what_else_is_worked_out_anew() -> None:
    """Memory in use, and whether owners can be told, change what a card comes to."""
    moving = Moving()
    book, _ = book_of(moving, held("a"))
    assert book.now().cards[A].unattributed_mib is None
    memory = snapshot(values={A: {FB_USED: 9.0}}).rounds
    moving.now = replace(moving.now, rounds=memory)
    assert book.now().cards[A].unattributed_mib == 9
    moving.now = replace(moving.now, troubles=BLIND)
    assert book.now().cards[A].unattributed_mib is None


def test_a_book_without_pods() -> None:
    """Cards are told of."""
    book = UsageBook(Moving().read)
    assert (book.has_pods, book.tenancy()) == (False, None)
    assert book.now().cards.keys() == {A}
