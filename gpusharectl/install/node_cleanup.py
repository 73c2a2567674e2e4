"""Remove what a device plugin leaves on its node: its files, and a capacity of 0.

A temporary pod of gpushare's image removes the files, since nothing else of gpushare
runs there any more. It needs no scheduler and no rights, and mounts only the folder
above the device plugin's. kubelet keeps the capacity of a plugin that is gone for five
minutes, then reports 0 for ever; that is removed from the node's status.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import PART_NAME, PART_OF, PRODUCT, SYSTEM, phase
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.context import Context
from gpusharectl.install.progress import InstallError, Waiting
from gpusharectl.install.rollout import events_of, pod_wait
from gpusharectl.install.survey import NodeFacts, read_nodes

NAME = "gpushare-clean"
_LIB = "/var/lib"
MOUNT = f"/host{_LIB}"
_STATE = "vcuda"
FOLDER = f"{_LIB}/{_STATE}"
"""The device plugin's folder."""
_SOCKETS = f"kubelet/device-plugins/{names.DOMAIN}_vcuda-*.sock"
CLEANED_WITHIN_S = 120.0
FORGOTTEN_WITHIN_S = 360.0
"""kubelet needs five minutes."""


def clean(folder: Path) -> list[str]:
    """Remove gpushare's files below a host's /var/lib; return their paths, sorted."""
    gone = []
    for path in sorted([folder / _STATE, *folder.glob(_SOCKETS)]):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.exists() or path.is_symlink():
            path.unlink()
        else:
            continue
        gone.append(str(path))
    return gone


def cleaning_pod(node: str, image: str) -> Json:
    """Return the pod for one node; kubelet starts it without the scheduler."""
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
            "labels": {PART_OF: PRODUCT, PART_NAME: NAME},
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
                {"name": "lib", "hostPath": {"path": _LIB, "type": "Directory"}}
            ],
        },
    }


def clean_nodes(context: Context, nodes: Sequence[str], image: str) -> dict[str, str]:
    """Clean these nodes at the same time; return those that failed, and why.

    The pods are deleted afterwards in any case.
    """
    objects = context.objects
    failed: dict[str, str] = {}
    refs = {node: Ref("v1", "Pod", f"{NAME}-{node}", SYSTEM) for node in nodes}

    def look() -> list[Waiting]:
        found = []
        for node, ref in refs.items():
            pod = objects.get(ref)
            if pod is None:
                failed[node] = "somebody deleted the pod that cleans it"
            elif phase(pod) == "Failed":
                failed[node] = _last_words(pod["status"])
            elif phase(pod) != "Succeeded":
                one = pod_wait(node, pod, events_of(objects, ref.name), "")
                # One node's hopeless wait must not end the wait for the others.
                found.append(replace(one, hopeless=False))
        return found

    try:
        for node, ref in refs.items():
            # One that a killed run has left may belong to an earlier version.
            objects.delete(ref, grace_period_s=0)
            objects.create(cleaning_pod(node, image))
        left = context.until(look, CLEANED_WITHIN_S)
        return failed | {one.who: one.what for one in left}
    finally:
        for ref in refs.values():
            objects.delete(ref, grace_period_s=0)


def _last_words(status: Json) -> str:
    said = [
        (one.get("state") or {}).get("terminated", {}).get("message", "")
        for one in status.get("containerStatuses") or ()
    ]
    return " ".join(" ".join(said).split()) or str(status.get("message", "it failed"))


def remove_stale_capacity(context: Context) -> None:
    """Wait until kubelet reports capacity 0, and remove it from the nodes."""
    left = context.until(lambda: _kept(context.objects), FORGOTTEN_WITHIN_S)
    if left:
        raise InstallError("; ".join(f"{one.who} waits for {one.what}" for one in left))


def _kept(objects: Objects) -> list[Waiting]:
    """Remove a capacity that is 0 by now; return the waits for the others."""
    found = []
    for node in read_nodes(objects):
        if node.known and node.stale_capacity == node.known:
            _forget(objects, node)
        elif node.known and node.ready:
            what = "kubelet to report capacity 0, 5 min after the device plugin's end"
            found.append(Waiting(node.name, what))
    return found


def _forget(objects: Objects, node: NodeFacts) -> None:
    """Remove the resources, unless kubelet reports a capacity again just now."""
    steps: list[dict[str, object]] = []
    for resource in node.stale_capacity:
        key = resource.replace("/", "~1")
        steps.append({"op": "test", "path": f"/status/capacity/{key}", "value": "0"})
        steps.append({"op": "remove", "path": f"/status/capacity/{key}"})
        if resource in node.allocatable:
            steps.append({"op": "remove", "path": f"/status/allocatable/{key}"})
    objects.json_patch(Ref("v1", "Node", node.name), steps, subresource="status")
