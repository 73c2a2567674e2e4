"""A kube-scheduler dies with its extender, and the pair that stood by takes over.

Pods arrive at a steady pace the whole time. What is told is the longest time in which
none of them was placed, by when a watch of the API server showed each with a node.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, pairwise

from bench.stage import FAST
from tests.controlplane.extender import Extender, extender
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import pod, post_pod
from tests.testbed.rest import Rest
from tests.testbed.scheduler import Scheduler
from tests.testbed.waiting import wait_until

SPACE = "takeover"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
LED = replace(FAST, leader_elect=True)
"""kube-scheduler's own times: the lease is 15 s, and tried for every 2 s."""
PER_S = 5.0
_BEFORE = _AFTER = 20
_LONGEST_S = 120.0


@dataclass(frozen=True, slots=True)
class Gap:
    """What a takeover cost, in seconds."""

    without_placement_s: float
    """From the last pod placed before to the first one after."""
    until_led_s: float
    """From the end until the lease had another holder, looked at every 50 ms."""


def longest_gap(times: Sequence[float], since: float) -> float:
    """Give the longest time between two placements, of those that end after."""
    return max(after - before for before, after in pairwise(times) if after > since)


@dataclass
class Pair:
    """kube-scheduler and its extender, as they run on one node."""

    plane: ControlPlane
    name: str
    extender: Extender
    scheduler: Scheduler

    @classmethod
    def start(cls, plane: ControlPlane, name: str) -> "Pair":
        ours = extender(plane, f"{name}-extender")
        ours.start(wait=False)
        ours.wait_ready()
        beside = plane.start_scheduler(name, extender_url=ours.url, settings=LED)
        # Its caches are filled before it leads.
        beside.wait_ready(lambda: beside.rest.get("/readyz")[0] == 200, _LONGEST_S)
        return cls(plane, name, ours, beside)

    def kill(self) -> None:
        """Take both away at once, as a node that loses power would."""
        self.scheduler.kill()
        self.extender.kill()

    def stop(self) -> None:
        """End both in order, as an upgrade would."""
        self.scheduler.stop()
        self.extender.__exit__(None, None, None)


@dataclass
class Traffic:
    """Pods that arrive, and when each got its node."""

    rest: Rest
    times: list[float] = field(default_factory=list)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Post pods and watch them while the ``with`` lasts."""
        version = self.rest.must("GET", PODS)["metadata"]["resourceVersion"]
        watch = self.rest.watch(PODS, resourceVersion=version)
        stop, seen = threading.Event(), set[str]()

        def follow() -> None:
            for event in watch:
                body = event["object"]
                if event["type"] != "MODIFIED" or not body["spec"].get("nodeName"):
                    continue
                if (name := body["metadata"]["name"]) not in seen:
                    seen.add(name)
                    self.times.append(time.monotonic())

        def post() -> None:
            for number in count():
                if stop.wait(1 / PER_S):
                    return
                body = pod(f"arrival-{time.monotonic_ns()}-{number}", SPACE, units=1)
                post_pod(self.rest, body)

        threads = [threading.Thread(target=each) for each in (follow, post)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            threads[1].join()
            watch.close()
            threads[0].join()

    def wait_for(self, more: int, what: str) -> None:
        """Wait until so many more are placed."""
        wanted = len(self.times) + more
        wait_until(
            lambda: len(self.times), what, _LONGEST_S, accept=lambda n: n >= wanted
        )


def holder(rest: Rest) -> str:
    """Say who leads; "" while nobody has yet."""
    status, answer = rest.get(LEASE)
    return str(answer["spec"].get("holderIdentity") or "") if status == 200 else ""


def takeovers(plane: ControlPlane, say: Callable[[str], None]) -> dict[str, Gap]:
    """Let the active pair die, then end the other in order."""
    plane.rest.must("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    traffic, gaps = Traffic(plane.rest), dict[str, Gap]()
    active = Pair.start(plane, "pair-a")
    wait_until(lambda: holder(plane.rest), "a leader")
    standby = Pair.start(plane, "pair-b")
    with traffic.flowing():
        gaps["killed"] = takeover(traffic, active.kill)
        say(f"killed: {gaps['killed']}")
        again = Pair.start(plane, "pair-a-again")
        gaps["ended in order"] = takeover(traffic, standby.stop)
        say(f"ended in order: {gaps['ended in order']}")
    again.stop()
    return gaps


def takeover(traffic: Traffic, end: Callable[[], None]) -> Gap:
    """End the active pair in the middle of the traffic."""
    traffic.wait_for(_BEFORE, "placements before")
    led_by = holder(traffic.rest)
    at = time.monotonic()
    ending = threading.Thread(target=end)
    ending.start()
    wait_until(
        lambda: holder(traffic.rest),
        "another leader",
        _LONGEST_S,
        accept=lambda now: now not in {"", led_by},
    )
    led_s = time.monotonic() - at
    ending.join()
    traffic.wait_for(_AFTER, "placements after")
    return Gap(round(longest_gap(traffic.times, at), 2), round(led_s, 2))
