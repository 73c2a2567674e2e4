"""Remove what a device plugin leaves on its node: its files, and a capacity of 0.

A temporary pod of gpushare's image removes the files, since nothing else of gpushare
runs there any more. It needs no scheduler and no rights, and mounts only the folder
above the device plugin's, and that of CDI specifications.

kubelet keeps the capacity of a plugin that is gone for five minutes, then reports 0 for
ever; that is removed from the node's status.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.context import Context
from gpusharectl.installer.kube_scheduler.verify import pulled_with
from gpusharectl.installer.nodes.facts import SurveyedNode, read_nodes
from gpusharectl.installer.nodes.pods import run_on_nodes, short_lived_pod
from gpusharectl.installer.progress import InstallError, Waiting

NAME = "gpushare-clean"
_LIB = "/var/lib"
MOUNT = f"/host{_LIB}"
_STATE = "vcuda"
FOLDER = f"{_LIB}/{_STATE}"
"""The device plugin's folder."""
_PATTERNS = (
    f"kubelet/device-plugins/{names.DOMAIN}_vcuda-*.sock",
    f"kubelet/plugins/{names.DRA_DRIVER}",
    f"kubelet/plugins_registry/{names.DRA_DRIVER}-reg.sock",
)
_CDI = "run/cdi"
"""Beside /var/lib."""
_SPECIFICATIONS = f"{names.DRA_DRIVER}-*_*.json"
"""Written for claims, and for containers whose memory NVIDIA's driver limits."""
CLEANED_WITHIN_S = 120.0
FORGOTTEN_WITHIN_S = 360.0
"""kubelet needs five minutes."""


def remove_host_files(folder: Path) -> list[str]:
    """Remove gpushare's files below a host's /var/lib, and its CDI specifications.

    Returns their paths, sorted. ``/var/run`` is beside the folder.
    """
    gone = []
    paths = [folder / _STATE, *(folder.parent / _CDI).glob(_SPECIFICATIONS)]
    for pattern in _PATTERNS:
        paths += folder.glob(pattern)
    for path in sorted(paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.exists() or path.is_symlink():
            path.unlink()
        else:
            continue
        gone.append(str(path))
    return gone


def cleaning_pod(node: str, image: str, pull_secrets: Sequence[str] = ()) -> Json:
    """Return the pod for one node; kubelet starts it without the scheduler."""
    container = {
        "name": "clean",
        "image": image,
        "command": ["gpusharectl", "host-clean", MOUNT],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
        "volumeMounts": [
            {"name": "lib", "mountPath": MOUNT},
            {"name": "cdi", "mountPath": f"/host/var/{_CDI}"},
        ],
    }
    lib = {"name": "lib", "hostPath": {"path": _LIB, "type": "Directory"}}
    cdi = {"path": f"/var/{_CDI}", "type": "DirectoryOrCreate"}
    volumes = [lib, {"name": "cdi", "hostPath": cdi}]
    secrets = pulled_with(pull_secrets)
    return short_lived_pod(NAME, node, container, volumes=volumes, **secrets)


def clean_nodes(
    context: Context, nodes: Sequence[str], image: str, pull_secrets: Sequence[str] = ()
) -> dict[str, str]:
    """Clean these nodes at the same time; return those that failed, and why."""
    pods = [cleaning_pod(node, image, pull_secrets) for node in nodes]
    return dict(run_on_nodes(context, pods, CLEANED_WITHIN_S).failed)


def remove_stale_capacity(context: Context) -> None:
    """Wait until kubelet reports capacity 0, and remove it from the nodes."""
    waits = context.until(lambda: _kept(context.objects), FORGOTTEN_WITHIN_S)
    if waits:
        raise InstallError(
            "; ".join(f"{wait.who} waits for {wait.what}" for wait in waits)
        )


def _kept(objects: Objects) -> list[Waiting]:
    """Remove a capacity that is 0 by now; return the waits for the others."""
    waits = []
    for node in read_nodes(objects):
        if node.marks.capacity and node.marks.stale_capacity == node.marks.capacity:
            _forget(objects, node)
        elif node.marks.capacity and node.ready:
            what = "kubelet to report capacity 0, 5 min after the device plugin's end"
            waits.append(Waiting(node.name, what))
    return waits


def _forget(objects: Objects, node: SurveyedNode) -> None:
    """Remove the resources, unless kubelet reports a capacity again just now."""
    steps: list[dict[str, object]] = []
    for resource in node.marks.stale_capacity:
        key = resource.replace("/", "~1")
        steps.append({"op": "test", "path": f"/status/capacity/{key}", "value": "0"})
        steps.append({"op": "remove", "path": f"/status/capacity/{key}"})
        if resource in node.marks.allocatable:
            steps.append({"op": "remove", "path": f"/status/allocatable/{key}"})
    objects.json_patch(Ref("v1", "Node", node.name), steps, subresource="status")
