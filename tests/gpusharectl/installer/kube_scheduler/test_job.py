"""The Job for another control-plane node: its pod, its end, and what is told of it."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from gpushare.kube.errors import Unavailable
from gpushare.kube.objects import Ref
from gpusharectl.installer.kube_scheduler.api_server import KUBEADM_APISERVER
from gpusharectl.installer.kube_scheduler.files import FilesTarget, shipped_extender
from gpusharectl.installer.kube_scheduler.host import SchedulerTimeouts
from gpusharectl.installer.kube_scheduler.host_files import HostFiles, Obstacle
from gpusharectl.installer.kube_scheduler.job import (
    Action,
    HostJob,
    SchedulerJobs,
    SchedulerTarget,
    act_on_files,
)
from gpusharectl.installer.kube_scheduler.kubeadm import KubeadmFile
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.kube_scheduler.verify import PollPace, last_words
from tests.gpusharectl.installer.fake_objects import FakeObjects
from tests.testbed.rest import Json

GOLDEN = Path(__file__).parent / "golden"
FOLDER = KubeadmFile.folder
CONFIG = f"{FOLDER}/scheduler.yaml"
TARGET = SchedulerTarget(Flavour.KUBEADM, "cp", "v1.36.3", "gpushare:1")


def job(
    action: Action = Action.APPLY, node: str = "cp-2", *, tls: bool = False
) -> HostJob:
    return HostJob(action, node, replace(TARGET, tls=tls))


def look_at(root: Path) -> str:
    """What the Job that only looks prints."""
    return act_on_files(Action.LOOK, root, DESIRED, Path("/none"))


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


def test_the_image_is_pulled_as_that_of_the_extender() -> None:
    """With TLS this Job runs there first, before the extender has pulled anything."""
    plain = job()
    assert "imagePullSecrets" not in pod(plain, mirror("kubeadm.yaml"))
    target = replace(TARGET, pull_secrets=("registry",))
    secret = replace(plain, target=target)
    named = [{"name": "registry"}]
    assert pod(secret, mirror("kubeadm.yaml"))["imagePullSecrets"] == named


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
    assert mounts(write) == {
        "/host/etc/kubernetes": False,
        "/host/etc/scheduler": True,
        "/host/etc/sysctl.d": False,
        "/host/proc/sys/net/ipv4/ip_local_reserved_ports": False,
    }
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
    assert ours["subPath"] == FOLDER.lstrip("/")
    # Restoring has nothing to try.
    assert pod(job(Action.RESTORE), yaml.safe_load(text))["initContainers"] == []


def test_long_names_of_nodes() -> None:
    names = {job(node=f"{'n' * 80}.{number}").name for number in range(3)}
    assert len(names) == 3
    assert all(len(name) <= 63 for name in names)
    assert job().name == "gpushare-scheduler-apply-cp-2"
    labels = job(node="n" * 200).body(mirror("kubeadm.yaml"))["metadata"]["labels"]
    assert all(len(value) <= 63 for value in labels.values())


def test_a_look_only_reads() -> None:
    """It tries nothing, and sees no setting of the kernel's."""
    spec = pod(job(Action.LOOK), mirror("commented.yaml"))
    assert spec["initContainers"] == []
    (look,) = spec["containers"]
    assert look["command"][:3] == ["gpusharectl", "host-scheduler", "look"]
    assert mounts(look) == {"/host/etc/kubernetes": True, "/host/etc/scheduler": True}


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


MIRROR = Ref("v1", "Pod", "kube-scheduler-cp-2", "kube-system")
READY = {"conditions": [{"type": "Ready", "status": "True"}]}
DESIRED = FilesTarget("0.1.0", shipped_extender(), datetime(2026, 11, 21, tzinfo=UTC))


