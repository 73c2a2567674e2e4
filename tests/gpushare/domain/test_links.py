"""Which set of whole cards a pod gets where the links between them are known."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain import links, topologies
from gpushare.domain.eviction.landing import LandingPrediction, Situation
from gpushare.domain.eviction.movable import Movable
from gpushare.domain.links import (
    add_links,
    choose_best_set,
    pairs,
    read_scores,
    with_scores,
)
from gpushare.domain.model import Card, Placement
from gpushare.domain.node import Node
from gpushare.domain.placement import choose_node, place, schedule, score_links
from gpushare.domain.policies import Policy
from tests.builders import (
    BEST_FIT,
    FIRST_FIT,
    SPREAD,
    card,
    cards,
    claim,
    node,
    placement,
    request,
    share,
)
from tests.topologies import dgx_1_scores

DGX_1 = with_scores(cards(*[64] * 8), dgx_1_scores())
Sets = tuple[tuple[int, ...], ...]


def linked(*scores: int, units: Sequence[int] = ()) -> tuple[Card, ...]:
    """Cards with these scores of their pairs; equal ones where no units are given."""
    number = next(n for n in range(99) if n * (n - 1) // 2 == len(scores))
    return with_scores(cards(*(units or [64] * number)), scores)


def holding(its_cards: tuple[Card, ...], *placements: int) -> Node:
    """A node on which one pod has some cards."""
    shares = [share(its_cards[i].uuid, its_cards[i].units, 100) for i in placements]
    return node(
        *its_cards, holds=[placement("held", shares=shares)] if placements else []
    )


def given_cards(page: Node, number: int, policy: Policy = FIRST_FIT) -> list[int]:
    """Which cards a pod of so many gets."""
    decision = place(request("pod", cores=100 * number), page, policy)
    assert isinstance(decision, Placement)
    return sorted(int(uuid.removeprefix("GPU-")) for uuid in decision.cards())


def partitions(
    free: Sequence[int], number: int, first: tuple[int, ...]
) -> Iterator[Sets]:
    """All partitions into sets of one size and a rest; ``first`` stay together."""
    for row in combinations(free, number):
        if not set(first) <= set(row):
            continue
        rest = [i for i in free if i not in row]
        if len(rest) < number:
            yield (row,)
        for others in partitions(rest, number, ()):
            yield (row, *others)


def score(its_cards: Sequence[Card], row: Sequence[int]) -> int:
    return sum(its_cards[a].links[b] for a, b in combinations(sorted(row), 2))


def by_search(its_cards: Sequence[Card], number: int) -> tuple[int, ...]:
    """The set by the rule, taken from all partitions; cards by size."""
    least = its_cards[number - 1].units
    pool = [i for i, row in enumerate(its_cards) if row.units >= least]
    larger = tuple(i for i in pool if its_cards[i].units > least)
    decision = (
        (sum(score(its_cards, row) for row in sets), score(its_cards, sets[0]), sets[0])
        for sets in partitions(pool, number, larger)
    )
    return max(decision, key=lambda row: (row[0], row[1], [-i for i in row[2]]))[2]


@st.composite
def nodes(draw: st.DrawFn) -> tuple[tuple[Card, ...], int]:
    """Up to 8 cards of one or two sizes, larger ones first, and how many are asked."""
    sizes = draw(st.lists(st.sampled_from([64, 64, 64, 96]), min_size=2, max_size=8))
    units = sorted(sizes, reverse=True)
    number = draw(st.integers(2, len(units)))
    listed = st.sampled_from([0, 10, 20, 50, 110, 250])
    count = len(list(pairs(len(units))))
    scores = draw(st.lists(listed, min_size=count, max_size=count))
    return linked(*scores, units=units), number


@settings(max_examples=300)
@given(nodes())
def test_the_set_is_of_the_best_partition(drawn: tuple[tuple[Card, ...], int]) -> None:
    """Of all partitions the highest sum, then the best set, then the given order."""
    its_cards, number = drawn
    chosen = choose_best_set(its_cards, number, its_cards)
    assert tuple(row.index for row in chosen) == by_search(its_cards, number)


@given(nodes(), st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_matter(
    drawn: tuple[tuple[Card, ...], int], random: Random
) -> None:
    """A node that lists the same cards in another order gives the same ones."""
    its_cards, number = drawn
    order = list(range(len(its_cards)))
    random.shuffle(order)
    turned = [its_cards[i] for i in order]
    listed = [replace(row, links=tuple(row.links[i] for i in order)) for row in turned]
    ranked = sorted(listed, key=lambda row: row.index)
    chosen = choose_best_set(ranked, number, listed)
    expected = choose_best_set(its_cards, number, its_cards)
    assert [row.uuid for row in chosen] == [row.uuid for row in expected]


@pytest.mark.parametrize("policy", [FIRST_FIT, BEST_FIT, SPREAD], ids=lambda p: p.name)
@pytest.mark.parametrize(
    ("placements", "number", "expected"),
    [
        pytest.param((), 2, [2, 3], id="two links and one PCIe switch"),
        pytest.param((2, 3), 2, [6, 7], id="the next pair"),
        pytest.param((0, 3), 2, [1, 2], id="two links"),
        pytest.param((), 4, [0, 1, 2, 3], id="one processor's"),
        pytest.param((0,), 4, [4, 5, 6, 7], id="the other's, all of them joined"),
        pytest.param((1, 2), 4, [4, 5, 6, 7], id="not the ones that are left over"),
    ],
)
def test_a_hybrid_cube_mesh(
    placements: tuple[int, ...], number: int, expected: list[int], policy: Policy
) -> None:
    assert given_cards(holding(DGX_1, *placements), number, policy) == expected


def test_the_sets_that_are_left_count() -> None:
    """The best pair is not taken if the two others would then have no link."""
    #            0-1  0-2  0-3  1-2  1-3  2-3
    page = node(*linked(200, 10, 250, 250, 10, 200))
    assert given_cards(page, 2) == [0, 3]
    page = node(*linked(200, 10, 10, 250, 10, 200))
    assert given_cards(page, 2) == [0, 1]


@pytest.mark.parametrize(("number", "chains"), [(12, 1), (16, 2)])
def test_the_sets_that_are_left_count_among_many_cards(
    number: int, chains: int
) -> None:
    """Not all partitions are compared: the best pair would break up two good ones."""
    known = {
        (i, i + 1): score
        for begin in range(0, 4 * chains, 4)
        for i, score in enumerate((200, 250, 200), begin)
    }
    page = node(*linked(*(known.get(pair, 10) for pair in pairs(number))))
    assert given_cards(page, 2) == [0, 1]


def test_larger_cards_come_first_and_links_among_equals() -> None:
    """What a pod gets of memory does not depend on links."""
    #                 0-1 0-2 0-3 1-2 1-3 2-3
    its_cards = linked(10, 10, 110, 250, 250, 250, units=[96, 64, 64, 64])
    assert given_cards(node(*its_cards), 2) == [0, 3]


def test_larger_cards_come_first_among_many() -> None:
    """Not all sets are compared, and the larger card is in the one that is taken."""
    scores = ({(0, 5): 110, (1, 2): 250}.get(pair, 10) for pair in pairs(12))
    its_cards = linked(*scores, units=[96] + [64] * 11)
    assert given_cards(node(*its_cards), 2) == [0, 5]


@pytest.mark.parametrize(
    "its_cards",
    [
        pytest.param(cards(*[64] * 8), id="none is known"),
        pytest.param(linked(*[50] * 28), id="all pairs are the same"),
        pytest.param((*DGX_1[:7], card(7, 64)), id="one card tells nothing"),
        pytest.param((*DGX_1, card(8, 64)), id="of another list"),
    ],
)
def test_without_links_the_order_is_as_before(its_cards: tuple[Card, ...]) -> None:
    for number in range(1, 8):
        assert given_cards(node(*its_cards), number) == list(range(number))
    assert given_cards(holding(its_cards, 0, 3), 3) == [1, 2, 4]


def test_a_closed_card_belongs_to_no_set() -> None:
    """Its row stays in the list, so that the others keep theirs."""
    closed = tuple(
        replace(row, healthy=row.index != 2, cordoned=row.index == 7) for row in DGX_1
    )
    assert given_cards(node(*closed), 2) == [0, 3]


def test_ten_cards() -> None:
    """All partitions are compared; of sets that grow from one card 8, 9, 14, 15."""
    scores = topologies.score_topology("nvlink-bridges", 16)
    assert not isinstance(scores, str)
    page = holding(linked(*scores), 0, 6, 7, 11, 12, 13)
    assert given_cards(page, 4) == [2, 3, 4, 5]


def test_sixteen_cards() -> None:
    """Not all partitions are compared, and two boards are still told apart."""
    scores = [
        50 + 600 * (a % 2 == b % 2) - 40 * (a // 4 != b // 4) for a, b in pairs(16)
    ]
    page = node(*linked(*scores))
    assert given_cards(page, 8) == list(range(0, 16, 2))
    assert given_cards(page, 2) == [0, 2]
    assert given_cards(holding(linked(*scores), 0, 2, 4), 4) == [1, 3, 5, 7]


@pytest.mark.parametrize(("number", "sets"), [(16, 16), (20, 8), (32, 2), (64, 1)])
def test_of_many_sets_only_the_best_are_compared(
    monkeypatch: pytest.MonkeyPatch, number: int, sets: int
) -> None:
    """A comparison costs the third power of the cards; all of them cost the same."""
    compared = set()
    rest = links._Partitions.rest

    def noted(search: links._Partitions, free_cards: frozenset[int]) -> int:
        if len(free_cards) == number - 2:
            compared.add(free_cards)
        return rest(search, free_cards)

    monkeypatch.setattr(links._Partitions, "rest", noted)
    chance = Random(1)
    scores = (chance.randrange(10_000) for _ in pairs(number))
    given_cards(node(*linked(*scores)), 2)
    assert 0 < len(compared) <= sets


def test_instances_have_no_links_whatever_is_listed() -> None:
    """Up to seven stand for each card, and no claim has them beside full cards."""
    both = (
        card(0, 64),
        card(1, 64),
        *(card(i, 8, parent="GPU-9") for i in range(2, 6)),
    )
    listed = with_scores(both, [250] * len(list(pairs(6))))
    assert [len(row.links) for row in listed] == [6, 6, 0, 0, 0, 0]
    assert read_scores(listed)[:1] == (250,)
    assert given_cards(node(*listed), 2) == [0, 1]


def test_the_scores_of_full_cards_are_written_as_they_were_read() -> None:
    """Wherever instances stand in the list: the extender's page lists them again."""
    mixed = card(0, 8, parent="GPU-9"), card(1, 64), card(2, 8, parent="GPU-9")
    listed = with_scores((*mixed, card(3, 64)), [7, 50, 8, 9, 250, 6])
    assert read_scores(listed) == (7, 0, 8, 9, 250, 6)


