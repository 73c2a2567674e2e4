"""What a device plugin leaves on its node, and the pod that takes it away.

Nothing else of ours runs there when it is gone, so a short-lived pod of our own image
does it: past the scheduler, with no rights in the cluster, and only the folder mounted
in which ours lies.

What kubelet goes on counting when the device plugin is gone, taken from a node.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import PART_OF, SYSTEM
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.cluster_facts import NodeView
from gpusharectl.install.progress import Screen, Waiting
from gpusharectl.install.rollout import Patience, pod_wait
from gpusharectl.install.survey import read_nodes

NAME = "gpushare-clean"
MOUNT = "/host/var/lib"
STATE = "vcuda"
"""The device plugin's folder, below /var/lib."""
_SOCKETS = f"kubelet/device-plugins/{names.DOMAIN}_vcuda-*.sock"
CLEANED_WITHIN_S = 120.0


def clean(folder: Path) -> list[str]:
    """Remove what is ours below a host's /var/lib; give what was removed, sorted."""
    gone = []
    for path in sorted([folder / STATE, *folder.glob(_SOCKETS)]):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.exists() or path.is_symlink():
            path.unlink()
        else:
            continue
        gone.append(str(path))
    return gone


def cleaning_pod(node: str, image: str) -> Json:
    """Describe the pod for one node; it goes there past the scheduler."""
    security = {
        "runAsUser": 0,
        "runAsNonRoot": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{NAME}-{node}",
            "namespace": SYSTEM,
            "labels": {PART_OF: "gpushare", "app.kubernetes.io/name": NAME},
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "clean",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["gpusharectl", "host-clean", MOUNT],
                    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
                    "securityContext": security,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [{"name": "lib", "mountPath": MOUNT}],
                }
            ],
            "volumes": [
                {"name": "lib", "hostPath": {"path": "/var/lib", "type": "Directory"}}
            ],
        },
    }


def clean_nodes(
    objects: Objects,
    nodes: Sequence[str],
    image: str,
    screen: Screen,
    patience: Patience,
) -> dict[str, str]:
    """Clean these nodes, all at the same time; give those left unclean, and why.

    Its pods are gone afterwards, however it came out.
    """
    refs = {node: Ref("v1", "Pod", f"{NAME}-{node}", SYSTEM) for node in nodes}
    try:
        for node, ref in refs.items():
            _start(objects, cleaning_pod(node, image), ref)
        left = patience.until(
            lambda: _unfinished(objects, refs), screen, CLEANED_WITHIN_S
        )
        unclean = {one.who: one.what for one in left}
        return {**_failed(objects, refs), **unclean}
    finally:
        for ref in refs.values():
            objects.delete(ref, grace_period_s=0)


def _start(objects: Objects, body: Json, ref: Ref) -> None:
    """Make the pod; one that a killed run left may be of an earlier install."""
    objects.delete(ref, grace_period_s=0)
    objects.create(body)


def _unfinished(objects: Objects, refs: dict[str, Ref]) -> list[Waiting]:
    found = []
    for node, ref in refs.items():
        pod = objects.get(ref)
        if pod is None or _phase(pod) in ("Succeeded", "Failed"):
            continue
        # One node's hopeless wait must not cut short the others'.
        one = pod_wait(node, pod, _events(objects, ref), "")
        found.append(replace(one, hopeless=False))
    return found


def _failed(objects: Objects, refs: dict[str, Ref]) -> dict[str, str]:
    found = {}
    for node, ref in refs.items():
        pod = objects.get(ref)
        if pod is None:
            found[node] = "the pod that was to clean it was deleted by somebody"
        elif _phase(pod) == "Failed":
            found[node] = _last_words(pod.get("status") or {})
    return found


def _last_words(status: Json) -> str:
    said: Iterable[str] = (
        (one.get("state") or {}).get("terminated", {}).get("message", "")
        for one in status.get("containerStatuses") or ()
    )
    return " ".join(" ".join(said).split()) or str(status.get("message", "it failed"))


def _events(objects: Objects, ref: Ref) -> Sequence[Json]:
    selector = f"involvedObject.name={ref.name}"
    return objects.list("v1", "Event", namespace=SYSTEM, field_selector=selector)


def _phase(pod: Json | None) -> str:
    return str(((pod or {}).get("status") or {}).get("phase", ""))


KUBELET_FORGETS_AFTER_S = 300.0
"""So long it keeps the capacity of a plugin that is gone; then it says 0 for ever."""
_SPARE_S = 60.0


def counted(nodes: Iterable[NodeView]) -> tuple[str, ...]:
    """Give the nodes whose status still names our resources."""
    return tuple(node.name for node in nodes if node.known)


def remove_stale_capacity(
    objects: Objects, screen: Screen, patience: Patience
) -> dict[str, str]:
    """Wait for the zeros and take them out; give the nodes that keep theirs."""
    left = patience.until(
        lambda: _swept(objects), screen, KUBELET_FORGETS_AFTER_S + _SPARE_S
    )
    return {one.who: one.what for one in left}


def _swept(objects: Objects) -> list[Waiting]:
    """Take out what is 0 by now; give who still counts."""
    found = []
    for node in read_nodes(objects):
        if node.known and node.leftover == node.known:
            _forget(objects, node)
        elif node.known and node.ready:
            what = "its kubelet to count none, 5 min after the plugin's end"
            found.append(Waiting(node.name, what))
    return found


def _forget(objects: Objects, node: NodeView) -> None:
    """Take the resources out, unless kubelet counts some again just now."""
    steps: list[dict[str, object]] = []
    for resource in node.leftover:
        key = resource.replace("~", "~0").replace("/", "~1")
        steps.append({"op": "test", "path": f"/status/capacity/{key}", "value": "0"})
        steps.append({"op": "remove", "path": f"/status/capacity/{key}"})
        if resource in node.allocatable:
            steps.append({"op": "remove", "path": f"/status/allocatable/{key}"})
    objects.json_patch(Ref("v1", "Node", node.name), steps, subresource="status")
