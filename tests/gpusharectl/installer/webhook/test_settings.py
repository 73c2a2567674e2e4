"""``install --with-webhook``: beside the rest, with its settings, and gone with it."""

import pytest

from gpushare.kube.facts import SYSTEM
from gpushare.kube.objects import Ref
from gpusharectl.installer.options import WebhookOptions
from gpusharectl.installer.progress import Exit
from gpusharectl.installer.webhook.objects import CONFIGURATIONS, DEPLOYMENT
from tests.gpusharectl.installer.installed_cluster import (
    EVERY_KIND,
    WEBHOOKS_KINDS,
    InstalledCluster,
    runtime_class,
)
from tests.gpusharectl.installer.trust_checking_objects import TrustCheckingObjects

WANTED = WebhookOptions(wanted=True)
VARIABLES = {
    "GPUSHARE_VOID": "on",
    "GPUSHARE_SET_SCHEDULER": "vcuda-scheduler",
    "GPUSHARE_SET_RUNTIME_CLASS": "nvidia",
    "GPUSHARE_ENV_FROM": "deny",
    "GPUSHARE_QUOTAS": "on",
    "GPUSHARE_BITFUSION_CARD_MIB": "auto",
    "GPUSHARE_BITFUSION_SHELL": "/bin/sh",
    "GPUSHARE_BITFUSION_STRICT": "on",
    "GPUSHARE_BITFUSION_QUOTA": "on",
}
NAMES = {name: name.removeprefix("GPUSHARE_").lower() for name in VARIABLES}
SAID = {NAMES[name]: text == "on" or text for name, text in VARIABLES.items()}
ALL = WebhookOptions(wanted=True, **SAID)
NONE = WebhookOptions(
    **{name: False if said is True else "" for name, said in SAID.items()}
)
PLUGIN, EXTENDER = "gpushare-device-plugin", "gpushare-extender"


@pytest.fixture
def objects() -> TrustCheckingObjects:
    return TrustCheckingObjects(InstalledCluster.now)


def entries(world: InstalledCluster) -> list[str]:
    found = world.objects.kept[CONFIGURATIONS[0]]["webhooks"]
    return [one["name"].partition(".")[0] for one in found]


def settings(world: InstalledCluster, daemonset: str = "") -> dict[str, str]:
    """The variables of the webhook's container, or of a DaemonSet's."""
    if daemonset:
        return world.settings(daemonset)
    return world.settings(DEPLOYMENT.name, DEPLOYMENT.kind)


def given(world: InstalledCluster, daemonset: str = "") -> dict[str, str]:
    """The variables that an option gives."""
    known = {*VARIABLES, "GPUSHARE_UI", "GPUSHARE_POLICY"}
    found = settings(world, daemonset)
    return {key: value for key, value in found.items() if key in known}


def test_it_comes_when_it_is_asked_for(world: InstalledCluster) -> None:
    """Without the option there is none of it; with it, the cards come first."""
    assert world.install() == Exit.DONE
    kinds = {kind for _, kind in WEBHOOKS_KINDS}
    assert not kinds & {ref.kind for ref in world.objects.kept}
    assert "webhook" not in world.screen.text
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    assert kinds <= {ref.kind for ref in world.objects.kept}
    assert given(world) == {}
    lines = world.screen.lines
    found = lines.index("gpu-1: 1 card, 29 units")
    assert lines.index("gpushare-webhook: running") > found
    # It is a Deployment of ours as well.
    assert world.install() == Exit.DONE
    assert "second scheduler" not in world.screen.text


def test_its_settings_are_its_variables_and_stay(world: InstalledCluster) -> None:
    """The quota's is the device plugin's too; each can be changed and taken away."""
    assert world.install(webhook=ALL) == Exit.DONE, world.screen.text
    assert given(world) == VARIABLES
    assert given(world, PLUGIN) == {"GPUSHARE_BITFUSION_QUOTA": "on"}
    assert entries(world)[-1] == "void"
    before = world.picture(EVERY_KIND)
    world.objects.writes.clear()
    assert world.install() == Exit.DONE
    assert world.picture(EVERY_KIND) == before
    assert world.objects.writes == []
    kept = "the webhook is installed and stays; --no-webhook removes it   ok"
    assert kept in world.screen.lines
    assert "these settings of the webhook stay: GPUSHARE_VOID=on, " in world.screen.text
    assert world.install(webhook=WebhookOptions(set_scheduler="b")) == Exit.DONE
    assert given(world) == VARIABLES | {"GPUSHARE_SET_SCHEDULER": "b"}
    assert world.install(webhook=NONE) == Exit.DONE, world.screen.text
    assert given(world) == given(world, PLUGIN) == {}
    assert "void" not in entries(world)


