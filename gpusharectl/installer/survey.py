"""Read the facts about nodes, a cluster and a host, which ``preflight`` judges."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.domain.model import Card
from gpushare.kube import facts, names
from gpushare.kube.annotations import decode_cards
from gpushare.kube.cluster import Json
from gpushare.kube.facts import (
    DEVICE_PLUGIN,
    EXPORTER,
    EXTENDER,
    OURS,
    SECOND_SCHEDULER,
    SYSTEM,
    WEBHOOK,
    node_of,
)
from gpushare.kube.json_reader import Malformed
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.kube_scheduler.drift import (
    Flavour,
    flavour,
    has_driver,
    this_node,
)
from gpusharectl.installer.kube_scheduler.host_files import HostFiles
from gpusharectl.installer.kube_scheduler.static_pod import STAMP
from gpusharectl.installer.manifests import NVIDIA, SCHEDULER, image_of, settings_of
from gpusharectl.installer.options import DRA, ISOLATION, ON, POLICY, TLS, UI
from gpusharectl.installer.webhook.objects import (
    CERTIFICATE,
    CONFIGURATIONS,
    NAMESPACE,
    SECRET,
    InstalledWebhook,
    is_cert_managers,
)

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
class NodeFacts:
    """One node, as far as an installer cares."""

    name: str
    ready: bool
    silent: bool
    """Whether its kubelet has stopped to report, so it starts and ends no pod."""
    control_plane: bool
    labelled: bool
    """Whether it has gpushare's label with the value ``true``."""
    label: bool
    """Whether it has gpushare's label with any value."""
    takes_scheduler: bool
    """Whether its label lets a second kube-scheduler run beside cards."""
    signs: tuple[str, ...]
    """Why it may have cards, in words."""
    others: tuple[str, ...]
    """Resources by which another device plugin offers cards."""
    offered: tuple[str, ...]
    stale_capacity: tuple[str, ...]
    """gpushare's resources of which kubelet reports a capacity of 0."""
    known: tuple[str, ...]
    """gpushare's resources in the node's capacity."""
    allocatable: tuple[str, ...]
    cards: int | None
    """How many cards the device plugin has found; None if it has not reported."""
    units: int
    sick: str
    """Why its first card is sick, if all of them are; else empty."""
    runtime: str
    """The container runtime as people write it, such as containerd 2.4.2."""
    handlers: tuple[str, ...]
    taints: tuple[str, ...]
    """Those that keep pods away, as kubectl writes them."""
    status: Json
    """The part of its status by which the device plugin chooses how to inject cards."""
    kubelet: str
    addresses: tuple[str, ...]
    annotations: tuple[str, ...]
    isolation: str = ""
    """Its label with the isolation tier; empty without it."""


def node_facts(node: Json) -> NodeFacts:
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
    written = (names.CARDS, names.CORDON, names.CLEAR)
    return NodeFacts(
        name=metadata["name"],
        ready=facts.is_ready(node),
        silent=facts.is_silent(node),
        control_plane=facts.is_control_plane(node),
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
        sick=_why_sick(cards or ()),
        runtime=runtime.replace("://", " ") or "an unknown container runtime",
        handlers=tuple(filter(None, handlers)),
        taints=tuple(
            f"{one['key']}:{one['effect']}"
            for one in (node.get("spec") or {}).get("taints") or ()
            if one.get("effect") != "PreferNoSchedule"
        ),
        status=_injecting(status),
        kubelet=info.get("kubeletVersion", ""),
        addresses=tuple(facts.addresses(node)),
        annotations=tuple(key for key in written if key in annotations),
        isolation=labels.get(names.ISOLATION, ""),
    )


