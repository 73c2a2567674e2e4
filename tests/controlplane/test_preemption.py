"""Whom a pod of higher priority drives out: the tenants of one card, and no others.

In every scene kube-scheduler's own choice, made by the node's totals, would free a
share on one card here and there, where the preemptor fits on none. Of several nodes it
takes the one where the victims that we answer cost least.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import pytest

from tests.controlplane.books import assert_refused, checked_books
from tests.controlplane.by_hand import NOBODY, bind
from tests.controlplane.gate import GROUP, asked_of_bindings
from tests.controlplane.world import World, cards_of, node_of
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import AT_ONCE, new_namespace, pod_path, post_pod, read_pod
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

PRIORITIES = {f"p{value}": value for value in (0, 1, 5, 10, 20, 30, 90, 100)}
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
TENANTS = {"a1": "p0", "a2": "p10", "b1": "p0", "b2": "p20", "c1": "p30"}
"""Of 8 units each, two on the cards a and b, one on c; every card has 16."""


@pytest.fixture(scope="module", autouse=True)
def priority_classes(plane: ControlPlane) -> Iterator[None]:
    for name, value in PRIORITIES.items():
        plane.rest.must("POST", CLASSES, {"metadata": {"name": name}, "value": value})
    yield
    for name in PRIORITIES:
        plane.rest.must("DELETE", f"{CLASSES}/{name}")


def move_in(world: World, tenants: Mapping[str, str]) -> dict[str, Json]:
    """Fill three cards in order; the pods by name, Running."""
    world.node("edge", 16, 16, 16)
    for name, priority in tenants.items():
        card = world.runs(name, 8, 1, priority_class=priority, labels={"app": name})
        assert card == f"edge-{'abc'.index(name[0])}"
    wait_until(
        lambda: {pod["status"]["phase"] for pod in world.pods()},
        "running tenants",
        accept=lambda phases: phases == {"Running"},
    )
    return {pod["metadata"]["name"]: pod for pod in world.pods()}


def names_left(world: World) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.pods()}


def test_victims_share_a_card(world: World) -> None:
    """kube-scheduler would take a1 or b1 alone, which frees 12 units on no card.

    We take both from the card whose tenants matter least.
    """
    move_in(world, TENANTS)
    vip = world.post("vip", 12, 1, priority_class="p100")
    assert world.bound(vip).cards == ("edge-0",)
    assert names_left(world) == {"b1", "b2", "c1", "vip"}
    checked_books(world.rest)


def test_disruption_budget_is_respected(world: World) -> None:
    """With a1 under a budget that allows nothing, the other card's tenants go."""
    move_in(world, TENANTS)
    budget(world, "a1")
    vip = world.post("vip", 12, 1, priority_class="p100")
    assert world.bound(vip).cards == ("edge-1",)
    assert names_left(world) == {"a1", "a2", "c1", "vip"}
    checked_books(world.rest)


def test_nominated_pods_card_is_not_stolen(world: World) -> None:
    """While victims leave, their card is kept for the pod that drove them out.

    a1 has gone and a2 still ends. Somebody else's end makes kube-scheduler try the
    preemptor once more, in vain, which must not cost it its nomination; then the thief
    of 4 units would fit where a1 was, on the first card, but gets the third.
    """
    tenants = move_in(world, TENANTS)
    leaver = world.post("leaver", 1, 1, priority_class="p30")
    assert world.bound(leaver).cards == ("edge-2",)
    world.kubelet.hold("a2", world.namespace)
    vip = world.post("vip", 12, 1, priority_class="p100")
    wait_until(lambda: not read_pod(world.rest, tenants["a1"]), "end of a1")
    wait_until(lambda: terminating(world, tenants["a2"]), "deletion of a2")
    wait_until(lambda: nomination(world, vip), "nomination")
    tried = world.attempts()
    world.delete(leaver)
    wait_until(lambda: world.attempts() > tried, "another attempt")
    wait_until(
        lambda: leaver["metadata"]["uid"] not in world.known_pods(),
        "the extender to know of its end",
    )
    assert nomination(world, vip) == "edge"
    assert world.runs("thief", 4, 1, priority_class="p0") == "edge-2"
    assert not cards_of(read_pod(world.rest, vip))
    world.kubelet.release("a2", world.namespace)
    assert world.bound(vip).cards == ("edge-0",)
    checked_books(world.rest)


