"""Plan an install: checks, questions, a dry run. Changes nothing."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from gpushare.domain.policies import FRAG
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import SECOND_SCHEDULER, SYSTEM
from gpushare.kube.objects import Ref
from gpusharectl.install.cluster_facts import NodeView, label_diff, named, to_label
from gpusharectl.install.context import Context, Load, SchedulerTarget
from gpusharectl.install.manifests import (
    BY_CERT_MANAGER,
    BY_RUNTIME_CLASS,
    MONITORING,
    NVIDIA,
    VOID,
    WEBHOOK_OVERLAY,
    image_of,
    overlay_of,
    wants_runtime_class,
    with_images,
    with_scheduler,
)
from gpusharectl.install.options import (
    ON,
    POLICY,
    QUOTA,
    UI,
    InstallOptions,
    chosen,
    likely,
    node_names,
)
from gpusharectl.install.preflight import (
    Finding,
    Weight,
    judge_cluster,
    judge_kept,
    judge_nodes,
    judge_rights,
    judge_webhook,
    refusals,
)
from gpusharectl.install.progress import Exit, NoAnswerError, Screen, Trouble
from gpusharectl.install.survey import (
    Facts,
    kube_scheduler_image,
    leader,
    missing,
    served,
    survey,
    to_install,
    to_take_away,
)
from gpusharectl.install.webhook.apply import WebhookPlan, split, still_there
from gpusharectl.install.webhook.objects import (
    secret_of,
    with_replicas,
    with_runtime_classes,
    with_settings,
)
from gpusharectl.kube_scheduler.drift import Flavour, flavour
from gpusharectl.kube_scheduler.files import packing_configuration
from gpusharectl.kube_scheduler.host_files import FileChange, Obstacle
from gpusharectl.output import ObjectChange, object_changes

STAMP = f"{names.PREFIX}-configuration"
"""Annotation of the second scheduler's pods: a digest of their configuration."""
NOTHING_DONE = "nothing was changed"
_SECOND = Ref("apps/v1", "Deployment", SECOND_SCHEDULER, SYSTEM)


def loaded(
    load: Load,
    kind: Flavour,
    options: InstallOptions,
    *,
    image: str,
    components: Sequence[str] = (),
    by_cert_manager: bool = False,
) -> tuple[Json, ...]:
    """Return all objects of an install, in order and with their settings.

    ``components`` change the workloads on nodes with cards; ``by_cert_manager``:
    cert-manager makes the webhook's certificate.
    """
    found = load(overlay_of(kind, options), image=image, components=components)
    if options.with_monitoring:
        found += load(MONITORING, image=image, components=components)
    if options.webhook.wanted:
        name = BY_CERT_MANAGER if by_cert_manager else WEBHOOK_OVERLAY
        void = (VOID,) if options.webhook.void else ()
        found += load(name, image=image, components=void)
    return _configured(found, options)


def _configured(manifests: Iterable[Json], options: InstallOptions) -> tuple[Json, ...]:
    settings = options.webhook.settings() if options.webhook.wanted else {}
    quota = {QUOTA: settings[QUOTA]} if QUOTA in settings else {}
    found = with_settings(manifests, "webhook", settings)
    found = with_settings(found, "device-plugin", quota)
    ours = {UI: ON} if options.ui else {}
    ours |= {POLICY: options.policy} if options.policy else {}
    found = with_settings(found, "extender", ours)
    if options.policy == FRAG:
        found = tuple(map(_packing, found))
    return _stamped(found)


def _stamped(manifests: tuple[Json, ...]) -> tuple[Json, ...]:
    """Annotate the second scheduler's pods with a digest of their configuration.

    They read it only at their start, so a new digest has to replace them.
    """
    read = {
        body["metadata"]["name"]: body["data"]
        for body in manifests
        if body["kind"] == "ConfigMap"
    }

    def put(body: Json) -> Json:
        name = body["metadata"]["name"]
        if Ref.of(body) != _SECOND or name not in read:
            return body
        found = deepcopy(body)
        metadata = found["spec"]["template"]["metadata"]
        text = "".join(read[name][key] for key in sorted(read[name]))
        digest = hashlib.sha256(text.encode()).hexdigest()
        metadata.setdefault("annotations", {})[STAMP] = digest
        return found

    return tuple(map(put, manifests))


