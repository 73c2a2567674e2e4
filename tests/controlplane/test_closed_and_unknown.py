"""Cards that an operator has cordoned, and pods of which nobody knows the card."""

import json
from collections.abc import Sequence

import pytest

from gpushare.domain.model import Card, CardUUID
from gpushare.kube.annotations import encode_cards
from tests.controlplane.books import checked_books
from tests.controlplane.world import CARDS, World, node_of
from tests.testbed.objects import MEMORY, post_pod, read_pod
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

CORDON = "baidu.com/vcuda-cordon"
ACTUAL = "baidu.com/vcuda-actual"
NO_MEMORY = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory on one card"


def page(world: World) -> Json:
    """What the extender says of the node, to wait for."""
    (found,) = world.extender.rest.must("GET", "/snapshot")["nodes"]
    return dict(found)


def cordon(world: World, cards: Sequence[str]) -> None:
    """Write the annotation as an operator would, and wait until it is heard of."""
    annotations = {CORDON: ", ".join(cards) or None}
    path = "/api/v1/nodes/edge"
    world.rest.must("PATCH", path, {"metadata": {"annotations": annotations}})

    def closed() -> list[str]:
        return [card["uuid"] for card in page(world)["cards"] if card["cordoned"]]

    wait_until(closed, "cordon", accept=lambda found: found == list(cards))


def refused(world: World, name: str, units: int, says: str) -> Json:
    """Post a pod, and insist that it waits for this reason."""
    a_pod = world.post(name, units, 1)
    assert world.verdict(a_pod).event.startswith(says), world.verdict(a_pod)
    return a_pod


def phase(world: World, name: str) -> str:
    (found,) = [pod for pod in world.pods() if pod["metadata"]["name"] == name]
    return str(found["status"]["phase"])


def test_a_cordoned_card_gets_nothing_new(world: World) -> None:
    """What runs there goes on and stays charged; opened again, it is used again."""
    world.node("edge", 29, 29)
    assert world.runs("runs", 10, 1) == "edge-0"
    cordon(world, ["edge-0"])
    assert world.runs("second", 10, 1) == "edge-1"
    waits = refused(world, "waits", 20, NO_MEMORY)
    wait_until(lambda: phase(world, "runs") == "Running", "the first to run")
    metrics = world.extender.metrics()
    card = '{GPU_I_UUID="",NodeName="edge",UUID="edge-0"}'
    assert metrics[f"vcuda_card_cordoned{card}"] == 1
    assert metrics[f"vcuda_card_healthy{card}"] == 1
    assert metrics[f"vcuda_card_placed_units{card}"] == 10
    world.delete(waits)
    cordon(world, ["edge-0", "edge-1"])
    waits = refused(world, "waits-too", 19, "0/1 nodes are available: 1 No shared card")
    cordon(world, [])
    assert world.bound(waits).cards == ("edge-0",)
    checked_books(world.rest)


def test_a_pod_bound_by_hand_holds_its_units_somewhere(world: World) -> None:
    """On every card, over a restart too, until the device plugin says on which."""
    world.node("edge", 29, 29)
    by_hand = world.pod("by-hand", 20, 1)
    by_hand["spec"]["nodeName"] = "edge"
    by_hand = post_pod(world.rest, by_hand)
    wait_until(lambda: page(world)["unplaced"], "pod bound by hand")
    waits = refused(world, "waits", 15, NO_MEMORY)
    assert world.runs("small", 9, 1) == "edge-0"
    world.extender.kill()
    world.extender.start()
    metrics = world.extender.metrics()
    assert metrics["vcuda_extender_pods_without_placement"] == 1
    assert_unknown(world, 20)
    assert not node_of(read_pod(world.rest, waits))
    share = {"card": "edge-0", "cores": 1, "units": 20, "containers": {}}
    actual = {"v": 1, "uid": by_hand["metadata"]["uid"], "shares": [share], "at": ""}
    path = f"/api/v1/namespaces/{world.namespace}/pods/by-hand"
    notes = {"metadata": {"annotations": {ACTUAL: json.dumps(actual)}}}
    world.rest.must("PATCH", path, notes)
    assert world.bound(waits).cards == ("edge-1",)
    assert page(world)["unplaced"] == []


def assert_unknown(world: World, units: int) -> None:
    """Insist that so many units are kept on both cards."""
    metrics = world.extender.metrics()
    for uuid in ("edge-0", "edge-1"):
        card = f'{{GPU_I_UUID="",NodeName="edge",UUID="{uuid}"}}'
        assert metrics[f"vcuda_card_unknown_units{card}"] == units


def test_its_user_cannot_free_what_it_holds(world: World) -> None:
    """By an annotation that makes its request invalid, and a restart of ours."""
    world.node("edge", 29, 29)
    by_hand = world.pod("by-hand", 20, 1)
    by_hand["spec"]["nodeName"] = "edge"
    post_pod(world.rest, by_hand)
    wait_until(lambda: page(world)["unplaced"], "pod bound by hand")
    path = f"/api/v1/namespaces/{world.namespace}/pods/by-hand"
    notes = {"metadata": {"annotations": {"baidu.com/vcuda-uuids": ","}}}
    world.rest.must("PATCH", path, notes)
    world.extender.kill()
    world.extender.start()
    assert_unknown(world, 20)
    refused(world, "waits", 15, NO_MEMORY)


def test_a_whole_card_that_grows_is_shared_with_nobody(world: World) -> None:
    """Its node lists more units by now, as after a change of the reserve."""
    # Not "edge": kube-scheduler may still count pods of another test there.
    world.node("whole", 29)
    assert world.runs("whole", 29, 100) == "whole-0"
    grown = [Card(CardUUID("whole-0"), 0, 40)]
    notes = {"metadata": {"annotations": {CARDS: encode_cards(grown)}}}
    world.rest.must("PATCH", "/api/v1/nodes/whole", notes)
    more = {MEMORY: "40"}
    status = {"status": {"capacity": more, "allocatable": more}}
    world.rest.must("PATCH", "/api/v1/nodes/whole/status", status)
    wait_until(lambda: page(world)["cards"][0]["units"] == 40, "larger card")
    waits = world.post("waits", 5, 0)
    # kube-scheduler may hear of the units later, and then tries the pod again.
    wait_until(
        lambda: any(message.startswith(NO_MEMORY) for message in world.messages(waits)),
        "the extender's refusal",
    )
    assert not world.verdict(waits).node
