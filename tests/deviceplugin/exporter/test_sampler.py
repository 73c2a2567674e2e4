"""Groups are read at their pace into one snapshot, and trouble is told once."""

import logging
import os
from pathlib import Path

import pytest

from deviceplugin.cards.source import Found, LeftOut
from deviceplugin.exporter.owners import NO_POD
from deviceplugin.exporter.selection import Flags, choose
from deviceplugin.exporter.snapshot import XidTally
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
)
from tests.deviceplugin.house import found_card
from tests.deviceplugin.sampling import Desk
from tests.deviceplugin.scriptedtelemetry import A, B

LATE = CardAnswer(failure="it did not answer within 5 s")


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    made.sampler.look_once()
    return made


def lines(caplog: pytest.LogCaptureFixture, message: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.message == message]


def test_a_round_is_what_was_read(desk: Desk) -> None:
    """The group's fields of all cards, when, and how long it took."""
    assert desk.sampler.sample_once(UTILIZATION)
    one = desk.seen.rounds[UTILIZATION]
    assert one.succeeded
    assert one.at > 0
    assert one.took_s >= 0
    assert desk.telemetry.asked == [(UTILIZATION, choose(Flags()).read[UTILIZATION])]
    assert {uuid: says.values[GPU_UTIL] for uuid, says in one.cards.items()} == {
        A: 1.0,
        B: 1.0,
    }


def test_a_scrape_s_snapshot_never_changes(desk: Desk) -> None:
    """Whoever reads one sees one moment, whatever comes after."""
    desk.sampler.sample_once(UTILIZATION)
    before = desk.seen
    desk.telemetry.says[A] = LATE
    desk.sampler.sample_once(UTILIZATION)
    assert before.rounds[UTILIZATION].cards[A].values[GPU_UTIL] == 1.0
    assert desk.seen.rounds[UTILIZATION].cards[A] == LATE


def test_a_card_that_fails_drops_out_alone_and_is_told_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """Its last value does not linger; one line when it fails, one when it is back."""
    caplog.set_level(logging.INFO)
    desk.sampler.sample_once(UTILIZATION)
    desk.telemetry.says[A] = LATE
    for _ in range(3):
        desk.sampler.sample_once(UTILIZATION)
    assert not desk.seen.rounds[UTILIZATION].succeeded
    assert desk.value(UTILIZATION, GPU_UTIL) is None
    assert desk.value(UTILIZATION, GPU_UTIL, B) == 1.0
    (line,) = lines(caplog, "a card does not answer")
    assert (line.levelno, line.card) == (logging.WARNING, A)  # type: ignore[attr-defined]
    assert line.because == LATE.failure  # type: ignore[attr-defined]
    del desk.telemetry.says[A]
    for _ in range(3):
        desk.sampler.sample_once(UTILIZATION)
    assert desk.value(UTILIZATION, GPU_UTIL) == 1.0
    assert len(lines(caplog, "a card answers again")) == 1


def test_what_a_card_does_not_have_is_told_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each card and field, for good; it is no trouble."""
    caplog.set_level(logging.INFO)
    for lacking in ({GPU_TEMP}, {GPU_TEMP, POWER_USAGE}, {POWER_USAGE}):
        desk.telemetry.says[A] = CardAnswer({}, frozenset(lacking))
        desk.sampler.sample_once(ENVIRONMENT)
    told = lines(caplog, "a card does not have all metrics")
    assert [(one.card, one.metrics) for one in told] == [  # type: ignore[attr-defined]
        (A, GPU_TEMP),
        (A, POWER_USAGE),
    ]
    assert {one.levelno for one in told} == {logging.INFO}
    assert desk.seen.rounds[ENVIRONMENT].succeeded


def test_a_group_that_breaks_leaves_the_others(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody expected becomes words of its round, logged once."""
    caplog.set_level(logging.INFO)
    desk.telemetry.breaks[MEMORY] = ValueError("no number")
    for _ in range(3):
        assert desk.sampler.sample_once(MEMORY)
    desk.sampler.sample_once(UTILIZATION)
    assert desk.seen.rounds[MEMORY].failure == "ValueError: no number"
    assert not desk.seen.rounds[MEMORY].cards
    assert desk.seen.rounds[UTILIZATION].succeeded
    assert len(lines(caplog, "a group cannot be read")) == 1
    desk.telemetry.breaks.clear()
    desk.sampler.sample_once(MEMORY)
    assert desk.value(MEMORY, FB_USED) == 1.0
    assert len(lines(caplog, "a group is read again")) == 1


