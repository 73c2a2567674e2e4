"""kube-scheduler on the other control-plane nodes: a Job writes the files of each.

Its pod is bound to the node, since the scheduler may be what is broken, and has no
credentials: it sees kube-scheduler's own folders, the setting of reserved ports, and
nothing else of the host. Two init containers first try the new configuration on copies,
with kube-scheduler's own image; the last container writes. Another Job only looks at
what DRA needs to know of the host.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import SYSTEM, container_statuses
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.kube_scheduler.files import (
    CONFIG_NAME,
    STAYS,
    FilesTarget,
    SchedulerFiles,
)
from gpusharectl.installer.kube_scheduler.host import SchedulerTimeouts
from gpusharectl.installer.kube_scheduler.host_files import (
    FileChange,
    HostFiles,
    Obstacle,
)
from gpusharectl.installer.kube_scheduler.kubeadm import KubeadmFile
from gpusharectl.installer.kube_scheduler.ports import AT_BOOT, RESERVED
from gpusharectl.installer.kube_scheduler.static_pod import (
    PROGRAM,
    SchedulerPod,
    scheduler_container,
)
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.kube_scheduler.verify import (
    LEFT,
    REJECTED,
    MirrorPod,
    Say,
    configuration_container,
    container_wait,
    is_made_from,
    is_node_silent,
    last_words,
    pulled_with,
    short_pod,
    temporary_object,
)


class Action(StrEnum):
    """What is done to the host's files."""

    TRY = "try"
    """Write below ``into`` what ``apply`` would write, and nothing to the host."""
    APPLY = "apply"
    RESTORE = "restore"
    LOOK = "look"
    """Print the certificate of the host's authority, and write nothing."""


