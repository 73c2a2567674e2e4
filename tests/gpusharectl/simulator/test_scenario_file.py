"""A scenario's file: what it may say, and what is reported about all else."""

import json

import pytest

from gpushare.domain.links import read_scores
from gpushare.domain.policies import PolicyChoice
from gpushare.kube import names
from gpushare.kube.annotations import read_cards
from gpushare.kube.cluster import Json
from gpushare.yaml_file import YamlError
from gpusharectl.simulator.engine import OutcomeKind, play
from gpusharectl.simulator.result import (
    PolicyRun,
    count_room,
    make_report,
    read_size,
    run_policy,
)
from gpusharectl.simulator.scenario import (
    Arrive,
    Drain,
    Join,
    Leave,
    format_duration,
    parse_seconds,
)
from gpusharectl.simulator.scenario_file import read_scenario
from tests.gpusharectl.simulator.building import outcomes, places
from tests.topologies import dgx_1_scores

TIMES = {"0": 0, "90": 90, "1h30m": 5400, "2d": 172800, "1.5h": 5400}
NO_TIMES = dict.fromkeys(("", "h", "-1", "1x", "1h 2m", "1h30", "30 1h", "nan"))


def test_times_are_read_and_written() -> None:
    assert {text: parse_seconds(text) for text in TIMES} == TIMES
    assert {text: parse_seconds(text) for text in NO_TIMES} == NO_TIMES
    told = [
        format_duration(length)
        for length in (0.0001, 0.2, 0.9996, 59, 60, 90000, 86400)
    ]
    assert told == ["0 s", "200 ms", "1 s", "59 s", "1 min", "1 d 1 h", "1 d"]


NODES = "nodes: [{name: n, cards: 1x8GiB}]\n"


def arrivals(text: str) -> list[tuple[float, Arrive]]:
    steps = read_scenario(NODES + text, "f.yaml").steps
    return [(one.at_s, one.what) for one in steps if isinstance(one.what, Arrive)]


def refused(text: str | bytes, words: str) -> None:
    """Check that there is one complaint, which begins with these words."""
    with pytest.raises(YamlError) as caught:
        read_scenario(text, "f.yaml")
    assert str(caught.value).startswith(f"f.yaml:{words}")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_profile_in_the_model_makes_instances() -> None:
    """They are never mixed with full cards, nor with another size."""
    text = """
nodes:
- name: n
  cards:
  - {units: 160, model: A100}
  - {units: 39, model: A100 MIG 2g.10gb}
  - {units: 19, model: A100 MIG 1g.5gb}
pods: [{name: two, cores: 200}]
expect: {placed: 0, refused: 1}
"""
    found = read_scenario(text, "f.yaml")
    full, *parts = read_cards(found.nodes[0])
    assert full.parent == ""
    assert len({one.parent for one in parts} - {"", full.uuid}) == 1
    assert places(play(found, found.choice)) == {"two": "nowhere"}
    alike = read_scenario(text.replace("1g.5gb", "2g.10gb"), "f.yaml")
    assert places(play(alike, alike.choice)) == {"two": "n cards 1, 2"}


LINKED = """
nodes:
- {name: n, cards: 8x32GiB, links: dgx-1}
- name: m
  cards: 3x32GiB
  links: [[0, 250, 10], [250, 0, 20], [10, 20, 0]]
- {name: o, cards: 2x32GiB}
"""


def test_nodes_may_have_links() -> None:
    """By the name of a topology, or a row for each card."""
    mesh, three, none = map(read_cards, read_scenario(LINKED, "f.yaml").nodes)
    assert read_scores(mesh) == tuple(dgx_1_scores())
    assert (read_scores(three), read_scores(none)) == ((250, 10, 20), ())


def test_wrong_links_are_reported_by_their_field() -> None:
    refused(
        LINKED.replace("dgx-1", "dgx-2"), '3: nodes[0].links: is "dgx-2"; known are'
    )
    refused(
        LINKED.replace("[10, 20, 0]]", "[10, 0]]"), "6: nodes[1].links: has another"
    )
    text = LINKED.replace("8x32GiB", "none")
    with pytest.raises(YamlError) as caught:
        read_scenario(text, "f")
    assert [one.split(": ")[1] for one in caught.value.complaints] == ["nodes[0].cards"]


