"""A scenario's file: what it may say, and what is told of what it may not.

Manifests as they are pasted, and values that no YAML or cluster could mean.

Events in the order of time, and pods that are followed by their first names.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.domain.policies import Choice
from gpushare.kube import codec, names
from gpushare.kube.cluster import Json
from gpushare.yaml_file import YamlError
from gpusharectl.simulate.engine import Outcome, play
from gpusharectl.simulate.result import Run, read_size, reported, rooms, summed
from gpusharectl.simulate.scenario import Arrive, Drain, Join, Leave
from gpusharectl.simulate.scenario_file import read_scenario
from tests.gpusharectl.simulate.building import outcomes, places

NODES = "nodes: [{name: n, cards: 1x8GiB}]\n"


def limits(pod: Json) -> Mapping[str, Any]:
    found: Mapping[str, Any] = pod["spec"]["containers"][0]["resources"]["limits"]
    return found


def arrivals(text: str) -> list[tuple[float, Arrive]]:
    steps = read_scenario(NODES + text, "f.yaml").steps
    return [(one.at_s, one.what) for one in steps if isinstance(one.what, Arrive)]


def test_the_least_that_will_do() -> None:
    found = read_scenario(NODES, "f.yaml")
    assert (found.name, found.steps, found.waits) == ("f.yaml", (), True)
    assert found.choice == Choice()
    (card,) = codec.cards(found.nodes[0])
    assert card.units == 32


def test_nodes_alike_have_numbers_and_cards_of_their_own() -> None:
    text = "nodes: [{name: n, count: 2, cards: '1x8GiB,2x512MiB', model: T}]"
    nodes = read_scenario(text, "f.yaml").nodes
    assert [node["metadata"]["name"] for node in nodes] == ["n-1", "n-2"]
    cards = [card for node in nodes for card in codec.cards(node)]
    assert [card.units for card in cards] == [32, 2, 2] * 2
    assert len({card.uuid for card in cards}) == 6
    assert {card.model for card in cards} == {"T"}


def test_a_node_has_the_labels_that_kubelet_sets() -> None:
    """What a scenario says goes before."""
    text = "nodes: [{name: n, labels: {kubernetes.io/arch: arm64, zone: a}}]"
    (node,) = read_scenario(text, "f.yaml").nodes
    assert node["metadata"]["labels"] == {
        "kubernetes.io/hostname": "n",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64",
        "zone": "a",
    }


def test_cards_may_be_listed() -> None:
    text = """
nodes:
- name: n
  model: A
  cards: [{count: 2, units: 5}, {units: 7, model: B}]
"""
    cards = codec.cards(read_scenario(text, "f.yaml").nodes[0])
    assert [(card.index, card.units, card.model) for card in cards] == [
        (0, 5, "A"),
        (1, 5, "A"),
        (2, 7, "B"),
    ]


def test_pods_come_one_after_the_other() -> None:
    found = arrivals("pods: [{name: p, count: 3, units: 2, at: 1m, every: 1h30m}]")
    assert [at_s for at_s, _ in found] == [60, 5460, 10860]
    assert [one.pod["metadata"]["name"] for _, one in found] == ["p-1", "p-2", "p-3"]
    assert found[0][1].lasts_s is None


def test_who_asks_for_memory_has_a_core() -> None:
    """As the webhook has it; who asks cores alone asks no memory."""
    found = arrivals("pods: [{name: a, units: 2}, {name: b, cores: 200, lasts: 10}]")
    assert limits(found[0][1].pod) == {names.MEMORY: "2", names.CORE: "1"}
    assert limits(found[1][1].pod) == {names.CORE: "200"}
    assert found[1][1].lasts_s == 10


def test_wishes_become_annotations() -> None:
    text = "pods: [{name: a, units: 2, models: [A10, T*], policy: spread, priority: 7}]"
    ((_, arrive),) = arrivals(text)
    assert arrive.pod["metadata"]["annotations"] == {
        names.MODELS: "A10,T*",
        names.POLICY: "spread",
    }
    assert arrive.pod["spec"]["priority"] == 7


def test_events_stand_in_the_order_of_time() -> None:
    text = """
