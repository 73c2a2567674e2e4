"""Set kube-scheduler on this host and on the others, and take it back. The order of it.

``SchedulerHost`` is one host's kube-scheduler, which ``kubeadm`` and ``k3s`` know;
here is when to check, when to wait and when to roll back.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from gpusharectl.install.progress import Exit, Screen, Trouble
from gpusharectl.kube_scheduler.host_files import FileChange, Obstacle

Say = Callable[[str], None]


class SchedulerHost(Protocol):
    """One host's kube-scheduler and its files."""

    def plan(self) -> Sequence[FileChange] | Obstacle:
        """Give what would change; nothing where all is as it should be."""
        ...

    def check(self, plan: Sequence[FileChange]) -> str:
        """Try the new configuration; why it will not do, else empty."""
        ...

    def apply(self, plan: Sequence[FileChange]) -> None:
        """Write it."""
        ...

    def wait(self, say: Say) -> str:
        """Wait for kube-scheduler to run with the files as they are; why not, else."""
        ...

    def probe(self) -> str:
        """Prove the way through the extender; why there is none, else empty."""
        ...

    def roll_back(self) -> None:
        """Put the files back as they were before the last ``apply``."""
        ...

    def restore(self) -> Sequence[FileChange] | Obstacle:
        """Give what would change to be as it was before us."""
        ...


class OtherHosts(Protocol):
    """The kube-schedulers on other control-plane nodes."""

    def run(self, action: str, node: str, say: Say) -> str:
        """Do ``apply`` or ``restore`` there; why it did not come about, else empty."""
        ...


def put(
    host: SchedulerHost, screen: Screen, *, alone: bool = True, at_once: bool = True
) -> Trouble | None:
    """Give this host's kube-scheduler our stanza, or leave it as it was.

    The way through is proved here where it is ``alone``; of several the one that leads
    answers, whichever that is. ``at_once`` is false where the files are read later.
    """
    plan = host.plan()
    if isinstance(plan, Obstacle):
        return Trouble(str(plan), exit_code=Exit.REFUSED)
    if plan:
        why = host.check(plan)
        if why:
            return Trouble(
                "kube-scheduler would not take our configuration, so nothing was "
                f"written: {why}"
            )
        _tell(plan, screen)
        host.apply(plan)
    why = host.wait(screen.say)
    if why:
        return _set_back(host, screen, f"kube-scheduler did not come up: {why}", plan)
    if not alone or (plan and not at_once):
        return None
    why = host.probe()
    if why:
        why = f"kube-scheduler does not reach the extender: {why}"
        # One that worked before was not spoilt by us; the same command tries again.
        return _set_back(host, screen, why, plan) if plan else Trouble(why)
    screen.say("kube-scheduler runs and calls the extender")
    return None


def prove(host: SchedulerHost, screen: Screen) -> Trouble | None:
    """Prove that the kube-scheduler that leads, of several, calls its extender."""
    why = host.probe()
    if why:
        return Trouble(f"kube-scheduler does not reach the extender: {why}")
    screen.say("the kube-scheduler that leads calls the extender")
    return None


def take(host: SchedulerHost, screen: Screen) -> Trouble | None:
    """Give this host's kube-scheduler back what it had."""
    plan = host.restore()
    if isinstance(plan, Obstacle):
        return Trouble(str(plan))
    if not plan:
        screen.say("nothing of ours in kube-scheduler's configuration")
        return None
    _tell(plan, screen)
    host.apply(plan)
    why = host.wait(screen.say)
    if why:
        return Trouble(
            "kube-scheduler has its old configuration back, but does not come up: "
            f"{why}"
        )
    screen.say("kube-scheduler runs as before us")
    return None


def _set_back(
    host: SchedulerHost, screen: Screen, why: str, plan: Sequence[FileChange]
) -> Trouble:
    """Roll back what was just done, or what an interrupted run did before."""
    before = () if plan else host.restore()
    if isinstance(before, Obstacle):
        return Trouble(f"{why.rstrip('.')}; it could not be set back: {before}")
    if plan:
        host.roll_back()
    else:
        host.apply(before)
    again = host.wait(screen.say)
    after = (
        f"the old configuration is back, but it does not come up either: {again}"
        if again
        else "the old configuration is back, and it runs"
    )
    return Trouble(f"{why.rstrip('.')}; {after}")


def _tell(plan: Sequence[FileChange], screen: Screen) -> None:
    for change in plan:
        added, gone = _counts(change)
        screen.say(f"{change.path}  +{added} -{gone} lines")


def _counts(change: FileChange) -> tuple[int, int]:
    lines = [
        line
        for line in change.diff().splitlines()
        if not line.startswith(("+++", "---"))
    ]
    return (
        sum(line.startswith("+") for line in lines),
        sum(line.startswith("-") for line in lines),
    )
