"""What Node objects say to an installer, and the names of our own objects. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpushare.domain.model import Card
from gpushare.kube import facts, names
from gpushare.kube.annotations import decode_cards
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed

CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
OUR_RESOURCES = (names.CORE, names.MEMORY)
_WITH_QUOTA = (*OUR_RESOURCES, names.BITFUSION_GPU)
"""For quotas the device plugin may also offer the last one, which is no card."""
_SIGNS = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
)
"""Labels of NVIDIA and of node feature discovery; 10de is NVIDIA's PCI vendor ID."""
_MODEL_LABEL = "nvidia.com/gpu.product"
_OF_CARDS = re.compile(r"gpu|vcuda|^nvidia\.com/", re.IGNORECASE)
_OTHER_VENDORS = ("amd.com/", "gpu.intel.com/")
"""Their resources are GPUs, but not of NVIDIA."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node, as far as an installer cares."""

    name: str
    ready: bool
    control_plane: bool
    labelled: bool
    """Whether it has our label with the value ``true``."""
    label: bool
    """Whether it has our label with any value."""
    takes_scheduler: bool
    """Whether its label lets a second kube-scheduler run beside cards."""
    signs: tuple[str, ...]
    """Why it may have cards, in words."""
    others: tuple[str, ...]
    """Resources by which another device plugin offers cards."""
    offered: tuple[str, ...]
    """Our resources that are offered now."""
    stale_capacity: tuple[str, ...]
    """Our resources of which kubelet reports a capacity of 0."""
    known: tuple[str, ...]
    """Our resources in the node's capacity."""
    allocatable: tuple[str, ...]
    """Our resources in the node's allocatable."""
    cards: int | None
    """How many cards our device plugin has found; None if it has not reported."""
    units: int
    """Units of memory of these cards."""
    runtime: str
    """The container runtime as people write it, such as containerd 2.4.2."""
    handlers: tuple[str, ...]
    kubelet: str
    addresses: tuple[str, ...]
    annotations: tuple[str, ...]
    """Our annotations."""


def node_view(node: Json) -> NodeView:
    """Return the view of a Node object; what is absent is empty."""
    metadata, status = node["metadata"], node.get("status") or {}
    labels: Mapping[str, str] = metadata.get("labels") or {}
    info = status.get("nodeInfo") or {}
    annotations = metadata.get("annotations") or {}
    allocatable = status.get("allocatable") or {}
    capacity = status.get("capacity") or {}
    # Another plugin may offer the quota's resource, with more than 0.
    stale = tuple(one for one in _WITH_QUOTA if capacity.get(one) == "0")
    counted = [one for one in OUR_RESOURCES if one in capacity]
    offered = _offered(allocatable)
    cards = _cards(annotations)
    number = None if cards is None else len(cards)
    runtime = info.get("containerRuntimeVersion", "").replace("docker://", "Docker ")
    handlers = [one.get("name") for one in status.get("runtimeHandlers") or ()]
    ours = (names.CARDS, names.CORDON, names.CLEAR)
    return NodeView(
        name=metadata["name"],
        ready=facts.is_ready(node),
        control_plane=CONTROL_PLANE_LABEL in labels,
        label=names.GPU_NODE_LABEL in labels,
        labelled=facts.is_labelled(node),
        takes_scheduler=labels.get(names.SCHEDULER_NODE_LABEL) == "true",
        signs=_signs(labels, number),
        others=tuple(one for one in offered if one not in _WITH_QUOTA),
        offered=tuple(one for one in offered if one in OUR_RESOURCES),
        stale_capacity=stale,
        known=tuple(dict.fromkeys([*counted, *stale])),
        allocatable=tuple(one for one in _WITH_QUOTA if one in allocatable),
        cards=number,
        units=sum(card.units for card in cards or ()),
        runtime=runtime.replace("://", " ") or "an unknown container runtime",
        handlers=tuple(filter(None, handlers)),
        kubelet=info.get("kubeletVersion", ""),
        addresses=tuple(facts.addresses(node)),
        annotations=tuple(key for key in ours if key in annotations),
    )


def to_label(nodes: Sequence[NodeView], chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the chosen nodes that lack our label."""
    return tuple(
        node.name for node in nodes if node.name in chosen and not node.labelled
    )


def label_diff(name: str, *, on: bool) -> str:
    """Return a line of a diff: our label is added to a node or removed from it."""
    sign = "+" if on else "-"
    return f'{sign} Node {name}: label {names.GPU_NODE_LABEL}: "true"'


def minor(version: str) -> tuple[int, int] | None:
    """Return ``v1.36.3`` as (1, 36); None if it is no version.

    >>> minor("v1.36.3+k3s1")
    (1, 36)
    """
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None


def named(nodes: Sequence[NodeView], name: str) -> NodeView | None:
    """Return the node of this name; None if there is none."""
    return next((node for node in nodes if node.name == name), None)


def _signs(labels: Mapping[str, str], cards: int | None) -> tuple[str, ...]:
    found = [f"label {key}" for key in _SIGNS if labels.get(key) == "true"]
    if _MODEL_LABEL in labels:
        found.append(labels[_MODEL_LABEL])
    if cards:
        found.append(f"{cards} card{'' if cards == 1 else 's'} found before")
    return tuple(found)


def _offered(allocatable: Mapping[str, str]) -> list[str]:
    """Return the resources that stand for cards, without those at 0."""
    return sorted(
        name
        for name, amount in allocatable.items()
        if "/" in name
        and _OF_CARDS.search(name)
        and not name.startswith(_OTHER_VENDORS)
        and str(amount) != "0"
    )


def _cards(annotations: Mapping[str, str]) -> Sequence[Card] | None:
    try:
        return decode_cards(annotations[names.CARDS])
    except (KeyError, Malformed):
        return None
