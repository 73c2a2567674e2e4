"""Seed 001's story of one card and a Deployment whose limit is raised and put back."""

from collections.abc import Iterator

import pytest

from tests.controlplane.books import checked_books
from tests.controlplane.world import World, node_of
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import deployment, pod_spec, read_pod
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

NAME = "nvidia-cuda11-base"
ONE_SHORT = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory."


@pytest.fixture(autouse=True, scope="module")
def controllers(plane: ControlPlane) -> Iterator[None]:
    with plane.start_controller_manager():
        yield


def path(world: World) -> str:
    return f"/apis/apps/v1/namespaces/{world.namespace}/deployments"


def deploy(world: World, name: str, units: int) -> None:
    """Create the application: one replica, replaced only once the old one has gone."""
    spec = pod_spec(units=units, cores=1)
    wanted = deployment(name, world.namespace, 1, spec, maxSurge=0, maxUnavailable=1)
    world.rest.must("POST", path(world), wanted)


def change_limit(world: World, name: str, units: int) -> None:
    patch: Json = {"spec": {"template": {"spec": pod_spec(units=units, cores=1)}}}
    world.rest.must("PATCH", f"{path(world)}/{name}", patch)


def pods_of(world: World, name: str) -> list[Json]:
    return [p for p in world.pods() if p["metadata"]["labels"]["app"] == name]


def the_pod(world: World, name: str, phase: str, but: str = "") -> Json:
    """Wait for the application's pod in this phase, other than the one ``but``."""

    def look() -> list[Json]:
        found = pods_of(world, name)
        others = [pod for pod in found if pod["metadata"]["name"] != but]
        return [p for p in others if p["status"]["phase"] == phase]

    return wait_until(look, f"{phase} pod of {name}")[0]


def test_limit_raised_and_put_back(world: World) -> None:
    """The old pod is Terminating and still holds its units; the new one waits.

    It still waits when the old one has gone, because 10 units do not fit beside 50 and
    40 of 94. With the limit put back to 1 it runs.
    """
    world.node("rtx3090", 94)
    for number, units in ((1, 50), (2, 40), (3, 1)):
        deploy(world, f"{NAME}-{number}", units)
        the_pod(world, f"{NAME}-{number}", "Running")
    third = f"{NAME}-3"
    old = the_pod(world, third, "Running")
    old_name = old["metadata"]["name"]
    world.kubelet.hold(old_name, world.namespace)

    change_limit(world, third, 10)
    new = the_pod(world, third, "Pending", but=old_name)
    assert world.verdict(new).event.startswith(ONE_SHORT)
    assert "deletionTimestamp" in read_pod(world.rest, old)["metadata"]
    holders = checked_books(world.rest).holders(("rtx3090", "rtx3090-0"))
    assert sorted(units for _, units in holders.values()) == [1, 40, 50]

    tried = world.attempts()
    world.kubelet.release(old_name, world.namespace)
    wait_until(lambda: not read_pod(world.rest, old), "end of the old pod")
    wait_until(lambda: world.attempts() > tried, "another attempt")
    assert not node_of(read_pod(world.rest, new))
    assert world.messages(new)[-1].startswith(ONE_SHORT)

    change_limit(world, third, 1)
    back = the_pod(world, third, "Running", but=new["metadata"]["name"])
    assert node_of(back) == "rtx3090"
    wait_until(lambda: not read_pod(world.rest, new), "end of the pod that waited")
    assert checked_books(world.rest).free() == {("rtx3090", "rtx3090-0"): (97, 3)}
