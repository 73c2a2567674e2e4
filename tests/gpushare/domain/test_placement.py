"""Which cards a pod gets on a node, or why none; who has what of whole cards."""

import re
from functools import partial
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain.model import (
    Amount,
    Card,
    Claim,
    ContainerAmount,
    Placement,
    PodRequest,
    Reason,
    Refusal,
    share_whole_cards,
)
from gpushare.domain.node import CardCapacity, Node
from gpushare.domain.placement import (
    ClaimSearch,
    SearchResult,
    find_refusal,
    place,
    schedule,
)
from gpushare.domain.policies import Policy
from tests.builders import (
    BEST_FIT,
    FIRST_FIT,
    SPREAD,
    apart,
    card,
    cards,
    claim,
    left,
    node,
    placement,
    policy,
    request,
)
from tests.work import work

SEED_GPU_0 = "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"
SEED_GPU_1 = "GPU-7cf0b881-7598-8b1a-3270-94d6f5d2479a"


def arrive(
    its_cards: tuple[Card, ...],
    pods: dict[str, int],
    order: tuple[str, ...] | None = None,
    chosen: Policy = FIRST_FIT,
) -> dict[str, set[str]]:
    """Let pods of these units arrive; who sits on each card, and who is refused."""
    page = node(*its_cards)
    where: dict[str, set[str]] = {}
    for name in order or tuple(pods):
        decision = place(request(name, pods[name]), page, chosen)
        if isinstance(decision, Placement):
            page = page.with_placement(decision)
            where.setdefault(decision.shares[0].card, set()).add(name)
        else:
            where.setdefault(decision.reason, set()).add(name)
    return where


@pytest.mark.parametrize(
    ("sizes", "pods", "where"),
    [
        ((16, 16), "a=8 b=8", {"GPU-0": "ab"}),
        ((16, 16), "a=8 b=12", {"GPU-0": "a", "GPU-1": "b"}),
        ((94,), "a=50 b=40 c=1", {"GPU-0": "abc"}),
        ((94,), "a=50 b=40 c=10", {"GPU-0": "ab", "memory": "c"}),
        ((94,), "a=50 b=40 c=4", {"GPU-0": "abc"}),
        ((94,), "a=94", {"GPU-0": "a"}),
        ((94,), "a=95", {"memory": "a"}),
    ],
)
def test_the_seeds_cards_fill_up(
    sizes: tuple[int, ...], pods: str, where: dict[str, str]
) -> None:
    """Seed 001: the next card only when the first is too full; 94 of 94 is full."""
    pending = dict(pod.split("=") for pod in pods.split())
    decision = arrive(
        cards(*sizes), {name: int(size) for name, size in pending.items()}
    )
    assert decision == {place: set(names) for place, names in where.items()}


@pytest.mark.parametrize("order", list(permutations(["a", "b", "c"])), ids="".join)
def test_the_seeds_two_cards_in_every_order_of_arrival(order: tuple[str, ...]) -> None:
    pods = {"a": 4, "b": 20, "c": 20}
    where = arrive(cards(29, 29), pods, order)
    units_on_cards = sorted(
        sorted(pods[name] for name in them) for them in where.values()
    )
    assert units_on_cards == [[4, 20], [20]]


def test_the_seeds_own_cards() -> None:
    """Card order ``uuid`` and arrival 1, 3, 2 give exactly what the seed shows."""
    pair = (card(0, 29, uuid=SEED_GPU_0), card(1, 29, uuid=SEED_GPU_1))
    pods = {"app-1": 4, "app-2": 20, "app-3": 20}
    where = arrive(pair, pods, ("app-1", "app-3", "app-2"), policy(order="uuid"))
    assert where == {SEED_GPU_1: {"app-1", "app-3"}, SEED_GPU_0: {"app-2"}}


