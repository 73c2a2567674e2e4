"""A second node, let in by ``kubeadm join``, with cards and a plugin of its own."""

from collections.abc import Iterator

import pytest

from tests.cluster.cards import RTX_3090, TWO_P4
from tests.cluster.seen import card_of, refused_with
from tests.cluster.site import Gpus, Site, container, pod
from tests.testbed.waiting import wait_until

OF_CP = {card.uuid for card in TWO_P4}
NEITHER = "0/2 nodes are available: 2 Insufficient baidu.com/vcuda-memory"


@pytest.fixture
def worker(site: Site) -> Iterator[Gpus]:
    """A node with one large card, beside ``cp`` with two small ones."""
    site.gpus["cp"].set_cards(TWO_P4)
    node = site.cluster.join("worker")
    yield site.add_cards(node, [RTX_3090])
    site.clear()
    site.remove_node("worker")


def node_of(site: Site, name: str) -> str:
    return str(site.get("pod", name)["spec"]["nodeName"])


def test_each_node_serves_its_own(site: Site, worker: Gpus) -> None:
    """Pods spread over both nodes, and each sees a card of its node alone.

    With one device plugin gone the other serves on, and keeps to its own node.
    """
    assert [card["uuid"] for card in site.cards("worker")] == [RTX_3090.uuid]
    sizes = {"huge": 60, "big-0": 25, "big-1": 25, "big-2": 25}
    site.create(*(pod(name, container("main", n, 1)) for name, n in sizes.items()))
    site.wait_running(*sizes)
    nodes = {name: node_of(site, name) for name in sizes}
    assert nodes["huge"] == "worker"
    assert sorted(nodes.values()) == ["cp", "cp", "worker", "worker"]
    for name, node in nodes.items():
        mine = {RTX_3090.uuid} if node == "worker" else OF_CP
        assert card_of(site, name) in mine
    site.create(pod("more", container("main", 10, 1)))
    refused_with(site, "more", NEITHER)

    before = site.cards("worker")
    worker.stop_offering()
    site.kubectl("delete", "pod", *(n for n, node in nodes.items() if node == "cp"))
    site.wait_running("more")
    assert card_of(site, "more") in OF_CP
    assert site.visible("huge") == [RTX_3090.uuid]
    assert site.cards("worker") == before
    check_logs(site)

    site.kubectl("delete", "pod", "huge")
    site.create(pod("again", container("main", 60, 1)))
    refused_with(site, "again", NEITHER)
    worker.start()
    site.wait_running("again")
    assert (node_of(site, "again"), card_of(site, "again")) == (
        "worker",
        RTX_3090.uuid,
    )


def check_logs(site: Site) -> None:
    """Each plugin has handed out cards of its own node, and has spoken of no other."""
    cp, worker = (site.gpus[name].log for name in ("cp", "worker"))
    wait_until(lambda: "allocated" in worker, "cards handed out")
    assert RTX_3090.uuid not in cp
    assert not any(uuid in worker for uuid in OF_CP)
