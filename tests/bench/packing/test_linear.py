"""The bounds, against clusters so small that they can be worked out by hand."""

import itertools

import pytest

from bench.packing.linear import dearest, limits
from bench.packing.replay import POLICIES, replay
from bench.packing.trace import Trace, TraceNode, TracePod, read_trace
from tests.bench.packing.building import CASES, node, pod


@pytest.mark.parametrize(
    ("nodes", "pods", "bound", "ceiling"),
    [
        ([node()], [pod("a", 600), pod("b", 400)], 100, 100),
        ([node(cpu=1000)], [pod(milli=250)], 25, 25),
        ([node(memory=2048)], [pod(milli=250)], 50, 50),
        # A load of 100 is one pod of each; 1.5 cores do for three quarters of both.
        ([node(cpu=1500)], [pod("a", 1000), pod("b", cpu=1000)], 100, 75),
        ([node(cards=3)], [pod(milli=1000, cards=2)], 200 / 3, 200 / 3),
        ([node(model="A"), node(model="B")], [pod(milli=1000, models="A")], 50, 50),
        ([node()], [pod("a", 500), pod("b", 500, models="B")], 50, 0),
    ],
)
def test_the_limits_are_those_worked_out_by_hand(
    nodes: list[TraceNode], pods: list[TracePod], bound: float, ceiling: float
) -> None:
    found = limits(Trace(tuple(nodes), tuple(pods)))
    assert found.bound == pytest.approx(bound)
    assert found.ceiling == pytest.approx(ceiling)


@pytest.mark.parametrize("name", ["fgd", "frag", "bestfit"])
@pytest.mark.parametrize("pod_list", ["small", "bare"])
def test_no_policy_packs_more_than_the_program(name: str, pod_list: str) -> None:
    made = read_trace(CASES, pod_list)
    mix = Trace(made.nodes, tuple(made.arrivals(42)))
    found = replay(mix, POLICIES[name], 42)
    # The arrivals are exactly the mix, but worth 130 and not 100.
    assert max(found.curve.values()) <= 1.3 * limits(mix).bound


@pytest.mark.parametrize(
    "prices",
    [
        {300: 0.34, 500: 0.5, 700: 0.65},
        {810: 1.0, 460: 0.5, 320: 1 / 3, 160: 0.0},
        {333: 0.4, 7: 0.001},
    ],
)
def test_the_dearest_pattern_is_the_dearest_of_all(prices: dict[int, float]) -> None:
    worth, pattern = dearest(prices)
    counts = [range(1000 // size + 1) for size in prices]
    best = max(
        sum(number * price for number, price in zip(held, prices.values(), strict=True))
        for held in itertools.product(*counts)
        if sum(n * s for n, s in zip(held, prices, strict=True)) <= 1000
    )
    assert worth == pytest.approx(best)
    assert sum(size * number for size, number in pattern) <= 1000
    assert sum(prices[size] * number for size, number in pattern) == pytest.approx(best)
