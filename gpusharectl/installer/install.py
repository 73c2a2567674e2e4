"""``gpusharectl install``, step by step.

Cards are offered only while kube-scheduler calls the extender, and kube-scheduler is
told to call only an extender that runs. So the order is: the extender is Ready, then
kube-scheduler's configuration, then the label that starts the device plugin.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import (
    DEVICE_PLUGIN,
    EXPORTER,
    EXTENDER,
    PART_NAME,
    SECOND_SCHEDULER,
    SYSTEM,
    node_of,
)
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.context import Context
from gpusharectl.installer.dra.apply import (
    HOSTS_EXTENDER,
    PLUGIN,
    DraSteps,
    objects_of_dra,
    plugins_without,
    take_slices,
)
from gpusharectl.installer.hosts import install_hosts
from gpusharectl.installer.install_plan import InstallPlan
from gpusharectl.installer.kube_scheduler.apply import configure, prove
from gpusharectl.installer.manifests import WORKLOADS
from gpusharectl.installer.nodes.check import found_on, is_older
from gpusharectl.installer.nodes.pods import (
    TRIAL,
    in_words,
    remove_left,
    run_trials,
    trials,
)
from gpusharectl.installer.options import NO_TIER, InstallOptions
from gpusharectl.installer.plan import weigh
from gpusharectl.installer.progress import (
    NOTHING_DONE,
    Exit,
    InstallError,
    Step,
    Waiting,
    follow,
)
from gpusharectl.installer.rollout import image_before, last_lines, wait_for_rollout
from gpusharectl.installer.survey import NodeFacts, named, read_nodes, to_label
from gpusharectl.installer.webhook.apply import WebhookSteps, removal

_SECOND_NAME = "vcuda-scheduler"
_FIRST_POD = """\
kubectl apply -f - <<EOF
apiVersion: v1
kind: Pod
metadata: {{name: first}}
spec:
  restartPolicy: Never
{lines}  containers:
  - name: main
    image: nvidia/cuda:12.4.1-base-ubuntu22.04
    command: [nvidia-smi, -L]
    resources: {{limits: {{baidu.com/vcuda-memory: 4, baidu.com/vcuda-core: 1}}}}
EOF
kubectl wait pod/first --for=jsonpath='{{.status.phase}}'=Succeeded --timeout=300s
kubectl logs first
kubectl delete pod first"""
FOUND_WITHIN_S = 60.0
"""The driver's first answer may take so long without a persistence daemon."""
SICK_FOR_S = 20.0
"""Cards that fail a tier's checks are checked again every 5 seconds."""
_LOG_LINES = 50
_LOUD = ("WARNING", "ERROR", "CRITICAL")


def install(context: Context, options: InstallOptions) -> Exit:
    """Install, or with ``dry_run`` show what that would change."""
    if options.host_only:
        return install_hosts(context, options)
    plan = Install(context, options)
    first = [
        Step("the checks", plan.check, "Checking"),
        Step("the choice of nodes", plan.choose),
        Step("the dry run", plan.rehearse),
        Step("the confirmation", plan.confirm),
    ]
    code = follow(first, context.screen, options.again)
    if code is not Exit.DONE or options.dry_run:
        return code
    return follow(plan.steps(), context.screen, plan.again, plan.ways_back, begun=True)


