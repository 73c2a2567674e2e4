"""``gpusharectl install``, step by step.

Cards are offered only while kube-scheduler calls the extender, and kube-scheduler is
told to call only an extender that runs. So the order is: the extender is Ready, then
kube-scheduler's configuration, then the label that starts the device plugin.
"""

import json
from collections.abc import Mapping, Sequence

from gpushare.kube import names
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import DEVICE_PLUGIN, EXPORTER, PART_NAME, SYSTEM, WEBHOOK
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.cluster_facts import NodeView, named, to_label
from gpusharectl.install.context import Context
from gpusharectl.install.manifests import WORKLOADS
from gpusharectl.install.options import InstallOptions
from gpusharectl.install.plan import InstallPlan
from gpusharectl.install.progress import (
    Closing,
    Exit,
    Screen,
    Step,
    Trouble,
    Waiting,
    follow,
)
from gpusharectl.install.rollout import Patience, last_lines, wait_for_rollout
from gpusharectl.install.scheduler import prove, put
from gpusharectl.install.survey import leads, read_nodes
from gpusharectl.install.webhook.apply import WebhookSteps, removal
from gpusharectl.kube_scheduler.drift import Flavour

UNDO = "gpusharectl uninstall"
FOUND_WITHIN_S = 60.0
"""The driver's first answer may take so long without a persistence daemon."""
_LOG_LINES = 50
_LOUD = ("WARNING", "ERROR", "CRITICAL")


def install(context: Context, options: InstallOptions) -> Exit:
    """Install, or with ``dry_run`` show what that would change."""
    began = context.patience.clock()
    plan = InstallPlan(context, options)
    first = [
        Step("the checks", plan.check),
        Step("the choice of nodes", plan.choose),
        Step("the dry run", plan.rehearse),
    ]
    code = follow(first, context.screen, Closing(options.again()))
    if code is not Exit.DONE or options.dry_run:
        return code
    work = InstallSteps(context, plan)
    code = follow(work.steps(), context.screen, Closing(plan.again(), UNDO))
    if code is Exit.DONE:
        work.close(context.patience.clock() - began)
    return code


class InstallSteps:
    """The steps that change anything; each can be run again."""

    def __init__(self, context: Context, plan: InstallPlan) -> None:
        self._context = context
        self._screen = context.screen
        self._plan = plan
        self._options = plan.options

    def steps(self) -> list[Step]:
        """Return the steps in their order."""
        options, plan = self._options, self._plan
        workloads = [one for one in plan.manifests if one["kind"] in WORKLOADS]
        refs = [Ref.of(one) for one in workloads]
        later = (DEVICE_PLUGIN, EXPORTER, WEBHOOK)
        scheduling = [ref for ref in refs if ref.name not in later]
        plugin = [ref for ref in refs if ref.name == DEVICE_PLUGIN]
        exporter = [ref for ref in refs if ref.name == EXPORTER]
        webhook = self._webhook()
        what = "second scheduler" if options.second_scheduler else "extender"
        rollout = "the rollout of the"
        return [
            *([Step("the certificates", self.certify)] if options.tls else []),
            *([removal(self._context, plan.going)] if plan.going else []),
            *(webhook.before() if webhook else []),
            Step("the objects in kube-system", self.apply),
            *map(self._scheduler_step, self._early),
            Step(f"{rollout} {what}", lambda: self._await(scheduling)),
            *map(self._scheduler_step, self._late),
            *self._proof(),
            Step("the labels of nodes", self.label),
            Step(f"{rollout} device plugins", lambda: self._await(plugin)),
            Step("the search for cards", self.cards),
            *(webhook.after() if webhook else []),
            # Last, because cards are shared without the exporters too.
            *(
                [Step(f"{rollout} exporters", lambda: self._await(exporter))]
                if exporter
                else []
            ),
            Step("the overview", self.look),
        ]

    def apply(self) -> Trouble | None:
        """Apply the objects that differ."""
        self._screen.begin("Applying")
        # Even an apply without a change gives some objects a new version.
        changing = {change.ref for change in self._plan.changes}
        due = [body for body in self._plan.manifests if Ref.of(body) in changing]
        for body in due:
            self._context.objects.apply(body)
        told = f"{len(due)} changed" if due else "none changed"
        self._screen.say(f"{len(self._plan.manifests)} objects, {told}")
        return None

    def certify(self) -> Trouble | None:
        """Write this host's certificates, which the extender needs at its start."""
        self._screen.begin("TLS")
        due = self._context.certificates(self._plan.target())
        self._context.files.make(due)
        told = ", ".join(change.path for change in due)
        self._screen.say(f"written: {told}" if due else "all certificates are valid")
        return None

    def label(self) -> Trouble | None:
        """Label the chosen nodes, which starts the device plugin there."""
        self._screen.begin("Labels")
        chosen = self._plan.chosen
        missing = to_label(read_nodes(self._context.objects), chosen)
        patch = {"metadata": {"labels": {names.GPU_NODE_LABEL: "true"}}}
        for name in missing:
            self._context.objects.merge(Ref("v1", "Node", name), patch)
        there = [name for name in chosen if name not in missing]
        if missing:
            self._screen.say(f"{names.GPU_NODE_LABEL}=true on {', '.join(missing)}")
        if there:
            self._screen.say(f"{', '.join(there)}: already labelled")
        return None

    def cards(self) -> Trouble | None:
        """Wait until the device plugins have found cards."""
        self._screen.begin("Cards")
        context = self._context
        return await_cards(
            context.objects, self._plan.chosen, self._screen, context.patience
        )

    def look(self) -> Trouble | None:
        """Show the cluster as ``gpusharectl inspect`` does."""
        try:
            self._context.inspect()
        except ClusterError as error:
            # The install is complete; a failed overview is no failure of it.
            self._screen.note(f"The overview cannot be shown now: {error}")
        return None

    def close(self, took_s: float) -> None:
        """Say how long it took, and what comes next."""
        if self._read_later:
            self._screen.note(
                "k3s reads its scheduler's files only at its start. Now run:\n"
                "  systemctl restart k3s"
            )
        self._screen.note(
            f"Done in {minutes(took_s)}. Next: kubectl vcuda inspect, "
            "and a first pod: docs/install.md"
        )

    @property
    def _early(self) -> tuple[str, ...]:
        """Hosts whose Job must run before the extender: it writes its certificates."""
        return self._plan.other_hosts if self._options.tls else ()

    @property
    def _late(self) -> tuple[str, ...]:
        """All other hosts, one after another, the leader last."""
        if self._options.second_scheduler:
            return ()
        nodes = [*self._plan.other_hosts, self._plan.facts.here]
        nodes.sort(key=lambda node: leads(self._plan.holder, node))
        return tuple(node for node in nodes if node not in self._early)

    def _scheduler_step(self, node: str) -> Step:
        context, target = self._context, self._plan.target()

        def act() -> Trouble | None:
            self._screen.begin("Scheduler")
            if node == self._plan.facts.here:
                return put(
                    context.host(target),
                    self._screen,
                    alone=not self._plan.other_hosts,
                    at_once=not self._read_later,
                )
            why = context.others(target).run("apply", node, self._screen.say)
            return Trouble(f"on {node}: {why}") if why else None

        return Step(f"kube-scheduler's configuration on {node}", act)

    def _proof(self) -> list[Step]:
        """Return the proof that comes after all hosts, if there are several."""
        if not self._plan.other_hosts:
            return []
        host = self._context.host(self._plan.target())
        name = "the proof that kube-scheduler calls the extender"
        return [Step(name, lambda: prove(host, self._screen))]

    def _webhook(self) -> WebhookSteps | None:
        plan = self._plan
        if plan.webhook is None:
            return None
        changing = frozenset(change.ref for change in plan.changes)
        return WebhookSteps(self._context, plan.webhook, changing, plan.again())

    @property
    def _read_later(self) -> bool:
        """Whether k3s reads its files only when somebody restarts it."""
        k3s = self._plan.facts.flavour is Flavour.K3S
        own = not self._options.second_scheduler
        return k3s and own and not self._options.restart

    def _await(self, refs: Sequence[Ref]) -> Trouble | None:
        context = self._context
        self._screen.begin("Waiting")
        return wait_for_rollout(context.objects, refs, self._screen, context.patience)


