"""The real extender, asked by hand: bad input, and the two listeners."""

import json
from typing import Any

import pytest

from tests.controlplane.by_hand import ASK, BIND, POD, PREEMPT, asking, call
from tests.controlplane.world import World

pytestmark = pytest.mark.controlplane

QUANTITY = "Pod.spec.containers[0].resources.requests.baidu.com/vcuda-"
MALFORMED: list[tuple[str, object, str]] = [
    ("filter", None, "body"),
    ("filter", [], "body"),
    ("filter", {**ASK, "Pod": None}, "Pod"),
    ("filter", {**ASK, "Pod": "p"}, "Pod"),
    ("filter", {**ASK, "Pod": {}}, "Pod.metadata"),
    ("filter", {**ASK, "Pod": {"metadata": {"name": "p"}}}, "Pod.metadata.uid"),
    ("filter", {**ASK, "Pod": {**POD, "spec": None}}, "Pod.spec"),
    ("filter", {**ASK, "Pod": {**POD, "spec": []}}, "Pod.spec"),
    ("filter", {**ASK, "NodeNames": None}, "NodeNames"),
    ("filter", {**ASK, "NodeNames": "edge"}, "NodeNames"),
    ("filter", {**ASK, "NodeNames": [1]}, "NodeNames"),
    ("filter", {**ASK, "Pod": asking("-4")}, QUANTITY + "memory"),
    ("filter", {**ASK, "Pod": asking("four")}, QUANTITY + "memory"),
    ("filter", {**ASK, "Pod": asking([4])}, QUANTITY + "memory"),
    ("filter", {**ASK, "Pod": asking("9" * 99, "core")}, QUANTITY + "core"),
    ("prioritize", {**ASK, "Pod": None}, "Pod"),
    ("prioritize", {**ASK, "NodeNames": {}}, "NodeNames"),
    ("prioritize", {**ASK, "NodeNames": None, "Nodes": {"items": []}}, "NodeNames"),
    ("bind", {}, "PodNamespace"),
    ("bind", {**BIND, "PodName": ""}, "PodName"),
    ("bind", {**BIND, "PodName": 7}, "PodName"),
    ("bind", {**BIND, "PodUID": None}, "PodUID"),
    ("bind", {**BIND, "Node": ["edge"]}, "Node"),
    ("preempt", {**PREEMPT, "Pod": None}, "Pod"),
    ("preempt", {"Pod": POD}, "NodeNameToVictims"),
    (
        "preempt",
        {**PREEMPT, "NodeNameToMetaVictims": {"edge": {"Pods": [{}]}}},
        "NodeNameToMetaVictims.edge.Pods[0].UID",
    ),
    ("preempt", {**PREEMPT, "Pod": asking("150", "core")}, "Pod"),
]


@pytest.mark.parametrize(
    ("verb", "body", "field"), MALFORMED, ids=lambda value: str(value)[:40]
)
def test_malformed_request(manual: World, verb: str, body: Any, field: str) -> None:
    """A request of the wrong shape gets a 400 that names the field."""
    status, answer = call(manual, verb, json.dumps(body).encode())
    assert (status, answer["field"].removeprefix("body.")) == (400, field)
    assert answer["error"].startswith(answer["field"])


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"nonsense", b"[" * 9999])
@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind", "preempt"])
def test_not_json(manual: World, verb: str, body: bytes) -> None:
    """What is no JSON gets a 400 that says so."""
    status, answer = call(manual, verb, body)
    assert (status, answer["field"]) == (400, "body")


@pytest.mark.parametrize("verb", ["filter", "bind"])
def test_junk_of_ten_megabytes(manual: World, verb: str) -> None:
    """Ten megabytes get a 413, and the next request is answered as ever."""
    status, answer = call(manual, verb, b"x" * (10 << 20))
    assert status == 413
    assert "Too Large" in answer["error"]
    assert call(manual, "filter", json.dumps(ASK).encode())[0] == 200


@pytest.mark.parametrize(
    ("quantity", "says"),
    [
        ("500m", "baidu.com/vcuda-memory is 500m; it must be whole"),
        (
            "16Gi",
            "baidu.com/vcuda-memory is 16Gi, but it counts units of 256 MiB; ask 64",
        ),
    ],
)
def test_invalid_amounts(manual: World, quantity: str, says: str) -> None:
    """What no card can meet is refused in words: kube-scheduler never sends these."""
    body = {**ASK, "Pod": asking(quantity)}
    answer = manual.extender.rest.must("POST", "/scheduler/filter", body)
    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"] == {
        "edge": f"Invalid vcuda request: {says}"
    }


def test_absurd_amount(manual: World) -> None:
    """More units than there are atoms to make them of are a mistake, and called so."""
    manual.node("edge", 29)
    body = {**ASK, "Pod": asking("1E")}
    answer = manual.extender.rest.must("POST", "/scheduler/filter", body)
    refused = answer["FailedAndUnresolvableNodes"]["edge"]
    assert refused == (
        "Invalid vcuda request: baidu.com/vcuda-memory is 1E; no node has so much"
    )


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_public_paths(manual: World, path: str) -> None:
    """Health, readiness and metrics are served on the pod's address."""
    assert manual.extender.public.get(path)[0] == 200


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind", "preempt"])
def test_verbs_are_not_public(manual: World, verb: str) -> None:
    """Whoever reaches the verbs can bind pods: only loopback does."""
    assert manual.extender.public.post(f"/scheduler/{verb}", BIND)[0] == 405
    assert manual.extender.rest.get(f"/scheduler/{verb}")[0] == 405


def test_snapshot_is_not_public(manual: World) -> None:
    """The books are for loopback too."""
    assert manual.extender.public.get("/snapshot")[0] == 404
    assert manual.extender.rest.get("/snapshot")[0] == 200