def to_label(nodes: Sequence[NodeFacts], chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the chosen nodes that lack gpushare's label."""
    return tuple(
        node.name for node in nodes if node.name in chosen and not node.labelled
    )


def minor(version: str) -> tuple[int, int] | None:
    """Return ``v1.36.3`` as (1, 36); None if it is no version."""
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None


def named(nodes: Sequence[NodeFacts], name: str) -> NodeFacts | None:
    """Return the node of this name; None if there is none."""
    return next((node for node in nodes if node.name == name), None)


def unknown_nodes(nodes: Sequence[NodeFacts], wanted: Sequence[str]) -> str:
    """Return what is wrong with the names of nodes; "" if all are nodes."""
    there = [node.name for node in nodes]
    unknown = [name for name in wanted if name not in there]
    known = ", ".join(there) or "none at all"
    if not wanted:
        return f"No node was named; the cluster's nodes are {known}."
    if not unknown:
        return ""
    is_are = "is no node" if len(unknown) == 1 else "are no nodes"
    them = ", ".join(one or '""' for one in unknown)
    return f"{them} {is_are} of this cluster; its nodes are {known}."


def _signs(labels: Mapping[str, str], cards: int | None) -> tuple[str, ...]:
    found = [f"label {key}" for key in _SIGNS if labels.get(key) == "true"]
    if _MODEL_LABEL in labels:
        found.append(labels[_MODEL_LABEL])
    if cards:
        found.append(f"{cards} card{'' if cards == 1 else 's'} found before")
    return tuple(found)


def _injecting(status: Json) -> Json:
    """Return a node's status with nothing but its runtime and kubelet's version."""
    info = status.get("nodeInfo") or {}
    found: Json = {
        "nodeInfo": {
            key: info[key]
            for key in ("kubeletVersion", "containerRuntimeVersion")
            if key in info
        }
    }
    handlers = status.get("runtimeHandlers")
    if handlers is not None:
        found["runtimeHandlers"] = [{"name": one.get("name")} for one in handlers]
    return found


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


def _why_sick(cards: Sequence[Card]) -> str:
    if not cards or any(card.healthy for card in cards):
        return ""
    return next((card.reason for card in cards if card.reason), "")


GUARD = ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy")
REVISION = ("apps/v1", "ControllerRevision")
OPERATOR = ("monitoring.coreos.com/v1", "ServiceMonitor")
RUNTIME_CLASS = ("node.k8s.io/v1", "RuntimeClass")
_NOT_EVERYWHERE = (
    *(GUARD[1], f"{GUARD[1]}Binding"),
    *(OPERATOR[1], "PodMonitor", "PrometheusRule"),
    *("Issuer", "Certificate"),
    "DeviceClass",
)
_SCHEDULER_PODS = "component=kube-scheduler"
_LEASES = "leases.coordination.k8s.io"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource, such as ``patch`` on ``daemonsets.apps``."""

    verb: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{where}"


def resource(api_version: str, kind: str) -> str:
    """Return a kind's resource as rights name it.

    >>> resource("rbac.authorization.k8s.io/v1", "ClusterRole")
    'clusterroles.rbac.authorization.k8s.io'
    """
    word = kind.lower()
    if word.endswith("y"):
        word = f"{word[:-1]}ies"
    else:
        word += "es" if word.endswith("s") else "s"
    group, slash, _ = api_version.partition("/")
    return f"{word}.{group}" if slash else word


LIST_NODES, _LIST_PODS = Right("list", "nodes"), Right("list", "pods")
_ALWAYS = (
    LIST_NODES,
    Right("patch", "nodes"),
    _LIST_PODS,
    *(Right(verb, "pods", SYSTEM) for verb in ("get", "create", "delete")),
    Right("get", "pods/log", SYSTEM),
    Right("list", "events", SYSTEM),
    *(Right(verb, _LEASES, SYSTEM) for verb in ("get", "create", "patch", "delete")),
)
CHECK_RIGHTS = (
    LIST_NODES,
    *(Right(verb, "pods", SYSTEM) for verb in ("get", "create", "delete")),
    Right("list", "events", SYSTEM),
)
"""To check nodes by short-lived pods."""
_JOBS = (*(Right(verb, "jobs.batch", SYSTEM) for verb in ("get", "create", "delete")),)
PROBE = Right("patch", "pods", SYSTEM)
"""To prove that kube-scheduler calls the extender: the probe pod is changed."""
REVISIONS = Right("list", resource(*REVISION), SYSTEM)
"""To tell which pods of a DaemonSet are made from its present template."""
STATUS = Right("patch", "nodes/status")
"""To remove the capacity of 0 that kubelet keeps."""
LEFTOVERS = (
    *(Right(verb, "secrets", SYSTEM) for verb in ("get", "delete")),
    *(Right(verb, "jobs.batch", SYSTEM) for verb in ("list", "delete")),
)
"""To remove the webhook's certificate, and Jobs that a killed run has left."""
WEBHOOKS = (
    Right("create", "pods", NAMESPACE),
    Right("list", resource(*RUNTIME_CLASS)),
    *(Right("delete", resource(one.api_version, one.kind)) for one in CONFIGURATIONS),
)
"""For the webhook's probe pod, its configurations, and the RuntimeClasses."""


def needed(
    refs: Iterable[Ref], *verbs: str, more: Iterable[Right] = (), jobs: bool = False
) -> tuple[Right, ...]:
    """Return the rights for these verbs on all objects, and what is always needed.

    ``jobs``: also to run Jobs on other hosts.
    """
    found = [*_ALWAYS, *more, *(_JOBS if jobs else ())]
    for ref in refs:
        name = resource(ref.api_version, ref.kind)
        found += [Right(verb, name, ref.namespace) for verb in verbs]
    return tuple(dict.fromkeys(found))


def missing(objects: Objects, rights: Sequence[Right]) -> tuple[Right, ...]:
    """Return those of the rights that the user does not have."""
    return tuple(
        one for one in rights if not objects.may(one.verb, one.resource, one.namespace)
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """The state of a cluster and of this host before anything is done."""

    version: str
    flavour: Flavour
    nodes: tuple[NodeFacts, ...]
    here: str = ""
    """The node that this host is; "" if it is none of this cluster's."""
    driver_here: bool = False
    missing: tuple[Right, ...] = ()
    schedulers: tuple[str, ...] = ()
    """The nodes on which a kube-scheduler runs as a static pod."""
    stamped: tuple[str, ...] = ()
    """The nodes whose kube-scheduler has the installer's annotation."""
    extended: bool = False
    """Whether the extender is installed for the cluster's own kube-scheduler."""
    second: bool = False
    plugin: bool = False
    runtime_classes: tuple[str, ...] = ()
    """The RuntimeClasses that provide cards."""
    guard: bool = True
    """Whether the API server serves ValidatingAdmissionPolicies."""
    images: Mapping[str, str] = field(default_factory=dict)
    """The image that each workload of gpushare runs, the scheduler's side first."""
    pull_secrets: tuple[str, ...] = ()
    """The Secrets with which the workloads' images are pulled."""
    tls: bool = False
    operator: bool = False
    """Whether the API server serves the kinds of Prometheus Operator."""
    owned: Mapping[str, str] = field(default_factory=dict)
    """Which other tools own which objects of gpushare."""
    ui: bool = False
    policy: str = ""
    """The extender's policy; "" if it has its default."""
    isolation: str = ""
    """The device plugin's isolation tier; "" if it has its default."""
    dra: bool = False
    """Whether the device plugin offers cards to ResourceClaims."""
    webhook: InstalledWebhook | None = None
    by_cert_manager: bool = False
    """Whether cert-manager makes the webhook's certificate."""
    cert_manager: bool = False
    """Whether the API server serves cert-manager's Certificate."""

    @property
    def control_plane(self) -> tuple[str, ...]:
        """The nodes with the label of a control plane."""
        return tuple(node.name for node in self.nodes if node.control_plane)


_WORKLOADS = tuple(
    Ref("apps/v1", kind, name, SYSTEM)
    for kind, name in (
        ("DaemonSet", EXTENDER),
        ("Deployment", SECOND_SCHEDULER),
        ("DaemonSet", DEVICE_PLUGIN),
        ("DaemonSet", EXPORTER),
        ("Deployment", WEBHOOK),
    )
)


_INSTANCE = "app.kubernetes.io/instance"


def owner_of(body: Json) -> str:
    """Return which tool keeps an object as it is, such as Helm's release gpushare.

    "" if none is known: Helm, Argo CD and Flux mark what they apply.
    """
    metadata = body["metadata"]
    annotations, labels = (metadata.get(key) or {} for key in ("annotations", "labels"))
    if name := annotations.get("meta.helm.sh/release-name"):
        return f"Helm's release {name}"
    if tracked := annotations.get("argocd.argoproj.io/tracking-id"):
        return f"Argo CD's application {tracked.partition(':')[0]}"
    if name := labels.get("kustomize.toolkit.fluxcd.io/name"):
        return f"Flux's Kustomization {name}"
    # Before version 3 Argo CD marks by a label, which others use too.
    writers = (one.get("manager", "") for one in metadata.get("managedFields") or ())
    name = labels.get(_INSTANCE)
    if name and any(writer.startswith("argocd") for writer in writers):
        return f"Argo CD's application {name}"
    return ""


def owned_by(bodies: Iterable[Json]) -> Mapping[str, str]:
    """Return the owners of those that have one, by the object as ``Kind name``."""
    owners = {
        f"{body['kind']} {body['metadata']['name']}": owner_of(body) for body in bodies
    }
    return {name: owner for name, owner in owners.items() if owner}


def survey(
    objects: Objects,
    files: HostFiles,
    rights: Iterable[Right],
    *,
    told: str = "",
    webhook: bool = False,
) -> Facts:
    """Return the facts about a cluster and this host.

    ``told`` is this host's node, if the operator names it. ``webhook``: one will be
    installed, so it matters who makes its certificate. If a right to read is missing,
    the fact is empty and ``missing`` names the right.
    """
    lacking = missing(objects, tuple(rights))
    nodes = () if LIST_NODES in lacking else read_nodes(objects)
    kind = flavour(files)
    here = this_node(files, kind, {node.name: node.addresses for node in nodes})
    if told:
        here = told if named(nodes, told) else ""
    found = [body for ref in _WORKLOADS for body in _one(objects, ref)]
    workloads = {body["metadata"]["name"]: body for body in found}
    settings = settings_of(found, "extender")
    plugin = settings_of(found, "device-plugin")
    configurations = [body for ref in CONFIGURATIONS for body in _one(objects, ref)]
    installed = InstalledWebhook({}) if configurations else None
    if deployment := workloads.get(WEBHOOK):
        variables = settings_of([deployment], "webhook")
        installed = InstalledWebhook(variables, deployment["spec"].get("replicas", 1))
    schedulers = () if _LIST_PODS in lacking else _schedulers(objects)
    managed = bool(installed or webhook) and _is_managed(objects, configurations)
    return Facts(
        version=objects.version(),
        flavour=kind,
        nodes=nodes,
        here=here,
        driver_here=has_driver(files),
        missing=lacking,
        schedulers=_nodes_of(schedulers),
        stamped=_nodes_of(filter(_is_stamped, schedulers)),
        extended=EXTENDER in workloads,
        second=SECOND_SCHEDULER in workloads,
        plugin=DEVICE_PLUGIN in workloads,
        runtime_classes=runtime_classes(objects),
        guard=objects.serves(*GUARD),
        images={name: image_of([body]) for name, body in workloads.items()},
        pull_secrets=_pull_secrets(found),
        tls=TLS in settings,
        operator=objects.serves(*OPERATOR),
        owned=owned_by((*found, *configurations)),
        ui=settings.get(UI) == ON,
        policy=settings.get(POLICY, ""),
        isolation=plugin.get(ISOLATION, ""),
        dra=plugin.get(DRA) == ON,
        webhook=installed,
        by_cert_manager=managed,
        cert_manager=objects.serves(CERTIFICATE.api_version, CERTIFICATE.kind),
    )


def _pull_secrets(workloads: Iterable[Json]) -> tuple[str, ...]:
    specs = (body["spec"]["template"]["spec"] for body in workloads)
    listed = (one for spec in specs for one in spec.get("imagePullSecrets") or ())
    return tuple(dict.fromkeys(one["name"] for one in listed))


def takes_nvidia(facts: Facts, chosen: Sequence[str]) -> bool:
    """Return whether pods on these nodes can have the RuntimeClass nvidia.

    They cannot if a node reports its runtimes and has no such one.
    """
    return NVIDIA in facts.runtime_classes and all(
        not node.handlers or NVIDIA in node.handlers
        for node in facts.nodes
        if node.name in chosen
    )


def read_nodes(objects: Objects) -> tuple[NodeFacts, ...]:
    """Return all nodes, sorted by name."""
    found = map(node_facts, objects.list("v1", "Node"))
    return tuple(sorted(found, key=lambda node: node.name))


def served(objects: Objects, manifests: Iterable[Json]) -> tuple[Json, ...]:
    """Leave out objects whose kind the API server may not know, if it does not.

    These are admission policies and DRA on an old cluster, and the kinds of Prometheus
    Operator and cert-manager.
    """
    return tuple(
        body
        for body in manifests
        if body["kind"] not in _NOT_EVERYWHERE
        or objects.serves(body["apiVersion"], body["kind"])
    )


def kube_scheduler_image(objects: Objects) -> str:
    """Return the second kube-scheduler's image, else that of the cluster's own."""
    found = objects.list("apps/v1", "Deployment", namespace=SYSTEM, label_selector=OURS)
    pods = objects.list("v1", "Pod", namespace=SYSTEM, label_selector=_SCHEDULER_PODS)
    specs = [one["spec"]["template"]["spec"] for one in found]
    images = (
        str(container["image"])
        for spec in (*specs, *(pod["spec"] for pod in pods))
        for container in spec["containers"]
        if container["name"] == SCHEDULER
    )
    return next(images, "")


def _is_managed(objects: Objects, configurations: Sequence[Json]) -> bool:
    """Return whether cert-manager makes the webhook's certificate.

    It would overwrite the installer's, also while the configurations are deleted.
    """
    if any(map(is_cert_managers, configurations)):
        return True
    secret = _one(objects, SECRET)
    return any(map(is_cert_managers, secret)) or bool(_one(objects, CERTIFICATE))


def may_get(objects: Objects, ref: Ref) -> bool:
    """Return whether the user may read an object."""
    return objects.may("get", resource(ref.api_version, ref.kind), ref.namespace)


def _one(objects: Objects, ref: Ref) -> Sequence[Json]:
    """Return one object or none; none if the user may not read its kind."""
    found = objects.get(ref) if may_get(objects, ref) else None
    return () if found is None else (found,)


def runtime_classes(objects: Objects) -> tuple[str, ...]:
    """Return the RuntimeClasses whose handlers provide cards.

    Without the right to list them only the class nvidia is read.
    """
    if objects.may("list", resource(*RUNTIME_CLASS), ""):
        found = objects.list(*RUNTIME_CLASS)
    else:
        found = _one(objects, Ref(*RUNTIME_CLASS, NVIDIA))
    return tuple(
        sorted(
            body["metadata"]["name"]
            for body in found
            if NVIDIA in body["handler"].lower() or body["metadata"]["name"] == NVIDIA
        )
    )


def _schedulers(objects: Objects) -> Sequence[Json]:
    return objects.list("v1", "Pod", namespace=SYSTEM, label_selector=_SCHEDULER_PODS)


def _nodes_of(pods: Iterable[Json]) -> tuple[str, ...]:
    return tuple(sorted({node for pod in pods if (node := node_of(pod))}))


def _is_stamped(pod: Json) -> bool:
    return STAMP in (pod["metadata"].get("annotations") or {})
