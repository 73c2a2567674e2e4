"""The startup taint of a node, with a real kubelet and kube-scheduler."""

from collections.abc import Iterator

import pytest

from gpushare.kube.names import STARTUP_TAINT
from tests.cluster.gpus import Gpus
from tests.cluster.manifests import container, pod
from tests.cluster.seen import unschedulable
from tests.cluster.site import Site
from tests.nvml.driver import stub_card
from tests.testbed.waiting import wait_until

THEIRS = "theirs"


@pytest.fixture
def tainted(site: Site) -> Iterator[Gpus]:
    """A node with a card, the startup taint, and one that keeps no pod away."""
    gpus = site.gpus["cp"]
    gpus.set_cards([stub_card(0)])
    taints = (f"{STARTUP_TAINT}=true:NoSchedule", f"{THEIRS}=true:PreferNoSchedule")
    site.kubectl("taint", "node", "cp", *taints)
    yield gpus
    for key in (STARTUP_TAINT, THEIRS):
        site.cluster.try_kubectl("taint", "node", "cp", f"{key}-")


def test_a_pod_comes_once_the_cards_are_counted(site: Site, tainted: Gpus) -> None:
    """A plugin that is not told to leaves the taint; one that is takes it alone."""
    site.create(pod("early", container("main", 4, 1)))
    wait_until(
        lambda: unschedulable(site.get("pod", "early")),
        "the taint to keep it away",
        60,
        accept=lambda words: "untolerated taint" in words,
    )
    with tainted.reconfigured(STARTUP_TAINT="on"):
        site.wait_running("early")
        left = site.get("node", "cp")["spec"]["taints"]
        assert [one["key"] for one in left] == [THEIRS]
        assert "startup taint removed" in tainted.log
