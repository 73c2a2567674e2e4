"""``gpusharectl install``, step after step.

The order keeps one promise: cards are offered only while kube-scheduler asks the
extender, and it is told to ask only an extender that is there. So first the extender
must be Ready, then comes the stanza, then the label that brings the device plugin.

What the device plugins have found on their nodes, or why nothing.
"""

import json
from collections.abc import Mapping, Sequence

from gpushare.kube import names
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import DEVICE_PLUGIN, EXPORTER, SYSTEM, WEBHOOK
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
from gpusharectl.install.rollout import Patience, last_lines, run_as_told
from gpusharectl.install.scheduler import prove, put
from gpusharectl.install.survey import leads, read_nodes
from gpusharectl.install.webhook.apply import WebhookSteps, taking_away
from gpusharectl.kube_scheduler.drift import Flavour

FOUND_WITHIN_S = 60.0
"""The driver's first answer may take as long, where no persistence daemon runs."""
_LOG_LINES = 50
_LOUD = ("WARNING", "ERROR", "CRITICAL")


def await_cards(
    objects: Objects, chosen: Sequence[str], screen: Screen, patience: Patience
) -> Trouble | None:
    """Wait a while for cards on the chosen nodes; trouble where none has any.

    A node without is told, and is no trouble while another has cards: its device
    plugin goes on looking.
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
        "load the driver there (nvidia-smi must answer); the device plugin looks on "
        "and finds the cards by itself. See: gpusharectl inspect",
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
        return "it is not Ready; its cards are found when it is"
    if name in without:
        return f"{without[name]}. {_plugins_words(objects, name)}"
    return amount(node)


def amount(node: NodeView) -> str:
    """Say what a node shares.

    ``2 cards, 58 units``; n/a where it has not said so yet.
    """
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
            what = f"kubelet offers none of its {amount(node)} yet"
            found.append(Waiting(name, what))
    return found


def _plugins_words(objects: Objects, node: str) -> str:
    """Read what the node's device plugin complained of last."""
    selector = f"app.kubernetes.io/name={DEVICE_PLUGIN}"
    where = f"spec.nodeName={node}"
    try:
        pods = objects.list(
            "v1",
            "Pod",
            namespace=SYSTEM,
            label_selector=selector,
            field_selector=where,
        )
        if not pods:
            return "Its device plugin has no pod there."
        name = pods[0]["metadata"]["name"]
        text = objects.log(SYSTEM, name, lines=_LOG_LINES)
    except ClusterError as error:
        return f"What its device plugin says cannot be read: {error}"
    said = complaint(text)
    return f"Its device plugin says: {said}" if said else "It goes on looking."