pods: [{name: p, namespace: other, units: 1, at: 10}]
events:
- {at: 20, drain: n}
- {at: 5, add: {name: m, cards: 1x8GiB}}
- {at: 30, remove: m}
- {at: 10, delete: other/p}
"""
    steps = read_scenario(NODES + text, "f.yaml").steps
    assert [type(step.what) for step in steps] == [Join, Arrive, Leave, Drain, Drain]
    assert steps[2].what == Leave("other", "p")
    assert steps[4].what == Drain("m", gone=True)


def test_a_pod_may_matter_less_than_nothing() -> None:
    ((_, arrive),) = arrivals("pods: [{name: a, units: 2, priority: -7}]")
    assert arrive.pod["spec"]["priority"] == -7


def test_the_most_important_of_a_moment_comes_first() -> None:
    """As kube-scheduler's queue has it; of equals the one that stands first."""
    text = """
pods:
- {name: a, units: 2, at: 1m, priority: -1}
- {name: b, units: 2, at: 1m}
- {name: c, units: 2, at: 1m, priority: 100}
- {name: d, units: 2, at: 1m, priority: 100}
- {name: early, units: 2, at: 59}
events: [{at: 1m, drain: n}]
"""
    found = arrivals(text)
    names_ = [arrive.pod["metadata"]["name"] for _, arrive in found]
    assert names_ == ["early", "c", "d", "b", "a"]
    assert isinstance(read_scenario(NODES + text, "f.yaml").steps[-1].what, Drain)


def test_times_are_whole_milliseconds() -> None:
    """So that what ends and what comes at the same moment does so."""
    found = arrivals("pods: [{name: a, units: 2, count: 4, at: 100ms, every: 100ms}]")
    assert [at_s for at_s, _ in found] == [0.1, 0.2, 0.3, 0.4]