def nomination(world: World, a_pod: Json) -> str:
    return str(read_pod(world.rest, a_pod)["status"].get("nominatedNodeName", ""))


def terminating(world: World, a_pod: Json) -> bool:
    return "deletionTimestamp" in read_pod(world.rest, a_pod)["metadata"]


def test_nobody_is_driven_out_in_vain(world: World) -> None:
    """Where each card has a tenant who stays, no victims would free one: none go."""
    stay = {"a1": "p0", "a2": "p100", "b1": "p0", "b2": "p100", "c1": "p0"}
    tenants = move_in(world, stay)
    world.runs("c2", 8, 1, priority_class="p100")
    vip = world.post("vip", 12, 1, priority_class="p30")
    assert_refused(world, vip, "1 Insufficient baidu.com/vcuda-memory")
    assert names_left(world) == {*tenants, "c2", "vip"}
    assert not any("deletionTimestamp" in pod["metadata"] for pod in world.pods())


def budget(world: World, app: str) -> None:
    """Protect the pods of this label; no controller runs here to fill in the status."""
    path = f"/apis/policy/v1/namespaces/{world.namespace}/poddisruptionbudgets"
    body: Json = {
        "metadata": {"name": app},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
    }
    made = world.rest.must("POST", path, body)
    made["status"] = {
        "disruptionsAllowed": 0,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
        "observedGeneration": 1,
    }
    world.rest.must("PUT", f"{path}/{app}/status", made)


def settle(
    world: World,
    node: str,
    name: str,
    units: int | None,
    priority: str,
    cpu: str = "10m",
) -> Json:
    """Run a pod on one node; without units it asks nothing of the cards there."""
    cores = None if units is None else 1
    a_pod = world.pod(name, units, cores, priority_class=priority, labels={"app": name})
    a_pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    a_pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
    posted = post_pod(world.rest, a_pod)
    assert world.bound(posted).node == node
    return posted


def drive_in(world: World, units: int, cpu: str = "10m") -> str:
    """Create the preemptor, and give the node where it came in.

    kube-scheduler may evict a victim again whose end it has not seen yet. It then waits
    for that end, which came meanwhile, until another pod ends somewhere.
    """
    a_pod = world.pod("vip", units, 1, priority_class="p100")
    a_pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
    posted = post_pod(world.rest, a_pod)
    with suppress(AssertionError):
        return world.bound(posted, timeout_s=10).node
    passer = world.pod("passer")
    passer["spec"]["nodeName"] = "elsewhere"
    world.rest.must("DELETE", pod_path(post_pod(world.rest, passer)), AT_ONCE)
    return world.bound(posted).node


def test_the_node_whose_victims_matter_least_is_chosen(world: World) -> None:
    """On one node a pod of priority 90 would have to go, beside one of 0.

    kube-scheduler takes the first victim that we name for the most important one, and
    by that compares the nodes: it must not be the least.
    """
    world.node("dear", 16, 16)
    settle(world, "dear", "d0", 8, "p0")
    settle(world, "dear", "d90", 8, "p90")
    settle(world, "dear", "d1", 8, "p1")
    settle(world, "dear", "stays", 8, "p100")
    world.node("cheap", 16)
    settle(world, "cheap", "c5", 16, "p5")
    assert drive_in(world, 12) == "cheap"
    assert names_left(world) == {"d0", "d90", "d1", "stays", "vip"}
    checked_books(world.rest)


