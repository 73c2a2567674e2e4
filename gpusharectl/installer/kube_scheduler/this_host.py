"""What this host's own files say: who starts kube-scheduler, and with what.

An upgrade of kubeadm or an editor may undo what the installer wrote there;
``host_troubles`` says so.
"""

import socket
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from gpushare.kube import facts
from gpushare.kube.cluster import Json
from gpusharectl.installer.kube_scheduler.api_server import advertised_address
from gpusharectl.installer.kube_scheduler.files import SchedulerFiles, make_files_target
from gpusharectl.installer.kube_scheduler.host_files import HostFiles
from gpusharectl.installer.kube_scheduler.k3s import K3sFile, k3s_node_name
from gpusharectl.installer.kube_scheduler.kubeadm import KubeadmFile
from gpusharectl.state.read import Trouble

KUBEADM_SCHEDULER = Path("/etc/kubernetes/manifests/kube-scheduler.yaml")
K3S_SIGNS = (Path("/var/lib/rancher/k3s/server"), Path("/etc/rancher/k3s/k3s.yaml"))
DRIVER_SIGNS = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"))


class Flavour(StrEnum):
    """Who starts kube-scheduler on this host; the value is also the overlay's name."""

    KUBEADM = "kubeadm"
    K3S = "k3s"
    MANAGED = "managed"


def read_flavour(files: HostFiles) -> Flavour:
    """Read it off this host's files; ``MANAGED``: no kube-scheduler is started here."""
    if files.read(KUBEADM_SCHEDULER) is not None:
        return Flavour.KUBEADM
    if any(files.place(path).exists() for path in K3S_SIGNS):
        return Flavour.K3S
    return Flavour.MANAGED


def has_driver(files: HostFiles) -> bool:
    """Return whether NVIDIA's driver is loaded on this host."""
    return any(files.place(path).exists() for path in DRIVER_SIGNS)


def find_this_node(
    files: HostFiles,
    flavour: Flavour,
    nodes: Mapping[str, Sequence[str]],
    hostname: str = "",
) -> str:
    """Return the name of the node that this host is; empty if it is none of them.

    ``nodes`` maps names to addresses. On kubeadm the API server's manifest names the
    host's address, which no two nodes share; elsewhere the name decides: the host's,
    or the one that k3s is told.
    """
    if flavour is Flavour.KUBEADM:
        address = advertised_address(files)
        for name, addresses in nodes.items():
            if address and address in addresses:
                return name
        if address:
            return ""
    host = hostname or socket.gethostname()
    k3s_name = k3s_node_name(files) if flavour is Flavour.K3S else ""
    for name in (k3s_name, host.lower(), host.lower().split(".")[0]):
        if name and name in nodes:
            return name
    return ""


def host_troubles(nodes: Sequence[Json], files: HostFiles) -> tuple[Trouble, ...]:
    """Report that this host's kube-scheduler no longer uses gpushare's configuration.

    Empty on hosts without kube-scheduler, on hosts of another cluster, and where the
    files may not be read: the pods then say nearly the same.
    """
    try:
        flavour = read_flavour(files)
        if flavour is Flavour.MANAGED:
            return ()
        addresses = {facts.name_of(body): facts.addresses(body) for body in nodes}
        node = find_this_node(files, flavour, addresses)
        starter = K3sFile() if flavour is Flavour.K3S else KubeadmFile()
        words = SchedulerFiles(files, starter, make_files_target()).why_undone()
    except OSError:
        return ()
    if not node or not words:
        return ()
    return (Trouble(node, words, "gpusharectl install, on this host"),)
