"""What a host's files tell of its control plane, and which node it is."""

from pathlib import Path

import pytest

from gpusharectl.kube_scheduler.drift import Flavour, flavour, has_driver, this_node
from gpusharectl.kube_scheduler.host_files import HostFiles
from tests.gpusharectl.install.stand_ins import APISERVER, SCHEDULER

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
    assert flavour(files) is expected


def test_a_loaded_driver_leaves_signs(tmp_path: Path) -> None:
    files = HostFiles(tmp_path)
    assert not has_driver(files)
    files.write("/proc/driver/nvidia/version", b"NVRM version: 550.54")
    assert has_driver(files)


@pytest.mark.parametrize(
    ("manifest", "hostname", "expected"),
    [
        ("10.0.0.1", "elsewhere", "b"),
        ("10.0.0.9", "a", ""),
        (None, "a", "a"),
        (None, "A.example.org", "a"),
        (None, "c", ""),
    ],
)
def test_kubeadms_host_is_known_by_its_api_servers_address(
    tmp_path: Path, manifest: str | None, hostname: str, expected: str
) -> None:
    """With an address of no node the cluster is another, whatever the name says."""
    files = HostFiles(tmp_path)
    if manifest:
        text = (
            "spec:\n  containers:\n  - command:\n    - kube-apiserver\n"
            f"    - --advertise-address={manifest}\n"
        )
        files.write(APISERVER, text.encode())
    assert this_node(files, Flavour.KUBEADM, NODES, hostname) == expected


@pytest.mark.parametrize("text", [b"", b"{", b"spec: 1", b"- a", b"spec: {}"])
def test_a_broken_manifest_tells_nothing(tmp_path: Path, text: bytes) -> None:
    files = HostFiles(tmp_path)
    files.write(APISERVER, text)
    assert this_node(files, Flavour.KUBEADM, NODES, "b") == "b"


@pytest.mark.parametrize(
    ("text", "expected"), [(b"node-name: a", "a"), (b"node-name: x", "b"), (b"", "b")]
)
def test_k3s_may_have_been_told_a_name(
    tmp_path: Path, text: bytes, expected: str
) -> None:
    files = HostFiles(tmp_path)
    files.write("/etc/rancher/k3s/config.yaml", text)
    assert this_node(files, Flavour.K3S, NODES, "b") == expected
