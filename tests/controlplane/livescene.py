"""A cluster in the middle of its day, written to a real API server: for what-ifs.

Two nodes with cards, one without; pods that hold cards by their annotations, pods that
wait, pods of others that take CPU and no card, and controllers with nobody behind them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from gpushare.domain.model import (
    Amount,
    Card,
    CardUUID,
    ContainerAmount,
    NodeName,
    Placement,
    PodRef,
    PodUID,
    Share,
)
from gpushare.kube import facts, names
from gpushare.kube.annotations import encode_cards, encode_placement
from tests.testbed.objects import (
    AT_ONCE,
    deployment,
    new_namespace,
    pod,
    pod_path,
    pod_spec,
    post_node,
    post_pod,
    set_running,
    sweep,
)
from tests.testbed.rest import Json, Rest

AT = "2026-01-02T03:04:05Z"
APPS = "/apis/apps/v1"
UNITS = 40
"""Of memory, on each card of both nodes."""


def card(node: str, index: int) -> CardUUID:
    return CardUUID(f"GPU-{node}-{index}")


def add_node(rest: Rest, name: str, cards: int, cpu: str = "8") -> None:
    """Add a node as the device plugin and kubelet describe it."""
    its_own = [Card(card(name, each), each, UNITS) for each in range(cards)]
    told = {names.CARDS: encode_cards(its_own)} if cards else {}
    post_node(
        rest,
        name,
        cpu=cpu,
        memory="32Gi",
        units=UNITS * cards,
        cores=100 * cards,
        annotations=told,
    )


def runs(
    rest: Rest, a_pod: Json, node: str, on: int | None = None, *, cores: int = 1
) -> Json:
    """Let a pod run on a node, on one card as the extender writes it, or on none."""
    made = post_pod(rest, a_pod)
    metadata = made["metadata"]
    told: dict[str, str] = {}
    if on is not None:
        asked = a_pod["spec"]["containers"][0]["resources"]["requests"]
        held = Amount(cores, int(asked[names.MEMORY]))
        share = Share(card(node, on), held, (ContainerAmount("main", held),))
        ref = PodRef(PodUID(metadata["uid"]), metadata["namespace"], metadata["name"])
        placed = Placement(ref, NodeName(node), (share,))
        told = {names.PLACEMENT: encode_placement(placed, AT)}
    own = {"name": metadata["name"], "annotations": told}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"metadata": own, "target": target}
    rest.must("POST", f"{pod_path(made)}/binding", binding)
    set_running(rest, made)
    return made


@contextmanager
def scene(rest: Rest) -> Iterator[str]:
    """Write the whole scene, and take it away again; gives its namespace."""
    space = new_namespace(rest)
    populate(rest, space)
    try:
        yield space
    finally:
        take_down(rest, space)
        sweep(rest)


def populate(rest: Rest, space: str) -> None:
    """Write the whole scene; what is its own in ``space``, the extender beside it."""
    add_node(rest, "gpu-1", 2)
    add_node(rest, "gpu-2", 1)
    add_node(rest, "plain", 0)
    runs(rest, pod("chat", space, units=30, cores=1), "gpu-1", 0)
    runs(rest, pod("small", space, units=10, cores=1), "gpu-1", 1)
    runs(rest, pod("voice", space, units=20, cores=1), "gpu-2", 0)
    # Somebody else's, without cards: of gpu-2's eight CPUs it leaves less than four.
    runs(rest, pod("database", space, cpu="4500m"), "gpu-2")
    post_pod(rest, pod("big", space, units=36, cores=1))
    post_pod(rest, pod("crawler", space, cpu="64"))
    gate = {"schedulingGates": [{"name": "example.com/hold"}]}
    post_pod(rest, pod("held-back", space, units=1, cores=1, spec=gate))
    post_extender(rest)
    for path, body in controllers(space):
        rest.must("POST", path, body)


def post_extender(rest: Rest) -> None:
    """Add an extender's pod, by whose environment its policy is known."""
    labels = {facts.PART_NAME: facts.EXTENDER, facts.PART_OF: "gpushare"}
    body = pod("gpushare-extender", facts.SYSTEM, labels=labels)
    env = [{"name": "GPUSHARE_POLICY", "value": "spread"}]
    body["spec"]["containers"][0]["env"] = env
    runs(rest, body, "plain")


def controllers(space: str) -> list[tuple[str, Json]]:
    """Give one of each kind that ``--more`` takes, and where it is posted."""
    spec = pod_spec(units=8, cores=1, cpu="500m")
    app = deployment("app", space, 0, spec)
    labels = app["spec"]["selector"]["matchLabels"]
    plain = {"selector": {"matchLabels": labels}, "template": app["spec"]["template"]}
    own = {"name": "app", "namespace": space}
    once = {"spec": spec | {"restartPolicy": "Never"}}
    apps, batch = f"{APPS}/namespaces/{space}", f"/apis/batch/v1/namespaces/{space}"
    return [
        (f"{apps}/deployments", app),
        (
            f"{apps}/statefulsets",
            {"metadata": own, "spec": plain | {"serviceName": "x"}},
        ),
        (f"{apps}/replicasets", {"metadata": own, "spec": plain | {"replicas": 0}}),
        (f"{batch}/jobs", {"metadata": own, "spec": {"template": once}}),
    ]


def take_down(rest: Rest, space: str) -> None:
    """Remove the controllers that no sweep knows."""
    for path, _ in controllers(space):
        rest.must("DELETE", path, AT_ONCE)


def versions(rest: Rest) -> dict[str, str]:
    """Give the resource version of every object that a what-if may have read."""
    paths = ("/api/v1/nodes", "/api/v1/pods", f"{APPS}/deployments", "/api/v1/events")
    more = (f"{APPS}/statefulsets", f"{APPS}/replicasets", "/apis/batch/v1/jobs")
    return {
        f"{path}/{one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one[
            "metadata"
        ]["resourceVersion"]
        for path in (*paths, *more)
        for one in rest.items(path)
    }
