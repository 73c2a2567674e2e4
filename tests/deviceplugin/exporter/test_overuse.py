"""Events about overuse, and evictions."""

from collections.abc import Iterator
from threading import Event, Thread

import pytest

from deviceplugin.exporter.overuse import REASON, OveruseMonitor
from deviceplugin.exporter.owners import CONFIG_MIRROR, Owner
from deviceplugin.exporter.run import Tenants
from deviceplugin.exporter.snapshot import Snapshot
from deviceplugin.exporter.snapshot_store import UsageBook
from deviceplugin.exporter.usage import OveruseTally
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import Forbidden, Unreachable
from tests.deviceplugin.exporter_data import AT, A, cid, held, processes, snapshot, use
from tests.deviceplugin.node_fixture import found_card
from tests.deviceplugin.overuse_fixture import OVER, OveruseFixture, Refusing
from tests.testbed.waiting import wait_until


def test_an_event_is_written_once_for_an_excess() -> None:
    """When it has lasted; another one for the next."""
    monitored = OveruseFixture("report")
    monitored.pod(held("a"))
    monitored.uses(0, a=OVER)
    assert monitored.events() == []
    for after_s in (60, 62, 300):
        monitored.uses(after_s, a=OVER)
    [(pod, reason, message)] = monitored.events()
    assert (pod, reason) == ("a", REASON)
    assert "uses 3000 MiB of card 0" in message
    assert "for 60 s; its share is 2048 MiB" in message
    monitored.uses(302, a=100)
    monitored.uses(304, a=OVER)
    monitored.uses(364, a=OVER)
    assert len(monitored.events()) == 2
    assert monitored.patrol.tally() == OveruseTally(reports=2)
    assert monitored.pods() == ["a"]


def test_a_step_of_the_clock_makes_no_excess() -> None:
    """NTP may set it an hour forward or back: a process that is new is over for 2 s."""
    for stepped_s in (3600.0, -3600.0):
        monitored = OveruseFixture("evict")
        monitored.pod(held("a"))
        monitored.uses(0, a=OVER)
        monitored.stepped_s = stepped_s
        monitored.uses(2, a=OVER)
        assert (monitored.events(), monitored.pods()) == ([], ["a"])
        monitored.uses(60, a=OVER)
        assert monitored.pods() == []


def test_a_round_that_is_looked_at_again_is_no_new_one() -> None:
    """Where reading hangs, nobody knows what is used meanwhile."""
    monitored = OveruseFixture("evict")
    monitored.pod(held("a"))
    monitored.uses(0, a=OVER)
    for after_s in range(2, 100, 2):
        monitored.seconds = float(after_s)
        monitored.patrol.step()
    assert (monitored.events(), monitored.pods()) == ([], ["a"])


def test_nobody_within_its_share_is_told_of() -> None:
    """Whatever its neighbour does."""
    monitored = OveruseFixture("evict")
    monitored.pod(held("a"))
    monitored.pod(held("b"))
    monitored.uses(0, a=OVER, b=2048)
    monitored.uses(60, a=OVER, b=2048)
    assert [pod for pod, _, _ in monitored.events()] == ["a"]
    assert monitored.pods() == ["b"]
    assert monitored.patrol.tally() == OveruseTally(reports=1, evictions=1)


def test_off_is_silent() -> None:
    """But the book is kept."""
    monitored = OveruseFixture("off")
    monitored.pod(held("a"))
    for after_s in (0, 60, 120):
        monitored.uses(after_s, a=OVER)
    assert (monitored.events(), monitored.pods()) == ([], ["a"])
    assert monitored.cluster.asked == 0


def test_a_refusal_holds_for_its_own_excess() -> None:
    """The next one is told of at once."""
    monitored = OveruseFixture("report", after_s=0)
    monitored.pod(held("a"))
    monitored.cluster.refusal = Unreachable("no connection")
    monitored.uses(0, a=OVER)
    monitored.cluster.refusal = None
    monitored.uses(2, a=OVER)
    assert monitored.events() == []
    monitored.uses(4, a=100)
    monitored.uses(6, a=OVER)
    assert len(monitored.events()) == 1


def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """And what was refused is done when the API server is back."""
    monitored = OveruseFixture("report")
    monitored.pod(held("a"))
    monitored.cluster.refusal = Unreachable("no connection")
    monitored.uses(0, a=OVER)
    for after_s in (60, 62, 95, 130):
        monitored.uses(after_s, a=OVER)
    assert monitored.cluster.asked == 3
    refused = [one for one in caplog.records if "refused" in one.message]
    assert len(refused) == 1
    assert monitored.patrol.tally() == OveruseTally()
    monitored.cluster.refusal = None
    monitored.uses(165, a=OVER)
    assert len(monitored.events()) == 1
    assert monitored.patrol.tally() == OveruseTally(reports=1)


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
    patrol = OveruseMonitor(book, stumbling.read, Refusing(), "report", 60)
    thread = Thread(target=patrol.run, args=(stop, 0.01))
    thread.start()
    wait_until(lambda: stumbling.reads >= 3, "a third look")
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert caplog.messages == ["the check for overuse failed"]