@pytest.mark.parametrize("chosen", [FIRST_FIT, BEST_FIT, SPREAD], ids=lambda p: p.name)
def test_pods_of_most_of_a_card_have_one_each(chosen: Policy) -> None:
    """Seed 001: with as many cards as pods of 80 %, nobody shares."""
    pods = {f"p{i}": 75 for i in range(3)}
    where = arrive(cards(*[94] * 7), pods, chosen=chosen)
    assert sorted(len(them) for them in where.values()) == [1, 1, 1]


@pytest.mark.parametrize(
    ("chosen", "uuid"), [(FIRST_FIT, "GPU-0"), (BEST_FIT, "GPU-1"), (SPREAD, "GPU-2")]
)
def test_the_policy_chooses_among_cards_that_fit(chosen: Policy, uuid: str) -> None:
    page = node(
        *cards(29, 29, 29), holds=[placement("a", 0, 19), placement("b", 1, 21)]
    )
    decision = place(request(units=8), page, chosen)
    assert decision.cards() == (uuid,)


@pytest.mark.parametrize(
    ("page", "pending", "reason"),
    [
        (Node(node().name), request(units=1), Reason.NO_CARDS),
        (node(card(healthy=False)), request(units=1), Reason.NO_CARDS),
        (node(), request(units=30), Reason.MEMORY),
        (node(holds=[placement(cores=99)]), request("b", 1, 2), Reason.CORE),
        (
            node(holds=[placement(cores=99)]),
            request("b", 30, 2),
            Reason.CORE_AND_MEMORY,
        ),
        (node(holds=[placement()]), request("b", 0, 100), Reason.UNTOUCHED_CARDS),
    ],
    ids=["no annotation", "all sick", "memory", "core", "both", "untouched"],
)
def test_why_a_node_cannot_take_a_pod(
    page: Node, pending: PodRequest, reason: Reason
) -> None:
    assert place(pending, page, FIRST_FIT) == Refusal(reason)
    assert find_refusal(pending, page, FIRST_FIT) == Refusal(reason)
    assert schedule(pending, [page], FIRST_FIT) == {page.name: Refusal(reason)}


@pytest.mark.parametrize(
    ("units", "cores", "cards_taken"),
    [
        (0, 100, ("GPU-1",)),
        (94, 100, ("GPU-1",)),
        (95, 100, None),
        (0, 200, ("GPU-1", "GPU-3")),
        (110, 200, ("GPU-1", "GPU-3")),
        (111, 200, None),
        (0, 300, None),
    ],
)
def test_whole_cards(
    units: int, cores: int, cards_taken: tuple[str, ...] | None
) -> None:
    """The largest untouched ones, together with room for the units, charged in full."""
    page = node(
        *cards(29, 94, 94, 16), holds=[placement("a", 0, 1), placement("b", 2, 0, 1)]
    )
    decision = place(request("w", units, cores), page, BEST_FIT)
    if cards_taken is None:
        assert decision == Refusal(Reason.UNTOUCHED_CARDS)
    else:
        assert decision.cards() == cards_taken
        after = page.with_placement(decision)
        assert all(after.free[uuid] == Amount() for uuid in decision.cards())


def test_a_whole_card_is_shared_with_nobody() -> None:
    decision = place(request("w", 0, 100), node(), FIRST_FIT)
    assert isinstance(decision, Placement)
    page = node(holds=[decision])
    assert find_refusal(request(units=1), page, FIRST_FIT) == Refusal(Reason.MEMORY)
    assert find_refusal(request(cores=1), page, FIRST_FIT) == Refusal(Reason.CORE)


def test_apart_containers_have_one_share_of_each_card() -> None:
    """20 + 20 units do not fit on one card of 29; 4 + 20 are one share of one."""
    page = node(*cards(29, 29))
    assert find_refusal(request(units=40), page, FIRST_FIT) == Refusal(Reason.MEMORY)
    decision = place(apart("p", 20, 20), page, FIRST_FIT)
    assert decision.cards() == ("GPU-0", "GPU-1")
    decision = place(apart("p", 4, 20), page, FIRST_FIT)
    (only_share,) = decision.shares
    assert only_share.amount == Amount(0, 24)
    assert [part.name for part in only_share.containers] == ["c0", "c1"]


