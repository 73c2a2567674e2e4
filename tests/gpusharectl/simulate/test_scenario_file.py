"""A scenario's file: what it may say, and what is told of what it may not."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.domain.policies import Choice
from gpushare.kube import codec, names
from gpushare.kube.cluster import Json
from gpushare.yaml_file import YamlError
from gpusharectl.simulate.scenario import Arrive, Drain, Join, Leave
from gpusharectl.simulate.scenario_file import read_scenario

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
