"""The promises of why hold against the domain's own decision, for every input."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain.model import (
    CORES_PER_CARD,
    Amount,
    Claim,
    PodRequest,
    PodUID,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal
from gpushare.domain.policies import POLICIES, Policy
from gpusharectl.why.verdict import (
    DeletionPlan,
    find_cards_to_open,
    find_largest_requests,
    find_room_in_sum,
    judge_node,
    plan_on_card,
    plan_on_node,
)
from tests.builders import (
    FIRST_FIT,
    as_claim,
    card,
    node,
    placement,
    ref,
    request,
    share,
)

moderately = settings(max_examples=60)
SIZES = st.integers(0, 12)
CORES = st.integers(0, 60)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Up to four cards, some closed, with holders, nominated and unplaced pods."""
    mostly = st.sampled_from([True, True, True, False])
    its = [
        card(index, draw(SIZES), healthy=draw(mostly), cordoned=not draw(mostly))
        for index in range(draw(st.integers(1, 4)))
    ]
    at, few = st.integers(0, len(its) - 1), st.integers(0, 6)
    held = [
        placement(f"p{n}", draw(at), draw(few), draw(CORES), priority=draw(few))
        for n in range(draw(st.integers(0, 5)))
    ]
    kept = [placement("kept", draw(at), 2, 10, priority=9)] * draw(st.integers(0, 1))
    unplaced = [request("bare", draw(SIZES), draw(CORES))] * draw(st.integers(0, 1))
    return node(*its, holds=held, nominated=kept, unplaced=unplaced)


POLICY = st.sampled_from(list(POLICIES.values()))


def asking(amount: Amount) -> PodRequest:
    return PodRequest(ref("new"), (Claim(amount, ()),))


def uids(way: DeletionPlan) -> set[PodUID]:
    return {one.pod.uid for one in way.pods}


def names_of(way: DeletionPlan) -> list[str]:
    return [one.pod.name for one in way.pods]


def fits(amount: Amount, page: Node, policy: Policy) -> bool:
    return find_refusal(asking(amount), page, policy) is None


@moderately
@given(nodes(), POLICY)
def test_what_would_fit_does_and_nothing_larger(page: Node, policy: Policy) -> None:
    """Every share and number of whole cards that is offered, and none with more."""
    found = find_largest_requests(page)
    for room in found.shares:
        assert room.cores < CORES_PER_CARD
        assert fits(room, page, policy)
        assert not fits(room + Amount(units=1), page, policy)
        if room.cores < CORES_PER_CARD - 1:
            assert not fits(room + Amount(cores=1), page, policy)
    for cores in range(0, CORES_PER_CARD, 11):
        for units in range(1, 14):
            offered = any(Amount(cores, units).fits(room) for room in found.shares)
            assert fits(Amount(cores, units), page, policy) == offered
    if found.whole_cards:
        whole = Amount(CORES_PER_CARD * found.whole_cards, found.whole_units)
        assert fits(whole, page, policy)
        assert not fits(whole + Amount(units=1), page, policy)
    assert not fits(Amount(CORES_PER_CARD * (found.whole_cards + 1)), page, policy)


@moderately
@given(nodes(), SIZES, CORES, POLICY)
def test_a_card_that_fits_lacks_nothing(
    page: Node, units: int, cores: int, policy: Policy
) -> None:
    """Of one share, the node fits exactly where one of its cards does."""
    asked = request("new", max(1, units), cores)
    verdict = judge_node(asked, page, policy)
    assert verdict.fits == any(one.fits for one in verdict.cards)
    for one in verdict.cards:
        if one.free is not None:
            assert one.fits == (not one.missing)
            assert asked.claims[0].amount.fits(one.free + one.missing)


@moderately
@given(nodes(), SIZES, CORES, POLICY)
def test_a_node_is_as_near_as_its_nearest_card(
    page: Node, units: int, cores: int, policy: Policy
) -> None:
    """Units and cores are those that one and the same card lacks."""
    verdict = judge_node(request("new", max(1, units), cores), page, policy)
    near = min((one.distance for one in verdict.cards if one.can_fit), default=None)
    if near is None:
        assert verdict.distance == (2, 0, 0, 0)
    else:
        assert verdict.distance == (0 if verdict.fits else 1, 0, *near)


