"""All rules on one pod: their order, and that what is denied is told at once."""

from copy import deepcopy
from typing import Any

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json
from tests.builders import container_json, pod_json
from tests.webhook.webhook_client import for_bitfusion, judged
from webhook.bitfusion.resources import BitfusionRules
from webhook.pool import UNKNOWN, CardPool
from webhook.rules.review import (
    MOST_DENIALS,
    MOST_OF_A_WARNING,
    MOST_WARNINGS,
    PodVerdict,
    ReviewSettings,
)

ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


EVERYTHING = ReviewSettings(
    void=True,
    set_scheduler="vcuda",
    set_runtime_class="nvidia",
    bitfusion=BitfusionRules(total_bytes=16_000_000_000),
)


def test_a_pod_in_order_is_left_as_it_is() -> None:
    """It says all, or asks nothing."""
    for pod in (pod_json(units=4, cores=1), pod_json()):
        assert judged(pod) == PodVerdict(pod)
        assert judged(pod, mutating=False) == PodVerdict(pod)
    assert judged(pod_json(), EVERYTHING) == PodVerdict(pod_json())


def test_what_a_pod_did_not_say() -> None:
    pod = pod_json(containers=[container_json("a", 4), container_json("b")])
    spec = judged(pod, EVERYTHING).pod["spec"]
    assert (spec["schedulerName"], spec["runtimeClassName"]) == ("vcuda", "nvidia")
    assert spec["containers"][0]["resources"]["limits"][names.CORE] == "1"
    assert spec["containers"][1]["env"] == [ALL[0] | {"value": "void"}]


def test_memory_in_mib() -> None:
    """It is all that other rules see of it: units, with a core, and told once."""
    pod = pod_json(containers=[container_json("a", mib="5k"), container_json("b", 4)])
    found = judged(pod, pool=CardPool(19, has_resource=True))
    told, waits = found.warnings
    assert told == "spec.containers[0]: 5000 MiB are 20 units (5120 MiB)"
    assert "24 units are asked" in waits
    first, _ = found.pod["spec"]["containers"]
    assert first == container_json("a", 20, 1)
    assert judged(pod, mutating=False).denials


def test_a_file_in_mib_is_applied_again() -> None:
    """The pod has units by then; the same memory is no change, another one is told."""
    first = judged(pod_json(containers=[container_json("a", mib=5000)])).pod
    again = deepcopy(first)
    for part in again["spec"]["containers"][0]["resources"].values():
        part[names.MEMORY_MIB] = "5k"
    assert judged(again, before_update=first) == PodVerdict(first)
    for part in again["spec"]["containers"][0]["resources"].values():
        part[names.MEMORY_MIB] = "6k"
    (told,) = judged(again, before_update=first).denials
    assert "it has 20 units, and 6000 MiB are 24. Delete the pod first" in told


@pytest.mark.parametrize("units", [None, 20, 4])
def test_a_pod_that_kept_its_mib_can_be_updated(units: int | None) -> None:
    """It was created without the webhook; its labels, say, may change."""
    pod = pod_json(containers=[container_json("a", units, mib=5000)])
    assert judged(pod, before_update=pod) == PodVerdict(pod)


def test_a_denied_pod_is_told_nothing_of_its_units() -> None:
    """Nothing was changed; all its faults are told, those in MiB too."""
    wrong = container_json("a", mib="5Gi") | {"env": ALL}
    found = judged(pod_json(containers=[wrong, container_json("b", mib=5000)]))
    assert found.warnings == ()
    in_bytes, variable = found.denials
    assert in_bytes.endswith("for 5 GiB write 5120")
    assert "NVIDIA_VISIBLE_DEVICES" in variable


def test_all_denials_at_once() -> None:
    """So that a person mends a pod in one go; the pod stays as it came."""
    wrong = [container_json("a", "1.5") | {"env": ALL}, container_json("b", 4)]
    notes = {names.ACTUAL: "{}", names.POLICY: "x"}
    pod = pod_json(containers=wrong, annotations=notes)
    verdict = judged(pod)
    assert len(verdict.denials) == 4
    assert verdict.pod == pod
    assert judged(pod, mutating=False).denials == verdict.denials
    pod = for_bitfusion(percent="101")
    pod["metadata"]["annotations"][names.PLACEMENT] = "{}"
    (ours, theirs) = sorted(judged(pod).denials, reverse=True)
    assert names.PLACEMENT in ours
    assert "Invalid bitfusion.io/gpu-percent quantity: 101" in theirs


def test_a_thousand_wrong_containers_do_not_make_a_book() -> None:
    wrong = [container_json(f"c{i}", "1.5") for i in range(1000)]
    denials = judged(pod_json(containers=wrong)).denials
    assert len(denials) == MOST_DENIALS + 1
    assert denials[-1] == f"and {1000 - MOST_DENIALS} more"


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease"])
@pytest.mark.parametrize("mutating", [True, False])
def test_the_clusters_own_namespaces(namespace: str, mutating: bool) -> None:
    """By the request's namespace: a controller's pod may not name its own."""
    pod = pod_json(units="1.5", annotations={names.PLACEMENT: "{}"})
    del pod["metadata"]["namespace"]
    assert judged(pod, namespace=namespace, mutating=mutating) == PodVerdict(pod)
    assert judged(pod, mutating=mutating).denials