def test_two_excesses_of_a_pod_are_one_eviction() -> None:
    """Both containers are told of; the pod goes once, and is counted once."""
    monitored = OveruseFixture("evict")
    monitored.pod(held("a", containers={"x": (4, 0), "y": (4, 0)}))
    uid = monitored.uids["a"]
    owners = {1: Owner(uid, cid("a/x")), 2: Owner(uid, cid("a/y"))}
    for after_s in range(0, 70, 10):
        running = {A: [use(1, OVER), use(2, OVER)]}
        round_ = processes(running, owners, at=AT + after_s)
        monitored.now = snapshot(found_card(0), round_=round_)
        monitored.seconds = float(after_s)
        monitored.patrol.step()
    assert monitored.pods() == []
    assert monitored.patrol.tally() == OveruseTally(reports=2, evictions=1)
    # Two events and one eviction.
    assert monitored.cluster.asked == 3


def test_a_pod_is_evicted_once() -> None:
    """While it ends, it is left alone."""
    monitored = OveruseFixture("evict")
    monitored.pod(held("a"))
    for after_s in (0, 60, 62, 120):
        monitored.uses(after_s, a=OVER)
    assert monitored.pods() == []
    assert monitored.patrol.tally().evictions == 1
    # One event, one eviction: nothing was asked twice.
    assert monitored.cluster.asked == 2


def test_one_pods_eviction_is_no_others() -> None:
    """Each is evicted for its own excess, when that has lasted."""
    monitored = OveruseFixture("evict")
    monitored.pod(held("a"))
    monitored.pod(held("b"))
    monitored.uses(0, a=OVER, b=0)
    monitored.uses(30, a=OVER, b=OVER)
    monitored.uses(60, a=OVER, b=OVER)
    assert monitored.pods() == ["b"]
    monitored.uses(90, a=OVER, b=OVER)
    assert monitored.pods() == []


def test_a_pod_that_ends_already_is_not_evicted() -> None:
    """It is told of, and that is all."""
    monitored = OveruseFixture("evict")
    body = held("a")
    body["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    monitored.pod(body)
    monitored.uses(0, a=OVER)
    monitored.uses(60, a=OVER)
    assert (monitored.pods(), len(monitored.events())) == (["a"], 1)


def test_a_budget_holds_the_eviction_back() -> None:
    """It is asked again a while later, and the pod goes once the budget allows it."""
    monitored = OveruseFixture("evict")
    body = held("a")
    monitored.pod(body)
    monitored.cluster.patch(
        Kind.PODS, "default", "a", {"metadata": {"labels": {"app": "web"}}}
    )
    monitored.budget(0)
    monitored.uses(0, a=OVER)
    monitored.uses(60, a=OVER)
    assert (monitored.pods(), len(monitored.events())) == (["a"], 1)
    monitored.allow(1)
    monitored.uses(62, a=OVER)
    assert monitored.pods() == ["a"]
    monitored.uses(95, a=OVER)
    assert monitored.pods() == []
    assert monitored.patrol.tally() == OveruseTally(reports=1, evictions=1)


def test_a_pod_that_came_back_to_its_share_is_spared() -> None:
    """Even where its eviction was held back before."""
    monitored = OveruseFixture("evict")
    monitored.pod(held("a"))
    monitored.cluster.refusal = Forbidden("no right to evict")
    monitored.uses(0, a=OVER)
    monitored.uses(60, a=OVER)
    monitored.cluster.refusal = None
    monitored.uses(95, a=2048)
    assert (monitored.pods(), monitored.events()) == (["a"], [])


def test_a_pod_made_anew_under_the_old_name_is_not_evicted() -> None:
    """Its UID is another; the watch has not told of it yet."""
    monitored = OveruseFixture("evict")
    monitored.pod(held("a"))
    monitored.uses(0, a=OVER)
    monitored.cluster.delete(Kind.PODS, "default", "a", grace_period_s=0)
    new = held("a")
    del new["metadata"]["uid"], new["metadata"]["resourceVersion"]
    monitored.cluster.create(Kind.PODS, new)
    monitored.uses(60, a=OVER)
    monitored.uses(120, a=OVER)
    assert monitored.pods() == ["a"]
    assert monitored.patrol.tally().evictions == 0


def test_a_static_pod_is_told_of_and_stays() -> None:
    """kubelet would start it again at once."""
    monitored = OveruseFixture("evict")
    body = held("a")
    body["metadata"]["annotations"][CONFIG_MIRROR] = "x"
    monitored.pod(body)
    monitored.uses(0, a=OVER)
    monitored.uses(60, a=OVER)
    assert (monitored.pods(), len(monitored.events())) == (["a"], 1)


def test_a_pod_that_never_asked_is_told_of_and_stays() -> None:
    """It may be the node's own."""
    monitored = OveruseFixture("evict")
    body = held("a", 8)
    body["metadata"]["annotations"] = {"some": "thing"}
    for one in body["spec"]["containers"]:
        one.pop("resources")
    monitored.pod(body)
    monitored.uses(0, a=300)
    monitored.uses(60, a=300)
    [(_, _, message)] = monitored.events()
    assert "without a request" in message
    assert monitored.pods() == ["a"]


def test_a_pod_that_obeys_its_share_is_never_evicted() -> None:
    """All of its share is its own, and the driver's context comes on top."""
    monitored = OveruseFixture("evict")
    monitored.pod(held("a"))
    monitored.uses(0, a=2048 + 480)
    monitored.uses(300, a=2048 + 480)
    assert (monitored.events(), monitored.pods()) == ([], ["a"])
