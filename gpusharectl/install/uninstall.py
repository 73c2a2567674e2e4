"""``gpusharectl uninstall``, step after step: install's order, backwards.

First the API server ceases to ask the webhook, without which it would make no pod that
asks for cards; then the device plugins go, so that no card is offered which nobody
would choose; then our stanza, so that kube-scheduler never calls an extender that is
gone; then the rest.
"""

from collections.abc import Callable, Mapping, Sequence

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import Forbidden, Invalid
from gpushare.kube.objects import Ref
from gpusharectl.install.choice import Leaving
from gpusharectl.install.cleaning import clean_nodes
from gpusharectl.install.finding import our_pods
from gpusharectl.install.flavour import Flavour
from gpusharectl.install.hands import Hands
from gpusharectl.install.labels import NAME, PLUGIN
from gpusharectl.install.leaving import LeavingPlan
from gpusharectl.install.nodeview import named
from gpusharectl.install.progress import Waiting
from gpusharectl.install.schedulerwork import take
from gpusharectl.install.steps import Closing, Exit, Step, Trouble, follow
from gpusharectl.install.survey import leads, read_nodes
from gpusharectl.install.zeros import counted, take_out

GUARD_LINGERS_S = 10.0
"""The API server's own watch tells it that a policy is gone a moment later."""
_MANY = 4


def uninstall(hands: Hands, choice: Leaving) -> Exit:
    """Take everything away, or with ``dry_run`` show what that would change."""
    plan = LeavingPlan(hands, choice)
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
    return follow(Departure(hands, plan).steps(), hands.screen, closing)


class Departure:
    """The steps that take away, each of which can be done again."""

    def __init__(self, hands: Hands, plan: LeavingPlan) -> None:
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
        return self._delete(self._plan.plugin, PLUGIN)

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
        left = take_out(hands.objects, self._screen, hands.patience)
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
            if name and (pod["metadata"].get("labels") or {}).get(NAME) != name:
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
