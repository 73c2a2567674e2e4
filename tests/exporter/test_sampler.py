"""The sampler: its rounds, its threads, and the count of faults."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from exporter.held import NodeLimits, of_container
from exporter.owners.owner_pods import NO_POD
from exporter.sampler import LATE_S, SnapshotStore, XidTallies
from exporter.selection import Flags, choose
from exporter.snapshot import ProcessRound, Round, XidTally
from exporter.telemetry import fields as f
from exporter.telemetry.base import CardAnswer, ProcessesAnswer, ProcessUse
from exporter.usage import UsageBook
from gpushare.cards.source import DriverLost, FoundCards, LeftOut, NoCardsYet, XidEvent
from gpushare.kubelet.limit_files import InnerPid
from tests.deviceplugin.node_fixture import found_card
from tests.exporter.exporter_data import ALL, AT, counting, snapshot
from tests.exporter.scripted_telemetry import (
    A,
    B,
    SamplerFixture,
    ScriptedTelemetry,
    fast,
)
from tests.gpushare.cards.nvml_fixture import Clock
from tests.testbed.waiting import wait_until

LATE = CardAnswer(failure="it did not answer within 5 s")
Log = pytest.LogCaptureFixture


@pytest.fixture(autouse=True)
def _all_is_logged(caplog: Log) -> None:
    caplog.set_level("INFO", "exporter.sampler")


@pytest.fixture
def fixture() -> SamplerFixture:
    made = SamplerFixture()
    made.sampler.look_once()
    return made


def off(*groups: str) -> Flags:
    return Flags(off=frozenset(groups))


def sampled(fixture: SamplerFixture, group: str, times: int = 3) -> bool:
    done = [fixture.sampler.sample_once(group) for _ in range(times)]
    return all(done)


def test_a_card_that_fails_drops_out_alone_and_is_told_once(
    fixture: SamplerFixture, caplog: Log
) -> None:
    """One line when it fails, one when it is back; what was read never changes."""
    assert sampled(fixture, f.UTILIZATION, 1)
    before = fixture.seen.rounds[f.UTILIZATION]
    wanted = choose(Flags()).read[f.UTILIZATION]
    assert fixture.telemetry.asked == [(f.UTILIZATION, wanted)]
    fixture.telemetry.says[A] = LATE
    sampled(fixture, f.UTILIZATION)
    assert before.cards[A].values[f.GPU_UTIL] == 1.0
    assert not fixture.seen.rounds[f.UTILIZATION].succeeded
    assert fixture.value(f.UTILIZATION, f.GPU_UTIL) is None
    assert fixture.value(f.UTILIZATION, f.GPU_UTIL, B) == 1.0
    del fixture.telemetry.says[A]
    sampled(fixture, f.UTILIZATION)
    assert fixture.value(f.UTILIZATION, f.GPU_UTIL) == 1.0
    failed, again = caplog.records
    assert (failed.levelname, failed.message) == ("WARNING", "a card does not answer")
    assert (vars(failed)["card"], vars(failed)["because"]) == (A, LATE.failure)
    assert again.message == "a card answers again"


def test_what_a_card_does_not_have_is_told_once(
    fixture: SamplerFixture, caplog: Log
) -> None:
    for lacking in ({f.GPU_TEMP}, {f.GPU_TEMP, f.POWER_USAGE}, {f.POWER_USAGE}):
        fixture.telemetry.says[A] = CardAnswer({}, frozenset(lacking))
        fixture.sampler.sample_once(f.ENVIRONMENT)
    assert [(line.message, vars(line)["metrics"]) for line in caplog.records] == [
        ("a card does not have all metrics", f.GPU_TEMP),
        ("a card does not have all metrics", f.POWER_USAGE),
    ]
    assert fixture.seen.rounds[f.ENVIRONMENT].succeeded


def test_a_group_that_breaks_leaves_the_others(
    fixture: SamplerFixture, caplog: Log
) -> None:
    fixture.telemetry.breaks[f.MEMORY] = ValueError("no number")
    assert sampled(fixture, f.MEMORY)
    sampled(fixture, f.UTILIZATION)
    assert fixture.seen.rounds[f.MEMORY].failure == "ValueError: no number"
    assert not fixture.seen.rounds[f.MEMORY].cards
    assert fixture.seen.rounds[f.UTILIZATION].succeeded
    fixture.telemetry.breaks.clear()
    sampled(fixture, f.MEMORY)
    assert fixture.value(f.MEMORY, f.FB_USED) == 1.0
    assert caplog.messages == ["a group cannot be read", "a group is read again"]


def test_a_driver_that_comes_and_goes(caplog: Log) -> None:
    """No round before the first card. Later the cards stay known, and rounds fail."""
    fixture = SamplerFixture()
    for away in (NoCardsYet("not loaded"), None, NoCardsYet("gone")):
        fixture.telemetry.away = away
        looked = [fixture.sampler.look_once() for _ in range(3)]
        sampled(fixture, f.UTILIZATION)
        sampled(fixture, f.PROCESSES)
        failures = [round_.failure for _, round_ in fixture.seen.all_rounds()]
        if away and "loaded" in str(away):
            assert (fixture.telemetry.asked, failures) == ([], [])
            assert (looked, fixture.seen.found) == ([False] * 3, None)
        else:
            assert failures == [str(away or "")] * 2
            assert looked == [not away, False, False]
            assert fixture.seen.found == fixture.telemetry.found
        assert fixture.seen.no_cards == str(away or "")
    assert fixture.seen.driver_version == "550.54.15"
    none, there = "no cards to read yet", "there are cards to read"
    assert caplog.messages == [none, there, none]


def test_a_lost_driver_ends_the_look(fixture: SamplerFixture, caplog: Log) -> None:
    """Only a new process can have the cards back."""
    fixture.telemetry.breaks["cards"] = DriverLost("it was loaded anew")
    fixture.sampler.look_for_cards(Event())
    assert caplog.messages == ["driver lost, the process ends"]


def test_a_node_without_cards_says_so(fixture: SamplerFixture, caplog: Log) -> None:
    """The driver answers, and lists none; what it leaves out is told once, and why."""
    fixture.telemetry.found = FoundCards(())
    fixture.sampler.look_once()
    assert fixture.seen.no_cards == "there is no card on this node"
    caplog.clear()
    left_out = (LeftOut("x", "it is in MIG mode"),)
    fixture.telemetry.found = FoundCards((), left_out)
    for _ in range(3):
        assert not fixture.sampler.look_once()
    assert fixture.seen.no_cards == "x: it is in MIG mode"
    assert not fixture.sampler.sample_once(f.UTILIZATION)
    line = caplog.records[0]
    assert line.message == "card left out"
    assert (vars(line)["card"], vars(line)["because"]) == ("x", "it is in MIG mode")
    assert caplog.messages.count("card left out") == 1
    fixture.telemetry.found = FoundCards((found_card(0),), left_out)
    assert fixture.sampler.look_once()
    assert fixture.seen.no_cards == ""


def test_what_is_switched_off_is_gone_at_once(fixture: SamplerFixture) -> None:
    for group in (f.UTILIZATION, f.ENVIRONMENT, f.PROCESSES):
        fixture.sampler.sample_once(group)
    fixture.sampler.choose(choose(off(f.ENVIRONMENT, f.PROCESSES)))
    assert fixture.seen.rounds.keys() == {f.UTILIZATION}
    assert fixture.seen.processes is None
    assert f.ENVIRONMENT not in fixture.seen.groups
    assert not [field for field in fixture.seen.fields if field.group == f.ENVIRONMENT]
    assert not fixture.sampler.sample_once(f.ENVIRONMENT)
    assert not fixture.sampler.sample_once(f.PROCESSES)


def test_what_holds_containers_is_read_with_their_processes(tmp_path: Path) -> None:
    """Their names inside are the innermost; only of processes in pods."""
    uid = str(uuid.uuid4())
    fixture = SamplerFixture(tmp_path)
    fixture.sampler.look_once()
    uses = tuple(ProcessUse(pid, 256.0) for pid in (7, 8, 9))
    fixture.telemetry.lists[A] = ProcessesAnswer(uses)
    for pid, cgroup, status in (
        (7, f"0::/kubepods/pod{uid}/{'a' * 64}\n", "Name:\tx\nNSpid:\t7\t12\t3\n"),
        (8, f"0::/kubepods/pod{uid}/{'a' * 64}\n", "Name:\tx\n"),
        (9, "0::/user.slice\n", "NSpid:\t9\n"),
    ):
        process = tmp_path / "proc" / str(pid)
        process.mkdir(parents=True)
        (process / "stat").write_text(f"{pid} (x) S{' 1' * 18} 500 0\n")
        (process / "cgroup").write_text(cgroup)
        (process / "status").write_text(status)
    sampled(fixture, f.PROCESSES, 1)
    assert fixture.seen.processes is not None
    assert fixture.seen.processes.limits == NodeLimits()
    container = tmp_path / "state" / "containers" / "key"
    container.mkdir(parents=True)
    limit = {"tier": "preload", "mib": 1024, "needed_mib": 1536}
    (container / ".hard_limit").write_text(json.dumps(limit))
    (container / "limits").write_text("vcuda-limits 2\n")
    os.mkfifo(container / ".region")
    record = {"uid": uid, "container": "main"}
    container.with_name("key.json").write_text(json.dumps(record))
    with counting(container / ".region", {(3, 500): 200}):
        sampled(fixture, f.PROCESSES, 1)
    limits = fixture.seen.processes.limits
    assert limits.inside == {7: InnerPid(3, 500)}
    counted = limits.containers[of_container(uid, "main")].counted
    assert counted == {InnerPid(3, 500): 200 * 2**20}


def test_an_unreadable_proc_is_a_trouble_and_recovers(tmp_path: Path) -> None:
    fixture = SamplerFixture(tmp_path)
    fixture.sampler.look_once()
    fixture.telemetry.lists[A] = ProcessesAnswer((ProcessUse(7, 256.0),))
    sampled(fixture, f.PROCESSES, 2)
    assert "hostPID" in fixture.seen.troubles[f.PROCESSES]
    assert fixture.seen.processes is not None
    assert fixture.seen.processes.succeeded
    fixture.sampler.choose(choose(off(f.PROCESSES)))
    assert fixture.seen.troubles == {}
    fixture.sampler.choose(choose(Flags()))
    sampled(fixture, f.PROCESSES, 1)
    assert fixture.seen.troubles
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (process / "stat").write_text("7 (x) S" + " 1" * 40)
    (process / "cgroup").write_text("0::/user.slice\n")
    sampled(fixture, f.PROCESSES, 1)
    assert fixture.seen.troubles == {}
    assert fixture.seen.processes.owners == {7: NO_POD}


def test_cards_that_report_faults_have_none_so_far(fixture: SamplerFixture) -> None:
    """Zero is a statement: a card that reports none has no tally."""
    fixture.telemetry.says[B] = CardAnswer({}, frozenset({f.XID_ERRORS}))
    fixture.sampler.sample_once(f.FAULTS)
    assert fixture.seen.xids == {A: XidTally()}


@contextmanager
def hearing(
    *events: XidEvent | Exception, wait_s: float = 0.05
) -> Iterator[tuple[ScriptedTelemetry, SnapshotStore]]:
    telemetry, board, stop = ScriptedTelemetry(), SnapshotStore(), Event()
    for event in events:
        telemetry.events.put(event)
    tallies = XidTallies(telemetry, board, wait_s=wait_s)
    thread = Thread(target=tallies.watch_faults, args=(stop,))
    thread.start()
    try:
        yield telemetry, board
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def test_a_fault_of_no_card_is_every_card_s_of_the_driver(caplog: Log) -> None:
    """The plugin takes those for sick, too; not an inventory's."""
    board = SnapshotStore()
    tallies = XidTallies(ScriptedTelemetry(), board)
    tallies.note(XidEvent(None, 79))
    assert board.read().xids == {}
    assert caplog.messages == ["a card reported a fault"]
    fixture = SamplerFixture()
    fixture.telemetry.found = FoundCards(
        (found_card(0), found_card(1, known_to_driver=False))
    )
    fixture.sampler.look_once()
    XidTallies(fixture.telemetry, fixture.board).note(XidEvent(None, 79))
    assert fixture.seen.xids == {A: XidTally(79, {79: 1})}


