"""Events as a scenario writes them, looked at in the order of time. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpushare.kube.cluster import Json
from gpusharectl.simulator.durations import stretch
from gpusharectl.simulator.nodefields import MOST_NODES, read_nodes
from gpusharectl.simulator.scenario import Drain, Join, Leave, Step
from gpusharectl.simulator.yamlfields import Entry
from gpusharectl.simulator.yamltimes import moment

_KINDS = ("drain", "remove", "add", "delete")
PodName = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class _Event:
    """One entry of ``events``; ``nodes`` are those that it adds."""

    at_s: float
    entry: Entry
    kind: str
    nodes: tuple[Json, ...] = ()


@dataclass(slots=True)
class _There:
    """What is there at a moment, and when the rest comes, or went; in seconds."""

    nodes: set[str]
    pods: Mapping[PodName, float]
    coming: dict[str, float]
    removed: dict[str, float] = field(default_factory=dict)
    deleted: dict[PodName, float] = field(default_factory=dict)


def read_events(
    top: Entry, nodes: set[str], pods: Mapping[PodName, float]
) -> Iterator[Step]:
    """Read what happens, by time; ``pods`` are those that come, with the second.

    Of two events of the same time the one that stands first happens first, and pods
    come before both.
    """
    events = sorted(map(_event, top.entries("events")), key=lambda event: event.at_s)
    if (total := len(nodes) + sum(len(event.nodes) for event in events)) > MOST_NODES:
        raise top.wrong("events", f"with these {total} nodes; it may be {MOST_NODES}")
    later = ((one, event.at_s) for event in reversed(events) for one in event.nodes)
    there = _There(set(nodes), pods, {name_of(one): at_s for one, at_s in later})
    for event in events:
        yield from _steps(event, there)


def name_of(node: Json) -> str:
    """Give a node's name."""
    return str(node["metadata"]["name"])


def _event(entry: Entry) -> _Event:
    entry.known("at", *_KINDS)
    told = [key for key in _KINDS if entry.has(key)]
    if len(told) != 1:
        raise entry.wrong("at", f"needs just one of {', '.join(_KINDS)} beside it")
    nodes = tuple(read_nodes(entry.entry("add"))) if told[0] == "add" else ()
    return _Event(moment(entry, "at", 0.0), entry, told[0], nodes)


def _steps(event: _Event, there: _There) -> Iterator[Step]:
    if event.kind == "add":
        yield from _added(event, there)
    elif event.kind == "delete":
        yield _deleted(event, there)
    else:
        yield _drained(event, there)


def _added(event: _Event, there: _There) -> Iterator[Step]:
    for node in event.nodes:
        name = name_of(node)
        if name in there.nodes:
            raise event.entry.wrong("add", f"there is a node {name} already")
        there.nodes.add(name)
        yield Step(event.at_s, Join(node))


def _drained(event: _Event, there: _There) -> Step:
    name = event.entry.text(event.kind)
    if name not in there.nodes:
        problem = f"there is no node {name}"
        if name in there.removed:
            problem += f" any more: it was removed at {stretch(there.removed[name])}"
        elif name in there.coming:
            problem += f" yet: it comes at {stretch(there.coming[name])}"
        now = f"; this is at {stretch(event.at_s)}"
        raise event.entry.wrong(event.kind, problem + now)
    gone = event.kind == "remove"
    if gone:
        there.nodes.remove(name)
        there.removed[name] = event.at_s
    return Step(event.at_s, Drain(name, gone=gone))


def _deleted(event: _Event, there: _There) -> Step:
    """A pod that has ended by then is no mistake: when it does nobody can tell here."""
    text = event.entry.text("delete")
    space, slash, name = text.rpartition("/")
    key = (space if slash else "default", name)
    full = "/".join(key)
    if key not in there.pods:
        raise event.entry.wrong(
            "delete", f"there is no pod {full} in this scenario; give NAMESPACE/POD"
        )
    if there.pods[key] > event.at_s:
        came, now = stretch(there.pods[key]), stretch(event.at_s)
        problem = f"there is no pod {full} yet: it comes at {came}; this is at {now}"
        raise event.entry.wrong("delete", problem)
    if key in there.deleted:
        before = stretch(there.deleted[key])
        problem = f"there is no pod {full} any more: it was deleted at {before}"
        raise event.entry.wrong("delete", problem)
    there.deleted[key] = event.at_s
    return Step(event.at_s, Leave(*key))