class OtherHost(FakeObjects):
    """An API server and the node cp-2, whose kubelet does all at once.

    ``starts``: whether kube-scheduler becomes Ready with a configuration. ``end`` has
    how the Job's pod ends if not by itself: its status, None if somebody deletes it.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.files = HostFiles(root)
        self.files.write(KubeadmFile.path, (GOLDEN / "kubeadm.yaml").read_bytes())
        self.starts = True
        self.heard: list[str] = []
        self.gone_after: list[Ref] = []
        self.end: list[Json | None] = []
        self.ends = [{"type": "Failed", "status": "True"}]
        self.step()

    def step(self) -> None:
        body = yaml.safe_load(self.files.read(KubeadmFile.path) or b"")
        body["metadata"] = {**body["metadata"], "name": MIRROR.name}
        body["metadata"]["resourceVersion"] = "7"
        ready = self.starts or b"--config" not in (self.manifest or b"")
        self.kept[MIRROR] = {**body, "status": READY if ready else {}}

    def create(self, body: Json, *, dry_run: bool = False) -> Json:
        made = super().create(body, dry_run=dry_run)
        if body["kind"] == "Job":
            self._run(body)
            self.step()
        return made

    def _run(self, job: Json) -> None:
        name, command = job["metadata"]["name"], self.command(job)
        ref = Ref("v1", "Pod", f"{name}-x", "kube-system")
        end = self.end.pop(0) if self.end else {"phase": "Succeeded"}
        ended = {"conditions": self.ends}
        if end == {"phase": "Succeeded"}:
            action = Action(command[2])
            manifest = act_on_files(action, self.files.root, DESIRED, Path("/none"))
            ended = {"conditions": [{"type": "Complete", "status": "True"}]}
            self.logs[ref.name] = manifest
        made = self.kept[Ref("batch/v1", "Job", name, "kube-system")]
        made["status"] = ended
        metadata = {
            "name": ref.name,
            "namespace": "kube-system",
            "labels": {"job-name": name},
            "ownerReferences": [{"uid": made["metadata"]["uid"]}],
        }
        if end is not None:
            self.kept[ref] = {"metadata": metadata, "status": end}

    def command(self, job: Json) -> list[str]:
        (write,) = job["spec"]["template"]["spec"]["containers"]
        return write["command"]

    def set(self, action: Action = Action.APPLY) -> str:
        """Run the Job; return why it failed."""
        return self.jobs().run(action, "cp-2", self.heard.append)

    def look(self) -> bytes | Obstacle:
        """Run the Job that only looks."""
        return self.jobs().look("cp-2", self.heard.append)

    def jobs(self) -> SchedulerJobs:
        clock = iter(range(1000))
        pace = PollPace(1.0, lambda: float(next(clock)), self._pass)
        timeouts = SchedulerTimeouts(wait_s=3, job_s=3, pace=pace)
        return SchedulerJobs(self, TARGET, timeouts)

    def _pass(self, _: float) -> None:
        while self.gone_after:
            del self.kept[self.gone_after.pop()]

    @property
    def manifest(self) -> bytes | None:
        return self.files.read(KubeadmFile.path)


def test_what_ran_before_stays(tmp_path: Path) -> None:
    """Only what this run wrote is put back; else cards are offered and nobody asks."""
    host = OtherHost(tmp_path)
    before = host.manifest
    host.starts = False
    assert "its old files are back" in host.set()
    assert host.manifest == before
    host.starts = True
    host.step()
    assert host.set() == ""
    installed = host.manifest
    assert installed != before
    host.starts = False
    host.step()
    assert "it has run with gpushare's configuration before" in host.set()
    assert host.manifest == installed
    host.starts = True
    assert host.set(Action.RESTORE) == ""
    assert host.manifest == before


def test_edited_configuration_is_named(tmp_path: Path) -> None:
    host = OtherHost(tmp_path)
    assert host.set() == ""
    text = (host.files.read(CONFIG) or b"").decode()
    host.files.write(CONFIG, f"{text}parallelism: 8\n".encode())
    assert host.set(Action.RESTORE) == ""
    assert f"{CONFIG} stays without the gpushare entry" in host.heard[-1]


def test_node_that_is_not_ready_gets_no_job(tmp_path: Path) -> None:
    """Its kubelet would start none, and ten minutes would pass."""
    host = OtherHost(tmp_path)
    away = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    host.kept[Ref("v1", "Node", "cp-2")] = {
        "metadata": {"name": "cp-2"},
        "status": away,
    }
    assert "the node's kubelet has stopped to report" in host.set()
    assert host.writes == []


OWN = """\
clusters: [{name: c, cluster: {server: "https://10.0.0.2:6443"}}]
contexts: [{name: s, context: {cluster: c}}]
current-context: s
"""
APISERVER = """\
spec: {containers: [{command: [kube-apiserver, --advertise-address=10.0.0.2]}]}
"""


def test_a_look_returns_the_authority(tmp_path: Path) -> None:
    """Nothing before there is one; why not, where another API server is used."""
    host = OtherHost(tmp_path)
    host.files.write("/etc/kubernetes/scheduler.conf", OWN.encode())
    host.files.write(KUBEADM_APISERVER, APISERVER.encode())
    before = host.files.names(FOLDER)
    assert host.look() == b""
    assert host.heard == [
        "Job kube-system/gpushare-scheduler-look-cp-2 reads the files"
    ]
    host.files.write(f"{FOLDER}/tls/ca.crt", b"PEM\n")
    assert host.look() == b"PEM\n"
    balanced = OWN.replace("10.0.0.2", "lb").encode()
    host.files.write("/etc/kubernetes/scheduler.conf", balanced)
    host.end, host.logs["gpushare-scheduler-look-cp-2-x"] = [ended("look", 1)], "no"
    assert str(host.look()) == "no"
    words = "names https://lb:6443, which is not this host's API server, 10.0.0.2"
    with pytest.raises(Obstacle, match=f"^/etc/kubernetes/scheduler.conf {words}"):
        look_at(tmp_path)
    assert host.files.names(FOLDER) == (*before, "tls")
    assert host.manifest == (GOLDEN / "kubeadm.yaml").read_bytes()


def test_the_kubeconfig_is_read_where_the_host_has_it(tmp_path: Path) -> None:
    """Which may be another path than that in kube-scheduler's container."""
    host = OtherHost(tmp_path)
    inside, outside = "/etc/kubernetes/scheduler.conf", "/etc/kubernetes/own.conf"
    host.files.write(KUBEADM_APISERVER, APISERVER.encode())
    host.files.write(inside, OWN.replace("10.0.0.2", "lb").encode())
    host.files.write(outside, OWN.encode())
    moved = (host.manifest or b"").replace(
        b"      path: %s\n" % inside.encode(), b"      path: %s\n" % outside.encode()
    )
    assert moved != host.manifest
    host.files.write(KubeadmFile.path, moved)
    assert look_at(tmp_path) == ""


