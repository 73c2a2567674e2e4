"""``gpusharectl uninstall``, step by step: the order of ``install``, backwards.

The API server stops asking the webhook, without which it would create no pod with
cards. Then the device plugins go, so that no card is offered that nobody places pods
on; then kube-scheduler's configuration, which must not name an extender that is gone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.codec import is_ours, read_pod_record
from gpushare.kube.errors import Forbidden, Invalid, NotFound
from gpushare.kube.facts import OURS, SYSTEM, full_name, is_part, is_terminal, node_of
from gpushare.kube.json_reader import Malformed
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.words import counted
from gpusharectl.installer.context import Context
from gpusharectl.installer.dra.apply import delete_slices
from gpusharectl.installer.dra.objects import (
    CLASS,
    CONFIGURATION,
    RIGHTS_BACK,
    judge_used,
    list_used_claims,
    nodes_with_claims,
)
from gpusharectl.installer.hosts import HostsPlan
from gpusharectl.installer.kube_scheduler.files import STAYS, kept_configuration
from gpusharectl.installer.kube_scheduler.host import restore_scheduler
from gpusharectl.installer.kube_scheduler.this_host import Flavour, read_flavour
from gpusharectl.installer.manifests import ALL, PLUGIN, WORKLOADS, image_of
from gpusharectl.installer.nodes.cleanup import (
    FOLDER,
    clean_nodes,
    remove_stale_capacity,
)
from gpusharectl.installer.nodes.facts import (
    LABELLED,
    SurveyedNode,
    find_node,
    read_nodes,
)
from gpusharectl.installer.options import UninstallOptions
from gpusharectl.installer.preflight import (
    judge_host,
    judge_owners,
    judge_rights,
    weigh_findings,
)
from gpusharectl.installer.progress import (
    NOTHING_DONE,
    Exit,
    InstallError,
    InstallStep,
    Waiting,
    run_steps,
)
from gpusharectl.installer.rights import LEFTOVERS, STATUS, needed_rights
from gpusharectl.installer.rollout import NOTHING_LEFT, prune_step
from gpusharectl.installer.survey import owned_objects, served_objects, survey_cluster
from gpusharectl.installer.webhook.objects import CONFIGURATIONS, SECRETS

_SECOND_LEASE = Ref("coordination.k8s.io/v1", "Lease", "vcuda-scheduler", SYSTEM)
"""The second scheduler creates it itself, so it has no label of gpushare."""
GUARD_LINGERS_S = 10.0
"""The API server notices a moment later that a policy is deleted."""
_LAST = ("ClusterRole", "Role", "ServiceAccount")
"""A binding is deleted before what it binds, so that none is left over."""
_MADE_HERE = (("batch/v1", "Job", SYSTEM), ("v1", "Pod", SYSTEM))
_REMOVE = f"rm -rf {FOLDER}"
_THERE_FIRST = (
    "remove it there first (docs/install.md), then the same command for all that is "
    "left"
)
_SHOWN = 20
_MANY = 4


def run_uninstall(context: Context, options: UninstallOptions) -> Exit:
    """Remove everything, or with ``dry_run`` show what that would change."""
    plan = UninstallPlan(context, options)
    first = [
        InstallStep("the checks", plan.check, "Checking"),
        InstallStep("the check for pods with cards", plan.refuse_pods_with_cards),
        InstallStep("the confirmation", plan.confirm),
    ]
    code = run_steps(first, context.screen, plan.again)
    if code is not Exit.DONE or options.dry_run:
        return code
    if not plan.summary():
        context.screen.note("Nothing of gpushare is installed here.")
        return Exit.DONE
    return run_steps(plan.steps(), context.screen, plan.again, begun=True)


def find_installed(objects: Objects, manifests: Sequence[Json]) -> Mapping[Ref, Json]:
    """Return all objects of gpushare in the order of deletion, workloads first.

    They are found by their names in the manifests, and by gpushare's label, which
    those of older versions have too. The pods of workloads are deleted with these.
    """
    refs = [*map(Ref.of, manifests), _SECOND_LEASE, *SECRETS]
    read = {ref: objects.get(ref) for ref in dict.fromkeys(refs)}
    bodies = {ref: body for ref, body in read.items() if body is not None}
    kinds = [
        (ref.api_version, ref.kind, ref.namespace) for ref in map(Ref.of, manifests)
    ]
    for api_version, kind, namespace in dict.fromkeys([*kinds, *_MADE_HERE]):
        try:
            labelled = objects.list(
                api_version, kind, namespace=namespace, label_selector=OURS
            )
        except NotFound:
            # An old cluster has no admission policies.
            continue
        bodies |= {
            Ref.of(body): body
            for body in labelled
            if not body["metadata"].get("ownerReferences")
        }
    return {ref: bodies[ref] for ref in sorted(bodies, key=_rank)}


def _rank(ref: Ref) -> tuple[int, str, str, str]:
    rank = 0 if ref.kind in WORKLOADS else 2 if ref.kind in _LAST else 1
    return (rank, "" if rank == 0 else ref.kind, ref.name, ref.namespace)


def pods_with_cards(pods: Iterable[Json]) -> list[tuple[str, str]]:
    """Return the node and name of bound pods with cards that have not ended, sorted."""
    return sorted(
        (node_of(pod), full_name(pod))
        for pod in pods
        if node_of(pod) and not is_terminal(pod) and _asks(pod)
    )


def _asks(pod: Json) -> bool:
    """Return whether a pod requests cards; a malformed one counts as requesting."""
    try:
        return is_ours(pod) and read_pod_record(pod).asks
    except Malformed:
        return True


@dataclass
class UninstallPlan(HostsPlan):
    """The plan of an uninstall, and its steps; each can be run again."""

    options: UninstallOptions
    installed: tuple[Ref, ...] = ()
    """All objects of gpushare in the order of deletion."""
    with_cards: Sequence[tuple[str, str]] = ()
    """The pods that hold cards now, after their nodes."""
    nodes_of_claims: frozenset[str] = frozenset()
    """The nodes whose pods use claims now; "" is one that is not known."""
    has_claims: bool = False
    """Whether the API server serves ResourceClaims."""
    image: str = ""
    """The image of the pods that clean the nodes."""
    remains: dict[str, str] = field(default_factory=dict)
    """The nodes that still have the device plugin's folder, and why."""

    def check(self) -> None:
        """Find what is installed, and refuse what cannot work."""
        context, options = self.context, self.options
        objects = context.objects
        loaded = [
            body for name in ALL for body in context.load(name, image=options.image)
        ]
        self.manifests = served_objects(objects, loaded)
        kubeadm = read_flavour(context.files) is Flavour.KUBEADM
        more = (*LEFTOVERS, STATUS) if options.wait else LEFTOVERS
        self.has_claims = any(Ref.of(body) == CLASS for body in self.manifests)
        if self.has_claims:
            more += RIGHTS_BACK
        refs = map(Ref.of, self.manifests)
        rights = needed_rights(refs, "get", "list", "delete", more=more, jobs=kubeadm)
        facts = self.facts = survey_cluster(
            objects, context.files, rights, this_node=options.this_node
        )
        findings = [judge_rights(facts), *judge_host(facts, leaving=True)]
        findings += judge_owners(facts.installed.owned, _THERE_FIRST)
        weigh_findings(findings, self.screen)
        # Pods use claims also after the driver was switched off.
        if self.has_claims and not options.force:
            forced = replace(options, force=True).again()
            weigh_findings(judge_used(list_used_claims(objects), forced), self.screen)
        there = find_installed(objects, self.manifests)
        # Also without workloads, as a release that has failed.
        weigh_findings(
            judge_owners(owned_objects(there.values()), _THERE_FIRST), self.screen
        )
        self.installed = tuple(there)
        # Any version of the image can clean the nodes.
        running = facts.installed.image or image_of(self.manifests)
        self.image = options.image or running
        self.set_target(self.image)
        if facts.flavour is not Flavour.MANAGED:
            self.keep_files(self.host.plan_restore())
            # The extender may be gone, and kube-scheduler still told to call it.
            extended = facts.control_plane if facts.installed.extended else ()
            self.find_hosts((*extended, *facts.stamped))

    def refuse_pods_with_cards(self) -> None:
        """Refuse while pods hold cards, unless forced."""
        objects = self.context.objects
        self.with_cards = pods_with_cards(objects.list("v1", "Pod"))
        self.nodes_of_claims = (
            nodes_with_claims(objects) if self.has_claims else frozenset()
        )
        if not self.with_cards:
            self.screen.say("no pod holds a card")
            return
        number = counted(len(self.with_cards), "pod")
        lines = [f"  {name} on {node}" for node, name in self.with_cards[:_SHOWN]]
        if len(self.with_cards) > _SHOWN:
            lines.append(f"  and {len(self.with_cards) - _SHOWN} more")
        self.screen.say("\n".join([f"{number} with cards:", *lines]))
        if not self.options.force:
            forced = replace(self.options, force=True).again()
            raise InstallError(
                f"{number} with cards would lose their device plugin; {NOTHING_DONE}",
                f"delete them first, or:\n  {forced}",
                Exit.REFUSED,
            )
        self.screen.say(
            "They go on running. A container that restarts later is not admitted, "
            "because there is no device plugin. Their placements stay in their "
            "annotations."
        )

    @property
    def _touched(self) -> tuple[SurveyedNode, ...]:
        """The nodes with gpushare's labels or annotations."""
        return tuple(node for node in self.facts.nodes if node.marks.any_written)

    def summary(self) -> list[str]:
        """Return what is removed, for a question; empty if nothing is installed."""
        marked = ", ".join(node.name for node in self._touched)
        stale = self.options.wait and any(
            node.marks.capacity for node in self.facts.nodes
        )
        others = ", ".join(self.other_hosts)
        return [
            *([f"{len(self.installed)} objects"] if self.installed else []),
            *([f"labels, annotations and files on {marked}"] if marked else []),
            *(f"gpushare's entries in {change.path}" for change in self.file_changes),
            *self.restart_lines(),
            *([f"kube-scheduler's configuration on {others}"] if others else []),
            *(["the stale capacity of nodes"] if stale else []),
        ]

    def confirm(self) -> None:
        """Show all changes of a dry run; else ask for consent."""
        shown = [f"- {ref}" for ref in self.installed]
        for node in self._touched:
            label = [LABELLED] if node.marks.label else []
            label += [f"label {names.ISOLATION}"] if node.marks.isolation else []
            notes = [f"annotation {key}" for key in node.marks.annotations]
            whats = (*label, *notes, f"the folder {FOLDER}")
            shown += [f"- Node {node.name}: {what}" for what in whats]
        self.agree("Removes", self.summary(), shown)

    def steps(self) -> list[InstallStep]:
        """Return the steps in their order."""
        asking = [ref for ref in self.installed if ref in CONFIGURATIONS]
        plugin = [ref for ref in self.installed if ref == PLUGIN]
        claims = {CLASS, CONFIGURATION} & {*self.installed}
        others = (*asking, *plugin, CONFIGURATION)
        rest = [ref for ref in self.installed if ref not in others]
        slices = InstallStep(
            "the ResourceSlices", lambda: delete_slices(self.context), "DRA"
        )
        name = "the webhook's configurations"
        first = prune_step(self.context, asking, name, "Webhook")
        here = partial(restore_scheduler, screen=self.screen)
        forget = partial(remove_stale_capacity, self.context)
        capacity = InstallStep("the stale capacity of nodes", forget, "Kubelet")
        return [
            *([first] if asking else []),
            InstallStep(
                "the device plugins",
                lambda: self._delete(plugin, PLUGIN.name),
                "Plugins",
            ),
            *([slices] if claims or self.facts.installed.dra else []),
            InstallStep("their files on the nodes", self.remove_files, "Files"),
            *(self.host_step(node, "restore", here) for node in self.hosts),
            InstallStep("all other objects", lambda: self._delete(rest), "Objects"),
            InstallStep("labels and annotations of nodes", self.unmark_nodes, "Nodes"),
            *([capacity] if self.options.wait else []),
            InstallStep("the final check", self.report_rest),
        ]

    def remove_files(self) -> None:
        """Remove the device plugins' folders, except those that containers use."""
        context, clean = self.context, []
        in_use = {node for node, _ in self.with_cards} | self.nodes_of_claims
        for node in self._touched:
            if not node.marks.label:
                continue
            if node.name in in_use or "" in in_use:
                self.screen.say(
                    f"{node.name}: {FOLDER} stays, because running containers use its "
                    f"files; when they have ended: {_REMOVE}"
                )
            elif not node.ready:
                self.remains[node.name] = "the node is not Ready"
            else:
                clean.append(node.name)
        self.remains |= clean_nodes(
            context, clean, self.image, self.facts.installed.pull_secrets
        )
        done = [name for name in clean if name not in self.remains]
        if done:
            self.screen.say(f"{FOLDER} removed on {', '.join(done)}")

    def unmark_nodes(self) -> None:
        """Remove gpushare's labels and annotations from all nodes."""
        for node in read_nodes(self.context.objects):
            if node.marks.any_written:
                metadata = {
                    "labels": {names.GPU_NODE_LABEL: None, names.ISOLATION: None},
                    "annotations": dict.fromkeys(node.marks.annotations),
                }
                self._merge(node.name, metadata)
                self.screen.say(f"{node.name}: labels and annotations removed")

    def report_rest(self) -> None:
        """Say what stays, on purpose or not."""
        nodes = read_nodes(self.context.objects)
        if self.with_cards:
            self.screen.note(
                "The pods with cards go on running. A container that restarts from now "
                "on is not admitted, because there is no device plugin."
            )
        still = ", ".join(node.name for node in nodes if node.marks.capacity)
        if still:
            self.screen.note(
                f"The nodes {still} still list {names.PREFIX}-core and -memory; "
                "kubelet reports capacity 0 for them after five minutes. To remove "
                "these entries too, once the nodes are Ready:"
            )
            self.screen.show(f"  {replace(self.options, wait=True).again()}")
        self.note_restart()
        if self.remains:
            nodes_with_folder = ", ".join(
                f"{name} ({why})" for name, why in self.remains.items()
            )
            remedy = f"on these nodes, as root: {_REMOVE}"
            raise InstallError(f"{FOLDER} stays on {nodes_with_folder}", remedy)
        kept = kept_configuration(self.file_changes)
        used = ", ".join(sorted({node for node, _ in self.with_cards}))
        stays = [
            *([f"{kept}, which {STAYS}"] if kept else []),
            *([f"{FOLDER} on {used}, which containers use"] if used else []),
        ]
        but = f", except {'; '.join(stays)}" if stays else ""
        self.screen.note(f"Done: the cluster is as it was before the install{but}.")

    def _delete(self, refs: Sequence[Ref], name: str = "") -> None:
        """Delete objects, and wait for the pods of that name, or for all."""
        gone = [ref for ref in refs if self.context.objects.delete(ref)]
        waits = self.context.until(lambda: self._ending(name))
        if waits:
            raise InstallError("; ".join(f"{wait.who} has not ended" for wait in waits))
        few = len(gone) < _MANY
        deleted = ", ".join(map(str, gone)) if few else f"{len(gone)} objects"
        self.screen.say(f"{deleted} deleted" if gone else NOTHING_LEFT)

    def _ending(self, name: str) -> list[Waiting]:
        """Return the pods that have not ended; delete those on a lost node at once."""
        objects = self.context.objects
        nodes = read_nodes(objects)
        waits = []
        for pod in objects.list("v1", "Pod", namespace=SYSTEM, label_selector=OURS):
            ref = Ref.of(pod)
            if name and not is_part(pod, name):
                continue
            node = find_node(nodes, node_of(pod))
            if node is not None and node.ready:
                waits.append(Waiting(f"{ref.name} on {node.name}", "its end"))
            else:
                objects.delete(ref, grace_period_s=0)
        return waits

    def _merge(self, node: str, metadata: Json) -> None:
        """Patch a node; the deleted annotation guard may deny it for a moment."""

        def look() -> list[Waiting]:
            try:
                ref = Ref("v1", "Node", node)
                self.context.objects.merge(ref, {"metadata": metadata})
            except (Forbidden, Invalid) as error:
                return [Waiting(f"the patch of {node}", str(error))]
            return []

        waits = self.context.until(look, GUARD_LINGERS_S)
        if waits:
            raise InstallError(str(waits[0]))
