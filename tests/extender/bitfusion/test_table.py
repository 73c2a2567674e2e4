"""Every row of docs/bitfusion.md, as a table: ``tests/cases/bitfusion.yaml``."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.bitfusion.translate import Translation, translate
from extender.pool import Pool
from extender.webhook.rules import Rules, review
from gpushare.kube.cluster import Json
from tests.extender.bitfusion.pods import pod, rules

HERE = Path(__file__).parents[2]
TABLE = yaml.safe_load((HERE / "cases" / "bitfusion.yaml").read_text())
CASES = TABLE["cases"]
ROWS = {
    *(f"M{number}" for number in range(1, 19)),
    *(f"V{number}" for number in range(1, 9)),
    "Q1",
    "Q2",
}
WARNING = 120


def answer(case: Json, a_pod: Json) -> Translation:
    common: dict[str, Any] = {
        "namespace": case.get("namespace", "apps"),
        "mode": case.get("mode", ""),
        "pool": Pool(**case.get("pool", {})),
    }
    chosen = rules(**case.get("set", {}))
    if case.get("review"):
        verdict = review(a_pod, mutating=True, rules=Rules(bitfusion=chosen), **common)
        return Translation(verdict.pod, verdict.denials, verdict.warnings)
    return translate(a_pod, rules=chosen, **common)


def assert_told(told: Sequence[str], expected: Sequence[str]) -> None:
    assert len(told) == len(expected), told
    for text, part in zip(told, expected, strict=True):
        assert part in text


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{one['row']}: {one['what']}" for one in CASES]
)
def test_a_row(case: Json) -> None:
    """The whole pod is compared; the one that came is never changed."""
    came = pod(case["pod"])
    before = copy.deepcopy(came)
    found = answer(case, came)
    assert_told(found.denials, case.get("denied", []))
    assert_told(found.warnings, case.get("warned", []))
    expected = pod(case["becomes"]) if "becomes" in case else before
    assert found.pod == expected
    assert came == before


@pytest.mark.parametrize("case", CASES, ids=[one["what"] for one in CASES])
def test_a_second_time_nothing_happens(case: Json) -> None:
    """As with a webhook that is called again after another one."""
    once = answer(case, pod(case["pod"]))
    if once.denials or case.get("unchanged"):
        return
    again = answer(case, once.pod)
    assert again.pod == once.pod
    assert again.denials == ()


@pytest.mark.parametrize("case", CASES, ids=[one["what"] for one in CASES])
def test_what_is_told_is_fit_to_be_read(case: Json) -> None:
    """A denial is one line; of a warning the API server may show no more than this."""
    found = answer(case, pod(case["pod"]))
    for text in (*found.denials, *found.warnings):
        assert text.isprintable()
    assert all(len(text) <= WARNING for text in found.warnings)


def test_no_row_is_forgotten() -> None:
    assert {one["row"] for one in CASES} >= ROWS


def test_every_case_says_what_becomes_of_it() -> None:
    """Else a case whose outcome was forgotten would pass as an unchanged pod."""
    for case in CASES:
        outcomes = [key for key in ("becomes", "denied", "unchanged") if key in case]
        assert len(outcomes) == 1, case["what"]


@pytest.mark.parametrize("case", CASES, ids=[one["what"] for one in CASES])
def test_what_comes_out_no_rule_denies(case: Json) -> None:
    """Those of all pods look at it next: at cores, units and annotations."""
    if "becomes" not in case:
        return
    verdict = review(
        answer(case, pod(case["pod"])).pod,
        namespace="apps",
        mutating=False,
        mode="",
        rules=Rules(),
        pool=Pool(),
    )
    assert verdict.denials == ()
