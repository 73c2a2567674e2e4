"""What kube-scheduler's own filters say of a node, as far as it is played."""

import pytest

from gpushare.domain.model import HostAmount
from gpushare.kube.cluster import Json
from gpusharectl.simulate.node_filters import (
    constraints_of,
    keeps_away,
    lacks,
    properties_of,
)
from gpusharectl.simulate.scenario import seconds, stretch

AWAY = "node(s) didn't match Pod's node affinity/selector"


def node(**spec: object) -> Json:
    labels = {"zone": "east", "rank": "3"}
    return {"metadata": {"name": "n-1", "labels": labels}, "spec": spec}


def required(*terms: Json) -> Json:
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"affinity": {"nodeAffinity": {key: {"nodeSelectorTerms": list(terms)}}}}


def expression(key: str, operator: str, *values: str) -> Json:
    one = {"key": key, "operator": operator, "values": list(values)}
    return {"matchExpressions": [one]}


def said(spec: Json, of: Json | None = None) -> str | None:
    return keeps_away(properties_of(of or node()), constraints_of({"spec": spec}, None))


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


@pytest.mark.parametrize(
    ("asked", "room", "slots", "words"),
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
    asked: tuple[int, int],
    room: tuple[int, int] | None,
    slots: int | None,
    words: list[str],
) -> None:
    """What is not known limits nothing; what is not asked for is never lacking."""
    has = None if room is None else HostAmount(*room)
    assert list(lacks(constraints_of({}, HostAmount(*asked)), has, slots)) == words


TIMES = {"0": 0, "90": 90, "1h30m": 5400, "2d": 172800, "1.5h": 5400}
NO_TIMES = dict.fromkeys(("", "h", "-1", "1x", "1h 2m", "1h30", "30 1h", "nan"))


def test_times_are_read_and_written() -> None:
    assert {text: seconds(text) for text in TIMES} == TIMES
    assert {text: seconds(text) for text in NO_TIMES} == NO_TIMES
    told = [stretch(length) for length in (0.0001, 0.2, 0.9996, 59, 60, 90000, 86400)]
    assert told == ["0 s", "200 ms", "1 s", "59 s", "1 min", "1 d 1 h", "1 d"]
