"""What an uninstall is going to do: looked at, asked about, and not yet begun."""

from dataclasses import dataclass, field

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref
from gpusharectl.install.asking import nobody, weigh
from gpusharectl.install.changes import label_diff
from gpusharectl.install.choice import Leaving
from gpusharectl.install.finding import is_asking, is_plugin, ours
from gpusharectl.install.flavour import Flavour, flavour
from gpusharectl.install.hands import Hands, Wish
from gpusharectl.install.holders import Holder, holders, listed
from gpusharectl.install.nodeview import NodeView
from gpusharectl.install.overlays import ALL, WORKLOADS, image_of
from gpusharectl.install.preflight import Facts, judge_host, judge_rights
from gpusharectl.install.progress import NoAnswerError
from gpusharectl.install.rights import to_uninstall
from gpusharectl.install.steps import Exit, Trouble
from gpusharectl.install.survey import leader, served, survey
from gpusharectl.install.zeros import counted
from gpusharectl.scheduler.hostfiles import FileChange
from gpusharectl.scheduler.obstacle import Obstacle

NOTHING_DONE = "nothing was changed"


@dataclass
class LeavingPlan:
    """Look and ask; what is found is kept for the steps after it."""

    hands: Hands
    choice: Leaving
    facts: Facts = field(init=False)
    manifests: tuple[Json, ...] = ()
    found: tuple[Ref, ...] = ()
    held: tuple[Holder, ...] = ()
    image: str = ""
    holder: str = ""
    """Who holds kube-scheduler's lease, where several may."""

    def check(self) -> Trouble | None:
        """Look at what of ours is there, and refuse what would go wrong."""
        hands, choice = self.hands, self.choice
        hands.screen.begin("Checking")
        loaded = [body for name in ALL for body in hands.load(name, image=choice.image)]
        self.manifests = served(hands.objects, loaded)
        rights = to_uninstall(
            self.manifests,
            wait=choice.wait,
            jobs=flavour(hands.files) is Flavour.KUBEADM,
        )
        self.facts = survey(hands.objects, hands.files, rights, told=choice.this_node)
        found = [*judge_rights(self.facts), *judge_host(self.facts, leaving=True)]
        trouble = weigh(found, hands.screen)
        if trouble is not None:
            return trouble
        self.found = tuple(ours(hands.objects, self.manifests))
        self.image = choice.image or self._image()
        self.holder = leader(hands.objects) if self.other_hosts else ""
        return self._files()

    def pods(self) -> Trouble | None:
        """Look which pods hold cards; they forbid it, unless forced."""
        self.held = holders(self.hands.objects)
        screen = self.hands.screen
        if not self.held:
            screen.say("no pod holds a card")
            return None
        number = f"{len(self.held)} pod{'' if len(self.held) == 1 else 's'}"
        screen.say(f"{number} with cards:\n{listed(self.held)}")
        if self.choice.force:
            screen.say(
                "They go on; one whose container restarts afterwards has no plugin to "
                "admit it, and their placements stay written on them."
            )
            return None
        return Trouble(
            f"{number} with cards would lose their device plugin; {NOTHING_DONE}",
            f"delete them first, or: {self.choice.again('--force')}",
            Exit.REFUSED,
        )

    def agree(self) -> Trouble | None:
        """Show all that would go with ``--dry-run``; else ask, unless told yes."""
        if self.choice.dry_run:
            self._show()
            return None
        if self.choice.yes or not self.anything:
            return None
        try:
            if self.hands.screen.confirm(f"Take away {'; '.join(self._summary())}?"):
                return None
        except NoAnswerError:
            return nobody("--yes")
        return Trouble(f"you said no; {NOTHING_DONE}")

    @property
    def anything(self) -> bool:
        """Tell whether anything of ours is there."""
        zeros = self.choice.wait and counted(self.facts.nodes)
        return bool(self.found or self.touched or self.file_changes() or zeros)

    @property
    def touched(self) -> tuple[NodeView, ...]:
        """The nodes with our label or with annotations of ours."""
        return tuple(
            node for node in self.facts.nodes if node.label or node.annotations
        )

    @property
    def sets_scheduler(self) -> bool:
        """Tell whether this host's kube-scheduler may have been set by us."""
        return self.facts.flavour is not Flavour.MANAGED

    @property
    def other_hosts(self) -> tuple[str, ...]:
        """The other nodes whose kube-scheduler may have been set, by a Job of ours."""
        facts = self.facts
        if facts.flavour is not Flavour.KUBEADM or not facts.extended:
            return ()
        return tuple(node for node in facts.control_plane if node != facts.here)

    @property
    def plugin(self) -> tuple[Ref, ...]:
        """The device plugin's DaemonSet, which goes before all else."""
        return tuple(ref for ref in self.found if is_plugin(ref))

    @property
    def asking(self) -> tuple[Ref, ...]:
        """By which the API server asks the webhook; while they stay, that must."""
        return tuple(ref for ref in self.found if is_asking(ref))

    @property
    def others(self) -> tuple[Ref, ...]:
        """All other objects, in the order in which they go."""
        first = (*self.asking, *self.plugin)
        return tuple(ref for ref in self.found if ref not in first)

    def wish(self) -> Wish:
        """Say which kube-scheduler is to be set back."""
        return Wish(
            self.facts.flavour,
            self.facts.here,
            self.facts.version,
            self.image,
            restart=self.choice.restart,
            timeout_s=self.choice.timeout_s,
        )

    def file_changes(self) -> tuple[FileChange, ...]:
        """Give what changes in this host's files."""
        if not self.sets_scheduler:
            return ()
        plan = self.hands.host(self.wish()).restore()
        return () if isinstance(plan, Obstacle) else tuple(plan)

    def _files(self) -> Trouble | None:
        """Look whether this host's files can be set back, before anything is."""
        if not self.sets_scheduler:
            return None
        plan = self.hands.host(self.wish()).restore()
        if not isinstance(plan, Obstacle):
            return None
        return Trouble(f"{plan}; {NOTHING_DONE}", exit_code=Exit.REFUSED)

    def _image(self) -> str:
        """Find the image that runs here; whatever its version, it cleans as well."""
        bodies = (
            self.hands.objects.get(ref) for ref in self.found if ref.kind in WORKLOADS
        )
        there = [body for body in bodies if body is not None]
        return image_of(there) or image_of(self.manifests)

    def _summary(self) -> list[str]:
        found = []
        if self.found:
            found.append(f"{len(self.found)} objects")
        if self.touched:
            them = ", ".join(node.name for node in self.touched)
            found.append(f"label, annotations and files on {them}")
        found += [f"our part of {change.path}" for change in self.file_changes()]
        return found or ["what kubelet counts"]

    def _show(self) -> None:
        """Print every change; touch nothing."""
        screen = self.hands.screen
        for ref in self.found:
            screen.note(f"- {ref}")
        for node in self.touched:
            if node.label:
                screen.note(label_diff(node.name, on=False).rstrip())
            for key in node.annotations:
                screen.note(f"- Node {node.name}: annotation {key}")
            screen.note(f"- Node {node.name}: the folder /var/lib/vcuda")
        for change in self.file_changes():
            screen.note(change.diff())
        for host in self.other_hosts:
            screen.note(f"# likewise, by a Job, kube-scheduler's files on {host}")
        screen.note(f"Nothing was touched. To do it: {self.choice.again()}")
