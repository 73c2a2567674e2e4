"""Configure kube-scheduler on this host, prove that it works, or restore it.

``KubeadmScheduler`` (``kubeadm``) and ``K3sScheduler`` (``k3s``) differ in how they
check, wait and probe; the files are planned and written in the same way. Each call may
be interrupted; the next run reads what there is and goes on from there.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Self

from gpushare.kube.objects import Objects
from gpusharectl.installer.kube_scheduler.files import (
    STAYS,
    FilesTarget,
    SchedulerFiles,
    Starter,
    kept_configuration,
)
from gpusharectl.installer.kube_scheduler.host_files import (
    FileChange,
    HostFiles,
    Obstacle,
)
from gpusharectl.installer.kube_scheduler.verify import LEFT, PollPace, Say
from gpusharectl.installer.progress import Exit, InstallError, Screen

_LEAST_S = 45.0


@dataclass(frozen=True, slots=True)
class SchedulerTimeouts:
    """How long each step may take, in seconds."""

    check_s: float = 60.0
    wait_s: float = 180.0
    """kubelet gives the old pod 30 s to end, and the new one must get the lease."""
    probe_s: float = 60.0
    """A lease that was not released expires after 15 s."""
    job_s: float = 600.0
    """Another node may have to pull gpushare's image first."""
    pace: PollPace = field(default_factory=PollPace)

    @classmethod
    def within(cls, timeout_s: float | None) -> Self:
        """Return what an operator's time for each step means here; None: as usual.

        kubelet gives the old pod 30 s to end, however short that time is.
        """
        usual = cls()
        if timeout_s is None:
            return usual
        return replace(
            usual,
            check_s=min(usual.check_s, timeout_s),
            wait_s=max(timeout_s, _LEAST_S),
            probe_s=min(usual.probe_s, timeout_s),
            job_s=timeout_s,
        )


class HostScheduler(ABC):
    """One host's kube-scheduler; ``node`` is the host's name in the cluster."""

    def __init__(
        self,
        files: HostFiles,
        objects: Objects,
        node: str,
        starter: Starter,
        target: FilesTarget,
        timeouts: SchedulerTimeouts | None,
    ) -> None:
        self._host_files = files
        self._objects = objects
        self._node = node
        self._timeouts = timeouts or SchedulerTimeouts()
        self._scheduler_files = SchedulerFiles(files, starter, target)
        self._applied: Sequence[FileChange] = ()

    def plan(self) -> Sequence[FileChange] | Obstacle:
        """Return the files to write; none if all are as wanted."""
        try:
            return self._scheduler_files.plan()
        except Obstacle as obstacle:
            return obstacle

    def plan_restore(self) -> Sequence[FileChange] | Obstacle:
        """Return the files to put back or remove; none if nothing is gpushare's."""
        try:
            return self._scheduler_files.plan_restore()
        except Obstacle as obstacle:
            return obstacle

    def why_elsewhere(self) -> str:
        """Return why kube-scheduler uses no API server of this host, or ""."""
        try:
            return self._scheduler_files.why_elsewhere()
        except Obstacle as obstacle:
            return str(obstacle)

    @property
    def authority(self) -> bytes:
        """The certificate of this host's own authority; empty without TLS files."""
        return self._scheduler_files.authority

    def due_certificates(self) -> Sequence[FileChange]:
        """Return the TLS files to write: those missing, broken or due for renewal."""
        return self._scheduler_files.certificates.planned(datetime.now(UTC))

    def apply(self, plan: Sequence[FileChange]) -> None:
        """Write what ``plan`` or ``plan_restore`` returned; ``OSError`` on failure."""
        self._applied = tuple(plan)
        self._scheduler_files.make(plan)

    def roll_back(self) -> None:
        """Put the files back as they were before the last ``apply``."""
        self._scheduler_files.make(
            [each.reversed() for each in reversed(self._applied)]
        )
        self._applied = ()

    def is_read(self, plan: Sequence[FileChange]) -> bool:
        """Return whether kube-scheduler reads one of these files."""
        return self._scheduler_files.are_read(plan)

    @property
    def unfinished(self) -> bool:
        """Whether kube-scheduler was not seen running since the first installation."""
        return self._scheduler_files.unfinished

    def finish(self) -> None:
        """Record that kube-scheduler was seen running with the present files."""
        self._scheduler_files.finish()

    @abstractmethod
    def check(self, plan: Sequence[FileChange]) -> str:
        """Return why kube-scheduler would reject the new configuration, or ""."""

    @abstractmethod
    def wait(self, say: Say) -> str:
        """Wait until kube-scheduler runs with the present files; why not, or "".

        ``say`` is called with what is waited for.
        """

    @abstractmethod
    def probe(self) -> str:
        """Prove that kube-scheduler calls the extender; why it does not, or ""."""