def test_an_error_is_told_and_the_next_fault_is_heard(caplog: Log) -> None:
    """After a pause, so that it does not spin; the end cuts the pause short."""
    odd = RuntimeError("odd")
    wanted = {A: XidTally(31, {79: 2, 31: 1}), B: XidTally(48, {48: 1})}
    faults = [XidEvent(A, 79), XidEvent(A, 79), XidEvent(B, 48), XidEvent(A, 31)]
    with hearing(odd, *faults) as (_, board):
        wait_until(lambda: board.read().xids == wanted, "all")
    heard = ["faults are not heard", "faults are heard again"]
    assert caplog.messages == [*heard, *["a card reported a fault"] * 4]
    with hearing(*[odd] * 10, wait_s=3600.0) as (telemetry, _):
        wait_until(lambda: caplog.messages[-1] == heard[0], "the first")
    assert telemetry.events.qsize() == 9


def test_switched_off_while_it_is_read(fixture: SamplerFixture) -> None:
    """A round that comes too late is not shown."""
    held = fixture.telemetry.hold(f.ENVIRONMENT)
    with fixture.working(fast(f.ENVIRONMENT)):
        wait_until(lambda: fixture.telemetry.times(f.ENVIRONMENT), "a question")
        fixture.sampler.choose(choose(off(f.ENVIRONMENT)))
        held.set()
    assert f.ENVIRONMENT not in fixture.seen.rounds


