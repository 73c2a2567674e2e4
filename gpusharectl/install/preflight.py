"""Judge what speaks for and against an install. Pure: ``survey`` reads, this judges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpushare.kube import names
from gpushare.kube.facts import EXPORTER, WEBHOOK
from gpusharectl.install.cluster_facts import NodeView, minor, named, runtime
from gpusharectl.install.manifests import NVIDIA
from gpusharectl.install.options import InstallOptions
from gpusharectl.install.survey import Facts
from gpusharectl.install.webhook.objects import CERTIFICATE, InstalledWebhook
from gpusharectl.kube_scheduler.drift import Flavour

OLDEST = (1, 26)
"""Older kubelets do not report pod resources as the device plugin needs them."""
NEWEST = (1, 36)
"""The version of all tests; newer versions are accepted with a warning."""
GUARD_SINCE = "1.30"
WEBHOOK_OLDEST = (1, 30)
"""Older API servers have no matchConditions: they would ask about every pod, and create
none while no webhook answers."""
WEBHOOK_REPLICAS = 2
"""As the manifest has it."""


class Weight(StrEnum):
    """How much a finding matters: a ``doubt`` is a warning to be confirmed."""

    OK = "ok"
    WARNING = "warning"
    DOUBT = "doubt"
    REFUSAL = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the checks, in a sentence; ``remedy`` belongs to a refusal."""

    weight: Weight
    text: str
    remedy: str = ""