def configure_scheduler(
    host: HostScheduler, screen: Screen, *, alone: bool = True, at_once: bool = True
) -> None:
    """Add the extender to this host's kube-scheduler; on failure restore the files.

    If the host is ``alone``, it is proved here that kube-scheduler calls the extender;
    of several hosts only the leader schedules, so ``prove_scheduler`` does it later.
    ``at_once`` is false if kube-scheduler reads the files only when somebody restarts
    it.
    """
    plan = host.plan()
    if isinstance(plan, Obstacle):
        raise InstallError(str(plan), exit_code=Exit.REFUSED)
    if plan:
        why = host.check(plan)
        if why:
            raise InstallError(f"no file was changed: {why}")
        _write(host, plan, screen)
    # The record and the backup may have to follow what somebody has edited.
    changed = plan if host.is_read(plan) else ()
    why = host.wait(screen.say)
    if why:
        _roll_back(host, screen, f"kube-scheduler did not start: {why}", changed)
    host.finish()
    if not alone or (changed and not at_once):
        return
    why = host.probe()
    if why:
        why = f"kube-scheduler does not call the extender: {why}"
        # Files that were there before are not the cause; a new run tries again.
        if not changed:
            raise InstallError(why)
        _roll_back(host, screen, why, changed)
    screen.say("kube-scheduler runs and calls the extender")


def prove_scheduler(host: HostScheduler, screen: Screen) -> None:
    """Prove, with several control-plane hosts, that the leader calls the extender."""
    why = host.probe()
    if why:
        raise InstallError(f"kube-scheduler does not call the extender: {why}")
    screen.say("the kube-scheduler that holds the lease calls the extender")


def restore_scheduler(host: HostScheduler, screen: Screen) -> None:
    """Restore the configuration that this host's kube-scheduler had before."""
    plan = host.plan_restore()
    if isinstance(plan, Obstacle):
        raise InstallError(str(plan))
    if not plan:
        screen.say("kube-scheduler's configuration has no gpushare entries")
        return
    _write(host, plan, screen)
    why = host.wait(screen.say)
    if why:
        raise InstallError(
            f"kube-scheduler has its old configuration again, but does not start: {why}"
        )
    if kept := kept_configuration(plan):
        screen.say(f"{kept} {STAYS}")
    else:
        screen.say("kube-scheduler runs with its old configuration")


def _roll_back(
    host: HostScheduler, screen: Screen, why: str, plan: Sequence[FileChange]
) -> None:
    """Undo what was just written, or what an interrupted first run had written.

    An installation that was seen to work stays: kube-scheduler has another reason, and
    its cards would go on being offered.
    """
    why = why.rstrip(".")
    if not plan and not host.unfinished:
        raise InstallError(
            f"{why}; {LEFT}", "mend kube-scheduler, then the same command"
        )
    before = () if plan else host.plan_restore()
    if isinstance(before, Obstacle):
        raise InstallError(f"{why}; it could not be undone: {before}")
    if plan:
        host.roll_back()
    else:
        host.apply(before)
    failure = host.wait(screen.say)
    after = (
        f", but with that it does not start: {failure}" if failure else ", and it runs"
    )
    raise InstallError(f"{why}; its old configuration is restored{after}")


def _write(host: HostScheduler, plan: Sequence[FileChange], screen: Screen) -> None:
    for change in plan:
        lines = change.diff().splitlines()
        lines = [line for line in lines if not line.startswith(("+++", "---"))]
        added, gone = (sum(line.startswith(sign) for line in lines) for sign in "+-")
        screen.say(f"{change.path}  +{added} -{gone} lines")
    host.apply(plan)
