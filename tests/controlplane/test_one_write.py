"""One POST per pod, in which the node and the card appear together."""

import threading
from collections import Counter

import pytest

from tests.controlplane.books import checked_book
from tests.controlplane.extender import USER
from tests.controlplane.world import PLACEMENT, World, node_of, post_all
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

PODS = 50


def test_one_write_per_pod(world: World) -> None:
    """Fifty pods cost fifty Bindings of our user's, one each, and no other write."""
    world.node("edge", *[29] * 8)
    mark = world.plane.audit.mark()
    posted = post_all(world, [world.pod(f"pod-{n}", 4, 1) for n in range(PODS)])
    for each in posted:
        assert world.bound(each).cards
    calls = wait_until(
        lambda: [c for c in world.plane.audit.calls(mark) if c.user == USER.name],
        "fifty bindings in the audit log",
        accept=lambda seen: len([c for c in seen if c.verb == "create"]) >= PODS,
    )
    bindings = [c.name for c in calls if c.resource == "pods/binding"]
    assert Counter(bindings) == {f"pod-{n}": 1 for n in range(PODS)}
    writes = world.plane.audit.writes(USER.name, mark)
    assert writes == {"create pods/binding": PODS}
    assert {c.status for c in calls if c.verb == "create"} == {201}
    checked_book(world.rest)


def test_node_and_card_appear_together(world: World) -> None:
    """No watcher ever sees a pod with a node but no placement, or the reverse."""
    world.node("edge", 29, 29)
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    version = world.rest.must("GET", pods)["metadata"]["resourceVersion"]
    watch = world.rest.watch(pods, resourceVersion=version)
    seen: list[Json] = []

    def follow() -> None:
        seen.extend(event["object"] for event in watch if event["type"] != "BOOKMARK")

    follower = threading.Thread(target=follow)
    follower.start()
    for each in post_all(world, [world.pod(f"pod-{n}", 4, 1) for n in range(10)]):
        world.bound(each)
    last = world.post("last", 1, 1)
    world.bound(last)
    wait_until(
        lambda: [one for one in list(seen) if _running(one, "last")], "the last event"
    )
    watch.close()
    follower.join()
    states = {
        (bool(node_of(one)), PLACEMENT in one["metadata"].get("annotations", {}))
        for one in seen
    }
    assert states == {(False, False), (True, True)}


def _running(a_pod: Json, name: str) -> bool:
    return a_pod["metadata"]["name"] == name and bool(node_of(a_pod))
