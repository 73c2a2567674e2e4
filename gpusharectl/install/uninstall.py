"""``gpusharectl uninstall``, step after step: install's order, backwards.

First the API server ceases to ask the webhook, without which it would make no pod that
asks for cards; then the device plugins go, so that no card is offered which nobody
would choose; then our stanza, so that kube-scheduler never calls an extender that is
gone; then the rest.

What of ours is in a cluster, whoever put it there, and in which order it goes.

Which pods hold parts of cards now. Pure, but for one list of pods.

What an uninstall is going to do: looked at, asked about, and not yet begun.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.codec import is_ours, pod_record
from gpushare.kube.errors import Forbidden, Invalid, NotFound
from gpushare.kube.facts import DEVICE_PLUGIN, OURS, PART_NAME, SYSTEM, TERMINAL
from gpushare.kube.json_reader import Malformed
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.cluster_facts import NodeView, label_diff, named
from gpusharectl.install.context import Context, SchedulerTarget
from gpusharectl.install.manifests import ALL, WORKLOADS, image_of
from gpusharectl.install.node_cleanup import clean_nodes, counted, remove_stale_capacity
from gpusharectl.install.options import UninstallOptions
from gpusharectl.install.plan import nobody, weigh
from gpusharectl.install.preflight import Facts, judge_host, judge_rights, to_uninstall
from gpusharectl.install.progress import (
    Closing,
    Exit,
    NoAnswerError,
    Step,
    Trouble,
    Waiting,
    follow,
)
from gpusharectl.install.scheduler import take
from gpusharectl.install.survey import leader, leads, read_nodes, served, survey
from gpusharectl.install.webhook.objects import CONFIGURATIONS, SECRETS
from gpusharectl.kube_scheduler.drift import Flavour, flavour
from gpusharectl.kube_scheduler.host_files import FileChange, Obstacle

LEASE = Ref("coordination.k8s.io/v1", "Lease", "vcuda-scheduler", SYSTEM)
"""The second scheduler makes it itself, so it bears no label of ours."""
_LAST = ("ClusterRole", "Role", "ServiceAccount")
"""A binding goes before what it binds, so that none is left that binds nothing."""
_MADE_HERE = (("batch/v1", "Job", SYSTEM), ("v1", "Pod", SYSTEM))


def ours(objects: Objects, manifests: Sequence[Json]) -> list[Ref]:
    """Find every object of ours, workloads first; pods and Jobs of our own as well.

    By their names in the manifests, and by our label, which an older version's have
    too. The pods of workloads go with those.
    """
    found: dict[Ref, None] = {}
    for body in manifests:
        ref = Ref.of(body)
        if ref not in found and objects.get(ref) is not None:
            found[ref] = None
    for api_version, kind, namespace in _kinds(manifests):
        for body in _labelled(objects, api_version, kind, namespace):
            if not body["metadata"].get("ownerReferences"):
                found[Ref.of(body)] = None
    for ref in (LEASE, *SECRETS):
        if objects.get(ref) is not None:
            found[ref] = None
    return sorted(found, key=_rank)


def is_plugin(ref: Ref) -> bool:
    """Tell whether it is the device plugin's DaemonSet, which goes before all else."""
    return ref.kind in WORKLOADS and ref.name == DEVICE_PLUGIN


def is_asking(ref: Ref) -> bool:
    """Tell whether by it the API server asks the webhook; it goes before that."""
    return ref in CONFIGURATIONS


def our_pods(objects: Objects) -> Sequence[Json]:
    """List our pods, those that are just ending included."""
    return objects.list("v1", "Pod", namespace=SYSTEM, label_selector=OURS)


def _kinds(manifests: Iterable[Json]) -> list[tuple[str, str, str]]:
    refs = map(Ref.of, manifests)
    own = [(ref.api_version, ref.kind, ref.namespace) for ref in refs]
    return [*dict.fromkeys([*own, *_MADE_HERE])]


def _labelled(
    objects: Objects, api_version: str, kind: str, namespace: str
) -> Sequence[Json]:
    """List a kind's objects with our label; those of other namespaces are not ours."""
    try:
        return objects.list(api_version, kind, namespace=namespace, label_selector=OURS)
    except NotFound:
        # Policies on an old cluster.
        return ()


def _rank(ref: Ref) -> tuple[int, str]:
    if ref.kind in WORKLOADS:
        return (0, ref.name)
    return (2 if ref.kind in _LAST else 1, ref.kind)