@pytest.mark.parametrize(
    ("pod", "pool", "told"),
    [
        (
            pod_json(units=30, cores=1),
            CardPool(29, has_resource=True),
            ["30 units are"],
        ),
        (pod_json(units="1.5"), CardPool(has_resource=False), []),
        (
            pod_json(units=1, annotations={"baidu.com/vcuda-model": "Tesla P4"}),
            UNKNOWN,
            ["did you mean baidu.com/vcuda-models?"],
        ),
    ],
    ids=["too-large", "beside-a-denial", "unknown-annotation"],
)
def test_warnings_where_it_may_yet_work(
    pod: Json, pool: CardPool, told: list[str]
) -> None:
    """By the one who may change pods alone, or people would read them twice."""
    found = judged(pod, pool=pool).warnings
    assert len(found) == len(told)
    assert all(words in text for words, text in zip(told, found, strict=True))
    assert judged(pod, pool=pool, mutating=False).warnings == ()


def test_of_very_many_warnings_some_are_told() -> None:
    """A pod has room for 20,000, and the API server would cut them all."""
    pod = pod_json(units=1, cores=1)
    for part in pod["spec"]["containers"][0]["resources"].values():
        part |= {f"baidu.com/vcuda-{number}": "1" for number in range(300)}
    assert len(judged(pod).warnings) == MOST_WARNINGS


def test_a_warning_is_short_and_said_once() -> None:
    """Longer ones could be cut in the middle of a word."""
    pod = pod_json(units=1, cores=1)
    for part in pod["spec"]["containers"][0]["resources"].values():
        part[f"baidu.com/vcuda-{'x' * 300}"] = "1"
    (warning,) = judged(pod).warnings
    assert len(warning) == MOST_OF_A_WARNING
    assert warning.endswith("…")


@pytest.mark.parametrize("pod", [{}, {"spec": 1}, {"spec": {"containers": [1]}}])
def test_what_is_no_pod_is_denied_by_its_field(pod: Any) -> None:
    """No API server sends it, and no rule stumbles over it."""
    for mutating in (True, False):
        (denial,) = judged(pod, mutating=mutating).denials
        assert denial.startswith("spec")


def debugged(env: list[Json]) -> Json:
    pod = pod_json(units=4, node="n")
    pod["spec"]["runtimeClassName"] = "nvidia"
    pod["spec"]["ephemeralContainers"] = [{"name": "debug", "env": env}]
    return pod


@pytest.mark.parametrize("mutating", [True, False])
def test_a_mirror_of_a_static_pod_stays_as_it_is(mutating: bool) -> None:
    """kubelet has given it what its file says, and nobody can change that here."""
    pod = pod_json(units=4)
    assert judged(pod).pod != pod
    pod["metadata"]["annotations"] = {
        "kubernetes.io/config.mirror": "4f1c",
        names.CONTAINERS: "sideways",
    }
    verdict = judged(pod, mutating=mutating, user="system:node:n")
    assert (verdict.pod, verdict.denials) == (pod, ())


@pytest.mark.parametrize("user", ["somebody", "system:serviceaccount:a:b", ""])
def test_a_mirror_is_believed_from_kubelet_alone(user: str) -> None:
    """Anybody can write its annotation, and would be past all rules by it."""
    pod = pod_json(units=4, cores=150)
    pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "4f1c"}
    (denial,) = judged(pod, user=user).denials
    assert "150 cores" in denial
    assert judged(pod, user=user, mutating=False).denials == (denial,)


def test_a_default_beside_a_translated_container() -> None:
    pod = pod_json(units=4)
    asked = {"bitfusion.io/gpu-amount": "1", "bitfusion.io/gpu-percent": "50"}
    pod["spec"]["containers"].append({"name": "b", "resources": {"limits": asked}})
    rules = ReviewSettings(bitfusion=BitfusionRules(total_bytes=16_000_000_000))
    after = judged(pod, rules, mode="all").pod["spec"]["containers"]
    assert [one["resources"]["limits"][names.CORE] for one in after] == ["1", "50"]


@pytest.mark.parametrize("mutating", [True, False])
def test_a_debugging_container(mutating: bool) -> None:
    """Of the pod only what is new is looked at, and nothing else is changed."""
    old = pod_json(units=4, node="n")
    old["metadata"]["annotations"] = {names.PLACEMENT: "{}"}
    assert judged(debugged(ALL), before_debugging=old, mutating=mutating).denials
    fine = judged(debugged([]), before_debugging=old, mutating=mutating)
    assert fine == PodVerdict(debugged([]))
    after = judged(debugged([]), ReviewSettings(void=True), before_debugging=old).pod
    assert after == debugged([ALL[0] | {"value": "void"}])
