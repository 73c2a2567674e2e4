"""A scenario from its YAML file; ``docs/simulator.md`` describes the format. Pure."""

from collections.abc import Iterator

from gpushare.domain.model import NodeName
from gpushare.domain.policies import CARD_ORDERS, POLICIES, Choice
from gpushare.kube.cluster import Json
from gpusharectl.simulator.nodefields import read_nodes
from gpusharectl.simulator.podfields import Group, read_group
from gpusharectl.simulator.scenario import (
    Arrive,
    Drain,
    Expected,
    Happening,
    Join,
    Leave,
    Scenario,
    Step,
)
from gpusharectl.simulator.yamlfields import Entry
from gpusharectl.simulator.yamltimes import moment

MOST_PODS = 200_000
MOST_NODES = 20_000
_EVENTS = ("drain", "remove", "add", "delete")


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
    steps = [*_arrivals(top, groups), *_events(top, {_name(node) for node in nodes})]
    return Scenario(
        name=top.text("name", file),
        nodes=tuple(nodes),
        steps=tuple(sorted(steps, key=lambda step: step.at_s)),
        choice=_choice(top),
        waits=top.flag("wait", default=True),
        expected=_expected(top, _names(groups)),
    )


def _choice(top: Entry) -> Choice:
    plain = Choice()
    policy = top.one_of("policy", POLICIES, plain.default)
    wanted = top.one_of("card_order", dict.fromkeys(CARD_ORDERS), plain.card_order)
    order = next(one for one in CARD_ORDERS if one == wanted)
    return Choice(policy, order)


def _nodes(top: Entry) -> list[Json]:
    found: list[Json] = []
    seen: set[str] = set()
    for entry in top.entries("nodes"):
        for node in read_nodes(entry):
            if _name(node) in seen:
                raise entry.wrong("name", f"there is a node {_name(node)} already")
            seen.add(_name(node))
            found.append(node)
            if len(found) > MOST_NODES:
                raise entry.wrong("count", f"these are more than {MOST_NODES} nodes")
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
            yield Step(group.at_s + number * group.every_s, arrive)


def _names(groups: list[Group]) -> set[str]:
    return {group.name_of(n) for group in groups for n in range(group.count)}


def _events(top: Entry, nodes: set[str]) -> Iterator[Step]:
    known = set(nodes)
    for entry in top.entries("events"):
        entry.known("at", *_EVENTS)
        told = [key for key in _EVENTS if entry.has(key)]
        if len(told) != 1:
            raise entry.wrong("at", f"needs just one of {', '.join(_EVENTS)} beside it")
        at_s = moment(entry, "at", 0.0)
        for what in _happenings(entry, told[0], known):
            yield Step(at_s, what)


def _happenings(entry: Entry, kind: str, known: set[str]) -> Iterator[Happening]:
    if kind == "add":
        for node in read_nodes(entry.entry("add")):
            if _name(node) in known:
                raise entry.wrong("add", f"there is a node {_name(node)} already")
            known.add(_name(node))
            yield Join(node)
        return
    name = entry.text(kind)
    if kind == "delete":
        space, slash, pod = name.rpartition("/")
        yield Leave(space if slash else "default", pod)
    elif name not in known:
        raise entry.wrong(kind, f"there is no node {name}")
    else:
        yield Drain(name, gone=kind == "remove")


def _expected(top: Entry, pods: set[str]) -> Expected:
    if not top.has("expect"):
        return Expected()
    entry = top.entry("expect")
    entry.known("placed", "refused", "pods")
    where: dict[str, str] = {}
    if entry.has("pods"):
        wanted = entry.entry("pods")
        for pod in wanted.fields():
            if pod not in pods:
                raise wanted.wrong(pod, "there is no such pod in this scenario")
            where[pod] = wanted.text(pod)
    return Expected(
        entry.integer("placed") if entry.has("placed") else None,
        entry.integer("refused") if entry.has("refused") else None,
        where,
    )


def _name(node: Json) -> NodeName:
    return NodeName(node["metadata"]["name"])
