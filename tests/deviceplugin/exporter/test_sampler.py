"""The sampler: its rounds, its threads, and the count of faults."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from deviceplugin.cards.source import Found, LeftOut, XidEvent
from deviceplugin.exporter.owners import NO_POD
from deviceplugin.exporter.sampler import XidTallies, groups_read
from deviceplugin.exporter.selection import Flags, choose
from deviceplugin.exporter.snapshot import XidTally
from deviceplugin.exporter.snapshot_store import SnapshotStore
from deviceplugin.telemetry.base import CardAnswer, ProcessUse
from deviceplugin.telemetry.fields import (
    ENVIRONMENT,
    FAULTS,
    FB_USED,
    GPU_TEMP,
    GPU_UTIL,
    MEMORY,
    POWER_USAGE,
    PROCESSES,
    UTILIZATION,
    XID_ERRORS,
    Group,
)
from tests.deviceplugin.node_fixture import found_card
from tests.deviceplugin.scripted_telemetry import (
    A,
    B,
    SamplerFixture,
    ScriptedTelemetry,
    fast,
    working,
)
from tests.testbed.waiting import wait_until

LATE = CardAnswer(failure="it did not answer within 5 s")


@pytest.fixture
def fixture() -> SamplerFixture:
    made = SamplerFixture()
    made.sampler.look_once()
    return made


def lines(caplog: pytest.LogCaptureFixture, message: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.message == message]


def test_a_round_is_what_was_read(fixture: SamplerFixture) -> None:
    """The group's fields of all cards, when, and how long it took."""
    assert fixture.sampler.sample_once(UTILIZATION)
    one = fixture.seen.rounds[UTILIZATION]
    assert one.succeeded
    assert one.at > 0
    assert one.took_s >= 0
    assert fixture.telemetry.asked == [(UTILIZATION, choose(Flags()).read[UTILIZATION])]
    assert {uuid: says.values[GPU_UTIL] for uuid, says in one.cards.items()} == {
        A: 1.0,
        B: 1.0,
    }


def test_a_scrape_s_snapshot_never_changes(fixture: SamplerFixture) -> None:
    """Whoever reads one sees one moment, whatever comes after."""
    fixture.sampler.sample_once(UTILIZATION)
    before = fixture.seen
    fixture.telemetry.says[A] = LATE
    fixture.sampler.sample_once(UTILIZATION)
    assert before.rounds[UTILIZATION].cards[A].values[GPU_UTIL] == 1.0
    assert fixture.seen.rounds[UTILIZATION].cards[A] == LATE


