"""What is left of a node while one pod is placed, and who has what of whole cards."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.model import Amount, Claim, ContainerAmount
from gpushare.domain.placement import (
    CardCapacity,
    FreeCapacity,
    Search,
    SearchResult,
    card_capacities,
    whole_shares,
)
from gpushare.domain.policies import Policy
from gpushare.domain.refusal import Reason, Refusal
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
)


def whole(
    *containers: tuple[str, int, int], passing: tuple[str, ...] = (), cores: int = 0
) -> Claim:
    """A claim of whole cards by containers of (name, cores, units)."""
    held = tuple(ContainerAmount(n, Amount(c, u)) for n, c, u in containers)
    total = Amount(cores or sum(c for _, c, _ in containers))
    return Claim(total, held, frozenset(passing))


def carved(asked: Claim, *units: int) -> dict[str, dict[str, tuple[int, int]]]:
    """What each container has of each card, as (cores, units)."""
    return {
        one.card: {
            held.name: (held.amount.cores, held.amount.units) for held in one.containers
        }
        for one in whole_shares(asked, cards(*units))
    }


@pytest.mark.parametrize(
    ("asked", "units", "held"),
    [
        (
            whole(("a", 200, 40)),
            (29, 29),
            {"GPU-0": {"a": (100, 29)}, "GPU-1": {"a": (100, 11)}},
        ),
        (
            whole(("a", 100, 5), ("b", 100, 5)),
            (29, 29),
            {"GPU-0": {"a": (100, 5)}, "GPU-1": {"b": (100, 5)}},
        ),
        (
            whole(("a", 50, 5), ("b", 150, 30)),
            (29, 29),
            {"GPU-0": {"a": (50, 5), "b": (50, 24)}, "GPU-1": {"b": (100, 6)}},
        ),
        (
            whole(("a", 100, 40), ("b", 100, 0)),
            (29, 29),
            {"GPU-0": {"a": (100, 29)}, "GPU-1": {"a": (0, 11), "b": (100, 0)}},
        ),
        (
            whole(("i", 100, 29), ("a", 100, 29), passing=("i",), cores=100),
            (29,),
            {"GPU-0": {"i": (100, 29), "a": (100, 29)}},
        ),
        (
            whole(("m", 0, 7), ("a", 100, 5)),
            (29,),
            {"GPU-0": {"m": (0, 7), "a": (100, 5)}},
        ),
    ],
    ids=[
        "one container on both",
        "one each",
        "a card divided",
        "units beyond its own card",
        "init gives back",
        "memory alone beside",
    ],
)
def test_containers_share_out_whole_cards(
    asked: Claim, units: tuple[int, ...], held: dict[str, dict[str, tuple[int, int]]]
) -> None:
    """Cores in kubelet's order of admission, units from the container's own cards."""
    assert carved(asked, *units) == held


def test_whole_cards_are_charged_in_full() -> None:
    """Whatever the containers ask of them."""
    shares = whole_shares(whole(("a", 200, 1)), cards(29, 16))
    assert [one.amount for one in shares] == [Amount(100, 29), Amount(100, 16)]


def test_room_counts_healthy_cards_only() -> None:
    """A sick card is no choice for anybody."""
    page = node(card(0, healthy=False), card(1))
    room = FreeCapacity.of(page, FIRST_FIT, request())
    assert [c[0].uuid for c in room.choices(claim(1))] == ["GPU-1"]
    assert [c[0].uuid for c in room.choices(claim(0, 100))] == ["GPU-1"]


@pytest.mark.parametrize(
    ("chosen", "order"),
    [(FIRST_FIT, [0, 1, 2]), (BEST_FIT, [1, 0, 2]), (SPREAD, [2, 0, 1])],
    ids=lambda value: getattr(value, "name", ""),
)
def test_choices_come_best_first(chosen: Policy, order: list[int]) -> None:
    """Every card with room, in the policy's order."""
    page = node(
        *cards(29, 29, 29, 3), holds=[placement("a", 0, 9), placement("b", 1, 20)]
    )
    found = FreeCapacity.of(page, chosen, request()).choices(claim(5))
    assert [choice[0].index for choice in found] == order


def test_whole_cards_have_one_choice() -> None:
    """The largest untouched; among equals by the policy's order."""
    page = node(*cards(16, 94, 94, 29), holds=[placement("a", 3, 1)])
    room = FreeCapacity.of(page, FIRST_FIT, request())
    found = room.choices(claim(0, 200))
    assert [[one.index for one in choice] for choice in found] == [[1, 2]]
    assert room.choices(claim(189, 200)) == []
    assert room.choices(claim(0, 400)) == []