@dataclass
class Install(InstallPlan):
    """The plan with the steps that change anything; each can be run again."""

    before: str = ""
    """The image before the one whose rollout failed."""

    def steps(self) -> list[Step]:
        """Return the steps in their order."""
        second, tls = self.options.second_scheduler, self.options.tls
        began = self.context.patience.clock()
        # With TLS a host's Job writes the certificates, which the extender needs.
        early = self.other_hosts if tls else ()
        late = [node for node in self.hosts if node not in early]
        here = partial(
            configure,
            screen=self.screen,
            alone=not self.other_hosts,
            at_once=not self.read_later,
        )
        webhook = self.webhook and WebhookSteps(
            self.context, self.webhook, self.changes, self.again()
        )
        what = "second scheduler" if second else "extender"
        name = "the proof that kube-scheduler calls the extender"
        proof = Step(name, lambda: prove(self.host, self.screen))
        dra = self._dra_steps() if self.options.dra else None
        # What offers cards to claims comes after what is asked about them, and goes
        # before it.
        last = PLUGIN if dra else HOSTS_EXTENDER if self.dra_going else None
        plugins = self._applying("the device plugins' DaemonSet", PLUGIN, now=True)
        return [
            Step("the trial of the image", self.try_image, "Image"),
            *(dra.before() if dra and not self.dra.on else []),
            *([Step("the certificates", self.certify, "TLS")] if tls else []),
            *([removal(self.context, self.going)] if self.going else []),
            *(webhook.before() if webhook else []),
            self._applying("the objects in kube-system", last),
            *(self._dra_back() if self.dra_going else []),
            *(self.scheduler_step(node, "apply", here) for node in early),
            self._rollout(what, EXTENDER, SECOND_SCHEDULER),
            *(self.scheduler_step(node, "apply", here) for node in late),
            *([proof] if self.other_hosts else []),
            *([objects_of_dra(self.context, self.dra.left)] if self.dra_going else []),
            *([dra.asking(), plugins] if dra else []),
            Step("the labels of nodes", self.label, "Labels"),
            self._rollout("device plugins", DEVICE_PLUGIN),
            Step("the search for cards", self.cards, "Cards"),
            *([dra.offered(self._with_cards)] if dra else []),
            *(webhook.after() if webhook else []),
            # Last, because cards are shared without the exporters too.
            *([self._rollout("exporters", EXPORTER)] * self.options.with_monitoring),
            Step("the summary", lambda: self.close(began)),
        ]

    def try_image(self) -> None:
        """Start a new image on its nodes before it replaces anything that runs."""
        context, image = self.context, self.target.image
        remove_left(context.objects, TRIAL)
        pods = trials(context.objects, self.changes, self.chosen)
        ran = run_trials(context, pods)
        failed = {node: why for node, why in ran.failed.items() if not is_older(why)}
        if failed:
            runs = "; what runs stays as it is" if self.facts.images else ""
            raise InstallError(
                f"{image} does not start on all nodes. {in_words(failed)}. "
                f"{NOTHING_DONE.capitalize()}{runs}",
                "let these nodes start it (docs/install-reference.md, The image), or "
                f"choose another image:\n  {self.again(image='IMAGE')}",
            )
        if pods:
            self.screen.say(f"{image} starts on {', '.join(map(node_of, pods))}")
        weigh(found_on(ran), self.screen, sure=self.options.yes)

    def ways_back(self) -> Mapping[str, str]:
        """Return the commands that undo what a step has begun."""
        old = next(iter(self.facts.images.values()), "")
        if old == self.target.image:
            old = self.before
        back = old and old != self.target.image
        return {
            **({"go back": self.again(image=old)} if back else {}),
            "undo all": "gpusharectl uninstall",
        }

    def apply(self, bodies: Sequence[Json]) -> None:
        """Apply those of the objects that differ."""
        # Even an apply without a change gives some objects a new version.
        changing = {change.ref for change in self.changes}
        due = [body for body in bodies if Ref.of(body) in changing]
        for body in due:
            self.context.objects.apply(body)
        told = f"{len(due)} changed" if due else "none changed"
        objects = f"{len(bodies)} object{'' if len(bodies) == 1 else 's'}"
        self.screen.say(f"{objects}, {told}")

    def label(self) -> None:
        """Label the chosen nodes, which starts the device plugin there."""
        chosen = self.chosen
        missing = to_label(read_nodes(self.context.objects), chosen)
        patch = {"metadata": {"labels": {names.GPU_NODE_LABEL: "true"}}}
        for name in missing:
            self.context.objects.merge(Ref("v1", "Node", name), patch)
        there = [name for name in chosen if name not in missing]
        if missing:
            self.screen.say(f"{names.GPU_NODE_LABEL}=true on {', '.join(missing)}")
        if there:
            self.screen.say(f"{', '.join(there)}: already labelled")

    def cards(self) -> None:
        """Wait until the device plugins have found cards; fail if no node has any.

        A node without cards is reported; its device plugin goes on searching.
        """
        objects, chosen = self.context.objects, self.chosen
        ready = [one.name for one in read_nodes(objects) if one.ready]
        looked_at = [name for name in chosen if name in ready]
        tier = self.options.isolation
        unknown = self.context.until(
            lambda: _unchecked(read_nodes(objects), looked_at, tier), FOUND_WITHIN_S
        )
        left = self.context.until(
            lambda: _without(read_nodes(objects), looked_at),
            0.0 if unknown else SICK_FOR_S,
        )
        without = {one.who: one.what for one in left}
        nodes, told = read_nodes(objects), dict[str, list[str]]()
        for name in chosen:
            node = named(nodes, name)
            if name not in looked_at or node is None:
                found = "not Ready; cards are found when it is"
            elif name in without:
                found = f"{without[name]}. {_plugins_words(objects, name)}"
            else:
                found = amount(node)
            told.setdefault(found, []).append(name)
        for found, names_of in told.items():
            each = " on each" if len(names_of) > 1 and found[0].isdigit() else ""
            self.screen.say(f"{', '.join(names_of)}: {found}{each}")
        if not looked_at:
            raise InstallError(f"no card is shared yet: {', '.join(chosen)} not Ready")
        if len(without) == len(looked_at):
            remedy = (
                "load the driver there (nvidia-smi must answer); the device plugin "
                "then finds the cards by itself. To see them: gpusharectl inspect"
            )
            if self.options.isolation not in (None, NO_TIER):
                none = replace(self.options, isolation=NO_TIER, nodes=self.chosen)
                remedy = (
                    "repair what it says; the device plugin offers a card when all "
                    "its checks pass. Or share them without this isolation: "
                    f"{none.again()}"
                )
            raise InstallError(
                f"no card is offered; {'; '.join(map(str, left))}", remedy
            )

    def close(self, began: float) -> None:
        """Say what is shared now, and how to see it and to use it."""
        took = minutes(self.context.patience.clock() - began)
        screen, words = self.screen, f"Done in {took}"
        self.note_restart()
        try:
            nodes = [
                node
                for node in read_nodes(self.context.objects)
                if node.name in self.chosen and node.cards
            ]
            words += f": {shared(nodes)}"
        except ClusterError as error:
            # The install is complete; a failed look is no failure of it.
            screen.note(f"The nodes cannot be read now: {error}")
        screen.note(words)
        screen.show("Next: gpusharectl inspect")
        if any(not one.cards for one in self.facts.nodes if one.name in self.chosen):
            scheduler = _SECOND_NAME if self.options.second_scheduler else ""
            screen.note("\nA first pod, with 1 GiB of one card:")
            screen.show(first_pod(scheduler, self._runtime_class()))
            screen.note(
                "The log has one line: GPU 0, its model and its UUID. With a driver "
                "older than 550 use a tag of the CUDA version that nvidia-smi shows on "
                "the node."
            )

    def _runtime_class(self) -> str:
        """Return the RuntimeClass of the device plugin, which pods need there too."""
        specs = [
            body["spec"]["template"]["spec"]
            for body in self.manifests
            if body["metadata"]["name"] == DEVICE_PLUGIN and body["kind"] in WORKLOADS
        ]
        return str(specs[0].get("runtimeClassName", ""))

    def _applying(self, name: str, last: Ref | None, *, now: bool = False) -> Step:
        """Return the step that applies all objects but the last; with ``now`` that."""
        bodies = [one for one in self.manifests if (Ref.of(one) == last) == now]
        return Step(name, lambda: self.apply(bodies), "Applying")

    def _dra_steps(self) -> DraSteps:
        return DraSteps(
            self.context,
            self.facts.here,
            self.other_hosts,
            lambda: self.host.authority,
            lambda node: self.context.others(self.target).look(node, self.screen.say),
            lambda node: _plugins_words(self.context.objects, node),
        )

    def _dra_back(self) -> list[Step]:
        """Return the steps that take cards back from claims, then stop the asking."""
        # Also if the DaemonSet has it off already: a run that stopped may have left
        # pods of before, which would write their slices again.
        runs = any(one.ready and one.labelled for one in self.facts.nodes)
        return [
            Step("DRA off", lambda: plugins_without(self.context)),
            *([self._rollout("device plugins", DEVICE_PLUGIN)] if runs else []),
            Step("the ResourceSlices", lambda: take_slices(self.context), "DRA"),
            self._applying("the extender's DaemonSet", HOSTS_EXTENDER, now=True),
        ]

    def _with_cards(self) -> list[str]:
        """Return the chosen nodes whose device plugins offer cards now."""
        nodes = read_nodes(self.context.objects)
        offering = {node.name for node in nodes if node.ready and node.offered}
        return [name for name in self.chosen if name in offering]

    def _rollout(self, what: str, *workloads: str) -> Step:
        refs = [
            Ref.of(body)
            for body in self.manifests
            if body["kind"] in WORKLOADS and body["metadata"]["name"] in workloads
        ]

        def wait() -> None:
            try:
                wait_for_rollout(self.context, refs)
            except InstallError:
                # An earlier run may have changed the image.
                with suppress(ClusterError):
                    self.before = image_before(self.context.objects, refs)
                raise

        return Step(f"the rollout of the {what}", wait, "Waiting")


