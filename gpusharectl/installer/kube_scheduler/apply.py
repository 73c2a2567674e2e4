"""Configure kube-scheduler on this host, prove that it works, or restore it."""

from collections.abc import Sequence

from gpusharectl.installer.kube_scheduler.files import STAYS, kept_configuration
from gpusharectl.installer.kube_scheduler.host import HostScheduler
from gpusharectl.installer.kube_scheduler.host_files import FileChange, Obstacle
from gpusharectl.installer.kube_scheduler.verify import LEFT
from gpusharectl.installer.progress import Exit, InstallError, Screen


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
