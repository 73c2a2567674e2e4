"""Each group has a thread and a pace of its own, and all hear what changes."""


from deviceplugin.exporter.sampler import groups_read
from deviceplugin.exporter.selection import Flags, choose
from deviceplugin.telemetry.fields import (
    ENVIRONMENT,
    FAULTS,
    MEMORY,
    PROCESSES,
    UTILIZATION,
    Group,
)
from tests.deviceplugin.sampling import Desk, fast, working
from tests.testbed.waiting import wait_until


def test_switched_off_while_it_is_read(desk: Desk) -> None:
    """A round that comes too late is not shown."""
    held = desk.telemetry.hold(ENVIRONMENT)
    with working(desk, fast(ENVIRONMENT)):
        wait_until(lambda: desk.telemetry.times(ENVIRONMENT), "a question")
        desk.sampler.choose(choose(Flags(off=frozenset({ENVIRONMENT}))))
        held.set()
    assert ENVIRONMENT not in desk.seen.rounds


def test_a_group_that_hangs_holds_up_itself_alone(desk: Desk) -> None:
    """The others go on at their pace, and it too once the question is answered."""
    held = desk.telemetry.hold(MEMORY)
    with working(desk, fast(MEMORY), fast(UTILIZATION), fast(PROCESSES)):
        wait_until(lambda: desk.telemetry.times(UTILIZATION) > 5, "more readings")
        wait_until(lambda: desk.telemetry.times(PROCESSES) > 5, "more readings")
        assert desk.telemetry.times(MEMORY) == 1
        assert MEMORY not in desk.seen.rounds
        held.set()
        wait_until(lambda: desk.telemetry.times(MEMORY) > 5, "it again")


def test_a_pace_is_kept(desk: Desk) -> None:
    """A group of a long pace is read once, then waited for."""
    slow = Group(UTILIZATION, 3600.0, "")
    with working(desk, slow, fast(MEMORY)):
        wait_until(lambda: desk.telemetry.times(MEMORY) > 20, "many of the other")
        assert desk.telemetry.times(UTILIZATION) <= 2


def test_a_slow_group_that_is_switched_on_is_read_at_once(desk: Desk) -> None:
    """No thread sleeps through a change of the choice."""
    off = Flags(off=frozenset({FAULTS}))
    desk.sampler.choose(choose(off))
    with working(desk, Group(FAULTS, 3600.0, ""), fast(MEMORY)):
        wait_until(lambda: desk.telemetry.times(MEMORY) > 5, "the others")
        assert not desk.telemetry.times(FAULTS)
        desk.sampler.choose(choose(Flags()))
        wait_until(lambda: FAULTS in desk.seen.rounds, "its round")


def test_cards_that_come_later_are_read_at_once() -> None:
    """A slow group too: nobody waits its whole pace for a driver that was late."""
    desk = Desk()
    desk.telemetry.away = "not yet"
    with working(desk, Group(FAULTS, 3600.0, "")):
        wait_until(lambda: desk.seen.no_cards, "a look")
        desk.telemetry.away = ""
        wait_until(lambda: FAULTS in desk.seen.rounds, "its round")


def test_every_group_of_fields_has_a_thread() -> None:
    """And the processes; what follows from pods has none."""
    names = {group.name for group in groups_read()}
    assert names >= {MEMORY, PROCESSES, FAULTS}
    assert not names & {"allotment", "kubelet"}
