"""Asking the extender by hand, as kube-scheduler would or would never do."""

from tests.controlplane.books import checked_books
from tests.controlplane.world import World, node_of
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

NOBODY = "nobody"
"""A scheduler that does not exist, so that these tests alone bind the pods."""
POD: Json = {
    "metadata": {"name": "p", "namespace": "d", "uid": "u"},
    "spec": {"containers": [{"name": "main"}]},
}
ASK: Json = {"Pod": POD, "Nodes": None, "NodeNames": ["edge"]}
BIND: Json = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "edge"}


def binding(a_pod: Json, node: str) -> Json:
    metadata = a_pod["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }


def bind(world: World, a_pod: Json, node: str = "edge", **other: str) -> str:
    """Ask for a Binding and give the Error, empty when the pod is bound."""
    args = {**binding(a_pod, node), **other}
    answer = world.extender.rest.must("POST", "/scheduler/bind", args)
    return str(answer["Error"])


def nothing_half_made(world: World) -> None:
    """Insist that the books hold what the API server holds, and nothing else."""
    wait_until(
        lambda: world.extender.metrics()["vcuda_extender_reservations"],
        "end of reservations",
        accept=lambda count: count == 0,
    )
    snapshot = world.extender.rest.must("GET", "/snapshot")
    held = {pod["uid"] for node in snapshot["nodes"] for pod in node["pods"]}
    assert held == {p["metadata"]["uid"] for p in world.pods() if node_of(p)}
    checked_books(world.rest)