def test_which_node_is_nearer() -> None:
    """One card decides; cards that can never fit and closed cards do not count."""

    def order(asked: PodRequest, *pages: Node) -> list[str]:
        found = [judge_node(asked, page, FIRST_FIT) for page in pages]
        return [verdict.name for verdict in sorted(found, key=lambda v: v.distance)]

    busy = [placement("a", 0, 11, 99), placement("b", 1, 20, 1)]
    near = node(card(0, 20), holds=[placement("a", 0, 11, 60)], name="near")
    mixed = node(card(0, 20), card(1, 20), holds=busy, name="mixed")
    small = node(card(0, 9), name="small")
    closed = node(card(0, 20, cordoned=True), card(1, 9), name="closed")
    free = node(card(0, 20), name="free")
    asked = request("new", 10, 50)
    found = order(asked, closed, small, mixed, near, free)
    assert found == ["free", "near", "mixed", "closed", "small"]
    cards, held = (card(0), card(1)), [placement("a", 0, 1), placement("b", 1, 1)]
    one, single = node(*cards, holds=held[:1], name="one"), node(card(0), name="single")
    both = node(*cards, holds=held, name="both")
    whole = request("new", 0, 200)
    assert order(whole, single, both, one) == ["one", "both", "single"]


@moderately
@given(nodes(), SIZES, CORES, POLICY)
def test_who_would_have_to_go_is_enough_and_not_too_many(
    page: Node, units: int, cores: int, policy: Policy
) -> None:
    """Without them it fits on that very card; with any one of them back it does not."""
    asked = request("new", max(1, units), cores)
    for each in page.cards:
        others = tuple(replace(c, cordoned=c is not each) for c in page.cards)
        alone = replace(page, cards=others).as_seen_by(asked.pod)
        found = plan_on_card(asked, page, each, policy)
        everybody = set(page.placements) | set(page.unplaced) | set(page.nominations)
        if not each.open:
            continue
        empty = alone.without(everybody)
        assert (found is None) == (find_refusal(asked, empty, policy) is not None)
        if found is None:
            continue
        gone = uids(found)
        assert find_refusal(asked, alone.without(gone), policy) is None
        for uid in gone:
            assert find_refusal(asked, alone.without(gone - {uid}), policy) is not None


@moderately
@given(nodes(), st.integers(1, 3), POLICY)
def test_room_for_whole_cards_is_room(page: Node, count: int, policy: Policy) -> None:
    """Without those named, the domain places it."""
    asked = asking(Amount(CORES_PER_CARD * count))
    if found := plan_on_node(asked, page, policy):
        left = page.as_seen_by(replace(asked.pod, priority=2**31))
        assert find_refusal(asked, left.without(uids(found)), policy) is None


@moderately
@given(nodes(), SIZES, CORES, POLICY)
def test_what_is_opened_has_room(
    page: Node, units: int, cores: int, policy: Policy
) -> None:
    """With the cards named open again, it fits."""
    asked = request("new", max(1, units), cores)
    if found := find_cards_to_open(asked, [page], policy):
        opened = tuple(
            replace(one, healthy=True, cordoned=False) if one in found.cards else one
            for one in page.cards
        )
        assert find_refusal(asked, replace(page, cards=opened), policy) is None


@pytest.mark.parametrize(
    ("units", "holds", "wanted", "found"),
    [
        (94, {"app-1": (50, 0), "app-2": (40, 0), "app-3": (1, 0)}, 30, "app-2"),
        (20, {"a": (10, 5), "b": (10, 1)}, 10, "b"),
    ],
    ids=["fewest-units", "lowest-priority"],
)
def test_the_smallest_set_is_found(
    units: int, holds: Mapping[str, tuple[int, int]], wanted: int, found: str
) -> None:
    """Of the pods that would each be enough, by units and priority."""
    held = [placement(name, 0, u, priority=p) for name, (u, p) in holds.items()]
    page = node(card(0, units), holds=held)
    way = plan_on_card(request("big", wanted), page, page.cards[0], FIRST_FIT)
    assert way is not None
    assert names_of(way) == [found]