def test_a_flag_that_replaces_the_kubeconfigs_api_server(tmp_path: Path) -> None:
    """By ``createKubeConfig`` in cmd/kube-scheduler/app/options/options.go."""
    host = OtherHost(tmp_path)
    host.files.write("/etc/kubernetes/scheduler.conf", OWN.encode())
    host.files.write(KUBEADM_APISERVER, APISERVER.encode())
    flag = b"    - --kubeconfig=/etc/kubernetes/scheduler.conf\n"
    master = b"    - --master=https://lb:6443\n"
    changed = (host.manifest or b"").replace(flag, flag + master)
    host.files.write(KubeadmFile.path, changed)
    with pytest.raises(Obstacle, match=r"has --master=https://lb:6443, and"):
        look_at(tmp_path)


def test_a_kube_scheduler_that_is_told_no_kubeconfig(tmp_path: Path) -> None:
    host = OtherHost(tmp_path)
    flag = b"    - --kubeconfig=/etc/kubernetes/scheduler.conf\n"
    host.files.write(KubeadmFile.path, (host.manifest or b"").replace(flag, b""))
    words = f"kube-scheduler's configuration in {CONFIG} has no kubeconfig"
    with pytest.raises(Obstacle, match=f"^{words}$"):
        look_at(tmp_path)


def test_a_look_that_cannot_be(tmp_path: Path) -> None:
    host = OtherHost(tmp_path)
    del host.kept[MIRROR]
    assert "there is no pod kube-scheduler-cp-2" in str(host.look())
    host.fails(1, lambda: Unavailable("no answer"), done=False)
    assert str(host.look()) == "the Job for cp-2 could not be run: no answer"


