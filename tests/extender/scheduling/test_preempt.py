"""preempt: which pods of which nodes are to be evicted, and what budgets say."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from extender.scheduling.bind import BindOutcome
from extender.scheduling.wire import PreemptionArgs
from gpushare.domain.eviction.preemption import Victims
from gpushare.domain.model import NodeName, PodUID, Reason, Refusal
from gpushare.kube import codec
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.kube.errors import Forbidden, Unavailable
from tests.builders import bound_json, event, placement, pod_json
from tests.extender.extender_fixture import ExtenderFixture, Fault

N = NodeName("n")
CORE = Refusal(Reason.CORE)


def preemption(pod: Json, **victims: tuple[str, ...]) -> PreemptionArgs:
    proposals = {
        NodeName(name): Victims(tuple(PodUID(uid) for uid in uids))
        for name, uids in victims.items()
    }
    return PreemptionArgs(
        codec.read_pod_ref(pod),
        codec.read_pod_request(pod, codec.read_pod_ref(pod)),
        proposals,
    )


def budget(app: str, allowed: int) -> Json:
    return {
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed},
    }


def forbidden(_kind: Kind) -> None:
    raise Forbidden("no right to list")


@pytest.mark.parametrize("budgets", ["kept", "forbidden", "malformed"])
def test_preempt_counts_budgets(budgets: str, caplog: pytest.LogCaptureFixture) -> None:
    """A pod without a budget is taken; nodes where no victim helps are left out.

    If budgets cannot be read, victims are chosen as if there were none. Those named
    count as leaving at once, so that the first one's room is kept.
    """
    extender = ExtenderFixture(n=(20,))
    uids = {}
    for name in ("a", "b"):
        pod = extender.create(name, units=10, labels={"app": name})
        uids[name] = PodUID(pod["metadata"]["uid"])
        extender.bind(pod)
        extender.see(name)
    selector = 1 if budgets == "malformed" else {"matchLabels": {"app": "a"}}
    body = {
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": 0},
    }
    extender.cluster.create(Kind.BUDGETS, body)
    if budgets == "forbidden":
        extender.cluster.on_list = forbidden
    huge = pod_json("huge", units=21, priority=9)
    assert extender.verbs.preempt(preemption(huge, n=(uids["a"],))) == {}
    high = pod_json("high", units=10, priority=9)
    kept = budgets == "kept"
    proposed, last = (("x",), "b") if kept else ((uids["a"],), "a")
    chosen = extender.verbs.preempt(preemption(high, n=proposed, unknown=("u",)))
    assert chosen == {N: Victims(("x", uids["b"]) if kept else (uids["a"],))}
    assert [one.pod.uid for one in extender.pods.leaving(N)] == [uids[last]]
    told = "disruption budgets not read" in caplog.messages
    assert told is not kept


@pytest.mark.parametrize(("label", "violations"), [("web", 1), ("other", 0)])
def test_preempt_counts_a_budget_of_victims_with_and_without_cards(
    label: str, violations: int
) -> None:
    """It allows either eviction, not both; kube-scheduler proposed only the one."""
    extender = ExtenderFixture(n=(20,))
    extender.bind(extender.create("low", units=20, labels={"app": "web"}))
    extender.see("low")
    hog = extender.create("hog", labels={"app": label})["metadata"]["uid"]
    extender.cluster.bind(PodTarget("default", "hog", hog), "n", {})
    extender.see("hog")
    extender.cluster.create(Kind.BUDGETS, budget("web", allowed=1))
    high = pod_json("high", units=10, priority=9)
    (chosen,) = extender.verbs.preempt(preemption(high, n=(hog,))).values()
    assert set(chosen.uids) == {hog, extender.cluster.pod("low")["metadata"]["uid"]}
    assert chosen.budget_violations == violations


@pytest.mark.parametrize(("takes_s", "lists"), [(0, 10), (1.5, 2)])
@pytest.mark.parametrize("fails", [False, True])
def test_budgets_count_also_if_victims_without_cards_are_read_late_or_never(
    takes_s: float, lists: int, fails: bool
) -> None:
    """kube-scheduler gives preempt 10 s, and a busy API server answers late."""
    asked_for = []

    def on_list(kind: Kind) -> None:
        if kind is Kind.PODS:
            asked_for.append(kind)
            extender.clock.now += takes_s
            if fails:
                raise Unavailable("...")

    nodes = [f"n{i}" for i in range(12)]
    extender = ExtenderFixture(**dict.fromkeys(nodes, (20,)))
    extender.cluster.on_list = on_list
    free = {}
    for name in nodes:
        for label in ("kept", "free"):
            how = {"units": 10, "labels": {"app": label}}
            pod = extender.create(f"{label}-{name}", **how)
            extender.bind(pod, name)
            extender.see(f"{label}-{name}")
            free[name] = pod["metadata"]["uid"]
    extender.cluster.create(Kind.BUDGETS, budget("kept", allowed=0))
    high = pod_json("high", units=10, priority=9)
    proposed = preemption(high, **{name: (f"hog-{name}",) for name in nodes})
    chosen = extender.verbs.preempt(proposed)
    assert len(asked_for) == lists
    assert {name: set(one.uids) for name, one in chosen.items()} == {
        name: {f"hog-{name}", free[name]} for name in nodes
    }


@pytest.mark.parametrize(("step_s", "nodes"), [(0.0, 8), (1.0, 6), (9.0, 1)])
def test_preempt_ends_with_the_nodes_that_it_knows(step_s: float, nodes: int) -> None:
    """kube-scheduler gives it 10 s, for all nodes together; one node is enough.

    The first nodes cannot help, and the time does not end before one can.
    """
    extender = ExtenderFixture(**{f"n{i}": (20,) for i in range(10)})
    for i in range(10):
        low = extender.create(f"low-{i}", units=20, priority=9 if i < 2 else 0)
        extender.bind(low, f"n{i}")
        extender.see(f"low-{i}")
    high = pod_json("high", units=10, priority=9)
    proposed = preemption(high, **{f"n{i}": ("hog",) for i in range(10)})
    extender.clock.step_s = step_s
    assert len(extender.verbs.preempt(proposed)) == nodes


@pytest.mark.parametrize(("priority", "seen"), [(5, {"x", "uid-seen"}), (99, set())])
def test_preempt_names_no_pod_that_was_never_seen_bound(
    priority: int, seen: set[str]
) -> None:
    """The answer to its bind never came; the other card is cleared, or none."""
    extender = ExtenderFixture(n=(20, 20))
    extender.cluster.on_bind = [Fault(Unavailable("no answer"))]
    assert extender.bind(extender.create(units=20)).outcome is BindOutcome.UNKNOWN
    held = placement("seen", 1, 20, priority=priority)
    extender.pods.apply(event("ADDED", bound_json(held)))
    high = pod_json("high", units=20, priority=9)
    chosen = extender.verbs.preempt(preemption(high, n=("x",)))
    assert {uid for victims in chosen.values() for uid in victims.uids} == seen


def test_preempt_waits_for_a_pod_that_was_just_bound() -> None:
    """kube-scheduler's watch was ahead; else the preemptor would wait for minutes."""
    extender = ExtenderFixture(n=(20,))
    pod = extender.create("low", units=20)
    assert not extender.bind(pod).error
    high = pod_json("high", units=20, priority=9)
    looked = Event()
    placed = extender.ledger.reservations

    def reservations() -> frozenset[PodUID]:
        looked.set()
        return placed()

    extender.ledger.reservations = reservations  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(extender.verbs.preempt, preemption(high, n=("x",)))
        assert looked.wait(30)
        extender.see("low")
        chosen = asking.result(30)
    assert chosen[N].uids == ("x", pod["metadata"]["uid"])


def test_preempt_names_the_younger_of_two_equals() -> None:
    """By the time when kubelet took them; one not yet taken is the youngest."""
    extender = ExtenderFixture(n=(20,))
    for name, second in (("a", 5), ("b", 6), ("c", None)):
        pod = bound_json(placement(name, 0, 5))
        if second:
            pod["status"]["startTime"] = f"2026-01-02T03:04:{second:02}Z"
        extender.pods.apply(event("ADDED", pod))
    high = pod_json("high", units=15, priority=9)
    chosen = extender.verbs.preempt(preemption(high, n=("x",)))
    assert chosen[N].uids == ("x", "uid-b", "uid-c")
