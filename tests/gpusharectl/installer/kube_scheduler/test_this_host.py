"""What a control-plane host's own files say of its kube-scheduler."""

from pathlib import Path

import pytest

from gpusharectl.installer.kube_scheduler.files import SchedulerFiles, make_files_target
from gpusharectl.installer.kube_scheduler.host_files import (
    FileChange,
    HostFiles,
    HostPath,
)
from gpusharectl.installer.kube_scheduler.kubeadm import KubeadmFile
from gpusharectl.installer.kube_scheduler.this_host import (
    Flavour,
    find_this_node,
    has_driver,
    host_troubles,
    read_flavour,
)
from tests.gpusharectl.cluster_states import node_of
from tests.gpusharectl.installer.installed_cluster import APISERVER, SCHEDULER

NODES = {"a": ["10.0.0.0"], "b": ["10.0.0.1"]}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (SCHEDULER, Flavour.KUBEADM),
        ("/etc/rancher/k3s/k3s.yaml", Flavour.K3S),
        ("/var/lib/rancher/k3s/server/token", Flavour.K3S),
        ("/var/lib/rancher/k3s/agent/kubelet.kubeconfig", Flavour.MANAGED),
        ("/etc/kubernetes/kubelet.conf", Flavour.MANAGED),
    ],
)
def test_one_file_tells(tmp_path: Path, path: str, expected: Flavour) -> None:
    files = HostFiles(tmp_path)
    files.write(path, b"")
    assert read_flavour(files) is expected


def test_a_loaded_driver_leaves_signs(tmp_path: Path) -> None:
    files = HostFiles(tmp_path)
    assert not has_driver(files)
    files.write("/proc/driver/nvidia/version", b"NVRM version: 550.54")
    assert has_driver(files)


def _apiserver(address: str) -> bytes:
    return (
        "spec:\n  containers:\n  - command:\n    - kube-apiserver\n"
        f"    - --advertise-address={address}\n"
    ).encode()


@pytest.mark.parametrize(
    ("manifest", "hostname", "expected"),
    [
        (_apiserver("10.0.0.1"), "elsewhere", "b"),
        (_apiserver("10.0.0.9"), "a", ""),
        (None, "a", "a"),
        (None, "A.example.org", "a"),
        (None, "c", ""),
        *(
            (broken, "b", "b")
            for broken in (b"", b"{", b"spec: 1", b"- a", b"spec: {}")
        ),
    ],
)
def test_kubeadms_host_is_known_by_its_api_servers_address(
    tmp_path: Path, manifest: bytes | None, hostname: str, expected: str
) -> None:
    """With an address of no node the cluster is another, whatever the name says."""
    files = HostFiles(tmp_path)
    files.make([FileChange(APISERVER, None, manifest)])
    assert find_this_node(files, Flavour.KUBEADM, NODES, hostname) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [(b"node-name: a", "a"), (b"node-name: x", "b"), (b"", "b")]
)
def test_k3s_may_have_been_told_a_name(
    tmp_path: Path, text: bytes, expected: str
) -> None:
    files = HostFiles(tmp_path)
    files.write("/etc/rancher/k3s/config.yaml", text)
    assert find_this_node(files, Flavour.K3S, NODES, "b") == expected


MANIFEST = (Path(__file__).parent / "golden" / "kubeadm.yaml").read_bytes()
LOST = "kube-scheduler does not call the extender"


class Closed(HostFiles):
    """A host whose files are root's alone."""

    def read(self, path: HostPath) -> bytes | None:
        raise PermissionError(path)


def test_host_that_was_installed(tmp_path: Path) -> None:
    """``kubeadm upgrade`` writes the manifest anew; a kubeconfig may lead elsewhere."""
    node = node_of("cp")
    node["status"]["addresses"] = [{"type": "InternalIP", "address": "10.0.0.1"}]
    host = HostFiles(tmp_path)
    assert host_troubles([node], host) == ()
    host.write(KubeadmFile.path, MANIFEST)
    host.write(APISERVER, _apiserver("10.0.0.1"))
    scheduler = SchedulerFiles(host, KubeadmFile(), make_files_target())
    scheduler.make(scheduler.plan())
    assert host_troubles([node], host) == ()
    host.write(f"{KubeadmFile.path}.bak", MANIFEST)
    (found,) = host_troubles([node], host)
    assert found.what.startswith(f"{KubeadmFile.path}.bak holds a pod kube-system/")
    host.remove(f"{KubeadmFile.path}.bak")
    host.write(KubeadmFile.path, MANIFEST)
    (found,) = host_troubles([node], host)
    assert found.about == "cp"
    assert LOST in found.what
    assert host_troubles([node_of("cp")], host) == ()
    assert host_troubles([node], Closed(host.root)) == ()