def test_a_group_that_hangs_holds_up_itself_alone(fixture: SamplerFixture) -> None:
    """The others go on at their pace, and it too once the question is answered."""
    held = fixture.telemetry.hold(f.MEMORY)
    with fixture.working(fast(f.MEMORY), fast(f.UTILIZATION), fast(f.PROCESSES)):
        for group in (f.UTILIZATION, f.PROCESSES):
            wait_until(lambda group=group: fixture.telemetry.times(group) > 5, group)
        assert fixture.telemetry.times(f.MEMORY) == 1
        assert f.MEMORY not in fixture.seen.rounds
        held.set()
        wait_until(lambda: fixture.telemetry.times(f.MEMORY) > 5, "it again")


def test_a_slow_group_is_read_once_and_at_once(fixture: SamplerFixture) -> None:
    """When it is switched on, or when its cards come: no thread sleeps through that."""
    slow = f.FieldGroup(f.FAULTS, 3600.0, "")
    fixture.sampler.choose(choose(off(f.FAULTS)))
    with fixture.working(slow, fast(f.MEMORY)):
        wait_until(lambda: fixture.telemetry.times(f.MEMORY) > 5, "the others")
        assert not fixture.telemetry.times(f.FAULTS)
        fixture.sampler.choose(choose(Flags()))
        wait_until(lambda: f.FAULTS in fixture.seen.rounds, "its round")
        read = fixture.telemetry.times(f.MEMORY)
        wait_until(lambda: fixture.telemetry.times(f.MEMORY) > read + 10, "the others")
        assert fixture.telemetry.times(f.FAULTS) <= 2
    late = SamplerFixture()
    late.telemetry.away = NoCardsYet("not yet")
    with late.working(slow):
        wait_until(lambda: late.seen.no_cards, "a look")
        late.telemetry.away = None
        wait_until(lambda: f.FAULTS in late.seen.rounds, "its round")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> SnapshotStore:
    made = SnapshotStore(clock)
    made.change(lambda _: snapshot(groups=ALL))
    return made


