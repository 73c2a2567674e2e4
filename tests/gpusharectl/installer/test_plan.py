"""install --policy: the extender's setting, and kube-scheduler's beside it.

install --isolation: the device plugin's setting, and what a change of it means.

What a quota counts on nodes: ours if our device plugin offers it, else another's.
"""

from collections.abc import Iterable

import pytest
import yaml

from deviceplugin.allocation.isolation import ISOLATION_CHOICES as PLUGINS_CHOICES
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards
from gpushare.kube.cluster import Json
from gpushare.kube.facts import DEVICE_PLUGIN, SECOND_SCHEDULER
from gpushare.kube.objects import Ref
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.manifests import (
    STAMP,
    compose_install,
    container_settings,
    load_manifests,
)
from gpusharectl.installer.options import ISOLATION_CHOICES, InstallOptions
from gpusharectl.installer.preflight import CheckFinding, Weight, group_findings
from gpusharectl.installer.progress import Exit
from tests.builders import card
from tests.gpusharectl.installer.installed_cluster import InstalledCluster


def with_policy(policy: str | None) -> tuple[Json, ...]:
    choice = InstallOptions(second_scheduler=True, policy=policy)
    return compose_install(load_manifests, Flavour.KUBEADM, choice, image="i")


def configuration(manifests: Iterable[Json]) -> Json:
    """The second scheduler's KubeSchedulerConfiguration."""
    (text,) = (
        text
        for body in manifests
        for text in (body.get("data") or {}).values()
        if "KubeSchedulerConfiguration" in text
    )
    found: Json = yaml.safe_load(text)
    return found


def test_the_extender_gets_the_policy_and_the_second_scheduler_the_weight() -> None:
    """All else in its configuration stays."""
    plain, packed = with_policy(None), with_policy("frag")
    assert container_settings(packed, "extender")["GPUSHARE_POLICY"] == "frag"
    assert "GPUSHARE_POLICY" not in container_settings(plain, "extender")
    before, after = configuration(plain), configuration(packed)
    (extender,) = after.pop("extenders")
    assert extender["weight"] == 100
    assert before.pop("extenders") == [{**extender, "weight": 5}]
    assert after == before


def test_another_configuration_makes_the_second_scheduler_start_anew() -> None:
    """It reads it once, so its pods are stamped with it; the same is no change."""
    plain, spread, packed, again = (
        body["spec"]["template"]["metadata"]["annotations"][STAMP]
        for policy in (None, "spread", "frag", "frag")
        for body in with_policy(policy)
        if (body["kind"], body["metadata"]["name"]) == ("Deployment", SECOND_SCHEDULER)
    )
    assert plain == spread != packed == again


TIER = "GPUSHARE_ISOLATION"


def test_the_tier_is_the_device_plugins_setting_and_stays(
    world: InstalledCluster,
) -> None:
    """A first install sets none; each later one keeps what is there."""
    assert world.install() == Exit.DONE
    assert TIER not in world.settings(DEVICE_PLUGIN)
    for wanted, found in (("driver", "driver"), (None, "driver"), ("none", "none")):
        assert world.install(isolation=wanted) == Exit.DONE, world.screen.text
        assert world.settings(DEVICE_PLUGIN)[TIER] == found
    world.screen.lines.clear()
    assert world.install() == Exit.DONE
    assert "none changed" in world.screen.text


def test_a_dry_run_shows_the_tier(world: InstalledCluster) -> None:
    assert world.install(isolation="driver", dry_run=True, yes=False) == Exit.DONE
    assert "- isolation tier driver on all nodes with cards" in world.screen.lines
    assert f"- name: {TIER}\n" in world.screen.text


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (None, "driver", "tier none becomes driver: containers that exist keep what"),
        ("driver", "none", "tier driver becomes none"),
        ("driver", "preload", "keep what they have; create their pods anew"),
        ("driver", "driver", ""),
        (None, None, ""),
        ("auto", None, "isolation stays auto; --isolation changes it   ok"),
    ],
)
def test_what_another_tier_means_is_told_before(
    world: InstalledCluster, before: str | None, after: str | None, says: str
) -> None:
    assert world.install(isolation=before) == Exit.DONE
    world.screen.lines.clear()
    assert world.install(isolation=after) == Exit.DONE
    (told,) = [one for one in world.screen.lines if "isolation" in one] or [""]
    assert says in told
    assert told.endswith("   warning") is ("becomes" in told)
    assert bool(told) is bool(says)


def test_the_tiers_are_those_of_the_device_plugin() -> None:
    assert set(ISOLATION_CHOICES) == set(PLUGINS_CHOICES)


@pytest.mark.parametrize(("label", "late_s"), [("driver", 20), ("preload", 60)])
def test_cards_that_fail_the_tiers_checks_are_told(
    world: InstalledCluster, label: str, late_s: int
) -> None:
    """With their reason, and the way back: the driver is loaded, and the cards sick.

    It waits for another check, but not as long as for a driver's first answer. What was
    written under another tier says nothing yet.
    """
    assert world.install() == Exit.DONE
    ref, amounts = Ref("v1", "Node", "gpu-1"), {names.MEMORY: "0", names.CORE: "0"}
    why = "isolation tier driver: the node has cgroup v1"
    notes = {names.CARDS: encode_cards([card(0, 29, healthy=False, reason=why)])}
    labels = {names.ISOLATION: label}
    world.objects.merge(ref, {"metadata": {"annotations": notes, "labels": labels}})
    world.objects.merge(ref, {"status": {"allocatable": amounts}}, subresource="status")
    began_s = world.clock.now_s
    assert world.install(isolation="driver") == Exit.STOPPED
    assert late_s <= world.clock.now_s - began_s < late_s + 15
    text = world.screen.text
    assert f"no card is offered; gpu-1: its 1 card, 29 units are sick: {why}" in text
    assert "gpusharectl install --nodes gpu-1 --isolation none --yes" in text


@pytest.mark.parametrize(("amount", "left"), [("0", None), ("1000", "1000")])
def test_only_our_zero_goes(
    world: InstalledCluster, amount: str, left: str | None
) -> None:
    """Bitfusion's own device plugin says 1000 on every node, and is no other's card."""
    ref, amounts = Ref("v1", "Node", "gpu-1"), {names.BITFUSION_GPU: amount}
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    world.objects.merge(ref, status, subresource="status")
    assert world.install() == Exit.DONE, world.screen.text
    assert "another device plugin" not in world.screen.text
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    capacity = (world.objects.get(ref) or {})["status"]["capacity"]
    assert capacity.get(names.BITFUSION_GPU) == left
    assert names.MEMORY not in capacity


def test_what_is_equal_of_many_nodes_is_told_once() -> None:
    """All names of those where something is wrong; of the others the first ones."""
    many = [CheckFinding(Weight.OK, f"node gpu-{number}: well") for number in range(12)]
    bad = [
        CheckFinding(Weight.WARNING, f"node {name}: no driver")
        for name in "abcdefghijk"
    ]
    alone = CheckFinding(Weight.OK, "you have all needed rights")
    assert [
        one.text for one in group_findings([alone, *many, *bad, CheckFinding(*OTHER)])
    ] == [
        alone.text,
        "nodes gpu-0, gpu-1, gpu-2 and 9 more: well",
        "nodes a, b, c, d, e, f, g, h, i, j, k: no driver",
        OTHER[1],
    ]


OTHER = (Weight.WARNING, "node z: something else")
