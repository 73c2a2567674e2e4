"""``gpusharectl uninstall``, step by step: the order of ``install``, backwards.

First the API server stops asking the webhook, without which it would create no pod with
cards. Then the device plugins go, so that no card is offered that nobody places pods
on. Then kube-scheduler's configuration is restored, so that it never calls an extender
that is gone. Then the rest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.codec import is_ours, pod_record
from gpushare.kube.errors import Forbidden, Invalid, NotFound
from gpushare.kube.facts import (
    DEVICE_PLUGIN,
    OURS,
    PART_NAME,
    SYSTEM,
    is_terminal,
    label,
    node_of,
)
from gpushare.kube.json_reader import Malformed
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.cluster_facts import NodeView, label_diff, named
from gpusharectl.install.context import Context, SchedulerTarget
from gpusharectl.install.manifests import ALL, WORKLOADS, image_of
from gpusharectl.install.node_cleanup import (
    clean_nodes,
    remove_stale_capacity,
    with_capacity,
)
from gpusharectl.install.options import UninstallOptions
from gpusharectl.install.plan import NOTHING_DONE, no_terminal, weigh
from gpusharectl.install.preflight import judge_host, judge_rights
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
from gpusharectl.install.survey import (
    Facts,
    leader,
    leads,
    read_nodes,
    served,
    survey,
    to_uninstall,
)
from gpusharectl.install.webhook.objects import CONFIGURATIONS, SECRETS
from gpusharectl.kube_scheduler.drift import Flavour, flavour
from gpusharectl.kube_scheduler.host_files import FileChange, Obstacle

LEASE = Ref("coordination.k8s.io/v1", "Lease", "vcuda-scheduler", SYSTEM)
"""The second scheduler creates it itself, so it has no label of ours."""
GUARD_LINGERS_S = 10.0
"""The API server notices a moment later that a policy is deleted."""
_LAST = ("ClusterRole", "Role", "ServiceAccount")
"""A binding is deleted before what it binds, so that none is left over."""
_MADE_HERE = (("batch/v1", "Job", SYSTEM), ("v1", "Pod", SYSTEM))
_SHOWN = 20
_MANY = 4


def uninstall(context: Context, options: UninstallOptions) -> Exit:
    """Remove everything, or with ``dry_run`` show what that would change."""
    plan = UninstallPlan(context, options)
    first = [
        Step("the checks", plan.check),
        Step("the check for pods with cards", plan.pods),
        Step("the confirmation", plan.agree),
    ]
    closing = Closing(options.again())
    code = follow(first, context.screen, closing)
    if code is not Exit.DONE or options.dry_run:
        return code
    if not plan.anything:
        context.screen.note("Nothing of gpushare is installed here.")
        return Exit.DONE
    return follow(UninstallSteps(context, plan).steps(), context.screen, closing)


def ours(objects: Objects, manifests: Sequence[Json]) -> list[Ref]:
    """Return all our objects in the order of deletion, workloads first.

    They are found by their names in the manifests, and by our label, which those of
    older versions have too. The pods of workloads are deleted with these.
    """
    found: dict[Ref, None] = {}
    for body in manifests:
        ref = Ref.of(body)
        if ref not in found and objects.get(ref) is not None:
            found[ref] = None
    refs = map(Ref.of, manifests)
    own = [(ref.api_version, ref.kind, ref.namespace) for ref in refs]
    for api_version, kind, namespace in dict.fromkeys([*own, *_MADE_HERE]):
        for body in _labelled(objects, api_version, kind, namespace):
            if not body["metadata"].get("ownerReferences"):
                found[Ref.of(body)] = None
    for ref in (LEASE, *SECRETS):
        if objects.get(ref) is not None:
            found[ref] = None
    return sorted(found, key=_rank)


def _labelled(
    objects: Objects, api_version: str, kind: str, namespace: str
) -> Sequence[Json]:
    """Return a kind's objects with our label."""
    try:
        return objects.list(api_version, kind, namespace=namespace, label_selector=OURS)
    except NotFound:
        # An old cluster has no admission policies.
        return ()


def _rank(ref: Ref) -> tuple[int, str]:
    if ref.kind in WORKLOADS:
        return (0, ref.name)
    return (2 if ref.kind in _LAST else 1, ref.kind)


@dataclass(frozen=True, slots=True)
class Holder:
    """A bound pod that has requested a part of a card."""

    namespace: str
    name: str
    node: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} on {self.node}"