_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod on a node that holds a part of a card, or has asked for one there."""

    namespace: str
    name: str
    node: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} on {self.node}"


def holders(objects: Objects) -> tuple[Holder, ...]:
    """Read which pods hold cards, sorted by node and name."""
    return holding(objects.list("v1", "Pod"))


def holding(pods: Iterable[Json]) -> tuple[Holder, ...]:
    """Find the pods that are bound, have not ended, and ask for a part of a card."""
    found = [
        Holder(pod["metadata"]["namespace"], pod["metadata"]["name"], _node(pod))
        for pod in pods
        if _node(pod) and not _ended(pod) and _asks(pod)
    ]
    return tuple(sorted(found, key=lambda one: (one.node, one.namespace, one.name)))


def listed(found: Sequence[Holder]) -> str:
    """Write them down, one a line; of very many the first."""
    lines = [f"  {one}" for one in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  and {len(found) - _SHOWN} more")
    return "\n".join(lines)


def _asks(pod: Json) -> bool:
    """Tell whether a pod asks for cards; one that cannot be read counts as asking."""
    if not is_ours(pod):
        return False
    try:
        return pod_record(pod).asks
    except Malformed:
        return True


def _node(pod: Json) -> str:
    return str(pod["spec"].get("nodeName") or "")


def _ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in TERMINAL


NOTHING_DONE = "nothing was changed"


@dataclass
class UninstallPlan:
    """Look and ask; what is found is kept for the steps after it."""

    hands: Context
    choice: UninstallOptions
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

    def wish(self) -> SchedulerTarget:
        """Say which kube-scheduler is to be set back."""
        return SchedulerTarget(
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


GUARD_LINGERS_S = 10.0
"""The API server's own watch tells it that a policy is gone a moment later."""
_MANY = 4


def uninstall(hands: Context, choice: UninstallOptions) -> Exit:
    """Take everything away, or with ``dry_run`` show what that would change."""
    plan = UninstallPlan(hands, choice)
    first = [
        Step("the checks", plan.check),
        Step("the look at pods with cards", plan.pods),
        Step("the consent", plan.agree),
    ]
    closing = Closing(choice.again())
    code = follow(first, hands.screen, closing)
    if code is not Exit.DONE or choice.dry_run:
        return code
    if not plan.anything:
        hands.screen.note("Nothing of ours is here.")
        return Exit.DONE
    return follow(UninstallSteps(hands, plan).steps(), hands.screen, closing)


