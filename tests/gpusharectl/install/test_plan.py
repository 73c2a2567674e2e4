"""install --policy: the extender's setting, and kube-scheduler's beside it.

What a quota counts on nodes: ours if our device plugin offers it, else another's.
"""

from collections.abc import Iterable

import pytest
import yaml

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import SECOND_SCHEDULER
from gpushare.kube.objects import Ref
from gpusharectl.install.manifests import STAMP, load, loaded, settings_of
from gpusharectl.install.options import InstallOptions
from gpusharectl.install.plan import grouped
from gpusharectl.install.preflight import Finding, Weight
from gpusharectl.install.progress import Exit
from gpusharectl.kube_scheduler.drift import Flavour
from tests.gpusharectl.install.installed_cluster import InstalledCluster


def with_policy(policy: str | None) -> tuple[Json, ...]:
    choice = InstallOptions(second_scheduler=True, policy=policy)
    return loaded(load, Flavour.KUBEADM, choice, image="i")


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
    assert settings_of(packed, "extender")["GPUSHARE_POLICY"] == "frag"
    assert "GPUSHARE_POLICY" not in settings_of(plain, "extender")
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
    many = [Finding(Weight.OK, f"node gpu-{number}: well") for number in range(12)]
    bad = [Finding(Weight.WARNING, f"node {name}: no driver") for name in "abcdefghijk"]
    alone = Finding(Weight.OK, "you have all needed rights")
    assert [one.text for one in grouped([alone, *many, *bad, Finding(*OTHER)])] == [
        alone.text,
        "nodes gpu-0, gpu-1, gpu-2 and 9 more: well",
        "nodes a, b, c, d, e, f, g, h, i, j, k: no driver",
        OTHER[1],
    ]


OTHER = (Weight.WARNING, "node z: something else")
