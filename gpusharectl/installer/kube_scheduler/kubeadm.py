"""kube-scheduler on a control-plane node that kubeadm has set up: a static pod."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import yaml

from gpushare.kube.objects import Objects
from gpusharectl.installer.kube_scheduler import static_pod
from gpusharectl.installer.kube_scheduler.files import (
    READABLE,
    FilesTarget,
    FormerSetup,
)
from gpusharectl.installer.kube_scheduler.host import HostScheduler, SchedulerTimeouts
from gpusharectl.installer.kube_scheduler.host_files import (
    FileChange,
    HostFiles,
    Obstacle,
)
from gpusharectl.installer.kube_scheduler.static_pod import (
    REMEDY,
    STAMP,
    Additions,
    SchedulerPod,
)
from gpusharectl.installer.kube_scheduler.verify import (
    ConfigurationResult,
    ConfigurationVerdict,
    MirrorPod,
    Say,
    configuration_pod,
    probe_scheduler,
    try_configuration,
)

_ABSENT = (
    "does not exist: kubeadm has not set up a control plane on this host; run "
    "gpusharectl install on a control-plane node"
)
_LIKE_KUBELET = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""kubelet's parser comes from the C library, and takes tabs as that does. What a value
means is not asked: it may be a date that does not exist."""
_LONGEST = 10 << 20
"""Bytes; kubelet reads no longer file."""


class KubeadmFile:
    """``Starter`` for ``/etc/kubernetes/manifests/kube-scheduler.yaml``. Pure."""

    path = "/etc/kubernetes/manifests/kube-scheduler.yaml"
    folder = "/etc/kubernetes/vcuda"
    remedy = REMEDY

    def kubeconfig(self, without_gpushare: str | None) -> str:  # noqa: ARG002
        """Return "": kubeadm always passes it as a flag."""
        return ""

    def on_host(self, text: str | None, path: str) -> str:
        return path if text is None else SchedulerPod.read(text).on_host(path)

    def edit(self, text: str | None, additions: Additions) -> str:
        if text is None:
            raise Obstacle(_ABSENT)
        return static_pod.edit_static_pod(text, additions)

    def without_gpushare(
        self,
        text: str | None,
        additions: Additions,
        backup: str | None = None,  # noqa: ARG002
    ) -> str | None:
        return None if text is None else static_pod.restore_static_pod(text, additions)

    def is_edited(self, text: str | None, additions: Additions) -> bool:
        return text is not None and static_pod.is_static_pod_edited(text, additions)

    def former_setup(self, without_gpushare: str | None) -> FormerSetup:
        if without_gpushare is None:
            raise Obstacle(_ABSENT)
        pod = SchedulerPod.read(without_gpushare)
        return FormerSetup(pod.on_host(pod.config) if pod.config else "", pod.flags)

    def overruled(self, files: HostFiles) -> str:
        """Return which other static pods have kube-scheduler's name, or "".

        kubelet starts each file of the folder whose name does not begin with a dot,
        whatever its ending, and of several pods with one name the last it has read.
        """
        folder, pod_name = str(PurePosixPath(self.path).parent), _name(files, self.path)
        paths = [f"{folder}/{name}" for name in files.names(folder) if name[0] != "."]
        others = [
            path
            for path in paths
            if path != self.path and _name(files, path) == pod_name
        ]
        if not others or pod_name is None:
            return ""
        holds, it = ("hold", "them") if len(others) > 1 else ("holds", "it")
        return (
            f"{' and '.join(others)} {holds} a pod {pod_name} too, and kubelet starts "
            "every file there whose name does not begin with a dot, so that pod "
            f"replaces the one of {self.path}: move {it} to another folder"
        )


def _name(files: HostFiles, path: str) -> str | None:
    """Return ``namespace/name`` of the pod that kubelet starts from a file, if any.

    It reads the first document, as YAML or JSON, of a file that is not too long.
    """
    try:
        place = files.place(path)
    except OSError:
        # Links in a circle.
        return None
    if not place.is_file() or place.stat().st_size > _LONGEST:
        return None
    try:
        body: Any = next(yaml.load_all(files.read(path) or b"", _LIKE_KUBELET), None)
        metadata = body["metadata"] if body["kind"] == "Pod" else {}
        return f"{metadata.get('namespace') or 'default'}/{metadata['name']}"
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, RecursionError):
        return None


