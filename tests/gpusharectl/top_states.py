"""A small cluster for each state that top must show, with its exporters' pages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from gpushare.domain.model import Amount, CardUUID, ContainerAmount, Share
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Forbidden, Unavailable
from gpusharectl.state.read import ClusterState
from gpusharectl.state.scrape import scrape_exporters
from gpusharectl.state.view import build_overview
from gpusharectl.top.join import join_exporters
from gpusharectl.top.rows import Sort, TopView, order_rows
from tests.builders import bound_json, card, placement, share
from tests.gpusharectl import cluster_states
from tests.gpusharectl.cluster_states import (
    A,
    B,
    G,
    answered,
    asking,
    cluster_state,
    held,
    in_order,
    node_1,
    node_2,
    node_of,
    part,
    three_apps,
)
from tests.gpusharectl.exporter_pages import HOUR, TICK, Says, Shown, Use, page


def exporter(node: str, *, ready: bool = True) -> Json:
    name = "gpushare-exporter"
    return part(f"{name}-{node}", name, node=node, ready=ready)


@dataclass(frozen=True)
class Scene:
    """A cluster, and what each node's exporter answers."""

    seen: ClusterState
    answers: Mapping[str, bytes | ClusterError] = field(default_factory=dict)

    def fetch(self, namespace: str, pod: str, port: int, path: str) -> Any:
        assert (namespace, port, path) == ("kube-system", 9400, "/metrics")
        return answered(self.answers[pod.removeprefix("gpushare-exporter-")])

    def top(
        self, only: str = "", sort: Sort | None = None, namespace: str = ""
    ) -> TopView:
        books = build_overview(self.seen, only)
        told = scrape_exporters(
            self, self.seen.parts, [view.name for view in books.nodes]
        )
        return order_rows(join_exporters(books, told, namespace), sort)


def scene(
    nodes: list[Json],
    pods: list[Json],
    answers: Mapping[str, bytes | ClusterError],
    *more: Json,
) -> Scene:
    """A cluster in which these nodes have an exporter, and all other parts are well."""
    parts = [*in_order(*nodes), *map(exporter, answers), *more]
    return Scene(cluster_state(nodes, pods, parts=parts), answers)


def at_work() -> Scene:
    """The seeds' cluster: one pod is over, one idle, a stranger on the host."""
    pods = [*three_apps(), held("cuda-2", A, 20, 25), held("cuda-3", B, 20, 50)]
    apps = (
        Use("app-1", 14300, 55, over=True),
        Use("app-2", 4096, 8),
        Use("app-3", 0, 0, idle_s=3 * HOUR),
    )
    first = page(Shown(G, 0, 19000, 63, 71, 284, 604, uses=apps), node="node-1")
    second = page(
        Shown(A, 0, 4100, 21, uses=(Use("cuda-2", 3800, 21),)),
        Shown(B, 1, 3600, 0, uses=(Use("cuda-3", 2000, 0),), outside=1300),
        node="node-2",
    )
    return scene([node_1(), node_2()], pods, {"node-1": first, "node-2": second})


def unknown() -> Scene:
    """A driver that tells little: what it does not tell is not 0."""
    pods = [held("cuda-2", A, 20, 25), held("b", A, 5)]
    bare = Shown(A, 0, 4100, None, None, None, None, "none")
    uses = (Use("cuda-2", 3800, None, idle_s=None), Use("b", None, None, idle_s=None))
    dark = Shown(B, 1, None, None, None, None, None, "none")
    body = page(replace(bare, uses=uses), dark, node="node-2")
    return scene([node_2()], pods, {"node-2": body})


def no_exporters() -> Scene:
    return scene([node_1(), node_2()], three_apps(), {})


def silent() -> Scene:
    """Each node's exporter is silent for a reason of its own."""
    uuids = {name: f"GPU-{name}" for name in ("a", "b", "c", "d", "e", "f")}
    nodes = [node_of(f"node-{n}", card(0, uuid=uuid)) for n, uuid in uuids.items()]
    pods = [held("p", uuids["a"], 5, node="node-a")]
    answers = {
        "node-a": Forbidden('pods "x" is forbidden: cannot create pods/portforward'),
        "node-b": Unavailable("no answer from port 9400 by port-forward: timed out"),
        "node-c": b"<html>login</html>",
        "node-d": page(Shown(uuids["d"], uses=(Use("q", 10),)), node="node-d"),
    }
    return scene(nodes, pods, answers, exporter("node-e", ready=False))


