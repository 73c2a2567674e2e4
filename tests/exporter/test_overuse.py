"""Events about overuse, and evictions."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from exporter.held import of_container
from exporter.overuse import NOT_HELD, REASON, OveruseMonitor
from exporter.owners.owner_pods import CONFIG_MIRROR, Owner
from exporter.run import WatchedPods
from exporter.snapshot import TelemetrySnapshot
from exporter.usage import Mode, OveruseTally, UsageBook
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.kube.errors import Forbidden, Unreachable
from gpushare.kubelet.limit_files import InnerPid
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import page
from tests.deviceplugin.node_fixture import found_card
from tests.exporter.exporter_data import (
    AT,
    NO_LIMITS,
    A,
    cid,
    held,
    limited,
    processes,
    snapshot,
    use,
)

Log = pytest.LogCaptureFixture
GONE = Unreachable("no connection")
OVER = 3000


class Refusing(Embedded):
    """An API server that takes no events or evictions while it is told to refuse."""

    refusal: Exception | None = None
    asked = 0

    def event(self, pod: PodTarget, **how: Any) -> None:
        self._refuse()
        super().event(pod, **how)

    def evict(self, pod: PodTarget) -> None:
        self._refuse()
        super().evict(pod)

    def _refuse(self) -> None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal


class OveruseFixture:
    """A patrol, the pods that it watches, and what they use."""

    def __init__(self, mode: Mode, *pods: Json, after_s: float = 60) -> None:
        self.cluster = Refusing()
        self.watched = WatchedPods()
        self.now = snapshot(found_card(0), round_=processes({}))
        self.limits = NO_LIMITS
        self.seconds = 0.0
        self.stepped_s = 0.0
        book = UsageBook(lambda: self.now, self.watched.current)
        self.patrol = OveruseMonitor(
            book,
            lambda: self.now,
            self.cluster,
            mode,
            after_s,
            clock=lambda: self.seconds,
        )
        self.uids: dict[str, str] = {}
        self.watched.replace(iter([page(*map(self._created, pods))]))

    def _created(self, pod: Json) -> Json:
        """The pod as the cluster has it, under a UID of its own."""
        body, name = deepcopy(pod), pod["metadata"]["name"]
        metadata = {"name": name, "namespace": "default"}
        made = self.cluster.create(Kind.PODS, {**body, "metadata": metadata})
        uid = self.uids[name] = made["metadata"]["uid"]
        notes = {
            key: text.replace(f"uid-{name}", uid)
            for key, text in body["metadata"]["annotations"].items()
        }
        body["metadata"] |= {"uid": uid, "annotations": notes}
        return body

    def uses(self, after_s: float, **mib: float) -> None:
        """Until so many seconds after the beginning these pods use so much.

        There is a round, and a look at it, every 10 s at least, and one at the end.
        """
        while after_s - self.seconds > 10:
            self._round(self.seconds + 10, mib)
        self._round(after_s, mib)

    def _round(self, after_s: float, mib: Mapping[str, float]) -> None:
        main = {pid: (name, "main") for pid, name in enumerate(mib)}
        self.looks(after_s, main, list(mib.values()))

    def looks(
        self, after_s: float, names: Mapping[int, tuple[str, str]], mib: list[float]
    ) -> None:
        """Look at a round of processes: of which container each is, by pid."""
        owners = {
            pid: Owner(self.uids[pod], cid(f"{pod}/{name}"))
            for pid, (pod, name) in names.items()
        }
        running = [use(pid, size) for pid, size in zip(names, mib, strict=True)]
        at = AT + after_s + self.stepped_s
        round_ = processes({A: running}, owners, at=at, limits=self.limits)
        self.now = snapshot(found_card(0), round_=round_)
        self.seconds = after_s
        self.patrol.step()

    def events(self) -> list[tuple[str, str, str]]:
        items = self.cluster.list_page(Kind.EVENTS, limit=100).items
        return [
            (event["involvedObject"]["name"], event["reason"], event["message"])
            for event in items
        ]

    def pods(self) -> list[str]:
        items = [
            pod["metadata"] for pod in self.cluster.list_page(Kind.PODS, limit=9).items
        ]
        return [pod["name"] for pod in items if "deletionTimestamp" not in pod]

    def outcome(self) -> tuple[list[str], list[str]]:
        """The pods that are left, and those that were told of."""
        return self.pods(), [pod for pod, _, _ in self.events()]


def test_an_event_is_written_once_for_an_excess() -> None:
    monitored = OveruseFixture("report", held("a"))
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


@pytest.mark.parametrize("stepped_s", [3600.0, -3600.0])
def test_a_step_of_the_clock_makes_no_excess(stepped_s: float) -> None:
    """NTP may set it an hour forward or back: a process that is new is over for 2 s."""
    monitored = OveruseFixture("evict", held("a"))
    monitored.uses(0, a=OVER)
    monitored.stepped_s = stepped_s
    monitored.uses(2, a=OVER)
    assert monitored.outcome() == (["a"], [])
    monitored.uses(60, a=OVER)
    assert monitored.pods() == []


def test_a_round_that_is_looked_at_again_is_no_new_one() -> None:
    """Where reading hangs, nobody knows what is used meanwhile."""
    monitored = OveruseFixture("evict", held("a"))
    monitored.uses(0, a=OVER)
    for after_s in range(2, 100, 2):
        monitored.seconds = float(after_s)
        monitored.patrol.step()
    assert monitored.outcome() == (["a"], [])


def counts(monitored: OveruseFixture, mib: int) -> None:
    """The preload library counts so much of the process; NVML tells more."""
    inside = InnerPid(5, 1)
    made = limited("a", {inside: mib}, {0: inside})
    [limit] = made.containers.values()
    key = of_container(monitored.uids["a"], "main")
    monitored.limits = replace(made, containers={key: limit})


def test_an_event_is_written_once_for_a_container_that_is_not_held() -> None:
    """It may be within its share, so it is never evicted. Unknown ends nothing."""
    monitored = OveruseFixture("evict", held("a"))
    counts(monitored, 10)
    monitored.uses(58, a=1500)
    assert monitored.events() == []
    monitored.uses(120, a=1500)
    [(pod, reason, message)] = monitored.events()
    assert (pod, reason) == ("a", NOT_HELD)
    assert "container main is not held on card 0 (" in message
    assert "its process 0 holds 1500 MiB, and the preload library counts 10" in message
    monitored.limits = NO_LIMITS
    monitored.uses(130, a=1500)
    counts(monitored, 10)
    monitored.uses(200, a=1500)
    assert len(monitored.events()) == 1
    counts(monitored, 1500)
    monitored.uses(202, a=1500)
    counts(monitored, 10)
    monitored.uses(280, a=1500)
    assert len(monitored.events()) == 2
    assert monitored.patrol.tally() == OveruseTally()
    assert monitored.pods() == ["a"]


def test_both_cases_of_a_container_are_told_of() -> None:
    monitored = OveruseFixture("report", held("a"))
    counts(monitored, 10)
    monitored.uses(70, a=OVER)
    assert sorted(reason for _, reason, _ in monitored.events()) == [NOT_HELD, REASON]
    assert monitored.patrol.tally() == OveruseTally(reports=1)


def test_a_tier_of_which_nothing_is_seen_is_logged_once(caplog: Log) -> None:
    """The folder is not mounted, as under an older manifest."""
    body = held("a")
    body["metadata"]["annotations"][names.ISOLATION] = "preload"
    monitored = OveruseFixture("report", body)
    monitored.patrol.step()
    assert caplog.messages == []
    monitored.uses(30, a=1500)
    assert caplog.messages == ["it is not known whether containers are held"]
    counts(monitored, 1500)
    monitored.uses(40, a=1500)
    monitored.limits = NO_LIMITS
    monitored.uses(50, a=1500)
    assert len(caplog.messages) == 2


def ending() -> Json:
    body = held("a")
    body["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    return body


def static() -> Json:
    body = held("a")
    body["metadata"]["annotations"][CONFIG_MIRROR] = "x"
    return body


def never_asked() -> Json:
    body = held("a")
    body["metadata"]["annotations"] = {"some": "thing"}
    for container in body["spec"]["containers"]:
        container.pop("resources")
    return body


@pytest.mark.parametrize(
    ("mode", "body", "mib", "told"),
    [
        ("off", held("a"), OVER, []),
        ("evict", held("a"), 2048 + 480, []),
        ("evict", ending(), OVER, ["a"]),
        ("evict", static(), OVER, ["a"]),
        ("evict", never_asked(), 300, ["a"]),
        ("evict", held("a", 0, 50), 4000, ["a"]),
    ],
    ids=["off", "obeys", "ends already", "static", "never asked", "cores alone"],
)
def test_who_stays(mode: Mode, body: Json, mib: float, told: list[str]) -> None:
    """kubelet would restart a static pod; one that never asked may be a daemon."""
    monitored = OveruseFixture(mode, body)
    for after_s in (0, 60, 120, 300):
        monitored.uses(after_s, a=mib)
    assert monitored.outcome() == (["a"], told)
    assert monitored.cluster.asked == len(told)
    unasked = "without a request" in str(monitored.events())
    assert unasked == (body["metadata"]["annotations"].keys() == {"some"})


def test_a_refusal_holds_for_its_own_excess() -> None:
    monitored = OveruseFixture("report", held("a"), after_s=0)
    monitored.cluster.refusal = GONE
    monitored.uses(0, a=OVER)
    monitored.cluster.refusal = None
    for after_s, mib, told in ((2, OVER, 0), (4, 100, 0), (6, OVER, 1)):
        monitored.uses(after_s, a=mib)
        assert len(monitored.events()) == told


def test_a_refusal_is_logged_once(caplog: Log) -> None:
    """And what was refused is done when the API server is back."""
    monitored = OveruseFixture("report", held("a"))
    monitored.cluster.refusal = GONE
    for after_s in (0, 60, 62, 95, 130):
        monitored.uses(after_s, a=OVER)
    assert monitored.cluster.asked == 3
    assert len([message for message in caplog.messages if "refused" in message]) == 1
    assert monitored.patrol.tally() == OveruseTally()
    monitored.cluster.refusal = None
    monitored.uses(165, a=OVER)
    assert len(monitored.events()) == 1
    assert monitored.patrol.tally() == OveruseTally(reports=1)


def test_a_bug_ends_no_patrol(caplog: Log) -> None:
    """It is logged, and the next look comes."""
    reads, stop = [RuntimeError("a bug"), None, None], Event()

    def read() -> TelemetrySnapshot:
        if error := reads.pop(0):
            raise error
        if not reads:
            stop.set()
        return snapshot(round_=processes({}))

    book = UsageBook(read, WatchedPods().current)
    OveruseMonitor(book, read, Refusing(), "report", 60).run(stop, 0.001)
    assert caplog.messages == ["the check for overuse failed"]


def test_two_excesses_of_a_pod_are_one_eviction() -> None:
    body = held("a", containers={"x": (4, 0), "y": (4, 0)})
    monitored = OveruseFixture("evict", body)
    for after_s in range(0, 70, 10):
        monitored.looks(after_s, {1: ("a", "x"), 2: ("a", "y")}, [OVER, OVER])
    assert monitored.pods() == []
    assert monitored.patrol.tally() == OveruseTally(reports=2, evictions=1)
    # Two events and one eviction.
    assert monitored.cluster.asked == 3


def test_each_pod_is_evicted_once_for_its_own_excess() -> None:
    monitored = OveruseFixture("evict", held("a"), held("b"), held("c"))
    monitored.uses(0, a=OVER, b=0, c=2048)
    monitored.uses(30, a=OVER, b=OVER, c=2048)
    monitored.uses(60, a=OVER, b=OVER, c=2048)
    assert monitored.outcome() == (["b", "c"], ["a"])
    monitored.uses(90, a=OVER, b=OVER, c=2048)
    monitored.uses(150, a=OVER, b=OVER, c=2048)
    assert monitored.outcome() == (["c"], ["a", "b"])
    assert monitored.patrol.tally() == OveruseTally(reports=2, evictions=2)
    # Two events, two evictions: nothing was asked twice.
    assert monitored.cluster.asked == 4


def came_back(monitored: OveruseFixture) -> None:
    monitored.cluster.refusal = Forbidden("no right to evict")
    monitored.uses(60, a=OVER)
    monitored.cluster.refusal = None
    monitored.uses(95, a=2048)
    assert monitored.events() == []


def made_anew(monitored: OveruseFixture) -> None:
    monitored.cluster.delete(Kind.PODS, "default", "a", grace_period_s=0)
    new = held("a")
    del new["metadata"]["uid"], new["metadata"]["resourceVersion"]
    monitored.cluster.create(Kind.PODS, new)
    monitored.uses(60, a=OVER)
    monitored.uses(120, a=OVER)


@pytest.mark.parametrize("change", [came_back, made_anew])
def test_who_is_spared(change: Callable[[OveruseFixture], None]) -> None:
    """One within its share again, and another one of the old name, by its UID."""
    monitored = OveruseFixture("evict", held("a"))
    monitored.uses(0, a=OVER)
    change(monitored)
    assert monitored.pods() == ["a"]
    assert monitored.patrol.tally().evictions == 0
