"""Read the facts about a cluster and a host, which ``preflight`` judges."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.kube_scheduler.host_files import HostFiles
from gpusharectl.installer.kube_scheduler.static_pod import STAMP
from gpusharectl.installer.kube_scheduler.this_host import (
    Flavour,
    find_this_node,
    has_driver,
    read_flavour,
)
from gpusharectl.installer.manifests import (
    HOSTS_EXTENDER,
    NVIDIA,
    PLUGIN,
    SCHEDULER,
    container_settings,
    image_of,
)
from gpusharectl.installer.nodes.facts import SurveyedNode, find_node, read_nodes
from gpusharectl.installer.options import COMPUTE, DRA, ISOLATION, ON, POLICY, TLS, UI
from gpusharectl.installer.rights import (
    LIST_NODES,
    LIST_PODS,
    RUNTIME_CLASS,
    Right,
    may_get,
    missing_rights,
    resource_of_kind,
)
from gpusharectl.installer.webhook.objects import (
    CERTIFICATE,
    CONFIGURATIONS,
    DEPLOYMENT,
    SECRET,
    InstalledWebhook,
    is_of_cert_manager,
)

GUARD = ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy")
OPERATOR = ("monitoring.coreos.com/v1", "ServiceMonitor")
_NOT_EVERYWHERE = (
    *(GUARD[1], f"{GUARD[1]}Binding"),
    *(OPERATOR[1], "PodMonitor", "PrometheusRule"),
    *("Issuer", "Certificate"),
    "DeviceClass",
)
_SCHEDULER_PODS = "component=kube-scheduler"


@dataclass(frozen=True, slots=True)
class InstalledParts:
    """What of gpushare is installed, and how it is set."""

    images: Mapping[str, str] = field(default_factory=dict)
    """The image that each workload of gpushare runs, the scheduler's side first."""
    pull_secrets: tuple[str, ...] = ()
    """The Secrets with which the workloads' images are pulled."""
    owned: Mapping[str, str] = field(default_factory=dict)
    """Which other tools own which objects of gpushare."""
    tls: bool = False
    ui: bool = False
    policy: str = ""
    """The extender's policy; "" if it has its default."""
    isolation: str = ""
    """The device plugin's isolation tier; "" if it has its default."""
    compute: str = ""
    """Whether the exporter holds containers to their cores; "" if it does not."""
    dra: bool = False
    """Whether the device plugin offers cards to ResourceClaims."""
    webhook: InstalledWebhook | None = None
    by_cert_manager: bool = False
    """Whether cert-manager makes the webhook's certificate, or would make it."""

    @property
    def extended(self) -> bool:
        """Whether the extender is installed for the cluster's own kube-scheduler."""
        return EXTENDER in self.images

    @property
    def second(self) -> bool:
        """Whether the second scheduler is installed."""
        return SECOND_SCHEDULER in self.images

    @property
    def plugin(self) -> bool:
        """Whether the device plugin is installed."""
        return DEVICE_PLUGIN in self.images

    @property
    def image(self) -> str:
        """The image of the first workload; "" without any."""
        return next(iter(self.images.values()), "")


@dataclass(frozen=True, slots=True)
class ServedKinds:
    """Which kinds that not every API server knows this one serves."""

    guard: bool = True
    """ValidatingAdmissionPolicies."""
    operator: bool = False
    """The kinds of Prometheus Operator."""
    cert_manager: bool = False
    """cert-manager's Certificate."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The state of a cluster and of this host before anything is done."""

    version: str
    flavour: Flavour
    nodes: tuple[SurveyedNode, ...]
    here: str = ""
    """The node that this host is; "" if it is none of this cluster's."""
    driver_here: bool = False
    missing: tuple[Right, ...] = ()
    schedulers: tuple[str, ...] = ()
    """The nodes on which a kube-scheduler runs as a static pod."""
    stamped: tuple[str, ...] = ()
    """The nodes whose kube-scheduler has the installer's annotation."""
    runtime_classes: tuple[str, ...] = ()
    """The RuntimeClasses that provide cards."""
    serves: ServedKinds = field(default_factory=ServedKinds)
    installed: InstalledParts = field(default_factory=InstalledParts)

    @property
    def control_plane(self) -> tuple[str, ...]:
        """The nodes with the label of a control plane."""
        return tuple(node.name for node in self.nodes if node.control_plane)


_WORKLOADS = (
    HOSTS_EXTENDER,
    Ref("apps/v1", "Deployment", SECOND_SCHEDULER, SYSTEM),
    PLUGIN,
    Ref("apps/v1", "DaemonSet", EXPORTER, SYSTEM),
    DEPLOYMENT,
)
_INSTANCE = "app.kubernetes.io/instance"


def object_owner(body: Json) -> str:
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
    writers = (
        entry.get("manager", "") for entry in metadata.get("managedFields") or ()
    )
    name = labels.get(_INSTANCE)
    if name and any(writer.startswith("argocd") for writer in writers):
        return f"Argo CD's application {name}"
    return ""


def owned_objects(bodies: Iterable[Json]) -> Mapping[str, str]:
    """Return the owners of those that have one, by the object as ``Kind name``."""
    owners = {
        f"{body['kind']} {body['metadata']['name']}": object_owner(body)
        for body in bodies
    }
    return {name: owner for name, owner in owners.items() if owner}


