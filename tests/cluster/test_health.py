"""Sick and cordoned cards: nothing new comes to them, what runs goes on."""

from collections.abc import Iterator

import pytest

from tests.cluster.gpus import Gpus
from tests.cluster.manifests import container, pod
from tests.cluster.site import Site
from tests.nvml.driver import stub_card
from tests.testbed.waiting import wait_until

CARDS = [stub_card(0), stub_card(1)]
FIRST, SECOND = (card.uuid for card in CARDS)


@pytest.fixture
def gpus(site: Site) -> Iterator[Gpus]:
    """Two cards, the first with a pod that runs; well again afterwards."""
    found = site.gpus["cp"]
    found.set_cards(CARDS)
    site.create(pod("old", container("main", 4, 1)))
    site.wait_running("old")
    assert site.visible("old") == [FIRST]
    yield found
    annotate(site, f"baidu.com/vcuda-clear={FIRST}", "baidu.com/vcuda-cordon-")
    found.driver.find(FIRST)
    wait_until(lambda: site.allocatable("cp") == (200, 58), "both cards")


def annotate(site: Site, *words: str) -> None:
    site.kubectl("annotate", "node", "cp", "--overwrite", *words)


def healthy(site: Site) -> dict[str, bool]:
    return {card["uuid"]: card["healthy"] for card in site.cards("cp")}


def card_of_new_pod(site: Site, name: str) -> str:
    site.create(pod(name, container("main", 4, 1)))
    site.wait_running(name)
    (seen,) = site.visible(name)
    return seen


def restarts(site: Site) -> int:
    return int(site.get("pod", "old")["status"]["containerStatuses"][0]["restartCount"])


def test_hardware_fault(site: Site, gpus: Gpus) -> None:
    """XID 79: sick until an operator clears it; a program's own fault is nothing."""
    gpus.driver.xid(FIRST, 31)
    wait_until(lambda: "a program caused a fault" in gpus.log, "XID 31 in the log")
    gpus.driver.xid(FIRST, 79)
    wait_until(lambda: site.allocatable("cp") == (100, 29), "one card less")
    # kubelet may hear of it before the annotation is written.
    sick = {FIRST: False, SECOND: True}
    wait_until(lambda: healthy(site) == sick, "the annotation")
    assert card_of_new_pod(site, "new") == SECOND
    assert site.phase("old") == "Running"
    assert restarts(site) == 0
    gpus.stop()
    gpus.start(wait=False)
    wait_until(lambda: "card is sick" in gpus.log, "the restarted plugin to know")
    wait_until(lambda: site.allocatable("cp") == (100, 29), "one card less")
    annotate(site, f"baidu.com/vcuda-clear={FIRST}")
    wait_until(lambda: site.allocatable("cp") == (200, 58), "both cards")
    annotations = site.get("node", "cp")["metadata"]["annotations"]
    wait_until(lambda: healthy(site)[FIRST], "the annotation")
    assert "baidu.com/vcuda-placement" not in annotations
    wait_until(
        lambda: (
            "baidu.com/vcuda-clear"
            not in site.get("node", "cp")["metadata"]["annotations"]
        ),
        "the order to be taken off",
    )
    assert card_of_new_pod(site, "newer") == FIRST


def test_lost_card_comes_back(site: Site, gpus: Gpus) -> None:
    """A card off the bus is sick, and well again after three good readings."""
    gpus.driver.lose(FIRST)
    wait_until(lambda: site.allocatable("cp") == (100, 29), "one card less")
    assert card_of_new_pod(site, "new") == SECOND
    gpus.driver.find(FIRST)
    wait_until(lambda: site.allocatable("cp") == (200, 58), "both cards")
    wait_until(lambda: healthy(site)[FIRST], "the annotation")
    assert card_of_new_pod(site, "newer") == FIRST
    assert site.phase("old") == "Running"


def test_cordoned_card(site: Site, gpus: Gpus) -> None:
    """Nothing new on it, planned or not; its devices stay, and what runs goes on."""
    annotate(site, f"baidu.com/vcuda-cordon={FIRST}")
    wait_until(
        lambda: card_of_new_pod_is(site, SECOND), "a new pod on the other card", 60
    )
    site.create(pod("by-hand", container("main", 4, 1), nodeName="cp"))
    site.wait_running("by-hand")
    assert site.visible("by-hand") == [SECOND]
    assert site.allocatable("cp") == (200, 58)
    site.cluster.nodes["cp"].restart_kubelet()
    gpus.wait_offered()
    assert site.phase("old") == "Running"
    assert restarts(site) == 0
    annotate(site, "baidu.com/vcuda-cordon-")


def card_of_new_pod_is(site: Site, uuid: str) -> bool:
    """Try until the extender has heard of the cordon."""
    site.kubectl("delete", "pod", "trial", "--ignore-not-found", "--grace-period=1")
    return card_of_new_pod(site, "trial") == uuid
