"""What a node tells an installer: is it well, has it cards, who else hands them out.

Pure; reads Node objects, and nothing else does so here.

The names that our own objects are known by, in a cluster.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpushare.kube import names
from gpushare.kube.annotations import decode_cards
from gpushare.kube.cluster import Json
from gpushare.kube.facts import is_ready
from gpushare.kube.json_reader import Malformed

CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
OUR_RESOURCES = (names.CORE, names.MEMORY)
_WITH_QUOTA = (*OUR_RESOURCES, names.BITFUSION_GPU)
"""For quotas the device plugin may offer the last one too, which hands out no card."""
_SIGNS = {
    "nvidia.com/gpu.present": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/pci-0300_10de.present": "true",
    "feature.node.kubernetes.io/pci-0302_10de.present": "true",
}
"""Labels of NVIDIA's and the node feature discovery's; 10de is NVIDIA's PCI vendor."""
_MODEL_LABEL = "nvidia.com/gpu.product"
_HANDS_OUT_CARDS = re.compile(r"gpu|vcuda|^nvidia\.com/", re.IGNORECASE)
_OTHER_VENDORS = ("amd.com/", "gpu.intel.com/")
"""Their resources have GPUs in their names, but no card of NVIDIA's."""
_DOCKER = "docker://"
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node, as far as an installer cares.

    ``label`` tells whether it has our label with any value, ``labelled`` with ``true``;
    ``signs`` says in words why it may have cards, empty where nothing speaks for it;
    ``others`` are the resources by which another tool hands out cards there;
    ``cards`` and ``units`` are what our device plugin has found, None before it has
    said anything; ``known`` and
    ``allocatable`` are resources of ours that its status names, ``leftover`` those of
    which kubelet counts 0.
    """

    name: str
    ready: bool
    control_plane: bool
    labelled: bool
    label: bool
    signs: tuple[str, ...]
    others: tuple[str, ...]
    offered: tuple[str, ...]
    leftover: tuple[str, ...]
    known: tuple[str, ...]
    allocatable: tuple[str, ...]
    cards: int | None
    units: int | None
    runtime: str
    handlers: tuple[str, ...]
    kubelet: str
    architecture: str
    addresses: tuple[str, ...]
    annotations: tuple[str, ...]
    takes_scheduler: bool = False
    """Whether it has the label that lets a second kube-scheduler run beside cards."""


def node_view(node: Json) -> NodeView:
    """Read a Node object; what it does not say is empty."""
    metadata, status = node["metadata"], node.get("status") or {}
    labels: Mapping[str, str] = metadata.get("labels") or {}
    info = status.get("nodeInfo") or {}
    annotations = metadata.get("annotations") or {}
    allocatable = status.get("allocatable") or {}
    capacity = status.get("capacity") or {}
    cards, units = _cards(annotations)
    return NodeView(
        name=metadata["name"],
        ready=is_ready(node),
        control_plane=CONTROL_PLANE_LABEL in labels,
        label=names.GPU_NODE_LABEL in labels,
        labelled=labels.get(names.GPU_NODE_LABEL) == "true",
        signs=_signs(labels, cards),
        others=tuple(one for one in _offered(allocatable) if one not in _WITH_QUOTA),
        offered=tuple(one for one in _offered(allocatable) if _is_ours(one)),
        leftover=_leftover(capacity),
        known=tuple(dict.fromkeys([*_ours(capacity), *_leftover(capacity)])),
        allocatable=tuple(one for one in _WITH_QUOTA if one in allocatable),
        cards=cards,
        units=units,
        runtime=info.get("containerRuntimeVersion", ""),
        handlers=_handlers(status),
        kubelet=info.get("kubeletVersion", ""),
        architecture=info.get("architecture", ""),
        addresses=_addresses(status),
        annotations=tuple(
            key
            for key in (names.CARDS, names.CORDON, names.CLEAR)
            if key in annotations
        ),
        takes_scheduler=labels.get(names.SCHEDULER_NODE_LABEL) == "true",
    )


def to_label(nodes: Sequence[NodeView], chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the chosen nodes that lack our label."""
    return tuple(
        node.name for node in nodes if node.name in chosen and not node.labelled
    )


def label_diff(name: str, *, on: bool) -> str:
    """Return a line of a diff: our label is added to a node or removed from it."""
    sign = "+" if on else "-"
    return f'{sign} Node {name}: label {names.GPU_NODE_LABEL}: "true"\n'


def minor(version: str) -> tuple[int, int] | None:
    """Read ``v1.36.3`` as (1, 36); None where it is no version.

    >>> minor("v1.36.3+k3s1")
    (1, 36)
    """
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None


def named(nodes: Sequence[NodeView], name: str) -> NodeView | None:
    """Find a node by its name."""
    return next((node for node in nodes if node.name == name), None)


def runtime(node: NodeView) -> str:
    """Name a container runtime as people do.

    ``containerd://2.4.2`` is containerd 2.4.2.
    """
    if node.runtime.startswith(_DOCKER):
        return f"Docker {node.runtime.removeprefix(_DOCKER)}"
    return node.runtime.replace("://", " ") or "a runtime that it does not tell"


def _signs(labels: Mapping[str, str], cards: int | None) -> tuple[str, ...]:
    found = [
        f"label {key}" for key, value in _SIGNS.items() if labels.get(key) == value
    ]
    if _MODEL_LABEL in labels:
        found.append(labels[_MODEL_LABEL])
    if cards:
        found.append(f"{cards} card{'' if cards == 1 else 's'} found before")
    return tuple(found)


def _offered(allocatable: Mapping[str, str]) -> list[str]:
    """Give the resources by which somebody hands out cards, those at 0 left out."""
    return sorted(
        name
        for name, amount in allocatable.items()
        if "/" in name
        and _HANDS_OUT_CARDS.search(name)
        and not name.startswith(_OTHER_VENDORS)
        and str(amount) != "0"
    )


def _ours(amounts: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(one for one in OUR_RESOURCES if one in amounts)


def _leftover(capacity: Mapping[str, str]) -> tuple[str, ...]:
    """Give those at 0; another plugin may be who offers the quota's, at more."""
    return tuple(one for one in _WITH_QUOTA if capacity.get(one) == "0")


def _is_ours(resource: str) -> bool:
    return resource in OUR_RESOURCES


def _cards(annotations: Mapping[str, str]) -> tuple[int | None, int | None]:
    text = annotations.get(names.CARDS)
    if text is None:
        return None, None
    try:
        cards = decode_cards(text)
    except Malformed:
        return None, None
    return len(cards), sum(card.units for card in cards)


def _handlers(status: Json) -> tuple[str, ...]:
    handlers = status.get("runtimeHandlers") or ()
    return tuple(one["name"] for one in handlers if one.get("name"))


def _addresses(status: Json) -> tuple[str, ...]:
    return tuple(one.get("address", "") for one in status.get("addresses") or ())