@pytest.mark.parametrize("chosen", [FIRST_FIT, BEST_FIT, SPREAD], ids=lambda p: p.name)
def test_taste_does_not_decide_whether_several_claims_fit(chosen: Policy) -> None:
    page = node(*cards(29, 29), holds=[placement("a", 0, 19), placement("b", 1, 9)])
    for sizes in ((8, 15), (15, 8)):
        pending = apart("p", *sizes)
        assert find_refusal(pending, page, chosen) is None
        decision = place(pending, page, chosen)
        assert isinstance(decision, Placement)
        assert left(page.with_placement(decision), 0) == Amount(100, 2)
        assert left(page.with_placement(decision), 1) == Amount(100, 5)


@pytest.mark.parametrize(
    ("page", "units", "refused"),
    [
        (node(*cards(94, 29)), 60, {"GPU-0": 60, "GPU-1": 29}),
        (
            node(*cards(29, 29), holds=[placement("a", 1, 1)]),
            5,
            {"GPU-0": 29, "GPU-1": 5},
        ),
    ],
    ids=["the large one", "the untouched one"],
)
def test_a_share_and_a_whole_card_leave_each_other_the_card_they_need(
    page: Node, units: int, refused: dict[str, int]
) -> None:
    """Which card is best is a matter of taste; whether the pod fits is not."""
    claims = [claim(units, container="s"), claim(0, 100, container="w")]
    for ordered in (claims, claims[::-1]):
        decision = place(request("p", claims=ordered), page, FIRST_FIT)
        assert {part.card: part.amount.units for part in decision.shares} == refused


def test_a_pod_without_claims_is_placed_with_no_shares() -> None:
    no_claims: tuple[Claim, ...] = ()
    decision = place(request(claims=no_claims), node(), FIRST_FIT)
    assert decision.shares == ()


@pytest.mark.parametrize(
    ("chosen", "name"), [(FIRST_FIT, "used"), (BEST_FIT, "used"), (SPREAD, "idle-a")]
)
def test_schedule_takes_the_best_node(chosen: Policy, name: str) -> None:
    nodes = [
        node(name="idle-b"),
        node(name="used", holds=[placement("a", 0, 9, node="used")]),
        node(name="idle-a"),
        node(card(units=2), name="small"),
    ]
    decision = schedule(request(units=8), nodes, chosen)
    assert decision.node == name


@pytest.mark.parametrize(
    ("containers", "sizes", "shares"),
    [
        ("a=200/40", "29 29", "0:a=100/29 1:a=100/11"),
        ("a=100/5 b=100/5", "29 29", "0:a=100/5 1:b=100/5"),
        ("a=50/5 b=150/30", "29 29", "0:a=50/5 0:b=50/24 1:b=100/6"),
        ("a=100/40 b=100/0", "29 29", "0:a=100/29 1:a=0/11 1:b=100/0"),
        ("init=100/29 a=100/29", "29", "0:init=100/29 0:a=100/29"),
        ("m=0/7 a=100/5", "29", "0:m=0/7 0:a=100/5"),
    ],
    ids=["both", "one each", "a card divided", "beyond its card", "init", "memory"],
)
def test_containers_share_out_whole_cards(
    containers: str, sizes: str, shares: str
) -> None:
    """Cores in kubelet's order of admission, units from the container's own cards.

    What an init container had, later ones may have again.
    """
    pending = re.findall(r"(\w+)=(\d+)/(\d+)", containers)
    amounts = [ContainerAmount(n, Amount(int(c), int(u))) for n, c, u in pending]
    page = cards(*map(int, sizes.split()))
    whole = Claim(Amount(100 * len(page)), tuple(amounts), frozenset({"init"}))
    decision = [
        f"{number}:{part.name}={part.amount.cores}/{part.amount.units}"
        for number, share in enumerate(share_whole_cards(whole, page))
        for part in share.containers
    ]
    assert decision == shares.split()