@pytest.mark.parametrize(("number", "shared"), [(16, True), (17, False)])
def test_nodes_of_one_kind_share_their_rows(number: int, shared: bool) -> None:
    """But for those of many cards, which a node makes up and which take much memory."""
    scores = [(a * 17 + b) % 10_000 for a, b in pairs(number)]
    row, other = (with_scores(cards(*[64] * number), [*scores]) for _ in range(2))
    assert (row[0].links is other[0].links) is shared


def test_each_claim_has_a_set_of_its_own() -> None:
    """Links count between the cards of one claim; nodes are compared for one alone."""
    both = [claim(cores=200, container=name) for name in ("a", "b")]
    apart = place(request("pod", claims=both), node(*DGX_1), FIRST_FIT)
    assert isinstance(apart, Placement)
    assert apart.cards() == tuple(DGX_1[i].uuid for i in (2, 3, 6, 7))
    assert score_links(request("pod", claims=both), node(*DGX_1), FIRST_FIT) == 0
    assert score_links(request("pod", cores=100), node(*DGX_1), FIRST_FIT) == 0
    assert score_links(request("pod", cores=200), node(*DGX_1), FIRST_FIT) == 250
    assert score_links(request("pod", cores=900), node(*DGX_1), FIRST_FIT) == 0


