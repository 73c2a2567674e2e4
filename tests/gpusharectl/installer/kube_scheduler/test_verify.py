"""How kube-scheduler's pod is waited for, by what kubelet says of it."""

import copy
from pathlib import Path

import pytest
import yaml

from gpushare.kube.cluster import Json
from gpushare.kube.errors import Forbidden, Invalid, InvalidObject, Unavailable
from gpushare.kube.objects import Ref
from gpusharectl.installer.kube_scheduler.files import make_files_target
from gpusharectl.installer.kube_scheduler.host import SchedulerTimeouts
from gpusharectl.installer.kube_scheduler.host_files import HostFiles
from gpusharectl.installer.kube_scheduler.kubeadm import KubeadmFile, KubeadmScheduler
from gpusharectl.installer.kube_scheduler.static_pod import STAMP, SchedulerPod
from gpusharectl.installer.kube_scheduler.verify import (
    LOOK,
    ConfigurationResult,
    MirrorPod,
    PollPace,
    configuration_pod,
    try_configuration,
)
from tests.gpusharectl.installer.fake_objects import FakeObjects

OLD = (Path(__file__).parent / "golden" / "kubeadm.yaml").read_text()
NEW = OLD.replace("    - --leader-elect=true", "    - --leader-elect=true\n    - --v=2")
POD = Ref("v1", "Pod", "kube-scheduler-cp", "kube-system")
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


class Kubelet:
    """Says at each pause what the mirror pod is from then on."""

    def __init__(self, *turns: Json) -> None:
        self.objects = FakeObjects()
        self._turns = list(turns)
        self.now = 0.0
        self.turn(0.0)

    def wait(self, most_s: float = 60.0) -> tuple[str, list[str]]:
        """Wait for the new one; give why it did not come, and what was heard."""
        heard: list[str] = []
        pace = PollPace(1.0, lambda: self.now, self.turn)
        mirror = MirrorPod(self.objects, "cp", pace)
        return mirror.wait(SchedulerPod.read(NEW), heard.append, most_s), heard

    def turn(self, s: float) -> None:
        self.now += s
        if self._turns:
            self.objects.kept[POD] = copy.deepcopy(self._turns.pop(0))


def mirror(text: str, status: Json) -> Json:
    body: Json = yaml.safe_load(text)
    body["metadata"] = {**body["metadata"], "name": POD.name, "resourceVersion": "7"}
    return {**body, "status": status}


def down(restarts: int, code: int | None) -> Json:
    """A container that kubelet will start again, and how it ended."""
    ended = {} if code is None else {"terminated": {"exitCode": code}}
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    found = {"restartCount": restarts, "state": state, "lastState": ended}
    return {"containerStatuses": [found]}


def test_the_old_one_is_looked_after() -> None:
    """kubelet is given a reason to look whether it has ended, and the new one none."""
    kubelet = Kubelet(mirror(OLD, READY), mirror(NEW, {}), mirror(NEW, READY))
    why, heard = kubelet.wait()
    assert why == ""
    assert [line.partition(": ")[2] for line in heard] == [
        "the old pod has to end",
        "the pod is starting",
    ]
    assert len(kubelet.objects.writes) == 1
    assert LOOK not in kubelet.objects.kept[POD]["metadata"].get("annotations", {})


def test_each_look_says_something_new() -> None:
    kubelet = Kubelet(mirror(OLD, READY))
    assert "the old pod has to end" in kubelet.wait(3)[0]
    assert kubelet.objects.kept[POD]["metadata"]["annotations"][LOOK] != "7"
    assert len(kubelet.objects.writes) > 1


