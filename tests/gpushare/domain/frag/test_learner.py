"""What is learned of which pods, when, and from how many kinds."""

import math
from random import Random

import pytest

from gpushare.domain.frag.learner import SETS_AT_MOST, learn, merge_kinds, next_lesson
from gpushare.domain.frag.shapes import ClusterCapacity, PodShape
from tests.gpushare.domain.frag.invented import no_card, share, state, whole

POOL = ClusterCapacity(16, 128_000, 1_048_576, {"T4": 8000, "A10": 8000}, {8: 2})


def test_when_to_learn() -> None:
    """Often at first; later, when a quarter more pods were seen."""
    times = [0]
    while times[-1] < 3000:
        times.append(next_lesson(times[-1]))
    assert times == [
        *(0, 1, 5, 10, 20, 40, 70, 100, 150, 200, 300, 400, 500),
        *(750, 1000, 1250, 1562, 1952, 2440, 3050),
    ]


@pytest.mark.parametrize(
    "seen",
    [
        *({}, {share(500): 0}, {no_card(4000, 1024): 9}, {whole(1): 9}),
        *({whole(16, 64_000): 9}, {share(1): 9}, {share(120): 9, share(160): 1}),
        *({whole(2, 0, 0, "none has this"): 9}, {share(500, 10**9, 10**9): 9}),
        {share(333): 1_000_000_000, share(334): 1},
        {whole(3): 1, whole(5): 1, whole(7): 1},
    ],
)
@pytest.mark.parametrize(
    "pool", [POOL, ClusterCapacity(0, None, None), ClusterCapacity(0, 0, 0)]
)
def test_whatever_was_seen_there_are_tables(
    seen: dict[PodShape, int], pool: ClusterCapacity
) -> None:
    tables = learn(seen, pool)
    assert tables.curve[100] == pytest.approx(1)
    for model in ("T4", "none has this", ""):
        free = state(1000, 1000, cpu=64_000, memory=262_144, model=model)
        full = state(0, 0, cpu=0, memory=0, model=model)
        assert 0 < tables.gauge(free).worth < math.inf
        assert tables.gauge(full).worth == 0
        assert math.isfinite(tables.charge(model, tables.gauge(free).worth, 2.0, 0))


def test_each_number_of_cards_has_its_part_of_the_demand() -> None:
    tables = learn({whole(2): 1, whole(8): 1, share(500): 4, no_card(9): 9}, POOL)
    assert tables.shares == {2: 2 / 12, 8: 8 / 12}
    assert tables.block_prices == {2: 0.1 * 1 / 8, 8: 0.1 * 5 / 8}


def test_models_are_pressed_by_those_who_need_them() -> None:
    """Half the demand needs T4, of which half the idle cards are: L is 1 for it."""
    tables = learn({share(500, 0, 0, "T4"): 5, share(500): 5}, POOL)
    assert tables.pressures == {"T4": 1.0}
    less = learn({share(500, 0, 0, "T4"): 5, share(500): 15}, POOL)
    assert less.pressures == {"T4": 0.25}
    gone = learn({share(500, 0, 0, "V100"): 1, share(500): 15}, POOL)
    assert gone.pressures == {"V100": 1.0}
    crowd = learn({share(500, 0, 0, "T4", "A10"): 5, share(500): 5}, POOL)
    assert crowd.pressures == {"A10": 0.25, "T4": 0.25}


def test_sizes_are_rounded_up_before_any_is_left_out() -> None:
    seen = {share(331, 1001, 4097): 2, share(333, 1002, 5000): 3, no_card(9): 1}
    assert merge_kinds(seen, most=2) == {share(340, 1024, 5120): 5, no_card(10): 1}


def test_those_of_least_demand_are_left_out() -> None:
    seen = {share(900): 2, share(100): 3, whole(8): 1, no_card(7): 50}
    assert set(merge_kinds(seen, most=2)) == {whole(8), share(900)}


def test_rare_sets_of_models_count_as_any() -> None:
    seen = {share(500, 0, 0, f"m{n:03}"): 1000 - n for n in range(SETS_AT_MOST + 9)}
    kinds = merge_kinds(seen)
    assert kinds[share(500)] == sum(1000 - n for n in range(SETS_AT_MOST, len(seen)))
    assert len(kinds) == SETS_AT_MOST + 1


def test_thousands_of_kinds_are_learnt_from() -> None:
    draw = Random(3)
    sizes = (120, 251, 333, 507, 790)
    seen = {
        share(draw.choice(sizes), number, draw.randrange(10**6)): draw.randrange(1, 9)
        for number in range(2400)
    }
    kinds = merge_kinds(seen)
    assert sum(kinds.values()) == sum(seen.values())
    assert len(kinds) <= 2000
    pool = ClusterCapacity(8, 64_000, 65_536, {"": 8000}, {8: 1})
    assert learn(seen, pool) == learn(dict(reversed(seen.items())), pool)
