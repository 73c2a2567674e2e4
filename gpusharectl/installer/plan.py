"""Plan an install: what is wanted, checked, and shown before anything is changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from gpushare.domain.policies import FRAG
from gpushare.kube.objects import Ref
from gpusharectl.installer.dra.apply import trusted_configuration
from gpusharectl.installer.dra.objects import RIGHTS as DRA_RIGHTS
from gpusharectl.installer.dra.objects import (
    RIGHTS_BACK,
    InstalledDra,
    judge_dra,
    read_dra,
)
from gpusharectl.installer.hosts import HostsPlan
from gpusharectl.installer.kube_scheduler.this_host import Flavour, read_flavour
from gpusharectl.installer.manifests import (
    DRA,
    NVIDIA,
    WORKLOADS,
    compose_install,
    image_of,
    with_images,
    with_settings,
    with_spec,
)
from gpusharectl.installer.nodes.facts import LABELLED, nodes_to_label, why_unknown
from gpusharectl.installer.options import CARD_CLASSES, InstallOptions, parse_node_names
from gpusharectl.installer.preflight import (
    judge_cluster,
    judge_nodes,
    judge_owners,
    judge_rights,
    weigh_findings,
)
from gpusharectl.installer.progress import NOTHING_DONE, Exit, InstallError
from gpusharectl.installer.rights import (
    PROBE,
    REVISIONS,
    WEBHOOKS,
    Right,
    missing_rights,
    needed_rights,
)
from gpusharectl.installer.survey import (
    ClusterFacts,
    kube_scheduler_image,
    owned_objects,
    served_objects,
    survey_cluster,
    takes_nvidia,
)
from gpusharectl.installer.webhook.apply import (
    WebhookPlan,
    find_webhook_objects,
    plan_webhook_objects,
)
from gpusharectl.installer.webhook.objects import DEPLOYMENT, SECRET
from gpusharectl.output import ObjectChange, find_changes

_NAME_THEM = "--nodes NODE,NODE or --all-gpu-nodes"


def with_preserved_settings(
    options: InstallOptions, facts: ClusterFacts
) -> InstallOptions:
    """Fill options that are not given with what is installed.

    Otherwise a second install, for any reason, would remove what the first one set.
    """
    # Without the plugin offering cards to claims, what is left of DRA is removed.
    dra = facts.installed.dra or None if options.dra is None else options.dra
    webhook = options.webhook
    if facts.installed.webhook and webhook.wanted is not False:
        webhook = webhook.with_preserved(facts.installed.webhook.settings)
    return replace(
        options,
        tls=facts.installed.tls or dra or None if options.tls is None else options.tls,
        ui=facts.installed.ui or None if options.ui is None else options.ui,
        policy=options.policy or facts.installed.policy or None,
        isolation=options.isolation or facts.installed.isolation or None,
        compute=options.compute or facts.installed.compute or None,
        dra=dra,
        webhook=webhook,
    )


@dataclass
class InstallPlan(HostsPlan):
    """The plan of an install."""

    options: InstallOptions
    chosen: tuple[str, ...] = ()
    """The nodes that share their cards."""
    changes: tuple[ObjectChange, ...] = ()
    scheduler_image: str = ""
    """The image of a second kube-scheduler."""
    webhook: WebhookPlan | None = None
    """What to do about the webhook; None without one."""
    going: tuple[Ref, ...] = ()
    """The objects of a webhook that is removed, in this order."""
    dra: InstalledDra = field(default_factory=InstalledDra)
    """What there is of DRA before."""

    @property
    def dra_going(self) -> bool:
        """Whether DRA is taken back."""
        return self.dra.there and not self.options.dra

    def check(self) -> None:
        """Read the cluster and this host, show findings, refuse what cannot work."""
        context, options = self.context, self.options
        self._load()
        proof = () if options.second_scheduler else (PROBE,)
        kubeadm = read_flavour(context.files) is Flavour.KUBEADM
        rights = self._rights(*proof, jobs=kubeadm)
        facts = self.facts = survey_cluster(
            context.objects,
            context.files,
            rights,
            this_node=options.this_node,
            webhook=bool(options.webhook.wanted),
        )
        weigh_findings(judge_cluster(facts, options), context.screen)
        self.options = with_preserved_settings(options, facts)
        if options.webhook.wanted is False:
            self.going = find_webhook_objects(context)
        self._load()
        self.set_target(
            image_of(self.manifests),
            tls=bool(self.options.tls),
            frag=self.options.policy == FRAG,
        )
        self._check_more_rights()
        self._check_dra()
        if not options.second_scheduler:
            self.keep_files(self.host.plan())
            self.find_hosts(facts.control_plane)
            return
        image = options.scheduler_image or kube_scheduler_image(context.objects)
        if not image:
            raise InstallError(
                "no pod in this cluster shows the image of kube-scheduler; "
                f"{NOTHING_DONE}",
                "the same command with --scheduler-image IMAGE, an image of "
                f"kube-scheduler {facts.version}",
                Exit.REFUSED,
            )
        self.scheduler_image = image
        self._load()

    def choose(self) -> None:
        """Settle which nodes share their cards."""
        options, facts = self.options, self.facts
        self.chosen = self._which_nodes()
        has_class = takes_nvidia(facts, self.chosen)
        if has_class if options.runtime_class is None else options.runtime_class:
            self._load("nvidia-runtime")
        second = options.second_scheduler
        judged = judge_nodes(facts, self.chosen, second_scheduler=second)
        weigh_findings(judged, self.screen, sure=options.yes or options.dry_run)

    def _which_nodes(self) -> tuple[str, ...]:
        """Return the nodes from the options, else the labelled ones, else ask."""
        nodes, options = self.facts.nodes, self.options
        driver = self.facts.here if self.facts.driver_here else ""
        labelled = tuple(node.name for node in nodes if node.labelled)
        signs = tuple(
            node.name
            for node in nodes
            if node.labelled or node.signs or node.name == driver
        )
        chosen = options.nodes or (signs if options.all_gpu_nodes else labelled)
        if options.all_gpu_nodes and not chosen:
            listed = ", ".join(node.name for node in nodes) or "none"
            raise InstallError(
                f"no node shows a sign of an NVIDIA GPU (nodes: {listed}); "
                f"{NOTHING_DONE}",
                "if some have one, name them: gpusharectl install --nodes NODE,NODE",
                Exit.REFUSED,
            )
        if not (options.nodes or options.all_gpu_nodes):
            # A dry run of an installation shows what the same nodes get.
            if not options.yes and not (options.dry_run and chosen):
                return self._asked(chosen or signs, driver)
            if not chosen:
                raise InstallError(
                    f"--yes asks no question, and no node is named; {NOTHING_DONE}",
                    f"the same command with {_NAME_THEM}",
                    Exit.USAGE,
                )
        if wrong := why_unknown(self.facts.nodes, chosen):
            why = f"{wrong} {NOTHING_DONE.capitalize()}"
            remedy = "the same command with --nodes and names of these nodes"
            raise InstallError(why, remedy, Exit.USAGE)
        return chosen

    def _asked(self, default: Sequence[str], driver: str) -> tuple[str, ...]:
        """Show the nodes, and ask until all names are nodes."""
        self.screen.begin_step("Nodes")
        for node in self.facts.nodes:
            loaded = ["the driver is loaded"] if node.name == driver else []
            signs = ", ".join([*node.signs, *loaded])
            self.screen.say(f"{node.name}: {signs or 'no sign of a GPU'}")
        while True:
            answer = self.screen.ask(
                "Which nodes share their cards?", ", ".join(default), _NAME_THEM
            )
            wrong = why_unknown(self.facts.nodes, wanted := parse_node_names(answer))
            if not wrong:
                return wanted
            self.screen.say(wrong)

    def rehearse(self) -> None:
        """Apply all objects as a dry run of the API server, to see what they change."""
        context, bodies = self.context, list(self.manifests)
        if self.options.webhook.wanted:
            by_installer = not self.facts.installed.by_cert_manager
            self.manifests, self.webhook = plan_webhook_objects(
                context.objects,
                self.manifests,
                context.now(),
                by_installer=by_installer,
            )
            secret = [self.webhook.secret] if self.webhook.secret else []
            bodies = [*self.manifests, *secret, *self.webhook.asking]
        if self.options.dra:
            others, authority = self.other_hosts, self.host.authority
            here, objects = self.facts.here, context.objects
            bodies.append(
                trusted_configuration(objects, here, authority, alone=not others)
            )
            if self.options.dry_run and self.facts.installed.dra and others:
                self.screen.say(
                    f"a dry run does not look at {', '.join(others)}: whether the API "
                    "server trusts the authority there, is seen by the install itself"
                )
        self.changes = find_changes(context.objects, bodies)
        owned = owned_objects(change.before for change in self.changes if change.before)
        remedy = "remove it there first, or change it there"
        weigh_findings(judge_owners(owned, remedy), self.screen)

    def confirm(self) -> None:
        """Show the changes, and ask for consent."""
        labels = nodes_to_label(self.facts.nodes, self.chosen)
        # Diffs take time, and only a dry run shows them.
        diffs = chain(
            (change.diff() for change in self.changes),
            (f"- {ref}" for ref in (*self.going, *self.dra.leftover)),
            (f"+ Node {name}: {LABELLED}" for name in labels),
        )
        self.agree("Changes", self._summary(labels), diffs)

    def _summary(self, labels: Sequence[str]) -> list[str]:
        """Return what is changed, in the order of the steps."""
        new = sum(change.before is None for change in self.changes)
        old = len(self.changes) - new
        counts = [(new, "new"), (old, "changed")]
        numbers = ", ".join(f"{number} {word}" for number, word in counts if number)
        replaced = [
            change.ref.name
            for change in self.changes
            if change.ref.kind in WORKLOADS
            and change.before
            and change.after
            and change.before["spec"]["template"] != change.after["spec"]["template"]
        ]
        image, now = self.target.image, self.facts.installed.image
        why = f" (image {now} becomes {image})" if now and now != image else ""
        tier = "" if self.facts.installed.plugin else self.options.isolation
        return [
            *(["the webhook is removed"] if self.going else []),
            *(["cards are no longer offered to ResourceClaims"] * self.dra_going),
            *(["cards are offered to ResourceClaims too"] * self._dra_is_new),
            *([f"objects in the cluster: {numbers}"] if numbers else []),
            *([f"isolation tier {tier} on all nodes with cards"] if tier else []),
            *(
                [f"the pods of {', '.join(replaced)} are replaced{why}"]
                * bool(replaced)
            ),
            *self.host_lines(),
            *(
                [f"{LABELLED} on {', '.join(labels)}, which starts the device plugin"]
                if labels
                else []
            ),
        ]

    def again(self, image: str = "") -> str:
        """Return the command that goes on, with the nodes chosen meanwhile.

        ``image`` is another image than the one that was given.
        """
        nodes = self.chosen or self.options.nodes
        all_nodes = self.options.all_gpu_nodes and not nodes
        image = image or self.options.image
        chosen = replace(self.options, nodes=nodes, all_gpu_nodes=all_nodes)
        return replace(chosen, image=image).again()

    @property
    def _dra_is_new(self) -> bool:
        return bool(self.options.dra) and not self.facts.installed.dra

    def _check_dra(self) -> None:
        """Read what there is of DRA; refuse where it cannot be, or is in use."""
        context, options = self.context, self.options
        refs = [Ref.of(body) for body in context.load(DRA)]
        wanted = bool(options.dra)
        self.dra = read_dra(context.objects, self.facts, refs, wanted=wanted)
        weigh_findings(judge_dra(self.facts, options, self.dra), context.screen)
        if wanted and (why := self.host.why_elsewhere()):
            raise InstallError(f"{why}; {NOTHING_DONE}", exit_code=Exit.REFUSED)
        if self.dra_going:
            rights = needed_rights(self.dra.leftover, "get", "delete", more=RIGHTS_BACK)
            self._weigh_rights(rights)

    def _check_more_rights(self) -> None:
        """Check the rights that are needed only because of what is installed."""
        facts, rights = self.facts, tuple[Right, ...]()
        if self.going:
            rights = needed_rights(self.going, "get", "delete")
        elif facts.installed.webhook is not None or facts.installed.by_cert_manager:
            rights = self._rights()
        if self.options.dra:
            rights += self._rights()
        elif facts.installed.dra:
            rights += RIGHTS_BACK
        self._weigh_rights(rights)

    def _weigh_rights(self, rights: Sequence[Right]) -> None:
        if lacking := missing_rights(self.context.objects, tuple(rights)):
            weigh_findings(
                [judge_rights(replace(self.facts, missing=lacking))], self.screen
            )

    def _rights(self, *more: Right, jobs: bool = False) -> tuple[Right, ...]:
        """Return the rights needed to install, with a Secret if one may be made."""
        refs = [Ref.of(body) for body in self.manifests]
        if self.options.webhook.wanted:
            more += WEBHOOKS
            refs += [] if self.facts.installed.by_cert_manager else [SECRET]
        more += (REVISIONS, *(DRA_RIGHTS if self.options.dra else ()))
        return needed_rights(refs, "get", "create", "patch", more=more, jobs=jobs)

    def _load(self, *components: str) -> None:
        """Compose the manifests from what is known so far."""
        facts = self.facts
        kept = {} if self.options.image else facts.installed.images
        # All parts run the same image, so a new part gets the one that runs.
        bodies = compose_install(
            self.context.load,
            read_flavour(self.context.files),
            self.options,
            image=self.options.image or next(iter(kept.values()), ""),
            components=components,
            by_cert_manager=self.facts.installed.by_cert_manager,
        )
        bodies = served_objects(self.context.objects, bodies)
        bodies = with_images(bodies, kept, self.scheduler_image)
        replicas = facts.installed.webhook.replicas if facts.installed.webhook else None
        # 0 is not kept: no pod that asks for a card could be created.
        if replicas:
            bodies = with_spec(
                bodies, DEPLOYMENT, lambda spec: spec.update(replicas=replicas)
            )
        # The webhook is told which RuntimeClasses provide cards, if no name says so.
        classes = ",".join(name for name in facts.runtime_classes if NVIDIA not in name)
        variables = {CARD_CLASSES: classes} if classes else {}
        self.manifests = with_settings(bodies, "webhook", variables)
