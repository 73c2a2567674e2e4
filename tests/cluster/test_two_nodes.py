"""A second node, let in by ``kubeadm join``, with cards and a plugin of its own."""

from collections.abc import Iterator, Mapping

import pytest

from tests.cluster.gpus import Gpus
from tests.cluster.manifests import TWO_P4, container, pod
from tests.cluster.seen import card_of, refused_with
from tests.cluster.site import Site
from tests.nvml.driver import stub_card

LARGE = stub_card(100, memory_mib=24259, model="RTX 3090")
OF_CP = {card.uuid for card in TWO_P4}
NEITHER = "0/2 nodes are available: 2 Insufficient baidu.com/vcuda-memory"
WITHOUT_PLUGIN = (
    "0/2 nodes are available: 1 Insufficient baidu.com/vcuda-core, "
    "2 Insufficient baidu.com/vcuda-memory."
)
"""The worker has neither resource, ``cp`` has no card so large."""


@pytest.fixture
def worker(site: Site) -> Iterator[Gpus]:
    """A node with one large card, beside ``cp`` with two small ones."""
    site.gpus["cp"].set_cards(TWO_P4)
    node = site.cluster.join("worker")
    yield site.add_cards(node, [LARGE])
    site.clear()
    site.remove_node("worker")


def node_of(site: Site, name: str) -> str:
    return str(site.get("pod", name)["spec"]["nodeName"])


def test_each_node_serves_its_own(site: Site, worker: Gpus) -> None:
    """Pods spread over both nodes, and each sees a card of its node alone.

    With one device plugin gone the other serves on, and keeps to its own node.
    """
    assert [card["uuid"] for card in site.cards("worker")] == [LARGE.uuid]
    sizes = {"huge": 60, "big-0": 25, "big-1": 25, "big-2": 25}
    site.create(*(pod(name, container("main", n, 1)) for name, n in sizes.items()))
    site.wait_running(*sizes)
    nodes = {name: node_of(site, name) for name in sizes}
    assert nodes["huge"] == "worker"
    assert sorted(nodes.values()) == ["cp", "cp", "worker", "worker"]
    for name, node in nodes.items():
        mine = {LARGE.uuid} if node == "worker" else OF_CP
        assert card_of(site, name) in mine
    site.create(pod("more", container("main", 10, 1)))
    refused_with(site, "more", NEITHER)

    before = site.cards("worker")
    worker.stop_offering()
    site.kubectl("delete", "pod", *(n for n, node in nodes.items() if node == "cp"))
    site.wait_running("more")
    assert card_of(site, "more") in OF_CP
    assert site.visible("huge") == [LARGE.uuid]
    assert site.cards("worker") == before
    check_logs(site, nodes)

    site.kubectl("delete", "pod", "huge")
    site.create(pod("again", container("main", 60, 1)))
    refused_with(site, "again", WITHOUT_PLUGIN)
    worker.start()
    site.wait_running("again")
    assert (node_of(site, "again"), card_of(site, "again")) == ("worker", LARGE.uuid)


def check_logs(site: Site, nodes: Mapping[str, str]) -> None:
    """Each plugin has spoken of the pods and cards of its own node alone."""
    spoken = {name: site.gpus[name].log for name in ("cp", "worker")}
    for name, node in nodes.items():
        assert {n for n, log in spoken.items() if f"/{name} " in log} == {node}
    assert LARGE.uuid not in spoken["cp"]
    assert not any(uuid in spoken["worker"] for uuid in OF_CP)