def ended(name: str, code: int) -> Json:
    """A pod of which one container has failed."""
    state = {"terminated": {"exitCode": code}}
    main = name in ("write", "look")
    kind = "containerStatuses" if main else "initContainerStatuses"
    return {"phase": "Failed", kind: [{"name": name, "state": state}]}


@pytest.mark.parametrize(
    ("end", "log", "words"),
    [
        (None, "", "somebody deleted its pod"),
        ({"phase": "Failed", "reason": "Evicted", "message": "no disk"}, "", "no disk"),
        (ended("write", 137), "", "container write ended with code 137"),
        (ended("check", 137), "starting", "container check ended with code 137"),
        (ended("check", 1), 'err="weight"', "rejects the new configuration: weight"),
        (ended("write", 1), "/x: No space left on device", "No space left on device"),
    ],
)
def test_job_that_was_ended(tmp_path: Path, end: Json, log: str, words: str) -> None:
    """It is never taken for done, and the next one goes on."""
    host = OtherHost(tmp_path)
    host.end = [end]
    host.logs["gpushare-scheduler-apply-cp-2-x"] = log
    assert words in host.set()
    assert host.set() == ""


def test_job_of_a_killed_run_ends_first(tmp_path: Path) -> None:
    """It may still wait for its image, and would write when all was restored."""
    host = OtherHost(tmp_path)
    name = "gpushare-scheduler-apply-cp-2"
    old = Ref("batch/v1", "Job", name, "kube-system")
    labels = {"job-name": name}
    pod = Ref("v1", "Pod", f"{name}-old", "kube-system")
    metadata = {"namespace": "kube-system", "labels": labels}
    host.kept[old] = {"metadata": {"name": name}}
    host.kept[pod] = {"metadata": {**metadata, "name": pod.name}}
    host.gone_after = [pod]
    create = host.create

    def alone(body: Json) -> Json:
        assert not {old, pod} & host.kept.keys()
        return create(body)

    host.create = alone  # type: ignore[method-assign]
    assert host.set(Action.RESTORE) == ""


def test_image_that_the_node_does_not_get(tmp_path: Path) -> None:
    """It is said while the Job waits; the containers after it wait for nothing else."""
    host = OtherHost(tmp_path)
    states = [
        {"waiting": {"reason": "ErrImagePull", "message": "no such host"}},
        {"waiting": {"reason": "PodInitializing"}},
    ]
    kinds = ("initContainerStatuses", "containerStatuses")
    host.end = [
        {kind: [{"state": one}] for kind, one in zip(kinds, states, strict=True)}
    ]
    host.ends = []
    why = host.set()
    assert why.startswith("the Job did not end within 3 s: ErrImagePull: no such host")
    assert "with --image" in why
    assert host.heard[1:] == ["its pod waits: ErrImagePull: no such host"]


VOLUMES = """\
  volumes:
  - {name: tmp, emptyDir: {}}
  - {name: kubernetes, hostPath: {path: /srv/a}}
  - {name: try, hostPath: {path: /srv/b}}
  - {name: again, hostPath: {path: /srv/b/}}
"""
OWN_MOUNTS = """\
    volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: try, mountPath: /etc/kubernetes/vcuda/}
"""


def test_volumes_of_any_kind_and_name() -> None:
    """The API server wants each mount's volume, and every name and path once."""
    text = (GOLDEN / "kubeadm.yaml").read_text()
    text = text.replace("  volumes:\n", VOLUMES)
    text = text.replace("    volumeMounts:\n", OWN_MOUNTS)
    for action in (Action.APPLY, Action.RESTORE, Action.LOOK):
        spec = pod(job(action), yaml.safe_load(text))
        names = [each["name"] for each in spec["volumes"]]
        assert len(set(names)) == len(names)
        for each in (*spec["initContainers"], *spec["containers"]):
            assert {mount["name"] for mount in each["volumeMounts"]} <= set(names)
            paths = [Path(mount["mountPath"]) for mount in each["volumeMounts"]]
            assert len(set(paths)) == len(paths)