def shared(nodes: Sequence[NodeFacts]) -> str:
    """Return what nodes share together: ``2 nodes share 3 cards, 87 units``."""
    share = "node shares" if len(nodes) == 1 else "nodes share"
    cards, units = sum(one.cards or 0 for one in nodes), sum(one.units for one in nodes)
    return f"{len(nodes)} {share} {_counted(cards)}, {units} units"


def amount(node: NodeFacts) -> str:
    """Return what a node shares: ``2 cards, 58 units``; n/a before it has reported."""
    if node.cards is None:
        return "n/a"
    return f"{_counted(node.cards)}, {node.units} units"


def _counted(cards: int) -> str:
    return f"{cards} card{'' if cards == 1 else 's'}"


def _without(nodes: Sequence[NodeFacts], chosen: Sequence[str]) -> list[Waiting]:
    found = []
    for name in chosen:
        node = named(nodes, name)
        if node is None or not node.cards:
            found.append(Waiting(name, "no NVIDIA driver answered"))
        elif not node.offered:
            what = f"kubelet does not offer its {amount(node)} yet"
            if node.sick:
                what = f"its {amount(node)} are sick: {node.sick}"
            found.append(Waiting(name, what))
    return found


def _unchecked(
    nodes: Sequence[NodeFacts], chosen: Sequence[str], tier: str | None
) -> list[Waiting]:
    """Return who is without cards, but for those whose cards all fail this tier."""
    failing = {one.name for one in nodes if one.sick and one.isolation == tier}
    return [one for one in _without(nodes, chosen) if one.who not in failing]