def test_nodes_alike_have_numbers_and_cards_of_their_own() -> None:
    text = """
nodes:
- {name: n, count: 2, cards: '1x8GiB,2x512MiB', model: T}
- name: m
  model: A
  cards: [{count: 2, units: 5}, {units: 7, model: B}]
  labels: {kubernetes.io/arch: arm64, zone: a}
"""
    found = read_scenario(text, "f.yaml")
    assert (found.name, found.steps, found.waits) == ("f.yaml", (), True)
    assert found.choice == PolicyChoice()
    assert [node["metadata"]["name"] for node in found.nodes] == ["n-1", "n-2", "m"]
    cards = [card for node in found.nodes for card in read_cards(node)]
    sizes = [(card.index, card.units, card.model) for card in cards]
    alike = [(0, 32, "T"), (1, 2, "T"), (2, 2, "T")]
    assert sizes == [*alike, *alike, (0, 5, "A"), (1, 5, "A"), (2, 7, "B")]
    assert len({card.uuid for card in cards}) == 9
    # The labels that kubelet sets; what a scenario says goes before.
    assert found.nodes[2]["metadata"]["labels"] == {
        "kubernetes.io/hostname": "m",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64",
        "zone": "a",
    }


def test_pods_come_one_after_the_other() -> None:
    """At whole milliseconds, so that what ends and what comes then is at one time."""
    found = arrivals("pods: [{name: p, count: 3, units: 2, at: 1m, every: 1h30m}]")
    assert [at_s for at_s, _ in found] == [60, 5460, 10860]
    assert [one.pod["metadata"]["name"] for _, one in found] == ["p-1", "p-2", "p-3"]
    assert found[0][1].lasts_s is None
    found = arrivals("pods: [{name: a, units: 2, count: 4, at: 100ms, every: 100ms}]")
    assert [at_s for at_s, _ in found] == [0.1, 0.2, 0.3, 0.4]


def test_what_a_pod_asks_for() -> None:
    """Who asks for memory has a core, as the webhook has it."""
    text = """
pods:
- {name: a, units: 2, models: [A10, T*], policy: spread, priority: -7}
- {name: b, cores: 200, lasts: 10}
"""
    second, first = (arrive for _, arrive in arrivals(text))
    assert first.pod["metadata"]["annotations"] == {
        names.MODELS: "A10,T*",
        names.POLICY: "spread",
    }
    assert (first.pod["spec"]["priority"], second.lasts_s) == (-7, 10)
    limits = [
        one.pod["spec"]["containers"][0]["resources"]["limits"]
        for one in (first, second)
    ]
    memory = {names.MEMORY: "2", names.CORE: "1"}
    assert limits == [memory, {names.CORE: "200"}]


def test_steps_are_in_the_order_of_time() -> None:
    """Of one moment pods are first, by priority; then as they stand in the file."""
    text = """
pods:
- {name: a, units: 2, at: 1m, priority: -1}
- {name: b, namespace: other, units: 2, at: 1m}
- {name: c, units: 2, at: 1m, priority: 100}
- {name: d, units: 2, at: 1m, priority: 100}
- {name: early, units: 2, at: 59}
events:
- {at: 2m, drain: n}
- {at: 5, add: {name: m, cards: 1x8GiB}}
- {at: 3m, remove: m}
- {at: 1m, delete: other/b}
"""
    steps = [one.what for one in read_scenario(NODES + text, "f.yaml").steps]
    pods = [one.pod["metadata"]["name"] for one in steps[1:6]]  # type: ignore[union-attr]
    assert pods == ["early", "c", "d", "b", "a"]
    assert isinstance(steps[0], Join)
    assert steps[6:] == [Leave("other", "b"), Drain("n"), Drain("m", gone=True)]


