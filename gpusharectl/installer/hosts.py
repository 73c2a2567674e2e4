"""Set up kube-scheduler on the control-plane hosts: a part of each install.

``gpusharectl install --host-only`` is this part alone, for an extender of Helm's. The
objects in the cluster then belong to a Helm release, or were applied by hand. They are
only read: the extender's own settings say how kube-scheduler has to call it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from gpushare.domain.policies import FRAG
from gpushare.kube.cluster import Json
from gpushare.kube.facts import EXTENDER
from gpusharectl.installer.context import Context
from gpusharectl.installer.kube_scheduler.host import (
    HostScheduler,
    configure_scheduler,
    prove_scheduler,
)
from gpusharectl.installer.kube_scheduler.host_files import FileChange, Obstacle
from gpusharectl.installer.kube_scheduler.job import SchedulerTarget
from gpusharectl.installer.kube_scheduler.k3s import restart_command
from gpusharectl.installer.kube_scheduler.this_host import (
    KUBEADM_SCHEDULER,
    Flavour,
    read_flavour,
)
from gpusharectl.installer.kube_scheduler.verify import lease_holder
from gpusharectl.installer.manifests import HOSTS_EXTENDER
from gpusharectl.installer.options import CommonOptions, InstallOptions
from gpusharectl.installer.preflight import (
    CheckFinding,
    judge_host,
    judge_rights,
    refusal,
    refuse_no_scheduler,
    warning,
    weigh_findings,
)
from gpusharectl.installer.progress import (
    NOTHING_DONE,
    Exit,
    InstallError,
    InstallStep,
    Screen,
    run_steps,
)
from gpusharectl.installer.rights import PROBE, REVISIONS, needed_rights
from gpusharectl.installer.rollout import wait_for_rollout
from gpusharectl.installer.survey import ClusterFacts, survey_cluster

_NOT_READ = ClusterFacts("", Flavour.MANAGED, ())


@dataclass
class HostsPlan:
    """What an install or uninstall does to the hosts; both add what else they do.

    What one step finds out is kept for the steps after it.
    """

    context: Context
    options: CommonOptions
    facts: ClusterFacts = _NOT_READ
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

    def set_target(self, image: str, *, tls: bool = False, frag: bool = False) -> None:
        """Keep which kube-scheduler is set up, with which image of gpushare."""
        facts = self.facts
        self.target = SchedulerTarget(
            facts.flavour,
            facts.here,
            facts.version,
            image,
            self.options.restart,
            tls=tls,
            frag=frag,
            pull_secrets=facts.installed.pull_secrets,
        )

    def find_hosts(self, nodes: Iterable[str]) -> None:
        """Keep the hosts: this one, and with kubeadm these nodes."""
        facts, others = self.facts, set[str]()
        if facts.flavour is Flavour.KUBEADM:
            others = set(nodes) - {facts.here}
        leader = lease_holder(self.context.objects) if others else ""
        self.hosts = tuple(sorted([*sorted(others), facts.here], key=leader.__eq__))

    def keep_files(self, planned: Sequence[FileChange] | Obstacle) -> None:
        """Keep what changes in this host's files; refuse if they cannot be edited."""
        if isinstance(planned, Obstacle):
            raise InstallError(f"{planned}; {NOTHING_DONE}", exit_code=Exit.REFUSED)
        self.file_changes = planned

    def again(self) -> str:
        """Return the command that goes on where this one stopped."""
        return self.options.again()

    def agree(self, title: str, what: Sequence[str], diffs: Iterable[str]) -> None:
        """Show what changes, one thing a line; ask for consent, unless given.

        A dry run shows all ``diffs``, and those of files, instead of asking.
        """
        screen, options = self.screen, self.options
        if options.dry_run:
            would = "is changed. Without --dry-run:" if what else "would be changed."
            screen.note(f"Dry run: nothing {would}")
        if not what or (options.yes and not options.dry_run):
            return
        screen.begin_step(title)
        for line in what:
            screen.say(f"- {line}")
        if not options.dry_run:
            screen.confirm("Go on?")
            return
        for text in (*diffs, *(change.diff() for change in self.file_changes)):
            screen.show(text)
        screen.note("Dry run: nothing was changed.")
        screen.show(f"To {options.command}: {self.again()}")

    def restart_lines(self) -> list[str]:
        """Return what the changed files mean for this host's kube-scheduler."""
        paths = [change.path for change in self.file_changes]
        if self.facts.flavour is Flavour.K3S and paths:
            when = "k3s restarts" if self.options.restart else "k3s is restarted later"
            return [f"kube-scheduler reads these files when {when}"]
        if str(KUBEADM_SCHEDULER) not in paths:
            return []
        where = f" on {self.facts.here}" if self.other_hosts else ""
        return [f"kube-scheduler{where} restarts; no pod is scheduled for some seconds"]

    def host_lines(self) -> list[str]:
        """Return what changes on the hosts, one thing a line."""
        files = [
            f"{change.path}{'' if change.before is not None else ' (new)'}"
            for change in self.file_changes
        ]
        # One that is set up already may differ; its Job sees that.
        by_jobs = [
            f"kube-scheduler's configuration on {node}, by a Job; it restarts there"
            for node in self.other_hosts
            if self.file_changes or node not in self.facts.stamped
        ]
        return [*files, *self.restart_lines(), *by_jobs]

    def host_steps(self, rollout: InstallStep) -> list[InstallStep]:
        """Return the steps that set up the hosts, around the extender's rollout."""
        # With TLS a host's Job writes the certificates, which the extender needs.
        early = self.other_hosts if self.target.tls else ()
        here = partial(
            configure_scheduler,
            screen=self.screen,
            alone=not self.other_hosts,
            at_once=not self._read_later,
        )
        name = "the proof that kube-scheduler calls the extender"
        proof = InstallStep(name, lambda: prove_scheduler(self.host, self.screen))
        return [
            *(self.host_step(node, "apply", here) for node in early),
            rollout,
            *(
                self.host_step(node, "apply", here)
                for node in self.hosts
                if node not in early
            ),
            *([proof] if self.other_hosts else []),
        ]

    def host_step(
        self, node: str, action: str, here: Callable[[HostScheduler], None]
    ) -> InstallStep:
        """Return the step that does something to one host's kube-scheduler."""

        def act() -> None:
            if node == self.facts.here:
                here(self.host)
                return
            others = self.context.others(self.target)
            why = others.run(action, node, self.screen.say)
            if why:
                raise InstallError(f"on {node}: {why}")

        return InstallStep(
            f"kube-scheduler's configuration on {node}", act, "Scheduler"
        )

    def certificate_steps(self) -> list[InstallStep]:
        """Return the step that writes what the extender needs at its start with TLS."""
        step = InstallStep("the certificates", self._write_certificates, "TLS")
        return [step] if self.target.tls else []

    def _write_certificates(self) -> None:
        due = self.host.due_certificates()
        self.context.files.make(due)
        paths = ", ".join(change.path for change in due)
        self.screen.say(f"written: {paths}" if due else "all certificates are valid")

    @property
    def _read_later(self) -> bool:
        """Whether k3s reads its files only when somebody restarts it."""
        k3s = self.facts.flavour is Flavour.K3S
        return bool(self.hosts) and k3s and not self.options.restart

    def note_restart(self) -> None:
        """Say that k3s has to be restarted, if it reads the files later."""
        if self._read_later:
            self.screen.note(
                "k3s reads its scheduler's files only at its start. Now run:"
            )
            self.screen.show(f"  {' '.join(restart_command(self.context.files))}")


