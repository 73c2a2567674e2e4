"""Pods that come without a scheduler: nodeName by hand, and static pods."""

import json

from tests.cluster.manifests import container, pod
from tests.cluster.site import Site
from tests.cluster.sums import within_capacity
from tests.nvml.driver import stub_card
from tests.testbed.waiting import wait_until

MANIFEST = "/etc/kubernetes/manifests/gpu.yaml"
CARDS = [stub_card(0), stub_card(1)]


def test_node_named_by_hand(site: Site) -> None:
    """Served where a card has room, and told; denied in words where none has."""
    site.gpus["cp"].set_cards(CARDS)
    site.create(pod("planned", container("main", 20, 1)))
    site.wait_running("planned")
    site.create(pod("by-hand", container("main", 20, 1), nodeName="cp"))
    site.wait_running("by-hand")
    assert site.visible("by-hand") == [CARDS[1].uuid]
    found = site.placement(site.get("pod", "by-hand"))
    assert found is not None
    assert [share["card"] for share in found["shares"]] == [CARDS[1].uuid]

    site.create(pod("too-much", container("main", 10, 1), nodeName="cp"))
    wait_until(lambda: site.phase("too-much") == "Failed", "the denial", 60)
    status = site.get("pod", "too-much")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "Insufficient baidu.com/vcuda-memory on one card" in status["message"]
    wait_until(
        lambda: any(e["reason"] == "VcudaDenied" for e in site.events("too-much")),
        "the event",
    )
    # The extender has heard of it: 9 units are left on each card, and not 20.
    site.create(pod("late", container("main", 12, 1)))
    wait_until(lambda: site.events("late"), "the refusal", 60)
    assert site.phase("late") == "Pending"
    assert within_capacity(site)


def test_static_pod(site: Site) -> None:
    """kubelet admits it before the API server knows it: served, and told later."""
    site.gpus["cp"].set_cards(CARDS)
    node = site.cluster.nodes["cp"]
    body = pod("static", container("main", 20, 1))
    body["metadata"]["namespace"] = "default"
    node.write(MANIFEST, json.dumps(body))
    try:
        site.wait_running("static-cp")
        seen = site.visible("static-cp")
        assert len(seen) == 1

        def told() -> bool:
            found = site.placement(site.get("pod", "static-cp"))
            return found is not None and found["shares"][0]["card"] == seen[0]

        wait_until(told, "the actual placement", 60)
        other = pod("other", container("main", 20, 1))
        site.create(other)
        site.wait_running("other")
        assert site.visible("other") != seen
        assert within_capacity(site)
    finally:
        node.path(MANIFEST).unlink()
        wait_until(lambda: not site.phase("static-cp"), "its end", 60)