POD = NODES + "pods: [{name: p, "
EXPECT = "]\nexpect:\n  pods: "
CONTAINER = "template: {spec: {containers: [{name: c"
WRONG = {
    "empty": ("", " is empty"),
    "no yaml": ("nodes: [", "1: is not YAML: "),
    "no text": (b"\xff\xfe\x00", "1: is not YAML: "),
    "list": ("- a", "1: must be fields with values, not a list"),
    "deep": ("name: x\nnodes: " + "[" * 600, "2: is not YAML: lists or fields are n"),
    "key": ("? [a, b]\n: 1\nnodes: []", "1: the name of a field must be a text"),
    "no nodes": ("pods: []", "1: nodes: is missing"),
    "twice": ("nodes: []\nnodes: []", "2: nodes: is there twice, first in line 1; ke"),
    "policy": ("policy: best\nnodes: []", '1: policy: is "best"; known are first-fit'),
    "order": ("card_order: up\nnodes: []", '1: card_order: is "up"; known are '),
    "flag": ("wait: 2026-13-45\nnodes: []", '1: wait: is "2026-13-45"; it must be tr'),
    "moves": ("moves: {most: 0}\nnodes: []", '1: moves.most: is "0"; it must be a who'),
    "moves alone": ("moves: 3\nnodes: []", "1: moves: "),
    "more of moves": ("moves: {least: 1}\nnodes: []", "1: moves.least: there is no su"),
    "moves of dropped pods": (
        "wait: false\nmoves: {}\nnodes: []",
        "2: moves: needs wait: true; a pod that is dropped waits for no room",
    ),
    "number as flag": ("wait: '1'\nnodes: []", '1: wait: is "1"; it must be tr'),
    "nodes": ("nodes: 3", "1: nodes: must be a list, not"),
    "name": ("nodes:\n- {name: A_b}", '2: nodes[0].name: is "A_b"; a name has small'),
    "same node": ("nodes:\n- {name: a}\n- {name: a}", "3: nodes[1].name: there is a n"),
    "cards": ("nodes: [{name: a, cards: 8}]", '1: nodes[0].cards: is "8"; write 8x24G'),
    "no card": (
        "nodes: [{name: a, cards: 0x16GiB}]",
        '1: nodes[0].cards: "0x16GiB": give 1 card or more, or leave the field out',
    ),
    "none of a kind": (
        "nodes:\n- name: a\n  cards:\n  - {units: 4, count: 0}",
        '4: nodes[0].cards[0].count: is "0"; it must be a whole number from 1 to 64',
    ),
    "tiny": ("nodes: [{name: a, cards: 1x1MiB}]", '1: nodes[0].cards: "1x1MiB": a car'),
    "many": ("nodes: [{name: a, cards: 99x8GiB}]", "1: nodes[0].cards: these are "),
    "a billion cards": (
        "nodes: [{name: n, cards: [{units: 1, count: 1000000000}]}]",
        '1: nodes[0].cards[0].count: is "1000000000"; it must be a whole number from',
    ),
    "many nodes": (
        "nodes: [{name: n, count: 19000}, {name: m, count: 19000}]",
        "1: nodes: these are 38000 nodes; it may be 20000",
    ),
    "cpu": ("nodes: [{name: a, cpu: lots}]", '1: nodes[0].cpu: is "lots"; give a qua'),
    "endless": (POD + "cpu: 1e999}]", '2: pods[0].cpu: is "1e999"; give a quantity'),
    "count": (POD + "count: x}]", '2: pods[0].count: is "x"; it must be a whole numb'),
    "no day": (POD + "units: 2026-13-45}]", '2: pods[0].units: is "2026-13-45"; it m'),
    "long": (POD + f"units: {'9' * 5000}}}]", '2: pods[0].units: is "999'),
    "space": (POD + "namespace: A B}]", '2: pods[0].namespace: is "A B"; a name has'),
    "time": (POD + "at: soon}]", '2: pods[0].at: is "soon"; give a time such as 90s'),
    "late": (POD + "at: 99999999999}]", '2: pods[0].at: is "99999999999"; it may be 1'),
    "cores": (POD + "cores: 150}]", "2: pods[0].cores: is 150; 1 to 99 are a share"),
    "models": (POD + "units: 1, models: ['A*B*C']}]", "2: pods[0].name: Invalid vcuda"),
    "same pod": (
        NODES + "pods:\n- {name: p-1, units: 1}\n- {name: p, count: 1, units: 1}",
        "4: pods[1].name: there is a pod p-1 already",
    ),
    "crowd": (POD + "count: 300000}]", "2: pods: these are 300000 pods; it may be 20"),
    "template": (POD + "template: {kind: Pod}}]", "2: pods[0].template: needs a spec"),
    "date": (POD + "template: {spec: 2026-13-45}}]", "2: pods[0].template: holds a v"),
    "both": (POD + f"units: 1, {CONTAINER}}}]}}}}}}]", "2: pods[0].units: stands in t"),
    "bytes": (
        POD + CONTAINER + ", resources: {limits: {baidu.com/vcuda-memory: 5Gi}}}]}}}]",
        "2: pods[0].template: Invalid vcuda request: baidu.com/vcuda-memory is",
    ),
    "no event": (NODES + "events: [{at: 1}]", "2: events[0].at: needs just one of dr"),
    "stranger": (NODES + "events: [{drain: x}]", "2: events[0].drain: there is no no"),
    "one of two": (
        POD + "units: 1}, {name: p, namespace: x, units: 1}" + EXPECT + "{p: n}",
        "4: expect.pods.p: there are 2 pods of this name, in default, x; give NAMESP",
    ),
    "expected twice": (
        POD + "}" + EXPECT + "{p: n, default/p: n}",
        "4: expect.pods.default/p: default/p is there twice; give it once",
    ),
    "no fields": (NODES + "expect: []", "2: expect: must be fields with values, not a"),
    "nowhere": (POD + "}" + EXPECT + "{x/p: n}", "4: expect.pods.x/p: there is no su"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_complaints_name_file_line_and_field(text: str, words: str) -> None:
    refused(text, words)


ONE_NODE = "nodes: [{name: n, cards: 1x8GiB, labels: {rank: '3'}}]\n"


def manifest(metadata: object = None, **spec: object) -> Json:
    container = {"name": "c", "resources": {"limits": {names.MEMORY: 9}}}
    found: Json = {"spec": {"containers": [container], **spec}}
    return found if metadata is None else {"metadata": metadata, **found}


def asking(**resources: object) -> Json:
    return manifest(containers=[{"name": "c", "resources": resources}])


def scenario(template: Json) -> str:
    return f"{ONE_NODE}pods: [{{name: p, template: {json.dumps(template)}}}]"


def test_all_complaints_come_at_once() -> None:
    """What depends on a part that is wrong is not judged: no node-9 may be meant."""
    text = """
policy: best
nodes:
- {name: n, cards: 1x8GiB}
- {name: n, cards: 1x24GB}
- {name: n}
pods:
- {name: a, units: ten}
- {name: b, template: {spec: {containers: [{name: c}]}}, units: 1}
- {name: c}
- {name: c}
events:
- {at: 1m}
- {at: 1m, drain: node-9}
expect: {placed: many, pods: {z: n}}
"""
    with pytest.raises(YamlError) as caught:
        read_scenario(text, "f")
    found = [line.split(": ")[:2] for line in caught.value.complaints]
    assert found == [
        ["f:2", "policy"],
        ["f:5", "nodes[1].cards"],
        ["f:6", "nodes[2].name"],
        ["f:8", "pods[0].units"],
        ["f:9", "pods[1].units"],
        ["f:11", "pods[3].name"],
        ["f:13", "events[0].at"],
        ["f:15", "expect.placed"],
    ]


@pytest.mark.parametrize(
    ("pods", "words"),
    [("[{name: p}]", "expect.pods.z"), ("[{name: p, units: x}]", "pods[0].units")],
)
def test_what_is_expected_is_checked_beside_wrong_events(pods: str, words: str) -> None:
    """But not beside wrong pods."""
    text = f"{NODES}pods: {pods}\nevents: [{{at: 1}}]\nexpect: {{pods: {{z: n}}}}\n"
    with pytest.raises(YamlError) as caught:
        read_scenario(text, "f")
    found = {line.split(": ")[1] for line in caught.value.complaints}
    assert found == {words, "events[0].at"}


def test_a_pod_pasted_from_a_cluster() -> None:
    """Its node, gates, status and placement were its own."""
    told = {names.PLACEMENT: "{}", names.ACTUAL: "{}", "x": "y"}
    template = manifest(
        {"name": "old", "uid": "1", "annotations": told},
        nodeName="elsewhere",
        schedulingGates=[{"name": "hold"}],
        tolerations=[{"operator": "Exists", "effect": None}],
        # As kubectl gives them; the value is what counts.
        priorityClassName="high",
        priority=7,
    )
    found = read_scenario(scenario({**template, "status": {"phase": "Failed"}}), "f")
    assert places(play(found, found.choice)) == {"p": "n card 0"}
    (arrive,) = [step.what for step in found.steps if isinstance(step.what, Arrive)]
    assert arrive.pod["metadata"]["annotations"] == {"x": "y"}
    assert arrive.priority == 7


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
    "whole number": (manifest(priority="high"), "spec.priority: must be a whole numbe"),
    "class": (
        manifest(priorityClassName="high"),
        'spec.priorityClassName: is "high", and a scenario has no priority classes;',
    ),
}


@pytest.mark.parametrize(
    ("template", "words"), WRONG_TEMPLATES.values(), ids=WRONG_TEMPLATES
)
def test_a_template_is_reported_by_its_fields(template: Json, words: str) -> None:
    refused(scenario(template), f"2: pods[0].template: {words}")


TWO_NODES = """nodes: [{name: a, cards: 1x8GiB}, {name: b, cards: 1x8GiB}]
pods: [{name: p, units: 20, at: 3}]
events:
"""
WRONG_EVENTS = {
    "removed twice": (
        "- {at: 1, remove: a}\n- {at: 2, remove: a}",
        "5: events[1].remove: there is no node a any more: it was removed at 1",
    ),
    "drained after": (
        "- {at: 2, drain: a}\n- {at: 1, remove: a}",
        "4: events[0].drain: there is no node a any more: it was removed at 1",
    ),
    "too early": (
        "- {at: 10, add: {name: c}}\n- {at: 5, drain: c}",
        "5: events[1].drain: there is no node c yet: it comes at 10 s; this is",
    ),
    "there": (
        "- {at: 2, add: {name: a}}\n- {at: 9, remove: a}",
        "4: events[0].add: there is a node a already",
    ),
    "no such pod": ("- {delete: x}", "4: events[0].delete: there is no pod def"),
    "other space": ("- {at: 9, delete: x/p}", "4: events[0].delete: there is n"),
    "pod to come": (
        "- {at: 2, delete: p}",
        "4: events[0].delete: there is no pod default/p yet: it comes at 3 s",
    ),
    "deleted twice": (
        "- {at: 4, delete: p}\n- {at: 5, delete: p}",
        "5: events[1].delete: there is no pod default/p any more: it was del",
    ),
    "many": ("- {add: {name: c, count: 20001}}", '4: events[0].add.count: is "20001";'),
}


@pytest.mark.parametrize(("events", "words"), WRONG_EVENTS.values(), ids=WRONG_EVENTS)
def test_what_cannot_happen_then(events: str, words: str) -> None:
    refused(TWO_NODES + events, words)


def ran(text: str) -> PolicyRun:
    scenario = read_scenario(text, "f.yaml")
    return run_policy(scenario, scenario.choice)


def test_a_pod_is_followed_by_its_first_name() -> None:
    """Deleted after two moves; each pod counts once, by what came of it last."""
    events = """
- {at: 4, remove: a}
- {at: 5, add: {name: a, cards: 1x8GiB}}
- {at: 6, drain: b}
- {at: 7, delete: p}
"""
    text = TWO_NODES + events + "expect: {placed: 1, refused: 0, pods: {p: a card 0}}"
    done = ran(text)
    found = outcomes(done.played)
    assert list(found) == ["p", "p-moved-1", "p-moved-2"]
    assert (found["p-moved-2"].left_s, found["p-moved-2"].first) == (7, "p")
    assert (done.pods, done.placed, done.moved, done.wrong) == (1, 1, 1, ())
    assert done.played.end.held_units == 0
    assert done.played.end.arrived_units == 20


def test_a_moved_pod_without_room_is_not_placed() -> None:
    text = TWO_NODES + "- {at: 4, drain: a}\n- {at: 4, drain: b}\n"
    done = ran(text + "expect: {placed: 0, refused: 1, pods: {p: nowhere}}")
    assert (done.pods, done.placed, done.moved, done.wrong) == (1, 0, 1, ())
    text += "- {at: 9, delete: p}"
    assert ran(text).counts[OutcomeKind.LEFT] == 1, "deleted while it waited"


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
    done = ran(text)
    assert list(outcomes(done.played)) == [
        *("p", "more-0", "p-moved-2", "more-0-moved-3", "p-moved-1", "more-1")
    ]
    cluster = done.played.cluster
    assert count_room(cluster, read_size("2"), lambda _done, _most: None).number == 3


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
    *_, webhook, others = make_report(scenario, []).not_played
    assert webhook.startswith("the webhook: it gives 1 core to a container")
    assert others.endswith("on whatever nodes: nvidia.com/gpu")
    plain = read_scenario(TWO_NODES + " []", "f.yaml")
    assert len(make_report(plain, []).not_played) == 2
