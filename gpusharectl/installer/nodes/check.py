"""Check whether a node has what the device plugin needs, before it runs there.

The Node object says a part of it. For the rest a short-lived pod of gpushare's image
asks the driver, with the access that the device plugin would have, and reports how it
would inject the cards: ``python -m deviceplugin check``.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from rich.console import Console

from gpushare.kube import words
from gpushare.kube.cluster import Json
from gpushare.kube.facts import DEVICE_PLUGIN
from gpushare.kube.json_reader import Malformed, Reader
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.words import NOT_KNOWN
from gpusharectl.installer.context import Context
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.manifests import PLUGIN, image_of, with_images
from gpusharectl.installer.nodes.facts import SurveyedNode, read_nodes, why_unknown
from gpusharectl.installer.nodes.pods import PodResults, check_pod, try_images
from gpusharectl.installer.options import CheckOptions
from gpusharectl.installer.preflight import (
    CheckFinding,
    Weight,
    judge_node,
    judge_rights,
)
from gpusharectl.installer.progress import InstallError
from gpusharectl.installer.rights import (
    CHECK_RIGHTS,
    LIST_NODES,
    may_get,
    missing_rights,
)
from gpusharectl.installer.survey import (
    ClusterFacts,
    InstalledParts,
    read_runtime_classes,
    takes_nvidia,
)
from gpusharectl.output import Words

_IMAGE = "docs/install.md says how a node gets it; or choose another: --image"


@dataclass(frozen=True, slots=True)
class Check:
    """What one check has found; ``ok`` is None if it is not known.

    ``remedy`` says what to do where ``ok`` is False.
    """

    about: str
    ok: bool | None
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What ``deviceplugin.check`` prints, which says what each field means."""

    module: str | None
    driver: str
    problem: str
    cards: tuple[tuple[str, int, int, int], ...]
    """Model, MiB, units of each, and number: 1 from a version that does not count."""
    left_out: tuple[str, ...]
    injection: tuple[str, str, tuple[str, ...]] | None
    """How, why so, and why cards are held back."""

    @classmethod
    def read(cls, text: str) -> Self:
        """Read it; ``Malformed`` for anything else."""
        body = Reader.parse(text, "the answer")
        body.version(1)
        cards = (
            (
                card.optional_text("model"),
                card.integer("memory_mib"),
                card.integer("units"),
                card.optional_integer("count") or 1,
            )
            for card in body.optional_objects("cards")
        )
        injection = None
        if body.raw.get("injection") is not None:
            how = body.object("injection")
            reasons = tuple(map(str, how.raw.get("held") or ()))
            injection = how.text("by"), how.optional_text("because"), reasons
        module = body.raw.get("module")
        return cls(
            module=None if module is None else str(module),
            driver=body.optional_text("driver"),
            problem=body.optional_text("problem"),
            cards=tuple(cards),
            left_out=tuple(map(str, body.raw.get("left_out") or ())),
            injection=injection,
        )


def _ok(about: str, text: str) -> Check:
    return Check(about, ok=True, text=text)


def _todo(about: str, text: str, remedy: str) -> Check:
    return Check(about, ok=False, text=text, remedy=remedy)


def judge_report(report: NodeReport) -> Iterator[Check]:
    """Judge what the pod has found on its node."""
    answers = bool(report.driver or report.left_out)
    if report.cards and not answers:
        listed = "the cards are simulated, or listed in an inventory"
        yield from _unknown(listed, "driver", "NVML")
    else:
        yield from _driver(report, answers=answers)
    if report.cards or answers:
        yield _cards(report)
    else:
        yield from _unknown("no driver answers", "cards")
    yield from _injection(report)


def _driver(report: NodeReport, *, answers: bool) -> Iterator[Check]:
    if not answers and report.module is None:
        yield _todo(
            "driver",
            "no NVIDIA driver is loaded",
            "install it on the node; nvidia-smi must answer there",
        )
        yield from _unknown(report.problem, "NVML")
        return
    version = report.driver or report.module
    yield _ok("driver", version or f"version {NOT_KNOWN}")
    if answers:
        yield _ok("NVML", "it answers")
        return
    yield _todo(
        "NVML",
        report.problem,
        "configure the NVIDIA container toolkit on the node, and make nvidia its "
        "default runtime or create the RuntimeClass nvidia; on k3s restart k3s after "
        "that; after an update of the driver, restart the node",
    )


