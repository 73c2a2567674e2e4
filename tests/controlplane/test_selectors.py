"""Pods that say which cards they may have, by real kube-scheduler."""

from collections.abc import Iterator

import pytest

from gpushare.domain.model import Card, CardUUID
from gpushare.kube.annotations import encode_cards
from tests.controlplane.books import assert_refused, checked_books
from tests.controlplane.world import World
from tests.testbed.controlplane import ControlPlane

pytestmark = pytest.mark.controlplane

MODELS, UUIDS = "baidu.com/vcuda-models", "baidu.com/vcuda-uuids"
FULL = "1 Insufficient baidu.com/vcuda-memory on one card"
STAR = "; a * may stand first or last only"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
P4, T4, A10 = "Tesla P4", "Tesla T4", "NVIDIA A10"
FIRST, SECOND, THIRD = (
    f"GPU-{digit * 8}-0000-4000-8000-00000000000{digit}" for digit in "123"
)


@pytest.fixture(scope="module")
def importance(plane: ControlPlane) -> Iterator[str]:
    """The name of a class above all other pods."""
    name = "picky-but-important"
    plane.rest.must("POST", CLASSES, {"metadata": {"name": name}, "value": 1000})
    yield name
    plane.rest.must("DELETE", f"{CLASSES}/{name}")


def mixed(world: World, name: str, **cards: str) -> None:
    """Add a node with one card of 29 units for each UUID and model."""
    its = [Card(CardUUID(u), i, 29, model=m) for i, (u, m) in enumerate(cards.items())]
    world.raw_node(name, 29 * len(its), len(its), encode_cards(its))


def three(world: World) -> None:
    mixed(world, "edge", **{FIRST: P4, SECOND: T4, THIRD: A10})


def full_house(world: World) -> None:
    """A pod on each card, which it fills."""
    tenants = [
        world.post(f"tenant-{number}", 29, 1, annotations={UUIDS: uuid})
        for number, uuid in enumerate((FIRST, SECOND, THIRD))
    ]
    for tenant in tenants:
        world.bound(tenant)


@pytest.mark.parametrize(
    ("lists", "card"),
    [
        ({MODELS: "tesla t4"}, SECOND),
        ({MODELS: "H100, Tesla *"}, FIRST),
        ({UUIDS: SECOND}, SECOND),
        ({UUIDS: f"{FIRST},{THIRD}", MODELS: "*A10"}, THIRD),
    ],
)
def test_the_card_that_it_may_have(
    world: World, lists: dict[str, str], card: str
) -> None:
    """The first of those with room, whatever comes before it."""
    three(world)
    assert world.runs("picky", 20, 1, annotations=lists) == card
    checked_books(world.rest)


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ({MODELS: "H100"}, "1 No shared cards that baidu.com/vcuda-models allows"),
        (
            {MODELS: P4, UUIDS: FIRST},
            f"{FULL} that baidu.com/vcuda-models and baidu.com/vcuda-uuids allow",
        ),
        ({MODELS: "T*4"}, f'1 Invalid vcuda request: {MODELS} has "T*4"{STAR}'),
    ],
)
def test_refusal(world: World, lists: dict[str, str], says: str) -> None:
    """The event names the annotation, though another card has room."""
    three(world)
    world.runs("holder", 20, 1, annotations={UUIDS: FIRST})
    assert_refused(world, world.post("picky", 20, 1, annotations=lists), says)


def test_victims_leave_a_card_that_it_may_have(world: World, importance: str) -> None:
    """kube-scheduler counts the node's totals; only one pod's end helps this one."""
    three(world)
    full_house(world)
    vip = world.post("vip", 20, 1, annotations={MODELS: T4}, priority_class=importance)
    assert world.bound(vip, timeout_s=60).cards == (SECOND,)
    left = {pod["metadata"]["name"] for pod in world.pods()}
    assert left == {"tenant-0", "tenant-2", "vip"}
    checked_books(world.rest)


def test_nobody_is_evicted_in_vain(world: World, importance: str) -> None:
    """No card of the model is there, so nobody's end would help."""
    three(world)
    full_house(world)
    picky = {MODELS: "H100"}
    vip = world.post("vip", 20, 1, annotations=picky, priority_class=importance)
    assert_refused(world, vip, "1 Insufficient baidu.com/vcuda-memory")
    assert len(world.pods()) == 4


def test_a_list_may_be_widened_while_the_pod_waits(world: World) -> None:
    """kube-scheduler looks again, and the pod runs."""
    three(world)
    waiting = world.post("picky", 20, 1, annotations={MODELS: "H100"})
    says = "1 No shared cards that baidu.com/vcuda-models allows"
    assert_refused(world, waiting, says)
    path = f"/api/v1/namespaces/{world.namespace}/pods/picky"
    wider = {"metadata": {"annotations": {MODELS: "H100, A10"}}}
    world.rest.must("PATCH", path, wider)
    assert world.bound(waiting, timeout_s=120).cards == (THIRD,)


def test_a_card_of_that_model_that_comes_later(world: World) -> None:
    """As with any other reason to wait: a new node wakes the pod."""
    three(world)
    waiting = world.post("picky", 20, 1, annotations={MODELS: "H100"})
    says = "1 No shared cards that baidu.com/vcuda-models allows"
    assert_refused(world, waiting, says)
    mixed(world, "new", **{"GPU-new": "NVIDIA H100"})
    assert world.bound(waiting, timeout_s=120).cards == ("GPU-new",)
