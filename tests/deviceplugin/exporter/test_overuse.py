"""The watchdog at work: an event for each excess, and what is no excess."""

from collections.abc import Iterator
from threading import Event, Thread

import pytest

from deviceplugin.exporter.overuse import REASON, OveruseMonitor
from deviceplugin.exporter.run import Tenants
from deviceplugin.exporter.snapshot import Snapshot
from deviceplugin.exporter.snapshot_store import UsageBook
from deviceplugin.exporter.usage import OveruseTally
from gpushare.kube.errors import Unreachable
from tests.deviceplugin.beat import OVER, Beat
from tests.deviceplugin.scene import (
    held,
    processes,
    snapshot,
)
from tests.testbed.waiting import wait_until


def test_an_event_is_written_once_for_an_excess() -> None:
    """When it has lasted; another one for the next."""
    beat = Beat("report")
    beat.pod(held("a"))
    beat.uses(0, a=OVER)
    assert beat.events() == []
    for after_s in (60, 62, 300):
        beat.uses(after_s, a=OVER)
    [(pod, reason, message)] = beat.events()
    assert (pod, reason) == ("a", REASON)
    assert "uses 3000 MiB of card 0" in message
    assert "for 60 s; its share is 2048 MiB" in message
    beat.uses(302, a=100)
    beat.uses(304, a=OVER)
    beat.uses(364, a=OVER)
    assert len(beat.events()) == 2
    assert beat.patrol.tally() == OveruseTally(reports=2)
    assert beat.pods() == ["a"]


def test_a_step_of_the_clock_makes_no_excess() -> None:
    """NTP may set it an hour forward or back: a process that is new is over for 2 s."""
    for stepped_s in (3600.0, -3600.0):
        beat = Beat("evict")
        beat.pod(held("a"))
        beat.uses(0, a=OVER)
        beat.stepped_s = stepped_s
        beat.uses(2, a=OVER)
        assert (beat.events(), beat.pods()) == ([], ["a"])
        beat.uses(60, a=OVER)
        assert beat.pods() == []


def test_a_round_that_is_looked_at_again_is_no_new_one() -> None:
    """Where reading hangs, nobody knows what is used meanwhile."""
    beat = Beat("evict")
    beat.pod(held("a"))
    beat.uses(0, a=OVER)
    for after_s in range(2, 100, 2):
        beat.seconds = float(after_s)
        beat.patrol.step()
    assert (beat.events(), beat.pods()) == ([], ["a"])


def test_nobody_within_its_share_is_told_of() -> None:
    """Whatever its neighbour does."""
    beat = Beat("evict")
    beat.pod(held("a"))
    beat.pod(held("b"))
    beat.uses(0, a=OVER, b=2048)
    beat.uses(60, a=OVER, b=2048)
    assert [pod for pod, _, _ in beat.events()] == ["a"]
    assert beat.pods() == ["b"]
    assert beat.patrol.tally() == OveruseTally(reports=1, evictions=1)


def test_off_is_silent() -> None:
    """But the book is kept."""
    beat = Beat("off")
    beat.pod(held("a"))
    for after_s in (0, 60, 120):
        beat.uses(after_s, a=OVER)
    assert (beat.events(), beat.pods()) == ([], ["a"])
    assert beat.cluster.asked == 0


def test_a_refusal_holds_for_its_own_excess() -> None:
    """The next one is told of at once."""
    beat = Beat("report", after_s=0)
    beat.pod(held("a"))
    beat.cluster.refusal = Unreachable("no connection")
    beat.uses(0, a=OVER)
    beat.cluster.refusal = None
    beat.uses(2, a=OVER)
    assert beat.events() == []
    beat.uses(4, a=100)
    beat.uses(6, a=OVER)
    assert len(beat.events()) == 1


def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """And what was refused is done when the API server is back."""
    beat = Beat("report")
    beat.pod(held("a"))
    beat.cluster.refusal = Unreachable("no connection")
    beat.uses(0, a=OVER)
    for after_s in (60, 62, 95, 130):
        beat.uses(after_s, a=OVER)
    assert beat.cluster.asked == 3
    refused = [one for one in caplog.records if "refused" in one.message]
    assert len(refused) == 1
    assert beat.patrol.tally() == OveruseTally()
    beat.cluster.refusal = None
    beat.uses(165, a=OVER)
    assert len(beat.events()) == 1
    assert beat.patrol.tally() == OveruseTally(reports=1)


class Stumbling:
    """Snapshots that cannot be read once."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> Snapshot:
        self.reads += 1
        if self.reads == 1:
            raise RuntimeError("a bug")
        return snapshot(round_=processes({}))


@pytest.fixture
def stop() -> Iterator[Event]:
    event = Event()
    yield event
    event.set()


def test_a_bug_ends_no_patrol(stop: Event, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the next look comes."""
    stumbling = Stumbling()
    book = UsageBook(stumbling.read, Tenants().current)
    patrol = OveruseMonitor(book, stumbling.read, None, "report", 60)
    thread = Thread(target=patrol.run, args=(stop, 0.01))
    thread.start()
    wait_until(lambda: stumbling.reads >= 3, "a third look")
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert caplog.messages == ["the check for overuse failed"]
