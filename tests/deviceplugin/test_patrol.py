"""The watchdog at work: events, evictions on request, each once for an excess."""

from collections.abc import Iterator, Mapping
from threading import Event, Thread
from typing import Any

import pytest

from deviceplugin.attribution import Owner
from deviceplugin.patrol import REASON, Patrol
from deviceplugin.snapshot import Snapshot
from deviceplugin.tenancy import CONFIG_MIRROR
from deviceplugin.tenants import Tenants
from deviceplugin.usagebook import UsageBook
from deviceplugin.watchdog import Mode, PatrolTally
from gpushare.kube.cluster import Json, Kind, Target
from gpushare.kube.embedded import Embedded
from gpushare.kube.errors import Forbidden, Unreachable
from tests.builders import page
from tests.deviceplugin.house import found_card
from tests.deviceplugin.scene import (
    AT,
    A,
    cid,
    held,
    processes,
    snapshot,
    use,
)
from tests.testbed.waiting import wait_until


class Refusing(Embedded):
    """An API server that takes no events or evictions while it is told to refuse."""

    refusal: Exception | None = None
    asked = 0

    def event(self, pod: Target, **how: Any) -> None:
        self._refuse()
        super().event(pod, **how)

    def evict(self, pod: Target) -> None:
        self._refuse()
        super().evict(pod)

    def _refuse(self) -> None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal


class Beat:
    """A patrol, the pods that it watches, and what they use."""

    def __init__(self, mode: Mode, after_s: float = 60) -> None:
        self.cluster = Refusing()
        self.tenants = Tenants()
        self.now = snapshot(found_card(0), round_=processes({}))
        self.seconds = 0.0
        self.stepped_s = 0.0
        book = UsageBook(self.read, self.tenants.current)
        self.patrol = Patrol(
            book, self.read, self.cluster, mode, after_s, clock=lambda: self.seconds
        )
        self.uids: dict[str, str] = {}
        self.bodies: list[Json] = []

    def read(self) -> Snapshot:
        return self.now

    def pod(self, body: Json) -> None:
        """Let it run: in the cluster and in the watch."""
        name = body["metadata"]["name"]
        made = self.cluster.create(
            Kind.PODS, {**body, "metadata": {"name": name, "namespace": "default"}}
        )
        uid = made["metadata"]["uid"]
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self.cluster.patch(
            Kind.PODS, "default", name, {"status": status}, subresource="status"
        )
        notes = {
            key: text.replace(f"uid-{name}", uid)
            for key, text in body["metadata"]["annotations"].items()
        }
        body["metadata"] |= {"uid": uid, "annotations": notes}
        self.uids[name] = uid
        self.bodies.append(body)
        self.tenants.replace(iter([page(*self.bodies)]))

    def uses(self, after_s: float, **mib: float) -> None:
        """Until so many seconds after the beginning these pods use so much.

        There is a round, and a look at it, every 10 s at least, and one at the end.
        """
        while after_s - self.seconds > 10:
            self._round(self.seconds + 10, mib)
        self._round(after_s, mib)

    def _round(self, after_s: float, mib: Mapping[str, float]) -> None:
        owners = {
            pid: Owner(self.uids[name], cid(f"{name}/main"))
            for pid, name in enumerate(mib)
        }
        running = [use(pid, size) for pid, size in enumerate(mib.values())]
        at = AT + after_s + self.stepped_s
        round_ = processes({A: running}, owners, at=at)
        self.now = snapshot(found_card(0), round_=round_)
        self.seconds = after_s
        self.patrol.step()

    def events(self) -> list[tuple[str, str, str]]:
        items = self.cluster.list_page(Kind.EVENTS, limit=100).items
        return [
            (one["involvedObject"]["name"], one["reason"], one["message"])
            for one in items
        ]

    def pods(self) -> list[str]:
        items = self.cluster.list_page(Kind.PODS, limit=100).items
        return [
            one["metadata"]["name"]
            for one in items
            if "deletionTimestamp" not in one["metadata"]
        ]

    def budget(self, allowed: int) -> None:
        """Cover all pods with the label ``app: web``."""
        metadata = {"name": "web", "namespace": "default"}
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
        self.cluster.create(Kind.BUDGETS, {"metadata": metadata, "spec": spec})
        self.allow(allowed)

    def allow(self, allowed: int) -> None:
        status = {"disruptionsAllowed": allowed}
        self.cluster.patch(
            Kind.BUDGETS, "default", "web", {"status": status}, subresource="status"
        )


OVER = 3000


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
    assert beat.patrol.tally() == PatrolTally(reports=2)
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


def test_two_excesses_of_a_pod_are_one_eviction() -> None:
    """Both containers are told of; the pod goes once, and is counted once."""
    beat = Beat("evict")
    beat.pod(held("a", containers={"x": (4, 0), "y": (4, 0)}))
    uid = beat.uids["a"]
    owners = {1: Owner(uid, cid("a/x")), 2: Owner(uid, cid("a/y"))}
    for after_s in range(0, 70, 10):
        running = {A: [use(1, OVER), use(2, OVER)]}
        round_ = processes(running, owners, at=AT + after_s)
        beat.now = snapshot(found_card(0), round_=round_)
        beat.seconds = float(after_s)
        beat.patrol.step()
    assert beat.pods() == []
    assert beat.patrol.tally() == PatrolTally(reports=2, evictions=1)
    # Two events and one eviction.
    assert beat.cluster.asked == 3


