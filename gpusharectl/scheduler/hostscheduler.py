"""What ``gpusharectl host-scheduler`` does, on a host that a Job has mounted.

It knows no API server. What it prints when all is well is kube-scheduler's manifest as
it lies there then, for whoever made the Job and waits for that pod.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpusharectl.scheduler.hostfiles import HostFiles
from gpusharectl.scheduler.kubeadmfile import KubeadmFile
from gpusharectl.scheduler.obstacle import Obstacle
from gpusharectl.scheduler.schedulerfiles import Asked, SchedulerFiles


class Action(StrEnum):
    """What is done to the host's files."""

    TRY = "try"
    """Write what ``apply`` would write below ``into``, and nothing to the host."""
    APPLY = "apply"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Done:
    """What to print, and the exit code."""

    words: str
    code: int = 0


def host_scheduler(action: Action, root: Path, asked: Asked, into: Path) -> Done:
    """Do it to the files below ``root``; what stands in the way is told in words."""
    host = HostFiles(root)
    files = SchedulerFiles(host, KubeadmFile(), asked)
    try:
        changes = files.restore() if action is Action.RESTORE else files.plan()
        if isinstance(changes, Obstacle):
            return Done(str(changes), 1)
        if action is Action.TRY:
            _copy(host, files, into)
            folder = f"{KubeadmFile.folder}/"
            inside = [each for each in changes if each.path.startswith(folder)]
            HostFiles(into).make(inside)
        else:
            files.make(changes)
        return Done((host.read(KubeadmFile.path) or b"").decode())
    except OSError as error:
        return Done(f"{error.filename or KubeadmFile.path}: {error.strerror}", 1)


def _copy(host: HostFiles, files: SchedulerFiles, into: Path) -> None:
    """Lay what is there already beside what is new."""
    for path in (files.config, *files.certificates.paths()):
        content = host.read(path)
        if content is not None:
            HostFiles(into).write(path, content)
