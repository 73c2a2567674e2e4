"""What the files of a control-plane host add to what pods tell."""

from pathlib import Path

import pytest

from gpusharectl.kube_scheduler.drift import KUBEADM_APISERVER, host_troubles
from gpusharectl.kube_scheduler.files import SchedulerFiles, desired_now
from gpusharectl.kube_scheduler.host_files import HostFiles, HostPath
from gpusharectl.kube_scheduler.kubeadm import KubeadmFile
from tests.gpusharectl.pictures import node_of

V = "v1.36.3"
SCHEDULER = """\
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
APISERVER = """\
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
        (Path(KubeadmFile.path), SCHEDULER),
        (KUBEADM_APISERVER, APISERVER),
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
    host.place(Path(KubeadmFile.path)).write_text(SCHEDULER)
    (found,) = host_troubles([node()], V, host)
    assert found.about == "cp"
    assert "kube-scheduler does not call the extender" in found.what


def test_another_clusters_host_has_no_say(host: HostFiles) -> None:
    """The kubeconfig may lead elsewhere."""
    host.place(Path(KubeadmFile.path)).write_text(SCHEDULER)
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
    host.place(Path(KubeadmFile.path)).write_text(SCHEDULER)
    assert host_troubles([node()], V, Closed(host.root)) == ()
