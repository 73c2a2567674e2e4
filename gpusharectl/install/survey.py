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
)
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.cluster_facts import NodeView, named, node_view
from gpusharectl.install.manifests import NVIDIA, has_tls, image_of, scheduler_image
from gpusharectl.install.options import ON, POLICY, UI
from gpusharectl.install.webhook.objects import (
    CERTIFICATE,
    CONFIGURATIONS,
    SECRET,
    InstalledWebhook,
    installed_webhook,
    is_cert_managers,
    is_configuration,
    settings_of,
)
from gpusharectl.install.webhook.probe import NAMESPACE
from gpusharectl.kube_scheduler.drift import Flavour, flavour, has_driver, this_node
from gpusharectl.kube_scheduler.host_files import HostFiles

GUARD = ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy")
OPERATOR = ("monitoring.coreos.com/v1", "ServiceMonitor")
RUNTIME_CLASS = ("node.k8s.io/v1", "RuntimeClass")
_NOT_EVERYWHERE = (
    *(GUARD[1], f"{GUARD[1]}Binding"),
    *(OPERATOR[1], "PodMonitor", "PrometheusRule"),
    *("Issuer", "Certificate"),
)
_SCHEDULER_PODS = "component=kube-scheduler"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource, such as ``patch`` on ``daemonsets.apps``."""

    verb: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{where}"


_ALWAYS = (
    Right("list", "nodes"),
    Right("patch", "nodes"),
    Right("list", "pods"),
    Right("create", "pods", SYSTEM),
    Right("delete", "pods", SYSTEM),
    Right("get", "pods/log", SYSTEM),
    Right("list", "events", SYSTEM),
)
_PROBE = Right("patch", "pods", SYSTEM)
"""To prove that kube-scheduler calls the extender: the probe pod is changed."""
_JOBS = (
    Right("get", "leases.coordination.k8s.io", SYSTEM),
    Right("get", "jobs.batch", SYSTEM),
    Right("create", "jobs.batch", SYSTEM),
    Right("delete", "jobs.batch", SYSTEM),
)
_LEASES = tuple(
    Right(verb, "leases.coordination.k8s.io", SYSTEM) for verb in ("get", "delete")
)
"""The second scheduler leaves one."""
_SECRET = tuple(Right(verb, "secrets", SYSTEM) for verb in ("get", "delete"))
"""The webhook's certificate."""
_WEBHOOK_PROBE = Right("create", "pods", NAMESPACE)
"""To prove that the API server reaches the webhook."""
_CLASSES = Right("list", "runtimeclasses.node.k8s.io")
"""The webhook has to know which of them provide cards."""
STATUS = Right("patch", "nodes/status")
"""Needed only to remove the capacity of 0 that kubelet keeps."""


def to_install(
    manifests: Iterable[Json], *, probe: bool = False, jobs: bool = False
) -> tuple[Right, ...]:
    """Return the rights needed to install these objects.

    ``probe``: also to prove kube-scheduler's calls; ``jobs``: also to run Jobs on other
    hosts.
    """
    more = (_PROBE,) if probe else ()
    found = dict.fromkeys(_ALWAYS + more + (_JOBS if jobs else ()))
    for body in manifests:
        for verb in ("get", "create", "patch"):
            found[_right(verb, body)] = None
        if is_configuration(body):
            found |= dict.fromkeys((_WEBHOOK_PROBE, _CLASSES, _right("delete", body)))
    return tuple(found)


def to_uninstall(
    manifests: Iterable[Json], *, wait: bool = False, jobs: bool = False
) -> tuple[Right, ...]:
    """Return the rights needed to remove these objects."""
    more = (STATUS,) if wait else ()
    found = dict.fromkeys(_ALWAYS + _LEASES + _SECRET + more + (_JOBS if jobs else ()))
    for body in manifests:
        for verb in ("list", "delete"):
            found[_right(verb, body)] = None
    return tuple(found)


def to_take_away(refs: Iterable[Ref]) -> tuple[Right, ...]:
    """Return the rights needed to remove these objects by their names."""
    found = [
        Right(verb, resource(ref.api_version, ref.kind), ref.namespace)
        for ref in refs
        for verb in ("get", "delete")
    ]
    return tuple(dict.fromkeys(found))


def missing(objects: Objects, rights: Sequence[Right]) -> tuple[Right, ...]:
    """Return those of the rights that we do not have."""
    return tuple(
        one for one in rights if not objects.may(one.verb, one.resource, one.namespace)
    )


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


def _right(verb: str, body: Json) -> Right:
    name = resource(body["apiVersion"], body["kind"])
    return Right(verb, name, body["metadata"].get("namespace", ""))


