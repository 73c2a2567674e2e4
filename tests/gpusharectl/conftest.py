"""The cluster of the seeds behind an API server, for tests of commands."""

from collections.abc import Iterator

import pytest

from gpushare.kube.cluster import Json, Kind, PodTarget
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import bound_json, card, placement, pod_json
from tests.gpusharectl.cluster_states import A, B, asking, in_namespace, node_of

G = "GPU-5d3cc7ba"


def put(cluster: Embedded, pod: Json) -> None:
    """Create a pod, and bind it where it should be, with its placement."""
    place, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    node = pod["spec"].pop("nodeName", "")
    notes = pod["metadata"].pop("annotations", {})
    uid = cluster.create(Kind.PODS, pod)["metadata"]["uid"]
    if node:
        told = {key: text.replace(f"uid-{name}", uid) for key, text in notes.items()}
        cluster.bind(PodTarget(place, name, uid), node, told)
    status = {"status": pod["status"]}
    cluster.patch(Kind.PODS, place, name, status, subresource="status")


@pytest.fixture(scope="module")
def cluster() -> Embedded:
    """Three pods that share a card, two on others; one waits, one requests nothing."""
    found = Embedded()
    found.create(Kind.NODES, {"metadata": {"name": "cp"}, "status": {}})
    found.create(Kind.NODES, node_of("node-1", card(0, 94, uuid=G)))
    found.create(Kind.NODES, node_of("node-2", card(0, uuid=A), card(1, uuid=B)))
    for name, units in {"app-1": 50, "app-2": 40, "app-3": 1}.items():
        put(found, bound_json(placement(name, G, units, 1, node="node-1")))
    for name, on in (("cuda-2", A), ("cuda-3", B)):
        put(found, bound_json(placement(name, on, 20, 1, node="node-2")))
    put(found, asking())
    put(found, pod_json("plain"))
    put(found, in_namespace(pod_json("lonely", units=3), "edge"))
    return found


@pytest.fixture(scope="module")
def kubeconfig(
    cluster: Embedded, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with ApiServerOnLoopback(cluster) as server:
        yield str(server.kubeconfig(tmp_path_factory.mktemp("k") / "kubeconfig"))
