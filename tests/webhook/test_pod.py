"""Pods that no API server would send are told by the field that is wrong."""

from copy import deepcopy
from typing import Any

import pytest

from gpushare.kube.json_reader import Malformed
from tests.builders import container_json, pod_json
from webhook.pod import APP, INIT, insist_on_shape, pod_containers

WHOLE: dict[str, Any] = {
    "metadata": {"name": "a", "annotations": {"k": "v"}, "labels": None},
    "spec": {
        "runtimeClassName": None,
        "nodeSelector": {"k": "v"},
        "volumes": [{"name": "v"}],
        "containers": [
            {
                "name": "main",
                "command": ["a"],
                "args": None,
                "env": [{"name": "A", "value": None}, {"name": "B", "valueFrom": {}}],
                "envFrom": [{"prefix": "A_"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "resources": {"limits": {"x": 1}, "requests": None, "claims": []},
            }
        ],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "k", "operator": "Exists"}]}
                    ]
                }
            }
        },
    },
}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = ["spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms", 0]
MAIN = ["spec", "containers", 0]


def test_a_pod_in_order_passes() -> None:
    """As an API server sends it, with all that may be left out left out or null."""
    insist_on_shape(WHOLE)
    insist_on_shape({"spec": {}})
    insist_on_shape(pod_json(units=4, cores=1, init=[container_json("i")]))


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (["metadata"], [], "metadata"),
        (["metadata", "annotations"], "x", "metadata.annotations"),
        (["metadata", "annotations", "k"], 1, 'metadata.annotations["k"]'),
        (["metadata", "labels"], {"a/b": None}, 'metadata.labels["a/b"]'),
        (["metadata", "name"], {}, "metadata.name"),
        (["spec"], None, "spec"),
        (["spec", "containers"], {}, "spec.containers"),
        (["spec", "containers"], [None], "spec.containers[0]"),
        (["spec", "initContainers"], "x", "spec.initContainers"),
        (["spec", "ephemeralContainers"], [1], "spec.ephemeralContainers[0]"),
        (["spec", "runtimeClassName"], 1, "spec.runtimeClassName"),
        (["spec", "schedulerName"], [], "spec.schedulerName"),
        (["spec", "nodeSelector", "k"], 1, 'spec.nodeSelector["k"]'),
        (["spec", "volumes"], ["x"], "spec.volumes[0]"),
        ([*MAIN, "name"], 1, "spec.containers[0].name"),
        ([*MAIN, "command"], "sh", "spec.containers[0].command"),
        ([*MAIN, "args"], [1], "spec.containers[0].args"),
        ([*MAIN, "env"], {"A": "B"}, "spec.containers[0].env"),
        ([*MAIN, "env"], 5, "spec.containers[0].env"),
        ([*MAIN, "env"], "AB", "spec.containers[0].env"),
        ([*MAIN, "volumeMounts"], True, "spec.containers[0].volumeMounts"),
        ([*MAIN, "volumeMounts", 0, "subPath"], 1, "volumeMounts[0].subPath"),
        ([*MAIN, "env", 0, "name"], "", "spec.containers[0].env[0].name"),
        ([*MAIN, "env", 0, "value"], 1, "spec.containers[0].env[0].value"),
        ([*MAIN, "env", 1, "valueFrom"], "x", "spec.containers[0].env[1].valueFrom"),
        ([*MAIN, "envFrom", 0, "prefix"], 1, "spec.containers[0].envFrom[0].prefix"),
        ([*MAIN, "volumeMounts"], [1], "spec.containers[0].volumeMounts[0]"),
        ([*MAIN, "resources"], "x", "spec.containers[0].resources"),
        ([*MAIN, "resources", "limits"], [], "spec.containers[0].resources.limits"),
        ([*MAIN, "resources", "claims"], 1, "spec.containers[0].resources.claims"),
        (["spec", "affinity", "nodeAffinity"], 1, "spec.affinity.nodeAffinity"),
        ([*TERM, "matchExpressions", 0, "key"], None, "key"),
        ([*TERM, "matchExpressions", 0, "values"], [1], "values"),
    ],
)
def test_what_is_wrong_is_named(path: list[Any], value: Any, field: str) -> None:
    pod = deepcopy(WHOLE)
    at: Any = pod
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(Malformed) as raised:
        insist_on_shape(pod)
    assert raised.value.field.endswith(field)


def test_spots_say_where_a_container_stands() -> None:
    pod = pod_json(
        containers=[container_json("a", units=1), container_json("b")],
        init=[container_json("i", cores=0)],
    )
    found = [
        (container.path, container.name, container.is_ours)
        for container in pod_containers(pod)
    ]
    assert found == [
        ("spec.initContainers[0]", "i", True),
        ("spec.containers[0]", "a", True),
        ("spec.containers[1]", "b", False),
    ]
    assert [container.kind for container in pod_containers(pod, APP)] == [APP, APP]
    assert [container.kind for container in pod_containers(pod, INIT, APP)] == [
        INIT,
        APP,
        APP,
    ]