def _cards(report: NodeReport) -> Check:
    kinds: Counter[str] = Counter()
    for model, mib, _, count in report.cards:
        kinds[f"{model or 'unnamed'} of {mib} MiB"] += count
    each = [f"{count} {kind}" for kind, count in kinds.items()]
    units = words.units(sum(units * count for _, _, units, count in report.cards))
    shared = f"{', '.join(each)}: {units}"
    if report.left_out:
        before = f"{shared}; " if each else ""
        text = f"{before}cannot be shared: {'; '.join(report.left_out)}"
        remedy = "correct this, or go on without these cards"
        if not each:
            remedy = "correct this; until then the node shares no card"
        return _todo("cards", text, remedy)
    if each:
        return _ok("cards", shared)
    return _todo("cards", "the driver lists no card", "see nvidia-smi -L there")


def _injection(report: NodeReport) -> Iterator[Check]:
    generate = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    match report.injection:
        case None:
            yield from _unknown("there is no card of the driver", "injection")
        case _, _, [first, *_]:
            remedy = f"write the specification anew on the node: {generate}"
            yield _todo("injection", first, remedy)
        case "nodes", because, _:
            yield _todo(
                "injection",
                f"device nodes only ({because}); images must have the driver's "
                "libraries",
                "configure the NVIDIA container toolkit on the node, or write a CDI "
                f"specification: {generate}",
            )
        case by, because, _:
            yield _ok("injection", f"{by}: {because}")


_OF_POD = ("driver", "NVML", "cards", "injection")


def judge_check_pod(image: str, ran: PodResults, node: str) -> list[Check]:
    """Judge what came of a node's check pod of this image."""
    started = _ok("image", f"{image} starts")
    failed = ran.failed.get(node, "")
    if failed:
        remedy = _IMAGE if "image" in failed else "the log of kubelet there says more"
        wrong = _todo("image", failed, remedy)
        return [wrong, *_unknown("the pod did not run", *_OF_POD)]
    try:
        checks = {
            check.about: check
            for check in judge_report(NodeReport.read(ran.messages[node]))
        }
    except Malformed as error:
        return [started, *_unknown(f"the pod's answer is not valid: {error}", *_OF_POD)]
    if node in ran.refused:
        why = f"no container with the driver can be started: {ran.refused[node]}"
        remedy = "nvidia-smi must answer on the node, and nvidia-ctk cdi list its cards"
        # Without a driver the refusal is a consequence.
        without = checks["driver"].ok is False
        checks["NVML"] = (
            Check("NVML", ok=None, text=why) if without else _todo("NVML", why, remedy)
        )
    return [started, *checks.values()]


def _unknown(why: str, *subjects: str) -> list[Check]:
    return [Check(about, ok=None, text=why) for about in subjects]


def judge_images(ran: PodResults) -> Iterator[CheckFinding]:
    """Judge the answers of check pods for an install."""
    for node, answer in ran.messages.items():
        # The trial of a workload that needs no card has no answer.
        for finding in _findings(judge_check_pod("", ran, node)) if answer else ():
            yield replace(finding, text=f"node {node}: {finding.text}")


def _findings(checks: Sequence[Check]) -> Iterator[CheckFinding]:
    cards = next(check for check in checks if check.about == "cards")
    for check in checks:
        if check.ok is False:
            weight = Weight.WARNING if cards.ok else Weight.DOUBT
            yield CheckFinding(weight, check.text, check.remedy)
    if cards.ok:
        yield CheckFinding(Weight.OK, cards.text)


@dataclass(frozen=True, slots=True)
class NodeChecks:
    """All that was found about one node."""

    node: str
    checks: tuple[Check, ...]
    labelled: bool

    @property
    def todo(self) -> int:
        """How many checks say that something is to be done."""
        return sum(check.ok is False for check in self.checks)


