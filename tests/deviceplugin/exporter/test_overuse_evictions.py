"""Whom the watchdog evicts, each once for an excess, and who stays."""

from deviceplugin.exporter.owners import CONFIG_MIRROR, Owner
from deviceplugin.exporter.usage import OveruseTally
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import Forbidden
from tests.deviceplugin.beat import OVER, Beat
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
    assert beat.patrol.tally() == OveruseTally(reports=2, evictions=1)
    # Two events and one eviction.
    assert beat.cluster.asked == 3


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
    assert beat.patrol.tally() == OveruseTally(reports=1, evictions=1)


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
    assert "without a request" in message
    assert beat.pods() == ["a"]


def test_a_pod_that_obeys_its_share_is_never_evicted() -> None:
    """All of its share is its own, and the driver's context comes on top."""
    beat = Beat("evict")
    beat.pod(held("a"))
    beat.uses(0, a=2048 + 480)
    beat.uses(300, a=2048 + 480)
    assert (beat.events(), beat.pods()) == ([], ["a"])