def act_on_files(action: Action, root: Path, desired: FilesTarget, into: Path) -> str:
    """Do it to the files below ``root``, and return the manifest as it is then.

    This is what the Job runs: ``gpusharectl host-scheduler``. Raises ``Obstacle``; for
    ``look`` also if kube-scheduler uses another API server.
    """
    host = HostFiles(root)
    files = SchedulerFiles(host, KubeadmFile(), desired)
    try:
        if action is Action.LOOK:
            if why := files.why_elsewhere():
                raise Obstacle(why)
            return files.authority.decode()
        changes = files.plan_restore() if action is Action.RESTORE else files.plan()
        if action is Action.TRY:
            # The present files are copied beside the new ones.
            there = (files.config, *files.certificates.paths())
            copies = [FileChange(path, None, host.read(path)) for path in there]
            folder = f"{KubeadmFile.folder}/"
            inside = [each for each in changes if each.path.startswith(folder)]
            HostFiles(into).make([*copies, *inside])
        else:
            files.make(changes)
            if action is Action.APPLY:
                # An init container has tried them.
                files.finish()
        return (host.read(KubeadmFile.path) or b"").decode()
    except OSError as error:
        path = error.filename or KubeadmFile.path
        raise Obstacle(f"{path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class SchedulerTarget:
    """Which kube-scheduler is set up, and how."""

    flavour: Flavour
    node: str
    version: str
    image: str
    restart: bool = False
    tls: bool = False
    frag: bool = False
    """Whether the policy is ``frag``: the extender's score outweighs all others."""
    pull_secrets: tuple[str, ...] = ()
    """The Secrets with which the image is pulled."""


NAME = "gpushare-scheduler"
_ETC = "/etc/kubernetes"
_ROOT = "/host"
_INTO = "/try"
_HOST, _TRY, _PORTS, _BOOT = (
    f"gpushare-job-{name}" for name in ("host", "try", "ports", "boot")
)
"""Volumes of the Job, which has those of kube-scheduler's pod too."""
_BOOT_FOLDER = str(PurePosixPath(AT_BOOT).parent)
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class HostJob:
    """What to do on a node, as ``target`` says it of this host."""

    action: Action
    node: str
    target: SchedulerTarget

    @property
    def name(self) -> str:
        """The Job's name, short enough for a label whatever the node's name."""
        name = f"{NAME}-{self.action}-{self.node}"
        if len(name) <= _LONGEST_NAME:
            return name
        digest = hashlib.sha256(self.node.encode()).hexdigest()[:16]
        return f"{NAME}-{self.action}-{digest}"

    @property
    def container(self) -> str:
        """The name of the container that does it."""
        return "look" if self.action is Action.LOOK else "write"

    def body(self, mirror: Json) -> Json:
        """Return the Job; ``mirror`` is the node's kube-scheduler pod as it is."""
        template = short_pod(self.name, self._pod_spec(mirror))
        metadata = template["metadata"]
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**metadata, "name": self.name},
            "spec": {
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": 3600,
                "template": {
                    "metadata": {"labels": metadata["labels"]},
                    "spec": template["spec"],
                },
            },
        }

    def _pod_spec(self, mirror: Json) -> Json:
        last = self._step(self.container, self.action)
        mounts = self._host_mounts(mirror)
        if self.action is Action.LOOK:
            mounts = [{**mount, "readOnly": True} for mount in mounts]
        else:
            mounts.append({"name": _PORTS, "mountPath": f"{_ROOT}{RESERVED}"})
            mounts.append({"name": _BOOT, "mountPath": f"{_ROOT}{_BOOT_FOLDER}"})
        boot = {"path": _BOOT_FOLDER, "type": "DirectoryOrCreate"}
        return {
            "nodeName": self.node,
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            **pulled_with(self.target.pull_secrets),
            "initContainers": self._trial(mirror),
            "containers": [{**last, "volumeMounts": mounts}],
            "volumes": [
                *(mirror["spec"].get("volumes") or ()),
                {"name": _HOST, "hostPath": {"path": _ETC, "type": "Directory"}},
                # Of the host's network, since the pod has that.
                {"name": _PORTS, "hostPath": {"path": RESERVED, "type": "File"}},
                {"name": _BOOT, "hostPath": boot},
                {"name": _TRY, "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}},
            ],
        }

    def _trial(self, mirror: Json) -> list[Json]:
        """Return the containers that try on copies what ``apply`` would write."""
        if self.action is not Action.APPLY:
            return []
        copies = {"name": _TRY, "mountPath": _INTO}
        etc, *others = self._host_mounts(mirror)
        mounts = [{**etc, "readOnly": True}, *others, copies]
        step = {**self._step("prepare", Action.TRY), "volumeMounts": mounts}
        folder = KubeadmFile.folder
        check = configuration_container(
            scheduler_container(mirror), f"{folder}/{CONFIG_NAME}"
        )
        mounts_elsewhere = [
            each
            for each in check.get("volumeMounts", ())
            if not PurePosixPath(each["mountPath"]).is_relative_to(folder)
        ]
        mount = {**copies, "mountPath": folder, "subPath": folder[1:], "readOnly": True}
        return [step, {**check, "volumeMounts": [*mounts_elsewhere, mount]}]

    def _step(self, name: str, action: Action) -> Json:
        target = self.target
        paths = [f"--root={_ROOT}", f"--into={_INTO}"]
        switches = {"--tls": target.tls, "--packs": target.frag}
        more = [switch for switch, given in switches.items() if given]
        flags = [*paths, f"--kubernetes={target.version}", *more]
        return {
            "name": name,
            "image": target.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["gpusharectl", "host-scheduler", str(action), *flags],
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
            "securityContext": {
                "runAsUser": 0,
                "runAsGroup": 0,
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                # Files of kube-scheduler and of the extender may be another user's.
                "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }

    def _host_mounts(self, mirror: Json) -> list[Json]:
        """Return mounts of kube-scheduler's folders of the host, each path once."""
        volumes = mirror["spec"].get("volumes") or ()
        paths = {
            PurePosixPath(each["hostPath"]["path"]): each["name"]
            for each in volumes
            if "hostPath" in each
        }
        return [
            {"name": _HOST, "mountPath": f"{_ROOT}{_ETC}"},
            *(
                {"name": name, "mountPath": f"{_ROOT}{path}", "readOnly": True}
                for path, name in paths.items()
                if not path.is_relative_to(_ETC)
            ),
        ]


_MIRROR_S = 20.0
_GONE_WITHIN_S = 30.0
_LOG_LINES = 500
"""Lines; a manifest has about 100."""
_BY_SIGNAL = 128
"""A container that a signal has ended has a greater exit code."""


@dataclass(frozen=True, slots=True)
class SchedulerJobs:
    """The kube-schedulers on the other control-plane nodes."""

    objects: Objects
    target: SchedulerTarget
    timeouts: SchedulerTimeouts = field(default_factory=SchedulerTimeouts)

    def run(self, action: str, node: str, say: Say) -> str:
        """Do ``apply`` or ``restore`` on a node; return why that failed, or "".

        If kube-scheduler does not start after ``apply`` has changed what it reads, its
        files are put back.
        """
        try:
            return self._run(Action(action), node, say)
        except Obstacle as obstacle:
            return str(obstacle)
        except ClusterError as error:
            return f"the Job for {node} could not be run: {error}"

    def look(self, node: str, say: Say) -> bytes | Obstacle:
        """Return the certificate of a node's authority; empty before it is made.

        The obstacle is also that its kube-scheduler uses no API server of its host.
        """
        try:
            job = HostJob(Action.LOOK, node, self.target)
            return self._done(job, self._mirror(node), say).encode()
        except Obstacle as obstacle:
            return obstacle
        except ClusterError as error:
            return Obstacle(f"the Job for {node} could not be run: {error}")

    def _mirror(self, node: str) -> Json:
        """Return the pod of a node's kube-scheduler; ``Obstacle`` if there is none."""
        if is_node_silent(self.objects, node):
            raise Obstacle(
                "the node's kubelet has stopped to report: start it, or if the host is "
                f"gone: kubectl delete node {node}"
            )
        ref = Ref("v1", "Pod", f"{PROGRAM}-{node}", SYSTEM)
        # It is absent for a moment while kubelet recreates it.
        mirror = self.timeouts.pace.until(lambda: self.objects.get(ref), _MIRROR_S)
        if mirror is None:
            raise Obstacle(
                f"there is no pod {PROGRAM}-{node}: kubeadm has not set up a control "
                "plane on that node"
            )
        return mirror

    def _run(self, action: Action, node: str, say: Say) -> str:
        mirror = self._mirror(node)
        log = self._done(HostJob(action, node, self.target), mirror, say)
        manifest = SchedulerPod.read(log)
        pace, wait_s = self.timeouts.pace, self.timeouts.wait_s
        why = MirrorPod(self.objects, node, pace).wait(manifest, say, wait_s)
        config = f"{KubeadmFile.folder}/{CONFIG_NAME}"
        if action is Action.RESTORE and manifest.config == config:
            say(f"{config} {STAYS}")
        if not why or action is not Action.APPLY:
            return why
        if is_made_from(mirror, manifest):
            return f"{why}; {LEFT}"
        say(f"{PROGRAM} did not start; its old files are put back")
        failure = self.run(Action.RESTORE, node, say)
        return f"{why}; " + (failure or "its old files are back, and it runs")

    def _done(self, job: HostJob, mirror: Json, say: Say) -> str:
        """Run the Job to its end, and return what it has printed."""
        pace, most_s = self.timeouts.pace, self.timeouts.job_s
        self._end_others(job)
        with temporary_object(self.objects, job.body(mirror), pace) as ref:
            does = "reads" if job.action is Action.LOOK else "writes"
            say(f"Job {SYSTEM}/{job.name} {does} the files")
            last_reason = ""

            def look() -> bool | None:
                nonlocal last_reason
                body = self.objects.get(ref)
                waiting = container_wait(self._pod(job, body) or {})
                reason, _, message = waiting.partition(": ")
                # The message of one reason may change at each try.
                if message and reason != last_reason:
                    say(f"its pod waits: {waiting}")
                    last_reason = reason
                return _ended(body)

            pace.until(look, most_s)
            return self._outcome(job, self.objects.get(ref), most_s)

    def _end_others(self, job: HostJob) -> None:
        """Delete the node's Jobs of a run that was killed: they may still write."""
        names = [replace(job, action=each).name for each in Action]
        for name in names:
            self.objects.delete(Ref("batch/v1", "Job", name, SYSTEM), grace_period_s=0)

        def look() -> bool | None:
            return None if any(map(self._pods, names)) else True

        self.timeouts.pace.until(look, _GONE_WITHIN_S)

    def _outcome(self, job: HostJob, body: Json | None, most_s: float) -> str:
        pod = self._pod(job, body)
        if not _ended(body):
            why = (container_wait(pod) if pod else "") or "it did not start"
            if "Image" in why.partition(":")[0]:
                why += "; with --image you name an image that the node can get"
            raise Obstacle(f"the Job did not end within {most_s:g} s: {why}")
        if pod is None:
            raise Obstacle("the Job failed: somebody deleted its pod")
        name, (failed, code) = pod["metadata"]["name"], _failed(pod)
        if not failed and pod["status"].get("phase") == "Failed":
            status = pod["status"]
            why = status.get("message") or status.get("reason") or "no reason is given"
            raise Obstacle(f"the Job failed: {why}")
        container = failed or job.container
        log = self.objects.log(SYSTEM, name, container, lines=_LOG_LINES)
        if not failed:
            return log
        last_log = last_words(log)
        if not last_log or code > _BY_SIGNAL:
            raise Obstacle(
                f"the Job's container {failed} ended with code {code}; it has said: "
                f"{last_log or 'nothing'}"
            )
        raise Obstacle(f"{REJECTED}: {last_log}" if failed == "check" else last_log)

    def _pod(self, job: HostJob, body: Json | None) -> Json | None:
        """Return the Job's pod; those of an earlier one of its name may linger."""
        uid = (body or {}).get("metadata", {}).get("uid")
        for pod in self._pods(job.name):
            owners = pod["metadata"].get("ownerReferences") or ()
            if any(each["uid"] == uid for each in owners):
                return pod
        return None

    def _pods(self, job: str) -> Sequence[Json]:
        label = f"job-name={job}"
        return self.objects.list("v1", "Pod", namespace=SYSTEM, label_selector=label)


def _ended(job: Json | None) -> bool | None:
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    ends = {"Complete", "Failed"}
    over = any(each["type"] in ends and each["status"] == "True" for each in conditions)
    return True if over else None


def _failed(pod: Json) -> tuple[str, int]:
    """Return the name and exit code of the container that failed, or "" and 0."""
    for container in container_statuses(pod):
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            return str(container["name"]), int(ended["exitCode"])
    return "", 0
