"""Whom a pod of higher priority drives out: the tenants of one card, and no others.

In every scene kube-scheduler's own choice, made by the node's totals, would free a
share on one card here and there, where the preemptor fits on none.
"""

from collections.abc import Iterator, Mapping

import pytest

from tests.controlplane.books import checked_book
from tests.controlplane.cases import assert_refused
from tests.controlplane.world import World, cards_of
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import read_pod
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

PRIORITIES = {"p0": 0, "p10": 10, "p20": 20, "p30": 30, "p100": 100}
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
    checked_book(world.rest)


def test_disruption_budget_is_respected(world: World) -> None:
    """With a1 under a budget that allows nothing, the other card's tenants go."""
    move_in(world, TENANTS)
    budget(world, "a1")
    vip = world.post("vip", 12, 1, priority_class="p100")
    assert world.bound(vip).cards == ("edge-1",)
    assert names_left(world) == {"a1", "a2", "c1", "vip"}
    checked_book(world.rest)


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
    wait_until(lambda: nomination(world, vip), "nomination", 10)
    tried = world.attempts()
    world.delete(leaver)
    wait_until(lambda: world.attempts() > tried, "another attempt", 10)
    assert nomination(world, vip) == "edge"
    assert world.runs("thief", 4, 1, priority_class="p0") == "edge-2"
    assert not cards_of(read_pod(world.rest, vip))
    world.kubelet.release("a2", world.namespace)
    assert world.bound(vip).cards == ("edge-0",)
    checked_book(world.rest)


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