def mig(index: int, profile: str, units: int) -> Card:
    return card(index, units, model=f"A100 MIG {profile}", parent="GPU-9")


MIXED = [card(0, 60), mig(100, "2g.10gb", 39), mig(101, "3g.20gb", 79)]
SMALL = [mig(102, "2g.10gb", 39)]


@pytest.mark.parametrize(
    ("cards", "units", "cores", "on"),
    [
        (MIXED, 1, 200, None),
        ([*MIXED, *SMALL], 1, 200, ["GPU-100", "GPU-102"]),
        ([*MIXED, *SMALL], 79, 200, None),
        ([*MIXED, card(1, 60)], 1, 200, ["GPU-0", "GPU-1"]),
        (MIXED, 1, 100, ["GPU-101"]),
    ],
    ids=["none alike", "two of a profile", "too small", "full cards", "the largest"],
)
def test_whole_cards_of_one_claim_are_alike(
    cards: list[Card], units: int, cores: int, on: list[str] | None
) -> None:
    decision = place(request("pod", units, cores), node(*cards), FIRST_FIT)
    if on is None:
        assert decision == Refusal(Reason.UNTOUCHED_CARDS)
    else:
        assert isinstance(decision, Placement)
        assert sorted(decision.cards()) == on


def test_a_search_does_not_mix_sizes() -> None:
    """It must leave the largest instance to the share, and take the other two."""
    spots = [(True, 39, 100, "2g"), (True, 39, 100, "2g"), (True, 79, 100, "3g")]
    assert search([(60, 0), (0, 200)], spots).ways == ((2,), (0, 1))
    spots[0] = (False, 39, 100, "2g")
    assert search([(30, 0), (0, 200)], spots).ways is None


def search(
    amounts: list[tuple[int, int]], spots: list[CardCapacity], most: int = 500
) -> SearchResult:
    """Look for a way for shares of (units, cores)."""
    pending = [Amount(cores, units) for units, cores in amounts]
    return ClaimSearch(pending).run(spots, most)


def bare(*units: int) -> list[CardCapacity]:
    """Untouched cards of these units."""
    return [(True, size, 100, "") for size in units]


def test_a_search_gives_each_claim_its_cards() -> None:
    decision = search(
        [(8, 0), (15, 0), (0, 200)], [*bare(29, 29), (False, 23, 100, "")]
    )
    assert decision.ways == ((2,), (2,), (0, 1))


@pytest.mark.parametrize(
    ("amounts", "spots", "no"),
    [
        ([(20, 0)] * 3, bare(29, 29), Reason.MEMORY),
        ([(1, 70)] * 3, bare(29, 29), Reason.CORE),
        ([(20, 70)] * 3, bare(25, 25), Reason.CORE_AND_MEMORY),
        ([(0, 100)] * 3, bare(29, 29), Reason.UNTOUCHED_CARDS),
        ([(20, 0), (20, 0)], bare(29, 19), Reason.MEMORY),
        ([(20, 0), (1, 100)], [*bare(29), (False, 19, 100, "")], Reason.MEMORY),
    ],
    ids=["units", "cores", "both", "cards", "left over", "whole left over"],
)
def test_a_search_says_what_was_short(
    amounts: list[tuple[int, int]], spots: list[CardCapacity], no: Reason
) -> None:
    decision = search(amounts, spots)
    assert (decision.ways, decision.no) == (None, Refusal(no))


