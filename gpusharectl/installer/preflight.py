"""Check whether an installation can succeed; return findings.

Pure, except ``weigh_findings``, which shows them and refuses.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpushare.kube import names
from gpushare.kube.facts import CONTROL_PLANE_LABEL, EXPORTER, WEBHOOK
from gpushare.kube.words import counted, listed
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.manifests import NVIDIA
from gpusharectl.installer.nodes.facts import SurveyedNode, find_node, minor_version
from gpusharectl.installer.options import (
    NO_TIER,
    PRELOAD,
    SHARE,
    InstallOptions,
)
from gpusharectl.installer.progress import NOTHING_DONE, Exit, InstallError, Screen
from gpusharectl.installer.survey import ClusterFacts
from gpusharectl.installer.webhook.objects import CERTIFICATE, InstalledWebhook

OLDEST = (1, 26)
"""Older kubelets do not report pod resources as the device plugin needs them."""
NEWEST = (1, 37)
"""The newest of docs/compatibility.md; newer ones are accepted with a warning."""
_BOUNDS = f"1.{OLDEST[1]} to 1.{NEWEST[1]} are supported"
_K3S = "+k3s"
"""A part of the version of k3s's kubelet."""
_RESTART = "restart k3s there, which looks for it only at its start"
WEBHOOK_OLDEST = (1, 30)
"""Older API servers have no matchConditions: they would ask about every pod, and create
none while no webhook answers."""
WEBHOOK_REPLICAS = 2
"""As the manifest has it."""
_OF_NODE = re.compile(r"node (\S+): ")
_MANY_NODES, _FEW_NODES = 10, 3


class Weight(StrEnum):
    """How much a finding matters: a ``doubt`` is a warning to be confirmed."""

    OK = "ok"
    WARNING = "warning"
    DOUBT = "doubt"
    REFUSAL = "refused"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One result of the checks, in a sentence; ``remedy`` says what to do about it."""

    weight: Weight
    text: str
    remedy: str = ""


def well(text: str) -> CheckFinding:
    """Return a finding that is well."""
    return CheckFinding(Weight.OK, text)


def warning(text: str, remedy: str = "") -> CheckFinding:
    """Return a finding to know about."""
    return CheckFinding(Weight.WARNING, text, remedy)


def refusal(text: str, remedy: str) -> CheckFinding:
    """Return a finding with which nothing is changed."""
    return CheckFinding(Weight.REFUSAL, text, remedy)


def judge_cluster(
    facts: ClusterFacts, options: InstallOptions
) -> Iterator[CheckFinding]:
    """Judge the cluster, this host and what is installed, before nodes are chosen."""
    yield _version(facts)
    yield judge_rights(facts)
    yield from judge_owners(
        facts.installed.owned,
        "change it there (docs/install.md); for kube-scheduler on the hosts: "
        "gpusharectl install --host-only",
    )
    yield from _schedulers(facts, options)
    if not options.second_scheduler:
        yield from judge_host(facts)
    if not facts.serves.guard:
        yield warning(
            "before Kubernetes 1.30 there are no ValidatingAdmissionPolicies: whoever "
            "may patch pods can forge a placement"
        )
    exporter = facts.installed.images.get(EXPORTER, "")
    if exporter and not options.with_monitoring:
        yield well(
            f"monitoring is installed and stays unchanged, with image {exporter}; "
            "--with-monitoring updates it, with --image its image too"
        )
    if options.with_monitoring and not facts.serves.operator:
        yield well(
            "Prometheus Operator is not installed, so no ServiceMonitor and no rules "
            "are created; docs/install.md says how Prometheus finds the "
            "metrics without it"
        )
    yield from _tier(facts, options)
    yield from _compute(facts, options)
    yield from _kept(facts, options)
    yield from _webhook(facts, options)


def _tier(facts: ClusterFacts, options: InstallOptions) -> Iterator[CheckFinding]:
    """Say what a change of the isolation tier means; the pods' owners have to know."""
    before = facts.installed.isolation or NO_TIER
    after = options.isolation or before
    if facts.installed.plugin and after != before:
        yield warning(
            f"isolation tier {before} becomes {after}: containers that exist keep what "
            "they have; create their pods anew"
        )


