"""What speaks for and against installing here. Pure: ``survey`` reads, this judges.

What an installer must be allowed to do, all asked before anything is done.

What speaks for and against a node that was chosen. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import EXPORTER, SYSTEM
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.cluster_facts import NodeView, minor, named, runtime
from gpusharectl.install.manifests import NVIDIA
from gpusharectl.install.options import InstallOptions
from gpusharectl.install.webhook.objects import WebhookThere, is_configuration
from gpusharectl.install.webhook.probe import NAMESPACE
from gpusharectl.kube_scheduler.drift import Flavour


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource, such as ``patch`` on ``daemonsets.apps``."""

    verb: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{where}"


_ALWAYS = (
    Right("list", "nodes"),
    Right("patch", "nodes"),
    Right("list", "pods"),
    Right("create", "pods", SYSTEM),
    Right("delete", "pods", SYSTEM),
    Right("get", "pods/log", SYSTEM),
    Right("list", "events", SYSTEM),
)
_PROBE = Right("patch", "pods", SYSTEM)
"""Of the proof that kube-scheduler asks the extender, which lets its pod through."""
_JOBS = (
    Right("get", "leases.coordination.k8s.io", SYSTEM),
    Right("get", "jobs.batch", SYSTEM),
    Right("create", "jobs.batch", SYSTEM),
    Right("delete", "jobs.batch", SYSTEM),
)
_LEASES = tuple(
    Right(verb, "leases.coordination.k8s.io", SYSTEM) for verb in ("get", "delete")
)
"""The second scheduler leaves one."""
_SECRET = tuple(Right(verb, "secrets", SYSTEM) for verb in ("get", "delete"))
"""The webhook's certificate."""
_TRIAL = Right("create", "pods", NAMESPACE)
"""Of the way to the webhook; one that leads nowhere is taken back."""
_CLASSES = Right("list", "runtimeclasses.node.k8s.io")
"""The webhook is told which of them bring cards."""
STATUS = Right("patch", "nodes/status")
"""Needed only to take out what kubelet keeps at 0."""


def to_install(
    manifests: Iterable[Json], *, probe: bool = False, jobs: bool = False
) -> tuple[Right, ...]:
    """Give the rights that installing these objects takes.

    ``probe`` where a kube-scheduler's configuration is to be proved, ``jobs`` for other
    hosts.
    """
    more = (_PROBE,) if probe else ()
    found = dict.fromkeys(_ALWAYS + more + (_JOBS if jobs else ()))
    for body in manifests:
        for verb in ("get", "create", "patch"):
            found[_right(verb, body)] = None
        if is_configuration(body):
            found |= dict.fromkeys((_TRIAL, _CLASSES, _right("delete", body)))
    return tuple(found)


def to_uninstall(
    manifests: Iterable[Json], *, wait: bool = False, jobs: bool = False
) -> tuple[Right, ...]:
    """Give the rights that taking these objects away takes."""
    more = (STATUS,) if wait else ()
    found = dict.fromkeys(_ALWAYS + _LEASES + _SECRET + more + (_JOBS if jobs else ()))
    for body in manifests:
        for verb in ("list", "delete"):
            found[_right(verb, body)] = None
    return tuple(found)


def to_take_away(refs: Iterable[Ref]) -> tuple[Right, ...]:
    """Give the rights that taking these objects away takes, by their names."""
    found = [
        Right(verb, resource(ref.api_version, ref.kind), ref.namespace)
        for ref in refs
        for verb in ("get", "delete")
    ]
    return tuple(dict.fromkeys(found))


def missing(objects: Objects, rights: Sequence[Right]) -> tuple[Right, ...]:
    """Ask for each right, and give all that we do not have."""
    return tuple(
        one for one in rights if not objects.may(one.verb, one.resource, one.namespace)
    )


def resource(api_version: str, kind: str) -> str:
    """Give a kind's resource as rights name it.

    >>> resource("rbac.authorization.k8s.io/v1", "ClusterRole")
    'clusterroles.rbac.authorization.k8s.io'
    """
    word = kind.lower()
    if word.endswith("y"):
        word = f"{word[:-1]}ies"
    else:
        word += "es" if word.endswith("s") else "s"
    group, slash, _ = api_version.partition("/")
    return f"{word}.{group}" if slash else word