def check_nodes(context: Context, options: CheckOptions) -> list[NodeChecks]:
    """Check nodes at the same time; nothing is left in the cluster."""
    objects = context.objects
    facts = _facts(objects)
    if wrong := why_unknown(facts.nodes, options.nodes):
        raise InstallError(wrong)
    nodes = [node for node in facts.nodes if node.name in options.nodes]
    pods = {
        node.name: check_pod(objects, _plugin(context, facts, node, options), node)
        for node in nodes
        if node.ready and not facts.missing
    }
    ran = try_images(context, list(pods.values()), options.timeout_s)
    checked = []
    for node in nodes:
        checks = [
            Check(about, _is_well(finding), finding.text, finding.remedy)
            for about, finding in judge_node(node, facts)
            if about in ("node", "kubelet", "plugins")
        ]
        if node.name in pods:
            image = pods[node.name]["spec"]["containers"][0]["image"]
            checks += judge_check_pod(image, ran, node.name)
        elif facts.missing:
            rights = judge_rights(facts)
            checks += [_todo("rights", rights.text, rights.remedy)]
            checks += _unknown("no pod can be created", *_OF_POD)
        else:
            checks += _unknown("the node is not Ready", *_OF_POD)
        checked.append(NodeChecks(node.name, tuple(checks), node.labelled))
    return checked


def _facts(objects: Objects) -> ClusterFacts:
    """Read what is needed to judge nodes; ``InstallError`` if they cannot be read."""
    lacking = missing_rights(objects, CHECK_RIGHTS)
    facts = ClusterFacts("", Flavour.MANAGED, (), missing=lacking)
    if LIST_NODES in lacking:
        rights = judge_rights(facts)
        raise InstallError(rights.text, rights.remedy)
    plugin = _installed(objects)
    images = {DEVICE_PLUGIN: image_of([plugin])} if plugin else {}
    return replace(
        facts,
        nodes=read_nodes(objects),
        runtime_classes=read_runtime_classes(objects),
        installed=InstalledParts(images),
    )


def _is_well(finding: CheckFinding) -> bool | None:
    if finding.weight is Weight.OK:
        return True
    return False if finding.remedy else None


def _installed(objects: Objects) -> Json | None:
    return objects.get(PLUGIN) if may_get(objects, PLUGIN) else None


def _plugin(
    context: Context, facts: ClusterFacts, node: SurveyedNode, options: CheckOptions
) -> Json:
    """Return the device plugin's DaemonSet as it runs, or as it would be installed."""
    plugin = _installed(context.objects)
    if plugin is None:
        components = ("nvidia-runtime",) if takes_nvidia(facts, [node.name]) else ()
        every = context.load("kubeadm", components=components)
        plugin = next(body for body in every if Ref.of(body) == PLUGIN)
    kept = {DEVICE_PLUGIN: options.image} if options.image else {}
    return with_images([plugin], kept, "")[0]


_LEAST_WIDTH = 20
_WORDS = {True: "ok", False: "to do", None: NOT_KNOWN}


def draw_checks(console: Console, nodes: Sequence[NodeChecks]) -> None:
    """Draw each node's checks, with what to do; lines are folded on a terminal only."""
    for number, node in enumerate(nodes):
        if number:
            console.print()
        console.print(Words(f"Node {node.node}", "bold"), soft_wrap=True)
        for check in node.checks:
            _draw(console, check)
        console.print(Words(_next(node)), soft_wrap=True)


def _draw(console: Console, check: Check) -> None:
    start = f"  {_WORDS[check.ok]:<5}  {check.about:<9}  "
    paragraphs = [check.text, *([f"→ {check.remedy}"] if check.ok is False else [])]
    room = max(console.width - len(start), _LEAST_WIDTH)
    for text in map(Words, paragraphs):
        for line in text.wrap(console, room) if console.is_terminal else [text]:
            style = "yellow" if check.ok is False else ""
            console.print(Words(start, style).append_text(line), soft_wrap=True)
            start = " " * len(start)


def _next(node: NodeChecks) -> str:
    if node.todo:
        return f"{words.counted(node.todo, 'thing')} to do; then check again."
    if node.labelled:
        return "Nothing to do; the node has the label of gpushare."
    return f"Nothing to do. To share its cards: gpusharectl install --nodes {node.node}"


def checks_data(nodes: Sequence[NodeChecks]) -> Json:
    """Return the same as data."""
    return {
        "nodes": [
            {
                "name": node.node,
                "ok": not node.todo,
                "checks": [
                    {
                        "check": check.about,
                        "ok": check.ok,
                        "text": check.text,
                        "todo": check.remedy if check.ok is False else "",
                    }
                    for check in node.checks
                ],
            }
            for node in nodes
        ]
    }