def survey_cluster(
    objects: Objects,
    files: HostFiles,
    rights: Iterable[Right],
    *,
    this_node: str = "",
    webhook: bool = False,
) -> ClusterFacts:
    """Return the facts about a cluster and this host.

    ``this_node`` is this host's node, if the operator names it. ``webhook``: one will
    be installed, so it matters who makes its certificate. If a right to read is
    missing, the fact is empty and ``missing`` names the right.
    """
    lacking = missing_rights(objects, tuple(rights))
    nodes = () if LIST_NODES in lacking else read_nodes(objects)
    flavour = read_flavour(files)
    here = find_this_node(files, flavour, {node.name: node.addresses for node in nodes})
    if this_node:
        here = this_node if find_node(nodes, this_node) else ""
    schedulers = () if LIST_PODS in lacking else _schedulers(objects)
    serves = ServedKinds(
        guard=objects.serves(*GUARD),
        operator=objects.serves(*OPERATOR),
        cert_manager=objects.serves(CERTIFICATE.api_version, CERTIFICATE.kind),
    )
    return ClusterFacts(
        version=objects.version(),
        flavour=flavour,
        nodes=nodes,
        here=here,
        driver_here=has_driver(files),
        missing=lacking,
        schedulers=_nodes_of(schedulers),
        stamped=_nodes_of(filter(_is_stamped, schedulers)),
        runtime_classes=read_runtime_classes(objects),
        serves=serves,
        installed=_installed_parts(objects, webhook=webhook),
    )


def _installed_parts(objects: Objects, *, webhook: bool) -> InstalledParts:
    bodies = [body for ref in _WORKLOADS for body in _one(objects, ref)]
    workloads = {body["metadata"]["name"]: body for body in bodies}
    extender = container_settings(bodies, "extender")
    plugin = container_settings(bodies, "device-plugin")
    configurations = [body for ref in CONFIGURATIONS for body in _one(objects, ref)]
    installed = InstalledWebhook({}) if configurations else None
    if deployment := workloads.get(WEBHOOK):
        variables = container_settings([deployment], "webhook")
        installed = InstalledWebhook(variables, deployment["spec"].get("replicas", 1))
    return InstalledParts(
        images={name: image_of([body]) for name, body in workloads.items()},
        pull_secrets=_pull_secrets(bodies),
        owned=owned_objects((*bodies, *configurations)),
        tls=TLS in extender,
        ui=extender.get(UI) == ON,
        policy=extender.get(POLICY, ""),
        isolation=plugin.get(ISOLATION, ""),
        compute=container_settings(bodies, "exporter").get(COMPUTE, ""),
        dra=plugin.get(DRA) == ON,
        webhook=installed,
        by_cert_manager=bool(installed or webhook)
        and _is_managed(objects, configurations),
    )


def _pull_secrets(workloads: Iterable[Json]) -> tuple[str, ...]:
    specs = (body["spec"]["template"]["spec"] for body in workloads)
    listed = (secret for spec in specs for secret in spec.get("imagePullSecrets") or ())
    return tuple(dict.fromkeys(secret["name"] for secret in listed))


def takes_nvidia(facts: ClusterFacts, chosen: Sequence[str]) -> bool:
    """Return whether pods on these nodes can have the RuntimeClass nvidia.

    They cannot if a node reports its runtimes and has no such one.
    """
    return NVIDIA in facts.runtime_classes and all(
        not node.runtime.handlers or NVIDIA in node.runtime.handlers
        for node in facts.nodes
        if node.name in chosen
    )


def served_objects(objects: Objects, manifests: Iterable[Json]) -> tuple[Json, ...]:
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
    deployments = objects.list(
        "apps/v1", "Deployment", namespace=SYSTEM, label_selector=OURS
    )
    specs = [deployment["spec"]["template"]["spec"] for deployment in deployments]
    images = (
        str(container["image"])
        for spec in (*specs, *(pod["spec"] for pod in _schedulers(objects)))
        for container in spec["containers"]
        if container["name"] == SCHEDULER
    )
    return next(images, "")


def _is_managed(objects: Objects, configurations: Sequence[Json]) -> bool:
    """Return whether cert-manager makes the webhook's certificate.

    It would overwrite the installer's, also while the configurations are deleted.
    """
    if any(map(is_of_cert_manager, configurations)):
        return True
    secret = _one(objects, SECRET)
    return any(map(is_of_cert_manager, secret)) or bool(_one(objects, CERTIFICATE))


def _one(objects: Objects, ref: Ref) -> Sequence[Json]:
    """Return one object or none; none if the user may not read its kind."""
    body = objects.get(ref) if may_get(objects, ref) else None
    return () if body is None else (body,)


def read_runtime_classes(objects: Objects) -> tuple[str, ...]:
    """Return the RuntimeClasses whose handlers provide cards.

    Without the right to list them only the class nvidia is read.
    """
    if objects.may("list", resource_of_kind(*RUNTIME_CLASS), ""):
        bodies = objects.list(*RUNTIME_CLASS)
    else:
        bodies = _one(objects, Ref(*RUNTIME_CLASS, NVIDIA))
    return tuple(
        sorted(
            body["metadata"]["name"]
            for body in bodies
            if NVIDIA in body["handler"].lower() or body["metadata"]["name"] == NVIDIA
        )
    )


def _schedulers(objects: Objects) -> Sequence[Json]:
    return objects.list("v1", "Pod", namespace=SYSTEM, label_selector=_SCHEDULER_PODS)


def _nodes_of(pods: Iterable[Json]) -> tuple[str, ...]:
    return tuple(sorted({node for pod in pods if (node := node_of(pod))}))


def _is_stamped(pod: Json) -> bool:
    return STAMP in (pod["metadata"].get("annotations") or {})
