"""What kube-scheduler's own filters say of a node, as far as it is played."""

import pytest

from gpushare.domain.model import Amount, HostAmount
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpushare.kube.node_filters import (
    find_bar,
    find_lacks,
    find_lacks_in_sum,
    read_constraints,
    read_properties,
)

AWAY = "node(s) didn't match Pod's node affinity/selector"


def node(**spec: object) -> Json:
    labels = {"zone": "east", "rank": "3"}
    return {"metadata": {"name": "n-1", "labels": labels}, "spec": spec}


def required(*terms: Json) -> Json:
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"affinity": {"nodeAffinity": {key: {"nodeSelectorTerms": list(terms)}}}}


def expression(key: str, operator: str, *values: str) -> Json:
    rule = {"key": key, "operator": operator, "values": list(values)}
    return {"matchExpressions": [rule]}


def said(spec: Json, of: Json | None = None) -> str | None:
    barred = find_bar(read_properties(of or node()), read_constraints({"spec": spec}))
    return barred and barred.message


def because(spec: Json, of: Json | None = None) -> str | None:
    barred = find_bar(read_properties(of or node()), read_constraints({"spec": spec}))
    return barred and barred.reason


AFFINITY = {
    "in": (expression("zone", "In", "east", "west"), None),
    "not in": (expression("zone", "NotIn", "east"), AWAY),
    "exists": (expression("zone", "Exists"), None),
    "does not": (expression("zone", "DoesNotExist"), AWAY),
    "greater": (expression("rank", "Gt", "2"), None),
    "less": (expression("rank", "Lt", "3"), AWAY),
    "no number": (expression("zone", "Gt", "2"), AWAY),
    "empty": ({}, AWAY),
    "by name": (
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]},
        AWAY,
    ),
}


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
TAINTED = {"taints": [TAINT]}
UNTOLERATED = "node(s) had untolerated taint gpu"
CORDONED = {"unschedulable": True}


def tolerates(**fields: str) -> Json:
    return {"tolerations": [fields]}


CASES = {
    **{name: (required(term), {}, words) for name, (term, words) in AFFINITY.items()},
    "one of two": (required({}, expression("zone", "Exists")), {}, None),
    "label": ({"nodeSelector": {"zone": "east"}}, {}, None),
    "other label": ({"nodeSelector": {"zone": "west"}}, {}, AWAY),
    "taint": ({}, TAINTED, UNTOLERATED),
    "equal": (tolerates(key="gpu", value="yes"), TAINTED, None),
    "other value": (tolerates(key="gpu", value="no"), TAINTED, UNTOLERATED),
    "exists": (tolerates(key="gpu", operator="Exists"), TAINTED, None),
    "all": (tolerates(operator="Exists"), TAINTED, None),
    "other effect": (
        tolerates(key="gpu", operator="Exists", effect="NoExecute"),
        TAINTED,
        UNTOLERATED,
    ),
    "preferred": ({}, {"taints": [TAINT | {"effect": "PreferNoSchedule"}]}, None),
    "cordoned": ({}, CORDONED, "node(s) were unschedulable"),
    "daemon": (tolerates(operator="Exists"), CORDONED, None),
}


@pytest.mark.parametrize(("pod", "on", "words"), CASES.values(), ids=CASES)
def test_affinity_selectors_and_taints(pod: Json, on: Json, words: str | None) -> None:
    assert said(pod, node(**on)) == words


COMPARED = {
    "greater": ("Gt", "4", "5", True),
    "same is not greater": ("Gt", "5", "5", False),
    "less": ("Lt", "6", "5", True),
    "same is not less": ("Lt", "5", "5", False),
    "below zero": ("Gt", "-6", "-5", True),
    "equal words": ("Gt", "yes", "yes", False),
    "leading zero": ("Gt", "04", "5", False),
    "taint without a value": ("Lt", "4", "", False),
    "unknown operator": ("Ne", "4", "5", False),
}


@pytest.mark.parametrize(
    ("operator", "value", "taint", "tolerated"), COMPARED.values(), ids=COMPARED
)
def test_tolerations_that_compare(
    operator: str, value: str, taint: str, *, tolerated: bool
) -> None:
    """The taint's value is greater or less than the toleration's: whole numbers."""
    pod = tolerates(key="gpu", operator=operator, value=value)
    tainted = node(taints=[TAINT | {"value": taint}])
    assert said(pod, tainted) == (None if tolerated else UNTOLERATED)


