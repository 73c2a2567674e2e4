"""The published table of states and scores: ``tests/cases/frag.yaml``."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.domain.frag.index import Index
from gpushare.domain.frag.learning import learn
from gpushare.domain.frag.shapes import Shape, State

HERE = Path(__file__).parent
TABLE = yaml.safe_load(HERE.joinpath("../../cases/frag.yaml").read_text())
CASES = {case["id"]: case for case in TABLE["cases"]}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_pod_goes_where_the_table_says(case: dict[str, Any]) -> None:
    states = {node["name"]: _state(node) for node in case["nodes"]}
    built = case["built"]
    index = Index(
        states,
        cards=built["cards"],
        cpu_milli=built.get("cpu"),
        memory_mib=built.get("memory"),
    )
    if case["pods"]:
        seen = {_shape(pod): pod["count"] for pod in case["pods"]}
        index.swap(learn(seen, index.pool))
    asked = _shape(case["ask"])
    best = index.best(asked)
    assert (best and best.node) == case["best"]
    for name, state in states.items():
        found = index.tables.best_card(state, asked)
        says = case["scores"][name]
        assert (found is None) == (says is None)
        if found is not None:
            assert found[0] == pytest.approx(says["score"], abs=1e-8)
            assert found[1] == says["card"]
    worths = {name: index.tables.value(state) for name, state in states.items()}
    assert worths == pytest.approx(case["worth"], abs=1e-6)


def test_every_case_has_a_name_of_its_own() -> None:
    assert len(CASES) == len(TABLE["cases"])


def _state(node: dict[str, Any]) -> State:
    free = tuple(node["free"])
    return State(node.get("cpu"), node.get("memory"), free, node.get("model", ""))


def _shape(pod: dict[str, Any]) -> Shape:
    models = frozenset(pod.get("models", ())) or None
    cpu, memory = pod.get("cpu", 0), pod.get("memory", 0)
    return Shape(pod["milli"], pod["cards"], cpu, memory, models)
