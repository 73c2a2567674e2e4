"""``install --with-monitoring``: beside the rest, after it, and gone with it."""

from pathlib import Path

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.facts import EXPORTER, SYSTEM
from gpushare.kube.objects import Ref
from gpusharectl.install.progress import Exit
from tests.gpusharectl.install.fake_objects import FakeObjects
from tests.gpusharectl.install.installed_cluster import (
    EVERY_KIND,
    OPERATORS_KINDS,
    InstalledCluster,
)

DAEMONSET = Ref("apps/v1", "DaemonSet", EXPORTER, SYSTEM)
OWN_FIELDS = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "gpushare-exporter-fields", "namespace": SYSTEM},
    "data": {"fields.csv": "DCGM_FI_DEV_FB_USED, gauge, used\n"},
}


@pytest.fixture
def world(tmp_path: Path) -> InstalledCluster:
    return InstalledCluster(FakeObjects(), tmp_path).populate()


def fake(world: InstalledCluster) -> FakeObjects:
    assert isinstance(world.objects, FakeObjects)
    return world.objects


def kinds(world: InstalledCluster) -> set[str]:
    return {ref.kind for ref in fake(world).kept}


def image(world: InstalledCluster) -> str:
    body: Json = world.objects.get(DAEMONSET) or {}
    return str(body["spec"]["template"]["spec"]["containers"][0]["image"])


def test_it_comes_when_it_is_asked_for(world: InstalledCluster) -> None:
    """Without the option there is none of it."""
    assert world.install() == Exit.DONE
    assert world.objects.get(DAEMONSET) is None
    assert "Service" not in kinds(world)
    assert world.install(with_monitoring=True) == Exit.DONE, world.screen.text
    operators = {kind for _, kind in OPERATORS_KINDS}
    assert {"Service", "ConfigMap", *operators} <= kinds(world)
    assert "gpushare-exporter: running" in world.screen.text


def test_in_one_command_from_nothing(world: InstalledCluster) -> None:
    """The exporter is waited for when the cards are there, not before."""
    assert world.install(with_monitoring=True) == Exit.DONE, world.screen.text
    lines = world.screen.lines
    found = lines.index("gpu-1: 1 card, 29 units")
    assert lines.index("gpushare-exporter: running") > found
    assert lines.index("gpushare-device-plugin: running") < found


def test_without_the_option_it_stays_as_it_is(world: InstalledCluster) -> None:
    """Also when the rest gets another image; and that is said."""
    world.install(with_monitoring=True)
    assert world.install(image="gpushare:9") == Exit.DONE
    assert image(world) == "gpushare:0.1.0"
    assert (
        "monitoring is installed and stays unchanged, with image gpushare:0.1.0; "
        "--with-monitoring updates it, with --image its image too   ok"
    ) in world.screen.lines
    assert world.install(with_monitoring=True) == Exit.DONE
    assert image(world) == "gpushare:0.1.0"
    assert (
        "the images stay: gpushare-extender gpushare:9, "
        "gpushare-device-plugin gpushare:9, gpushare-exporter gpushare:0.1.0; "
        "--image changes all of them   ok"
    ) in world.screen.lines
    assert world.install(image="gpushare:9", with_monitoring=True) == Exit.DONE
    assert image(world) == "gpushare:9"
    assert "stays as it is" not in world.screen.text


def test_where_there_is_no_operator(world: InstalledCluster) -> None:
    """Its objects are left out, and that is said; uninstalling does without, too."""
    before = world.picture()
    fake(world).unserved.update(kind for _, kind in OPERATORS_KINDS)
    assert world.install(with_monitoring=True) == Exit.DONE, world.screen.text
    assert not {kind for _, kind in OPERATORS_KINDS} & kinds(world)
    assert world.objects.get(DAEMONSET) is not None
    assert "Operator is not installed, so no ServiceMonitor" in world.screen.text
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    assert world.picture() == before


def test_an_operator_that_comes_later(world: InstalledCluster) -> None:
    """The same command gives it its objects."""
    unserved = fake(world).unserved
    unserved.update(kind for _, kind in OPERATORS_KINDS)
    world.install(with_monitoring=True)
    unserved.clear()
    assert world.install(with_monitoring=True) == Exit.DONE
    assert {kind for _, kind in OPERATORS_KINDS} <= kinds(world)
    assert "no Prometheus Operator" not in world.screen.text


def test_an_exporter_that_does_not_start_is_told(world: InstalledCluster) -> None:
    """All else is done by then; the command that goes on has the option, too."""
    live = world.nodes.objects
    create = live.create

    def broken(body: Json) -> Json:
        made = create(body)
        if body["metadata"]["name"] == f"{EXPORTER}-gpu-1":
            world.nodes.stuck.add("gpu-1")
        return made

    live.create = broken
    assert world.install(with_monitoring=True, timeout_s=60.0) == Exit.STOPPED
    text = world.screen.text
    assert "not ready within 60 s: gpushare-exporter on gpu-1: " in text
    assert "Not done: the rollout of the exporters, the overview." in text
    assert "gpusharectl install --nodes gpu-1 --with-monitoring --yes" in text


def test_the_exporter_asks_for_the_runtime_class_as_the_plugin_does(
    world: InstalledCluster,
) -> None:
    assert world.install(with_monitoring=True, runtime_class=True) == Exit.DONE
    body = world.objects.get(DAEMONSET) or {}
    assert body["spec"]["template"]["spec"]["runtimeClassName"] == "nvidia"


def test_uninstalling_takes_all_of_it(world: InstalledCluster) -> None:
    """But for what others have put there: which metrics there are is the operator's."""
    world.objects.create(OWN_FIELDS)
    before = world.picture(EVERY_KIND)
    assert world.install(with_monitoring=True) == Exit.DONE
    assert world.picture(EVERY_KIND) != before
    assert world.uninstall(wait=True) == Exit.DONE, world.screen.text
    assert world.picture(EVERY_KIND) == before


def test_the_rights_for_it_are_asked_before_anything(world: InstalledCluster) -> None:
    fake(world).denied.add("create services")
    assert world.install(with_monitoring=True) == Exit.REFUSED
    assert "you may not create services in kube-system" in world.screen.text
    assert world.install() == Exit.DONE
