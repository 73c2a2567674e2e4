"""Read the facts about nodes that an install, an uninstall and a check judge."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpushare.domain.model import Card
from gpushare.kube import facts, names
from gpushare.kube.annotations import decode_cards
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpushare.kube.objects import Objects
from gpushare.kube.words import counted

LABELLED = f'label {names.GPU_NODE_LABEL}: "true"'
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
class SharedCards:
    """What a device plugin has found on its node."""

    count: int
    units: int
    sick: str
    """Why its first card is sick, if all of them are; else empty."""


@dataclass(frozen=True, slots=True)
class NodeRuntime:
    """The container runtime and kubelet of a node."""

    name: str
    """As people write it, such as containerd 2.4.2."""
    handlers: tuple[str, ...]
    kubelet: str
    """The version of kubelet."""
    status: Json
    """The part of the node's status by which the device plugin chooses how to inject
    cards."""


@dataclass(frozen=True, slots=True)
class NodeMarks:
    """What gpushare has written on a node, and kubelet because of it."""

    label: bool
    """Whether it has gpushare's label with any value."""
    isolation: str
    """Its label with the isolation tier; empty without it."""
    annotations: tuple[str, ...]
    capacity: tuple[str, ...]
    """gpushare's resources in the node's capacity."""
    stale_capacity: tuple[str, ...]
    """Those of which kubelet reports a capacity of 0."""
    allocatable: tuple[str, ...]

    @property
    def any_written(self) -> bool:
        """Whether gpushare has labelled or annotated the node."""
        return bool(self.label or self.isolation or self.annotations)


@dataclass(frozen=True, slots=True)
class SurveyedNode:
    """One node, as far as an installer cares."""

    name: str
    ready: bool
    silent: bool
    """Whether its kubelet has stopped to report, so it starts and ends no pod."""
    control_plane: bool
    labelled: bool
    """Whether it has gpushare's label with the value ``true``."""
    takes_scheduler: bool
    """Whether its label lets a second kube-scheduler run beside cards."""
    signs: tuple[str, ...]
    """Why it may have cards, in words."""
    others: tuple[str, ...]
    """Resources by which another device plugin offers cards."""
    offered: tuple[str, ...]
    taints: tuple[str, ...]
    """Those that keep pods away, as kubectl writes them."""
    addresses: tuple[str, ...]
    cards: SharedCards | None
    """None if the device plugin has not reported."""
    runtime: NodeRuntime
    marks: NodeMarks

    @property
    def has_cards(self) -> bool:
        """Whether its device plugin has found any card."""
        return bool(self.cards and self.cards.count)

    @property
    def sick(self) -> str:
        """Why its first card is sick, if all of them are; else empty."""
        return self.cards.sick if self.cards else ""


def survey_node(node: Json) -> SurveyedNode:
    """Return the view of a Node object; what is absent is empty."""
    metadata, status = node["metadata"], node.get("status") or {}
    labels: Mapping[str, str] = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    cards = _shared_cards(annotations)
    offered = _offered(status.get("allocatable") or {})
    return SurveyedNode(
        name=metadata["name"],
        ready=facts.is_ready(node),
        silent=facts.is_silent(node),
        control_plane=facts.is_control_plane(node),
        labelled=facts.is_labelled(node),
        takes_scheduler=labels.get(names.SCHEDULER_NODE_LABEL) == "true",
        signs=_signs(labels, cards),
        others=tuple(name for name in offered if name not in _WITH_QUOTA),
        offered=tuple(name for name in offered if name in OUR_RESOURCES),
        taints=tuple(
            f"{taint['key']}:{taint['effect']}"
            for taint in (node.get("spec") or {}).get("taints") or ()
            if taint.get("effect") != "PreferNoSchedule"
        ),
        addresses=tuple(facts.addresses(node)),
        cards=cards,
        runtime=_runtime(status),
        marks=_marks(labels, annotations, status),
    )


