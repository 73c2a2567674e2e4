"""kube-scheduler on a control-plane node that kubeadm has made.

``KubeadmScheduler`` plans, tries, writes, waits, proves and puts back. ``plan`` and
``restore`` only look; ``apply`` takes what either gives. All of them may be interrupted
at any point: the next run sees what there is and goes on from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpushare.kube.objects import Objects
from gpusharectl.kube_scheduler.files import Asked, SchedulerFiles
from gpusharectl.kube_scheduler.flavours import KubeadmFile
from gpusharectl.kube_scheduler.host_files import FileChange, HostFiles, Obstacle
from gpusharectl.kube_scheduler.static_pod import SchedulerPod
from gpusharectl.kube_scheduler.temp_pod import Pace
from gpusharectl.kube_scheduler.verify import (
    MirrorPod,
    Said,
    Say,
    Verdict,
    check_pod,
    checked,
    probed,
)

_READABLE = 0o644


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each may take, in seconds."""

    check_s: float = 60.0
    wait_s: float = 180.0
    """kubelet gives the old one 30 s to end, and the new one has to hold the lease."""
    probe_s: float = 60.0
    """A lease that was not given back runs out after 15 s."""
    job_s: float = 600.0
    """Another node may have to pull our image first."""
    pace: Pace = field(default_factory=Pace)


class KubeadmScheduler:
    """One host's kube-scheduler; ``node`` is what the cluster calls the host."""

    def __init__(
        self,
        files: HostFiles,
        objects: Objects,
        node: str,
        asked: Asked,
        patience: Patience | None = None,
    ) -> None:
        self._host = files
        self._objects = objects
        self._node = node
        self._patience = patience or Patience()
        self._files = SchedulerFiles(files, KubeadmFile(), asked)
        self._mirror = MirrorPod(objects, node, self._patience.pace)
        self._applied: Sequence[FileChange] = ()
        self._untried = ""

    def plan(self) -> Sequence[FileChange] | Obstacle:
        """Give the files to write; none where all is as wanted."""
        return self._files.plan()

    def restore(self) -> Sequence[FileChange] | Obstacle:
        """Give the files to put back or remove; none where nothing is ours."""
        return self._files.restore()

    def missing(self) -> str:
        """Say in words if our configuration was here and someone undid it."""
        return self._files.missing()

    def check(self, plan: Sequence[FileChange]) -> str:
        """Say why kube-scheduler would not take the new configuration, else "".

        What could not be tried is no reason against it; ``wait`` says that it was not.
        """
        verdict = self.verdict(plan)
        self._untried = verdict.words if verdict.said is Said.UNKNOWN else ""
        return verdict.words if verdict.said is Said.BAD else ""

    def verdict(self, plan: Sequence[FileChange]) -> Verdict:
        """Try the new configuration in a pod of its own beside kube-scheduler.

        Its files lie beside the real ones meanwhile, under names that end in ``.next``.
        """
        after = {change.path: change.after for change in plan}
        manifest = after.get(KubeadmFile.path) or self._host.read(KubeadmFile.path)
        pod = SchedulerPod.read((manifest or b"").decode(errors="replace"))
        config = after.get(self._files.config)
        if isinstance(pod, Obstacle) or config is None:
            return Verdict(Said.WELL)
        tried = self._trial(plan, config)
        try:
            self._host.make(tried)
            body = check_pod(pod, self._node, self._files.next)
            patience = self._patience
            return checked(self._objects, body, patience.pace, patience.check_s)
        finally:
            self._files.make([FileChange(each.path, None, None) for each in tried])

    def apply(self, plan: Sequence[FileChange]) -> None:
        """Write what ``plan`` or ``restore`` gave; ``OSError`` where that fails."""
        self._applied = tuple(plan)
        self._files.make(plan)

    def roll_back(self) -> None:
        """Put the files back as they were before the last ``apply``."""
        self._files.make([each.reversed() for each in reversed(self._applied)])
        self._applied = ()
        self._untried = ""

    def wait(self, say: Say) -> str:
        """Wait until kube-scheduler is Ready by the files as they are; why not, else.

        ``say`` hears what is waited for.
        """
        if self._untried:
            say(f"the configuration could not be tried beforehand: {self._untried}")
        pod = self._manifest()
        if isinstance(pod, Obstacle):
            return f"{KubeadmFile.path} {pod}"
        return self._mirror.wait(pod, say, self._patience.wait_s)

    def probe(self) -> str:
        """Prove the way through the extender; why there is none, else ""."""
        pod = self._manifest()
        if isinstance(pod, Obstacle):
            return f"{KubeadmFile.path} {pod}"
        patience = self._patience
        return probed(
            self._objects, self._node, pod.image, patience.pace, patience.probe_s
        )

    def _manifest(self) -> SchedulerPod | Obstacle:
        content = self._host.read(KubeadmFile.path)
        if content is None:
            return Obstacle("is not there")
        return SchedulerPod.read(content.decode(errors="replace"))

    def _trial(self, plan: Sequence[FileChange], config: bytes) -> list[FileChange]:
        """Give the new files under names of their own, and a configuration by these."""
        folder = f"{self._files.certificates.folder}/"
        new = [each for each in plan if each.path.startswith(folder) and each.after]
        for each in new:
            config = config.replace(each.path.encode(), f"{each.path}.next".encode())
        return [
            FileChange(self._files.next, None, config, _READABLE),
            *(replace(each, path=f"{each.path}.next", before=None) for each in new),
        ]
