"""Upgrades that fail, on two nodes: nothing is replaced too early, and a way back."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.fresh import PART, Fresh, printed
from tests.cluster.manifests import TWO_P4
from tests.cluster.site import SYSTEM
from tests.nvml.driver import stub_card
from tests.testbed.kubeadm.appimage import app_version
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

PLUGIN = "gpushare-device-plugin"
BAD = "local.test/gpushare:0.1.O"
ASKED = ("install", "--nodes", "cp,worker", "--yes", "--timeout", "120")


@pytest.fixture(scope="module")
def host(bare: Fresh) -> Iterator[Fresh]:
    """A cluster of two nodes with cards, on which gpushare is installed."""
    bare.begin(TWO_P4)
    bare.cluster.join("worker")
    bare.put_cards("worker", [stub_card(100)])
    bare.must(*ASKED)
    yield bare
    bare.must("uninstall", "--yes")
    bare.kubectl("delete", "node", "worker")
    bare.cluster.nodes.pop("worker").close()


def pods(host: Fresh) -> list[Json]:
    found: list[Json] = host.get("pods", "-n", SYSTEM, "-l", PART)["items"]
    return found


def uids(host: Fresh) -> set[str]:
    return {one["metadata"]["uid"] for one in pods(host)}


def ways(ran: subprocess.CompletedProcess[str]) -> str:
    """What is offered at the end."""
    return printed(ran).partition("To go on:")[2]


def test_a_mistyped_image_replaces_nothing(host: Fresh) -> None:
    """It is tried on each node first; no pod of the trial is left over."""
    before = uids(host)
    ran = host.ctl(*ASKED, "--image", BAD)
    assert ran.returncode == 1
    told = " ".join(printed(ran).split())
    assert f"the image {BAD} cannot be pulled" in told
    assert "what runs stays as it is" in told
    assert "--image IMAGE" in ways(ran)
    assert BAD not in ways(ran)
    assert uids(host) == before


def test_an_image_that_is_not_ours_replaces_nothing(host: Fresh) -> None:
    """It can be pulled, and has no device plugin."""
    before = uids(host)
    ran = host.ctl(*ASKED, "--image", "docker.io/nvidia/cuda:11.0-base")
    assert ran.returncode == 1
    assert '"python": executable file not found' in printed(ran)
    assert uids(host) == before


def test_back_from_a_rollout_that_has_failed(host: Fresh) -> None:
    """One node's pod is the old one still, and none is waited for in vain."""
    patch = f"device-plugin={BAD}"
    host.kubectl("set", "image", f"daemonset/{PLUGIN}", patch, "-n", SYSTEM)
    wait_until(
        lambda: [_image(one) for one in pods(host)].count(BAD),
        "a pod of the bad image",
        accept=(1).__eq__,
    )
    good = f"gpushare:{app_version()}"
    kept = {
        one["metadata"]["uid"]
        for one in pods(host)
        if _image(one) == good and "deletionTimestamp" not in one["metadata"]
    }
    told = host.must(*ASKED, "--image", good)
    assert "Done in" in told
    assert {_image(one) for one in pods(host)} == {good}
    assert kept < uids(host)
    assert host.allocatable("worker") == (100, 29)


def _image(one: Json) -> str:
    return str(one["spec"]["containers"][0]["image"])