def _compute(facts: ClusterFacts, options: InstallOptions) -> Iterator[CheckFinding]:
    """Refuse to hold containers to their cores without what measures and delays."""
    before = facts.installed.compute or NO_TIER
    after = options.compute or before
    tier = options.isolation or facts.installed.isolation or NO_TIER
    if after == SHARE and tier != PRELOAD:
        yield refusal(
            f"--compute {SHARE} needs the library of isolation tier {PRELOAD}, and the "
            f"tier is {tier}",
            f"add --isolation {PRELOAD}, or --compute {NO_TIER} --with-monitoring",
        )
    elif after not in (before, NO_TIER) and not options.with_monitoring:
        yield refusal(
            f"--compute {SHARE} needs the exporter, which measures what containers use",
            "add --with-monitoring",
        )
    elif after != before and not options.with_monitoring:
        yield refusal(
            f"--compute {after} changes the exporter", "add --with-monitoring"
        )
    elif after == SHARE and not options.compute:
        yield well(f"compute stays {SHARE}; --compute changes it")


def _version(facts: ClusterFacts) -> CheckFinding:
    number = minor_version(facts.version)
    words = f"Kubernetes {facts.version.removeprefix('v')}"
    if number is None:
        return warning(f"{words} is an unknown version; {_BOUNDS}")
    if number < OLDEST:
        return refusal(f"{words} is too old: {_BOUNDS}", "upgrade the cluster first")
    if number > NEWEST:
        return warning(f"{words} is newer than the tested versions; {_BOUNDS}")
    kind = str(facts.flavour)
    if facts.flavour is Flavour.MANAGED and facts.schedulers:
        # A managed control plane shows no such pods.
        kind = "kubeadm, seen from outside its control plane"
    names_of = dict.fromkeys(node.runtime.name for node in facts.nodes)
    runtimes = ", ".join(names_of) or "no node"
    nodes = counted(len(facts.control_plane), "control-plane node")
    return well(f"{words} · {kind} · {nodes} · {runtimes}")


def judge_rights(facts: ClusterFacts) -> CheckFinding:
    """Judge the user's rights; all missing ones are named at once."""
    if not facts.missing:
        return well("you have all needed rights")
    return refusal(
        f"you may not {', '.join(map(str, facts.missing))}",
        "use an administrator's kubeconfig (--kubeconfig, --context), such as "
        "/etc/kubernetes/admin.conf on a kubeadm control plane",
    )


def judge_owners(owned: Mapping[str, str], remedy: str) -> Iterator[CheckFinding]:
    """Refuse to change what another tool keeps: no object has two owners."""
    for owner in dict.fromkeys(owned.values()):
        objects = ", ".join(name for name in owned if owned[name] == owner)
        yield refusal(f"{owner} owns {objects}", remedy)


def _schedulers(facts: ClusterFacts, options: InstallOptions) -> Iterator[CheckFinding]:
    """Refuse two schedulers for the same cards, and one that cannot be set up here."""
    if options.second_scheduler and facts.installed.extended:
        yield refusal(
            "the default scheduler calls the gpushare extender already; a second "
            "scheduler beside it would place pods on the same cards without knowing of "
            "the first",
            "install without --second-scheduler, or first: gpusharectl uninstall",
        )
    elif not options.second_scheduler and facts.installed.second:
        yield refusal(
            "the second scheduler is installed here; the default scheduler with the "
            "gpushare extender would place pods on the same cards without knowing of "
            "it",
            "install with --second-scheduler, or first: gpusharectl uninstall",
        )
    elif not options.second_scheduler and facts.flavour is Flavour.MANAGED:
        yield refuse_no_scheduler(facts)
    elif options.second_scheduler and facts.installed.dra and options.dra is None:
        yield refusal(
            "the device plugin offers cards to ResourceClaims (GPUSHARE_DRA=on), and "
            "with a second scheduler nothing keeps claims and pods apart on a card",
            "install with --no-dra",
        )


