"""The ledger as JSON, and read back."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given

from gpushare.cache.snapshot import read_snapshot, snapshot
from gpushare.domain.node import Node
from gpushare.domain.policies import Choice
from gpushare.kube.codec import pod_record
from gpushare.kube.json_reader import Malformed
from tests.builders import card, cards, node, placement, pod_json, request
from tests.gpusharectl.why.test_verdict import moderately, nodes

HELD = placement("a", 0, 20, 5, priority=3)
A = {"uid": "uid-a", "namespace": "default", "name": "a", "priority": 3}
SHARES = [
    {"card": "GPU-0", "cores": 5, "units": 20, "containers": {"main": [5, 20]}},
]


def test_a_node_shows_its_cards_and_who_holds_what() -> None:
    """Free amounts are told; a card that is sick or cordoned offers none."""
    page = node(card(0), card(1, healthy=False), card(2, cordoned=True), holds=[HELD])
    shown = snapshot([page], [], Choice())
    assert shown["nodes"] == [
        {
            "name": "n",
            "cards": [
                {
                    "uuid": "GPU-0",
                    "index": 0,
                    "units": 29,
                    "healthy": True,
                    "cordoned": False,
                    "model": "Tesla P4",
                    "free": {"cores": 95, "units": 9},
                },
                {
                    "uuid": "GPU-1",
                    "index": 1,
                    "units": 29,
                    "healthy": False,
                    "cordoned": False,
                    "model": "Tesla P4",
                    "free": None,
                },
                {
                    "uuid": "GPU-2",
                    "index": 2,
                    "units": 29,
                    "healthy": True,
                    "cordoned": True,
                    "model": "Tesla P4",
                    "free": None,
                },
            ],
            "pods": [{**A, "shares": SHARES}],
            "unplaced": [],
            "nominations": [],
        }
    ]


def test_nominations_stand_apart() -> None:
    """Room that is kept is not yet held, but is not free either."""
    page = node(nominated=[HELD])
    (shown,) = snapshot([page], [], Choice())["nodes"]
    assert shown["pods"] == []
    assert shown["nominations"] == [{**A, "shares": SHARES}]
    assert shown["cards"][0]["free"] == {"cores": 95, "units": 9}


def test_pods_on_nobody_knows_which_card_stand_apart() -> None:
    """They hold no share to show, and yet their room is free nowhere."""
    page = node(*cards(29, 16), unplaced=[request("lost", 5, 2, priority=1)])
    (shown,) = snapshot([page], [], Choice())["nodes"]
    assert shown["pods"] == []
    assert shown["unplaced"] == [
        {
            "uid": "uid-lost",
            "namespace": "default",
            "name": "lost",
            "priority": 1,
            "claims": [{"cores": 2, "units": 5}],
            "policy": None,
            "models": None,
            "uuids": None,
        }
    ]
    free = [each["free"] for each in shown["cards"]]
    assert free == [{"cores": 98, "units": 24}, {"cores": 98, "units": 11}]


def test_nodes_are_sorted_by_name() -> None:
    """The same ledger gives the same text."""
    pages = [node(name=name) for name in ("c", "a", "b")]
    shown = snapshot(pages, [], Choice("spread", "uuid"))
    assert [each["name"] for each in shown["nodes"]] == ["a", "b", "c"]
    assert (shown["v"], shown["policy"], shown["card_order"]) == (1, "spread", "uuid")


def test_pods_that_wait_for_a_card_are_pending() -> None:
    """Not those that are bound, and not those that ask nothing."""
    wishes = {"baidu.com/vcuda-policy": "spread", "baidu.com/vcuda-models": "T4, A10"}
    records = [
        pod_record(pod)
        for pod in (
            pod_json("waits", units=4, cores=1, annotations=wishes, priority=7),
            pod_json("bound", units=4, node="n"),
            pod_json("plain"),
        )
    ]
    assert snapshot([], records, Choice())["pending"] == [
        {
            "uid": "uid-waits",
            "namespace": "default",
            "name": "waits",
            "priority": 7,
            "claims": [{"cores": 1, "units": 4}],
            "policy": "spread",
            "models": ("a10", "t4"),
            "uuids": None,
        }
    ]


def test_pods_that_can_never_be_placed_are_pending_with_their_refusal() -> None:
    """The shape has room for it: ``claims | refusal``."""
    record = pod_record(pod_json("odd", cores=150))
    (shown,) = snapshot([], [record], Choice())["pending"]
    assert shown["refusal"].startswith("Invalid vcuda request: 150 cores")


def test_a_snapshot_is_plain_json() -> None:
    """Whoever reads it needs nothing of ours."""
    pages = [node(holds=[HELD])]
    records = [pod_record(pod_json("waits", units=4))]
    shown = snapshot(pages, records, Choice())
    assert json.loads(json.dumps(shown)) == shown
    assert request("waits", 4).pod.uid == shown["pending"][0]["uid"]


def served(*pages: Node, choice: Choice | None = None) -> bytes:
    return orjson.dumps(snapshot(pages, [], choice or Choice()))


def body(**other: Any) -> bytes:
    whole = orjson.loads(served(node(holds=[placement()]))) | other
    return orjson.dumps(whole)


@moderately
@given(nodes())
def test_what_is_told_is_what_the_extender_has(page: Node) -> None:
    """Cards, holders, unknown and nominated pods: nothing is lost on the way."""
    (back,) = read_snapshot(served(page)).nodes
    assert served(back) == served(page)
    assert back.free == page.free
    assert back.summary == page.summary


def test_the_cluster_has_its_own_choice() -> None:
    """Policy and card order come with the snapshot."""
    choice = Choice("spread", "uuid")
    assert read_snapshot(served(choice=choice)).choice == choice


@pytest.mark.parametrize(
    ("found", "field"),
    [
        (b"<html>", "snapshot"),
        (b"[]", "snapshot"),
        (body(v=2), "snapshot.v"),
        (body(policy="tightest"), "snapshot.policy"),
        (body(card_order="colour"), "snapshot.card_order"),
        (body(nodes=None), "snapshot.nodes"),
        (body(nodes=[{"name": "n", "cards": []}]), "snapshot.nodes[0].pods"),
    ],
)
def test_another_answer_is_malformed(found: bytes, field: str) -> None:
    """Whatever else answers on that port, it is said which field is wrong."""
    with pytest.raises(Malformed) as caught:
        read_snapshot(found)
    assert caught.value.field == field


def test_containers_must_be_pairs() -> None:
    """As in the annotations."""
    whole = orjson.loads(body())
    whole["nodes"][0]["pods"][0]["shares"][0]["containers"] = {"main": [1]}
    with pytest.raises(Malformed, match="two numbers"):
        read_snapshot(orjson.dumps(whole))
