"""Placements that cannot be believed, or cannot be carried out."""

import json

import pytest

from tests.cluster.manifests import container, pod
from tests.cluster.site import Site
from tests.nvml.driver import stub_card
from tests.testbed.waiting import wait_until

CARDS = [stub_card(0), stub_card(1)]
PLACEMENT = "baidu.com/vcuda-placement"


def bind(site: Site, name: str, card: str, units: int) -> None:
    """Bind a pod as the extender does, to whatever placement one likes."""
    found = site.get("pod", name)
    uid = found["metadata"]["uid"]
    share = {
        "card": card,
        "cores": 1,
        "units": units,
        "containers": {"main": [1, units]},
    }
    text = json.dumps({"v": 1, "uid": uid, "shares": [share], "at": ""})
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "uid": uid, "annotations": {PLACEMENT: text}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "cp"},
    }
    path = f"/api/v1/namespaces/default/pods/{name}/binding"
    site.cluster.rest.must("POST", path, body)


@pytest.mark.parametrize(
    ("card", "units", "words"),
    [
        ("GPU-unknown", 4, "this node has no card GPU-unknown"),
        (CARDS[0].uuid, 40, "29 units, not 1 and 40"),
    ],
)
def test_impossible_placement(site: Site, card: str, units: int, words: str) -> None:
    """The pod is not started, an event says why; other pods are served."""
    site.gpus["cp"].set_cards(CARDS)
    site.create(pod("bad", container("main", units, 1), schedulerName="nobody"))
    bind(site, "bad", card, units)
    wait_until(lambda: site.phase("bad") == "Failed", "the denial")
    wait_until(
        lambda: any(words in event["message"] for event in site.events("bad")),
        "the event",
    )
    assert words in site.kubectl("describe", "pod", "bad")
    site.create(pod("good", container("main", 4, 1)))
    site.wait_running("good")
    assert len(site.visible("good")) == 1


@pytest.mark.parametrize(
    "text", ["not json", '{"v":1,"uid":"another","shares":[],"at":""}']
)
def test_unbelievable_placement(site: Site, text: str) -> None:
    """It counts as absent: served where there is room, and told."""
    site.gpus["cp"].set_cards(CARDS)
    body = pod("forged", container("main", 4, 1), nodeName="cp")
    body["metadata"]["annotations"] = {PLACEMENT: text}
    site.create(body)
    site.wait_running("forged")
    found = site.placement(site.get("pod", "forged"))
    assert found is not None
    assert site.visible("forged") == [found["shares"][0]["card"]]