def test_no_driver_is_said_once_and_it_recovers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No round before the first card; its words stand in the snapshot meanwhile."""
    caplog.set_level(logging.INFO)
    desk = Desk()
    desk.telemetry.away = "the driver is not loaded"
    for _ in range(3):
        assert not desk.sampler.look_once()
        assert not desk.sampler.sample_once(UTILIZATION)
    assert desk.seen.no_cards == "the driver is not loaded"
    assert desk.seen.found is None
    assert not desk.telemetry.times(UTILIZATION)
    (line,) = lines(caplog, "no cards to read yet")
    assert line.because == "the driver is not loaded"  # type: ignore[attr-defined]
    desk.telemetry.away = ""
    assert desk.sampler.look_once()
    assert desk.sampler.sample_once(UTILIZATION)
    assert (desk.seen.no_cards, desk.seen.driver_version) == ("", "550.54.15")
    assert len(lines(caplog, "there are cards to read")) == 1


def test_a_driver_that_goes_takes_its_values_along(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """The cards stay known, their rounds fail; it is told once for all groups."""
    desk.sampler.sample_once(UTILIZATION)
    desk.sampler.sample_once(PROCESSES)
    desk.telemetry.away = "gone"
    desk.sampler.look_once()
    desk.sampler.sample_once(UTILIZATION)
    desk.sampler.sample_once(PROCESSES)
    assert desk.seen.no_cards == "gone"
    assert desk.seen.found == desk.telemetry.found
    assert desk.seen.rounds[UTILIZATION].failure == "gone"
    assert desk.seen.processes is not None
    assert desk.seen.processes.failure == "gone"
    assert [one.message for one in caplog.records] == ["no cards to read yet"]


def test_a_node_without_cards_says_so(desk: Desk) -> None:
    """The driver answers, and lists none."""
    desk.telemetry.found = Found(())
    assert not desk.sampler.look_once()
    assert desk.seen.no_cards == "there is no card on this node"
    assert not desk.sampler.sample_once(UTILIZATION)
    desk.telemetry.found = Found((found_card(0),))
    assert desk.sampler.look_once()
    assert desk.seen.no_cards == ""


def test_cards_left_out_are_told_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """And why."""
    desk.telemetry.found = Found((found_card(0),), (LeftOut("x", "it is in MIG mode"),))
    for _ in range(3):
        desk.sampler.look_once()
    (line,) = lines(caplog, "card left out")
    assert (line.card, line.because) == ("x", "it is in MIG mode")  # type: ignore[attr-defined]


def test_what_is_switched_off_is_gone_at_once(desk: Desk) -> None:
    """Its last round too, and a process's; what stays on keeps its own."""
    for group in (UTILIZATION, ENVIRONMENT, PROCESSES):
        desk.sampler.sample_once(group)
    off = Flags(off=frozenset({ENVIRONMENT, PROCESSES}))
    desk.sampler.choose(choose(off))
    assert desk.seen.rounds.keys() == {UTILIZATION}
    assert desk.seen.processes is None
    assert ENVIRONMENT not in desk.seen.groups
    assert not [one for one in desk.seen.fields if one.group == ENVIRONMENT]
    assert not desk.sampler.sample_once(ENVIRONMENT)
    assert not desk.sampler.sample_once(PROCESSES)


def test_processes_have_owners(desk: Desk) -> None:
    """This process's by its real cgroup; one that is gone has none."""
    mine, gone = os.getpid(), 2**22 + 1
    desk.telemetry.uses[A] = (ProcessUse(mine, 256.0), ProcessUse(gone))
    desk.sampler.sample_once(PROCESSES)
    found = desk.seen.processes
    assert found is not None
    assert found.owners.keys() == {mine}
    assert found.cards[A].processes[0].memory_mib == 256.0
    assert "processes" not in desk.seen.troubles


def test_an_unreadable_proc_is_a_trouble_and_recovers(tmp_path: Path) -> None:
    """Said in the snapshot while it lasts; the processes are shown all the same."""
    desk = Desk(tmp_path)
    desk.sampler.look_once()
    desk.telemetry.uses[A] = (ProcessUse(7, 256.0),)
    for _ in range(2):
        desk.sampler.sample_once(PROCESSES)
    assert "hostPID" in desk.seen.troubles[PROCESSES]
    assert desk.seen.processes is not None
    assert desk.seen.processes.succeeded
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (process / "stat").write_text("7 (x) S" + " 1" * 40)
    (process / "cgroup").write_text("0::/user.slice\n")
    desk.sampler.sample_once(PROCESSES)
    assert desk.seen.troubles == {}
    assert desk.seen.processes.owners == {7: NO_POD}


def test_no_trouble_of_a_group_that_is_off(tmp_path: Path) -> None:
    """Nobody misses what nobody asked for."""
    desk = Desk(tmp_path)
    desk.sampler.look_once()
    desk.telemetry.uses[A] = (ProcessUse(7),)
    for _ in range(2):
        desk.sampler.sample_once(PROCESSES)
    assert desk.seen.troubles
    desk.sampler.choose(choose(Flags(off=frozenset({PROCESSES}))))
    assert desk.seen.troubles == {}


def test_cards_that_report_faults_have_none_so_far(desk: Desk) -> None:
    """Zero is a statement: a card that reports none has no tally."""
    desk.telemetry.says[B] = CardAnswer({}, frozenset({XID_ERRORS}))
    desk.sampler.sample_once(FAULTS)
    assert desk.seen.xids == {A: XidTally()}