POLICIES = [FIRST_FIT, BEST_FIT, SPREAD]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_of_nodes_that_are_as_full_the_better_links_win(policy: Policy) -> None:
    plain = node(*cards(64, 64, 64), name="a")
    pcie = node(*linked(10, 20, 50), name="b")
    nvlink = node(*linked(10, 110, 10), name="c")
    for number, best in ((1, "a"), (2, "c"), (3, "c")):
        pending = request("pod", cores=100 * number)
        assert choose_node(pending, [plain, pcie, nvlink], policy).name == best
    assert choose_node(request("pod", cores=200), [plain, pcie], policy).name == "b"


def test_links_are_one_step_of_ten() -> None:
    """They do not stand against two steps."""
    scores = [0, 1, 2, 10]
    assert add_links(scores, [250, 110, 0, 250]) == [1, 1, 2, 11]
    assert add_links(scores, [0, 0, 0, 0]) == scores
    assert add_links([], []) == []


def test_a_moved_pod_lands_where_links_are_better() -> None:
    """As ``schedule`` would have it; the node that comes first is not the best one."""
    pair, nodes = request("pair", cores=200), [node(*cards(64, 64), name="b")]
    nodes += [node(*linked(10), name="c"), node(*linked(250), name="d")]
    both = [share(0, 64, 100), share(1, 64, 100)]
    placements = placement("pair", node="a", shares=both)
    full = node(*cards(64, 64), name="a", holds=[placements])
    uid = pair.pod.uid
    situation = Situation((full, *nodes), {uid: Movable(pair)})
    world = LandingPrediction(request("large", 64), situation, FIRST_FIT)
    closed = [replace(row, cordoned=True) for row in full.cards]
    state = world.begin(node(*closed, name="a", holds=[placements]))
    decision = world.moved(uid, state, world.without(uid, state))
    assert decision is not None
    assert decision[0].landing.node == "d"
    wanted = schedule(pair, nodes, FIRST_FIT)
    assert isinstance(wanted, Placement)
    assert wanted.node == "d"