def refuse_no_scheduler(facts: ClusterFacts) -> CheckFinding:
    """Refuse a host without a kube-scheduler; say where one is."""
    text = "this host runs no kube-scheduler of kubeadm or k3s, according to its files"
    if not facts.schedulers:
        remedy = "on a managed cluster: gpusharectl install --second-scheduler"
        return refusal(text, remedy)
    where = f"the cluster's kube-scheduler runs on {', '.join(facts.schedulers)}"
    remedy = f"run the same command on {facts.schedulers[0]}"
    return refusal(f"{text}; {where}", remedy)


def judge_host(facts: ClusterFacts, *, leaving: bool = False) -> Iterator[CheckFinding]:
    """Judge whether this host's kube-scheduler belongs to this cluster."""
    node = find_node(facts.nodes, facts.here)
    if facts.flavour is Flavour.MANAGED:
        if leaving and (facts.installed.extended or facts.stamped):
            yield refuse_no_scheduler(facts)
        return
    if node is None:
        names_of = ", ".join(each.name for each in facts.nodes) or "none"
        yield refusal(
            "this host is not a node of the cluster in your kubeconfig (its nodes: "
            f"{names_of}); is this the right context?",
            "choose the cluster with --kubeconfig and --context, or use --this-node",
        )
    elif node.silent:
        yield refusal(
            f"the kubelet of this host has stopped to report, so node {node.name} is "
            "not Ready; it has to restart kube-scheduler",
            "start it (systemctl status kubelet), and wait until the node is Ready",
        )
    elif not node.control_plane and not leaving:
        label = CONTROL_PLANE_LABEL
        yield refusal(
            f"node {node.name} lacks the label {label}, which the extender needs",
            f"kubectl label node {node.name} {label}=",
        )
    if facts.flavour is Flavour.K3S and len(facts.control_plane) > 1:
        others = ", ".join(name for name in facts.control_plane if name != facts.here)
        yield warning(
            f"k3s: each server has its own files; also run this command on {others}"
        )


def _kept(facts: ClusterFacts, options: InstallOptions) -> Iterator[CheckFinding]:
    """Report what stays because no option says anything of it."""
    installed = facts.installed
    going = set() if options.with_monitoring else {EXPORTER}
    going |= {WEBHOOK} if options.webhook.wanted is False else set()
    images = {
        name: image for name, image in installed.images.items() if name not in going
    }
    if images and not options.image:
        first, *others = dict.fromkeys(images.values())
        names_of = ", ".join(f"{name} {image}" for name, image in images.items())
        yield well(
            f"the images stay: {names_of}; --image changes all of them"
            if others
            else f"the image stays {first}; --image changes it"
        )
    if installed.tls and options.tls is None:
        yield well("the extender has TLS and keeps it; --no-tls removes it")
    if installed.ui and options.ui is None:
        yield well("the extender serves its page and keeps it; --no-ui removes it")
    if installed.policy and not options.policy:
        yield well(f"the policy stays {installed.policy}; --policy changes it")
    if installed.isolation and not options.isolation:
        yield well(f"isolation stays {installed.isolation}; --isolation changes it")
    if installed.dra and options.dra is None:
        yield well("cards stay offered to ResourceClaims (DRA); --no-dra ends that")