def install_hosts(context: Context, options: InstallOptions) -> Exit:
    """Set up the hosts, or with ``dry_run`` show what that would change."""
    plan = HostOnlyPlan(context, options)
    first = [
        InstallStep("the checks", plan.check, "Checking"),
        InstallStep("the confirmation", plan.confirm),
    ]
    code = run_steps(first, context.screen, plan.again)
    if code is not Exit.DONE or options.dry_run:
        return code
    return run_steps(plan.steps(), context.screen, plan.again, begun=True)


def judge_hosts(facts: ClusterFacts) -> Iterator[CheckFinding]:
    """Judge whether there is an extender that a kube-scheduler here has to call."""
    yield judge_rights(facts)
    if facts.installed.second and facts.stamped:
        yield refusal(
            "the second scheduler is installed, and kube-scheduler on "
            f"{', '.join(facts.stamped)} still calls an extender that is gone",
            "helm uninstall, then gpusharectl uninstall, which restores its "
            "configuration; then helm install again (docs/install.md)",
        )
    elif facts.installed.second:
        yield refusal(
            "the second scheduler is installed, whose pod has its own extender",
            "nothing is left to do on the hosts; pods choose it by schedulerName",
        )
    elif not facts.installed.extended:
        yield refusal(
            f"no extender is installed ({HOSTS_EXTENDER})",
            "first helm install (docs/install.md); or gpusharectl install without "
            "--host-only, which installs everything",
        )
    elif facts.flavour is Flavour.MANAGED:
        yield refuse_no_scheduler(facts)
    else:
        yield from judge_host(facts)
        if facts.installed.dra:
            yield warning(
                "cards are offered to ResourceClaims (DRA), and --host-only does not "
                "tell the API server of new hosts or authorities: until it knows "
                "them, no claim is allocated there",
                "afterwards also: gpusharectl install (docs/dra.md)",
            )


@dataclass
class HostOnlyPlan(HostsPlan):
    """The plan of an install on hosts only, and its steps; each can be run again."""

    options: InstallOptions

    def check(self) -> None:
        """Read the extender's settings and this host; refuse what cannot work."""
        context = self.context
        kubeadm = read_flavour(context.files) is Flavour.KUBEADM
        rights = needed_rights(
            (HOSTS_EXTENDER,), "get", more=(PROBE, REVISIONS), jobs=kubeadm
        )
        facts = self.facts = survey_cluster(
            context.objects, context.files, rights, this_node=self.options.this_node
        )
        weigh_findings(judge_hosts(facts), context.screen)
        frag = facts.installed.policy == FRAG
        self.set_target(
            facts.installed.images[EXTENDER], tls=facts.installed.tls, frag=frag
        )
        self.keep_files(self.host.plan())
        self.find_hosts(facts.control_plane)

    def confirm(self) -> None:
        """Show the changes, and ask for consent."""
        self.agree("Changes", self.host_lines(), ())

    def steps(self) -> list[InstallStep]:
        """Return the steps in their order."""
        wait = partial(wait_for_rollout, self.context, [HOSTS_EXTENDER])
        return [
            *self.certificate_steps(),
            *self.host_steps(
                InstallStep("the rollout of the extender", wait, "Waiting")
            ),
            InstallStep("the summary", self.close),
        ]

    def close(self) -> None:
        """Say what is done."""
        self.note_restart()
        hosts = ", ".join(self.hosts)
        self.screen.note(f"Done: kube-scheduler on {hosts} calls the extender.")