def refusals(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings that forbid the install."""
    return [one for one in found if one.weight is Weight.REFUSAL]


def judge_cluster(facts: Facts, options: InstallOptions) -> list[Finding]:
    """Judge the cluster and this host, before any node is chosen."""
    found = [_version(facts), *judge_rights(facts), *_schedulers(facts, options)]
    if not options.second_scheduler:
        found += judge_host(facts)
    if not facts.guard:
        text = (
            f"before Kubernetes {GUARD_SINCE} there are no "
            "ValidatingAdmissionPolicies: whoever may patch pods can forge a placement"
        )
        found.append(Finding(Weight.WARNING, text))
    return [*found, *_monitoring(facts, wanted=options.with_monitoring)]


def _version(facts: Facts) -> Finding:
    number = minor(facts.version)
    words = f"Kubernetes {facts.version.removeprefix('v')}"
    bounds = f"{dotted(OLDEST)} to {dotted(NEWEST)} are supported"
    if number is None:
        return Finding(Weight.WARNING, f"{words} is an unknown version; {bounds}")
    if number < OLDEST:
        text = f"{words} is too old: {bounds}"
        return Finding(Weight.REFUSAL, text, "upgrade the cluster first")
    if number > NEWEST:
        text = f"{words} is newer than the tested versions; {bounds}"
        return Finding(Weight.WARNING, text)
    nodes = len(facts.control_plane)
    runtimes = ", ".join(dict.fromkeys(map(runtime, facts.nodes))) or "no node"
    return Finding(
        Weight.OK,
        f"{words} · {facts.flavour} · {nodes} control-plane node"
        f"{'' if nodes == 1 else 's'} · {runtimes}",
    )


def judge_rights(facts: Facts) -> list[Finding]:
    """Judge our rights; all missing ones are named at once."""
    if not facts.missing:
        return [Finding(Weight.OK, "you have all needed rights")]
    them = ", ".join(map(str, facts.missing))
    remedy = (
        "use an administrator's kubeconfig (--kubeconfig, --context), such as "
        "/etc/kubernetes/admin.conf on a kubeadm control plane"
    )
    return [Finding(Weight.REFUSAL, f"you may not {them}", remedy)]


def _schedulers(facts: Facts, options: InstallOptions) -> list[Finding]:
    """Refuse two schedulers for the same cards, and one that cannot be set up here."""
    if options.second_scheduler and facts.extended:
        text = (
            "the default scheduler calls our extender already; a second scheduler "
            "beside it would place pods on the same cards without knowing of the first"
        )
        remedy = "install without --second-scheduler, or first: gpusharectl uninstall"
        return [Finding(Weight.REFUSAL, text, remedy)]
    if not options.second_scheduler and facts.second:
        text = (
            "the second scheduler is installed here; the default scheduler with our "
            "extender would place pods on the same cards without knowing of it"
        )
        remedy = "install with --second-scheduler, or first: gpusharectl uninstall"
        return [Finding(Weight.REFUSAL, text, remedy)]
    if options.second_scheduler or facts.flavour is not Flavour.MANAGED:
        return []
    return [_no_scheduler(facts)]


def _no_scheduler(facts: Facts) -> Finding:
    where = ", ".join(facts.schedulers)
    text = "this host runs no kube-scheduler of kubeadm or k3s, according to its files"
    if where:
        text += f"; the cluster's kube-scheduler runs on {where}"
        remedy = f"run the same command on {facts.schedulers[0]}"
    else:
        remedy = "on a managed cluster: gpusharectl install --second-scheduler"
    return Finding(Weight.REFUSAL, text, remedy)


def judge_host(facts: Facts, *, leaving: bool = False) -> list[Finding]:
    """Judge whether this host's kube-scheduler belongs to this cluster."""
    if facts.flavour is Flavour.MANAGED:
        return [_no_scheduler(facts)] if leaving and facts.extended else []
    found = _this_host(facts, leaving=leaving)
    if facts.flavour is Flavour.K3S and len(facts.control_plane) > 1:
        others = ", ".join(name for name in facts.control_plane if name != facts.here)
        text = f"k3s: each server has its own files; also run this command on {others}"
        found.append(Finding(Weight.WARNING, text))
    return found


def _this_host(facts: Facts, *, leaving: bool) -> list[Finding]:
    node = named(facts.nodes, facts.here)
    if node is None:
        them = ", ".join(one.name for one in facts.nodes) or "none"
        text = (
            "this host is not a node of the cluster in your kubeconfig (its nodes: "
            f"{them}); is this the right context?"
        )
        remedy = (
            "choose the cluster with --kubeconfig and --context, or use --this-node"
        )
        return [Finding(Weight.REFUSAL, text, remedy)]
    if not node.control_plane and not leaving:
        label = "node-role.kubernetes.io/control-plane"
        text = f"node {node.name} lacks the label {label}, which the extender needs"
        return [
            Finding(Weight.REFUSAL, text, f"kubectl label node {node.name} {label}=")
        ]
    return []


def _monitoring(facts: Facts, *, wanted: bool) -> list[Finding]:
    """Report on the monitoring; it is never a reason to refuse."""
    exporter = facts.images.get(EXPORTER, "")
    if exporter and not wanted:
        text = (
            f"monitoring is installed and stays unchanged, with image {exporter}; "
            "--with-monitoring updates it, with --image its image too"
        )
    elif wanted and not facts.operator:
        text = (
            "Prometheus Operator is not installed, so no ServiceMonitor and no rules "
            "are created; docs/install.md says how Prometheus finds the metrics "
            "without it"
        )
    else:
        return []
    return [Finding(Weight.OK, text)]


def dotted(version: tuple[int, int]) -> str:
    """Return a version as people write it.

    >>> dotted((1, 36))
    '1.36'
    """
    return ".".join(map(str, version))


def judge_kept(facts: Facts, options: InstallOptions) -> list[Finding]:
    """Report what stays because no option says anything of it."""
    found = []
    going = {EXPORTER} if not options.with_monitoring else set()
    going |= {WEBHOOK} if options.webhook.wanted is False else set()
    images = {name: image for name, image in facts.images.items() if name not in going}
    if images and not options.image:
        found.append(_images(images))
    if facts.tls and options.tls is None:
        found.append("the extender has TLS and keeps it; --no-tls removes it")
    if facts.ui and options.ui is None:
        found.append("the extender serves its page and keeps it; --no-ui removes it")
    if facts.policy and not options.policy:
        found.append(f"the policy stays {facts.policy}; --policy changes it")
    return [Finding(Weight.OK, text) for text in found]


def _images(running: Mapping[str, str]) -> str:
    first, *others = dict.fromkeys(running.values())
    if not others:
        return f"the image stays {first}; --image changes it"
    them = ", ".join(f"{name} {image}" for name, image in running.items())
    return f"the images stay: {them}; --image changes all of them"


def judge_webhook(facts: Facts, options: InstallOptions) -> list[Finding]:
    """Judge what is wanted of the webhook, and report what stays."""
    wanted, installed = options.webhook.wanted, facts.webhook
    number = minor(facts.version)
    if wanted is False:
        text = "the webhook is removed; pods that it has changed stay as they are"
        return [Finding(Weight.OK, text)] if installed else []
    if (wanted or installed) and number and number < WEBHOOK_OLDEST:
        text = (
            f"the webhook needs Kubernetes {dotted(WEBHOOK_OLDEST)} or newer, and this "
            f"is {facts.version.removeprefix('v')}: the API server would ask it about "
            "every pod"
        )
        option = "with --no-webhook" if installed else "without --with-webhook"
        return [Finding(Weight.REFUSAL, text, f"install {option}")]
    found = _without(options) if installed is None else _staying(installed, options)
    return [*found, *_certificate(facts)]


def _staying(installed: InstalledWebhook, options: InstallOptions) -> list[Finding]:
    found = []
    if options.webhook.wanted is None:
        found.append("the webhook is installed and stays; --no-webhook removes it")
    settled = options.webhook.with_preserved(installed.settings).settings()
    kept = [
        f"{name}={text}"
        for name, text in settled.items()
        if installed.settings.get(name) == text
    ]
    if kept:
        found.append(f"these settings of the webhook stay: {', '.join(kept)}")
    if installed.replicas == 0:
        found.append(f"the webhook has 0 replicas and gets {WEBHOOK_REPLICAS} again")
    elif installed.replicas not in (None, WEBHOOK_REPLICAS):
        found.append(f"the webhook's number of replicas stays {installed.replicas}")
    return [Finding(Weight.OK, text) for text in found]


def _without(options: InstallOptions) -> list[Finding]:
    settling = options.webhook.settling
    if options.webhook.wanted or not settling:
        return []
    them = ", ".join(settling)
    is_are = "is a setting" if len(settling) == 1 else "are settings"
    text = f"{them} {is_are} of the webhook, which is not installed"
    return [Finding(Weight.REFUSAL, text, "add --with-webhook")]


def _certificate(facts: Facts) -> list[Finding]:
    """Leave the certificate to cert-manager, if that is there to renew it."""
    if not facts.by_cert_manager:
        return []
    if facts.cert_manager:
        text = "cert-manager makes the webhook's certificate, and goes on doing so"
        return [Finding(Weight.OK, text)]
    text = (
        "cert-manager made the webhook's certificate, but it is no longer installed: "
        f"the API server does not know {CERTIFICATE.kind} of "
        f"{CERTIFICATE.api_version}. Nobody would renew the certificate"
    )
    remedy = (
        "install cert-manager again; or let the installer make the certificate: "
        "install with --no-webhook, then with --with-webhook"
    )
    return [Finding(Weight.REFUSAL, text, remedy)]


def judge_nodes(
    facts: Facts, chosen: Sequence[str], *, second_scheduler: bool = False
) -> list[Finding]:
    """Judge the chosen nodes."""
    found = _no_room(facts, chosen) if second_scheduler else []
    for name in chosen:
        node = named(facts.nodes, name)
        if node is not None:
            found += _node(node, facts)
    return found


def _no_room(facts: Facts, chosen: Sequence[str]) -> list[Finding]:
    """Refuse a second kube-scheduler if every node shares its cards."""
    if any(
        node.takes_scheduler or not (node.labelled or node.name in chosen)
        for node in facts.nodes
    ):
        return []
    return [
        Finding(
            Weight.REFUSAL,
            "every node shares its cards, and the second kube-scheduler does not run "
            "on such nodes, because its token has more rights than any other there",
            "add a node without cards, or allow it beside them: kubectl label node "
            f"{chosen[0]} {names.SCHEDULER_NODE_LABEL}=true",
        )
    ]


def _node(node: NodeView, facts: Facts) -> list[Finding]:
    found = []
    kubelet = minor(node.kubelet)
    if kubelet is not None and kubelet < OLDEST:
        text = f"node {node.name}: kubelet {node.kubelet} is too old"
        remedy = f"upgrade it to {dotted(OLDEST)} or newer, or leave the node out"
        found.append(Finding(Weight.REFUSAL, text, remedy))
    if node.offered and not facts.plugin:
        them = ", ".join(node.offered)
        text = f"node {node.name}: another device plugin already offers {them}"
        remedy = "remove that plugin first, or leave the node out of --nodes"
        found.append(Finding(Weight.REFUSAL, text, remedy))
    if node.others:
        text = (
            f"node {node.name}: another device plugin offers the same cards "
            f"({', '.join(node.others)}); pods of both would use them without knowing "
            "of each other. To move over, remove that plugin from the node"
        )
        found.append(Finding(Weight.DOUBT, text))
    if not node.ready:
        text = f"node {node.name} is not Ready; its device plugin starts when it is"
        found.append(Finding(Weight.WARNING, text))
    found += _driver(node, facts)
    signs = ", ".join(node.signs) or "the driver is loaded"
    well = Finding(Weight.OK, f"node {node.name}: {signs} · {runtime(node)}")
    return found or [well]


def _driver(node: NodeView, facts: Facts) -> list[Finding]:
    found = []
    if node.name == facts.here and not facts.driver_here and not node.cards:
        found.append(f"node {node.name}: no NVIDIA driver is loaded on this host")
    elif not node.signs and node.name != facts.here:
        found.append(f"node {node.name} shows no sign of a GPU")
    nvidia = any("nvidia" in one for one in node.handlers)
    if node.handlers and not nvidia:
        found.append(
            f"node {node.name}: {runtime(node)} has no runtime called nvidia; is the "
            "NVIDIA container toolkit configured there?"
        )
    elif nvidia and NVIDIA not in facts.runtime_classes:
        found.append(
            f"node {node.name} has the nvidia runtime, but the cluster has no "
            "RuntimeClass nvidia; pods get it only where it is the default runtime"
        )
    return [Finding(Weight.WARNING, text) for text in found]
