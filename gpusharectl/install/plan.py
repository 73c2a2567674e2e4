"""What an install is going to do: checked, asked, tried out, and not yet begun.

All that one cluster is given, put together from the manifests as it was chosen.

What an install that is run again keeps, since nothing was said of it. Pure.

Which nodes, and whether to go on all the same: what a person decides.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from gpushare.domain.policies import FRAG
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import EXPORTER, SECOND_SCHEDULER, SYSTEM, WEBHOOK
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
    Facts,
    Finding,
    Weight,
    judge_cluster,
    judge_nodes,
    judge_rights,
    missing,
    refusals,
    to_install,
    to_take_away,
)
from gpusharectl.install.progress import Exit, NoAnswerError, Screen, Trouble
from gpusharectl.install.survey import kube_scheduler_image, leader, served, survey
from gpusharectl.install.webhook.apply import still_there
from gpusharectl.install.webhook.objects import (
    secret_of,
    with_replicas,
    with_runtime_classes,
    with_settings,
)
from gpusharectl.install.webhook.plan import WebhookPlan, judge_webhook, split
from gpusharectl.kube_scheduler.drift import Flavour, flavour
from gpusharectl.kube_scheduler.files import packing_configuration
from gpusharectl.kube_scheduler.host_files import FileChange, Obstacle
from gpusharectl.output import ObjectChange, object_changes

STAMP = f"{names.PREFIX}-configuration"
"""Annotation of the pods: which configuration they began with."""
_SECOND = Ref("apps/v1", "Deployment", SECOND_SCHEDULER, SYSTEM)


def loaded(
    load: Load,
    kind: Flavour,
    choice: InstallOptions,
    *,
    image: str,
    components: Sequence[str] = (),
    by_cert_manager: bool = False,
) -> tuple[Json, ...]:
    """Give the objects in the order in which they are applied, with their settings.

    ``components`` are laid over all that runs beside the cards; ``by_cert_manager``
    says who makes the webhook's certificate.
    """
    found = load(overlay_of(kind, choice), image=image, components=components)
    if choice.with_monitoring:
        found += load(MONITORING, image=image, components=components)
    if choice.webhook.wanted:
        name = BY_CERT_MANAGER if by_cert_manager else WEBHOOK_OVERLAY
        void = (VOID,) if choice.webhook.void else ()
        found += load(name, image=image, components=void)
    return _configured(found, choice)


def _configured(manifests: Iterable[Json], choice: InstallOptions) -> tuple[Json, ...]:
    settings = choice.webhook.settings() if choice.webhook.wanted else {}
    quota = {QUOTA: settings[QUOTA]} if QUOTA in settings else {}
    found = with_settings(manifests, "webhook", settings)
    found = with_settings(found, "device-plugin", quota)
    ours = {UI: ON} if choice.ui else {}
    ours |= {POLICY: choice.policy} if choice.policy else {}
    found = with_settings(found, "extender", ours)
    if choice.policy == FRAG:
        found = tuple(map(_packing, found))
    return _stamped(found)


def _stamped(manifests: tuple[Json, ...]) -> tuple[Json, ...]:
    """Let a second kube-scheduler's pods be made anew for another configuration.

    They read it once.
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
    """Let the policy's word outweigh all others in a second kube-scheduler, too."""
    if body["kind"] != "ConfigMap":
        return body
    texts = body.get("data") or {}
    changed = {key: packing_configuration(text) for key, text in texts.items()}
    return {**body, "data": changed} if texts else body


def with_preserved_settings(choice: InstallOptions, facts: Facts) -> InstallOptions:
    """Settle what was left open: TLS, page and webhook stay where they are.

    An install run again, for any reason, would else take away what the first was given.
    """
    tls = facts.tls or None if choice.tls is None else choice.tls
    ui = facts.ui or None if choice.ui is None else choice.ui
    policy = choice.policy or facts.policy or None
    webhook = choice.webhook
    if facts.webhook and webhook.wanted is not False:
        webhook = webhook.keeping(facts.webhook.settings)
    return replace(choice, tls=tls, ui=ui, policy=policy, webhook=webhook)


