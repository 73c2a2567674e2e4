"""Where the snapshot lies; and what becomes of a round that no newer one follows."""

import pytest

from deviceplugin.exporter.snapshot import ProcessRound, Round
from deviceplugin.exporter.snapshot_store import LATE_S, SnapshotStore, UsageBook
from deviceplugin.telemetry.base import CardAnswer, ProcessesAnswer
from deviceplugin.telemetry.fields import (
    GPU_UTIL,
    PROCESSES,
    RETIRED,
    RETIRED_SBE,
    UTILIZATION,
)
from tests.deviceplugin.exposed import Desk
from tests.deviceplugin.nvml_watch import Clock
from tests.deviceplugin.scene import ALL, AT, A, snapshot


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
    desk = Desk(board.read(), pods=[])
    assert desk.samples(GPU_UTIL) == []
    assert desk.value("vcuda_collector_success", group=UTILIZATION) == 0
    assert desk.value("vcuda_collect_timestamp_seconds", group=UTILIZATION) == AT
    assert desk.value("vcuda_exporter_trouble", about=UTILIZATION) == 1
    # Another group, of another pace, goes on.
    assert desk.value(RETIRED_SBE, UUID=A) == 5
    assert desk.value("vcuda_collector_success", group=RETIRED) == 1
    assert board.read() is board.read()
    board.put_round(told(UTILIZATION, GPU_UTIL))
    desk = Desk(board.read(), pods=[])
    assert desk.value(GPU_UTIL, UUID=A) == 5
    assert desk.value("vcuda_collector_success", group=UTILIZATION) == 1
    assert desk.samples("vcuda_exporter_trouble") == []


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