def _right(verb: str, body: Json) -> Right:
    name = resource(body["apiVersion"], body["kind"])
    return Right(verb, name, body["metadata"].get("namespace", ""))


OLDEST = (1, 26)
"""Below it, kubelet's pod resources are not what the device plugin reads."""
NEWEST = (1, 36)
"""What all tests ran with; newer ones are let through with a word."""
GUARD_SINCE = "1.30"


class Weight(StrEnum):
    """How much a finding weighs: a warning is asked about where ``doubt`` is set."""

    OK = "ok"
    WARNING = "warning"
    DOUBT = "doubt"
    REFUSAL = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found, in a sentence; ``cure`` says what to do about a refusal."""

    weight: Weight
    text: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What there is, before anything is done.

    ``here`` is the node that this host is, empty where it is none of this cluster's;
    ``schedulers`` are the control-plane nodes with a kube-scheduler that can be seen;
    ``second``, ``extended`` and ``plugin`` tell what of ours is there already,
    ``images`` what each workload of ours runs, the scheduler's side first, and ``tls``
    whether the extender has certificates; ``runtime_classes`` the names of those that
    bring cards; ``guard`` whether the API server serves
    ValidatingAdmissionPolicies, ``operator`` whether it serves what Prometheus Operator
    reads; ``ui`` whether the extender has its page, ``policy`` the one that it is given
    by name, empty where it has its default; ``webhook`` what of that is there,
    ``by_cert_manager`` whether its certificate is cert-manager's, and ``cert_manager``
    whether the API server then serves what cert-manager reads.
    """

    version: str
    flavour: Flavour
    nodes: tuple[NodeView, ...]
    here: str = ""
    driver_here: bool = False
    missing: tuple[Right, ...] = ()
    schedulers: tuple[str, ...] = ()
    extended: bool = False
    second: bool = False
    plugin: bool = False
    runtime_classes: tuple[str, ...] = ()
    guard: bool = True
    images: Mapping[str, str] = field(default_factory=dict)
    tls: bool = False
    operator: bool = False
    ui: bool = False
    policy: str = ""
    webhook: WebhookThere | None = None
    by_cert_manager: bool = False
    cert_manager: bool = False

    @property
    def control_plane(self) -> tuple[str, ...]:
        """The nodes with the label of a control plane."""
        return tuple(node.name for node in self.nodes if node.control_plane)


def judge_cluster(facts: Facts, choice: InstallOptions) -> list[Finding]:
    """Judge the cluster and this host, before any node is chosen."""
    found = [_version(facts)]
    found += judge_rights(facts)
    found += _schedulers(facts, choice)
    if not choice.second_scheduler:
        found += judge_host(facts)
    if not facts.guard:
        found.append(_no_guard())
    return [*found, *_monitoring(facts, wanted=choice.with_monitoring)]


def refusals(found: Sequence[Finding]) -> list[Finding]:
    """Give the findings that forbid to go on."""
    return [one for one in found if one.weight is Weight.REFUSAL]


def _version(facts: Facts) -> Finding:
    number = minor(facts.version)
    words = f"Kubernetes {facts.version.removeprefix('v')}"
    bounds = f"{dotted(OLDEST)} to {dotted(NEWEST)}"
    if number is None:
        text = f"{words} is no version that we can read; {bounds} are supported"
        return Finding(Weight.WARNING, text)
    if number < OLDEST:
        text = f"{words} is too old: {bounds} are supported"
        return Finding(Weight.REFUSAL, text, "upgrade the cluster first")
    if number > NEWEST:
        text = f"{words} is newer than what was tried, {bounds}"
        return Finding(Weight.WARNING, text)
    nodes = len(facts.control_plane)
    return Finding(
        Weight.OK,
        f"{words} · {facts.flavour} · {nodes} control-plane node"
        f"{'' if nodes == 1 else 's'} · {_runtimes(facts)}",
    )


