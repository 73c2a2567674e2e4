"""The ledger as JSON, and read back."""

from typing import Any

import orjson
import pytest
from hypothesis import given

from gpushare.domain.links import with_scores
from gpushare.domain.model import PodUID
from gpushare.domain.node import Node
from gpushare.domain.policies import PolicyChoice
from gpushare.informers.snapshot import read_snapshot, write_snapshot
from gpushare.kube.codec import read_pod_record
from gpushare.kube.json_reader import Malformed
from gpushare.kube.resource_claims.allocated import ResourceClaimUser
from tests.builders import as_claim, card, node, placement, pod_json, request
from tests.gpusharectl.why.test_verdict import moderately, nodes

HELD = placement("a", 0, 20, 5, priority=3)


A = {"uid": "uid-a", "namespace": "default", "name": "a", "priority": 3}


def shown_share(cores: int, units: int) -> dict[str, Any]:
    containers = {"main": [cores, units]}
    return {"card": "GPU-0", "cores": cores, "units": units, "containers": containers}


def test_a_node_shows_its_cards_and_who_holds_what() -> None:
    """Cards that are sick or cordoned offer nothing; kept room is not free either."""
    page = node(
        *(card(0), card(1, healthy=False), card(2, cordoned=True)),
        holds=[HELD],
        nominated=[placement("b", 0, 2)],
        unplaced=[request("lost", 5, 2, priority=1)],
    )
    shown = write_snapshot([page, node(name="a")], [], PolicyChoice("spread", "uuid"))
    (_, shown_node) = shown.pop("nodes")
    block = {"node": "a", "card": "GPU-0", "index": 0, "cores": 100, "units": 29}
    assert shown == {
        "v": 1,
        "policy": "spread",
        "card_order": "uuid",
        "largest_free": block,
        "units_without_cores": 0,
        "pending": [],
    }
    listed = [
        (0, True, False, {"cores": 93, "units": 2}),
        (1, False, False, None),
        (2, True, True, None),
    ]
    lists = {"policy": None, "models": None, "uuids": None}
    lost = {"uid": "uid-lost", "name": "lost", "priority": 1}
    whose = {"namespace": "default", "priority": 0}
    assert shown_node == {
        "name": "n",
        "cards": [
            {
                "uuid": f"GPU-{index}",
                "index": index,
                "units": 29,
                "healthy": healthy,
                "cordoned": cordoned,
                "model": "Tesla P4",
                "free": free,
            }
            for index, healthy, cordoned, free in listed
        ],
        "pods": [{**A, "shares": [shown_share(5, 20)]}],
        "unplaced": [{**(whose | lists), **lost, "claims": [{"cores": 2, "units": 5}]}],
        "nominations": [
            {**whose, "uid": "uid-b", "name": "b", "shares": [shown_share(0, 2)]}
        ],
    }


def test_pods_that_wait_for_a_card_are_pending() -> None:
    """Not those that are bound or ask nothing; one that never fits has its refusal."""
    wishes = {"baidu.com/vcuda-policy": "spread", "baidu.com/vcuda-models": "T4, A10"}
    pods = (
        pod_json("a", units=4, cores=1, annotations=wishes, priority=3),
        *(pod_json("bound", units=4, node="n"), pod_json("plain")),
        pod_json("odd", cores=150),
    )
    choice = PolicyChoice("spread", "uuid")
    listed = write_snapshot([], [read_pod_record(pod) for pod in pods], choice)
    waits, odd = listed["pending"]
    claims = [{"cores": 1, "units": 4}]
    lists = {"policy": "spread", "models": ("a10", "t4"), "uuids": None}
    assert waits == {**A, "claims": claims, **lists}
    assert odd["refusal"].startswith("Invalid vcuda request: 150 cores")
    assert read_snapshot(orjson.dumps(listed)).choice == choice


def served(*pages: Node, choice: PolicyChoice | None = None) -> bytes:
    return orjson.dumps(write_snapshot(pages, [], choice or PolicyChoice()))


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


def test_links_are_told_once_for_the_node() -> None:
    page = node(*with_scores([card(0), card(1), card(2)], (250, 10, 30)))
    (shown,) = write_snapshot([page], [], PolicyChoice())["nodes"]
    assert shown["links"] == [250, 10, 30]
    (back,) = read_snapshot(served(page)).nodes
    assert back.cards == page.cards


@pytest.mark.parametrize(
    ("shown_node", "field"),
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
def test_another_answer_is_malformed(shown_node: bytes, field: str) -> None:
    with pytest.raises(Malformed) as caught:
        read_snapshot(shown_node)
    assert caught.value.field == field


def test_claims_are_shown_apart_from_pods() -> None:
    """They are no pods, and whether they are only reserved comes along."""
    kept, meant = (as_claim(placement(name, 0, 4, 1)) for name in ("kept", "meant"))
    page = node(card(0), holds=[HELD, kept, meant])
    users = {
        meant.pod.uid: (ResourceClaimUser("web", PodUID("uid-web")),),
        kept.pod.uid: (),
    }
    shown = write_snapshot([page], [], PolicyChoice(), {meant.pod.key}, users)
    (shown_node,) = shown["nodes"]
    assert [pod["name"] for pod in shown_node["pods"]] == ["a"]
    assert [(c["name"], c["reserved"]) for c in shown_node["claims"]] == [
        ("kept", False),
        ("meant", True),
    ]
    assert shown_node["cards"][0]["free"] == {"cores": 93, "units": 1}
    again = read_snapshot(orjson.dumps(shown))
    assert again.nodes == (page,)
    assert again.reserved == {"uid-meant"}
    assert again.users == users


def test_the_pods_of_a_claim_may_be_unknown() -> None:
    """An older extender does not name them, which is not the same as none."""
    page = node(card(0), holds=[as_claim(placement("c", 0, 4, 1))])
    shown = orjson.dumps(write_snapshot([page], [], PolicyChoice()))
    assert read_snapshot(shown).users == {}


def test_a_node_without_claims_says_nothing_of_them() -> None:
    """So nothing changes for who does not use them."""
    (shown_node,) = write_snapshot([node()], [], PolicyChoice())["nodes"]
    assert "claims" not in shown_node
