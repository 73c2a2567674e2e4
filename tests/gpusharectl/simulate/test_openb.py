import pytest

from gpusharectl.simulate.openb import Meter, Trace, TraceNode, TracePod, mean_share


def trace(*pods: TracePod, cards: int = 10) -> Trace:
    return Trace((TraceNode("node", 64_000, 262_144, cards, "A"),), pods)


def pod(name: str, milli: int = 0, cards: int = 1) -> TracePod:
    return TracePod(name, 1000, 1024, cards if milli else 0, milli)


MIX = tuple(pod(f"pod-{i}", 100 * (i % 4)) for i in range(12))


def demand(pods: list[TracePod]) -> int:
    return sum(one.demand for one in pods)


def test_the_same_seed_gives_the_same_order_whatever_the_order_of_the_file() -> None:
    assert trace(*MIX).arrivals(42) == trace(*reversed(MIX)).arrivals(42)
    assert trace(*MIX).arrivals(42) != trace(*MIX).arrivals(43)


def test_too_little_demand_is_filled_up_with_pods_of_the_list() -> None:
    """The last pod goes over the mark and no pod of the list is missing."""
    arrivals = trace(*MIX).arrivals(42)
    assert set(arrivals) == set(MIX)
    assert 13_000 - 300 <= demand(arrivals) <= 13_000


def test_too_much_demand_is_cut_down_to_the_mark() -> None:
    arrivals = trace(*MIX, cards=1).arrivals(42)
    assert len(arrivals) == len(set(arrivals)) < len(MIX)
    assert demand(arrivals) <= 1300


def test_a_list_without_cards_reaches_no_load() -> None:
    with pytest.raises(ValueError, match="no pod of the list asks a card"):
        trace(pod("pod")).arrivals(42)


def test_nodes_are_shuffled_by_the_seed_and_none_is_lost() -> None:
    nodes = tuple(TraceNode(f"node-{i}", 1, 1, 1, "A") for i in range(20))
    shuffled = Trace(nodes, MIX).shuffled_nodes(42)
    assert shuffled == Trace(nodes, MIX).shuffled_nodes(42)
    assert shuffled != nodes
    assert sorted(shuffled, key=lambda node: node.name) == sorted(
        nodes, key=lambda node: node.name
    )


def test_a_share_is_the_mean_over_the_moments_that_round_to_the_load() -> None:
    """Pods without cards are moments too; the refused ones add to the load alone."""
    meter = Meter(10_000)
    for asked, placed in ((9_960, True), (0, True), (30, False), (300, True)):
        meter.arrived(asked, placed=placed)
    assert meter.share(100) == pytest.approx(99.6)
    assert meter.share(103) == pytest.approx(102.6)
    assert meter.share(101) is None
    assert [load for load, _ in meter.curve()] == [100, 103]


def test_the_mean_over_seeds_is_unknown_where_one_seed_never_got_there() -> None:
    there, not_there = Meter(100), Meter(100)
    there.arrived(100, placed=True)
    not_there.arrived(50, placed=True)
    assert mean_share([there, there], 100) == 100
    assert mean_share([there, not_there], 100) is None
    assert mean_share([], 100) is None
