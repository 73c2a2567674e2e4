"""A scenario from its YAML file; ``docs/simulator.md`` describes the format. Pure."""

from collections.abc import Iterator

from gpushare.domain.policies import CARD_ORDERS, POLICIES, Choice
from gpushare.kube.cluster import Json
from gpusharectl.simulator.eventfields import PodName, name_of, read_events
from gpusharectl.simulator.expectfields import read_expected
from gpusharectl.simulator.nodefields import MOST_NODES, read_count, read_nodes
from gpusharectl.simulator.podfields import Group, read_group
from gpusharectl.simulator.scenario import Arrive, Scenario, Step
from gpusharectl.simulator.yamlfields import Entry

MOST_PODS = 200_000


def read_scenario(text: str, file: str) -> Scenario:
    """Read a scenario; ``ScenarioError`` names file, line and field."""
    top = Entry.parse(text, file)
    top.known(
        "name", "policy", "card_order", "wait", "nodes", "pods", "events", "expect"
    )
    if not top.has("nodes"):
        raise top.wrong("nodes", "is missing; give the nodes that are there")
    nodes = _nodes(top)
    groups = [read_group(entry) for entry in top.entries("pods")]
    there = {name_of(node) for node in nodes}
    steps = [*_arrivals(top, groups), *read_events(top, there, _coming(groups))]
    return Scenario(
        name=top.text("name", file),
        nodes=tuple(nodes),
        steps=tuple(sorted(steps, key=_turn)),
        choice=_choice(top),
        waits=top.flag("wait", default=True),
        expected=read_expected(top, _coming(groups)),
    )


def _turn(step: Step) -> tuple[float, bool, int]:
    """Order by time; pods before events, and of pods the most important first."""
    if isinstance(step.what, Arrive):
        return (step.at_s, False, -step.what.priority)
    return (step.at_s, True, 0)


def _choice(top: Entry) -> Choice:
    plain = Choice()
    policy = top.one_of("policy", POLICIES, plain.default)
    wanted = top.one_of("card_order", dict.fromkeys(CARD_ORDERS), plain.card_order)
    order = next(one for one in CARD_ORDERS if one == wanted)
    return Choice(policy, order)


def _nodes(top: Entry) -> list[Json]:
    found: list[Json] = []
    seen: set[str] = set()
    total = sum(map(read_count, top.entries("nodes")))
    if total > MOST_NODES:
        raise top.wrong("nodes", f"these are {total} nodes; it may be {MOST_NODES}")
    for entry in top.entries("nodes"):
        for node in read_nodes(entry):
            if name_of(node) in seen:
                raise entry.wrong("name", f"there is a node {name_of(node)} already")
            seen.add(name_of(node))
            found.append(node)
    return found


def _arrivals(top: Entry, groups: list[Group]) -> Iterator[Step]:
    seen: set[tuple[str, str]] = set()
    total = sum(group.count for group in groups)
    if total > MOST_PODS:
        raise top.wrong("pods", f"these are {total} pods; it may be {MOST_PODS}")
    for group in groups:
        for number in range(group.count):
            name = group.name_of(number)
            if (group.namespace, name) in seen:
                raise group.entry.wrong("name", f"there is a pod {name} already")
            seen.add((group.namespace, name))
            arrive = Arrive(group.pod(name), group.lasts_s)
            yield Step(group.comes_s(number), arrive)


def _coming(groups: list[Group]) -> dict[PodName, float]:
    """Give the pods by name, each with the second in which it comes."""
    return {
        (group.namespace, group.name_of(number)): group.comes_s(number)
        for group in groups
        for number in range(group.count)
    }