def _runtime(status: Json) -> NodeRuntime:
    info = status.get("nodeInfo") or {}
    runtime = info.get("containerRuntimeVersion", "").replace("docker://", "Docker ")
    handlers = [each.get("name") for each in status.get("runtimeHandlers") or ()]
    return NodeRuntime(
        name=runtime.replace("://", " ") or "an unknown container runtime",
        handlers=tuple(filter(None, handlers)),
        kubelet=info.get("kubeletVersion", ""),
        status=_injecting(status),
    )


def _marks(
    labels: Mapping[str, str], annotations: Mapping[str, str], status: Json
) -> NodeMarks:
    capacity = status.get("capacity") or {}
    allocatable = status.get("allocatable") or {}
    # Another plugin may offer the quota's resource, with more than 0.
    stale = tuple(name for name in _WITH_QUOTA if capacity.get(name) == "0")
    counted = [name for name in OUR_RESOURCES if name in capacity]
    written = (names.CARDS, names.CORDON, names.CLEAR)
    return NodeMarks(
        label=names.GPU_NODE_LABEL in labels,
        isolation=labels.get(names.ISOLATION, ""),
        annotations=tuple(key for key in written if key in annotations),
        capacity=tuple(dict.fromkeys([*counted, *stale])),
        stale_capacity=stale,
        allocatable=tuple(name for name in _WITH_QUOTA if name in allocatable),
    )


def read_nodes(objects: Objects) -> tuple[SurveyedNode, ...]:
    """Return all nodes, sorted by name."""
    nodes = map(survey_node, objects.list("v1", "Node"))
    return tuple(sorted(nodes, key=lambda node: node.name))


def nodes_to_label(
    nodes: Sequence[SurveyedNode], chosen: Sequence[str]
) -> tuple[str, ...]:
    """Return the chosen nodes that lack gpushare's label."""
    return tuple(
        node.name for node in nodes if node.name in chosen and not node.labelled
    )


def minor_version(version: str) -> tuple[int, int] | None:
    """Return ``v1.36.3`` as (1, 36); None if it is no version."""
    number = _VERSION.match(version)
    return (int(number[1]), int(number[2])) if number else None


def find_node(nodes: Sequence[SurveyedNode], name: str) -> SurveyedNode | None:
    """Return the node of this name; None if there is none."""
    return next((node for node in nodes if node.name == name), None)


def why_unknown(nodes: Sequence[SurveyedNode], wanted: Sequence[str]) -> str:
    """Return what is wrong with the names of nodes; "" if all are nodes."""
    there = [node.name for node in nodes]
    unknown = [name for name in wanted if name not in there]
    known = ", ".join(there) or "none at all"
    if not wanted:
        return f"No node was named; the cluster's nodes are {known}."
    if not unknown:
        return ""
    is_are = "is no node" if len(unknown) == 1 else "are no nodes"
    listed = ", ".join(name or '""' for name in unknown)
    return f"{listed} {is_are} of this cluster; its nodes are {known}."


def _signs(labels: Mapping[str, str], cards: SharedCards | None) -> tuple[str, ...]:
    signs = [f"label {key}" for key in _SIGNS if labels.get(key) == "true"]
    if _MODEL_LABEL in labels:
        signs.append(labels[_MODEL_LABEL])
    if cards and cards.count:
        signs.append(f"{counted(cards.count, 'card')} found before")
    return tuple(signs)


def _injecting(status: Json) -> Json:
    """Return a node's status with nothing but its runtime and kubelet's version."""
    info = status.get("nodeInfo") or {}
    kept: Json = {
        "nodeInfo": {
            key: info[key]
            for key in ("kubeletVersion", "containerRuntimeVersion")
            if key in info
        }
    }
    handlers = status.get("runtimeHandlers")
    if handlers is not None:
        kept["runtimeHandlers"] = [{"name": each.get("name")} for each in handlers]
    return kept


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


def _shared_cards(annotations: Mapping[str, str]) -> SharedCards | None:
    try:
        cards = decode_cards(annotations[names.CARDS])
    except (KeyError, Malformed):
        return None
    return SharedCards(len(cards), sum(card.units for card in cards), _why_sick(cards))


def _why_sick(cards: Sequence[Card]) -> str:
    if not cards or any(card.healthy for card in cards):
        return ""
    return next((card.reason for card in cards if card.reason), "")