def _plugins_words(objects: Objects, node: str) -> str:
    """Return the last complaint in the log of the node's device plugin."""
    try:
        pods = objects.list(
            "v1",
            "Pod",
            namespace=SYSTEM,
            label_selector=f"{PART_NAME}={DEVICE_PLUGIN}",
            field_selector=f"spec.nodeName={node}",
        )
        if not pods:
            return "Its device plugin has no pod there."
        name = pods[0]["metadata"]["name"]
        text = objects.log(SYSTEM, name, lines=_LOG_LINES)
    except ClusterError as error:
        return f"The log of its device plugin cannot be read: {error}"
    said = complaint(text)
    return f"Its device plugin {f'says: {said}' if said else 'goes on searching.'}"


def complaint(log: str) -> str:
    """Return the last warning of a log of JSON lines; the last lines of another log."""
    loud, understood = "", False
    for line in log.splitlines():
        try:
            entry = json.loads(line)
            level, event = entry["level"], entry["event"]
        except (ValueError, KeyError, TypeError):
            continue
        understood = True
        if level in _LOUD:
            because = entry.get("because", "")
            loud = f"{event}: {because}" if because else str(event)
    return loud if understood else last_lines(log)


def minutes(seconds: float) -> str:
    """Return a duration in minutes and seconds.

    >>> minutes(72)
    '1 min 12 s'
    """
    whole, rest = divmod(round(seconds), 60)
    return f"{whole} min {rest} s" if whole else f"{rest} s"


def first_pod(scheduler: str, runtime_class: str) -> str:
    """Return the commands that create a pod with a share of a card and show its log.

    ``scheduler`` and ``runtime_class`` are names for its spec, if it needs them.
    """
    own = {"schedulerName": scheduler, "runtimeClassName": runtime_class}
    lines = "".join(f"  {key}: {name}\n" for key, name in own.items() if name)
    return _FIRST_POD.format(lines=lines)