def test_a_card_that_fails_drops_out_alone_and_is_told_once(
    fixture: SamplerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Its last value does not linger; one line when it fails, one when it is back."""
    caplog.set_level(logging.INFO)
    fixture.sampler.sample_once(UTILIZATION)
    fixture.telemetry.says[A] = LATE
    for _ in range(3):
        fixture.sampler.sample_once(UTILIZATION)
    assert not fixture.seen.rounds[UTILIZATION].succeeded
    assert fixture.value(UTILIZATION, GPU_UTIL) is None
    assert fixture.value(UTILIZATION, GPU_UTIL, B) == 1.0
    (line,) = lines(caplog, "a card does not answer")
    assert (line.levelno, line.card) == (logging.WARNING, A)  # type: ignore[attr-defined]
    assert line.because == LATE.failure  # type: ignore[attr-defined]
    del fixture.telemetry.says[A]
    for _ in range(3):
        fixture.sampler.sample_once(UTILIZATION)
    assert fixture.value(UTILIZATION, GPU_UTIL) == 1.0
    assert len(lines(caplog, "a card answers again")) == 1


def test_what_a_card_does_not_have_is_told_once(
    fixture: SamplerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each card and field, for good; it is no trouble."""
    caplog.set_level(logging.INFO)
    for lacking in ({GPU_TEMP}, {GPU_TEMP, POWER_USAGE}, {POWER_USAGE}):
        fixture.telemetry.says[A] = CardAnswer({}, frozenset(lacking))
        fixture.sampler.sample_once(ENVIRONMENT)
    told = lines(caplog, "a card does not have all metrics")
    assert [(one.card, one.metrics) for one in told] == [  # type: ignore[attr-defined]
        (A, GPU_TEMP),
        (A, POWER_USAGE),
    ]
    assert {one.levelno for one in told} == {logging.INFO}
    assert fixture.seen.rounds[ENVIRONMENT].succeeded


def test_a_group_that_breaks_leaves_the_others(
    fixture: SamplerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody expected becomes words of its round, logged once."""
    caplog.set_level(logging.INFO)
    fixture.telemetry.breaks[MEMORY] = ValueError("no number")
    for _ in range(3):
        assert fixture.sampler.sample_once(MEMORY)
    fixture.sampler.sample_once(UTILIZATION)
    assert fixture.seen.rounds[MEMORY].failure == "ValueError: no number"
    assert not fixture.seen.rounds[MEMORY].cards
    assert fixture.seen.rounds[UTILIZATION].succeeded
    assert len(lines(caplog, "a group cannot be read")) == 1
    fixture.telemetry.breaks.clear()
    fixture.sampler.sample_once(MEMORY)
    assert fixture.value(MEMORY, FB_USED) == 1.0
    assert len(lines(caplog, "a group is read again")) == 1


def test_no_driver_is_said_once_and_it_recovers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No round before the first card; its words stand in the snapshot meanwhile."""
    caplog.set_level(logging.INFO)
    fixture = SamplerFixture()
    fixture.telemetry.away = "the driver is not loaded"
    for _ in range(3):
        assert not fixture.sampler.look_once()
        assert not fixture.sampler.sample_once(UTILIZATION)
    assert fixture.seen.no_cards == "the driver is not loaded"
    assert fixture.seen.found is None
    assert not fixture.telemetry.times(UTILIZATION)
    (line,) = lines(caplog, "no cards to read yet")
    assert line.because == "the driver is not loaded"  # type: ignore[attr-defined]
    fixture.telemetry.away = ""
    assert fixture.sampler.look_once()
    assert fixture.sampler.sample_once(UTILIZATION)
    assert (fixture.seen.no_cards, fixture.seen.driver_version) == ("", "550.54.15")
    assert len(lines(caplog, "there are cards to read")) == 1


def test_a_driver_that_goes_takes_its_values_along(
    fixture: SamplerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """The cards stay known, their rounds fail; it is told once for all groups."""
    fixture.sampler.sample_once(UTILIZATION)
    fixture.sampler.sample_once(PROCESSES)
    fixture.telemetry.away = "gone"
    fixture.sampler.look_once()
    fixture.sampler.sample_once(UTILIZATION)
    fixture.sampler.sample_once(PROCESSES)
    assert fixture.seen.no_cards == "gone"
    assert fixture.seen.found == fixture.telemetry.found
    assert fixture.seen.rounds[UTILIZATION].failure == "gone"
    assert fixture.seen.processes is not None
    assert fixture.seen.processes.failure == "gone"
    assert [one.message for one in caplog.records] == ["no cards to read yet"]


def test_a_node_without_cards_says_so(fixture: SamplerFixture) -> None:
    """The driver answers, and lists none."""
    fixture.telemetry.found = Found(())
    assert not fixture.sampler.look_once()
    assert fixture.seen.no_cards == "there is no card on this node"
    assert not fixture.sampler.sample_once(UTILIZATION)
    fixture.telemetry.found = Found((found_card(0),))
    assert fixture.sampler.look_once()
    assert fixture.seen.no_cards == ""


def test_cards_left_out_are_told_once(
    fixture: SamplerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """And why."""
    fixture.telemetry.found = Found(
        (found_card(0),), (LeftOut("x", "it is in MIG mode"),)
    )
    for _ in range(3):
        fixture.sampler.look_once()
    (line,) = lines(caplog, "card left out")
    assert (line.card, line.because) == ("x", "it is in MIG mode")  # type: ignore[attr-defined]


def test_what_is_switched_off_is_gone_at_once(fixture: SamplerFixture) -> None:
    """Its last round too, and a process's; what stays on keeps its own."""
    for group in (UTILIZATION, ENVIRONMENT, PROCESSES):
        fixture.sampler.sample_once(group)
    off = Flags(off=frozenset({ENVIRONMENT, PROCESSES}))
    fixture.sampler.choose(choose(off))
    assert fixture.seen.rounds.keys() == {UTILIZATION}
    assert fixture.seen.processes is None
    assert ENVIRONMENT not in fixture.seen.groups
    assert not [one for one in fixture.seen.fields if one.group == ENVIRONMENT]
    assert not fixture.sampler.sample_once(ENVIRONMENT)
    assert not fixture.sampler.sample_once(PROCESSES)


def test_processes_have_owners(fixture: SamplerFixture) -> None:
    """This process's by its real cgroup; one that is gone has none."""
    mine, gone = os.getpid(), 2**22 + 1
    fixture.telemetry.uses[A] = (ProcessUse(mine, 256.0), ProcessUse(gone))
    fixture.sampler.sample_once(PROCESSES)
    found = fixture.seen.processes
    assert found is not None
    assert found.owners.keys() == {mine}
    assert found.cards[A].processes[0].memory_mib == 256.0
    assert "processes" not in fixture.seen.troubles


def test_an_unreadable_proc_is_a_trouble_and_recovers(tmp_path: Path) -> None:
    """Said in the snapshot while it lasts; the processes are shown all the same."""
    fixture = SamplerFixture(tmp_path)
    fixture.sampler.look_once()
    fixture.telemetry.uses[A] = (ProcessUse(7, 256.0),)
    for _ in range(2):
        fixture.sampler.sample_once(PROCESSES)
    assert "hostPID" in fixture.seen.troubles[PROCESSES]
    assert fixture.seen.processes is not None
    assert fixture.seen.processes.succeeded
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (process / "stat").write_text("7 (x) S" + " 1" * 40)
    (process / "cgroup").write_text("0::/user.slice\n")
    fixture.sampler.sample_once(PROCESSES)
    assert fixture.seen.troubles == {}
    assert fixture.seen.processes.owners == {7: NO_POD}


def test_no_trouble_of_a_group_that_is_off(tmp_path: Path) -> None:
    """Nobody misses what nobody asked for."""
    fixture = SamplerFixture(tmp_path)
    fixture.sampler.look_once()
    fixture.telemetry.uses[A] = (ProcessUse(7),)
    for _ in range(2):
        fixture.sampler.sample_once(PROCESSES)
    assert fixture.seen.troubles
    fixture.sampler.choose(choose(Flags(off=frozenset({PROCESSES}))))
    assert fixture.seen.troubles == {}


def test_cards_that_report_faults_have_none_so_far(fixture: SamplerFixture) -> None:
    """Zero is a statement: a card that reports none has no tally."""
    fixture.telemetry.says[B] = CardAnswer({}, frozenset({XID_ERRORS}))
    fixture.sampler.sample_once(FAULTS)
    assert fixture.seen.xids == {A: XidTally()}


def tallies() -> tuple[ScriptedTelemetry, SnapshotStore, XidTallies]:
    telemetry, board = ScriptedTelemetry(), SnapshotStore()
    return telemetry, board, XidTallies(telemetry, board, wait_s=0.05)


def test_each_fault_is_counted_and_the_last_stays() -> None:
    """As dcgm-exporter's gauge, which is sticky, and a counter beside it."""
    _, board, made = tallies()
    for xid in (79, 31, 79):
        made.note(XidEvent(A, xid))
    made.note(XidEvent(B, 48))
    assert board.read().xids == {
        A: XidTally(79, {79: 2, 31: 1}),
        B: XidTally(48, {48: 1}),
    }


def test_a_fault_of_no_card_is_every_card_s_of_the_driver() -> None:
    """The plugin takes those for sick, too; not an inventory's."""
    _, board, made = tallies()
    other = found_card(1, known_to_driver=False)
    found = Found((found_card(0), other))
    board.change(lambda was: replace(was, found=found))
    made.note(XidEvent(None, 79))
    assert board.read().xids == {A: XidTally(79, {79: 1})}


def test_without_cards_it_is_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There is nothing to count it under."""
    caplog.set_level(logging.INFO)
    _, board, made = tallies()
    made.note(XidEvent(None, 79))
    assert board.read().xids == {}
    assert [(one.message, one.xid) for one in caplog.records] == [  # type: ignore[attr-defined]
        ("a card reported a fault", 79)
    ]


@contextmanager
def hearing(made: XidTallies) -> Iterator[None]:
    stop = Event()
    thread = Thread(target=made.watch_faults, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def test_faults_are_heard_as_they_come() -> None:
    """One after the other, each once."""
    telemetry, board, made = tallies()
    with hearing(made):
        telemetry.events.put(XidEvent(A, 13))
        telemetry.events.put(XidEvent(A, 79))
        wanted = {A: XidTally(79, {13: 1, 79: 1})}
        wait_until(lambda: board.read().xids == wanted, "both")


def test_an_error_is_told_and_the_next_fault_is_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a pause, so that it does not spin."""
    telemetry, board, made = tallies()
    telemetry.events.put(RuntimeError("odd"))
    telemetry.events.put(XidEvent(A, 79))
    with hearing(made):
        wait_until(lambda: board.read().xids, "the second")
    assert [one.message for one in caplog.records] == ["faults are not heard"]


def test_errors_are_not_heard_in_a_hot_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After each it pauses, and the end cuts the pause short."""
    telemetry, board = ScriptedTelemetry(), SnapshotStore()
    for _ in range(10):
        telemetry.events.put(RuntimeError("odd"))
    with hearing(XidTallies(telemetry, board, wait_s=3600.0)):
        wait_until(lambda: caplog.records, "the first")
    assert telemetry.events.qsize() == 9


def test_switched_off_while_it_is_read(fixture: SamplerFixture) -> None:
    """A round that comes too late is not shown."""
    held = fixture.telemetry.hold(ENVIRONMENT)
    with working(fixture, fast(ENVIRONMENT)):
        wait_until(lambda: fixture.telemetry.times(ENVIRONMENT), "a question")
        fixture.sampler.choose(choose(Flags(off=frozenset({ENVIRONMENT}))))
        held.set()
    assert ENVIRONMENT not in fixture.seen.rounds


def test_a_group_that_hangs_holds_up_itself_alone(fixture: SamplerFixture) -> None:
    """The others go on at their pace, and it too once the question is answered."""
    held = fixture.telemetry.hold(MEMORY)
    with working(fixture, fast(MEMORY), fast(UTILIZATION), fast(PROCESSES)):
        wait_until(lambda: fixture.telemetry.times(UTILIZATION) > 5, "more readings")
        wait_until(lambda: fixture.telemetry.times(PROCESSES) > 5, "more readings")
        assert fixture.telemetry.times(MEMORY) == 1
        assert MEMORY not in fixture.seen.rounds
        held.set()
        wait_until(lambda: fixture.telemetry.times(MEMORY) > 5, "it again")


def test_a_pace_is_kept(fixture: SamplerFixture) -> None:
    """A group of a long pace is read once, then waited for."""
    slow = Group(UTILIZATION, 3600.0, "")
    with working(fixture, slow, fast(MEMORY)):
        wait_until(lambda: fixture.telemetry.times(MEMORY) > 20, "many of the other")
        assert fixture.telemetry.times(UTILIZATION) <= 2


def test_a_slow_group_that_is_switched_on_is_read_at_once(
    fixture: SamplerFixture,
) -> None:
    """No thread sleeps through a change of the choice."""
    off = Flags(off=frozenset({FAULTS}))
    fixture.sampler.choose(choose(off))
    with working(fixture, Group(FAULTS, 3600.0, ""), fast(MEMORY)):
        wait_until(lambda: fixture.telemetry.times(MEMORY) > 5, "the others")
        assert not fixture.telemetry.times(FAULTS)
        fixture.sampler.choose(choose(Flags()))
        wait_until(lambda: FAULTS in fixture.seen.rounds, "its round")


def test_cards_that_come_later_are_read_at_once() -> None:
    """A slow group too: nobody waits its whole pace for a driver that was late."""
    fixture = SamplerFixture()
    fixture.telemetry.away = "not yet"
    with working(fixture, Group(FAULTS, 3600.0, "")):
        wait_until(lambda: fixture.seen.no_cards, "a look")
        fixture.telemetry.away = ""
        wait_until(lambda: FAULTS in fixture.seen.rounds, "its round")


def test_every_group_of_fields_has_a_thread() -> None:
    """And the processes; what follows from pods has none."""
    names = {group.name for group in groups_read()}
    assert names >= {MEMORY, PROCESSES, FAULTS}
    assert not names & {"allotment", "kubelet"}