class KubeadmScheduler(HostScheduler):
    """kube-scheduler as a static pod of this host."""

    def __init__(
        self,
        files: HostFiles,
        objects: Objects,
        node: str,
        target: FilesTarget,
        timeouts: SchedulerTimeouts | None = None,
    ) -> None:
        super().__init__(files, objects, node, KubeadmFile(), target, timeouts)
        self._mirror = MirrorPod(objects, node, self._timeouts.pace)
        self._untried = ""

    def check(self, plan: Sequence[FileChange]) -> str:
        """Return why kube-scheduler would reject the new configuration, or "".

        If it cannot be tried, that is no reason against it; ``wait`` says so.
        """
        verdict = self.verdict(plan)
        self._untried = (
            verdict.words if verdict.result is ConfigurationResult.UNKNOWN else ""
        )
        return verdict.words if verdict.result is ConfigurationResult.BAD else ""

    def verdict(self, plan: Sequence[FileChange]) -> ConfigurationVerdict:
        """Try the new configuration in a pod of its own beside kube-scheduler.

        Its files lie beside the real ones meanwhile, with the ending ``.next``.
        """
        after = {change.path: change.after for change in plan}
        path = KubeadmFile.path
        manifest = after.get(path) or self._host_files.read(path)
        config = after.get(self._scheduler_files.config)
        if config is None:
            return ConfigurationVerdict(ConfigurationResult.WELL)
        try:
            pod = SchedulerPod.read((manifest or b"").decode(errors="replace"))
        except Obstacle:
            return ConfigurationVerdict(ConfigurationResult.WELL)
        tried = self._trial(plan, config)
        try:
            self._host_files.make(tried)
            body = configuration_pod(pod, self._node, self._scheduler_files.next)
            timeouts = self._timeouts
            return try_configuration(
                self._objects, body, timeouts.pace, timeouts.check_s
            )
        finally:
            self._scheduler_files.make(
                [FileChange(each.path, None, None) for each in tried]
            )

    def roll_back(self) -> None:
        super().roll_back()
        self._untried = ""

    def wait(self, say: Say) -> str:
        if self._untried:
            say(f"the configuration could not be tried beforehand: {self._untried}")
        pod = self._manifest()
        if isinstance(pod, Obstacle):
            return str(pod)
        why = self._mirror.wait(pod, say, self._timeouts.wait_s)
        # Without the stamp it is the cluster's own again, as a copy of it may be.
        return (why or pod.annotation(STAMP)) and (
            self._scheduler_files.overruled() or why
        )

    def probe(self) -> str:
        pod = self._manifest()
        if isinstance(pod, Obstacle):
            return str(pod)
        timeouts = self._timeouts
        return probe_scheduler(
            self._objects, self._node, pod.image, timeouts.pace, timeouts.probe_s
        )

    def _manifest(self) -> SchedulerPod | Obstacle:
        content = self._host_files.read(KubeadmFile.path)
        try:
            return SchedulerPod.read((content or b"").decode(errors="replace"))
        except Obstacle as obstacle:
            why = "does not exist" if content is None else obstacle
            return Obstacle(f"{KubeadmFile.path} {why}")

    def _trial(self, plan: Sequence[FileChange], config: bytes) -> list[FileChange]:
        """Return the new files under temporary names, and a configuration for them."""
        folder = f"{self._scheduler_files.certificates.folder}/"
        new = [each for each in plan if each.path.startswith(folder) and each.after]
        for each in new:
            config = config.replace(each.path.encode(), f"{each.path}.next".encode())
        return [
            FileChange(self._scheduler_files.next, None, config, READABLE),
            *(replace(each, path=f"{each.path}.next", before=None) for each in new),
        ]
