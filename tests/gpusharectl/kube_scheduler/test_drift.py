"""What a control-plane host's own files say of its kube-scheduler."""

from pathlib import Path

import pytest

from gpusharectl.kube_scheduler.drift import (
    KUBEADM_APISERVER,
    Flavour,
    flavour,
    has_driver,
    host_troubles,
    this_node,
)
from gpusharectl.kube_scheduler.files import SchedulerFiles, desired_now
from gpusharectl.kube_scheduler.host_files import HostFiles, HostPath
from gpusharectl.kube_scheduler.kubeadm import KubeadmFile
from tests.gpusharectl.cluster_states import node_of
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


V = "v1.36.3"
SCHEDULER_MANIFEST = """\
apiVersion: v1
kind: Pod
metadata:
  name: kube-scheduler
  namespace: kube-system
spec:
  containers:
  - name: kube-scheduler
    image: registry.k8s.io/kube-scheduler:v1.36.3
    command:
    - kube-scheduler
    - --kubeconfig=/etc/kubernetes/scheduler.conf
    - --leader-elect=true
    volumeMounts:
    - mountPath: /etc/kubernetes/scheduler.conf
      name: kubeconfig
      readOnly: true
  volumes:
  - hostPath:
      path: /etc/kubernetes/scheduler.conf
      type: FileOrCreate
    name: kubeconfig
"""
APISERVER_MANIFEST = """\
spec:
  containers:
  - command: [kube-apiserver, --advertise-address=10.1.2.3]
"""


def node() -> dict[str, object]:
    found = node_of("cp")
    found["status"]["addresses"] = [{"type": "InternalIP", "address": "10.1.2.3"}]
    return found


@pytest.fixture
def host(tmp_path: Path) -> HostFiles:
    """A control-plane host that the installer has been at."""
    files = HostFiles(tmp_path)
    for path, text in (
        (Path(KubeadmFile.path), SCHEDULER_MANIFEST),
        (KUBEADM_APISERVER, APISERVER_MANIFEST),
        (Path("/etc/kubernetes/scheduler.conf"), "apiVersion: v1\nkind: Config\n"),
    ):
        place = files.place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    scheduler = SchedulerFiles(files, KubeadmFile(), desired_now(V))
    plan = scheduler.plan()
    assert isinstance(plan, list), plan
    scheduler.make(plan)
    return files


def test_all_is_as_the_installer_left_it(host: HostFiles) -> None:
    """Nothing to say."""
    assert host_troubles([node()], V, host) == ()


def test_an_upgrade_has_written_the_manifest_anew(host: HostFiles) -> None:
    """As ``kubeadm upgrade`` does."""
    host.place(Path(KubeadmFile.path)).write_text(SCHEDULER_MANIFEST)
    (found,) = host_troubles([node()], V, host)
    assert found.about == "cp"
    assert "kube-scheduler does not call the extender" in found.what


def test_another_clusters_host_has_no_say(host: HostFiles) -> None:
    """The kubeconfig may lead elsewhere."""
    host.place(Path(KubeadmFile.path)).write_text(SCHEDULER_MANIFEST)
    assert host_troubles([node_of("cp")], V, host) == ()


def test_a_plain_host_has_nothing_to_say(tmp_path: Path) -> None:
    """An operator's own machine."""
    assert host_troubles([node()], V, HostFiles(tmp_path)) == ()


class Closed(HostFiles):
    """A host whose files are root's alone."""

    def read(self, path: HostPath) -> bytes | None:
        raise PermissionError(path)


def test_files_that_may_not_be_read(host: HostFiles) -> None:
    """Then the pods alone are asked."""
    host.place(Path(KubeadmFile.path)).write_text(SCHEDULER_MANIFEST)
    assert host_troubles([node()], V, Closed(host.root)) == ()
