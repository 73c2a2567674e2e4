"""Switch DRA on, keep the API server's trust in the arbiters, or take DRA back.

A card is offered to claims only while the API server asks the arbiters, and it asks
only arbiters that answer. So the order is: the extender of each control-plane host
answers with its certificate, then the webhook's configuration with the authorities of
all hosts, then the device plugins. It is taken back in the opposite order. Wherever
that stops, at most claims are not allocated.
"""

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import (
    DEVICE_PLUGIN,
    EXTENDER,
    PART_NAME,
    SYSTEM,
    is_leaving,
    name_of,
    node_of,
)
from gpushare.kube.facts import read_environment as settings_of_pod
from gpushare.kube.names import EXTENDER_CLAIMS_PORT
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.words import counted
from gpushare.settings import PREFIX
from gpusharectl.installer.context import Context
from gpusharectl.installer.dra.objects import (
    CONFIGURATION,
    claims_configuration,
    join_authorities,
    list_slices,
    trusted_authorities,
)
from gpusharectl.installer.hosts import HostsPlan
from gpusharectl.installer.kube_scheduler.host_files import Obstacle
from gpusharectl.installer.manifests import PLUGIN, container_settings
from gpusharectl.installer.nodes.cards import read_complaint
from gpusharectl.installer.options import DRA, ON
from gpusharectl.installer.progress import (
    InstallError,
    InstallHook,
    InstallStep,
    Waiting,
)
from gpusharectl.installer.rollout import prune_step
from gpusharectl.output import find_changes

ANSWERS_WITHIN_S = 60.0
"""The extender is Ready by then, and reads new certificates for each connection."""
OFFERED_WITHIN_S = 60.0
_READY = "/readyz"
_CLIENT_CA = f"{PREFIX}CLAIMS_TLS_CLIENT_CA"
"""Variable of the extender: only clients with a certificate may ask the arbiter."""
_AS_ASKED = "127.0.0.1"
"""The name by which the API server calls the arbiter, so the certificate must have it.
"""


@dataclass
class DraSteps:
    """The steps that switch DRA on, or renew what the API server trusts."""

    plan: HostsPlan
    authorities: dict[str, bytes] = field(default_factory=dict)
    """The authority of each host."""

    @property
    def context(self) -> Context:
        """The context of the plan."""
        return self.plan.context

    def hook(
        self, plugins: InstallStep, nodes: Callable[[], Sequence[str]], *, is_new: bool
    ) -> InstallHook:
        """Return the steps that switch DRA on: ``plugins`` lets them offer cards.

        Then these ``nodes`` have to do so.
        """
        name = "the look at the other control-plane hosts"
        look = InstallStep(name, self.look_at_others, "DRA")
        offer = InstallStep("the ResourceSlices", lambda: self.wait_for(nodes()), "DRA")
        return InstallHook(
            first=[look] if is_new and self.plan.other_hosts else (),
            after_hosts=(
                InstallStep("the webhook for claims", self.ask, "DRA"),
                plugins,
            ),
            after_cards=(offer,),
        )

    def hook_back(
        self, rollout: Sequence[InstallStep], extender: InstallStep, refs: Sequence[Ref]
    ) -> InstallHook:
        """Return the steps that take cards back from claims, then stop the asking.

        ``rollout`` is that of the device plugins, ``extender`` applies its DaemonSet,
        and ``refs`` are what only DRA needs, the DeviceClass last.
        """
        due = [ref for ref in refs if ref != CONFIGURATION]
        return InstallHook(
            after_objects=(
                InstallStep("DRA off", lambda: check_plugins_without(self.context)),
                *rollout,
                InstallStep(
                    "the ResourceSlices", lambda: delete_slices(self.context), "DRA"
                ),
                extender,
            ),
            after_hosts=(prune_step(self.context, due, "the objects of DRA", "DRA"),),
        )

    def look_at_others(self) -> None:
        """Read the other hosts' authorities; refuse where DRA cannot hold."""
        others = self.context.others(self.plan.target)
        for node in self.plan.other_hosts:
            seen = others.look(node, self.plan.screen.say)
            if isinstance(seen, Obstacle):
                raise InstallError(f"on {node}: {seen}")
            self.authorities[node] = seen

    def ask(self) -> None:
        """Let the API server ask the arbiter of each host, once all of them answer."""
        self.look_at_others()
        self.authorities[self.plan.facts.here] = self.plan.host.authority
        for node, text in self.authorities.items():
            if not text.strip():
                raise InstallError(
                    f"{node} has no authority in its folder of TLS files, which this "
                    "install should have written"
                )
        objects, screen = self.context.objects, self.context.screen
        waits = self.context.until(
            lambda: find_unanswered(objects, self.authorities), ANSWERS_WITHIN_S
        )
        if waits:
            raise InstallError(
                "not all arbiters answer, so no card is offered to claims yet: "
                f"{'; '.join(map(str, waits))}"
            )
        wanted = claims_configuration(join_authorities(self.authorities))
        hosts = ", ".join(sorted(self.authorities))
        if not find_changes(objects, [wanted]):
            screen.say(f"as before, the API server of {hosts} asks the extender there")
            return
        objects.apply(wanted)
        screen.say(
            f"from now on, the API server of {hosts} asks the extender there before it "
            "stores an allocation"
        )

    def wait_for(self, nodes: Sequence[str]) -> None:
        """Wait until nodes offer their cards to claims; fail if none does."""
        objects, screen = self.context.objects, self.context.screen

        def look() -> list[Waiting]:
            there = {slice_["spec"].get("nodeName") for slice_ in list_slices(objects)}
            missing = [name for name in nodes if name not in there]
            return [Waiting(name, "its ResourceSlice") for name in missing]

        late = [wait.who for wait in self.context.until(look, OFFERED_WITHIN_S)]
        if well := [name for name in nodes if name not in late]:
            screen.say(f"{', '.join(well)}: cards are offered to claims too")
        reasons = [
            f"{name}: no ResourceSlice yet. {read_complaint(objects, name)}"
            for name in late
        ]
        screen.say("\n".join(reasons))
        if late and not well:
            raise InstallError(
                f"no card is offered to claims; {' '.join(reasons)}",
                "repair what it says, the device plugin then goes on by itself; or "
                "without DRA: the same command with --no-dra",
            )


