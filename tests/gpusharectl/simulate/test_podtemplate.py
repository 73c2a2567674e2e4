"""Manifests as they are pasted, and values that no YAML or cluster could mean."""

import json

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.yaml_file import YamlError
from gpusharectl.simulate.engine import play
from gpusharectl.simulate.scenario import Arrive
from gpusharectl.simulate.scenario_file import read_scenario
from tests.gpusharectl.simulate.scenes import places

NODES = "nodes: [{name: n, cards: 1x8GiB, labels: {rank: '3'}}]\n"


def manifest(metadata: object = None, **spec: object) -> Json:
    container = {"name": "c", "resources": {"limits": {names.MEMORY: 9}}}
    found: Json = {"spec": {"containers": [container], **spec}}
    return found if metadata is None else {"metadata": metadata, **found}


def asking(**resources: object) -> Json:
    return manifest(containers=[{"name": "c", "resources": resources}])


def scenario(template: Json) -> str:
    return f"{NODES}pods: [{{name: p, template: {json.dumps(template)}}}]"


def test_a_pod_pasted_from_a_cluster() -> None:
    """Its node, gates, status and placement were its own."""
    told = {names.PLACEMENT: "{}", names.ACTUAL: "{}", "x": "y"}
    template = manifest(
        {"name": "old", "uid": "1", "annotations": told},
        nodeName="elsewhere",
        schedulingGates=[{"name": "hold"}],
        tolerations=[{"operator": "Exists", "effect": None}],
    )
    found = read_scenario(scenario({**template, "status": {"phase": "Failed"}}), "f")
    assert places(play(found, found.choice)) == {"p": "n card 0"}
    (arrive,) = [step.what for step in found.steps if isinstance(step.what, Arrive)]
    assert arrive.pod["metadata"]["annotations"] == {"x": "y"}


def test_a_class_beside_its_value() -> None:
    """As ``kubectl get -o yaml`` gives it: the value is what counts."""
    template = manifest(priorityClassName="high", priority=7)
    found = read_scenario(scenario(template), "f")
    (step,) = found.steps
    assert isinstance(step.what, Arrive)
    assert step.what.priority == 7


def affinity(operator: str, values: object) -> Json:
    expression = {"key": "rank", "operator": operator, "values": values}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    return manifest(affinity={"nodeAffinity": {key: terms}})


WRONG = {
    "metadata": (manifest(5), "metadata: must be an object"),
    "labels": (manifest({"labels": 5}), "metadata.labels: must be an object"),
    "label": (manifest({"labels": {"a": 5}}), "metadata.labels.a: must be a string"),
    "tolerations": (manifest(tolerations=5), "spec.tolerations: must be a list"),
    "toleration": (
        manifest(tolerations=[{"operator": "In"}]),
        'spec.tolerations[0].operator: is "In"; known are Equal, Exists',
    ),
    "selector": (manifest(nodeSelector=[1]), "spec.nodeSelector: must be an object"),
    "no container": (manifest(containers=[]), "spec.containers: must name at least"),
    "cpu": (
        asking(requests={"cpu": "abc"}),
        'spec.containers[0].resources.requests.cpu: is "abc", but it is not a Kuber',
    ),
    "endless": (
        asking(limits={"memory": "1e999"}),
        'spec.containers[0].resources.limits.memory: is "1e999", but it is more than',
    ),
    "greater": (affinity("Gt", ["x"]), "spec.affinity.nodeAffinity.required"),
    "operator": (affinity("Is", ["3"]), "spec.affinity.nodeAffinity.required"),
    "values": (affinity("In", 3), "spec.affinity.nodeAffinity.required"),
    "priority": (manifest(priority="high"), "spec.priority: must be a whole number"),
    "class": (
        manifest(priorityClassName="high"),
        'spec.priorityClassName: is "high", and a scenario has no priority classes;',
    ),
}


@pytest.mark.parametrize(("template", "words"), WRONG.values(), ids=WRONG)
def test_a_template_is_told_by_its_fields(template: Json, words: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_scenario(scenario(template), "f.yaml")
    assert str(caught.value).startswith(f"f.yaml:2: pods[0].template: {words}")


VALUES = {
    "no day": ("{units: 2026-13-45}", 'pods[0].units: is "2026-13-45"; it must be a'),
    "long": (f"{{units: {'9' * 5000}}}", 'pods[0].units: is "999'),
    "cpu": ("{cpu: 1e999}", 'pods[0].cpu: is "1e999"; give a quantity'),
    "space": ("{namespace: A B}", 'pods[0].namespace: is "A B"; a name has'),
    "in template": ("{template: {spec: 2026-13-45}}", "pods[0].template: holds a v"),
}


@pytest.mark.parametrize(("fields", "words"), VALUES.values(), ids=VALUES)
def test_values_that_yaml_cannot_read(fields: str, words: str) -> None:
    text = f"{NODES}pods: [{{name: p, {fields[1:]}]"
    with pytest.raises(YamlError) as caught:
        read_scenario(text, "f.yaml")
    assert str(caught.value).startswith(f"f.yaml:2: {words}")
    assert len(str(caught.value)) < 300


WHOLE = {
    "flag": ("wait: 2026-13-45\nnodes: []", 'f.yaml:1: wait: is "2026-13-45"; it must'),
    "deep": ("name: x\nnodes: " + "[" * 600, "f.yaml:2: is not YAML: lists or fields"),
    "key": ("? [a, b]\n: 1\nnodes: []", "f.yaml:1: the name of a field must be a text"),
    "cards": (
        "nodes: [{name: n, cards: [{units: 1, count: 1000000000}]}]",
        'f.yaml:1: nodes[0].cards[0].count: is "1000000000"; it must be a whole number',
    ),
    "nodes": (
        "nodes: [{name: n, count: 19000}, {name: m, count: 19000}]",
        "f.yaml:1: nodes: these are 38000 nodes; it may be 20000",
    ),
}


@pytest.mark.parametrize(("text", "words"), WHOLE.values(), ids=WHOLE)
def test_files_that_nobody_could_mean(text: str, words: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_scenario(text, "f.yaml")
    assert str(caught.value).startswith(words)
