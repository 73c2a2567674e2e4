"""Properties of the cards that a pod may have, checked by hypothesis."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from extender.scheduling.filter_cache import (
    KeptAnswers,
    PendingBind,
    refuse_with_pending,
)
from gpushare.domain.card_selector import CardSelector
from gpushare.domain.eviction.preemption import Victims, choose_victims
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Placement, PodRequest, Refusal
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal, place
from gpushare.domain.policies import Policy
from gpushare.kube.annotations import decode_cards, encode_cards
from tests.builders import request
from tests.test_laws import claims, moderately, pages, policies

MODELS = ("Tesla P4", "Tesla T4", "NVIDIA A10")

wishes = st.builds(
    CardSelector.of,
    st.lists(st.sampled_from([*MODELS, "*", "A10", "tesla*", "H100"]), max_size=2),
    st.lists(st.integers(0, 4).map("GPU-{}".format), max_size=3),
)
asked = st.builds(
    lambda found, cards: replace(request("new", claims=found, priority=9), cards=cards),
    claims,
    st.none() | wishes,
)


@st.composite
def mixed(draw: st.DrawFn) -> Node:
    """A node with cards of several models."""
    page = draw(pages())
    models = st.sampled_from(["", *MODELS])
    return replace(
        page, cards=tuple(replace(card, model=draw(models)) for card in page.cards)
    )


def only_wanted(page: Node, asks: PodRequest) -> Node:
    """The node as if it had no other cards."""
    return replace(page, cards=tuple(c for c in page.cards if not asks.limits(c)))


@moderately
@given(mixed(), asked, policies)
def test_it_fits_exactly_where_those_cards_alone_would_do(
    page: Node, asks: PodRequest, chosen: Policy
) -> None:
    """The others stand in for nothing, and in nobody's way."""
    decision = place(asks, page, chosen)
    alone = place(replace(asks, cards=None), only_wanted(page, asks), chosen)
    if isinstance(alone, Refusal):
        assert isinstance(decision, Refusal)
        assert decision.reason is alone.reason
    else:
        assert decision == alone


@moderately
@given(mixed(), asked, policies)
def test_it_is_never_on_another_card(
    page: Node, asks: PodRequest, chosen: Policy
) -> None:
    """And both decisions agree."""
    decision = place(asks, page, chosen)
    no = find_refusal(asks, page, chosen)
    assert isinstance(decision, Refusal) == (no is not None)
    if isinstance(decision, Placement):
        by_uuid = {card.uuid: card for card in page.cards}
        assert not any(asks.limits(by_uuid[uuid]) for uuid in decision.cards())


@moderately
@given(mixed(), asked, policies)
def test_the_refusal_speaks_of_lists_that_matter(
    page: Node, asks: PodRequest, chosen: Policy
) -> None:
    """Exactly where one of them shuts out an open card."""
    no = find_refusal(asks, page, chosen)
    shut = any(card.open and asks.limits(card) for card in page.cards)
    if no is not None:
        assert bool(no.limits) == shut


@moderately
@given(mixed(), asked, policies)
def test_whoever_is_evicted_makes_room_there(
    page: Node, asks: PodRequest, chosen: Policy
) -> None:
    """It fits afterwards, and nobody goes who has no share of such a card."""
    decision = choose_victims(asks, page, Victims(()), chosen)
    if decision is None:
        return
    assert find_refusal(asks, page.without(set(decision.uids)), chosen) is None
    wanted = {card.uuid for card in page.cards if not asks.limits(card)}
    for uid in decision.uids:
        placed = page.placements.get(uid)
        assert placed is None or wanted & set(placed.cards())


@moderately
@given(mixed(), asked, asked, policies)
def test_caution_keeps_only_what_holds_both(
    page: Node, first: PodRequest, then: PodRequest, chosen: Policy
) -> None:
    """After the pending pod went where it would go, this one still fits."""
    first = replace(first, pod=replace(first.pod, uid="first"))  # type: ignore[arg-type]
    ledger = Ledger()
    ledger.set_cards(page.name, page.cards)
    for held in page.placements.values():
        ledger.record(held)
    for lost in page.unplaced.values():
        ledger.record_unplaced(lost, page.name)
    fitting = KeptAnswers(ledger)
    fits = fitting.answer(then, chosen).fits
    waiting = [PendingBind(first, chosen, [page.name], 5.0)]
    refused = refuse_with_pending(then, chosen, waiting, fitting, ledger, fits)
    real = ledger.node(page.name)
    assert real is not None
    placed = place(first, real, chosen)
    after = real.with_placement(placed) if isinstance(placed, Placement) else real
    if page.name in fits:
        assert (page.name in refused) == (find_refusal(then, after, chosen) is not None)


@moderately
@given(mixed(), asked)
def test_what_the_node_tells_of_its_cards_is_enough(
    page: Node, asks: PodRequest
) -> None:
    """Models and UUIDs survive the annotation."""
    cards_read = decode_cards(encode_cards(page.cards))
    assert [asks.limits(card) for card in cards_read] == [
        asks.limits(c) for c in page.cards
    ]
