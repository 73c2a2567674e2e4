"""The Job for another control-plane node, and what is told of a trial."""

from pathlib import Path

import pytest
import yaml

from gpusharectl.kube_scheduler.job import Action, HostJob
from gpusharectl.kube_scheduler.kubeadm import KubeadmFile
from gpusharectl.kube_scheduler.verify import last_words
from tests.testbed.rest import Json

GOLDEN = Path(__file__).parent / "golden"
FOLDER = KubeadmFile.folder
CONFIG = f"{FOLDER}/scheduler.yaml"


def job(
    action: Action = Action.APPLY, node: str = "cp-2", *, tls: bool = False
) -> HostJob:
    return HostJob(action, node, "gpushare:1", "v1.36.3", tls)


def mirror(name: str) -> Json:
    """Give a golden manifest as the pod that kubelet makes of it."""
    body: Json = yaml.safe_load((GOLDEN / name).read_text())
    return body


def pod(job: HostJob, mirror: Json) -> Json:
    spec: Json = job.body(mirror)["spec"]["template"]["spec"]
    return spec


def mounts(container: Json) -> dict[str, bool]:
    """Give where a container sees what, and whether it may only read there."""
    return {
        each["mountPath"]: each.get("readOnly", False)
        for each in container["volumeMounts"]
    }


def test_tried_before_it_is_written() -> None:
    """The trial reads the host and writes copies; only the last container may write.

    The pod is bound to its node, because the scheduler may be what is broken.
    """
    spec = pod(job(tls=True), mirror("commented.yaml"))
    assert spec["nodeName"] == "cp-2"
    assert spec["automountServiceAccountToken"] is False
    prepare, check = spec["initContainers"]
    (write,) = spec["containers"]
    assert mounts(prepare) == {
        "/host/etc/kubernetes": True,
        "/host/etc/scheduler": True,
        "/try": False,
    }
    assert mounts(write) == {"/host/etc/kubernetes": False, "/host/etc/scheduler": True}
    assert check["image"] == "local.test/kube-scheduler:v1.36.3"
    assert check["command"][-3:] == [
        f"--config={CONFIG}",
        "--write-config-to=/dev/stdout",
        "--secure-port=0",
    ]
    assert prepare["command"][:3] == ["gpusharectl", "host-scheduler", "try"]
    assert write["command"][:3] == ["gpusharectl", "host-scheduler", "apply"]
    assert write["command"][-2:] == ["--kubernetes=v1.36.3", "--tls"]


def test_trial_over_an_older_version_of_ours() -> None:
    text = (GOLDEN / "kubeadm-edited.yaml").read_text()
    spec = pod(job(), yaml.safe_load(text))
    (ours,) = (
        each
        for each in spec["initContainers"][1]["volumeMounts"]
        if each["mountPath"] == FOLDER
    )
    assert (ours["name"], ours["subPath"]) == ("try", FOLDER.lstrip("/"))
    # Restoring has nothing to try.
    assert pod(job(Action.RESTORE), yaml.safe_load(text))["initContainers"] == []


def test_long_names_of_nodes() -> None:
    names = {job(node=f"{'n' * 80}.{number}").name for number in range(3)}
    assert len(names) == 3
    assert all(len(name) <= 63 for name in names)
    assert job().name == "gpushare-scheduler-apply-cp-2"
    labels = job(node="n" * 200).body(mirror("kubeadm.yaml"))["metadata"]["labels"]
    assert all(len(value) <= 63 for value in labels.values())


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("a\n\nb\nc\nd\n", "b / c / d"),
        (
            'E1 run.go:72] "command failed" err="weight: \\"-1\\" is bad"\n',
            'weight: "-1" is bad',
        ),
        ("x" * 1000, "x" * 600),
    ],
)
def test_last_words_of_kube_scheduler(log: str, words: str) -> None:
    assert last_words(log) == words