def judge_kept(facts: Facts, choice: InstallOptions) -> list[Finding]:
    """Say what stays because nothing was said of it."""
    found = []
    going = {EXPORTER} if not choice.with_monitoring else set()
    going |= {WEBHOOK} if choice.webhook.wanted is False else set()
    images = {name: image for name, image in facts.images.items() if name not in going}
    if images and not choice.image:
        found.append(Finding(Weight.OK, _images(images)))
    if facts.tls and choice.tls is None:
        text = "the extender has TLS here, and keeps it; --no-tls takes it away"
        found.append(Finding(Weight.OK, text))
    if facts.ui and choice.ui is None:
        text = "the extender has its page here, and keeps it; --no-ui takes it away"
        found.append(Finding(Weight.OK, text))
    if facts.policy and not choice.policy:
        text = f"the policy is {facts.policy} here, and stays; --policy changes it"
        found.append(Finding(Weight.OK, text))
    return found


def _images(running: Mapping[str, str]) -> str:
    first, *others = dict.fromkeys(running.values())
    if not others:
        return f"image {first} runs here, and stays; --image changes it"
    them = ", ".join(f"{name} at {image}" for name, image in running.items())
    return f"images stay as they are, {them}; --image changes all of them"


def weigh(
    found: Sequence[Finding], screen: Screen, *, sure: bool = False
) -> Trouble | None:
    """Say what was found; a refusal ends it, a doubt is asked about unless ``sure``."""
    for one in found:
        screen.say(f"{one.text}   {one.weight}")
    bad = refusals(found)
    if bad:
        why = "; ".join(one.text for one in bad)
        cure = "; ".join(one.cure for one in bad if one.cure)
        return Trouble(f"{why}; nothing was changed", cure, Exit.REFUSED)
    doubts = [one for one in found if one.weight is Weight.DOUBT]
    if not doubts or sure:
        return None
    try:
        if screen.confirm("Share these cards all the same?"):
            return None
    except NoAnswerError:
        return nobody("--yes")
    return Trouble(
        "you said no; nothing was changed", "the same command without these nodes"
    )


def which_nodes(
    facts: Facts, choice: InstallOptions, screen: Screen
) -> tuple[str, ...] | Trouble:
    """Take the nodes from the options, else from what is labelled, else ask."""
    signs = likely(facts.nodes, facts.here if facts.driver_here else "")
    if choice.nodes:
        return choice.nodes
    if choice.all_gpu_nodes:
        return signs or _no_gpu(facts.nodes)
    labelled = tuple(node.name for node in facts.nodes if node.labelled)
    if choice.yes or choice.dry_run:
        return labelled or nobody("--nodes NODE,NODE or --all-gpu-nodes")
    return _asked(facts, labelled or signs, screen)


def nobody(option: str) -> Trouble:
    """Say that a question cannot be asked, and which option answers it."""
    why = "there is nobody to ask here; nothing was changed"
    return Trouble(why, f"the same command with {option}", Exit.USAGE)


def _asked(
    facts: Facts, default: Sequence[str], screen: Screen
) -> tuple[str, ...] | Trouble:
    """Show the nodes, and let a person name those with cards until all exist."""
    screen.begin("Nodes")
    for node in facts.nodes:
        screen.say(f"{node.name}: {_signs(node, facts)}")
    while True:
        try:
            said = screen.ask("Which nodes share their cards?", ", ".join(default))
        except NoAnswerError:
            return nobody("--nodes NODE,NODE or --all-gpu-nodes")
        wanted = node_names(said)
        wrong = chosen(wanted, facts.nodes)
        if wrong is None:
            return wanted
        screen.say(str(wrong))


def _signs(node: NodeView, facts: Facts) -> str:
    loaded = facts.driver_here and node.name == facts.here
    own = ("the driver is loaded",) if loaded else ()
    return ", ".join((*node.signs, *own)) or "no sign of a GPU"


def _no_gpu(nodes: Sequence[NodeView]) -> Trouble:
    them = ", ".join(node.name for node in nodes) or "none"
    why = f"no node shows a sign of an NVIDIA GPU (nodes: {them}); nothing was changed"
    cure = "if you know better, name them: gpusharectl install --nodes NODE,NODE"
    return Trouble(why, cure, Exit.REFUSED)


NOTHING_DONE = "nothing was changed"