@dataclass(frozen=True, slots=True)
class Facts:
    """The state of a cluster and of this host before anything is done."""

    version: str
    """The cluster's version, such as ``v1.36.3``."""
    flavour: Flavour
    nodes: tuple[NodeView, ...]
    here: str = ""
    """The node that this host is; "" if it is none of this cluster's."""
    driver_here: bool = False
    missing: tuple[Right, ...] = ()
    """The rights that we lack."""
    schedulers: tuple[str, ...] = ()
    """The nodes on which a kube-scheduler runs as a static pod."""
    extended: bool = False
    """Whether our extender is installed for the cluster's own kube-scheduler."""
    second: bool = False
    """Whether the second scheduler is installed."""
    plugin: bool = False
    """Whether the device plugin is installed."""
    runtime_classes: tuple[str, ...] = ()
    """The RuntimeClasses that provide cards."""
    guard: bool = True
    """Whether the API server serves ValidatingAdmissionPolicies."""
    images: Mapping[str, str] = field(default_factory=dict)
    """The image that each workload of ours runs, the scheduler's side first."""
    tls: bool = False
    """Whether the extender has certificates."""
    operator: bool = False
    """Whether the API server serves the kinds of Prometheus Operator."""
    ui: bool = False
    """Whether the extender serves its page."""
    policy: str = ""
    """The extender's policy; "" if it has its default."""
    webhook: InstalledWebhook | None = None
    by_cert_manager: bool = False
    """Whether cert-manager makes the webhook's certificate."""
    cert_manager: bool = False
    """Whether the API server then serves cert-manager's Certificate."""

    @property
    def control_plane(self) -> tuple[str, ...]:
        """The nodes with the label of a control plane."""
        return tuple(node.name for node in self.nodes if node.control_plane)


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
    nodes = () if Right("list", "nodes") in lacking else read_nodes(objects)
    kind = flavour(files)
    addresses = {node.name: node.addresses for node in nodes}
    here = this_node(files, kind, addresses)
    if told:
        here = told if named(nodes, told) else ""
    extender, plugin, exporter = (
        _one(objects, Ref("apps/v1", "DaemonSet", name, SYSTEM))
        for name in (EXTENDER, DEVICE_PLUGIN, EXPORTER)
    )
    second, deployment = (
        _one(objects, Ref("apps/v1", "Deployment", name, SYSTEM))
        for name in (SECOND_SCHEDULER, WEBHOOK)
    )
    workloads = (*extender, *second, *plugin, *exporter, *deployment)
    settings = settings_of([*extender, *second], "extender")
    configurations = [body for ref in CONFIGURATIONS for body in _one(objects, ref)]
    installed = installed_webhook(next(iter(deployment), None), configurations)
    managed = bool(installed or webhook) and _is_managed(objects, configurations)
    return Facts(
        version=objects.version(),
        flavour=kind,
        nodes=nodes,
        here=here,
        driver_here=has_driver(files),
        missing=lacking,
        schedulers=_schedulers(objects, lacking),
        extended=bool(extender),
        second=bool(second),
        plugin=bool(plugin),
        runtime_classes=_runtime_classes(objects),
        guard=objects.serves(*GUARD),
        images={body["metadata"]["name"]: image_of([body]) for body in workloads},
        tls=has_tls(extender),
        operator=objects.serves(*OPERATOR),
        ui=settings.get(UI) == ON,
        policy=settings.get(POLICY, ""),
        webhook=installed,
        by_cert_manager=managed,
        cert_manager=managed
        and objects.serves(CERTIFICATE.api_version, CERTIFICATE.kind),
    )


def read_nodes(objects: Objects) -> tuple[NodeView, ...]:
    """Return all nodes, sorted by name."""
    found = map(node_view, objects.list("v1", "Node"))
    return tuple(sorted(found, key=lambda node: node.name))


def served(objects: Objects, manifests: Iterable[Json]) -> tuple[Json, ...]:
    """Leave out objects whose kind the API server may not know, if it does not.

    These are admission policies on an old cluster, and the kinds of Prometheus Operator
    and cert-manager.
    """
    return tuple(
        body
        for body in manifests
        if body["kind"] not in _NOT_EVERYWHERE
        or objects.serves(body["apiVersion"], body["kind"])
    )


def leader(objects: Objects) -> str:
    """Return the holder of kube-scheduler's lease; "" if there is none."""
    ref = Ref("coordination.k8s.io/v1", "Lease", "kube-scheduler", SYSTEM)
    lease = objects.get(ref) or {}
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def leads(holder: str, node: str) -> bool:
    """Return whether a lease's holder is the kube-scheduler of this node.

    >>> leads("cp-1_6f0c7d5e", "cp-1")
    True
    """
    return holder == node or holder.rpartition("_")[0] == node


def kube_scheduler_image(objects: Objects) -> str:
    """Return the image of kube-scheduler: our second one's, else the cluster's own."""
    ours = objects.list("apps/v1", "Deployment", namespace=SYSTEM, label_selector=OURS)
    found = scheduler_image(one["spec"]["template"]["spec"] for one in ours)
    pods = objects.list("v1", "Pod", namespace=SYSTEM, label_selector=_SCHEDULER_PODS)
    return found or scheduler_image(pod["spec"] for pod in pods)


def _is_managed(objects: Objects, configurations: Sequence[Json]) -> bool:
    """Return whether cert-manager makes the webhook's certificate.

    Also if the configurations, which say so, were deleted for a while: cert-manager
    would overwrite our certificate.
    """
    if any(map(is_cert_managers, configurations)):
        return True
    secret = _one(objects, SECRET)
    return any(map(is_cert_managers, secret)) or bool(_one(objects, CERTIFICATE))


def _one(objects: Objects, ref: Ref) -> Sequence[Json]:
    """Return one object or none; none if we may not read its kind."""
    if not objects.may("get", resource(ref.api_version, ref.kind), ref.namespace):
        return ()
    found = objects.get(ref)
    return () if found is None else (found,)


def _runtime_classes(objects: Objects) -> tuple[str, ...]:
    """Return the RuntimeClasses whose handlers provide cards.

    Only an install with the webhook insists on the right to list them. Without it only
    the class nvidia is read.
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


def _schedulers(objects: Objects, lacking: tuple[Right, ...]) -> tuple[str, ...]:
    if Right("list", "pods") in lacking:
        return ()
    pods = objects.list("v1", "Pod", namespace=SYSTEM, label_selector=_SCHEDULER_PODS)
    found = {pod["spec"].get("nodeName", "") for pod in pods}
    return tuple(sorted(name for name in found if name))