def test_hundreds_of_pods_take_no_time() -> None:
    """Of too many sets to try, the largest pods are taken first, none in vain."""
    held = [placement(f"p{n}", 0, 1 + n % 3) for n in range(300)]
    page = node(card(0, 600), holds=held)
    asked = request("big", 300)
    found = plan_on_card(asked, page, page.cards[0], FIRST_FIT)
    assert found is not None
    chosen = uids(found)
    assert find_refusal(asked, page.without(chosen), FIRST_FIT) is None
    assert len(chosen) == 100
    for uid in sorted(chosen)[:5]:
        assert find_refusal(asked, page.without(chosen - {uid}), FIRST_FIT) is not None


def test_who_was_chosen_in_vain_stays() -> None:
    """The largest are taken first; those whose part was not missing stay."""
    held = [placement(f"p{n:02}", 0, 3) for n in range(30)]
    page = node(card(0, 93), holds=[*held, placement("hog", 0, 1, 90)])
    found = plan_on_card(request("big", 5, 50), page, page.cards[0], FIRST_FIT)
    assert found is not None
    assert len(names_of(found)) == 2
    assert "hog" in names_of(found)


def test_a_pod_on_two_cards_is_named_once() -> None:
    both = placement("wide", shares=[share(0, 29, 100), share(1, 29, 100)])
    page = node(card(0), card(1), holds=[both])
    found = plan_on_node(asking(Amount(200)), page, FIRST_FIT)
    assert found is not None
    assert [(one.pod.name, one.amount) for one in found.pods] == [
        ("wide", Amount(200, 58))
    ]


def test_nobody_is_told_to_delete_a_claim_for_a_pod() -> None:
    """It is no pod, and its own pod came by another way."""
    held = as_claim(placement("claim", 0, 20, 1))
    page = node(card(0, 29), holds=[held, placement("pod", 0, 9, 1)])
    way = plan_on_card(asking(Amount(1, 9)), page, page.cards[0], FIRST_FIT)
    assert way is not None
    assert names_of(way) == ["pod"]
    assert plan_on_card(asking(Amount(1, 10)), page, page.cards[0], FIRST_FIT) is None


HALF = placement("half", 0, 15, 50)


@pytest.mark.parametrize(
    ("page", "free"),
    [
        (node(card(0), card(1), holds=[HALF]), Amount(150, 43)),
        # kubelet counts a cordoned card as allocatable, and a sick one not.
        (node(card(0), card(1, cordoned=True), holds=[HALF]), Amount(150, 43)),
        (node(card(0), card(1, healthy=False), holds=[HALF]), None),
        # A claim requests none of the node's resources.
        (node(card(0), card(1), holds=[as_claim(HALF)]), Amount(200, 58)),
        (node(card(0), card(1), unplaced=[request("bare", 20, 60)]), Amount(140, 38)),
        (node(card(0), card(1), nominated=[HALF]), Amount(150, 43)),
        (node(card(0), card(1), holds=[placement("p", 0, 1, 90)]), None),
    ],
    ids=["held", "cordoned", "sick", "claim", "unplaced", "nominated", "cores"],
)
def test_autoscalers_see_sums(page: Node, free: Amount | None) -> None:
    """As kube-scheduler's own resources have them, over all cards of a node."""
    found = find_room_in_sum(asking(Amount(120, 30)), [node(name="small"), page], {})
    assert (found and found.free) == free


def test_the_node_with_the_most_in_sum_is_named() -> None:
    pages = [node(card(0), card(1), name="a"), node(*map(card, range(3)), name="b")]
    found = find_room_in_sum(asking(Amount(1, 30)), pages, {})
    assert found is not None
    assert found.node == "b"
