"""Worth of a node and score of a place, held up against the formula written out."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.frag.learner import learn
from gpushare.domain.frag.prices import Tables, card_prices, steps_up
from gpushare.domain.frag.shapes import Pool, Shape, State
from tests.gpushare.domain.frag.invented import (
    few,
    histograms,
    pool_of,
    share,
    state,
    states,
    whole,
)

clusters = st.lists(states, min_size=1, max_size=6)
Seen = Mapping[Shape, int]


@few
@given(histograms, clusters)
def test_a_node_is_worth_what_the_formula_says(seen: Seen, nodes: list[State]) -> None:
    pool = pool_of(nodes)
    tables = learn(seen, pool)
    for node in nodes:
        plainly = _worth(seen, pool, tables, node)
        assert tables.gauge(node).worth == pytest.approx(plainly, abs=1e-9)


@few
@given(histograms, clusters, st.floats(0, 8), st.lists(st.integers(0, 999), max_size=4))
def test_a_charge_is_what_is_lost_in_notches(
    seen: Seen, nodes: list[State], lost: float, rests: list[int]
) -> None:
    """Within half a notch of 1000·(R before - R after + L·p), and the tie-break."""
    tables = learn(seen, pool_of(nodes))
    for node in nodes:
        part = sum(1 - tables.curve[rest // 10] for rest in rests)
        wanted = lost + tables.pressures.get(node.model, 0.0) * part
        charge = tables.charge(node.model, lost, rests)
        notches = (charge - 1e-7 * sum(rests)) / 80
        assert notches == pytest.approx(round(notches), abs=1e-6)
        assert abs(80 * notches - 1000 * wanted) <= 40 + 1e-6


@few
@given(histograms, clusters, st.integers(0, 1000), st.integers(0, 16_000))
def test_less_is_never_worth_more(
    seen: Seen, nodes: list[State], taken: int, cpu_milli: int
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
    pool = Pool(16, None, None, {"": 16000}, {8: 2})
    tables = learn({whole(8): 1, share(500): 8}, pool)
    assert tables.block_prices == {8: 0.1 * 5 / 8}
    assert tables.under(Pool(16, None, None, {"": 15900}, {8: 2})) is tables
    scarce = tables.under(Pool(16, None, None, {"": 16000}, {8: 1, 7: 1}))
    assert scarce.block_prices == {8: 0.1}
    assert scarce.curve is tables.curve


def test_cpu_is_worth_what_cards_need_of_it() -> None:
    """On a node whose cards are full it is worth nothing."""
    pool = Pool(1, 8000, None, {"": 1000}, {1: 1})
    tables = learn({whole(1, 8000): 100}, pool)

    def charge(free: int, cpu: int) -> float:
        before, after = (state(free, cpu=has) for has in (cpu, cpu - 4000))
        lost = tables.gauge(before).worth - tables.gauge(after).worth
        return tables.charge("", lost, ())

    assert (charge(1000, 8000), charge(1000, 80_000), charge(0, 8000)) == (480, 0, 0)


def _worth(seen: Seen, pool: Pool, tables: Tables, node: State) -> float:
    """R as in the docstring of ``Tables``, summed over every kind of pod."""
    prices = card_prices(_sizes(seen))
    cards = max(pool.cards, 1)
    cpu, memory = (pool.cpu_milli or 0) / cards, (pool.memory_mib or 0) / cards / 2
    kinds = [(20_000.0, cpu, memory)]
    total = 20_000.0
    for shape, number in seen.items():
        price = prices[steps_up(shape.milli)] if shape.cards == 1 else 0
        if price > 0:
            total += number * shape.milli
            if shape.models is None or node.model in shape.models:
                asked = (shape.cpu_milli / price, shape.memory_mib / price)
                kinds.append((float(number * shape.milli), *asked))
    full = sum(tables.curve[max(0, residual) // 10] for residual in node.residuals)
    by_cpu = sum(w * min(full, _most(node.cpu_milli, a)) for w, a, _ in kinds)
    by_memory = sum(w * min(full, _most(node.memory_mib, b)) for w, _, b in kinds)
    return min(by_cpu, by_memory) / total + _blocks(seen, tables, node)


def _blocks(seen: Seen, tables: Tables, node: State) -> float:
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
            sizes[steps_up(shape.milli)] += number
    return sizes


def _most(free: int | None, asked: float) -> float:
    return math.inf if free is None or not asked else max(free, 0) / asked