def judge_rights(facts: Facts) -> list[Finding]:
    """Judge what we may do: all that is missing is named at once."""
    if not facts.missing:
        return [Finding(Weight.OK, "you may do all that is needed")]
    them = ", ".join(map(str, facts.missing))
    cure = (
        "use an administrator's kubeconfig (--kubeconfig, --context), such as "
        "/etc/kubernetes/admin.conf on a kubeadm control plane"
    )
    return [Finding(Weight.REFUSAL, f"you may not {them}", cure)]


def _schedulers(facts: Facts, choice: InstallOptions) -> list[Finding]:
    """Refuse two books for the same cards, and a scheduler that nobody can set."""
    if choice.second_scheduler and facts.extended:
        text = (
            "the default scheduler calls our extender already; a second scheduler "
            "beside it would be two books for the same cards"
        )
        cure = "install without --second-scheduler, or first: gpusharectl uninstall"
        return [Finding(Weight.REFUSAL, text, cure)]
    if not choice.second_scheduler and facts.second:
        text = (
            "the second scheduler is installed here; extending the default one too "
            "would be two books for the same cards"
        )
        cure = "install with --second-scheduler, or first: gpusharectl uninstall"
        return [Finding(Weight.REFUSAL, text, cure)]
    if choice.second_scheduler or facts.flavour is not Flavour.MANAGED:
        return []
    return [_no_scheduler(facts)]


def _no_scheduler(facts: Facts) -> Finding:
    where = ", ".join(facts.schedulers)
    text = "this host runs no kube-scheduler of kubeadm's or k3s's, by its files"
    if where:
        text += f"; the cluster's are on {where}"
        cure = f"run the same command on {facts.schedulers[0]}"
    else:
        cure = "on a managed cluster: gpusharectl install --second-scheduler"
    return Finding(Weight.REFUSAL, text, cure)


def judge_host(facts: Facts, *, leaving: bool = False) -> list[Finding]:
    """Judge whether this host's kube-scheduler is one of this cluster's."""
    if facts.flavour is Flavour.MANAGED:
        return [_no_scheduler(facts)] if leaving and facts.extended else []
    if facts.flavour is Flavour.K3S and len(facts.control_plane) > 1:
        return [*_this_host(facts, leaving=leaving), _each_server(facts)]
    return _this_host(facts, leaving=leaving)


def _each_server(facts: Facts) -> Finding:
    others = ", ".join(name for name in facts.control_plane if name != facts.here)
    text = f"k3s: each server has its own files; run the same command on {others} too"
    return Finding(Weight.WARNING, text)


def _this_host(facts: Facts, *, leaving: bool) -> list[Finding]:
    node = named(facts.nodes, facts.here)
    names = ", ".join(one.name for one in facts.nodes) or "none"
    if node is None:
        text = (
            "this host is no node of the cluster that your kubeconfig names (its "
            f"nodes: {names}); is it the right context?"
        )
        cure = "choose the cluster with --kubeconfig and --context, or say --this-node"
        return [Finding(Weight.REFUSAL, text, cure)]
    if not node.control_plane and not leaving:
        label = "node-role.kubernetes.io/control-plane"
        text = f"node {node.name} has no label {label}, by which the extender finds it"
        return [
            Finding(Weight.REFUSAL, text, f"kubectl label node {node.name} {label}=")
        ]
    return []


def _no_guard() -> Finding:
    return Finding(
        Weight.WARNING,
        f"before Kubernetes {GUARD_SINCE} there are no ValidatingAdmissionPolicies: "
        "whoever may patch a pod may forge its placement",
    )


def _monitoring(facts: Facts, *, wanted: bool) -> list[Finding]:
    """Say what becomes of the monitoring; nothing about it is a reason to refuse."""
    exporter = facts.images.get(EXPORTER, "")
    if exporter and not wanted:
        text = (
            f"monitoring is here, and stays as it is, at {exporter}; "
            "--with-monitoring updates it, with --image its image too"
        )
    elif wanted and not facts.operator:
        text = (
            "no Prometheus Operator is here, so no ServiceMonitor and no rules are "
            "made: docs/install.md says how Prometheus finds the metrics without"
        )
    else:
        return []
    return [Finding(Weight.OK, text)]