def test_a_copy_beside_the_manifest_is_named_though_the_pod_is_ready(
    tmp_path: Path,
) -> None:
    """Its pod will replace the new one; also where that is what is waited for."""
    files = HostFiles(tmp_path)
    stamped = NEW.replace("metadata:", f'metadata:\n  annotations: {{{STAMP}: "1"}}')
    kubelet = Kubelet(mirror(stamped, READY))
    pace = PollPace(1.0, lambda: kubelet.now, kubelet.turn)
    timeouts = SchedulerTimeouts(pace=pace)
    target = make_files_target()
    host = KubeadmScheduler(files, kubelet.objects, "cp", target, timeouts)
    files.write(KubeadmFile.path, stamped.encode())
    assert host.wait(print) == ""
    files.write(f"{KubeadmFile.path}.bak", OLD.encode())
    assert host.wait(print).startswith(f"{KubeadmFile.path}.bak holds a pod")
    files.write(KubeadmFile.path, OLD.encode())
    assert host.wait(print).startswith(f"{KubeadmFile.path}.bak holds a pod")
    kubelet.objects.kept[POD] = mirror(OLD, READY)
    assert host.wait(print) == ""


def test_kubelet_that_stopped_meanwhile_is_named() -> None:
    """It neither ends the old pod nor starts the new one."""
    kubelet = Kubelet(mirror(OLD, READY))
    away = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    ref = Ref("v1", "Node", "cp")
    kubelet.objects.kept[ref] = {"metadata": {"name": "cp"}, "status": away}
    assert kubelet.wait(3)[0].endswith("the kubelet of cp has stopped to report")


def test_who_may_not_change_it_waits() -> None:
    kubelet = Kubelet(mirror(OLD, READY), mirror(NEW, READY))
    # The first call is to look, the second to change.
    kubelet.objects.fails(2, lambda: Forbidden("patch pods"), done=False)
    assert kubelet.wait()[0] == ""
    assert kubelet.objects.writes == []


def test_one_that_is_there_anew_is_left_alone() -> None:
    """It may come between the look and the reason, and has the same name."""
    kubelet = Kubelet(mirror(OLD, READY))
    new = mirror(NEW, READY)
    new["metadata"]["resourceVersion"] = "8"
    merge = kubelet.objects.merge

    def late(ref: Ref, patch: Json, *, subresource: str = "") -> Json:
        kubelet.objects.kept[ref] = new
        return merge(ref, patch, subresource=subresource)

    kubelet.objects.merge = late  # type: ignore[method-assign]
    assert kubelet.wait()[0] == ""
    assert LOOK not in kubelet.objects.kept[POD]["metadata"].get("annotations", {})


@pytest.mark.parametrize("code", [1, 137, None])
def test_one_that_keeps_ending_is_not_waited_for(code: int | None) -> None:
    """Its last words say why; an end that nobody knows of counts as bad."""
    kubelet = Kubelet(mirror(NEW, down(2, code)))
    kubelet.objects.logs[POD.name] = 'E run.go "command failed" err="no such profile"'
    assert kubelet.wait()[0] == "it has ended 2 times. Its log says: no such profile"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidObject("mountPath: must be unique"), ConfigurationResult.BAD),
        (Invalid("a webhook has denied it"), ConfigurationResult.UNKNOWN),
        (Forbidden("no privileged pods"), ConfigurationResult.UNKNOWN),
        (Unavailable("no answer"), ConfigurationResult.UNKNOWN),
    ],
)
def test_a_check_pod_that_is_invalid_is_a_no(
    error: Exception, said: ConfigurationResult
) -> None:
    """kubelet would reject the static pod likewise; no webhook is asked about that."""
    objects = FakeObjects()
    # After the deletion of an old one.
    objects.fails(2, lambda: error, done=False)
    body = configuration_pod(SchedulerPod.read(NEW), "cp", "/c.yaml")
    verdict = try_configuration(
        objects, body, PollPace(1.0, lambda: 0.0, lambda _: None), 9.0
    )
    assert verdict.result is said
    assert str(error) in verdict.words


def test_one_that_was_told_to_end_is_waited_for() -> None:
    kubelet = Kubelet(mirror(NEW, down(3, 0)), mirror(NEW, READY))
    kubelet.objects.logs[POD.name] = "told to end"
    assert kubelet.wait()[0] == ""