@pytest.mark.parametrize(
    ("wanted", "room", "slots", "words"),
    [
        ((1, 1), (1, 1), None, []),
        ((2, 1), (1, 1), None, ["Insufficient cpu"]),
        ((1, 2), (1, 1), None, ["Insufficient memory"]),
        ((2, 2), (1, 1), None, ["Insufficient cpu", "Insufficient memory"]),
        ((0, 1), (-5, 1), None, []),
        ((0, 100), (-1, 50), None, ["Insufficient memory"]),
        ((1, 1), None, None, []),
        ((1, 1), (1, 1), 0, ["Too many pods"]),
        ((2, 1), (1, 1), 0, ["Too many pods", "Insufficient cpu"]),
    ],
)
def test_what_a_node_lacks(
    wanted: tuple[int, int],
    room: tuple[int, int] | None,
    slots: int | None,
    words: list[str],
) -> None:
    """What is not known limits nothing; what is not asked for is never lacking."""
    has = None if room is None else HostAmount(*room)
    assert list(find_lacks(HostAmount(*wanted), has, slots)) == words


CORE, MEMORY = "baidu.com/vcuda-core", "baidu.com/vcuda-memory"


@pytest.mark.parametrize(
    ("wanted", "room", "lacking"),
    [
        ((1, 1), (1, 1), []),
        ((2, 1), (1, 1), [CORE]),
        ((1, 2), (1, 1), [MEMORY]),
        ((2, 2), (1, 1), [CORE, MEMORY]),
        ((0, 1), (-5, 1), []),
        ((1, 1), None, []),
    ],
)
def test_what_a_node_lacks_of_cards_in_sum(
    wanted: tuple[int, int], room: tuple[int, int] | None, lacking: list[str]
) -> None:
    """All that is short is named, as kube-scheduler does."""
    has = None if room is None else Amount(*room)
    words = [f"Insufficient {resource}" for resource in lacking]
    assert list(find_lacks_in_sum(Amount(*wanted), has)) == words


REASONS = {
    "label": (
        {"nodeSelector": {"zone": "west"}},
        {},
        "its nodeSelector is zone=west, the node has zone=east",
    ),
    "no label": (
        {"nodeSelector": {"disk": "ssd"}},
        {},
        "its nodeSelector is disk=ssd, the node has no such label",
    ),
    "affinity": (
        required(expression("zone", "In", "a", "b")),
        {},
        "its node affinity is zone In a, b, the node has zone=east",
    ),
    "exists": (
        required(expression("disk", "Exists")),
        {},
        "its node affinity is disk Exists, the node has no such label",
    ),
    "terms": (
        required({}, expression("disk", "Exists")),
        {},
        "no term of its node affinity matches",
    ),
    "taint": ({}, TAINTED, "it does not tolerate the taint gpu=yes:NoSchedule"),
    "bare taint": (
        {},
        {"taints": [{"key": "gpu", "effect": "NoExecute"}]},
        "it does not tolerate the taint gpu:NoExecute",
    ),
    "drained": ({}, CORDONED, "the node is unschedulable"),
    "away": (
        {},
        {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]},
        "the node is not ready",
    ),
    "none": ({"nodeSelector": {"zone": "east"}}, {}, None),
}


@pytest.mark.parametrize(("pod", "on", "words"), REASONS.values(), ids=REASONS)
def test_the_reason_names_what_differs(pod: Json, on: Json, words: str | None) -> None:
    assert because(pod, node(**on)) == words


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"affinity": []}, "spec.affinity"),
        ({"nodeSelector": {"a": 1}}, "spec.nodeSelector.a"),
        ({"tolerations": {}}, "spec.tolerations"),
        (required({"matchFields": [{"key": "x"}]}), "operator"),
        (
            required({"matchFields": [{"key": "x", "operator": "In", "values": 1}]}),
            "values",
        ),
    ],
)
def test_what_no_api_server_sends_is_named(spec: Json, field: str) -> None:
    with pytest.raises(Malformed) as caught:
        read_constraints({"spec": spec})
    assert caught.value.field.endswith(field)
