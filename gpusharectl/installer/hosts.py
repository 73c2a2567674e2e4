"""``gpusharectl install --host-only``: kube-scheduler, for an extender of Helm's.

The objects in the cluster belong to a Helm release, or were applied by hand. They are
only read: the extender's own settings say how kube-scheduler has to call it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from gpushare.domain.policies import FRAG
from gpushare.kube.facts import EXTENDER, SYSTEM
from gpushare.kube.objects import Ref
from gpusharectl.installer.context import Context, SchedulerTarget
from gpusharectl.installer.kube_scheduler.apply import configure, prove
from gpusharectl.installer.kube_scheduler.drift import Flavour, flavour
from gpusharectl.installer.options import InstallOptions
from gpusharectl.installer.plan import Plan, weigh
from gpusharectl.installer.preflight import (
    Finding,
    Weight,
    judge_host,
    judge_rights,
    no_scheduler,
)
from gpusharectl.installer.progress import Exit, Step, follow
from gpusharectl.installer.rollout import wait_for_rollout
from gpusharectl.installer.survey import PROBE, REVISIONS, Facts, needed, survey

_EXTENDER = Ref("apps/v1", "DaemonSet", EXTENDER, SYSTEM)


def install_hosts(context: Context, options: InstallOptions) -> Exit:
    """Set up the hosts, or with ``dry_run`` show what that would change."""
    plan = HostsPlan(context, options)
    first = [
        Step("the checks", plan.check, "Checking"),
        Step("the confirmation", plan.confirm),
    ]
    code = follow(first, context.screen, plan.again)
    if code is not Exit.DONE or options.dry_run:
        return code
    return follow(plan.steps(), context.screen, plan.again, begun=True)


def judge_hosts(facts: Facts) -> Iterator[Finding]:
    """Judge whether there is an extender that a kube-scheduler here has to call."""
    yield judge_rights(facts)
    if facts.second and facts.stamped:
        yield Finding(
            Weight.REFUSAL,
            "the second scheduler is installed, and kube-scheduler on "
            f"{', '.join(facts.stamped)} still calls an extender that is gone",
            "helm uninstall, then gpusharectl uninstall, which restores its "
            "configuration; then helm install again (docs/helm.md)",
        )
    elif facts.second:
        yield Finding(
            Weight.REFUSAL,
            "the second scheduler is installed, whose pod has its own extender",
            "nothing is left to do on the hosts; pods choose it by schedulerName",
        )
    elif not facts.extended:
        yield Finding(
            Weight.REFUSAL,
            f"no extender is installed ({_EXTENDER})",
            "first helm install (docs/helm.md); or gpusharectl install without "
            "--host-only, which installs everything",
        )
    elif facts.flavour is Flavour.MANAGED:
        yield no_scheduler(facts)
    else:
        yield from judge_host(facts)
        if facts.dra:
            yield Finding(
                Weight.WARNING,
                "cards are offered to ResourceClaims (DRA), and --host-only does not "
                "tell the API server of new hosts or authorities: until it knows "
                "them, no claim is allocated there",
                "afterwards also: gpusharectl install (docs/dra.md)",
            )


@dataclass
class HostsPlan(Plan):
    """The plan of an install on hosts only, and its steps; each can be run again."""

    options: InstallOptions

    def check(self) -> None:
        """Read the extender's settings and this host; refuse what cannot work."""
        context = self.context
        kubeadm = flavour(context.files) is Flavour.KUBEADM
        rights = needed((_EXTENDER,), "get", more=(PROBE, REVISIONS), jobs=kubeadm)
        facts = self.facts = survey(
            context.objects, context.files, rights, told=self.options.this_node
        )
        weigh(judge_hosts(facts), context.screen)
        self.target = SchedulerTarget(
            facts.flavour,
            facts.here,
            facts.version,
            facts.images[EXTENDER],
            self.options.restart,
            tls=facts.tls,
            frag=facts.policy == FRAG,
            pull_secrets=facts.pull_secrets,
        )
        self.keep_files(self.host.plan())
        self.find_hosts(facts.control_plane)

    def confirm(self) -> None:
        """Show the changes, and ask for consent."""
        self.agree("Changes", self.host_changes(), ())

    def steps(self) -> list[Step]:
        """Return the steps in their order."""
        tls = self.target.tls
        # With TLS a host's Job writes the certificates, which the extender needs.
        early = self.other_hosts if tls else ()
        late = [node for node in self.hosts if node not in early]
        here = partial(
            configure,
            screen=self.screen,
            alone=not self.other_hosts,
            at_once=not self.read_later,
        )
        wait = partial(wait_for_rollout, self.context, [_EXTENDER])
        name = "the proof that kube-scheduler calls the extender"
        proof = Step(name, lambda: prove(self.host, self.screen))
        return [
            *([Step("the certificates", self.certify, "TLS")] if tls else []),
            *(self.scheduler_step(node, "apply", here) for node in early),
            Step("the rollout of the extender", wait, "Waiting"),
            *(self.scheduler_step(node, "apply", here) for node in late),
            *([proof] if self.other_hosts else []),
            Step("the summary", self.close),
        ]

    def close(self) -> None:
        """Say what is done."""
        self.note_restart()
        hosts = ", ".join(self.hosts)
        self.screen.note(f"Done: kube-scheduler on {hosts} calls the extender.")
