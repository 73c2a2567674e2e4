"""The extender's snapshot read back, or the same reckoned here."""

from typing import Any

import orjson
import pytest
from hypothesis import given

from gpushare.cache.snapshot import snapshot
from gpushare.domain.node import Node
from gpushare.domain.policies import Choice
from gpushare.kube.json_reader import Malformed
from gpusharectl.state.placements import chosen, reckoned, told
from tests.builders import bound_json, card, node, node_json, placement, pod_json
from tests.gpusharectl.why.test_laws import moderately, nodes


def served(*pages: Node, choice: Choice | None = None) -> bytes:
    return orjson.dumps(snapshot(pages, [], choice or Choice()))


@moderately
@given(nodes())
def test_what_is_told_is_what_the_extender_has(page: Node) -> None:
    """Cards, holders, unknown and nominated pods: nothing is lost on the way."""
    (back,) = told(served(page)).pages
    assert served(back) == served(page)
    assert back.free == page.free
    assert back.summary == page.summary


def test_the_cluster_has_its_own_choice() -> None:
    """Policy and card order come with the snapshot."""
    choice = Choice("spread", "uuid")
    assert told(served(choice=choice)).choice == choice


def body(**other: Any) -> bytes:
    whole = orjson.loads(served(node(holds=[placement()]))) | other
    return orjson.dumps(whole)


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
        told(found)
    assert caught.value.field == field


def test_containers_must_be_pairs() -> None:
    """As in the annotations."""
    whole = orjson.loads(body())
    whole["nodes"][0]["pods"][0]["shares"][0]["containers"] = {"main": [1]}
    with pytest.raises(Malformed, match="two numbers"):
        told(orjson.dumps(whole))


def test_reckoned_here_it_is_the_same() -> None:
    """From pods and nodes by the extender's own code; sorted by name."""
    held = placement("a", "GPU-x", 5, 2, node="b-node")
    objects = [
        node_json("b-node", card(0, 29, uuid="GPU-x")),
        node_json("a-node", card(0, 8)),
    ]
    found = reckoned(objects, [bound_json(held), pod_json("w", units=3)], Choice(), "x")
    assert [page.name for page in found.pages] == ["a-node", "b-node"]
    assert found.pages[1].placements == {held.pod.uid: held}
    assert found.unasked == "x"


@pytest.mark.parametrize(
    ("settings", "choice"),
    [
        ({}, Choice()),
        ({"GPUSHARE_POLICY": "spread"}, Choice("spread")),
        ({"GPUSHARE_CARD_ORDER": "uuid"}, Choice(card_order="uuid")),
        ({"GPUSHARE_POLICY": "none", "GPUSHARE_CARD_ORDER": "none"}, Choice()),
    ],
)
def test_the_choice_is_read_off_the_extenders_pod(
    settings: dict[str, str], choice: Choice
) -> None:
    """An extender that does not answer still says how it would choose."""
    assert chosen(settings) == choice