def test_what_is_taken_is_gone() -> None:
    """Free room and untouched cards follow."""
    room = FreeCapacity.of(node(*cards(29, 29)), FIRST_FIT, request())
    room.take(claim(20), room.choices(claim(20))[0])
    assert room.untouched == {"GPU-1"}
    assert room.choices(claim(20))[0][0].index == 1


def test_spots_are_what_is_left_the_least_first() -> None:
    """Untouched cards last, and no card that is closed or that the pod may not have."""
    page = node(
        *cards(29, 16, 29, 29, 94),
        card(5, healthy=False),
        holds=[placement("a", 0, 9, 1), placement("b", 3, 20)],
    )
    asked = replace(request(), cards=CardSelector.of(uuids=["!GPU-4"]))
    found, ranked = card_capacities(page, asked)
    assert found == ((False, 9, 100), (False, 20, 99), (True, 16, 100), (True, 29, 100))
    assert [one.index for one in ranked] == [3, 0, 1, 2]


def search(
    amounts: list[tuple[int, int]], spots: list[CardCapacity], most: int = 500
) -> SearchResult:
    """Look for a way for shares of (units, cores)."""
    asked = [Amount(cores, units) for units, cores in amounts]
    return Search(asked).run(spots, most)


def bare(*units: int) -> list[CardCapacity]:
    """Untouched cards of these units."""
    return [(True, size, 100) for size in units]


def test_a_search_gives_each_claim_its_cards() -> None:
    """In the order of the claims, whatever order they were tried in."""
    found = search([(8, 0), (15, 0), (0, 200)], [*bare(29, 29), (False, 23, 100)])
    assert found.ways == ((2,), (2,), (0, 1))


@pytest.mark.parametrize(
    ("amounts", "spots", "no"),
    [
        ([(20, 0)] * 3, bare(29, 29), Reason.MEMORY),
        ([(1, 70)] * 3, bare(29, 29), Reason.CORE),
        ([(20, 70)] * 3, bare(25, 25), Reason.CORE_AND_MEMORY),
        ([(0, 100)] * 3, bare(29, 29), Reason.UNTOUCHED_CARDS),
        ([(20, 0), (20, 0)], bare(29, 19), Reason.MEMORY),
        ([(20, 0), (1, 100)], [*bare(29), (False, 19, 100)], Reason.MEMORY),
    ],
    ids=["units", "cores", "both", "cards", "left over", "whole left over"],
)
def test_a_search_says_what_was_short(
    amounts: list[tuple[int, int]], spots: list[CardCapacity], no: Reason
) -> None:
    """In sum, or for the claim that was left over."""
    found = search(amounts, spots)
    assert (found.ways, found.no) == (None, Refusal(no))


def test_twins_are_tried_once() -> None:
    """Claims and cards that differ in name alone make no further tries."""
    hopeless = search([(20, 0)] * 10, bare(*[39] * 9))
    assert hopeless.ways is None
    assert hopeless.steps < 60
    differing = search([(20, 0)] * 10, bare(*range(31, 40)), 100_000)
    assert differing.ways is None
    assert differing.steps < 3000


def test_a_search_has_an_end() -> None:
    """A bound so small that no way back is left gives one try for each claim."""
    amounts = [(size, 0) for size in range(30, 46)]
    total = sum(size for size, _ in amounts)
    spots = bare(*[total // 8] * 8)
    assert search(amounts, spots, 500).steps <= 500
    assert search(amounts, spots, 16).steps == 16


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 99)), max_size=4),
    st.lists(
        st.tuples(st.just(value=False), st.integers(-5, 40), st.integers(-5, 100)),
        max_size=3,
    ),
)
def test_a_search_finds_a_way_wherever_there_is_one(
    amounts: list[tuple[int, int]], spots: list[CardCapacity]
) -> None:
    """Held against all ways there are."""
    asked = [pair for pair in amounts if any(pair)]
    there_is = any(
        all(
            sum(a[0] for a, i in zip(asked, way, strict=True) if i == number) <= units
            and sum(a[1] for a, i in zip(asked, way, strict=True) if i == number)
            <= cores
            for number, (_, units, cores) in enumerate(spots)
            if number in way
        )
        for way in product(range(len(spots)), repeat=len(asked))
    )
    assert (search(asked, spots).ways is not None) == there_is
