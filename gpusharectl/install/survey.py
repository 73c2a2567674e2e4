"""Look at a cluster and a host: all that ``preflight`` judges. Reads only."""

from collections.abc import Iterable, Sequence

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
from gpusharectl.install.cluster_facts import (
    NodeView,
    named,
    node_view,
)
from gpusharectl.install.manifests import NVIDIA, has_tls, image_of, scheduler_image
from gpusharectl.install.options import ON, POLICY, UI
from gpusharectl.install.preflight import Facts, Right, missing, resource
from gpusharectl.install.webhook.objects import (
    CERTIFICATE,
    CONFIGURATIONS,
    SECRET,
    is_cert_managers,
    settings_of,
    webhook_there,
)
from gpusharectl.kube_scheduler.drift import flavour, has_driver, this_node
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


def survey(
    objects: Objects,
    files: HostFiles,
    rights: Iterable[Right],
    *,
    told: str = "",
    webhook: bool = False,
) -> Facts:
    """Gather the facts; ``told`` is this host's node where the operator says it.

    ``webhook`` says that one is to be here after this, so that it counts whose its
    certificate is. Where a right to read is missing, the fact stays empty and
    ``missing`` names it.
    """
    version = objects.version()
    lacking = missing(objects, tuple(rights))
    nodes = () if Right("list", "nodes") in lacking else read_nodes(objects)
    kind = flavour(files)
    addresses = {one.name: one.addresses for one in nodes}
    here = told if named(nodes, told) else ""
    extender, plugin, exporter = (
        _one(objects, Ref("apps/v1", "DaemonSet", name, SYSTEM))
        for name in (EXTENDER, DEVICE_PLUGIN, EXPORTER)
    )
    second, deployment = (
        _one(objects, Ref("apps/v1", "Deployment", name, SYSTEM))
        for name in (SECOND_SCHEDULER, WEBHOOK)
    )
    settings = settings_of([*extender, *second], "extender")
    asking = [body for ref in CONFIGURATIONS for body in _one(objects, ref)]
    there = webhook_there(next(iter(deployment), None), asking)
    managed = _is_managed(objects, asking) if there or webhook else False
    return Facts(
        version=version,
        flavour=kind,
        nodes=nodes,
        here=here if told else this_node(files, kind, addresses),
        driver_here=has_driver(files),
        missing=lacking,
        schedulers=_schedulers(objects, lacking),
        extended=bool(extender),
        second=bool(second),
        plugin=bool(plugin),
        runtime_classes=_runtime_classes(objects),
        guard=objects.serves(*GUARD),
        images={
            body["metadata"]["name"]: image_of([body])
            for body in (*extender, *second, *plugin, *exporter, *deployment)
        },
        tls=has_tls(extender),
        operator=objects.serves(*OPERATOR),
        ui=settings.get(UI) == ON,
        policy=settings.get(POLICY, ""),
        webhook=there,
        by_cert_manager=managed,
        cert_manager=managed
        and objects.serves(CERTIFICATE.api_version, CERTIFICATE.kind),
    )


def read_nodes(objects: Objects) -> tuple[NodeView, ...]:
    """Read all nodes, sorted by name."""
    found = map(node_view, objects.list("v1", "Node"))
    return tuple(sorted(found, key=lambda node: node.name))


def served(objects: Objects, manifests: Iterable[Json]) -> tuple[Json, ...]:
    """Leave out policies where the API server is too old for them.

    And what is Prometheus Operator's or cert-manager's where those are not installed;
    nothing else.
    """
    return tuple(
        body
        for body in manifests
        if body["kind"] not in _NOT_EVERYWHERE
        or objects.serves(body["apiVersion"], body["kind"])
    )


def leader(objects: Objects) -> str:
    """Say who holds kube-scheduler's lease, as it calls itself; empty if nobody."""
    ref = Ref("coordination.k8s.io/v1", "Lease", "kube-scheduler", SYSTEM)
    lease = objects.get(ref) or {}
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def leads(holder: str, node: str) -> bool:
    """Tell whether a holder's name is of this node's kube-scheduler.

    >>> leads("cp-1_6f0c7d5e", "cp-1")
    True
    """
    return holder == node or holder.rpartition("_")[0] == node


def kube_scheduler_image(objects: Objects) -> str:
    """Find the image of kube-scheduler: our second one's, else the cluster's own."""
    ours = objects.list("apps/v1", "Deployment", namespace=SYSTEM, label_selector=OURS)
    found = scheduler_image(one["spec"]["template"]["spec"] for one in ours)
    pods = objects.list("v1", "Pod", namespace=SYSTEM, label_selector=_SCHEDULER_PODS)
    return found or scheduler_image(pod["spec"] for pod in pods)


def _is_managed(objects: Objects, asking: Sequence[Json]) -> bool:
    """Tell whether the webhook's certificate is cert-manager's.

    Also where the configurations, which say so, were deleted for a while: it would
    write over ours.
    """
    if any(map(is_cert_managers, asking)):
        return True
    secret = _one(objects, SECRET)
    return any(map(is_cert_managers, secret)) or bool(_one(objects, CERTIFICATE))


def _one(objects: Objects, ref: Ref) -> Sequence[Json]:
    """Give one or none; of a kind that we may not read, none."""
    if not objects.may("get", resource(ref.api_version, ref.kind), ref.namespace):
        return ()
    found = objects.get(ref)
    return () if found is None else (found,)


def _runtime_classes(objects: Objects) -> tuple[str, ...]:
    """Name the RuntimeClasses that bring cards, which their handlers tell.

    Without the right to list them, which no install but a webhook's insists on, the
    usual one is asked for by its name.
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
    """Find the nodes on which kube-scheduler runs as a static pod."""
    if Right("list", "pods") in lacking:
        return ()
    pods = objects.list("v1", "Pod", namespace=SYSTEM, label_selector=_SCHEDULER_PODS)
    found = {pod["spec"].get("nodeName", "") for pod in pods}
    return tuple(sorted(name for name in found if name))
