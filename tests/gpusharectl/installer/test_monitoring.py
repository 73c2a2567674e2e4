"""``install --with-monitoring``: beside the rest, after it, and gone with it."""

from typing import Any

import pytest

from gpushare.kube.facts import EXPORTER
from gpusharectl.installer.progress import Exit
from tests.gpusharectl.installer.installed_cluster import InstalledCluster


def image(world: InstalledCluster) -> str:
    return str(world.spec(EXPORTER)["containers"][0]["image"])


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


def test_an_exporter_that_does_not_start_is_told(world: InstalledCluster) -> None:
    """All else is done by then; the command that goes on has the option, too."""
    world.nodes.stuck.add(f"{EXPORTER}-gpu-1")
    assert world.install(with_monitoring=True, timeout_s=60.0) == Exit.STOPPED
    text = world.screen.text
    assert "not ready within 60 s: gpushare-exporter on gpu-1: " in text
    assert "Not done: the rollout of the exporters, the summary." in text
    assert "gpusharectl install --nodes gpu-1 --with-monitoring --yes" in text


SHARE: dict[str, Any] = {
    "isolation": "preload",
    "compute": "share",
    "with_monitoring": True,
}


def compute(world: InstalledCluster) -> str | None:
    container = world.spec(EXPORTER)["containers"][0]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    return variables.get("GPUSHARE_COMPUTE")


def test_compute_stays_until_an_option_changes_it(world: InstalledCluster) -> None:
    world.install(**SHARE)
    assert compute(world) == "share"
    assert world.install(with_monitoring=True) == Exit.DONE
    assert compute(world) == "share"
    assert "compute stays share; --compute changes it   ok" in world.screen.lines
    assert world.install(compute="none", with_monitoring=True) == Exit.DONE
    assert compute(world) is None


@pytest.mark.parametrize(
    ("before", "options", "remedy"),
    [
        ({}, {"compute": "share", "with_monitoring": True}, "add --isolation preload"),
        ({}, {"compute": "share", "isolation": "preload"}, "add --with-monitoring"),
        (SHARE, {"isolation": "driver"}, "--compute none --with-monitoring"),
        (SHARE, {"compute": "none"}, "add --with-monitoring"),
    ],
)
def test_no_cores_are_held_without_what_measures_and_what_delays(
    world: InstalledCluster,
    before: dict[str, Any],
    options: dict[str, Any],
    remedy: str,
) -> None:
    if before:
        world.install(**before)
    assert world.install(**options) == Exit.REFUSED
    assert remedy in world.screen.text