def _webhook(facts: ClusterFacts, options: InstallOptions) -> Iterator[CheckFinding]:
    """Judge what is wanted of the webhook, and report what stays."""
    wanted, installed = options.webhook.wanted, facts.installed.webhook
    number = minor_version(facts.version)
    if wanted is False:
        if installed:
            yield well(
                "the webhook is removed; pods that it has changed stay as they are"
            )
        return
    if (wanted or installed) and number and number < WEBHOOK_OLDEST:
        option = "with --no-webhook" if installed else "without --with-webhook"
        yield refusal(
            f"the webhook needs Kubernetes 1.{WEBHOOK_OLDEST[1]} or newer, and this is "
            f"{facts.version.removeprefix('v')}: the API server would ask it about "
            "every pod",
            f"install {option}",
        )
        return
    if installed:
        yield from _staying(installed, options)
    elif options.webhook.settling and not wanted:
        settling = options.webhook.settling
        is_are = "is a setting" if len(settling) == 1 else "are settings"
        yield refusal(
            f"{', '.join(settling)} {is_are} of the webhook, which is not installed",
            "add --with-webhook",
        )
    # The certificate is left to cert-manager, if that is there to renew it.
    if facts.installed.by_cert_manager and facts.serves.cert_manager:
        yield well("cert-manager makes the webhook's certificate, and goes on doing so")
    elif facts.installed.by_cert_manager:
        yield refusal(
            "cert-manager made the webhook's certificate, but it is no longer "
            f"installed: the API server does not know {CERTIFICATE.kind} of "
            f"{CERTIFICATE.api_version}. Nobody would renew the certificate",
            "install cert-manager again; or let the installer make the certificate: "
            "install with --no-webhook, then with --with-webhook",
        )


def _staying(
    installed: InstalledWebhook, options: InstallOptions
) -> Iterator[CheckFinding]:
    if options.webhook.wanted is None:
        yield well("the webhook is installed and stays; --no-webhook removes it")
    settled = options.webhook.with_preserved(installed.settings).settings()
    kept = [
        f"{name}={text}"
        for name, text in settled.items()
        if installed.settings.get(name) == text
    ]
    if kept:
        yield well(f"these settings of the webhook stay: {', '.join(kept)}")
    if installed.replicas == 0:
        yield well(f"the webhook has 0 replicas and gets {WEBHOOK_REPLICAS} again")
    elif installed.replicas not in (None, WEBHOOK_REPLICAS):
        yield well(f"the webhook's number of replicas stays {installed.replicas}")


def judge_nodes(
    facts: ClusterFacts, chosen: Sequence[str], *, second_scheduler: bool = False
) -> Iterator[CheckFinding]:
    """Judge the chosen nodes; a second kube-scheduler needs a node without cards."""
    room = any(
        node.takes_scheduler or not (node.labelled or node.name in chosen)
        for node in facts.nodes
    )
    if second_scheduler and not room:
        yield refusal(
            "every node shares its cards, and the second kube-scheduler does not run "
            "on such nodes, because its token has more rights than any other there",
            "add a node without cards, or allow it beside them: kubectl label node "
            f"{chosen[0]} {names.SCHEDULER_NODE_LABEL}=true",
        )
    for name in chosen:
        node = find_node(facts.nodes, name)
        if node is not None:
            signs = ", ".join(node.signs) or "the driver is loaded"
            judged = [finding for _, finding in judge_node(node, facts)]
            wrong = [finding for finding in judged if finding.weight is not Weight.OK]
            for finding in wrong or [well(f"{signs} · {node.runtime.name}")]:
                yield replace(finding, text=f"node {name}: {finding.text}")


def judge_node(
    node: SurveyedNode, facts: ClusterFacts
) -> Iterator[tuple[str, CheckFinding]]:
    """Judge one node by what the API server says; each finding with its subject."""
    yield "node", _readiness(node)
    yield "kubelet", _kubelet(node)
    yield "plugins", _other_plugin(node, facts)
    yield "driver", _signs(node, facts)
    yield "runtime", _runtime(node, facts)


def _readiness(node: SurveyedNode) -> CheckFinding:
    if not node.ready:
        text = "it is not Ready; its device plugin starts when it is"
        remedy = f"kubectl describe node {node.name} says why"
        return warning(text, remedy)
    keys = ", ".join(node.taints)
    taints = f" · pods need a toleration for {keys}" if keys else ""
    return well(f"Ready · {node.runtime.name}{taints}")


def _kubelet(node: SurveyedNode) -> CheckFinding:
    number = minor_version(node.runtime.kubelet)
    if number is None:
        return warning(f"kubelet's version is unknown; {_BOUNDS}")
    if number >= OLDEST:
        return well(node.runtime.kubelet)
    return refusal(
        f"kubelet {node.runtime.kubelet} is too old",
        f"upgrade it to 1.{OLDEST[1]} or newer, or leave the node out",
    )


