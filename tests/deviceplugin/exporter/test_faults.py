"""Faults are counted by card and kind, and the last one stays."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread

import pytest

from deviceplugin.cards.source import Found, XidEvent
from deviceplugin.exporter.sampler import XidTallies
from deviceplugin.exporter.snapshot import XidTally
from deviceplugin.exporter.snapshot_store import SnapshotStore
from tests.deviceplugin.house import found_card
from tests.deviceplugin.scriptedtelemetry import A, B, ScriptedTelemetry
from tests.testbed.waiting import wait_until


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