def holding(pods: Iterable[Json]) -> tuple[Holder, ...]:
    """Return the bound pods with cards that have not ended, by node and name."""
    found = [
        Holder(pod["metadata"]["namespace"], pod["metadata"]["name"], node_of(pod))
        for pod in pods
        if node_of(pod) and not is_terminal(pod) and _asks(pod)
    ]
    return tuple(sorted(found, key=lambda one: (one.node, one.namespace, one.name)))


def listed(found: Sequence[Holder]) -> str:
    """Return one line for each pod; if there are many, for the first 20."""
    lines = [f"  {one}" for one in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  and {len(found) - _SHOWN} more")
    return "\n".join(lines)


def _asks(pod: Json) -> bool:
    """Return whether a pod requests cards; a malformed one counts as requesting."""
    if not is_ours(pod):
        return False
    try:
        return pod_record(pod).asks
    except Malformed:
        return True


@dataclass
class UninstallPlan:
    """The plan; what one step finds out is kept for the steps after it."""

    context: Context
    options: UninstallOptions
    facts: Facts = field(init=False)
    manifests: tuple[Json, ...] = ()
    found: tuple[Ref, ...] = ()
    """All our objects in the order of deletion."""
    held: tuple[Holder, ...] = ()
    """The pods that hold cards now."""
    image: str = ""
    """The image of the pods that clean the nodes."""
    holder: str = ""
    """The holder of kube-scheduler's lease, if several hosts may have it."""

    def check(self) -> Trouble | None:
        """Find what is installed, and refuse what cannot work."""
        context, options = self.context, self.options
        objects = context.objects
        context.screen.begin("Checking")
        loaded = [
            body for name in ALL for body in context.load(name, image=options.image)
        ]
        self.manifests = served(objects, loaded)
        rights = to_uninstall(
            self.manifests,
            wait=options.wait,
            jobs=flavour(context.files) is Flavour.KUBEADM,
        )
        self.facts = survey(objects, context.files, rights, told=options.this_node)
        found = [*judge_rights(self.facts), *judge_host(self.facts, leaving=True)]
        trouble = weigh(found, context.screen)
        if trouble is not None:
            return trouble
        self.found = tuple(ours(objects, self.manifests))
        self.image = options.image or self._image()
        self.holder = leader(objects) if self.other_hosts else ""
        return self._files()

    def pods(self) -> Trouble | None:
        """Refuse while pods hold cards, unless forced."""
        self.held = holding(self.context.objects.list("v1", "Pod"))
        screen = self.context.screen
        if not self.held:
            screen.say("no pod holds a card")
            return None
        number = f"{len(self.held)} pod{'' if len(self.held) == 1 else 's'}"
        screen.say(f"{number} with cards:\n{listed(self.held)}")
        if self.options.force:
            screen.say(
                "They go on running. A container that restarts later is not admitted, "
                "because there is no device plugin. Their placements stay in their "
                "annotations."
            )
            return None
        return Trouble(
            f"{number} with cards would lose their device plugin; {NOTHING_DONE}",
            f"delete them first, or: {self.options.again('--force')}",
            Exit.REFUSED,
        )

    def agree(self) -> Trouble | None:
        """Show all changes of a dry run; else ask for consent, unless given."""
        if self.options.dry_run:
            self._show()
            return None
        if self.options.yes or not self.anything:
            return None
        try:
            if self.context.screen.confirm(f"Remove {'; '.join(self._summary())}?"):
                return None
        except NoAnswerError:
            return no_terminal("--yes")
        return Trouble(f"you said no; {NOTHING_DONE}")

    @property
    def anything(self) -> bool:
        """Whether there is anything to remove."""
        stale_capacity = self.options.wait and with_capacity(self.facts.nodes)
        return bool(self.found or self.touched or self.file_changes() or stale_capacity)

    @property
    def touched(self) -> tuple[NodeView, ...]:
        """The nodes with our label or annotations."""
        return tuple(
            node for node in self.facts.nodes if node.label or node.annotations
        )

    @property
    def sets_scheduler(self) -> bool:
        """Whether we may have configured this host's kube-scheduler."""
        return self.facts.flavour is not Flavour.MANAGED

    @property
    def other_hosts(self) -> tuple[str, ...]:
        """The other control-plane nodes whose kube-scheduler a Job may have set."""
        facts = self.facts
        if facts.flavour is not Flavour.KUBEADM or not facts.extended:
            return ()
        return tuple(node for node in facts.control_plane if node != facts.here)

    @property
    def plugin(self) -> tuple[Ref, ...]:
        """The device plugin's DaemonSet."""
        return tuple(
            ref
            for ref in self.found
            if ref.kind in WORKLOADS and ref.name == DEVICE_PLUGIN
        )

    @property
    def asking(self) -> tuple[Ref, ...]:
        """The webhook's configurations, by which the API server asks it."""
        return tuple(ref for ref in self.found if ref in CONFIGURATIONS)

    @property
    def others(self) -> tuple[Ref, ...]:
        """All other objects, in the order of deletion."""
        first = (*self.asking, *self.plugin)
        return tuple(ref for ref in self.found if ref not in first)

    def target(self) -> SchedulerTarget:
        """Return which kube-scheduler is restored."""
        return SchedulerTarget(
            self.facts.flavour,
            self.facts.here,
            self.facts.version,
            self.image,
            restart=self.options.restart,
            timeout_s=self.options.timeout_s,
        )

    def file_changes(self) -> tuple[FileChange, ...]:
        """Return what changes in this host's files."""
        if not self.sets_scheduler:
            return ()
        plan = self.context.host(self.target()).restore()
        return () if isinstance(plan, Obstacle) else tuple(plan)

    def _files(self) -> Trouble | None:
        """Refuse if this host's files cannot be restored."""
        if not self.sets_scheduler:
            return None
        plan = self.context.host(self.target()).restore()
        if not isinstance(plan, Obstacle):
            return None
        return Trouble(f"{plan}; {NOTHING_DONE}", exit_code=Exit.REFUSED)

    def _image(self) -> str:
        """Return the image that runs here; any version of it can clean the nodes."""
        bodies = (
            self.context.objects.get(ref) for ref in self.found if ref.kind in WORKLOADS
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
        return found or ["the stale capacity of nodes"]

    def _show(self) -> None:
        """Print every change."""
        screen = self.context.screen
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
            screen.note(f"# A Job also restores kube-scheduler's files on {host}")
        screen.note(f"Dry run: nothing was changed. To do it: {self.options.again()}")


class UninstallSteps:
    """The steps that remove anything; each can be run again."""

    def __init__(self, context: Context, plan: UninstallPlan) -> None:
        self._context = context
        self._screen = context.screen
        self._plan = plan
        self._remains: dict[str, str] = {}

    def steps(self) -> list[Step]:
        """Return the steps in their order."""
        capacity = [Step("the stale capacity of nodes", self.stale_capacity)]
        asking = [Step("the webhook's configurations", self.asking)]
        return [
            *(asking if self._plan.asking else []),
            Step("the device plugins", self.plugins),
            Step("their files on the nodes", self.files),
            *self._scheduler_steps(),
            Step("all other objects", self.objects),
            Step("labels and annotations of nodes", self.nodes),
            *(capacity if self._plan.options.wait else []),
            Step("the final check", self.close),
        ]

    def asking(self) -> Trouble | None:
        """Delete the webhook's configurations."""
        self._screen.begin("Webhook")
        gone = [ref for ref in self._plan.asking if self._context.objects.delete(ref)]
        told = ", ".join(map(str, gone))
        self._screen.say(f"{told} deleted" if gone else "nothing was left to delete")
        return None

    def plugins(self) -> Trouble | None:
        """Delete the device plugins, and wait until the last has ended."""
        self._screen.begin("Plugins")
        return self._delete(self._plan.plugin, DEVICE_PLUGIN)

    def files(self) -> Trouble | None:
        """Remove the device plugins' folders, except those that containers use."""
        held = {one.node for one in self._plan.held}
        nodes = [node.name for node in self._plan.touched if node.label]
        ready = {node.name for node in self._plan.facts.nodes if node.ready}
        clean = [name for name in nodes if name not in held and name in ready]
        self._screen.begin("Files")
        for name in nodes:
            if name in held:
                self._screen.say(
                    f"{name}: /var/lib/vcuda stays, because running containers use its "
                    "files; when they have ended: rm -r /var/lib/vcuda"
                )
            elif name not in clean:
                self._remains[name] = "the node is not Ready"
        context = self._context
        failed = clean_nodes(
            context.objects, clean, self._plan.image, self._screen, context.patience
        )
        self._remains.update(failed)
        done = [name for name in clean if name not in failed]
        if done:
            self._screen.say(f"/var/lib/vcuda removed on {', '.join(done)}")
        return None

    def objects(self) -> Trouble | None:
        """Delete all other objects, and wait for the pods to end."""
        self._screen.begin("Objects")
        return self._delete(self._plan.others, "")

    def nodes(self) -> Trouble | None:
        """Remove our label and annotations from all nodes."""
        self._screen.begin("Nodes")
        for node in read_nodes(self._context.objects):
            if node.label or node.annotations:
                metadata = {
                    "labels": {names.GPU_NODE_LABEL: None},
                    "annotations": dict.fromkeys(node.annotations),
                }
                self._merge(node.name, metadata)
                self._screen.say(f"{node.name}: label and annotations removed")
        return None

    def stale_capacity(self) -> Trouble | None:
        """Wait until kubelet reports capacity 0, and remove it from the nodes."""
        self._screen.begin("Kubelet")
        context = self._context
        left = remove_stale_capacity(context.objects, self._screen, context.patience)
        if not left:
            return None
        why = "; ".join(f"{name} waits for {what}" for name, what in left.items())
        return Trouble(why)

    def close(self) -> Trouble | None:
        """Say what stays, on purpose or not."""
        screen, plan = self._screen, self._plan
        if plan.held:
            screen.note(
                "The pods with cards go on running. A container that restarts from now "
                "on is not admitted, because there is no device plugin."
            )
        still = with_capacity(read_nodes(self._context.objects))
        if still:
            screen.note(
                f"The nodes {', '.join(still)} still list {names.PREFIX}-core and "
                "-memory; kubelet reports capacity 0 for them after five minutes. To "
                "remove these entries too, once the nodes are Ready: "
                f"{plan.options.again('--wait')}"
            )
        if plan.facts.flavour is Flavour.K3S and not plan.options.restart:
            screen.note(
                "k3s reads its files only at its start. Now run:\n"
                "  systemctl restart k3s"
            )
        if self._remains:
            return Trouble(
                "/var/lib/vcuda stays on "
                + ", ".join(f"{name} ({why})" for name, why in self._remains.items()),
                "on these nodes, as root: rm -rf /var/lib/vcuda",
            )
        screen.note("Done: the cluster is as it was before the install.")
        return None

    def _scheduler_steps(self) -> list[Step]:
        """Restore the kube-schedulers, one after another, the leader last."""
        plan = self._plan
        if not plan.sets_scheduler:
            return []
        hosts = sorted(
            [*plan.other_hosts, plan.facts.here],
            key=lambda node: leads(plan.holder, node),
        )
        return [self._scheduler_step(host) for host in hosts]

    def _scheduler_step(self, host: str) -> Step:
        def act() -> Trouble | None:
            self._screen.begin("Scheduler")
            context, target = self._context, self._plan.target()
            if host == self._plan.facts.here:
                return take(context.host(target), self._screen)
            why = context.others(target).run("restore", host, self._screen.say)
            return Trouble(f"on {host}: {why}") if why else None

        return Step(f"kube-scheduler's configuration on {host}", act)

    def _delete(self, refs: Sequence[Ref], name: str) -> Trouble | None:
        """Delete objects, and wait for the pods of that name, or for all of ours."""
        gone = [ref for ref in refs if self._context.objects.delete(ref)]
        left = self._context.patience.until(lambda: self._ending(name), self._screen)
        if left:
            return Trouble("; ".join(f"{one.who} has not ended" for one in left))
        told = (
            ", ".join(map(str, gone)) if len(gone) < _MANY else f"{len(gone)} objects"
        )
        self._screen.say(f"{told} deleted" if gone else "nothing was left to delete")
        return None

    def _ending(self, name: str) -> list[Waiting]:
        """Return the pods that have not ended; delete those on a lost node at once."""
        objects = self._context.objects
        nodes = read_nodes(objects)
        found = []
        for pod in objects.list("v1", "Pod", namespace=SYSTEM, label_selector=OURS):
            ref = Ref.of(pod)
            if name and label(pod, PART_NAME) != name:
                continue
            node = named(nodes, node_of(pod))
            if node is not None and node.ready:
                found.append(Waiting(f"{ref.name} on {node.name}", "its end"))
            else:
                objects.delete(ref, grace_period_s=0)
        return found

    def _merge(self, node: str, metadata: Json) -> None:
        """Patch a node; the deleted annotation guard may deny it for a moment."""
        patience = self._context.patience
        deadline = patience.clock() + GUARD_LINGERS_S
        while True:
            try:
                self._context.objects.merge(
                    Ref("v1", "Node", node), {"metadata": metadata}
                )
            except (Forbidden, Invalid):
                if patience.clock() >= deadline:
                    raise
                patience.pause(patience.look_every_s)
            else:
                return