@dataclass
class InstallPlan:
    """Look, ask and try; what one step finds out is kept for those after it."""

    hands: Context
    choice: InstallOptions
    facts: Facts = field(init=False)
    manifests: tuple[Json, ...] = ()
    chosen: tuple[str, ...] = ()
    changes: tuple[ObjectChange, ...] = ()
    holder: str = ""
    """Who holds kube-scheduler's lease, where several may."""
    image: str = ""
    """Of a second kube-scheduler."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """The image that each workload of ours goes on running, by its name."""
    by_cert_manager: bool = False
    """Whether the webhook's certificate is not ours to make."""
    webhook: WebhookPlan | None = None
    """What is done about it beside applying ``manifests``; None where it is not."""
    replicas: int | None = None
    """As many as somebody has given the webhook that is there."""
    runtime_classes: tuple[str, ...] = ()
    """Those of the cluster that bring cards."""
    going: tuple[Ref, ...] = ()
    """What there is of a webhook that is to be taken away, in the order of that."""

    def check(self) -> Trouble | None:
        """Look at all, say what is found, refuse what cannot go well."""
        hands, choice = self.hands, self.choice
        hands.screen.begin("Checking")
        kind = flavour(hands.files)
        self._load()
        rights = to_install(
            self._all(),
            probe=not choice.second_scheduler,
            jobs=kind is Flavour.KUBEADM,
        )
        self.facts = survey(
            hands.objects,
            hands.files,
            rights,
            told=choice.this_node,
            webhook=bool(choice.webhook.wanted),
        )
        found = [*judge_cluster(self.facts, choice), *judge_kept(self.facts, choice)]
        trouble = weigh([*found, *judge_webhook(self.facts, choice)], hands.screen)
        if trouble is not None:
            return trouble
        self.choice = with_preserved_settings(choice, self.facts)
        self.kept = {} if choice.image else self.facts.images
        self.by_cert_manager = self.facts.by_cert_manager
        self.runtime_classes = self.facts.runtime_classes
        self.replicas = there.replicas if (there := self.facts.webhook) else None
        if choice.webhook.wanted is False:
            self.going = still_there(hands)
        self._load()
        return self._rights() or self._files() or self._scheduler()

    def choose(self) -> Trouble | None:
        """Settle which nodes share their cards."""
        screen, choice = self.hands.screen, self.choice
        wanted = which_nodes(self.facts, choice, screen)
        if isinstance(wanted, Trouble):
            return wanted
        wrong = chosen(wanted, self.facts.nodes)
        if wrong is not None:
            return Trouble(f"{wrong} {NOTHING_DONE.capitalize()}", exit_code=Exit.USAGE)
        self.chosen = wanted
        if self._by_runtime_class():
            self._load(BY_RUNTIME_CLASS)
        return weigh(
            judge_nodes(self.facts, wanted, second_scheduler=choice.second_scheduler),
            screen,
            sure=choice.yes or choice.dry_run,
        )

    def rehearse(self) -> Trouble | None:
        """Let the API server judge every object; show all, or ask whether to go on."""
        bodies = list(self.manifests)
        if self.choice.webhook.wanted:
            hands, ours = self.hands, not self.by_cert_manager
            now = hands.now()
            found = split(hands.objects, self.manifests, now, ours=ours)
            self.manifests, self.webhook = found
            bodies = [*self.manifests, *self.webhook.beside()]
        self.changes = object_changes(self.hands.objects, bodies)
        if self.choice.dry_run:
            self._show()
            return None
        return None if self.choice.yes else self._agreed()

    def again(self) -> str:
        """Give the command that goes on, the nodes chosen meanwhile included."""
        return replace(self.choice, nodes=self.chosen or self.choice.nodes).again()

    def wish(self) -> SchedulerTarget:
        """Say what kube-scheduler is to be set to."""
        return SchedulerTarget(
            self.facts.flavour,
            self.facts.here,
            self.facts.version,
            image_of(self.manifests),
            tls=bool(self.choice.tls),
            frag=self.choice.policy == FRAG,
            restart=self.choice.restart,
            timeout_s=self.choice.timeout_s,
        )

    @property
    def other_hosts(self) -> tuple[str, ...]:
        """The other nodes whose kube-scheduler kubeadm has set up."""
        facts = self.facts
        if facts.flavour is not Flavour.KUBEADM or self.choice.second_scheduler:
            return ()
        return tuple(node for node in facts.control_plane if node != facts.here)

    def _files(self) -> Trouble | None:
        """Look whether kube-scheduler's files can be edited, before anything is."""
        if self.choice.second_scheduler:
            return None
        plan = self.hands.host(self.wish()).plan()
        if not isinstance(plan, Obstacle):
            return None
        return Trouble(f"{plan}; {NOTHING_DONE}", exit_code=Exit.REFUSED)

    def _rights(self) -> Trouble | None:
        """Ask for what only a webhook that is there already takes."""
        if self.going:
            rights = to_take_away(self.going)
        elif self.facts.webhook is not None or self.by_cert_manager:
            rights = to_install(self._all())
        else:
            return None
        lacking = missing(self.hands.objects, rights)
        found = judge_rights(replace(self.facts, missing=lacking)) if lacking else []
        return weigh(found, self.hands.screen)

    def _all(self) -> Sequence[Json]:
        """Give the manifests, and a Secret where one may have to be made."""
        ours = self.choice.webhook.wanted and not self.by_cert_manager
        return [*self.manifests, secret_of({})] if ours else self.manifests

    def _load(self, *components: str) -> None:
        """Put the manifests together, as far as it is known what they must be."""
        # There is one image for all parts: what is new gets that of what runs.
        bodies = loaded(
            self.hands.load,
            flavour(self.hands.files),
            self.choice,
            image=self.choice.image or next(iter(self.kept.values()), ""),
            components=components,
            by_cert_manager=self.by_cert_manager,
        )
        found = with_images(served(self.hands.objects, bodies), self.kept)
        found = with_replicas(found, self.replicas)
        found = with_runtime_classes(found, self.runtime_classes)
        self.manifests = with_scheduler(found, self.image) if self.image else found

    def _scheduler(self) -> Trouble | None:
        """Find out who leads, or which image a second kube-scheduler is to have."""
        objects, choice = self.hands.objects, self.choice
        if not choice.second_scheduler:
            self.holder = leader(objects) if self.other_hosts else ""
            return None
        self.image = choice.scheduler_image or kube_scheduler_image(objects)
        if self.image:
            self._load()
            return None
        version = self.facts.version
        return Trouble(
            "nothing in this cluster tells where kube-scheduler's image is; "
            f"{NOTHING_DONE}",
            f"the same command with --scheduler-image IMAGE, of {version}",
            Exit.REFUSED,
        )

    def _by_runtime_class(self) -> bool:
        told = self.choice.runtime_class
        if told is not None:
            return told
        nodes = [named(self.facts.nodes, name) for name in self.chosen]
        views = [node for node in nodes if node is not None]
        return wants_runtime_class(views, there=NVIDIA in self.facts.runtime_classes)

    def _agreed(self) -> Trouble | None:
        """Say in one line what will change, and ask; where nothing will, go on."""
        what = self._summary()
        if not what:
            return None
        try:
            if self.hands.screen.confirm(f"Change {'; '.join(what)}?"):
                return None
        except NoAnswerError:
            return nobody("--yes")
        return Trouble(f"you said no; {NOTHING_DONE}")

    def _summary(self) -> list[str]:
        found = []
        if self.changes:
            found.append(f"{len(self.changes)} objects in the cluster")
        labels = to_label(self.facts.nodes, self.chosen)
        if labels:
            found.append(f"a label on {', '.join(labels)}")
        found += ["the webhook taken away"] if self.going else []
        found += [change.path for change in self._file_changes()]
        return found

    def _show(self) -> None:
        """Print every change; touch nothing."""
        screen = self.hands.screen
        for change in self.changes:
            screen.note(change.diff())
        for ref in self.going:
            screen.note(f"- {ref}")
        for name in to_label(self.facts.nodes, self.chosen):
            screen.note(label_diff(name, on=True))
        for file in self._file_changes():
            screen.note(file.diff())
        for node in self.other_hosts:
            screen.note(f"# likewise, by a Job, kube-scheduler's files on {node}\n")
        screen.note(f"Nothing was touched. To do it: {self.again()}")

    def _file_changes(self) -> Sequence[FileChange]:
        if self.choice.second_scheduler:
            return ()
        plan = self.hands.host(self.wish()).plan()
        return () if isinstance(plan, Obstacle) else plan