def test_a_pod_without_shares_does_not_hide_a_more_important_victim(
    world: World,
) -> None:
    """It was chosen for its CPU, and comes behind the one that holds the card."""
    world.node("dear", 16, 16)
    settle(world, "dear", "hog", None, "p0", cpu="20")
    settle(world, "dear", "d30", 12, "p30")
    settle(world, "dear", "stays", 12, "p100")
    world.node("cheap", 16)
    settle(world, "cheap", "c5", 16, "p5", cpu="20")
    assert drive_in(world, 8, cpu="14") == "cheap"
    assert names_left(world) == {"hog", "d30", "stays", "vip"}
    checked_books(world.rest)


def test_one_eviction_is_enough_where_one_pod_frees_card_and_cpu(world: World) -> None:
    """kube-scheduler names ``busy``, for its CPU alone: no card comes free by it.

    ``light`` would free a card and no CPU, ``both`` frees both.
    """
    world.node("edge", 16, 16, 16)
    settle(world, "edge", "busy", 6, "p0", cpu="12")
    settle(world, "edge", "stays", 6, "p100")
    settle(world, "edge", "light", 12, "p1")
    settle(world, "edge", "both", 12, "p1", cpu="12")
    assert drive_in(world, 12, cpu="14") == "edge"
    assert names_left(world) == {"busy", "stays", "light", "vip"}
    checked_books(world.rest)


def test_a_victim_for_cpu_is_kept_beside_the_one_for_the_card(world: World) -> None:
    """Nobody else has the CPU: both go, and at once."""
    world.node("edge", 16, 16)
    settle(world, "edge", "busy", 6, "p0", cpu="20")
    settle(world, "edge", "stays", 6, "p100")
    settle(world, "edge", "light", 12, "p1")
    assert drive_in(world, 12, cpu="14") == "edge"
    assert names_left(world) == {"stays", "vip"}
    checked_books(world.rest)


def test_a_budget_of_a_pod_without_shares_still_counts(world: World) -> None:
    """Where its eviction breaks a budget, the other node is chosen, dear as it is."""
    world.node("guarded", 16, 16)
    settle(world, "guarded", "hog", None, "p0", cpu="20")
    settle(world, "guarded", "g0", 12, "p0")
    settle(world, "guarded", "stays", 12, "p100")
    budget(world, "hog")
    world.node("plain", 16)
    settle(world, "plain", "b30", 16, "p30", cpu="20")
    assert drive_in(world, 8, cpu="14") == "plain"
    assert names_left(world) == {"hog", "g0", "stays", "vip"}
    checked_books(world.rest)


@contextmanager
def silent_bindings(world: World, namespace: str) -> Iterator[None]:
    """Have the API server ask a webhook that never answers for each Binding there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        path = f"{GROUP}/validatingwebhookconfigurations"
        url = f"https://127.0.0.1:{port}/"
        body = asked_of_bindings("silent", namespace, url)
        world.rest.must("POST", path, body)
        try:
            yield
        finally:
            world.rest.must("DELETE", f"{path}/silent")


def test_a_pod_that_was_never_bound_is_no_victim(world: World) -> None:
    """Its room is held, but kube-scheduler knows of no such pod on that node.

    It would refuse the whole answer for it, the other node's victims too.
    """
    world.node("held", 16, 16)
    settle(world, "held", "h0", 8, "p0")
    elsewhere = new_namespace(world.rest)
    with silent_bindings(world, elsewhere):
        ghost = world.pod("ghost", 8, 1, priority_class="p0")
        ghost["metadata"]["namespace"] = elsewhere
        ghost["spec"]["schedulerName"] = NOBODY
        posted = post_pod(world.rest, ghost)
        assert "it is not known" in bind(world, posted, "held")
        settle(world, "held", "s1", 8, "p100")
        settle(world, "held", "s2", 8, "p100")
        world.node("other", 16)
        settle(world, "other", "o30", 16, "p30")
        assert drive_in(world, 12) == "other"
        assert names_left(world) == {"h0", "s1", "s2", "vip"}
        assert not node_of(read_pod(world.rest, posted))
