from collections.abc import Callable
from pathlib import Path

import pytest

from bench.packing.trace import (
    MADE,
    NODE_FILE,
    Meter,
    Trace,
    TraceError,
    TraceNode,
    TracePod,
    pod_lists,
    read_nodes,
    read_pods,
    read_trace,
)
from tests.bench.packing.building import CASES, node, pod


def trace(*pods: TracePod, cards: int = 10) -> Trace:
    return Trace((TraceNode("node", 64_000, 262_144, cards, "A"),), pods)


MIX = tuple(pod(f"pod-{i}", 100 * (i % 4)) for i in range(12))


def test_the_order_depends_on_the_seed_alone() -> None:
    """Not on the order of the file; no node is lost."""
    assert trace(*MIX).arrivals(42) == trace(*reversed(MIX)).arrivals(42)
    assert trace(*MIX).arrivals(42) != trace(*MIX).arrivals(43)
    nodes = tuple(TraceNode(f"node-{i}", 1, 1, 1, "A") for i in range(20))
    shuffled = Trace(nodes, MIX).shuffled_nodes(42)
    assert shuffled == Trace(nodes, MIX).shuffled_nodes(42)
    assert shuffled != nodes
    assert set(shuffled) == set(nodes)


def test_the_demand_is_130_percent_of_the_cards() -> None:
    """Pods of the list are added, or left out; none of the list if there is room."""
    more, fewer = trace(*MIX).arrivals(42), trace(*MIX, cards=1).arrivals(42)
    assert set(more) == set(MIX)
    assert 13_000 - 300 <= sum(one.demand for one in more) <= 13_000
    assert len(fewer) == len(set(fewer)) < len(MIX)
    assert sum(one.demand for one in fewer) <= 1300
    with pytest.raises(ValueError, match="no pod of the list asks a card"):
        trace(pod("pod")).arrivals(42)


def test_a_share_is_the_mean_over_the_moments_that_round_to_the_load() -> None:
    """Pods without cards are moments too; the refused ones add to the load alone."""
    meter = Meter(10_000)
    for asked, placed in ((9_960, True), (0, True), (30, False), (300, True)):
        meter.arrived(asked, placed=placed)
    assert meter.share(100) == pytest.approx(99.6)
    assert meter.share(103) == pytest.approx(102.6)
    assert meter.share(101) is None
    assert [load for load, _ in meter.curve()] == [100, 103]


NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def test_a_trace_is_read_as_it_stands(tmp_path: Path) -> None:
    """Several cards are whole whatever the column says, as the paper replays them.

    ``gpu_spec`` may be absent, and a spreadsheet's byte order mark is no part of it.
    """
    trace = read_trace(CASES, "small")
    assert trace.capacity == 13_000
    assert [(pod.cards, pod.milli) for pod in trace.pods] == [
        *((1, 500), (1, 130), (1, 250), (1, 1000), (2, 1000), (0, 0)),
        *((1, 90), (1, 60), (1, 40), (1, 30)),
    ]
    assert [pod.models for pod in trace.pods[:4]] == [
        *(None, frozenset("AB"), frozenset("B"), frozenset("A"))
    ]
    assert [pod.demand for pod in read_trace(CASES, "bare").pods] == [460, 4000, 0]
    path = tmp_path / "list.csv"
    path.write_text(PODS + "a,1,1,2,500,\n", encoding="utf-8-sig")
    assert [(one.name, one.milli) for one in read_pods(path)] == [("a", 1000)]
    assert (pod_lists(CASES), pod_lists(tmp_path)) == (["bare", "small"], [])


def complaint(of: Callable[[], object]) -> str:
    with pytest.raises(TraceError) as caught:
        of()
    return str(caught.value)


