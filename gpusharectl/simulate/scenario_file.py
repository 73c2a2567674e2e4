"""A scenario from its YAML file; ``docs/simulator.md`` describes the format. Pure.

Nodes as a scenario writes them. Pure.

Events as a scenario writes them, looked at in the order of time. Pure.

What should come of a scenario, as its file writes it. Pure.

Pods as a scenario writes them. Pure.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import orjson

from gpushare.domain.model import CORES_PER_CARD, Card, units_of
from gpushare.domain.policies import CARD_ORDERS, POLICIES, Choice
from gpushare.domain.refusal import Refusal, users_words
from gpushare.kube import codec, words
from gpushare.kube.cluster import Json
from gpushare.kube.codec import refusal_text
from gpushare.kube.json_reader import Malformed
from gpusharectl.simulate import synthetic
from gpusharectl.simulate.scenario import (
    Arrive,
    Drain,
    Expected,
    Join,
    Leave,
    Scenario,
    Step,
    stretch,
    whole_ms,
)
from gpusharectl.simulate.synthetic import playable
from gpusharectl.simulate.yaml_reader import MOST, Entry, moment, quantity

MOST_CARDS = 64
MOST_NODES = 20_000
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,200}[a-z0-9])?")
_TERM = re.compile(r"(\d{1,3})x(\d{1,9})(MiB|GiB)")
_MIB = {"MiB": 1, "GiB": 1024}
_Size = tuple[int, str]
"""Units of a card, and its model."""


def read_nodes(entry: Entry) -> Iterator[Json]:
    """Read one entry of ``nodes``: so many nodes alike.

    Their names are the entry's, with a number behind it where it counts more than one.
    """
    entry.known(
        *("name", "count", "cards", "model", "cpu", "memory", "pods"),
        *("labels", "unschedulable"),
    )
    name = read_name(entry)
    count = read_count(entry)
    sizes = _sizes(entry)
    host = synthetic.Host(
        quantity(entry, "cpu"),
        quantity(entry, "memory"),
        entry.integer("pods") if entry.has("pods") else None,
        read_labels(entry, "labels"),
        entry.flag("unschedulable", default=False),
    )
    for number in range(count):
        own = f"{name}-{number + 1}" if entry.has("count") else name
        cards = [_card(own, index, size) for index, size in enumerate(sizes)]
        yield synthetic.node(own, cards, host)


def read_count(entry: Entry) -> int:
    """Read of how many nodes an entry tells, 1 where it does not say."""
    count = entry.integer("count", 1)
    if count > MOST_NODES:
        raise entry.wrong("count", f"is {count}; it may be {MOST_NODES}")
    return count


def read_name(entry: Entry, key: str = "name", default: str | None = None) -> str:
    """Read the name of a node, pod or namespace, or what it begins with."""
    name = entry.text(key, default)
    if not _NAME.fullmatch(name):
        problem = f'is "{name}"; a name has small letters, digits, - and .'
        raise entry.wrong(key, problem)
    return name


def read_labels(entry: Entry, key: str) -> dict[str, str]:
    """Read labels, none where the field is not there."""
    if not entry.has(key):
        return {}
    told = entry.entry(key)
    return {label: told.text(label) for label in told.fields()}


def _sizes(entry: Entry) -> list[_Size]:
    model = entry.text("model", "")
    if not entry.has("cards"):
        return []
    if entry.is_text("cards"):
        found = _terms(entry, model)
    else:
        found = [size for one in entry.entries("cards") for size in _cards(one, model)]
    if len(found) > MOST_CARDS:
        raise entry.wrong("cards", f"these are {len(found)}; it may be {MOST_CARDS}")
    return found


def _terms(entry: Entry, model: str) -> list[_Size]:
    """Read ``8x24GiB`` or ``1x24259MiB,2x7611MiB``, as --simulated-cards has it."""
    found: list[_Size] = []
    text = entry.text("cards")
    for term in text.split(","):
        match = _TERM.fullmatch(term.strip())
        if match is None:
            raise entry.wrong(
                "cards",
                f'is "{text}"; write 8x24GiB for eight cards of 24 GiB, or '
                "1x24259MiB,2x7611MiB, or a list of {count, units, model}",
            )
        if not int(match[1]):
            raise entry.wrong(
                "cards", f'"{text}": give 1 card or more, or leave the field out'
            )
        units = units_of(int(match[2]) * _MIB[match[3]])
        if not units:
            raise entry.wrong("cards", f'"{text}": a card has at least 256 MiB')
        found += [(units, model)] * int(match[1])
    return found


def _cards(entry: Entry, model: str) -> list[_Size]:
    entry.known("count", "units", "model")
    size = entry.integer("units", least=1)
    count = entry.integer("count", 1, least=1)
    if count > MOST_CARDS:
        raise entry.wrong("count", f"is {count}; it may be {MOST_CARDS}")
    return [(size, entry.text("model", model))] * count


def _card(node: str, index: int, size: _Size) -> Card:
    return synthetic.card(node, index, *size)


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


_MOST_SPACES = 3


def read_expected(top: Entry, pods: Collection[PodName]) -> Expected:
    """Read ``expect``, nothing where it is not there; ``pods`` are those that come."""
    if not top.has("expect"):
        return Expected()
    entry = top.entry("expect")
    entry.known("placed", "refused", "pods")
    return Expected(
        entry.integer("placed") if entry.has("placed") else None,
        entry.integer("refused") if entry.has("refused") else None,
        _places(entry.entry("pods"), pods) if entry.has("pods") else {},
    )


def _places(wanted: Entry, pods: Collection[PodName]) -> dict[PodName, str]:
    spaces: dict[str, list[str]] = {}
    for space, name in pods:
        spaces.setdefault(name, []).append(space)
    where: dict[PodName, str] = {}
    for told in wanted.fields():
        key = _pod(wanted, told, spaces)
        if key in where:
            raise wanted.wrong(told, f"{'/'.join(key)} is there twice; give it once")
        where[key] = wanted.text(told)
    return where


def _pod(wanted: Entry, told: str, spaces: dict[str, list[str]]) -> PodName:
    """Find the pod of this name; one without a namespace must be the only one."""
    space, slash, name = told.rpartition("/")
    there = spaces.get(name, [])
    if not there or (slash and space not in there):
        raise wanted.wrong(told, "there is no such pod in this scenario")
    if not slash and len(there) > 1:
        found = words.listed(sorted(there), _MOST_SPACES)
        problem = f"there are {len(there)} pods of this name, in {found}"
        raise wanted.wrong(told, f"{problem}; give NAMESPACE/POD")
    return (space if slash else there[0], name)


_SHORT = (
    *("units", "cores", "cpu", "memory", "models", "uuids", "policy"),
    *("priority", "node_selector"),
)
_LEAST_PRIORITY = -(2**31)
"""Kubernetes has 32 bits for it; the most is a user's, 1,000,000,000."""
_WHEN = ("name", "namespace", "count", "at", "every", "lasts")


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that are all alike, and come one after the other."""

    entry: Entry
    namespace: str
    name: str
    template: Json
    count: int
    numbered: bool
    at_s: float
    every_s: float
    lasts_s: float | None

    def name_of(self, number: int) -> str:
        """Name the pod of this number, from 0."""
        return f"{self.name}-{number + 1}" if self.numbered else self.name

    def comes_s(self, number: int) -> float:
        """Give the second in which the pod of this number comes."""
        return whole_ms(self.at_s + number * self.every_s)

    def pod(self, name: str) -> Json:
        """Make one of the pods."""
        return synthetic.named_after(self.template, self.namespace, name)


def read_group(entry: Entry) -> Group:
    """Read one entry of ``pods``; what no card could ever meet is told at once."""
    entry.known(*_WHEN, *_SHORT, "template")
    name = read_name(entry)
    template = _template(entry) if entry.has("template") else _short(entry)
    namespace = read_name(entry, "namespace", _namespace(template))
    group = Group(
        entry,
        namespace,
        name,
        template,
        entry.integer("count", 1),
        entry.has("count"),
        moment(entry, "at", 0.0),
        moment(entry, "every", 0.0),
        moment(entry, "lasts", 0.0) if entry.has("lasts") else None,
    )
    _check(group)
    _check_length(group)
    return group


def _namespace(template: Json) -> str:
    return str((template.get("metadata") or {}).get("namespace") or "default")


def _short(entry: Entry) -> Json:
    policy = entry.one_of("policy", POLICIES, "") if entry.has("policy") else ""
    units = entry.integer("units", 0)
    asked = synthetic.Asked(
        units=units,
        # As the webhook has it: who asks for memory has a core of it, at least.
        cores=entry.integer("cores", 1 if units else 0),
        cpu=quantity(entry, "cpu"),
        memory=quantity(entry, "memory"),
        models=tuple(entry.texts("models")),
        uuids=tuple(entry.texts("uuids")),
        policy=policy,
        priority=entry.integer("priority", 0, least=_LEAST_PRIORITY),
        node_selector=read_labels(entry, "node_selector"),
    )
    if asked.cores > CORES_PER_CARD and asked.cores % CORES_PER_CARD:
        raise entry.wrong(
            "cores",
            f"is {asked.cores}; 1 to 99 are a share of one card, 100, 200, … whole "
            "cards",
        )
    return synthetic.pod("default", "pod", asked)


def _template(entry: Entry) -> Json:
    both = [key for key in _SHORT if entry.has(key)]
    if both:
        raise entry.wrong(both[0], "stands in the template, or here, but not in both")
    raw = entry.plain("template")
    try:
        found = orjson.loads(orjson.dumps(raw))
    except (TypeError, orjson.JSONEncodeError) as error:
        raise entry.wrong("template", f"is no Kubernetes object: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("spec"), Mapping):
        raise entry.wrong("template", "needs a spec, as a Pod or a Deployment has it")
    inner = found["spec"].get("template")
    try:
        pod = playable(inner if isinstance(inner, dict) and "spec" in inner else found)
    except Malformed as error:
        raise entry.wrong("template", str(error)) from error
    priority_class = pod["spec"].get("priorityClassName")
    if priority_class and "priority" not in pod["spec"]:
        raise entry.wrong(
            "template",
            f'spec.priorityClassName: is "{users_words(str(priority_class))}", and a '
            "scenario has no classes; give the value of that class as spec.priority",
        )
    return pod


def _check_length(group: Group) -> None:
    """Refuse pods that come, or end, beyond the times that a scenario knows."""
    length = group.at_s + group.every_s * group.count + (group.lasts_s or 0.0)
    if length > MOST:
        times = {"every": group.every_s, "lasts": group.lasts_s, "at": group.at_s}
        key = next(key for key, told_s in times.items() if told_s)
        raise group.entry.wrong(
            key, f"at + every x count + lasts is {length:.15g} s; it may be {MOST} s"
        )


def _check(group: Group) -> None:
    """Read a pod as the extender would: so its complaint has a line, too."""
    pod = group.pod(group.name_of(0))
    pod["metadata"]["uid"] = "checked"
    where = "template" if group.entry.has("template") else "name"
    try:
        asked = codec.pod_request(pod, codec.pod_ref(pod))
    except Malformed as error:
        raise group.entry.wrong(where, str(error)) from error
    if isinstance(asked, Refusal):
        raise group.entry.wrong(where, refusal_text(asked))


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
