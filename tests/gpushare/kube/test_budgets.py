"""PodDisruptionBudgets, joined with the pods that they cover."""

from typing import Any

import pytest

from gpushare.domain.eviction.preemption import Budget
from gpushare.kube.codec import PodRecord, read_budgets, read_pod_record
from gpushare.kube.json_reader import Malformed
from tests.builders import pod_json

LABELS: dict[str, dict[str, str]] = {
    "web-1": {"app": "web", "tier": "front"},
    "web-2": {"app": "web", "tier": "back"},
    "db": {"app": "db"},
    "bare": {},
}


def pods() -> list[PodRecord]:
    return [
        read_pod_record(pod_json(name, units=4, labels=labels))
        for name, labels in LABELS.items()
    ]


def budget(
    selector: Any, *, namespace: str = "default", **status: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": "b", "namespace": namespace},
        "spec": {"selector": selector},
        "status": status,
    }


def rule(key: str, operator: str, *values: str) -> dict[str, Any]:
    made: dict[str, Any] = {"key": key, "operator": operator}
    if values:
        made["values"] = list(values)
    return {"matchExpressions": [made]}


def covered(body: dict[str, Any]) -> set[str]:
    (read,) = read_budgets([body], pods())
    return {uid.removeprefix("uid-") for uid in read.pods}


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        pytest.param({"matchLabels": {"app": "web"}}, "web-1 web-2", id="labels"),
        pytest.param(
            {"matchLabels": {"app": "web", "tier": "back"}}, "web-2", id="all-of-them"
        ),
        pytest.param(rule("app", "In", "web", "db"), "web-1 web-2 db", id="in"),
        pytest.param(rule("app", "NotIn", "web"), "db bare", id="not-in-or-without"),
        pytest.param(rule("tier", "Exists"), "web-1 web-2", id="exists"),
        pytest.param(rule("tier", "DoesNotExist"), "db bare", id="does-not-exist"),
        pytest.param(rule("app", "Like", "web"), "", id="an-operator-unknown"),
        pytest.param(
            {"matchLabels": {"app": "web"}, **rule("tier", "In", "front")},
            "web-1",
            id="both-kinds",
        ),
        pytest.param({}, "", id="empty-covers-nothing"),
        pytest.param(None, "", id="none-covers-nothing"),
    ],
)
def test_a_budget_covers_what_it_selects(selector: Any, names: str) -> None:
    """As kube-scheduler counts: an empty selector covers nothing."""
    assert covered(budget(selector)) == set(names.split())


@pytest.mark.parametrize(
    ("more", "allowed", "names"),
    [
        ({"disruptionsAllowed": 2}, 2, {"web-1", "web-2"}),
        ({}, 0, {"web-1", "web-2"}),
        ({"disruptionsAllowed": None}, 0, {"web-1", "web-2"}),
        ({"disruptedPods": {"web-1": "2026-01-02T03:04:05Z"}}, 0, {"web-2"}),
        ({"namespace": "other"}, 0, set()),
    ],
    ids=["said", "not yet counted", "null", "on its way out", "other namespace"],
)
def test_what_is_not_allowed_yet_is_not_allowed(
    more: dict[str, Any], allowed: int, names: set[str]
) -> None:
    """The API server has counted a pod whose disruption is under way already."""
    (read,) = read_budgets([budget({"matchLabels": {"app": "web"}}, **more)], pods())
    uids = frozenset(f"uid-{name}" for name in names)
    assert read == Budget(uids, allowed)


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"metadata": {"name": "b"}}, "metadata.namespace"),
        ({"metadata": {"namespace": "default"}}, "spec"),
        (budget({"matchLabels": {"app": 7}}), "spec.selector.matchLabels.app"),
        (budget({"matchExpressions": [{}]}), "spec.selector.matchExpressions[0].key"),
        (budget({}, disruptionsAllowed="1"), "status.disruptionsAllowed"),
    ],
)
def test_a_malformed_budget_is_named_by_its_field(
    broken: dict[str, Any], field: str
) -> None:
    """The caller goes on without budgets, and its log says which field."""
    with pytest.raises(Malformed) as error:
        read_budgets([broken], pods())
    assert error.value.field == field