WRONG = {
    "empty": ("", "f.yaml: is empty"),
    "no yaml": ("nodes: [", "f.yaml:1: is not YAML: "),
    "list": ("- a", "f.yaml:1: must be fields with values, not a list"),
    "no nodes": ("pods: []", "f.yaml:1: nodes: is missing"),
    "slip": ("nodes: []\npodz: []", "f.yaml:2: podz: there is no such field; did you "),
    "twice": ("nodes: []\nnodes: []", "f.yaml:2: nodes: is there twice, first in line"),
    "policy": ("policy: best\nnodes: []", 'f.yaml:1: policy: is "best"; known are '),
    "order": ("card_order: up\nnodes: []", 'f.yaml:1: card_order: is "up"; known are'),
    "wait": ("wait: 3\nnodes: []", 'f.yaml:1: wait: is "3"; it must be true or false'),
    "nodes": ("nodes: 3", "f.yaml:1: nodes: must be a list, not"),
    "node": ("nodes:\n- 3", "f.yaml:2: nodes[0]: must be fields with values, not"),
    "no name": ("nodes:\n- {cpu: 4}", "f.yaml:2: nodes[0].name: is missing"),
    "name": ("nodes:\n- {name: A_b}", 'f.yaml:2: nodes[0].name: is "A_b"; a name has'),
    "same node": ("nodes:\n- {name: a}\n- {name: a}", "f.yaml:3: nodes[1].name: there"),
    "cards": ("nodes:\n- {name: a, cards: 8}", 'f.yaml:2: nodes[0].cards: is "8"; wri'),
    "no card": (
        "nodes:\n- {name: a, cards: 0x16GiB}",
        'f.yaml:2: nodes[0].cards: "0x16GiB": give 1 card or more, or leave the fi',
    ),
    "none of a kind": (
        "nodes:\n- name: a\n  cards:\n  - {units: 4, count: 0}",
        'f.yaml:4: nodes[0].cards[0].count: is "0"; it must be a whole number from 1',
    ),
    "tiny": ("nodes:\n- {name: a, cards: 1x1MiB}", "f.yaml:2: nodes[0].cards: "),
    "many": ("nodes:\n- {name: a, cards: 99x8GiB}", "f.yaml:2: nodes[0].cards: these"),
    "units": (
        "nodes:\n- name: a\n  cards:\n  - {units: 0}",
        'f.yaml:4: nodes[0].cards[0].units: is "0"; it must be a whole number from 1',
    ),
    "cpu": (
        "nodes:\n- {name: a, cpu: lots}",
        'f.yaml:2: nodes[0].cpu: is "lots"; give',
    ),
    "count": (NODES + "pods: [{name: p, count: x}]", 'f.yaml:2: pods[0].count: is "x"'),
    "time": (NODES + "pods: [{name: p, at: soon}]", 'f.yaml:2: pods[0].at: is "soon"'),
    "late": (
        NODES + "pods: [{name: p, at: 99999999999}]",
        'f.yaml:2: pods[0].at: is "99999999999"; it may be 1000000000 s in all',
    ),
    "cores": (
        NODES + "pods: [{name: p, cores: 150}]",
        "f.yaml:2: pods[0].cores: is 150",
    ),
    "models": (
        NODES + "pods: [{name: p, units: 1, models: ['A*B*C']}]",
        "f.yaml:2: pods[0].name: Invalid vcuda request: baidu.com/vcuda-models",
    ),
    "same pod": (
        NODES + "pods:\n- {name: p-1, units: 1}\n- {name: p, count: 1, units: 1}",
        "f.yaml:4: pods[1].name: there is a pod p-1 already",
    ),
    "crowd": (
        NODES + "pods: [{name: p, count: 300000}]",
        "f.yaml:2: pods: these are 30",
    ),
    "template": (
        NODES + "pods: [{name: p, template: {kind: Pod}}]",
        "f.yaml:2: pods[0].template: needs a spec",
    ),
    "template too": (
        NODES
        + "pods: [{name: p, units: 1, template: {spec: {containers: [{name: c}]}}}]",
        "f.yaml:2: pods[0].units: stands in the template, or here, but not in both",
    ),
    "bytes": (
        NODES
        + "pods: [{name: p, template: {spec: {containers: [{name: c, resources: "
        + "{limits: {baidu.com/vcuda-memory: 5Gi}}}]}}}]",
        "f.yaml:2: pods[0].template: Invalid vcuda request: baidu.com/vcuda-memory is",
    ),
    "no event": (NODES + "events: [{at: 1}]", "f.yaml:2: events[0].at: needs just one"),
    "stranger": (
        NODES + "events: [{drain: x}]",
        "f.yaml:2: events[0].drain: there is no",
    ),
    "one of two": (
        NODES
        + "pods:\n- {name: p, units: 1}\n- {name: p, namespace: x, units: 1}\n"
        + "expect:\n  pods: {p: n}",
        "f.yaml:6: expect.pods.p: there are 2 pods of this name, in default, x; give N",
    ),
    "expected twice": (
        NODES + "pods: [{name: p}]\nexpect:\n  pods: {p: n, default/p: n}",
        "f.yaml:4: expect.pods.default/p: default/p is there twice; give it once",
    ),
    "expected elsewhere": (
        NODES + "pods: [{name: p}]\nexpect:\n  pods: {x/p: n}",
        "f.yaml:4: expect.pods.x/p: there is no such pod in this scenario",
    ),
    "expected": (
        NODES + "expect:\n  pods: {p: n}",
        "f.yaml:3: expect.pods.p: there is ",
    ),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_complaints_name_file_line_and_field(text: str, words: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_scenario(text, "f.yaml")
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


ONE_NODE = "nodes: [{name: n, cards: 1x8GiB, labels: {rank: '3'}}]\n"


def manifest(metadata: object = None, **spec: object) -> Json:
    container = {"name": "c", "resources": {"limits": {names.MEMORY: 9}}}
    found: Json = {"spec": {"containers": [container], **spec}}
    return found if metadata is None else {"metadata": metadata, **found}


def asking(**resources: object) -> Json:
    return manifest(containers=[{"name": "c", "resources": resources}])


def scenario(template: Json) -> str:
    return f"{ONE_NODE}pods: [{{name: p, template: {json.dumps(template)}}}]"


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


WRONG_TEMPLATES = {
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


@pytest.mark.parametrize(
    ("template", "words"), WRONG_TEMPLATES.values(), ids=WRONG_TEMPLATES
)
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
    text = f"{ONE_NODE}pods: [{{name: p, {fields[1:]}]"
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


TWO_NODES = """nodes: [{name: a, cards: 1x8GiB}, {name: b, cards: 1x8GiB}]
pods: [{name: p, units: 20, at: 3}]
events:
"""
WRONG_EVENTS = {
    "removed twice": (
        "- {at: 1, remove: a}\n- {at: 2, remove: a}",
        "f.yaml:5: events[1].remove: there is no node a any more: it was removed at 1",
    ),
    "drained after": (
        "- {at: 2, drain: a}\n- {at: 1, remove: a}",
        "f.yaml:4: events[0].drain: there is no node a any more: it was removed at 1",
    ),
    "too early": (
        "- {at: 10, add: {name: c}}\n- {at: 5, drain: c}",
        "f.yaml:5: events[1].drain: there is no node c yet: it comes at 10 s; this is",
    ),
    "there": (
        "- {at: 2, add: {name: a}}\n- {at: 9, remove: a}",
        "f.yaml:4: events[0].add: there is a node a already",
    ),
    "no such pod": ("- {delete: x}", "f.yaml:4: events[0].delete: there is no pod def"),
    "other space": ("- {at: 9, delete: x/p}", "f.yaml:4: events[0].delete: there is n"),
    "pod to come": (
        "- {at: 2, delete: p}",
        "f.yaml:4: events[0].delete: there is no pod default/p yet: it comes at 3 s",
    ),
    "deleted twice": (
        "- {at: 4, delete: p}\n- {at: 5, delete: p}",
        "f.yaml:5: events[1].delete: there is no pod default/p any more: it was del",
    ),
    "many nodes": (
        "- {add: {name: c, count: 1000000000}}",
        'f.yaml:4: events[0].add.count: is "1000000000"; it must be a whole number',
    ),
}


@pytest.mark.parametrize(("events", "words"), WRONG_EVENTS.values(), ids=WRONG_EVENTS)
def test_what_cannot_happen_then(events: str, words: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_scenario(TWO_NODES + events, "f.yaml")
    assert str(caught.value).startswith(words)


def ran(text: str) -> Run:
    scenario = read_scenario(text, "f.yaml")
    return summed(scenario, play(scenario, scenario.choice))


def test_a_removed_node_may_come_back() -> None:
    events = "- {at: 1, remove: a}\n- {at: 2, add: {name: a, cards: 1x8GiB}}"
    run = ran(TWO_NODES + events)
    assert places(run.played) == {"p": "a card 0"}
    assert run.end.units == 64


def test_a_pod_is_followed_by_its_first_name() -> None:
    """Deleted after two moves; each pod counts once, by what came of it last."""
    events = """
- {at: 4, remove: a}
- {at: 5, add: {name: a, cards: 1x8GiB}}
- {at: 6, drain: b}
- {at: 7, delete: p}
"""
    text = TWO_NODES + events + "expect: {placed: 1, refused: 0, pods: {p: a card 0}}"
    run = ran(text)
    found = outcomes(run.played)
    assert list(found) == ["p", "p-moved-1", "p-moved-2"]
    assert (found["p-moved-2"].left_s, found["p-moved-2"].first) == (7, "p")
    assert (run.pods, run.placed, run.moved, run.wrong) == (1, 1, 1, ())
    assert run.end.held == 0
    assert run.end.arrived == 20


def test_a_moved_pod_without_room_is_not_placed() -> None:
    text = TWO_NODES + "- {at: 4, drain: a}\n- {at: 4, drain: b}\n"
    run = ran(text + "expect: {placed: 0, refused: 1, pods: {p: nowhere}}")
    assert (run.pods, run.placed, run.moved, run.wrong) == (1, 0, 1, ())
    text += "- {at: 9, delete: p}"
    assert ran(text).counts[Outcome.LEFT] == 1, "deleted while it waited"


def test_names_that_are_taken_are_left_to_those_who_have_them() -> None:
    """Of a pod that is there, one that is still to come, and one of a --room."""
    text = """
nodes: [{name: a, cards: 1x8GiB}, {name: b, cards: 1x8GiB}]
pods:
- {name: p, units: 8}
- {name: p-moved-1, units: 8, at: 9}
- {name: more-0, namespace: room, units: 8}
- {name: more-1, namespace: room, units: 2, at: 9}
events: [{at: 1, remove: a}]
"""
    run = ran(text)
    assert list(outcomes(run.played)) == [
        *("p", "more-0", "p-moved-2", "more-0-moved-3", "p-moved-1", "more-1"),
    ]
    (room,) = rooms(run.played.cluster, [read_size("2")])
    assert room.number == 3


def test_no_time_is_too_late() -> None:
    """A long queue may end after the last day that a calendar has."""
    text = """
nodes: [{name: a, cards: 1x8GiB}]
pods: [{name: p, count: 400, units: 32, lasts: 1000000000}]
"""
    assert ran(text).placed == 400
    with pytest.raises(
        YamlError, match=r"f.yaml:3: pods\[0\].every: at \+ every x count \+ lasts"
    ):
        read_scenario(text.replace("lasts", "every"), "f.yaml")


def test_both_that_is_short_is_told() -> None:
    """Of as many nodes as there are, though the reasons are more."""
    text = """
nodes: [{name: a, cards: 1x8GiB, cpu: 2, memory: 1Gi}]
pods: [{name: p, units: 1, cpu: 3, memory: 2Gi}]
"""
    (not_placed,) = ran(text).not_placed
    assert not_placed.reasons == {"Insufficient cpu": 1, "Insufficient memory": 1}
    assert not_placed.nodes == 1


def test_what_is_not_played_is_said() -> None:
    """The webhook's core, and resources of others, where a pod has any."""
    text = """
nodes: [{name: a, cards: 1x8GiB}]
pods:
- name: p
  template:
    spec:
      containers:
      - name: c
        resources: {limits: {baidu.com/vcuda-memory: 1, nvidia.com/gpu: 8}}
"""
    scenario = read_scenario(text, "f.yaml")
    *_, webhook, others = reported(scenario, []).not_played
    assert webhook.startswith("the webhook: it gives 1 core to a container")
    assert others.endswith("on whatever nodes: nvidia.com/gpu")
    plain = read_scenario(TWO_NODES + " []", "f.yaml")
    assert len(reported(plain, []).not_played) == 2
