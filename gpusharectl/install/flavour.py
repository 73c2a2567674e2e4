"""What kind of control plane this host has, told by its files, and which node it is."""

import socket
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from gpusharectl.install.nodeview import NodeView, named
from gpusharectl.scheduler.hostfiles import HostFiles

KUBEADM_SCHEDULER = Path("/etc/kubernetes/manifests/kube-scheduler.yaml")
KUBEADM_APISERVER = Path("/etc/kubernetes/manifests/kube-apiserver.yaml")
K3S_SIGNS = (Path("/var/lib/rancher/k3s/server"), Path("/etc/rancher/k3s/k3s.yaml"))
K3S_CONFIG = Path("/etc/rancher/k3s/config.yaml")
DRIVER_SIGNS = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"))
_ADVERTISED = "--advertise-address="


class Flavour(StrEnum):
    """Who runs kube-scheduler here; the value is also the overlay's name."""

    KUBEADM = "kubeadm"
    K3S = "k3s"
    MANAGED = "managed"


def flavour(files: HostFiles) -> Flavour:
    """Tell by the files of this host; ``MANAGED`` where no scheduler is ours to set."""
    if files.read(KUBEADM_SCHEDULER) is not None:
        return Flavour.KUBEADM
    if any(_there(files, path) for path in K3S_SIGNS):
        return Flavour.K3S
    return Flavour.MANAGED


def has_driver(files: HostFiles) -> bool:
    """Tell whether NVIDIA's driver is loaded on this host."""
    return any(_there(files, path) for path in DRIVER_SIGNS)


def this_node(
    files: HostFiles, kind: Flavour, nodes: Sequence[NodeView], hostname: str = ""
) -> str:
    """Give the name of the node that this host is; empty where none can be.

    On kubeadm the API server's manifest tells the address, which no two nodes share;
    else the host's name, or the one that k3s was told.
    """
    if kind is Flavour.KUBEADM:
        address = _advertised(files)
        for node in nodes:
            if address and address in node.addresses:
                return node.name
        if address:
            return ""
    own = hostname or socket.gethostname()
    told = _k3s_name(files) if kind is Flavour.K3S else ""
    for name in (told, own.lower(), own.lower().split(".")[0]):
        if name and named(nodes, name):
            return name
    return ""


def _there(files: HostFiles, path: Path) -> bool:
    return files.place(path).exists()


def _advertised(files: HostFiles) -> str:
    """Read the address of this host's API server, as kubeadm has written it."""
    body = _yaml(files.read(KUBEADM_APISERVER))
    try:
        words = body["spec"]["containers"][0]["command"]
    except (KeyError, IndexError, TypeError):
        return ""
    found = [str(word) for word in words if str(word).startswith(_ADVERTISED)]
    return found[-1].removeprefix(_ADVERTISED) if found else ""


def _k3s_name(files: HostFiles) -> str:
    body = _yaml(files.read(K3S_CONFIG))
    return str(body.get("node-name", "")) if isinstance(body, dict) else ""


def _yaml(content: bytes | None) -> Any:  # noqa: ANN401
    try:
        return yaml.safe_load(content or b"") or {}
    except yaml.YAMLError:
        return {}
