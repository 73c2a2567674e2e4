"""Nodes and pods that nobody has, as the Kubernetes API would give them. Pure."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.domain.model import CORES_PER_CARD, Card, CardUUID
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards
from gpushare.kube.cluster import Json

CPU, MEMORY, PODS = "cpu", "memory", "pods"
CONTAINER = "main"
_PLENTY = {CPU: "1000000", MEMORY: "1000000Gi"}
"""More than any pod asks: where a scenario names only the other one of the two."""
_HOSTNAME = "kubernetes.io/hostname"
_KUBELETS = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
"""Labels that every kubelet sets, beside the one of its host's name."""
_CARDS = uuid.UUID("6d3c1f4e-2b57-4c0e-9b39-7f7a5d1c8e20")
"""The namespace of the UUIDs of cards that are made up: the same in every run."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a made-up pod asks; ``cpu`` and ``memory`` are Kubernetes quantities."""

    units: int = 0
    cores: int = 0
    cpu: str = ""
    memory: str = ""
    models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    policy: str = ""
    priority: int = 0
    node_selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Host:
    """What a made-up node offers beside cards; an empty text is without end."""

    cpu: str = ""
    memory: str = ""
    pods: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False


def card(node: str, index: int, units: int, model: str = "") -> Card:
    """Make up a card, whose UUID hangs on its node and index alone."""
    made = uuid.uuid5(_CARDS, f"{node}/{index}")
    return Card(CardUUID(f"GPU-{made}"), index, units, model=model)


def node(name: str, cards: Sequence[Card], host: Host) -> Json:
    """Make up a node."""
    annotations = {names.CARDS: encode_cards(cards)} if cards else {}
    offered: dict[str, str] = {}
    if cards:
        offered[names.MEMORY] = str(sum(card.units for card in cards))
        offered[names.CORE] = str(CORES_PER_CARD * len(cards))
    pods = "" if host.pods is None else str(host.pods)
    told = {CPU: host.cpu, MEMORY: host.memory, PODS: pods}
    if host.cpu or host.memory:
        # The books know a node's CPU and memory together, or not at all.
        told = {key: told[key] or plenty for key, plenty in _PLENTY.items()} | {
            PODS: pods
        }
    offered |= {key: text for key, text in told.items() if text}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**_KUBELETS, _HOSTNAME: name, **host.labels},
            "annotations": annotations,
        },
        "spec": {"unschedulable": True} if host.unschedulable else {},
        "status": {"allocatable": offered},
    }


def pod(namespace: str, name: str, asked: Asked) -> Json:
    """Make up a pod of one container."""
    limits = {names.MEMORY: asked.units, names.CORE: asked.cores}
    texts = {key: str(number) for key, number in limits.items() if number}
    requests = {CPU: asked.cpu, MEMORY: asked.memory}
    resources = {
        "limits": texts,
        "requests": texts | {key: text for key, text in requests.items() if text},
    }
    wishes = {
        names.MODELS: ",".join(asked.models),
        names.UUIDS: ",".join(asked.uuids),
        names.POLICY: asked.policy,
    }
    spec: Json = {"containers": [{"name": CONTAINER, "resources": resources}]}
    if asked.priority:
        spec["priority"] = asked.priority
    if asked.node_selector:
        spec["nodeSelector"] = dict(asked.node_selector)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "annotations": {key: text for key, text in wishes.items() if text},
        },
        "spec": spec,
    }


def named_after(template: Json, namespace: str, name: str) -> Json:
    """Make a pod of a manifest or a controller's template."""
    metadata = dict(template.get("metadata") or {})
    kept = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
    own = {"namespace": namespace, "name": name}
    return {**template, "apiVersion": "v1", "kind": "Pod", "metadata": kept | own}
