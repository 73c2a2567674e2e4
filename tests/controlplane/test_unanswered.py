"""A bind whose outcome nobody knows holds its room for a while, and not for ever."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from gpushare.addresses import find_free_address
from tests.controlplane.books import checked_books
from tests.controlplane.by_hand import ASK, bind
from tests.controlplane.gate import GROUP, asked_of_bindings
from tests.controlplane.world import World, cards_of, node_of
from tests.testbed.objects import new_namespace, read_pod
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

HOOKS = f"{GROUP}/validatingwebhookconfigurations"


@contextmanager
def failing_bindings(world: World) -> Iterator[None]:
    """Have a webhook that nobody serves asked of each binding in this namespace.

    The API server answers such a binding with 500.
    """
    url = f"https://{find_free_address()}/"
    body = asked_of_bindings("failing-bindings", world.namespace, url)
    world.rest.must("POST", HOOKS, body)
    nobody = f"/api/v1/namespaces/{world.namespace}/pods/nobody/binding"
    target = {"metadata": {"name": "nobody"}, "target": {"kind": "Node", "name": "n"}}
    try:
        wait_until(lambda: world.rest.post(nobody, target)[0] == 500, "webhook")
        yield
    finally:
        world.rest.must("DELETE", f"{HOOKS}/failing-bindings")


def wait_for_failure(world: World, a_pod: Json) -> None:
    wait_until(
        lambda: any("webhook" in text for text in world.messages(a_pod)), "failed bind"
    )


def test_a_pod_that_cannot_be_bound_lets_others_have_the_card(world: World) -> None:
    """Its bind fails each time; a pod of another namespace waits beside an idle card.

    Nothing else happens in the cluster that could wake the one that waits.
    """
    world.node("edge", 29)
    other = replace(world, namespace=new_namespace(world.rest))
    with failing_bindings(world):
        stuck = world.post("stuck", 20, 1)
        wait_for_failure(world, stuck)
        waiting = other.post("waiting", 20, 1)
        assert other.bound(waiting, timeout_s=60).cards == ("edge-0",)
        assert not node_of(read_pod(world.rest, stuck))
    checked_books(world.rest)


def test_filter_keeps_the_node_that_bind_will_take(manual: World) -> None:
    """While an earlier bind may yet come true, bind refuses all others."""
    for name in ("edge", "other"):
        manual.node(name, 29)
    a_pod = manual.post("pod", 20, 1)
    asked = {**ASK, "Pod": a_pod, "NodeNames": ["edge", "other"]}
    with failing_bindings(manual):
        assert "webhook" in bind(manual, a_pod)
        answer = manual.extender.rest.must("POST", "/scheduler/filter", asked)
        assert answer["NodeNames"] == ["edge"]
        why = "The result of an earlier bind to another node is not known yet"
        assert answer["FailedAndUnresolvableNodes"] == {"other": why}
        assert "not known yet" in bind(manual, a_pod, "other")
    assert bind(manual, a_pod) == ""


def test_it_is_bound_as_soon_as_it_can_be(world: World) -> None:
    """A bind that was in doubt is tried again while its room is held."""
    world.node("edge", 29)
    with failing_bindings(world):
        stuck = world.post("stuck", 20, 1)
        wait_for_failure(world, stuck)
    assert world.bound(stuck).cards == ("edge-0",)
    assert cards_of(read_pod(world.rest, stuck)) == ("edge-0",)
    checked_books(world.rest)
