"""Prove that kube-scheduler asks our extender, by a pod that takes nothing.

The pod asks ``vcuda-core: "0"``, which makes it the extender's (contracts 1.2), and
carries an annotation that the extender alone refuses, in words of its own. Those words
on the pod prove the way through filter. Without the annotation it then gets its node,
and there is but one binder, so the bind was ours. A kube-scheduler that does not ask us
binds it at once, which is proof too.
"""

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.objects import Objects, Ref
from gpusharectl.scheduler.pace import Pace
from gpusharectl.scheduler.shortpod import SYSTEM, condition, made, short_pod

NAME = "gpushare-scheduler-probe"
_MARK = "gpusharectl-probe"
"""No value of this annotation that the extender knows."""
_LEASE = Ref("coordination.k8s.io/v1", "Lease", "kube-scheduler", SYSTEM)


def probed(
    objects: Objects, node: str, image: str, pace: Pace, timeout_s: float
) -> str:
    """Send the pod the whole way; say why it did not arrive, "" when it did.

    Its program, if kubelet is quick enough to start it, is kube-scheduler's
    ``--version``; an ``image`` that the node has not is not pulled.
    """
    try:
        with made(objects, probe_pod(node, image), pace) as ref:
            return _asked(objects, ref, pace, timeout_s) or _bound(
                objects, ref, pace, timeout_s
            )
    except ClusterError as error:
        return f"the probe pod {SYSTEM}/{NAME} could not be made or read: {error}"


def probe_pod(node: str, image: str) -> Json:
    """Describe the pod; only ``node`` will do for it, taints or not."""
    nothing = {names.CORE: "0"}
    container = {
        "name": "probe",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["kube-scheduler", "--version"],
        "resources": {"requests": nothing, "limits": nothing},
    }
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    only = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    spec = {"containers": [container], "affinity": {"nodeAffinity": {rule: only}}}
    return short_pod(NAME, spec, {names.CONTAINERS: _MARK})


def _asked(objects: Objects, ref: Ref, pace: Pace, timeout_s: float) -> str:
    """Wait for the extender's own words; say what came instead."""

    def look() -> str | None:
        pod = objects.get(ref)
        if pod is None:
            return "somebody deleted the probe pod"
        if pod["spec"].get("nodeName"):
            return (
                "a pod that is the extender's was bound without asking it: the "
                f"kube-scheduler that leads{_leader(objects)} does not read our "
                "configuration"
            )
        return "" if _MARK in _message(pod) else None

    seen = pace.until(look, timeout_s)
    return _nothing(objects, ref, timeout_s) if seen is None else seen


def _bound(objects: Objects, ref: Ref, pace: Pace, timeout_s: float) -> str:
    """Let the pod through, and wait until it has its node."""
    try:
        objects.merge(ref, {"metadata": {"annotations": {names.CONTAINERS: None}}})
    except NotFound:
        return "somebody deleted the probe pod"

    def look() -> bool | None:
        pod = objects.get(ref)
        return True if pod is None or pod["spec"].get("nodeName") else None

    if pace.until(look, timeout_s):
        return ""
    return f"filter works and bind does not: {_nothing(objects, ref, timeout_s)}"


def _nothing(objects: Objects, ref: Ref, timeout_s: float) -> str:
    pod = objects.get(ref)
    said = _message(pod) if pod else ""
    if said:
        return f"within {timeout_s:g} s kube-scheduler got no further than: {said}"
    return (
        f"no kube-scheduler looked at the probe pod within {timeout_s:g} s"
        f"{_leader(objects)}"
    )


def _message(pod: Json) -> str:
    return str(condition(pod, "PodScheduled").get("message") or "")


def _leader(objects: Objects) -> str:
    """Name the kube-scheduler that holds the lease, by its host."""
    lease = objects.get(_LEASE) or {}
    holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
    return f" (lease held by {holder.rpartition('_')[0] or holder})" if holder else ""