def find_unanswered(objects: Objects, hosts: Mapping[str, bytes]) -> list[Waiting]:
    """Return the hosts whose arbiter does not answer with a certificate of theirs.

    ``hosts`` has the certificate of each one's authority. An arbiter that wants to see
    the API server's certificate, by the operator's setting, cannot be asked from here.
    """
    label = f"{PART_NAME}={EXTENDER}"
    extenders = objects.list("v1", "Pod", namespace=SYSTEM, label_selector=label)
    pods = {node_of(pod): pod for pod in extenders if not is_leaving(pod)}
    waits = []
    for node, authority in hosts.items():
        pod = pods.get(node)
        if pod is None:
            waits.append(Waiting(f"the extender on {node}", "its pod"))
        elif why := _why_no_answer(objects, pod, authority):
            waits.append(Waiting(f"the arbiter on {node}", why))
    return waits


def _why_no_answer(objects: Objects, pod: Json, authority: bytes) -> str:
    if settings_of_pod(pod).get(_CLIENT_CA):
        return ""
    try:
        tls = (ssl.create_default_context(cadata=authority.decode()), _AS_ASKED)
        objects.fetch(SYSTEM, name_of(pod), EXTENDER_CLAIMS_PORT, _READY, tls=tls)
    except (ClusterError, ssl.SSLError) as error:
        return str(error)
    return ""


def check_plugins_without(context: Context) -> None:
    """Make sure that the device plugins' DaemonSet has DRA off.

    A variable that somebody has set with another tool stays when objects are applied.
    """
    body = context.objects.get(PLUGIN)
    if container_settings([body] if body else [], "device-plugin").get(DRA) == ON:
        raise InstallError(
            f"{PLUGIN} still has {DRA}={ON}, set by somebody else",
            "remove it, then the same command again:\n  kubectl -n kube-system set "
            f"env daemonset/{DEVICE_PLUGIN} {DRA}-",
        )


def delete_slices(context: Context) -> None:
    """Delete the driver's slices, then let the API server ask no arbiter any more."""
    objects = context.objects
    gone = [slice_ for slice_ in list_slices(objects) if objects.delete(Ref.of(slice_))]
    was_asking = objects.delete(CONFIGURATION)
    number = f"{counted(len(gone), 'ResourceSlice')} deleted"
    context.screen.say(f"{number}{f', {CONFIGURATION} deleted' if was_asking else ''}")


def trusted_configuration(
    objects: Objects, here: str, own: bytes, *, alone: bool
) -> Json:
    """Return the configuration as far as it is known before the hosts are looked at.

    ``alone``: there is no other host, so it is known.
    """
    if alone and own:
        return claims_configuration(join_authorities({here: own}))
    return claims_configuration(trusted_authorities(objects) or own)