def _runtimes(facts: Facts) -> str:
    return ", ".join(dict.fromkeys(map(runtime, facts.nodes))) or "no node"


def dotted(version: tuple[int, int]) -> str:
    """Write a version as people do.

    >>> dotted((1, 36))
    '1.36'
    """
    return ".".join(map(str, version))


def judge_nodes(
    facts: Facts, chosen: Sequence[str], *, second_scheduler: bool = False
) -> list[Finding]:
    """Judge the nodes that were chosen."""
    found = _homeless(facts, chosen) if second_scheduler else []
    for name in chosen:
        node = named(facts.nodes, name)
        if node is not None:
            found += _node(node, facts)
    return found


def _homeless(facts: Facts, chosen: Sequence[str]) -> list[Finding]:
    """Refuse a second kube-scheduler that no node would take: it stays off cards."""
    if any(
        node.takes_scheduler or not (node.labelled or node.name in chosen)
        for node in facts.nodes
    ):
        return []
    return [
        Finding(
            Weight.REFUSAL,
            "every node shares its cards, and a second kube-scheduler stays off those, "
            "since its token may do more than any that is there",
            "add a node without cards, or let it run beside them: kubectl label node "
            f"{chosen[0]} {names.SCHEDULER_NODE_LABEL}=true",
        )
    ]


def _node(node: NodeView, facts: Facts) -> list[Finding]:
    found = []
    kubelet = minor(node.kubelet)
    if kubelet is not None and kubelet < OLDEST:
        text = f"node {node.name}: kubelet {node.kubelet} is too old"
        cure = f"upgrade it to {dotted(OLDEST)} or newer, or leave the node out"
        found.append(Finding(Weight.REFUSAL, text, cure))
    if node.offered and not facts.plugin:
        them = ", ".join(node.offered)
        text = f"node {node.name}: another device plugin offers {them} there already"
        cure = "take that plugin away first, or leave the node out of --nodes"
        found.append(Finding(Weight.REFUSAL, text, cure))
    if node.others:
        found.append(_other_plugin(node))
    if not node.ready:
        text = f"node {node.name} is not Ready; its device plugin starts when it is"
        found.append(Finding(Weight.WARNING, text))
    found += _driver(node, facts)
    return found or [_well(node)]


def _other_plugin(node: NodeView) -> Finding:
    them = ", ".join(node.others)
    return Finding(
        Weight.DOUBT,
        f"node {node.name}: another device plugin hands out the same cards ({them}); "
        "pods of both would share them without either knowing. Move over by taking "
        "that plugin from the node",
    )


def _driver(node: NodeView, facts: Facts) -> list[Finding]:
    found = []
    if node.name == facts.here and not facts.driver_here and not node.cards:
        text = f"node {node.name}: no NVIDIA driver is loaded on this host"
        found.append(Finding(Weight.WARNING, text))
    elif not node.signs and node.name != facts.here:
        text = f"node {node.name}: nothing there speaks of a GPU; we shall see"
        found.append(Finding(Weight.WARNING, text))
    nvidia = any("nvidia" in one for one in node.handlers)
    if node.handlers and not nvidia:
        text = (
            f"node {node.name}: {runtime(node)} has no runtime called nvidia; is the "
            "NVIDIA container toolkit set up there?"
        )
        found.append(Finding(Weight.WARNING, text))
    elif nvidia and NVIDIA not in facts.runtime_classes:
        text = (
            f"node {node.name} has the nvidia runtime, but the cluster no RuntimeClass "
            "nvidia; pods reach it only where it is the default runtime"
        )
        found.append(Finding(Weight.WARNING, text))
    return found


def _well(node: NodeView) -> Finding:
    signs = ", ".join(node.signs) or "the driver is loaded"
    return Finding(Weight.OK, f"node {node.name}: {signs} · {runtime(node)}")
