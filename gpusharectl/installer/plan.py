"""What the plans of an install and of an uninstall share. Changes nothing."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpushare.kube.cluster import Json
from gpusharectl.installer.context import Context, SchedulerTarget
from gpusharectl.installer.kube_scheduler.drift import KUBEADM_SCHEDULER, Flavour
from gpusharectl.installer.kube_scheduler.host import HostScheduler
from gpusharectl.installer.kube_scheduler.host_files import FileChange, Obstacle
from gpusharectl.installer.kube_scheduler.k3s import restart_command
from gpusharectl.installer.options import CommonOptions
from gpusharectl.installer.preflight import Finding, Weight
from gpusharectl.installer.progress import (
    NOTHING_DONE,
    Exit,
    InstallError,
    Screen,
    Step,
)
from gpusharectl.installer.survey import Facts, leader

_NONE = Facts("", Flavour.MANAGED, ())
_OF_NODE = re.compile(r"node (\S+): ")
_MANY, _FEW = 10, 3


def weigh(found: Iterable[Finding], screen: Screen, *, sure: bool = False) -> None:
    """Show the findings; raise refusals, and ask about doubts unless ``sure``."""
    shown = grouped(found)
    for one in shown:
        # The remedies of refusals are the last line of the run.
        then = one.remedy if one.weight is not Weight.REFUSAL else ""
        screen.say(f"{one.text}{then and f'; {then}'}   {one.weight}")
    bad = [one for one in shown if one.weight is Weight.REFUSAL]
    if bad:
        why = "; ".join(one.text for one in bad)
        remedy = "; ".join(one.remedy for one in bad if one.remedy)
        raise InstallError(f"{why}; {NOTHING_DONE}", remedy, Exit.REFUSED)
    if not sure and any(one.weight is Weight.DOUBT for one in shown):
        remedy = "the same command without these nodes"
        screen.confirm("Share these cards anyway?", remedy)


def grouped(found: Iterable[Finding]) -> list[Finding]:
    """Return findings, equal ones of several nodes once, with their names.

    Of more than ten nodes that are well the first ones are named.
    """
    by_text: dict[Finding, list[str]] = {}
    for one in found:
        of = _OF_NODE.match(one.text)
        rest = one.text[of.end() :] if of else one.text
        by_text.setdefault(replace(one, text=rest), []).extend([of[1]] if of else [])
    told = []
    for one, nodes in by_text.items():
        names = ", ".join(nodes)
        if len(nodes) > _MANY and one.weight is Weight.OK:
            names = f"{', '.join(nodes[:_FEW])} and {len(nodes) - _FEW} more"
        begin = f"node{'s' if len(nodes) > 1 else ''} {names}: " if nodes else ""
        told.append(replace(one, text=f"{begin}{one.text}"))
    return told


@dataclass
class Plan:
    """A plan; what one step finds out is kept for the steps after it."""

    context: Context
    options: CommonOptions
    facts: Facts = _NONE
    target: SchedulerTarget = field(init=False)
    """Which kube-scheduler is set up or restored, and how."""
    manifests: tuple[Json, ...] = ()
    hosts: tuple[str, ...] = ()
    """The hosts whose kube-scheduler is set, the leader last."""
    file_changes: Sequence[FileChange] = ()
    """What changes in this host's files."""

    @property
    def screen(self) -> Screen:
        """The screen of the context."""
        return self.context.screen

    @property
    def other_hosts(self) -> tuple[str, ...]:
        """The hosts on which a Job sets kube-scheduler."""
        return tuple(node for node in self.hosts if node != self.facts.here)

    @property
    def host(self) -> HostScheduler:
        """This host's kube-scheduler."""
        return self.context.host(self.target)

    @property
    def read_later(self) -> bool:
        """Whether k3s reads its files only when somebody restarts it."""
        k3s = self.facts.flavour is Flavour.K3S
        return bool(self.hosts) and k3s and not self.options.restart

    def note_restart(self) -> None:
        """Say that k3s has to be restarted, if it reads the files later."""
        if self.read_later:
            self.screen.note(
                "k3s reads its scheduler's files only at its start. Now run:"
            )
            self.screen.show(f"  {' '.join(restart_command(self.context.files))}")

    def find_hosts(self, nodes: Iterable[str]) -> None:
        """Keep the hosts: this one, and with kubeadm these nodes."""
        facts, others = self.facts, set[str]()
        if facts.flavour is Flavour.KUBEADM:
            others = set(nodes) - {facts.here}
        leading = leader(self.context.objects) if others else ""
        hosts = [*sorted(others), facts.here]
        self.hosts = tuple(sorted(hosts, key=leading.__eq__))

    def keep_files(self, planned: Sequence[FileChange] | Obstacle) -> None:
        """Keep what changes in this host's files; refuse if they cannot be edited."""
        if isinstance(planned, Obstacle):
            raise InstallError(f"{planned}; {NOTHING_DONE}", exit_code=Exit.REFUSED)
        self.file_changes = planned

    def again(self) -> str:
        """Return the command that goes on where this one stopped."""
        return self.options.again()

    def agree(self, title: str, what: Sequence[str], shown: Iterable[str]) -> None:
        """Show what changes, one thing a line; ask for consent, unless given.

        A dry run shows all changes, ``shown`` and those of files, instead of asking.
        """
        screen, options = self.screen, self.options
        if options.dry_run:
            would = "is changed. Without --dry-run:" if what else "would be changed."
            screen.note(f"Dry run: nothing {would}")
        if not what or (options.yes and not options.dry_run):
            return
        screen.begin(title)
        for one in what:
            screen.say(f"- {one}")
        if not options.dry_run:
            screen.confirm("Go on?")
            return
        for text in (*shown, *(change.diff() for change in self.file_changes)):
            screen.show(text)
        screen.note("Dry run: nothing was changed.")
        screen.show(f"To {options.command}: {self.again()}")

    def restart(self) -> list[str]:
        """Return what the changed files mean for this host's kube-scheduler."""
        paths = [change.path for change in self.file_changes]
        if self.facts.flavour is Flavour.K3S and paths:
            when = "k3s restarts" if self.options.restart else "k3s is restarted later"
            return [f"kube-scheduler reads these files when {when}"]
        if str(KUBEADM_SCHEDULER) not in paths:
            return []
        where = f" on {self.facts.here}" if self.other_hosts else ""
        return [f"kube-scheduler{where} restarts; no pod is scheduled for some seconds"]

    def host_changes(self) -> list[str]:
        """Return what changes on the hosts, one thing a line."""
        # One that is set up already may differ; its Job sees that.
        others = [
            node
            for node in self.other_hosts
            if self.file_changes or node not in self.facts.stamped
        ]
        return [
            *(
                f"{change.path}{'' if change.before is not None else ' (new)'}"
                for change in self.file_changes
            ),
            *self.restart(),
            *(
                f"kube-scheduler's configuration on {node}, by a Job; it restarts there"
                for node in others
            ),
        ]

    def certify(self) -> None:
        """Write this host's certificates, which the extender needs at its start."""
        due = self.context.certificates(self.target)
        self.context.files.make(due)
        told = ", ".join(change.path for change in due)
        self.screen.say(f"written: {told}" if due else "all certificates are valid")

    def scheduler_step(
        self, node: str, action: str, here: Callable[[HostScheduler], None]
    ) -> Step:
        """Return the step that does something to one host's kube-scheduler."""

        def act() -> None:
            if node == self.facts.here:
                here(self.host)
                return
            others = self.context.others(self.target)
            why = others.run(action, node, self.screen.say)
            if why:
                raise InstallError(f"on {node}: {why}")

        return Step(f"kube-scheduler's configuration on {node}", act, "Scheduler")