def ailing() -> Scene:
    """An exporter that answers, and knows less than it should."""
    late = {"memory": TICK - 300, "processes": TICK - 300, "utilization": TICK - 300}
    torn = {"memory": TICK, "utilization": TICK, "faults": TICK, "processes": TICK - 90}
    first = Says(times=late, troubles=("config", "processes"))
    second = Says(times=torn, failed=("memory", "utilization"))
    answers = {
        "node-1": page(Shown(G, 0, 9000), told=first, node="node-1"),
        "node-2": page(Shown(A), Shown(B, 1), told=second, node="node-2"),
    }
    return scene([node_1(), node_2()], three_apps(), answers)


def closed() -> Scene:
    """A sick card that does not answer, and a cordoned one that is used."""
    node = node_of(
        "node-2",
        card(0, 29, uuid=A, healthy=False),
        card(1, 29, uuid=B, cordoned=True),
        offered={names.MEMORY: 29, names.CORE: 100},
    )
    pods = [held("a", A, 20), held("b", B, 2)]
    well = Shown(B, 1, 700, 3, uses=(Use("b", 400, 3),))
    return scene([node], pods, {"node-2": page(well, node="node-2")})


def elsewhere() -> Scene:
    """Pods that are where they should not be, or of which nobody knows where."""
    pods = [
        held("mover", A, 20),
        asking("byhand", 5, node="node-2", phase="Running"),
        held("left-behind", "GPU-gone", 5),
    ]
    first = Shown(A, 0, 300, uses=(Use("mover", 0, 0),))
    uses = (
        Use("mover", 4000, 40, allocated=None),
        Use("byhand", 900, 7, allocated=None),
        Use("spy", 120, 1, namespace="edge", allocated=None),
    )
    body = page(first, Shown(B, 1, 5300, 48, uses=uses), node="node-2")
    return scene([node_2()], pods, {"node-2": body})


def containers() -> Scene:
    """Two containers share what their pod was allotted, and one takes too much."""
    web, model = Amount(5, 4), Amount(5, 8)
    parts = ContainerAmount("web", web), ContainerAmount("model", model)
    both = placement(
        "pair", node="node-2", shares=[Share(CardUUID(A), web + model, parts)]
    )
    alone = placement("alone", shares=[share(B, 29, 100)], node="node-2")
    leaving = bound_json(both, terminating=True)
    uses = (
        Use("pair", 1600, 3, container="web", over=True),
        Use("pair", 900, 30, container="model"),
    )
    first = Shown(A, 0, 2700, 33, uses=uses)
    second = Shown(B, 1, 7300, 99, uses=(Use("alone", 7000, 98),))
    answers = {"node-2": page(first, second, node="node-2")}
    return scene([node_2()], [leaving, bound_json(alone)], answers)


def crowd() -> Scene:
    """Hundreds of pods with long names on a node with one."""
    name = "ip-10-0-12-34.eu-west-1.compute.internal"
    node = node_of(name, card(0, 563, uuid=G, model="NVIDIA H200 141GB HBM3e"))
    pods = [f"bert-intent-detection-7b5f9c6d4b-x{n:03}k" for n in range(300)]
    uses = tuple(Use(pod, 200 + n / 7, n % 7) for n, pod in enumerate(pods))
    answers = {name: page(Shown(G, 0, 70000, 97, 88, 697, uses=uses), node=name)}
    return scene([node], [held(pod, G, 1, 0, node=name) for pod in pods], answers)


def no_gpu_nodes() -> Scene:
    return scene([node_of("plain", labelled=False)], [], {})


def not_installed() -> Scene:
    return Scene(cluster_states.not_installed())


SCENES: Mapping[str, Callable[[], Scene]] = {
    name: made
    for name, made in list(globals().items())
    if getattr(made, "__annotations__", {}) == {"return": Scene}
}
"""All functions here that make a scene of nothing."""


@cache
def top_of(name: str) -> TopView:
    """What top shows of a scene, which many tests read and none changes."""
    return SCENES[name]().top()
