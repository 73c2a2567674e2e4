"""Pods that say which cards they may have: where they go, and why not elsewhere."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpushare.domain.card_selector import CardSelector, Limit
from gpushare.domain.model import PodRequest
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal, place, schedule
from gpushare.kube.codec import refusal_text
from tests.builders import FIRST_FIT, apart, card, node, placement, request

P4, T4 = (card(0, 29), card(1, 60, model="Tesla T4"))
SICK, CORDONED = replace(T4, healthy=False), replace(T4, cordoned=True)
SHORT = "Insufficient baidu.com/vcuda-memory on one card that"
MIXED = node(P4, T4, card(2, 29), card(3, 60, model="Tesla T4"))


def wants(
    pending: PodRequest, *, models: Sequence[str] = (), uuids: Sequence[str] = ()
) -> PodRequest:
    return replace(pending, cards=CardSelector.of(models, uuids))


def cards_of(decision: object) -> tuple[str, ...]:
    return decision.cards()


def why(pending: PodRequest, page: Node) -> str:
    """Both decisions refuse, with the same words."""
    no = find_refusal(pending, page, FIRST_FIT)
    assert no == place(pending, page, FIRST_FIT)
    assert no is not None
    return refusal_text(no)


@pytest.mark.parametrize(
    ("models", "uuids", "uuid"),
    [
        (["Tesla T4"], [], "GPU-1"),
        ([], ["GPU-2"], "GPU-2"),
        (["*T4"], ["GPU-2", "GPU-3"], "GPU-3"),
        (["*"], [], "GPU-0"),
    ],
)
def test_the_first_card_that_it_may_have(
    models: list[str], uuids: list[str], uuid: str
) -> None:
    pending = wants(request(units=10), models=models, uuids=uuids)
    assert cards_of(place(pending, MIXED, FIRST_FIT)) == (uuid,)
    assert find_refusal(pending, MIXED, FIRST_FIT) is None


FULL = node(P4, T4, holds=[placement("a", 1, 50, 1)])
NO = "No shared cards that baidu.com/vcuda-models allows"


@pytest.mark.parametrize(
    ("pending", "lists", "page", "text"),
    [
        (
            *(request(units=20, cores=1), {"models": ["T4", "Tesla T4"]}, FULL),
            f"{SHORT} baidu.com/vcuda-models allows",
        ),
        (
            *(request(units=20), {"models": ["Tesla T4"], "uuids": ["GPU-1"]}, FULL),
            f"{SHORT} baidu.com/vcuda-models and baidu.com/vcuda-uuids allow",
        ),
        (
            *(request(cores=300), {"models": ["Tesla P4"]}, MIXED),
            "Insufficient untouched cards that baidu.com/vcuda-models allows",
        ),
        (
            *(apart("pod", 40, 40, 40), {"uuids": ["GPU-1", "GPU-3"]}, MIXED),
            f"{SHORT} baidu.com/vcuda-uuids allows",
        ),
        (request(units=1), {"models": ["A10"]}, MIXED, NO),
        (request(units=1), {"models": ["Tesla T4"]}, node(P4, SICK), NO),
        (request(units=1), {"models": ["*T4"]}, node(P4, CORDONED), NO),
    ],
    ids=["full", "both lists", "whole", "apart", "none here", "sick", "cordoned"],
)
def test_the_refusal_says_of_which_cards_it_speaks(
    pending: PodRequest, lists: dict[str, list[str]], page: Node, text: str
) -> None:
    assert why(wants(pending, **lists), page) == text


def test_lists_that_shut_nothing_out_are_not_blamed() -> None:
    """The plain words then, so that the event counts such nodes with the others."""
    pending = wants(request(units=99), models=["Tesla*"])
    assert why(pending, MIXED) == "Insufficient baidu.com/vcuda-memory on one card"
    closed = node(card(0, healthy=False), card(1, model="A10", cordoned=True))
    assert why(wants(request(units=1), models=["T4"]), closed) == "No shared cards"


def test_a_node_is_chosen_that_has_them() -> None:
    pages = [
        node(card(0, 10), name="a"),
        node(T4, name="b"),
        node(T4, name="c", holds=[placement("x", 1, 60, node="c")]),
    ]
    pending = wants(request(units=20), models=["Tesla T4"])
    decision = schedule(pending, pages, FIRST_FIT)
    assert (decision.node, decision.cards()) == ("b", ("GPU-1",))
    refused = schedule(wants(request(units=61), models=["Tesla T4"]), pages, FIRST_FIT)
    assert [no.limits for no in refused.values()] == [(Limit.MODELS,), (), ()]