def test_nobody_within_its_share_is_told_of() -> None:
    """Whatever its neighbour does."""
    beat = Beat("evict")
    beat.pod(held("a"))
    beat.pod(held("b"))
    beat.uses(0, a=OVER, b=2048)
    beat.uses(60, a=OVER, b=2048)
    assert [pod for pod, _, _ in beat.events()] == ["a"]
    assert beat.pods() == ["b"]
    assert beat.patrol.tally() == PatrolTally(reports=1, evictions=1)


def test_off_is_silent() -> None:
    """But the book is kept."""
    beat = Beat("off")
    beat.pod(held("a"))
    for after_s in (0, 60, 120):
        beat.uses(after_s, a=OVER)
    assert (beat.events(), beat.pods()) == ([], ["a"])
    assert beat.cluster.asked == 0


def test_a_pod_is_evicted_once() -> None:
    """While it ends, it is left alone."""
    beat = Beat("evict")
    beat.pod(held("a"))
    for after_s in (0, 60, 62, 120):
        beat.uses(after_s, a=OVER)
    assert beat.pods() == []
    assert beat.patrol.tally().evictions == 1
    # One event, one eviction: nothing was asked twice.
    assert beat.cluster.asked == 2


def test_one_pods_eviction_is_no_others() -> None:
    """Each is evicted for its own excess, when that has lasted."""
    beat = Beat("evict")
    beat.pod(held("a"))
    beat.pod(held("b"))
    beat.uses(0, a=OVER, b=0)
    beat.uses(30, a=OVER, b=OVER)
    beat.uses(60, a=OVER, b=OVER)
    assert beat.pods() == ["b"]
    beat.uses(90, a=OVER, b=OVER)
    assert beat.pods() == []


def test_a_pod_that_ends_already_is_not_evicted() -> None:
    """It is told of, and that is all."""
    beat = Beat("evict")
    body = held("a")
    body["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    beat.pod(body)
    beat.uses(0, a=OVER)
    beat.uses(60, a=OVER)
    assert (beat.pods(), len(beat.events())) == (["a"], 1)


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


def test_a_budget_holds_the_eviction_back() -> None:
    """It is asked again a while later, and the pod goes once the budget allows it."""
    beat = Beat("evict")
    body = held("a")
    beat.pod(body)
    beat.cluster.patch(
        Kind.PODS, "default", "a", {"metadata": {"labels": {"app": "web"}}}
    )
    beat.budget(0)
    beat.uses(0, a=OVER)
    beat.uses(60, a=OVER)
    assert (beat.pods(), len(beat.events())) == (["a"], 1)
    beat.allow(1)
    beat.uses(62, a=OVER)
    assert beat.pods() == ["a"]
    beat.uses(95, a=OVER)
    assert beat.pods() == []
    assert beat.patrol.tally() == PatrolTally(reports=1, evictions=1)


def test_a_pod_that_came_back_to_its_share_is_spared() -> None:
    """Even where its eviction was held back before."""
    beat = Beat("evict")
    beat.pod(held("a"))
    beat.cluster.refusal = Forbidden("no right to evict")
    beat.uses(0, a=OVER)
    beat.uses(60, a=OVER)
    beat.cluster.refusal = None
    beat.uses(95, a=2048)
    assert (beat.pods(), beat.events()) == (["a"], [])


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
    assert beat.patrol.tally() == PatrolTally()
    beat.cluster.refusal = None
    beat.uses(165, a=OVER)
    assert len(beat.events()) == 1
    assert beat.patrol.tally() == PatrolTally(reports=1)


def test_a_pod_made_anew_under_the_old_name_is_not_evicted() -> None:
    """Its UID is another; the watch has not told of it yet."""
    beat = Beat("evict")
    beat.pod(held("a"))
    beat.uses(0, a=OVER)
    beat.cluster.delete(Kind.PODS, "default", "a", grace_period_s=0)
    new = held("a")
    del new["metadata"]["uid"], new["metadata"]["resourceVersion"]
    beat.cluster.create(Kind.PODS, new)
    beat.uses(60, a=OVER)
    beat.uses(120, a=OVER)
    assert beat.pods() == ["a"]
    assert beat.patrol.tally().evictions == 0


def test_a_static_pod_is_told_of_and_stays() -> None:
    """kubelet would start it again at once."""
    beat = Beat("evict")
    body = held("a")
    body["metadata"]["annotations"][CONFIG_MIRROR] = "x"
    beat.pod(body)
    beat.uses(0, a=OVER)
    beat.uses(60, a=OVER)
    assert (beat.pods(), len(beat.events())) == (["a"], 1)


def test_a_pod_that_never_asked_is_told_of_and_stays() -> None:
    """It may be the node's own."""
    beat = Beat("evict")
    body = held("a", 8)
    body["metadata"]["annotations"] = {"some": "thing"}
    for one in body["spec"]["containers"]:
        one.pop("resources")
    beat.pod(body)
    beat.uses(0, a=300)
    beat.uses(60, a=300)
    [(_, _, message)] = beat.events()
    assert "without having asked" in message
    assert beat.pods() == ["a"]


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
    patrol = Patrol(book, stumbling.read, None, "report", 60)
    thread = Thread(target=patrol.run, args=(stop, 0.01))
    thread.start()
    wait_until(lambda: stumbling.reads >= 3, "a third look")
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert caplog.messages == ["the watchdog stumbled"]