class UninstallSteps:
    """The steps that take away, each of which can be done again."""

    def __init__(self, hands: Context, plan: UninstallPlan) -> None:
        self._hands = hands
        self._screen = hands.screen
        self._plan = plan
        self._remains: dict[str, str] = {}

    def steps(self) -> list[Step]:
        """Give the steps in their order."""
        zeros = [Step("what kubelet counts", self.zeros)]
        asking = [Step("the webhook asked no more", self.asking)]
        return [
            *(asking if self._plan.asking else []),
            Step("the device plugins taken away", self.plugins),
            Step("their files on the nodes", self.files),
            *self._scheduler_steps(),
            Step("all other objects", self.objects),
            Step("labels and annotations on nodes", self.nodes),
            *(zeros if self._plan.choice.wait else []),
            Step("nothing left behind", self.close),
        ]

    def asking(self) -> Trouble | None:
        """Delete the webhook's configurations."""
        self._screen.begin("Webhook")
        gone = [ref for ref in self._plan.asking if self._hands.objects.delete(ref)]
        told = ", ".join(map(str, gone))
        self._screen.say(f"{told} deleted" if gone else "nothing was left to delete")
        return None

    def plugins(self) -> Trouble | None:
        """Delete the device plugins, and wait until the last has ended."""
        self._screen.begin("Plugins")
        return self._delete(self._plan.plugin, DEVICE_PLUGIN)

    def files(self) -> Trouble | None:
        """Remove the device plugins' folders, but those that containers have open."""
        held = {one.node for one in self._plan.held}
        nodes = [node.name for node in self._plan.touched if node.label]
        clean = [name for name in nodes if name not in held and self._ready(name)]
        self._screen.begin("Files")
        for name in nodes:
            if name in held:
                self._screen.say(
                    f"{name}: /var/lib/vcuda stays, running containers have files of "
                    "it open; when they have ended: rm -r /var/lib/vcuda"
                )
            elif name not in clean:
                self._remains[name] = "it is not Ready"
        hands = self._hands
        failed = clean_nodes(
            hands.objects, clean, self._plan.image, self._screen, hands.patience
        )
        self._remains.update(failed)
        done = [name for name in clean if name not in failed]
        if done:
            self._screen.say(f"/var/lib/vcuda removed on {', '.join(done)}")
        return None

    def objects(self) -> Trouble | None:
        """Delete all that is left in the cluster, and wait for the pods to end."""
        self._screen.begin("Objects")
        return self._delete(self._plan.others, "")

    def nodes(self) -> Trouble | None:
        """Take our label and annotations from all nodes."""
        self._screen.begin("Nodes")
        for node in read_nodes(self._hands.objects):
            if node.label or node.annotations:
                gone: Mapping[str, None] = dict.fromkeys(node.annotations)
                metadata = {
                    "labels": {names.GPU_NODE_LABEL: None},
                    "annotations": dict(gone),
                }
                self._merge(node.name, metadata)
                self._screen.say(f"{node.name}: label and annotations taken away")
        return None

    def zeros(self) -> Trouble | None:
        """Wait until kubelet counts none, and take its zeros from the nodes."""
        self._screen.begin("Kubelet")
        hands = self._hands
        left = remove_stale_capacity(hands.objects, self._screen, hands.patience)
        if not left:
            return None
        return Trouble("; ".join(f"{name}: {why}" for name, why in left.items()))

    def close(self) -> Trouble | None:
        """Say what stays, on purpose or not, and that all else is as it was."""
        screen, plan = self._screen, self._plan
        if plan.held:
            screen.note(
                "The pods with cards go on; one whose container restarts from now on "
                "has no plugin to admit it."
            )
        still = counted(read_nodes(self._hands.objects))
        if still:
            screen.note(
                f"kubelet goes on counting {names.PREFIX}-core and -memory, at 0 after "
                f"five minutes, on {', '.join(still)}. To take that out too, once they "
                f"are Ready: {plan.choice.again('--wait')}"
            )
        if plan.facts.flavour is Flavour.K3S and not plan.choice.restart:
            screen.note("k3s reads its files when it starts: systemctl restart k3s")
        if self._remains:
            return Trouble(
                "/var/lib/vcuda stays on "
                + ", ".join(f"{name} ({why})" for name, why in self._remains.items()),
                "on these nodes, as root: rm -rf /var/lib/vcuda",
            )
        screen.note("Done: the cluster is as it was before us.")
        return None

    def _scheduler_steps(self) -> list[Step]:
        """Set the kube-schedulers back, one after another, the leader last."""
        if not self._plan.sets_scheduler:
            return []
        holder, here = self._plan.holder, self._plan.facts.here
        hosts = sorted(
            [*self._plan.other_hosts, here], key=lambda node: leads(holder, node)
        )
        return [
            Step(
                f"kube-scheduler's configuration on {host}",
                self._here if host == here else self._there(host),
            )
            for host in hosts
        ]

    def _here(self) -> Trouble | None:
        self._screen.begin("Scheduler")
        return take(self._hands.host(self._plan.wish()), self._screen)

    def _there(self, host: str) -> Callable[[], Trouble | None]:
        def act() -> Trouble | None:
            self._screen.begin("Scheduler")
            others = self._hands.others(self._plan.wish())
            why = others.run("restore", host, self._screen.say)
            return Trouble(f"on {host}: {why}") if why else None

        return act

    def _delete(self, refs: Sequence[Ref], name: str) -> Trouble | None:
        """Delete objects, and wait for the pods of that name, or for all of ours."""
        gone = [ref for ref in refs if self._hands.objects.delete(ref)]
        left = self._hands.patience.until(lambda: self._ending(name), self._screen)
        if left:
            return Trouble("; ".join(map(str, left)))
        told = (
            ", ".join(map(str, gone)) if len(gone) < _MANY else f"{len(gone)} objects"
        )
        self._screen.say(f"{told} deleted" if gone else "nothing was left to delete")
        return None

    def _ending(self, name: str) -> list[Waiting]:
        """Give the pods that have not ended; on a lost node nobody can see them end."""
        nodes = read_nodes(self._hands.objects)
        found = []
        for pod in our_pods(self._hands.objects):
            ref = Ref.of(pod)
            if name and (pod["metadata"].get("labels") or {}).get(PART_NAME) != name:
                continue
            node = named(nodes, pod["spec"].get("nodeName", ""))
            if node is not None and node.ready:
                found.append(Waiting(f"{ref.name} on {node.name}", "its end"))
            else:
                self._hands.objects.delete(ref, grace_period_s=0)
        return found

    def _merge(self, node: str, metadata: Json) -> None:
        """Patch a node; the guard may deny it until the API server knows it is gone."""
        patience = self._hands.patience
        deadline = patience.clock() + GUARD_LINGERS_S
        while True:
            try:
                self._hands.objects.merge(
                    Ref("v1", "Node", node), {"metadata": metadata}
                )
            except (Forbidden, Invalid):
                if patience.clock() >= deadline:
                    raise
                patience.pause(patience.look_every_s)
            else:
                return

    def _ready(self, name: str) -> bool:
        node = named(self._plan.facts.nodes, name)
        return node is not None and node.ready
