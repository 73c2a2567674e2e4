"""Run the plan of ``gpusharectl install``, step by step.

Cards are offered only while kube-scheduler calls the extender, and kube-scheduler is
told to call only an extender that runs. So the order is: the extender is Ready, then
kube-scheduler's configuration, then the label that starts the device plugin.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from gpushare.kube import names
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import (
    DEVICE_PLUGIN,
    EXPORTER,
    EXTENDER,
    SECOND_SCHEDULER,
    node_of,
)
from gpushare.kube.objects import Ref
from gpusharectl.installer.context import Context
from gpusharectl.installer.dra.apply import DraSteps
from gpusharectl.installer.hosts import install_hosts
from gpusharectl.installer.manifests import HOSTS_EXTENDER, PLUGIN, WORKLOADS
from gpusharectl.installer.nodes.cards import shared_together, wait_for_cards
from gpusharectl.installer.nodes.check import judge_images
from gpusharectl.installer.nodes.facts import nodes_to_label, read_nodes
from gpusharectl.installer.nodes.pods import (
    IMAGE_TRIAL,
    delete_leftover_pods,
    failures_in_words,
    image_trial_pods,
    try_images,
)
from gpusharectl.installer.options import InstallOptions
from gpusharectl.installer.plan import InstallPlan
from gpusharectl.installer.preflight import weigh_findings
from gpusharectl.installer.progress import (
    NOTHING_DONE,
    Exit,
    InstallError,
    InstallHook,
    InstallStep,
    run_steps,
)
from gpusharectl.installer.rollout import (
    apply_changed,
    previous_image,
    prune_step,
    wait_for_rollout,
)
from gpusharectl.installer.webhook.apply import WebhookSteps

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


def run_install(context: Context, options: InstallOptions) -> Exit:
    """Install, or with ``dry_run`` show what that would change."""
    if options.host_only:
        return install_hosts(context, options)
    plan = InstallPlan(context, options)
    first = [
        InstallStep("the checks", plan.check, "Checking"),
        InstallStep("the choice of nodes", plan.choose),
        InstallStep("the dry run", plan.rehearse),
        InstallStep("the confirmation", plan.confirm),
    ]
    code = run_steps(first, context.screen, options.again)
    if code is not Exit.DONE or options.dry_run:
        return code
    run = InstallRun(plan)
    return run_steps(run.steps(), context.screen, plan.again, run.ways_back, begun=True)


@dataclass
class InstallRun:
    """The steps of a plan that change anything; each can be run again."""

    plan: InstallPlan
    replaced_image: str = ""
    """The image before the one whose rollout failed."""

    def steps(self) -> list[InstallStep]:
        """Return the steps in their order."""
        plan, options = self.plan, self.plan.options
        began = plan.context.patience.clock()
        hooks = list(self._hooks())
        what = "second scheduler" if options.second_scheduler else "extender"
        # What offers cards to claims comes after what is asked about them, and goes
        # before it: the hook applies it.
        last = PLUGIN if options.dra else HOSTS_EXTENDER if plan.dra_going else None
        return [
            InstallStep("the trial of the image", self.try_image, "Image"),
            *(step for hook in hooks for step in hook.first),
            *plan.certificate_steps(),
            *(step for hook in hooks for step in hook.before_objects),
            self._applying("the objects in kube-system", last, other_objects=True),
            *(step for hook in hooks for step in hook.after_objects),
            *plan.host_steps(self._rollout(what, EXTENDER, SECOND_SCHEDULER)),
            *(step for hook in hooks for step in hook.after_hosts),
            InstallStep("the labels of nodes", self.label_nodes, "Labels"),
            self._rollout("device plugins", DEVICE_PLUGIN),
            InstallStep(
                "the search for cards",
                lambda: wait_for_cards(plan.context, plan.chosen, options),
                "Cards",
            ),
            *(step for hook in hooks for step in hook.after_cards),
            # Last, because cards are shared without the exporters too.
            *([self._rollout("exporters", EXPORTER)] * options.with_monitoring),
            InstallStep("the summary", lambda: self.close(began)),
        ]

    def _hooks(self) -> Iterator[InstallHook]:
        """Yield what DRA and the webhook add; a second scheduler is objects alone."""
        plan, context = self.plan, self.plan.context
        dra = DraSteps(plan)
        if plan.options.dra:
            plugins = self._applying("the device plugins' DaemonSet", PLUGIN)
            yield dra.hook(plugins, self._with_cards, is_new=not plan.dra.on)
        elif plan.dra_going:
            # Also if the DaemonSet has it off already: a run that stopped may have left
            # pods of before, which would write their slices again.
            runs = any(node.ready and node.labelled for node in plan.facts.nodes)
            rollout = [self._rollout("device plugins", DEVICE_PLUGIN)] if runs else []
            extender = self._applying("the extender's DaemonSet", HOSTS_EXTENDER)
            yield dra.hook_back(rollout, extender, plan.dra.leftover)
        if plan.going:
            name = "the removal of the webhook"
            removal = prune_step(context, plan.going, name, "Webhook")
            yield InstallHook(before_objects=(removal,))
        if plan.webhook:
            steps = WebhookSteps(context, plan.webhook, plan.changes, plan.again())
            yield steps.hook()

    def try_image(self) -> None:
        """Start a new image on its nodes before it replaces anything that runs."""
        plan, context, image = self.plan, self.plan.context, self.plan.target.image
        delete_leftover_pods(context.objects, IMAGE_TRIAL)
        pods = image_trial_pods(context.objects, plan.changes, plan.chosen)
        ran = try_images(context, pods)
        if ran.failed:
            runs = "; what runs stays as it is" if plan.facts.installed.images else ""
            why = failures_in_words(ran.failed)
            raise InstallError(
                f"{image} does not start on all nodes. {why}. "
                f"{NOTHING_DONE.capitalize()}{runs}",
                "let these nodes start it (docs/install.md, The image), or "
                f"choose another image:\n  {plan.again(image='IMAGE')}",
            )
        if pods:
            plan.screen.say(f"{image} starts on {', '.join(map(node_of, pods))}")
        weigh_findings(judge_images(ran), plan.screen, sure=plan.options.yes)

    def ways_back(self) -> Mapping[str, str]:
        """Return the commands that undo what a step has begun."""
        new = self.plan.target.image
        old = self.plan.facts.installed.image
        if old == new:
            old = self.replaced_image
        back = old and old != new
        return {
            **({"go back": self.plan.again(image=old)} if back else {}),
            "undo all": "gpusharectl uninstall",
        }

    def label_nodes(self) -> None:
        """Label the chosen nodes, which starts the device plugin there."""
        chosen, objects = self.plan.chosen, self.plan.context.objects
        missing = nodes_to_label(read_nodes(objects), chosen)
        patch = {"metadata": {"labels": {names.GPU_NODE_LABEL: "true"}}}
        for name in missing:
            objects.merge(Ref("v1", "Node", name), patch)
        labelled = [name for name in chosen if name not in missing]
        if missing:
            self.plan.screen.say(f"{names.GPU_NODE_LABEL}=true on {', '.join(missing)}")
        if labelled:
            self.plan.screen.say(f"{', '.join(labelled)}: already labelled")

    def close(self, began: float) -> None:
        """Say what is shared now, and how to see it and to use it."""
        plan, screen = self.plan, self.plan.screen
        summary = f"Done in {duration_in_words(plan.context.patience.clock() - began)}"
        plan.note_restart()
        try:
            nodes = read_nodes(plan.context.objects)
            sharing = [
                node for node in nodes if node.name in plan.chosen and node.has_cards
            ]
            summary += f": {shared_together(sharing)}"
        except ClusterError as error:
            # The install is complete; a failed look is no failure of it.
            screen.note(f"The nodes cannot be read now: {error}")
        screen.note(summary)
        screen.show("Next: gpusharectl inspect")
        before = [node for node in plan.facts.nodes if node.name in plan.chosen]
        if any(not node.has_cards for node in before):
            scheduler = _SECOND_NAME if plan.options.second_scheduler else ""
            screen.note("\nA first pod, with 1 GiB of one card:")
            screen.show(first_pod_commands(scheduler, self._runtime_class()))
            screen.note(
                "The log has one line: GPU 0, its model and its UUID. With a driver "
                "older than 550 use a tag of the CUDA version that nvidia-smi shows on "
                "the node."
            )

    def _runtime_class(self) -> str:
        """Return the RuntimeClass of the device plugin, which pods need there too."""
        (plugin,) = (body for body in self.plan.manifests if Ref.of(body) == PLUGIN)
        return str(plugin["spec"]["template"]["spec"].get("runtimeClassName", ""))

    def _applying(
        self, name: str, ref: Ref | None, *, other_objects: bool = False
    ) -> InstallStep:
        """Return the step that applies this object, or all others."""
        plan = self.plan
        bodies = [
            body
            for body in plan.manifests
            if (Ref.of(body) == ref) is not other_objects
        ]
        apply = partial(apply_changed, plan.context, bodies, plan.changes)
        return InstallStep(name, apply, "Applying")

    def _with_cards(self) -> list[str]:
        """Return the chosen nodes whose device plugins offer cards now."""
        nodes = read_nodes(self.plan.context.objects)
        offering = {node.name for node in nodes if node.ready and node.offered}
        return [name for name in self.plan.chosen if name in offering]

    def _rollout(self, what: str, *workloads: str) -> InstallStep:
        refs = [
            Ref.of(body)
            for body in self.plan.manifests
            if body["kind"] in WORKLOADS and body["metadata"]["name"] in workloads
        ]
        context = self.plan.context

        def wait() -> None:
            try:
                wait_for_rollout(context, refs)
            except InstallError:
                # An earlier run may have changed the image.
                with suppress(ClusterError):
                    self.replaced_image = previous_image(context.objects, refs)
                raise

        return InstallStep(f"the rollout of the {what}", wait, "Waiting")


def duration_in_words(seconds: float) -> str:
    """Return a duration in minutes and seconds.

    >>> duration_in_words(72)
    '1 min 12 s'
    """
    whole, rest = divmod(round(seconds), 60)
    return f"{whole} min {rest} s" if whole else f"{rest} s"


def first_pod_commands(scheduler: str, runtime_class: str) -> str:
    """Return the commands that create a pod with a share of a card and show its log.

    ``scheduler`` and ``runtime_class`` are names for its spec, if it needs them.
    """
    fields = {"schedulerName": scheduler, "runtimeClassName": runtime_class}
    lines = "".join(f"  {key}: {name}\n" for key, name in fields.items() if name)
    return _FIRST_POD.format(lines=lines)