WRONG_PODS = {
    "a,1,1,1,500,\na,1,1,1,500,\n": ":3: name: a is there twice (first in line 2)",
    "a,1,1,1,500\n": ':2: has 5 of 6 fields, up to "500": the line is cut',
    "a,1,1,1,500,": ":2: the last line has no line end: the file is cut",
    "a,1.5,1,1,500,\n": ':2: cpu_milli: is "1.5"; it must be a whole number',
    "a,1,-1,1,500,\n": ':2: memory_mib: is "-1"; it must be a whole number',
    "a,1,1,,500,\n": ":2: num_gpu: is empty",
    ",1,1,1,500,\n": ":2: name: is empty",
    "a,1,1,1,0,\n": ":2: gpu_milli: is 0; of one card it is 1 to 1000",
    "a,1,1,1,1001,\n": ":2: gpu_milli: is 1001; of one card it is 1 to 1000",
    "a,1,1,1,500,A||B\n": ':2: gpu_spec: is "A||B"; write models as A or A|B',
    'a,1,1,1,500,"A\n': ":2: is not CSV",
    'a,1,1,1,500,"A\nB"\nb,x,1,1,1,\n': ':4: cpu_milli: is "x"',
    'a,x,1,1,500,"A\nB"\n': ':2: cpu_milli: is "x"',
    "": ": has a heading and nothing below it",
}
WRONG_NODES = {
    "": ": is empty",
    "sn,cpu_milli,gpu,model\na,1,1,A\n": ":1: the column memory_mib is missing",
    NODES + "a,1,1,0,\n": ": no node has a card",
    NODES + "a,1,1,one,A\n": ':2: gpu: is "one"',
}


@pytest.mark.parametrize(("rows", "words"), WRONG_PODS.items())
def test_a_wrong_list_of_pods_is_reported_by_line_and_field(
    tmp_path: Path, rows: str, words: str
) -> None:
    path = tmp_path / "list.csv"
    path.write_text(PODS + rows)
    assert complaint(lambda: read_pods(path)).startswith(f"{path}{words}")


@pytest.mark.parametrize(("text", "words"), WRONG_NODES.items())
def test_a_wrong_list_of_nodes_is_reported(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "list.csv"
    path.write_text(text)
    assert complaint(lambda: read_nodes(path)).startswith(f"{path}{words}")


def test_files_that_are_missing_or_no_text(tmp_path: Path) -> None:
    path = tmp_path / NODE_FILE
    missing = complaint(lambda: read_trace(tmp_path))
    assert missing.startswith(f"{path}: there is no such file; ")
    assert "alibaba/clusterdata" in missing
    path.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in complaint(lambda: read_nodes(path))
    words = 'no pod list "large"; here are bare, small'
    assert words in complaint(lambda: read_trace(CASES, "large"))


LISTED_NODES = (*(node(cards=8, model="G2") for _ in range(9)), node(model="V100M16"))
LISTED_PODS = tuple(
    [pod(f"c{n:03}", 1000) for n in range(300)]
    + [pod(f"e{n:03}", 1000, cards=8) for n in range(60)]
    + [pod(f"z{n:03}") for n in range(40)]
)
TRACE = Trace((*LISTED_NODES, node(model="V100M32")), LISTED_PODS)


def test_a_third_of_the_pods_with_cards_name_models_that_can_hold_them() -> None:
    v100 = frozenset({"V100M16", "V100M32"})
    shares = {}
    for name in ("models33", "scarce33"):
        pods = list(MADE[name](TRACE))
        assert [one.name for one in pods] == [one.name for one in LISTED_PODS]
        named = [one for one in pods if one.models is not None]
        assert 100 <= len(named) <= 140
        assert {one.models for one in named if one.cards == 8} == {frozenset({"G2"})}
        assert {one.models for one in named} == {frozenset({"G2"}), v100}
        assert not any(one.models for one in pods if not one.cards)
        assert pods == list(MADE[name](TRACE))
        shares[name] = sum(one.models == v100 for one in named) / len(named)
    assert shares["models33"] < 0.1
    assert 0.25 < shares["scarce33"] < 0.55


def test_pods_without_cards_come_more_often() -> None:
    pods = list(MADE["cpu250"](TRACE))
    assert len({one.name for one in pods}) == len(pods)
    assert sum(not one.cards for one in pods) == 100
    assert sum(one.cards > 0 for one in pods) == 360
