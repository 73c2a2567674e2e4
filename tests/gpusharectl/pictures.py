"""Clusters to inspect: pictures with a default for everything."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from gpushare.domain.model import Card
from gpushare.domain.policies import Choice
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.state.placements import reckoned
from gpusharectl.state.read import Picture, Trouble
from tests.builders import node_json, pod_json

NOW = datetime(2026, 1, 2, 3, 10, 0, tzinfo=UTC)
"""Some five minutes after everything in ``tests.builders`` was made."""
MADE = "2026-01-02T03:04:05Z"
OURS = "/etc/kubernetes/vcuda/scheduler.yaml"
RTX = "RTX 3090"


def node_of(
    name: str,
    *cards: Card,
    ready: str = "True",
    labelled: bool = True,
    unschedulable: bool = False,
    offered: Mapping[str, int] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """A node that is as it should be: kubelet offers what the well cards have."""
    node = node_json(name, *cards, annotations=annotations)
    if labelled:
        node["metadata"]["labels"] = {names.GPU_NODE_LABEL: "true"}
    well = [card for card in cards if card.healthy]
    plain = {names.MEMORY: sum(c.units for c in well), names.CORE: 100 * len(well)}
    told = plain if offered is None else offered
    node["status"] = {
        "conditions": [{"type": "Ready", "status": ready}],
        "allocatable": {key: str(number) for key, number in told.items()},
    }
    node["spec"] = {"unschedulable": True} if unschedulable else {}
    return node


def part(name: str, part_of: str, *, node: str = "", ready: bool = True) -> Json:
    """A pod of ours in kube-system."""
    pod = pod_json(name, node=node, phase="Running")
    pod["metadata"]["namespace"] = "kube-system"
    pod["metadata"]["labels"] = {
        "app.kubernetes.io/part-of": "gpushare",
        "app.kubernetes.io/name": part_of,
    }
    told = "True" if ready else "False"
    pod["status"]["conditions"] = [{"type": "Ready", "status": told}]
    return pod


def extender(name: str = "gpushare-extender-x", **more: object) -> Json:
    return part(name, "gpushare-extender", **more)  # type: ignore[arg-type]


def plugin(node: str, **more: object) -> Json:
    name = f"gpushare-device-plugin-{node}"
    return part(name, "gpushare-device-plugin", node=node, **more)  # type: ignore[arg-type]


def kube_scheduler(*words: str, node: str = "cp") -> Json:
    """kube-scheduler's mirror pod, as kubeadm runs it."""
    pod = pod_json(f"kube-scheduler-{node}", node=node, phase="Running")
    pod["metadata"]["namespace"] = "kube-system"
    pod["metadata"]["labels"] = {"component": "kube-scheduler"}
    pod["spec"]["containers"][0]["command"] = ["kube-scheduler", *words]
    return pod


def in_order(*nodes: Json) -> tuple[Json, ...]:
    """The parts that a cluster of these nodes should have, all well."""
    plugins = [plugin(node["metadata"]["name"]) for node in nodes]
    return (extender(), kube_scheduler(f"--config={OURS}"), *plugins)


def aged(*pods: Json) -> list[Json]:
    """The same pods with the time at which they were made."""
    for pod in pods:
        pod["metadata"]["creationTimestamp"] = MADE
    return list(pods)


def refused_by_scheduler(pod: Json, words: str) -> Json:
    """The pod with what kube-scheduler has said of it."""
    pod["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": words,
        }
    ]
    return pod


def picture(
    nodes: Sequence[Json] = (),
    pods: Iterable[Json] = (),
    *,
    parts: Sequence[Json] | None = None,
    choice: Choice | None = None,
    unasked: str = "",
    troubles: Sequence[Trouble] = (),
) -> Picture:
    """What is seen of such a cluster; by default all parts are well."""
    found = tuple(pods)
    well = in_order(*nodes) if parts is None else tuple(parts)
    books = reckoned(nodes, found, choice or Choice(), unasked)
    return Picture(books, tuple(nodes), found, well, NOW, tuple(troubles))