def complaint(log: str) -> str:
    """Give the last warning of a log of JSON lines; of another log the last lines.

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


UNDO = "gpusharectl uninstall"


def install(hands: Context, choice: InstallOptions) -> Exit:
    """Install, or with ``dry_run`` show what that would change."""
    began = hands.patience.clock()
    plan = InstallPlan(hands, choice)
    first = [
        Step("the checks", plan.check),
        Step("the choice of nodes", plan.choose),
        Step("the try with the API server", plan.rehearse),
    ]
    code = follow(first, hands.screen, Closing(choice.again()))
    if code is not Exit.DONE or choice.dry_run:
        return code
    work = InstallSteps(hands, plan)
    code = follow(work.steps(), hands.screen, Closing(plan.again(), UNDO))
    if code is Exit.DONE:
        work.close(hands.patience.clock() - began)
    return code


class InstallSteps:
    """The steps that change anything, each of which can be done again."""

    def __init__(self, hands: Context, plan: InstallPlan) -> None:
        self._hands = hands
        self._screen = hands.screen
        self._plan = plan
        self._choice = plan.choice

    def steps(self) -> list[Step]:
        """Give the steps in their order."""
        second = self._choice.second_scheduler
        workloads = [one for one in self._plan.manifests if one["kind"] in WORKLOADS]
        refs = [Ref.of(one) for one in workloads]
        later = (DEVICE_PLUGIN, EXPORTER, WEBHOOK)
        scheduling = [ref for ref in refs if ref.name not in later]
        plugin = [ref for ref in refs if ref.name == DEVICE_PLUGIN]
        exporter = [ref for ref in refs if ref.name == EXPORTER]
        webhook = self._webhook()
        what = "the second scheduler" if second else "the extender"
        return [
            *self._certificate_steps(),
            *self._leaving_steps(),
            *(webhook.before() if webhook else []),
            Step("the objects in kube-system", self.apply),
            *(self._scheduler_steps(self._early)),
            Step(f"{what} running", lambda: self._await(scheduling)),
            *(self._scheduler_steps(self._late)),
            *self._proof(),
            Step("the labels on nodes", self.label),
            Step("the device plugins running", lambda: self._await(plugin)),
            Step("the cards found", self.cards),
            *(webhook.after() if webhook else []),
            *self._monitoring_steps(exporter),
            Step("a first look", self.look),
        ]

    def apply(self) -> Trouble | None:
        """Apply every object; one that is as it should be stays untouched."""
        self._screen.begin("Applying")
        # An apply that changes nothing would yet make a new version of some.
        changing = {change.ref for change in self._plan.changes}
        due = [body for body in self._plan.manifests if Ref.of(body) in changing]
        for body in due:
            self._hands.objects.apply(body)
        told = f"{len(due)} changed" if due else "all as they were"
        self._screen.say(f"{len(self._plan.manifests)} objects, {told}")
        return None

    def certify(self) -> Trouble | None:
        """Write this host's certificates, which the extender must find at its start."""
        self._screen.begin("TLS")
        due = self._hands.certificates(self._plan.wish())
        self._hands.files.make(due)
        told = ", ".join(change.path for change in due)
        self._screen.say(f"written: {told}" if due else "all certificates are good")
        return None

    def label(self) -> Trouble | None:
        """Label the chosen nodes that lack it, which brings the device plugin."""
        self._screen.begin("Labels")
        chosen = self._plan.chosen
        missing = to_label(read_nodes(self._hands.objects), chosen)
        patch = {"metadata": {"labels": {names.GPU_NODE_LABEL: "true"}}}
        for name in missing:
            self._hands.objects.merge(Ref("v1", "Node", name), patch)
        there = [name for name in chosen if name not in missing]
        if missing:
            self._screen.say(f"{names.GPU_NODE_LABEL}=true on {', '.join(missing)}")
        if there:
            self._screen.say(f"{', '.join(there)}: labelled already")
        return None

    def cards(self) -> Trouble | None:
        """Wait for what the device plugins find; none at all is trouble."""
        self._screen.begin("Cards")
        hands = self._hands
        return await_cards(
            hands.objects, self._plan.chosen, self._screen, hands.patience
        )

    def look(self) -> Trouble | None:
        """Show what there is now."""
        try:
            self._hands.inspect()
        except ClusterError as error:
            # All is installed by now: what cannot be shown is no failure of that.
            self._screen.note(f"It cannot be shown just now: {error}")
        return None

    def close(self, took_s: float) -> None:
        """Say how long it took, and what comes next."""
        if self._read_later:
            self._screen.note(
                "k3s reads its scheduler's files when it starts. Now run:\n"
                "  systemctl restart k3s"
            )
        self._screen.note(
            f"Done in {minutes(took_s)}. Next: kubectl vcuda inspect, "
            "and a first pod: docs/install.md"
        )

    @property
    def _early(self) -> tuple[str, ...]:
        """Hosts whose Job must run before the extender: it writes its certificates."""
        return self._plan.other_hosts if self._choice.tls else ()

    @property
    def _late(self) -> tuple[str, ...]:
        """All other hosts, one after another, the leader last."""
        if self._choice.second_scheduler:
            return ()
        nodes = [*self._plan.other_hosts, self._plan.facts.here]
        nodes.sort(key=lambda node: leads(self._plan.holder, node))
        return tuple(node for node in nodes if node not in self._early)

    def _scheduler_steps(self, nodes: Sequence[str]) -> list[Step]:
        return [self._scheduler_step(node) for node in nodes]

    def _scheduler_step(self, node: str) -> Step:
        hands, wish = self._hands, self._plan.wish()

        def here() -> Trouble | None:
            self._screen.begin("Scheduler")
            return put(
                hands.host(wish),
                self._screen,
                alone=not self._plan.other_hosts,
                at_once=not self._read_later,
            )

        def there() -> Trouble | None:
            self._screen.begin("Scheduler")
            why = hands.others(wish).run("apply", node, self._screen.say)
            return Trouble(f"on {node}: {why}") if why else None

        act = here if node == self._plan.facts.here else there
        return Step(f"kube-scheduler's configuration on {node}", act)

    def _proof(self) -> list[Step]:
        """Prove the way through once all hosts are set, where there are several."""
        if not self._plan.other_hosts:
            return []
        host = self._hands.host(self._plan.wish())
        return [Step("the way to the extender", lambda: prove(host, self._screen))]

    def _certificate_steps(self) -> list[Step]:
        return [Step("the certificates", self.certify)] if self._choice.tls else []

    def _webhook(self) -> WebhookSteps | None:
        plan = self._plan
        if plan.webhook is None:
            return None
        changing = frozenset(change.ref for change in plan.changes)
        return WebhookSteps(self._hands, plan.webhook, changing, plan.again())

    def _leaving_steps(self) -> list[Step]:
        going = self._plan.going
        return [taking_away(self._hands, going)] if going else []

    def _monitoring_steps(self, exporter: Sequence[Ref]) -> list[Step]:
        """Wait for the exporters last: cards are shared without them, too."""
        if not exporter:
            return []
        return [Step("the exporters running", lambda: self._await(exporter))]

    @property
    def _read_later(self) -> bool:
        """Tell whether k3s reads its files only when somebody restarts it."""
        k3s = self._plan.facts.flavour is Flavour.K3S
        own = not self._choice.second_scheduler
        return k3s and own and not self._choice.restart

    def _await(self, refs: Sequence[Ref]) -> Trouble | None:
        hands = self._hands
        self._screen.begin("Waiting")
        trouble = run_as_told(hands.objects, refs, self._screen, hands.patience)
        if trouble is None:
            self._screen.say(f"{', '.join(ref.name for ref in refs)}: running")
        return trouble


def minutes(seconds: float) -> str:
    """Write a time as people say it.

    >>> minutes(72)
    '1 min 12 s'
    """
    whole, rest = divmod(round(seconds), 60)
    return f"{whole} min {rest} s" if whole else f"{rest} s"