def test_twins_are_tried_once() -> None:
    """Two shares of 14 leave no card room for the one of 12."""
    pending = [*[(14, 0)] * 8, (12, 0)]
    hopeless = search(pending, bare(*[39] * 4))
    assert hopeless.ways is None
    assert hopeless.steps < 60
    differing = search(pending, bare(*range(35, 39)), 100_000)
    assert differing.ways is None
    assert differing.steps < 300


@pytest.mark.parametrize(
    ("amounts", "spots"),
    [
        ([(size, 1) for size in range(48, 60)], bare(*[94] * 11)),
        ([(1, size) for size in range(51, 63)], bare(*[94] * 11)),
        ([*[(30, 0)] * 6, (4, 0)], bare(89, 89, 59)),
    ],
    ids=["units", "cores", "beside others"],
)
def test_shares_that_are_too_large_are_not_searched_for(
    amounts: list[tuple[int, int]], spots: list[CardCapacity]
) -> None:
    """There is enough in all, and no card takes two of them, or more than two."""
    decision = search(amounts, spots)
    assert (decision.ways, decision.steps) == (None, 0)
    assert search(amounts, [*spots, *bare(94)]).ways


def test_a_search_has_an_end() -> None:
    """A bound so small that no way back is left gives one try for each claim."""
    amounts = [(size, 0) for size in range(30, 46)]
    total = sum(size for size, _ in amounts)
    spots = bare(*[total // 8] * 8)
    assert search(amounts, spots, 500).steps <= 500
    assert search(amounts, spots, 16).steps == 16


@pytest.mark.parametrize(
    ("cards_in_all", "amounts"),
    [(64, [(10_545, 1000), (10_500, 1000)]), (448, [(33_000, 2700)] * 16)],
    ids=["full cards", "instances"],
)
def test_a_search_among_cards_of_many_sizes_has_an_end(
    cards_in_all: int, amounts: list[tuple[int, int]]
) -> None:
    """A node says its sizes itself; of 64 cards there are 10^11 ways to choose ten."""
    spots = [(True, 1000 + i, 100, "") for i in range(cards_in_all)]
    decision = search(amounts, spots, 500)
    assert decision.ways is None
    assert 400 < decision.steps <= 500


def test_ways_that_would_have_too_few_cards_cost_nothing() -> None:
    """All cards are wanted: there is one way, and 65,000 that would leave some out."""
    hopeless = partial(search, [(0, 1600), (1, 0)], bare(*range(10, 26)))
    assert hopeless().ways is None
    assert work(hopeless) < 2000


def test_a_step_among_many_cards_counts_as_several() -> None:
    """It looks at each card; three claims take three steps."""
    decision = {
        number: search([(1, 60)] * 3, bare(*[29] * number)) for number in (16, 64)
    }
    assert {number: result.steps for number, result in decision.items()} == {
        16: 3,
        64: 12,
    }


def test_a_search_without_steps_tries_each_claim_once() -> None:
    """As on the nodes that filter comes to last; several cards make a step dear."""
    decision = search([(1, 60)] * 3, bare(*[29] * 64), 0)
    assert decision.ways is not None
    assert len(set(decision.ways)) == 3


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 99)), max_size=4),
    st.lists(
        st.tuples(
            st.just(value=False),
            st.integers(-5, 40),
            st.integers(-5, 100),
            st.just(value=""),
        ),
        max_size=3,
    ),
)
def test_a_search_finds_a_way_wherever_there_is_one(
    amounts: list[tuple[int, int]], spots: list[CardCapacity]
) -> None:
    pending = [pair for pair in amounts if any(pair)]
    there_is = any(
        all(
            sum(a[0] for a, i in zip(pending, way, strict=True) if i == number) <= units
            and sum(a[1] for a, i in zip(pending, way, strict=True) if i == number)
            <= cores
            for number, (_, units, cores, _) in enumerate(spots)
            if number in way
        )
        for way in product(range(len(spots)), repeat=len(pending))
    )
    assert (search(pending, spots).ways is not None) == there_is
