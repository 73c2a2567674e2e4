"""What an install is going to do: checked, asked, tried out, and not yet begun."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.domain.policies import FRAG
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref
from gpusharectl.install.asking import nobody, weigh, which_nodes
from gpusharectl.install.changes import (
    ObjectChange,
    label_diff,
    object_changes,
    to_label,
)
from gpusharectl.install.choice import Choice, chosen
from gpusharectl.install.flavour import Flavour, flavour
from gpusharectl.install.hands import Hands, Wish
from gpusharectl.install.keeping import judge_kept, keeping
from gpusharectl.install.loading import loaded
from gpusharectl.install.nodechecks import judge_nodes
from gpusharectl.install.nodeview import named
from gpusharectl.install.overlays import (
    BY_RUNTIME_CLASS,
    NVIDIA,
    image_of,
    wants_runtime_class,
    with_images,
    with_scheduler,
)
from gpusharectl.install.preflight import Facts, judge_cluster, judge_rights
from gpusharectl.install.progress import NoAnswerError
from gpusharectl.install.rights import missing, to_install, to_take_away
from gpusharectl.install.steps import Exit, Trouble
from gpusharectl.install.survey import kube_scheduler_image, leader, served, survey
from gpusharectl.install.webhookchecks import judge_webhook
from gpusharectl.install.webhookgoing import still_there
from gpusharectl.install.webhookobjects import (
    secret_of,
    with_replicas,
    with_runtime_classes,
)
from gpusharectl.install.webhookplan import WebhookPlan, split
from gpusharectl.scheduler.hostfiles import FileChange
from gpusharectl.scheduler.obstacle import Obstacle

NOTHING_DONE = "nothing was changed"


@dataclass
class Planning:
    """Look, ask and try; what one step finds out is kept for those after it."""

    hands: Hands
    choice: Choice
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
        self.choice = keeping(choice, self.facts)
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

    def wish(self) -> Wish:
        """Say what kube-scheduler is to be set to."""
        return Wish(
            self.facts.flavour,
            self.facts.here,
            self.facts.version,
            image_of(self.manifests),
            tls=bool(self.choice.tls),
            packs=self.choice.policy == FRAG,
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
