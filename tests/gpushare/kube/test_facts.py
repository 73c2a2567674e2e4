"""Facts of pods and nodes: missing fields read as empty or None."""

import re

import pytest

from gpushare.domain.model import Amount
from gpushare.kube import facts, names
from gpushare.kube.cluster import Json
from tests.builders import node_json
from tests.testbed.manifests import documents

BARE: Json = {"metadata": {"name": "a", "namespace": "d"}}


def with_condition(kind: str, status: str) -> Json:
    return {**BARE, "status": {"conditions": [{"type": kind, "status": status}]}}


@pytest.mark.parametrize(
    ("thing", "holds"),
    [
        (with_condition("Ready", "True"), True),
        (with_condition("Ready", "False"), False),
        (with_condition("Ready", "Unknown"), None),
        (with_condition("PodScheduled", "True"), None),
        ({**BARE, "status": {"conditions": None}}, None),
        (BARE, None),
    ],
    ids=["true", "false", "unknown", "another", "null", "no status"],
)
def test_a_condition(thing: Json, holds: bool | None) -> None:
    """Only ``True`` is ready; a missing condition is not ``False``."""
    assert facts.holds(thing, "Ready") is holds
    assert facts.is_ready(thing) is (holds is True)
    status = facts.condition(thing, "Ready").get("status")
    assert facts.is_silent(thing) is (status == "Unknown")


def test_a_pod_that_says_nothing() -> None:
    assert facts.node_of(BARE) == facts.phase(BARE) == facts.waits_because(BARE) == ""
    assert not facts.is_terminal(BARE)
    assert facts.scheduler_of(BARE) == "default-scheduler"
    assert facts.gates(BARE) == []
    assert facts.end_words(BARE) == ""


@pytest.mark.parametrize(
    ("labels", "namespace", "part"),
    [
        ({facts.PART_NAME: facts.EXTENDER}, "kube-system", "extender"),
        ({facts.PART_NAME: facts.SECOND_SCHEDULER}, "kube-system", "extender"),
        ({"component": "kube-scheduler"}, "kube-system", "kube-scheduler"),
        ({"component": "kube-scheduler"}, "default", ""),
        ({}, "kube-system", ""),
    ],
)
def test_whose_pod_it_is(labels: dict[str, str], namespace: str, part: str) -> None:
    """By our labels, and kube-scheduler's in its own namespace only."""
    pod = {"metadata": {"name": "a", "namespace": namespace, "labels": labels}}
    assert facts.is_extender(pod) is (part == "extender")
    assert facts.is_kube_scheduler(pod) is (part == "kube-scheduler")


@pytest.mark.parametrize(
    ("name", "narrowed"),
    [("installer-probe-pod-only", True), ("asks-for-cards", False)],
)
def test_a_webhook_limited_to_the_probe_pod(name: str, *, narrowed: bool) -> None:
    entries = [{"name": "a"}, {"name": "b", "matchConditions": [{"name": name}]}]
    assert facts.is_narrowed({"webhooks": entries}) is narrowed


def test_keys_of_quotas_that_count_nothing() -> None:
    """The policy of the API server has the same rule, in CEL."""
    policy, _ = documents("base/quota-warning.yaml")
    (variable,) = policy["spec"]["variables"]
    *count, like = re.findall("'([^']+)'", variable["expression"])
    resources = {
        *("baidu.com/vcuda-memory", "baidu.com/vcuda-core", "baidu.com/vcuda-cores"),
        *("baidu.com/vcuda-memory-mib", "baidu.com/vcuda_memory", "baidu.com/VCUDA"),
        *("bitfusion.io/gpu", "bitfusion.io/gpu-memory", "nvidia.com/gpu"),
        *("tencent.com/vcuda-core", "notbaidu.com/vcuda-core", "baidu-com/vcuda-core"),
        *("vcuda.deviceclass.resource.k8s.io/devices", "pods", "memory"),
    }
    starts = ("", "requests.", "limits.", "request.", "REQUESTS.", "count/")
    hard = {start + resource: "8" for start in starts for resource in resources}
    expected = [
        key for key in hard if key not in count and re.search(like, key.lower())
    ]
    assert facts.uncounted({"spec": {"hard": hard}}) == expected
    right = {f"requests.{names.MEMORY}", f"requests.{names.CORE}"}
    assert right == set(facts.COUNTED)
    assert right.isdisjoint(expected)
    assert {f"limits.{names.MEMORY}", names.CORE, "limits.bitfusion.io/gpu"} < {
        *expected
    }
    assert facts.uncounted(BARE) == []


def test_a_node_as_it_is_told() -> None:
    """Amounts that cannot be read are unknown, not 0."""
    node = node_json("n")
    node["spec"] = {"unschedulable": True}
    node["metadata"]["labels"] = {"baidu.com/vcuda": "true"}
    node["status"] = {"allocatable": {"a": "4", "b": "1.5", "c": "x"}}
    assert facts.is_labelled(node)
    assert facts.is_unschedulable(node)
    assert [facts.allocatable(node, key) for key in "abcd"] == [4, None, None, None]
    assert facts.card_capacity(node) == Amount(0, 0)
    node["status"]["allocatable"] |= {names.CORE: "200", names.MEMORY: "58"}
    assert facts.card_capacity(node) == Amount(200, 58)
    assert facts.host_capacity(node) is None
