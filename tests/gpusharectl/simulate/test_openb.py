from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from gpusharectl.simulate.openb import (
    NODE_FILE,
    Meter,
    Trace,
    TraceError,
    TraceNode,
    TracePod,
    mean_share,
    pod_lists,
    read_nodes,
    read_pods,
    read_trace,
)


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


Write: TypeAlias = Callable[[str], Path]
CASES = Path(__file__).parents[2] / "cases" / "openb"
NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "list.csv"
        path.write_text(text)
        return path

    return written


def test_a_trace_is_read_as_it_stands() -> None:
    trace = read_trace(CASES, "small")
    assert trace.capacity == 13_000
    assert [(pod.cards, pod.milli) for pod in trace.pods] == [
        *((1, 500), (1, 130), (1, 250), (1, 1000), (2, 1000), (0, 0)),
        *((1, 90), (1, 60), (1, 40), (1, 30)),
    ]
    assert [pod.models for pod in trace.pods[:4]] == [
        *(None, frozenset("AB"), frozenset("B"), frozenset("A"))
    ]


def test_columns_after_gpu_milli_may_be_absent() -> None:
    assert [pod.demand for pod in read_trace(CASES, "bare").pods] == [460, 4000, 0]


def test_lists_are_known_by_their_files(tmp_path: Path) -> None:
    assert pod_lists(CASES) == ["bare", "small"]
    assert pod_lists(tmp_path) == []


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (
            "a,1,1,1,500,\na,1,1,1,500,\n",
            ":3: name: a is there twice (first in line 2)",
        ),
        ("a,1,1,1,500\n", ':2: has 5 of 6 fields, up to "500": the line is cut'),
        ("a,1,1,1,500,", ":2: the last line has no line end: the file is cut"),
        ("a,1.5,1,1,500,\n", ':2: cpu_milli: is "1.5"; it must be a whole number'),
        ("a,1,-1,1,500,\n", ':2: memory_mib: is "-1"; it must be a whole number'),
        ("a,1,1,,500,\n", ":2: num_gpu: is empty"),
        (",1,1,1,500,\n", ":2: name: is empty"),
        ("a,1,1,1,0,\n", ":2: gpu_milli: is 0; of one card it is 1 to 1000"),
        ("a,1,1,1,1001,\n", ":2: gpu_milli: is 1001; of one card it is 1 to 1000"),
        ("a,1,1,1,500,A||B\n", ':2: gpu_spec: is "A||B"; models stand as A or A|B'),
        ('a,1,1,1,500,"A\n', ": is not CSV"),
        ('a,1,1,1,500,"A\nB"\nb,x,1,1,1,\n', ':4: cpu_milli: is "x"'),
        ('a,x,1,1,500,"A\nB"\n', ':2: cpu_milli: is "x"'),
        ("", ": has a heading and nothing below it"),
    ],
)
def test_a_wrong_list_of_pods_is_named_by_line_and_field(
    write: Write, rows: str, complaint: str
) -> None:
    path = write(PODS + rows)
    with pytest.raises(TraceError) as caught:
        read_pods(path)
    assert str(caught.value).startswith(str(path))
    assert complaint in str(caught.value)


def test_several_cards_are_whole_whatever_the_column_says(write: Write) -> None:
    """So the paper replays them."""
    assert [p.milli for p in read_pods(write(PODS + "a,1,1,2,500,\n"))] == [1000]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", ": is empty"),
        ("sn,cpu_milli,gpu,model\na,1,1,A\n", ":1: the column memory_mib is missing"),
        (NODES + "a,1,1,0,\n", ": no node has a card"),
        (NODES + "a,1,1,one,A\n", ':2: gpu: is "one"'),
    ],
)
def test_a_wrong_list_of_nodes_is_named(
    write: Write, text: str, complaint: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read_nodes(write(text))
    assert complaint in str(caught.value)


def test_a_missing_file_says_where_it_may_be_had(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=f"{NODE_FILE}: there is no such file"
    ) as caught:
        read_trace(tmp_path)
    assert "alibaba/clusterdata" in str(caught.value)


def test_a_missing_list_names_those_that_are_there() -> None:
    with pytest.raises(TraceError, match='no pod list "large"; here are bare, small'):
        read_trace(CASES, "large")


def test_a_file_of_other_bytes_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="cannot be read"):
        read_pods(path)


def test_a_mark_of_byte_order_is_no_part_of_a_column(tmp_path: Path) -> None:
    """Spreadsheets write one."""
    path = tmp_path / "list.csv"
    path.write_text(NODES + "a,1,1,2,A\n", encoding="utf-8-sig")
    assert [one.name for one in read_nodes(path)] == ["a"]
