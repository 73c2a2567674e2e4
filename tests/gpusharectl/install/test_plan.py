"""install --policy: the extender's setting, and kube-scheduler's beside it.

What a quota counts on nodes: ours if our device plugin offers it, else another's.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import yaml

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import SECOND_SCHEDULER
from gpushare.kube.objects import Ref
from gpusharectl.install.cluster_facts import node_view
from gpusharectl.install.manifests import load
from gpusharectl.install.options import InstallOptions
from gpusharectl.install.plan import STAMP, judge_kept, loaded, with_preserved_settings
from gpusharectl.install.progress import Exit
from gpusharectl.install.survey import Facts
from gpusharectl.install.webhook.objects import settings_of
from gpusharectl.kube_scheduler.config import Wanted, with_stanza
from gpusharectl.kube_scheduler.drift import Flavour
from gpusharectl.kube_scheduler.files import desired_now, shipped_extender
from gpusharectl.kube_scheduler.job import Action, HostJob
from tests.gpusharectl.install.fake_objects import FakeObjects
from tests.gpusharectl.install.installed_cluster import InstalledCluster
from tests.gpusharectl.install.stand_ins import node

FACTS = Facts("v1.36.3", Flavour.KUBEADM, ())
VERSION = "v1.36.3"


def config_for(policy_frag: bool) -> Json:
    """The configuration of kube-scheduler for frag, or for another policy."""
    asked = desired_now(VERSION, frag=policy_frag)
    text = with_stanza(None, Wanted(asked.extender, "v1", all_nodes=asked.frag))
    assert isinstance(text, str)
    found: Json = yaml.safe_load(text)
    return found


def test_frags_word_outweighs_all_others() -> None:
    """The winner's 10 times 100, and every node is looked at."""
    config = config_for(policy_frag=True)
    (extender,) = config["extenders"]
    assert extender == {**shipped_extender(), "weight": 100}
    assert config["percentageOfNodesToScore"] == 100


def test_other_policies_advise() -> None:
    """As ever: the shipped weight, and as many nodes as kube-scheduler likes."""
    config = config_for(policy_frag=False)
    assert config["extenders"] == [shipped_extender()]
    assert "percentageOfNodesToScore" not in config


def test_other_hosts_are_told_too() -> None:
    """By a flag of the Job that writes their files."""
    mirror = {"spec": {"containers": [{"name": "kube-scheduler", "image": "i"}]}}
    words = []
    for frag in (True, False):
        job = HostJob(Action.RESTORE, "n", "image", VERSION, frag=frag)
        spec = job.body(mirror)["spec"]["template"]["spec"]
        words.append("--packs" in spec["containers"][0]["command"])
    assert words == [True, False]


def test_the_extender_gets_the_policy_and_the_second_scheduler_the_weight() -> None:
    """All else in its configuration stays."""
    choice = InstallOptions(second_scheduler=True, policy="frag")
    plain, packed = (
        loaded(load, Flavour.KUBEADM, replace(choice, policy=policy), image="i")
        for policy in (None, "frag")
    )
    assert settings_of(packed, "extender")["GPUSHARE_POLICY"] == "frag"
    assert "GPUSHARE_POLICY" not in settings_of(plain, "extender")
    before, after = (configuration(manifests) for manifests in (plain, packed))
    (extender,) = after.pop("extenders")
    assert extender["weight"] == 100
    assert before.pop("extenders") == [{**extender, "weight": 5}]
    assert after == before


def test_another_configuration_makes_the_second_scheduler_start_anew() -> None:
    """It reads it once, so its pods are stamped with it; the same is no change."""
    choice = InstallOptions(second_scheduler=True)
    stamps = [
        stamp(loaded(load, Flavour.MANAGED, replace(choice, policy=policy), image="i"))
        for policy in (None, "spread", "frag", "frag")
    ]
    plain, spread, packed, again = stamps
    assert plain == spread
    assert packed == again
    assert plain != packed


def test_what_is_there_stays_where_nothing_was_said() -> None:
    """An install run again must not take the policy away, and says so."""
    facts = replace(FACTS, policy="frag")
    assert with_preserved_settings(InstallOptions(), facts).policy == "frag"
    assert (
        with_preserved_settings(InstallOptions(policy="spread"), facts).policy
        == "spread"
    )
    assert with_preserved_settings(InstallOptions(), FACTS).policy is None
    told = [one.text for one in judge_kept(facts, InstallOptions())]
    assert told == ["the policy stays frag; --policy changes it"]
    assert judge_kept(facts, InstallOptions(policy="spread")) == []


def test_the_command_that_goes_on_has_it() -> None:
    """Or an interrupted install would go on with another."""
    assert InstallOptions(policy="frag").again() == "gpusharectl install --policy frag"


def stamp(manifests: Iterable[Json]) -> str:
    """Of the second scheduler's pods."""
    (found,) = (
        body["spec"]["template"]["metadata"]["annotations"][STAMP]
        for body in manifests
        if body["kind"] == "Deployment" and body["metadata"]["name"] == SECOND_SCHEDULER
    )
    return str(found)


def configuration(manifests: Iterable[Json]) -> Json:
    """The second scheduler's KubeSchedulerConfiguration."""
    for body in manifests:
        for text in (body.get("data") or {}).values():
            if "KubeSchedulerConfiguration" in text:
                found: Json = yaml.safe_load(text)
                return found
    raise AssertionError("no configuration")


GPU_1 = Ref("v1", "Node", "gpu-1")


def offering(world: InstalledCluster, amount: str) -> None:
    amounts = {names.BITFUSION_GPU: amount}
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    world.objects.merge(GPU_1, status, subresource="status")


def capacity(world: InstalledCluster) -> dict[str, str]:
    found: dict[str, str] = (world.objects.get(GPU_1) or {})["status"]["capacity"]
    return found


def test_it_is_no_other_tools_card() -> None:
    body = node("gpu-1", "10.0.0.2")
    body["status"]["allocatable"][names.BITFUSION_GPU] = "200"
    body["status"]["allocatable"]["nvidia.com/gpu"] = "2"
    assert node_view(body).others == ("nvidia.com/gpu",)
    assert node_view(body).offered == ()


def test_its_zero_is_taken_out_with_ours(tmp_path: Path) -> None:
    world = InstalledCluster(FakeObjects(), tmp_path).populate()
    assert world.install() == Exit.DONE
    offering(world, "0")
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    assert names.BITFUSION_GPU not in capacity(world)
    assert names.MEMORY not in capacity(world)


def test_what_another_offers_is_left_to_it(tmp_path: Path) -> None:
    """Bitfusion's own device plugin says 1000 on every node."""
    world = InstalledCluster(FakeObjects(), tmp_path).populate()
    offering(world, "1000")
    assert world.install() == Exit.DONE, world.screen.text
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    assert capacity(world)[names.BITFUSION_GPU] == "1000"
    assert names.MEMORY not in capacity(world)