def await_cards(
    objects: Objects, chosen: Sequence[str], screen: Screen, patience: Patience
) -> Trouble | None:
    """Wait a while for cards on the chosen nodes; fail if no node has any.

    A node without cards is reported; its device plugin goes on searching.
    """
    nodes = read_nodes(objects)
    ready = [name for name in chosen if _is_ready(nodes, name)]
    left = patience.until(
        lambda: _without(read_nodes(objects), ready), screen, FOUND_WITHIN_S
    )
    nodes = read_nodes(objects)
    without = {one.who: one.what for one in left}
    for name in chosen:
        screen.say(f"{name}: {_found(objects, nodes, name, without, ready)}")
    if len(without) < len(ready):
        return None
    if not ready:
        return Trouble(f"no card is shared yet: {', '.join(chosen)} not Ready")
    return Trouble(
        "no card is offered; " + "; ".join(f"{k}: {v}" for k, v in without.items()),
        "load the driver there (nvidia-smi must answer); the device plugin then finds "
        "the cards by itself. To see them: gpusharectl inspect",
    )


def _found(
    objects: Objects,
    nodes: Sequence[NodeView],
    name: str,
    without: Mapping[str, str],
    ready: Sequence[str],
) -> str:
    node = named(nodes, name)
    if name not in ready or node is None:
        return "the node is not Ready; its cards are found when it is"
    if name in without:
        return f"{without[name]}. {_plugins_words(objects, name)}"
    return amount(node)


def amount(node: NodeView) -> str:
    """Return what a node shares: ``2 cards, 58 units``; n/a before it has reported."""
    if node.cards is None:
        return "n/a"
    cards = f"{node.cards} card{'' if node.cards == 1 else 's'}"
    return f"{cards}, {node.units} units"


def _is_ready(nodes: Sequence[NodeView], name: str) -> bool:
    node = named(nodes, name)
    return node is not None and node.ready


def _without(nodes: Sequence[NodeView], chosen: Sequence[str]) -> list[Waiting]:
    found = []
    for name in chosen:
        node = named(nodes, name)
        if node is None or not node.cards:
            found.append(Waiting(name, "no NVIDIA driver answered"))
        elif not node.offered:
            what = f"kubelet does not offer its {amount(node)} yet"
            found.append(Waiting(name, what))
    return found


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
    if not said:
        return "Its device plugin goes on searching."
    return f"Its device plugin says: {said}"


def complaint(log: str) -> str:
    """Return the last warning of a log of JSON lines; the last lines of another log.

    >>> complaint('{"level": "WARNING", "event": "no driver", "because": "not found"}')
    'no driver: not found'
    """
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