def told(group: str, name: str) -> Round[CardAnswer]:
    return Round(group, AT, 0.1, {A: CardAnswer({name: 5.0})})


def test_a_late_round_has_no_values(board: SnapshotStore, clock: Clock) -> None:
    """It failed, and the page says what it lacks; the next round mends all."""
    early, slow = told(f.UTILIZATION, f.GPU_UTIL), told(f.RETIRED, f.RETIRED_SBE)
    board.put_round(early)
    board.put_round(slow)
    clock.now += 2 + LATE_S
    assert board.read().rounds == {f.UTILIZATION: early, f.RETIRED: slow}
    assert board.read() is board.read()
    clock.now += 1
    seen = board.read()
    why = f"utilization was not read for over {2 + LATE_S:.0f} s"
    late = replace(early, cards={}, failure=why)
    assert seen.rounds == {f.UTILIZATION: late, f.RETIRED: slow}
    assert seen.troubles == {f.UTILIZATION: why}
    assert board.read() is seen
    board.put_round(early)
    assert board.read().rounds[f.UTILIZATION] is early
    assert board.read().troubles == {}


def test_late_processes_are_nobodys(board: SnapshotStore, clock: Clock) -> None:
    board.put_processes(ProcessRound(f.PROCESSES, AT, 0.1, {A: ProcessesAnswer()}), "")
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