def test_it_is_told_which_runtime_classes_bring_cards(world: InstalledCluster) -> None:
    """By their handlers, where the name does not tell; and when one goes."""
    for one in (("gold", "nvidia-cdi"), ("sand", "runsc"), ("nvidia", "nvidia")):
        world.objects.create(runtime_class(*one))
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    assert settings(world)["GPUSHARE_CARD_CLASSES"] == "gold"
    world.objects.delete(Ref("node.k8s.io/v1", "RuntimeClass", "gold"))
    assert world.install() == Exit.DONE, world.screen.text
    assert "GPUSHARE_CARD_CLASSES" not in settings(world)


@pytest.mark.parametrize(
    ("wanted", "kept"), [(1, 1), (3, 3), (0, 2)], ids=["one", "more", "none"]
)
def test_replicas_that_somebody_has_set_stay(
    world: InstalledCluster, wanted: int, kept: int
) -> None:
    """But for none at all, with which no pod that asks for a card could be made."""
    world.install(webhook=WANTED)
    world.objects.merge(DEPLOYMENT, {"spec": {"replicas": wanted}})
    for number in range(wanted or 2, 2):
        world.objects.kept.pop(Ref("v1", "Pod", f"{DEPLOYMENT.name}-{number}", SYSTEM))
    assert world.install(image="x/gpushare:2") == Exit.DONE, world.screen.text
    assert world.objects.kept[DEPLOYMENT]["spec"]["replicas"] == kept
    said = f"the webhook's number of replicas stays {kept}   ok"
    none = "the webhook has 0 replicas and gets 2 again   ok"
    assert (said if wanted else none) in world.screen.lines


def test_one_that_does_not_start_is_asked_nothing(world: InstalledCluster) -> None:
    """Else no pod that asks for cards could be made."""
    world.nodes.stuck.add("gpushare-webhook")
    assert world.install(webhook=WANTED) == Exit.STOPPED
    assert not set(CONFIGURATIONS) & set(world.objects.kept)
    text = world.screen.text
    assert "Not done: the webhook's rollout, the webhook's configurations, " in text
    assert "gpusharectl install --nodes gpu-1 --with-webhook" in text


def test_it_alone_is_taken_away(world: InstalledCluster) -> None:
    """The asking first, and the device plugin's part of it with it."""
    world.install()
    before = world.picture(EVERY_KIND)
    world.install(webhook=ALL)
    going = WebhookOptions(wanted=False)
    with_it = world.picture(EVERY_KIND)
    assert world.install(webhook=going, dry_run=True) == Exit.DONE
    assert world.picture(EVERY_KIND) == with_it
    assert f"- {DEPLOYMENT}" in world.screen.lines
    world.objects.writes.clear()
    assert world.install("y", webhook=going) == Exit.DONE, world.screen.text
    assert "- the webhook is removed" in world.screen.lines
    assert world.objects.writes[:2] == [f"delete {ref}" for ref in CONFIGURATIONS]
    world.nodes.step()
    assert set(world.picture(EVERY_KIND)) == set(before)
    assert given(world, PLUGIN) == {}
    assert world.install(webhook=going) == Exit.DONE
    assert "the webhook" not in world.screen.text
    world.install(webhook=ALL)
    world.objects.writes.clear()
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    assert world.objects.writes[:2] == [f"delete {ref}" for ref in CONFIGURATIONS]


def test_page_and_policy_likewise(world: InstalledCluster) -> None:
    """Given once they stay, until they are taken away or changed."""
    assert world.install(ui=True, policy="frag") == Exit.DONE, world.screen.text
    assert world.install() == Exit.DONE
    both = {"GPUSHARE_UI": "on", "GPUSHARE_POLICY": "frag"}
    assert given(world, EXTENDER) == both
    kept = "the extender serves its page and keeps it; --no-ui removes it   ok"
    assert kept in world.screen.lines
    assert "the policy stays frag; --policy changes it   ok" in world.screen.lines
    assert world.install(ui=False, policy="spread") == Exit.DONE
    assert given(world, EXTENDER) == {"GPUSHARE_POLICY": "spread"}
    assert "the policy stays" not in world.screen.text
