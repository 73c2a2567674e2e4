"""Pods of one scheduling group: all of them are bound, or none.

GangScheduling is alpha and off by default: here it is on, in an API server and a
kube-scheduler of its own.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.controlplane.books import checked_books
from tests.controlplane.extender import USER
from tests.controlplane.world import EAGER, World, beside, node_of
from tests.testbed.binaries import Binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import new_namespace, post_pod, read_pod, sweep
from tests.testbed.rest import Json

pytestmark = pytest.mark.controlplane

SERVED = (
    "--feature-gates=GenericWorkload=true",
    "--runtime-config=scheduling.k8s.io/v1alpha2=true",
)
GANGS = replace(
    EAGER, flags=("--feature-gates=GenericWorkload=true,GangScheduling=true",)
)


@pytest.fixture(scope="module")
def hall(
    binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A control plane that knows scheduling groups, with our extender beside it."""
    folder = tmp_path_factory.mktemp("gangs")
    with (
        ControlPlane(binaries, folder, users=[USER], apiserver_flags=SERVED) as plane,
        beside(plane, scheduler=GANGS) as world,
    ):
        yield world


@pytest.fixture
def world(hall: World) -> Iterator[World]:
    """An empty cluster, and a namespace of the test's own."""
    yield replace(hall, namespace=new_namespace(hall.rest), nodes=set())
    sweep(hall.rest)


def gang(world: World, *units: int, least: int | None = None) -> list[Json]:
    """Create a group of pods of these units, of which ``least`` or all must fit."""
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{world.namespace}/podgroups"
    policy = {"gang": {"minCount": len(units) if least is None else least}}
    spec: Json = {"schedulingPolicy": policy}
    world.rest.must("POST", path, {"metadata": {"name": "gang"}, "spec": spec})
    posted = []
    for number, each in enumerate(units):
        a_pod = world.pod(f"member-{number}", each, 1)
        a_pod["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
        posted.append(post_pod(world.rest, a_pod))
    return posted


def bound(world: World, members: list[Json]) -> list[str]:
    """Name the members that are bound."""
    found = [read_pod(world.rest, each) for each in members]
    return [each["metadata"]["name"] for each in found if node_of(each)]


def test_a_gang_is_not_bound_in_part(world: World) -> None:
    """The node has 24 units in sum, but one card alone with room for 10.

    When the other card comes free, both are bound.
    """
    world.node("edge", 16, 16)
    tenant = world.post("tenant", 8, 1)
    world.bound(tenant)
    members = gang(world, 10, 10)
    for each in members:
        assert not world.verdict(each).node
    assert not bound(world, members)
    world.delete(tenant)
    cards = {world.bound(each).cards for each in members}
    assert cards == {("edge-0",), ("edge-1",)}
    checked_books(world.rest)


def test_a_gang_that_fits_is_bound_over_nodes(world: World) -> None:
    """One pod on each of four cards: it is known of each where it goes."""
    world.node("north", 16, 16)
    world.node("south", 16, 16)
    members = gang(world, 10, 10, 10, 10)
    cards = {world.bound(each).cards for each in members}
    assert cards == {("north-0",), ("north-1",), ("south-0",), ("south-1",)}
    checked_books(world.rest)
