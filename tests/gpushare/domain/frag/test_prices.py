"""Prices, look-ups and the worth of nodes, each against its definition."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise, product
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from gpushare.domain.frag.learner import learn
from gpushare.domain.frag.prices import (
    STEPS,
    Ladder,
    Ramp,
    Tables,
    blend_with_size,
    compute_worth_curve,
    find_best_pattern,
    price_sizes,
    round_up_to_steps,
)
from gpushare.domain.frag.shapes import ClusterCapacity, FreeOnNode, PodShape
from tests.gpushare.domain.frag.invented import (
    few,
    histograms,
    pool_of,
    share,
    state,
    states,
    whole,
)

counts = st.dictionaries(st.integers(1, 100), st.integers(1, 5000), max_size=14)
NEARLY = 1e-6


def test_the_sizes_of_a_real_cluster() -> None:
    """As ``packing`` of real shares goes: halves, thirds, and fillers for nothing."""
    seen = {100: 3900, 81: 1080, 65: 250, 59: 75, 47: 750, 32: 330, 23: 140, 16: 75}
    prices = price_sizes(seen)
    assert {size: round(price, 3) for size, price in prices.items()} == {
        100: 1,
        81: 1,
        65: 0.667,
        59: 0.667,
        47: 0.5,
        32: 0.333,
        23: 0.25,
        16: 0,
    }


@few
@given(counts)
def test_no_card_holds_more_price_than_one(seen: dict[int, int]) -> None:
    prices = price_sizes(seen)
    assert all(0 <= price <= 1 + NEARLY for price in prices.values())
    worth, _ = find_best_pattern(sorted(seen), [prices[size] for size in sorted(seen)])
    assert worth <= 1 + NEARLY


@few
@given(counts)
def test_prices_say_at_least_what_sizes_say(seen: dict[int, int]) -> None:
    """The dual bounds the cards needed, no worse than their total size does."""
    prices = price_sizes(seen)
    bound = sum(prices[size] * number for size, number in seen.items())
    assert bound >= sum(size * number for size, number in seen.items()) / STEPS - 1e-3


@settings(max_examples=25)
@given(
    st.dictionaries(st.integers(25, 100), st.integers(1, 50), min_size=1, max_size=3)
)
def test_the_prices_are_the_optimum(seen: dict[int, int]) -> None:
    prices = price_sizes(seen)
    dual = sum(prices[size] * number for size, number in seen.items())
    assert dual == pytest.approx(_fewest_cards(seen), rel=1e-6)


@pytest.mark.parametrize("rounds", [0, 1, 10, 60])
def test_prices_hold_wherever_the_rounds_end(rounds: int) -> None:
    """Never over one for a card, and never worse than plain sizes."""
    seen = {size: 1 + size * 7919 % 1000 for size in range(30, 96, 3)}
    prices = price_sizes(seen, rounds)
    worth, _ = find_best_pattern(sorted(seen), [prices[size] for size in sorted(seen)])
    assert worth <= 1 + NEARLY
    bound = sum(prices[size] * number for size, number in seen.items())
    plain = sum(size * number for size, number in seen.items()) / STEPS
    assert bound >= plain - NEARLY
    assert (bound > plain * 1.01) == (rounds == 60)


@few
@given(counts)
def test_the_curve_rises_from_nothing_to_one(seen: dict[int, int]) -> None:
    for curve in (
        compute_worth_curve(price_sizes(seen)),
        blend_with_size(compute_worth_curve({})),
    ):
        assert len(curve) == STEPS + 1
        assert curve[0] == 0
        assert curve[STEPS] == pytest.approx(1)
        assert all(low <= high + NEARLY for low, high in pairwise(curve))


def test_a_rest_is_worth_the_best_that_fits() -> None:
    curve = compute_worth_curve({60: 0.5, 40: 0.5, 16: 0.0})
    assert [curve[room] for room in (39, 40, 79, 80, 100)] == [0, 0.5, 0.5, 1, 1]
    assert blend_with_size(curve)[50] == pytest.approx(0.5)
    assert blend_with_size(curve)[39] == pytest.approx(0.195)


def _fewest_cards(seen: dict[int, int]) -> float:
    """Solve the linear program over all patterns."""
    sizes = sorted(seen)
    fills = product(*(range(STEPS // size + 1) for size in sizes))
    patterns = [f for f in fills if 0 < sum(map(mul, f, sizes)) <= STEPS]
    covered = [[-pattern[row] for pattern in patterns] for row in range(len(sizes))]
    wanted = [-seen[size] for size in sizes]
    return float(linprog([1] * len(patterns), A_ub=covered, b_ub=wanted).fun)


weights = st.integers(1, 100).map(float)
rooms = st.none() | st.integers(-1000, 100_000)


@few
@given(
    st.lists(st.tuples(st.integers(0, 20_000), weights), min_size=1, max_size=9),
    st.sampled_from([0.0, 0.25, 1.0, 3.5, 8.0]),
    rooms,
)
def test_a_ramp_is_its_sum(
    kinds: list[tuple[int, float]], cards: float, room: int | None
) -> None:
    """Σ w·min(G, X/a), and a kind that asks nothing is never limited."""
    free = math.inf if room is None else max(room, 0)
    plainly = sum(
        weight * (min(cards, free / rate) if rate else cards) for rate, weight in kinds
    )
    assert Ramp.of(kinds).worth(cards, room) == pytest.approx(plainly)


@few
@given(
    st.lists(st.tuples(st.integers(0, 20_000), weights), min_size=1, max_size=9),
    st.integers(0, 8),
    rooms,
)
def test_a_ladder_is_its_sum(
    kinds: list[tuple[int, float]], blocks: int, room: int | None
) -> None:
    """Σ w·min(B, ⌊X/c⌋)."""
    free = math.inf if room is None else max(room, 0)
    plainly = sum(
        weight * (min(blocks, free // rate) if rate else blocks)
        for rate, weight in kinds
    )
    assert Ladder.of(kinds).worth(blocks, room) == pytest.approx(plainly)


clusters = st.lists(states, min_size=1, max_size=6)
Seen = Mapping[PodShape, int]


@few
@given(histograms, clusters)
def test_a_node_is_worth_what_the_formula_says(
    seen: Seen, nodes: list[FreeOnNode]
) -> None:
    pool = pool_of(nodes)
    tables = learn(seen, pool)
    for node in nodes:
        plainly = _worth(seen, pool, tables, node)
        assert tables.gauge(node).worth == pytest.approx(plainly, abs=1e-9)


@few
@given(histograms, clusters, st.floats(0, 8), st.floats(0, 8), st.integers(0, 4000))
def test_a_charge_is_what_is_lost_in_notches(
    seen: Seen, nodes: list[FreeOnNode], lost: float, used: float, rest: int
) -> None:
    """Within half a notch of 1000·(R before - R after + L·p), and the tie-break."""
    tables = learn(seen, pool_of(nodes))
    for node in nodes:
        wanted = lost + tables.pressures.get(node.model, 0.0) * used
        charge = tables.charge(node.model, lost, used, rest)
        notches = (charge - 1e-7 * rest) / 80
        assert notches == pytest.approx(round(notches), abs=1e-6)
        assert abs(80 * notches - 1000 * wanted) <= 40 + 1e-6


@few
@given(histograms, clusters, st.integers(0, 1000), st.integers(0, 16_000))
def test_less_is_never_worth_more(
    seen: Seen, nodes: list[FreeOnNode], taken: int, cpu_milli: int
) -> None:
    """Nor is a node that has less CPU."""
    tables = learn(seen, pool_of(nodes))
    for node in nodes:
        less = replace(
            node,
            residuals=tuple(residual - taken for residual in node.residuals),
            cpu_milli=None if node.cpu_milli is None else node.cpu_milli - cpu_milli,
        )
        assert tables.gauge(node).worth >= tables.gauge(less).worth - 1e-9


def test_the_tables_stay_until_an_eighth_changes() -> None:
    pool = ClusterCapacity(16, None, None, {"": 16000}, {8: 2})
    tables = learn({whole(8): 1, share(500): 8}, pool)
    assert tables.block_prices == {8: 0.1 * 5 / 8}
    assert tables.under(ClusterCapacity(16, None, None, {"": 15900}, {8: 2})) is tables
    scarce = tables.under(ClusterCapacity(16, None, None, {"": 16000}, {8: 1, 7: 1}))
    assert scarce.block_prices == {8: 0.1}
    assert scarce.curve is tables.curve


def test_cpu_is_worth_what_cards_need_of_it() -> None:
    """On a node whose cards are full it is worth nothing."""
    pool = ClusterCapacity(1, 8000, None, {"": 1000}, {1: 1})
    tables = learn({whole(1, 8000): 100}, pool)

    def charge(free: int, cpu: int) -> float:
        before, after = (state(free, cpu=has) for has in (cpu, cpu - 4000))
        lost = tables.gauge(before).worth - tables.gauge(after).worth
        return tables.charge("", lost, 0.0, 0)

    assert (charge(1000, 8000), charge(1000, 80_000), charge(0, 8000)) == (480, 0, 0)


def _worth(
    seen: Seen, pool: ClusterCapacity, tables: Tables, node: FreeOnNode
) -> float:
    """R as in the docstring of ``Tables``, summed over every kind of pod."""
    prices = price_sizes(_sizes(seen))
    cards = max(pool.cards, 1)
    cpu, memory = (pool.cpu_milli or 0) / cards, (pool.memory_mib or 0) / cards / 2
    kinds = [(20_000.0, cpu, memory)]
    total = 20_000.0
    for shape, number in seen.items():
        price = prices[round_up_to_steps(shape.milli)] if shape.cards == 1 else 0
        if price > 0:
            total += number * shape.milli
            if shape.models is None or node.model in shape.models:
                rate = (shape.cpu_milli / price, shape.memory_mib / price)
                kinds.append((float(number * shape.milli), *rate))
    full = sum(tables.curve[max(0, residual) // 10] for residual in node.residuals)
    by_cpu = sum(w * min(full, _most(node.cpu_milli, a)) for w, a, _ in kinds)
    by_memory = sum(w * min(full, _most(node.memory_mib, b)) for w, _, b in kinds)
    return min(by_cpu, by_memory) / total + _blocks(seen, tables, node)


def _blocks(seen: Seen, tables: Tables, node: FreeOnNode) -> float:
    worth = 0.0
    several = {shape: n for shape, n in seen.items() if shape.cards > 1}
    for shape, number in several.items():
        if shape.models is None or node.model in shape.models:
            like = sum(n for s, n in several.items() if s.cards == shape.cards)
            blocks = float(node.untouched // shape.cards)
            blocks = min(blocks, _most(node.cpu_milli, shape.cpu_milli) // 1)
            price = tables.block_prices[shape.cards]
            worth += price * shape.cards * number / like * blocks
    return worth


def _sizes(seen: Seen) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for shape, number in seen.items():
        if shape.cards == 1:
            sizes[round_up_to_steps(shape.milli)] += number
    return sizes


def _most(free: int | None, rate: float) -> float:
    return math.inf if free is None or not rate else max(free, 0) / rate
