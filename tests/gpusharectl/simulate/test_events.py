"""Events in the order of time, and pods that are followed by their first names."""

import pytest

from gpushare.yaml_file import YamlError
from gpusharectl.simulate.engine import Outcome, play
from gpusharectl.simulate.result import Run, read_size, reported, rooms, summed
from gpusharectl.simulate.scenario_file import read_scenario
from tests.gpusharectl.simulate.scenes import fates, places

NODES = """nodes: [{name: a, cards: 1x8GiB}, {name: b, cards: 1x8GiB}]
pods: [{name: p, units: 20, at: 3}]
events:
"""
WRONG = {
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


@pytest.mark.parametrize(("events", "words"), WRONG.values(), ids=WRONG)
def test_what_cannot_happen_then(events: str, words: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_scenario(NODES + events, "f.yaml")
    assert str(caught.value).startswith(words)


def ran(text: str) -> Run:
    scenario = read_scenario(text, "f.yaml")
    return summed(scenario, play(scenario, scenario.choice))


def test_a_removed_node_may_come_back() -> None:
    events = "- {at: 1, remove: a}\n- {at: 2, add: {name: a, cards: 1x8GiB}}"
    run = ran(NODES + events)
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
    text = NODES + events + "expect: {placed: 1, refused: 0, pods: {p: a card 0}}"
    run = ran(text)
    found = fates(run.played)
    assert list(found) == ["p", "p-moved-1", "p-moved-2"]
    assert (found["p-moved-2"].left_s, found["p-moved-2"].first) == (7, "p")
    assert (run.pods, run.placed, run.moved, run.wrong) == (1, 1, 1, ())
    assert run.end.held == 0
    assert run.end.arrived == 20


def test_a_moved_pod_without_room_is_not_placed() -> None:
    text = NODES + "- {at: 4, drain: a}\n- {at: 4, drain: b}\n"
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
    assert list(fates(run.played)) == [
        *("p", "more-0", "p-moved-2", "more-0-moved-3", "p-moved-1", "more-1"),
    ]
    (room,) = rooms(run.played.world, [read_size("2")])
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
    (turned,) = ran(text).turned
    assert turned.reasons == {"Insufficient cpu": 1, "Insufficient memory": 1}
    assert turned.nodes == 1


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
    assert others.endswith("whether nodes have them or not: nvidia.com/gpu")
    plain = read_scenario(NODES + " []", "f.yaml")
    assert len(reported(plain, []).not_played) == 2