def _packing(body: Json) -> Json:
    """Let our score outweigh all others in the second kube-scheduler too."""
    if body["kind"] != "ConfigMap":
        return body
    texts = body.get("data") or {}
    changed = {key: packing_configuration(text) for key, text in texts.items()}
    return {**body, "data": changed} if texts else body


def with_preserved_settings(options: InstallOptions, facts: Facts) -> InstallOptions:
    """Fill options that are not given with what is installed.

    Otherwise a second install, for any reason, would remove what the first one set.
    """
    webhook = options.webhook
    if facts.webhook and webhook.wanted is not False:
        webhook = webhook.with_preserved(facts.webhook.settings)
    return replace(
        options,
        tls=facts.tls or None if options.tls is None else options.tls,
        ui=facts.ui or None if options.ui is None else options.ui,
        policy=options.policy or facts.policy or None,
        webhook=webhook,
    )


def weigh(
    found: Sequence[Finding], screen: Screen, *, sure: bool = False
) -> Trouble | None:
    """Show the findings; return a refusal, and ask about doubts unless ``sure``."""
    for one in found:
        screen.say(f"{one.text}   {one.weight}")
    bad = refusals(found)
    if bad:
        why = "; ".join(one.text for one in bad)
        remedy = "; ".join(one.remedy for one in bad if one.remedy)
        return Trouble(f"{why}; {NOTHING_DONE}", remedy, Exit.REFUSED)
    if sure or not any(one.weight is Weight.DOUBT for one in found):
        return None
    try:
        if screen.confirm("Share these cards anyway?"):
            return None
    except NoAnswerError:
        return no_terminal("--yes")
    return Trouble(
        f"you said no; {NOTHING_DONE}", "the same command without these nodes"
    )


def which_nodes(
    facts: Facts, options: InstallOptions, screen: Screen
) -> tuple[str, ...] | Trouble:
    """Return the nodes from the options, else the labelled ones, else ask."""
    signs = likely(facts.nodes, facts.here if facts.driver_here else "")
    if options.nodes:
        return options.nodes
    if options.all_gpu_nodes:
        return signs or _no_gpu(facts.nodes)
    labelled = tuple(node.name for node in facts.nodes if node.labelled)
    if options.yes or options.dry_run:
        return labelled or no_terminal("--nodes NODE,NODE or --all-gpu-nodes")
    return _asked(facts, labelled or signs, screen)


def no_terminal(option: str) -> Trouble:
    """Return that a question cannot be asked, and which option answers it."""
    why = f"there is no terminal to ask at; {NOTHING_DONE}"
    return Trouble(why, f"the same command with {option}", Exit.USAGE)


def _asked(
    facts: Facts, default: Sequence[str], screen: Screen
) -> tuple[str, ...] | Trouble:
    """Show the nodes, and ask until all names are nodes."""
    screen.begin("Nodes")
    for node in facts.nodes:
        signs = list(node.signs)
        if facts.driver_here and node.name == facts.here:
            signs.append("the driver is loaded")
        screen.say(f"{node.name}: {', '.join(signs) or 'no sign of a GPU'}")
    while True:
        try:
            said = screen.ask("Which nodes share their cards?", ", ".join(default))
        except NoAnswerError:
            return no_terminal("--nodes NODE,NODE or --all-gpu-nodes")
        wanted = node_names(said)
        wrong = chosen(wanted, facts.nodes)
        if wrong is None:
            return wanted
        screen.say(str(wrong))


def _no_gpu(nodes: Sequence[NodeView]) -> Trouble:
    them = ", ".join(node.name for node in nodes) or "none"
    why = f"no node shows a sign of an NVIDIA GPU (nodes: {them}); {NOTHING_DONE}"
    remedy = "if some have one, name them: gpusharectl install --nodes NODE,NODE"
    return Trouble(why, remedy, Exit.REFUSED)


