"""What a burst came to, from calls and metrics that are invented."""

from datetime import UTC, datetime, timedelta

from bench.burst import WAYS, Burst, report_bursts, sum_up_burst
from tests.controlplane.extender import USER
from tests.testbed.audit import Call

BEGAN = datetime(2001, 2, 3, tzinfo=UTC)
METRICS = {
    'vcuda_extender_binds_total{outcome="bound"}': 3.0,
    'vcuda_extender_binds_total{outcome="conflict"}': 1.0,
    'vcuda_extender_binds_created{outcome="bound"}': 9.0,
    'vcuda_extender_request_seconds_count{verb="bind"}': 4.0,
    'vcuda_extender_request_seconds_sum{verb="bind"}': 0.01,
    'vcuda_extender_request_seconds_count{verb="preempt"}': 0.0,
    'vcuda_extender_request_seconds_sum{verb="preempt"}': 0.0,
}


def call(after_s: float, status: int = 201, user: str = USER.name) -> Call:
    """A Binding, answered so long after the start."""
    at = BEGAN + timedelta(seconds=after_s)
    return Call(user, "create", "pods/binding", "default", "pod", status, at, {})


def test_from_the_first_binding_to_the_last() -> None:
    """Five in two seconds is two a second; a refused one is a write all the same."""
    calls = [call(after) for after in (1, 1.5, 2, 2.5, 3)]
    event = Call("sched", "create", "events", "default", "e", 201, BEGAN, {})
    read = Call(USER.name, "list", "pods", "", "", 200, BEGAN, {})
    calls += [call(9, 409), event, read]
    burst = sum_up_burst(calls, "sched", METRICS, {"etcd": 0.01}, 5)
    assert (burst.ours, burst.schedulers) == (6, 1)
    assert (burst.seconds, burst.pods_per_s, burst.failed) == (2.0, 2.0, 1)
    assert burst.outcomes == {"bound": 3, "conflict": 1}
    assert burst.verbs_ms == {"bind": 2.5}
    assert burst.cpu_ms == {"etcd": 2.0}


def test_the_middle_of_the_rounds() -> None:
    """Speeds are compared by their medians, and conflicts of all rounds."""

    def bursts(*speeds: float, ours: int) -> list[Burst]:
        outcomes = {"bound": 99, "conflict": 1} if ours else {}
        return [Burst(1, each, 0, ours, 100, outcomes, {}, {}) for each in speeds]

    bursts_by_way = {way.name: bursts(100, 110, 900, ours=0) for way in WAYS}
    bursts_by_way["ours"] = bursts(10, 99, 120, ours=100)
    bursts_by_way["go"] = bursts(90, 132, 900, ours=100)
    report = report_bursts(bursts_by_way, 100)
    assert report["ratio"]["go"] == 0.75
    assert report["ratio"]["bare"] == 0.9
    assert report["conflicts_percent"] == 1.0
    assert report["writes_per_pod"] == 1.0
    assert report["binds"] == {"bound": 297, "conflict": 3}
    assert "ours" not in report["ratio"]
