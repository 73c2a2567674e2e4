"""Pods that come without a scheduler: nodeName by hand, and static pods."""

import json
import sys
from pathlib import Path

import yaml

from tests.cluster.gpus import PLUGIN
from tests.cluster.manifests import container, pod
from tests.cluster.seen import within_capacity
from tests.cluster.site import Site
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
    wait_until(lambda: site.phase("too-much") == "Failed", "the denial")
    status = site.get("pod", "too-much")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "Insufficient baidu.com/vcuda-memory on one card" in status["message"]
    wait_until(
        lambda: any(e["reason"] == "VcudaDenied" for e in site.events("too-much")),
        "the event",
    )
    # The extender has heard of it: 9 units are left on each card, and not 20.
    site.create(pod("late", container("main", 12, 1)))
    wait_until(lambda: site.events("late"), "the refusal")
    assert site.phase("late") == "Pending"
    assert within_capacity(site)


FORWARD = """
import socket, sys, threading
def copy(one, other):
    while data := one.recv(65536):
        other.sendall(data)
server = socket.create_server(("0.0.0.0", 7443))
while True:
    client, _ = server.accept()
    there = socket.create_connection((sys.argv[1], 6443))
    for pair in ((client, there), (there, client)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""


def test_the_plugin_cannot_reach_the_api_server(site: Site, tmp_path: Path) -> None:
    """From its start on: a static pod starts, an ordinary one waits to be known."""
    gpus, node = site.gpus["cp"], site.cluster.nodes["cp"]
    gpus.set_cards(CARDS)
    config = yaml.safe_load(site.kubeconfig(PLUGIN).read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://{node.address}:7443"
    elsewhere = tmp_path / "kubeconfig"
    elsewhere.write_text(yaml.safe_dump(config))
    limited = pod("limited", container("main", 20, 1))
    limited["metadata"]["annotations"] = {"baidu.com/vcuda-uuids": CARDS[1].uuid}
    static = pod("static", container("main", 4, 1))
    static["metadata"]["namespace"] = "default"
    with gpus.reconfigured(KUBECONFIG=str(elsewhere)):
        assert "going on without the API server" in gpus.log
        site.create(limited)
        silent = "the API server does not say which cards the pod may have"
        wait_until(lambda: silent in site.why_waiting("limited"), "it to wait")
        site.create(pod("ordinary", container("main", 20, 1)))
        wait_until(lambda: silent in site.why_waiting("ordinary"), "it to wait")
        node.write(MANIFEST, json.dumps(static))
        forward = None
        try:
            site.wait_running("static-cp")
            assert len(site.visible("static-cp")) == 1
            command = [sys.executable, "-c", FORWARD, node.address]
            forward = node.launch("forward", command, {})
            # Both were given the other's card: this one may not have it, that one may.
            excluded = "excluded by baidu.com/vcuda-uuids"
            wait_until(lambda: excluded in site.why_waiting("limited"), "the word", 90)
            site.wait_running("ordinary")
            assert site.visible("ordinary") == [CARDS[1].uuid]
            found = site.placement(site.get("pod", "ordinary"))
            assert found is not None
            assert [share["card"] for share in found["shares"]] == [CARDS[1].uuid]
        finally:
            if forward is not None:
                forward.kill()
            node.path(MANIFEST).unlink()
            wait_until(lambda: not site.phase("static-cp"), "its end")


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

        wait_until(told, "the actual placement")
        other = pod("other", container("main", 20, 1))
        site.create(other)
        site.wait_running("other")
        assert site.visible("other") != seen
        assert within_capacity(site)
    finally:
        node.path(MANIFEST).unlink()
        wait_until(lambda: not site.phase("static-cp"), "its end")