@dataclass
class InstallPlan:
    """The plan; what one step finds out is kept for the steps after it."""

    context: Context
    options: InstallOptions
    facts: Facts = field(init=False)
    manifests: tuple[Json, ...] = ()
    """The objects that are applied before the webhook's configurations."""
    chosen: tuple[str, ...] = ()
    """The nodes that share their cards."""
    changes: tuple[ObjectChange, ...] = ()
    holder: str = ""
    """The holder of kube-scheduler's lease, if several hosts may have it."""
    image: str = ""
    """The image of a second kube-scheduler."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """The image that each workload of ours keeps, by its name."""
    webhook: WebhookPlan | None = None
    """What to do about the webhook; None without one."""
    going: tuple[Ref, ...] = ()
    """The objects of a webhook that is removed, in this order."""
    replicas: int | None = None
    """The replicas of the installed webhook."""
    by_cert_manager: bool = False
    runtime_classes: tuple[str, ...] = ()

    def check(self) -> Trouble | None:
        """Read the cluster and this host, show findings, refuse what cannot work."""
        context, options = self.context, self.options
        context.screen.begin("Checking")
        self._load()
        rights = to_install(
            self._all(),
            probe=not options.second_scheduler,
            jobs=flavour(context.files) is Flavour.KUBEADM,
        )
        facts = self.facts = survey(
            context.objects,
            context.files,
            rights,
            told=options.this_node,
            webhook=bool(options.webhook.wanted),
        )
        found = [*judge_cluster(facts, options), *judge_kept(facts, options)]
        trouble = weigh([*found, *judge_webhook(facts, options)], context.screen)
        if trouble is not None:
            return trouble
        self.options = with_preserved_settings(options, facts)
        self.kept = {} if options.image else facts.images
        self.by_cert_manager = facts.by_cert_manager
        self.runtime_classes = facts.runtime_classes
        self.replicas = facts.webhook.replicas if facts.webhook else None
        if options.webhook.wanted is False:
            self.going = still_there(context)
        self._load()
        return self._rights() or self._files() or self._scheduler()

    def choose(self) -> Trouble | None:
        """Settle which nodes share their cards."""
        screen, options = self.context.screen, self.options
        wanted = which_nodes(self.facts, options, screen)
        if isinstance(wanted, Trouble):
            return wanted
        wrong = chosen(wanted, self.facts.nodes)
        if wrong is not None:
            return Trouble(f"{wrong} {NOTHING_DONE.capitalize()}", exit_code=Exit.USAGE)
        self.chosen = wanted
        if self._by_runtime_class():
            self._load(BY_RUNTIME_CLASS)
        return weigh(
            judge_nodes(self.facts, wanted, second_scheduler=options.second_scheduler),
            screen,
            sure=options.yes or options.dry_run,
        )

    def rehearse(self) -> Trouble | None:
        """Apply all objects as a dry run; show the changes, or ask for consent."""
        bodies = list(self.manifests)
        if self.options.webhook.wanted:
            context, ours = self.context, not self.by_cert_manager
            self.manifests, self.webhook = split(
                context.objects, self.manifests, context.now(), ours=ours
            )
            bodies = [*self.manifests, *self.webhook.beside()]
        self.changes = object_changes(self.context.objects, bodies)
        if self.options.dry_run:
            self._show()
            return None
        return None if self.options.yes else self._agreed()

    def again(self) -> str:
        """Return the command that goes on, with the nodes chosen meanwhile."""
        return replace(self.options, nodes=self.chosen or self.options.nodes).again()

    def target(self) -> SchedulerTarget:
        """Return how kube-scheduler is to be set up."""
        return SchedulerTarget(
            self.facts.flavour,
            self.facts.here,
            self.facts.version,
            image_of(self.manifests),
            tls=bool(self.options.tls),
            frag=self.options.policy == FRAG,
            restart=self.options.restart,
            timeout_s=self.options.timeout_s,
        )

    @property
    def other_hosts(self) -> tuple[str, ...]:
        """The other control-plane nodes of kubeadm."""
        facts = self.facts
        if facts.flavour is not Flavour.KUBEADM or self.options.second_scheduler:
            return ()
        return tuple(node for node in facts.control_plane if node != facts.here)

    def _files(self) -> Trouble | None:
        """Refuse if kube-scheduler's files cannot be edited."""
        if self.options.second_scheduler:
            return None
        plan = self.context.host(self.target()).plan()
        if not isinstance(plan, Obstacle):
            return None
        return Trouble(f"{plan}; {NOTHING_DONE}", exit_code=Exit.REFUSED)

    def _rights(self) -> Trouble | None:
        """Check the rights that are needed only because of an installed webhook."""
        if self.going:
            rights = to_take_away(self.going)
        elif self.facts.webhook is not None or self.by_cert_manager:
            rights = to_install(self._all())
        else:
            return None
        lacking = missing(self.context.objects, rights)
        found = judge_rights(replace(self.facts, missing=lacking)) if lacking else []
        return weigh(found, self.context.screen)

    def _all(self) -> Sequence[Json]:
        """Return the manifests, and a Secret if one may have to be made."""
        ours = self.options.webhook.wanted and not self.by_cert_manager
        return [*self.manifests, secret_of({})] if ours else self.manifests

    def _load(self, *components: str) -> None:
        """Compose the manifests from what is known so far."""
        # All parts run the same image, so a new part gets the one that runs.
        bodies = loaded(
            self.context.load,
            flavour(self.context.files),
            self.options,
            image=self.options.image or next(iter(self.kept.values()), ""),
            components=components,
            by_cert_manager=self.by_cert_manager,
        )
        found = with_images(served(self.context.objects, bodies), self.kept)
        found = with_replicas(found, self.replicas)
        found = with_runtime_classes(found, self.runtime_classes)
        self.manifests = with_scheduler(found, self.image) if self.image else found

    def _scheduler(self) -> Trouble | None:
        """Find the leader, or the image for a second kube-scheduler."""
        objects, options = self.context.objects, self.options
        if not options.second_scheduler:
            self.holder = leader(objects) if self.other_hosts else ""
            return None
        self.image = options.scheduler_image or kube_scheduler_image(objects)
        if self.image:
            self._load()
            return None
        return Trouble(
            f"no pod in this cluster shows the image of kube-scheduler; {NOTHING_DONE}",
            "the same command with --scheduler-image IMAGE, an image of kube-scheduler "
            f"{self.facts.version}",
            Exit.REFUSED,
        )

    def _by_runtime_class(self) -> bool:
        told = self.options.runtime_class
        if told is not None:
            return told
        nodes = [named(self.facts.nodes, name) for name in self.chosen]
        views = [node for node in nodes if node is not None]
        return wants_runtime_class(views, there=NVIDIA in self.facts.runtime_classes)

    def _agreed(self) -> Trouble | None:
        """Ask in one line for consent to all changes; no question without changes."""
        what = self._summary()
        if not what:
            return None
        try:
            if self.context.screen.confirm(f"Change {'; '.join(what)}?"):
                return None
        except NoAnswerError:
            return no_terminal("--yes")
        return Trouble(f"you said no; {NOTHING_DONE}")

    def _summary(self) -> list[str]:
        found = []
        if self.changes:
            found.append(f"{len(self.changes)} objects in the cluster")
        labels = to_label(self.facts.nodes, self.chosen)
        if labels:
            found.append(f"the label of {', '.join(labels)}")
        found += ["the webhook (it is removed)"] if self.going else []
        found += [change.path for change in self._file_changes()]
        return found

    def _show(self) -> None:
        """Print every change."""
        screen = self.context.screen
        for change in self.changes:
            screen.note(change.diff())
        for ref in self.going:
            screen.note(f"- {ref}")
        for name in to_label(self.facts.nodes, self.chosen):
            screen.note(label_diff(name, on=True))
        for file in self._file_changes():
            screen.note(file.diff())
        for node in self.other_hosts:
            screen.note(f"# A Job also changes kube-scheduler's files on {node}\n")
        screen.note(f"Dry run: nothing was changed. To install: {self.again()}")

    def _file_changes(self) -> Sequence[FileChange]:
        if self.options.second_scheduler:
            return ()
        plan = self.context.host(self.target()).plan()
        return () if isinstance(plan, Obstacle) else plan
