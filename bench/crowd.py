"""A crowd of nodes and running pods, put into etcd as the API server would have.

A hundred thousand pods through the API server take three writes each. Here one node and
one pod are made through it, the pod bound as the extender binds and reported running as
kubelet does. What the API server then shows is copied under other names, and written to
etcd while the API server is down: in JSON, which it reads as well as its own protobuf.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bench.stage import node_body
from gpushare.domain.model import (
    Amount,
    CardUUID,
    ContainerAmount,
    NodeName,
    Placement,
    PodRef,
    PodUID,
    Share,
)
from gpushare.kube.annotations import encode_placement
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import pod, post_pod, set_running
from tests.testbed.rest import Json, Rest

CARDS = 8
NODE = "template-node"
POD = "template-pod"
PLACEMENT = "baidu.com/vcuda-placement"
AT_ONCE: Json = {"gracePeriodSeconds": 0}
_AT = "2026-01-01T00:00:00.000Z"
_UNITS, _CORES = 4, 1
_BATCH = 100
"""etcd takes 128 in one transaction."""


@dataclass(frozen=True, slots=True)
class Template:
    """One node and one pod as the API server stores them, as text."""

    node: str
    pod: str
    pod_uid: str
    node_uid: str


def node_name(number: int) -> str:
    """Name a node of the crowd."""
    return f"node-{number:05d}"


def bind(rest: Rest, made: Json, node: str, card: str, amount: Amount) -> None:
    """Bind a pod as the extender does: node and placement in one write."""
    metadata = made["metadata"]
    ref = PodRef(PodUID(metadata["uid"]), metadata["namespace"], metadata["name"])
    share = Share(CardUUID(card), amount, (ContainerAmount("main", amount),))
    text = encode_placement(Placement(ref, NodeName(node), (share,)), _AT)
    path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}/binding"
    binding = {
        "metadata": {"name": ref.name, "annotations": {PLACEMENT: text}},
        "target": {"kind": "Node", "name": node},
    }
    rest.must("POST", path, binding)


def template(rest: Rest) -> Template:
    """Make a node and a running pod, read them, and remove them."""
    node_path, pod_path = (
        f"/api/v1/nodes/{NODE}",
        f"/api/v1/namespaces/default/pods/{POD}",
    )
    rest.must("POST", "/api/v1/nodes", node_body(NODE, CARDS))
    made = post_pod(rest, pod(POD, units=_UNITS, cores=_CORES))
    bind(rest, made, NODE, f"GPU-{NODE}-0", Amount(_CORES, _UNITS))
    set_running(rest, made)
    node, running = rest.must("GET", node_path), rest.must("GET", pod_path)
    rest.must("DELETE", pod_path, AT_ONCE)
    rest.must("DELETE", node_path)
    for each in (node, running):
        del each["metadata"]["resourceVersion"]
    return Template(
        node=json.dumps(node, separators=(",", ":")),
        pod=json.dumps(running, separators=(",", ":")),
        pod_uid=running["metadata"]["uid"],
        node_uid=node["metadata"]["uid"],
    )


def nodes(of: Template, count: int) -> Iterator[tuple[str, str]]:
    """Give etcd's key and value of each node."""
    for number in range(count):
        name = node_name(number)
        swaps = {NODE: name, of.node_uid: _uid(1, number)}
        yield f"/registry/minions/{name}", swapped(of.node, swaps)


def pods(of: Template, count: int, node_count: int) -> Iterator[tuple[str, str]]:
    """Give etcd's key and value of each pod; they fill the nodes' cards in turn."""
    for number in range(count):
        node, name = node_name(number % node_count), f"pod-{number:06d}"
        card = number // node_count % CARDS
        swaps = {
            f"GPU-{NODE}-0": f"GPU-{node}-{card}",
            NODE: node,
            POD: name,
            of.pod_uid: _uid(2, number),
        }
        yield f"/registry/pods/default/{name}", swapped(of.pod, swaps)


def swapped(text: str, swaps: Mapping[str, str]) -> str:
    """Replace each name by another, in the order given."""
    for old, new in swaps.items():
        text = text.replace(old, new)
    return text


def put(etcd: Rest, pairs: Iterable[tuple[str, str]]) -> None:
    """Write keys and values, a hundred in a transaction."""
    batch: list[Json] = []
    for key, value in pairs:
        batch.append({"requestPut": {"key": _base64(key), "value": _base64(value)}})
        if len(batch) == _BATCH:
            etcd.must("POST", "/v3/kv/txn", {"success": batch})
            batch = []
    if batch:
        etcd.must("POST", "/v3/kv/txn", {"success": batch})


def gather(plane: ControlPlane, node_count: int, pod_count: int) -> None:
    """Fill the cluster; the API server comes back with all of it."""
    of = template(plane.rest)
    plane.stop_apiserver()
    put(plane.etcd, nodes(of, node_count))
    put(plane.etcd, pods(of, pod_count, node_count))
    plane.start_apiserver()


def _uid(kind: int, number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{kind:012x}"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