def _other_plugin(node: SurveyedNode, facts: ClusterFacts) -> CheckFinding:
    if node.offered and not facts.installed.plugin:
        return refusal(
            f"another device plugin already offers {', '.join(node.offered)}",
            "remove that plugin first, or leave the node out of --nodes",
        )
    if node.others:
        return CheckFinding(
            Weight.DOUBT,
            f"another device plugin offers the same cards ({', '.join(node.others)}); "
            "pods of both would use them without knowing of each other",
            "to move over, remove that plugin from the node",
        )
    return well("no other device plugin offers cards")


def _signs(node: SurveyedNode, facts: ClusterFacts) -> CheckFinding:
    here = node.name == facts.here
    if here and not facts.driver_here and not node.has_cards:
        return warning("no NVIDIA driver is loaded on this host")
    if not node.signs and not here:
        return warning("it shows no sign of a GPU")
    return well(", ".join(node.signs) or "it is loaded")


def _runtime(node: SurveyedNode, facts: ClusterFacts) -> CheckFinding:
    runtime = node.runtime
    nvidia = any("nvidia" in handler for handler in runtime.handlers)
    if runtime.handlers and not nvidia:
        remedy = "is the NVIDIA container toolkit configured there?"
        if _K3S in runtime.kubelet:
            remedy = f"install the NVIDIA container toolkit there, then {_RESTART}"
        return warning(f"{runtime.name} has no runtime called nvidia; {remedy}")
    if (
        not runtime.handlers
        and _K3S in runtime.kubelet
        and NVIDIA in facts.runtime_classes
    ):
        # The class is used all the same: without it the device plugin has no driver.
        return warning(
            "k3s makes the RuntimeClass nvidia also where no node has that runtime, "
            "and this kubelet does not report its runtimes; if the NVIDIA container "
            f"toolkit came after k3s, {_RESTART}"
        )
    if nvidia and NVIDIA not in facts.runtime_classes:
        return warning(
            "it has the nvidia runtime, but the cluster has no RuntimeClass nvidia; "
            "pods get it only where it is the default runtime"
        )
    return well(runtime.name)


def weigh_findings(
    findings: Iterable[CheckFinding], screen: Screen, *, sure: bool = False
) -> None:
    """Show the findings; raise refusals, and ask about doubts unless ``sure``."""
    grouped = group_findings(findings)
    for finding in grouped:
        # The remedies of refusals are the last line of the run.
        then = finding.remedy if finding.weight is not Weight.REFUSAL else ""
        screen.say(f"{finding.text}{then and f'; {then}'}   {finding.weight}")
    refusals = [each for each in grouped if each.weight is Weight.REFUSAL]
    if refusals:
        why = "; ".join(each.text for each in refusals)
        remedy = "; ".join(each.remedy for each in refusals if each.remedy)
        raise InstallError(f"{why}; {NOTHING_DONE}", remedy, Exit.REFUSED)
    if not sure and any(finding.weight is Weight.DOUBT for finding in grouped):
        remedy = "the same command without these nodes"
        screen.confirm("Share these cards anyway?", remedy)


def group_findings(findings: Iterable[CheckFinding]) -> list[CheckFinding]:
    """Return findings, equal ones of several nodes once, with their names.

    Of more than ten nodes that are well the first ones are named.
    """
    nodes_of: dict[CheckFinding, list[str]] = {}
    for finding in findings:
        node = _OF_NODE.match(finding.text)
        rest = finding.text[node.end() :] if node else finding.text
        nodes = nodes_of.setdefault(replace(finding, text=rest), [])
        nodes.extend([node[1]] if node else [])
    grouped = []
    for finding, nodes in nodes_of.items():
        are_many = len(nodes) > _MANY_NODES and finding.weight is Weight.OK
        names_of = listed(nodes, _FEW_NODES if are_many else len(nodes))
        start = f"node{'s' if len(nodes) > 1 else ''} {names_of}: " if nodes else ""
        grouped.append(replace(finding, text=f"{start}{finding.text}"))
    return grouped
