"""Read a scenario from its YAML file; ``docs/simulator.md`` describes the format. Pure.

The classes are the fields of the file. What concerns several fields, or the order of
events in time, is checked once all fields are read.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    model_validator,
)

from gpushare.domain import topologies
from gpushare.domain.eviction.moves import MOST_MOVES
from gpushare.domain.links import with_scores
from gpushare.domain.model import CORES_PER_CARD, clean_text, units_of
from gpushare.domain.policies import CARD_ORDERS, POLICIES, PolicyChoice
from gpushare.domain.quantity import NotAQuantity
from gpushare.kube import words
from gpushare.kube.annotations import MOST_CARDS
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpushare.yaml_file import (
    Flag,
    Location,
    Text,
    YamlFile,
    YamlValue,
    bounded_number,
    simplify_yaml,
)
from gpusharectl.simulator import synthetic
from gpusharectl.simulator.scenario import (
    Arrive,
    Drain,
    ExpectedResult,
    Join,
    Leave,
    PodName,
    Scenario,
    ScenarioStep,
    format_duration,
    parse_seconds,
    round_to_ms,
)
from gpusharectl.simulator.synthetic import check_amount, read_template

MOST = 10**9
"""The most of any number or time (seconds) in a scenario."""
MOST_NODES = 20_000
MOST_PODS = 200_000

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,200}[a-z0-9])?")
_TERM = re.compile(r"(\d{1,3})x(\d{1,9})(MiB|GiB)")
_MIB = {"MiB": 1, "GiB": 1024}
_LEAST_PRIORITY = -(2**31)
"""Kubernetes has 32 bits for it; a user's may be 1,000,000,000 at most."""
_MOST_SPACES = 3
_MOST_MOVES = 20


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f'is "{text}"; a name has small letters, digits, - and .')
    return text


def _seconds(text: str) -> float:
    parsed_s = parse_seconds(text)
    if parsed_s is None:
        raise ValueError(f'is "{text}"; give a time such as 90s, 10m or 1h30m')
    if parsed_s > MOST:
        raise ValueError(f'is "{clean_text(text)}"; it may be {MOST} s in all')
    return parsed_s


def _quantity(text: str) -> str:
    try:
        check_amount(text)
    except NotAQuantity as error:
        raise ValueError(
            f'is "{text}"; give a quantity such as 4, 500m or 16Gi'
        ) from error
    return text


def _one_of(known: Collection[str]) -> AfterValidator:
    def check(text: str) -> str:
        if text not in known:
            raise ValueError(f'is "{text}"; known are {", ".join(known)}')
        return text

    return AfterValidator(check)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _cores(cores: int) -> int:
    if cores > CORES_PER_CARD and cores % CORES_PER_CARD:
        raise ValueError(
            f"is {cores}; 1 to 99 are a share of one card, 100, 200, … whole cards"
        )
    return cores


def _card_terms(value: object) -> object:
    """Read ``8x24GiB`` or ``1x24259MiB,2x7611MiB``, as --simulated-cards does."""
    if not isinstance(value, str):
        return value
    cards = []
    for term in value.split(","):
        match = _TERM.fullmatch(term.strip())
        if match is None:
            raise ValueError(
                f'is "{value}"; write 8x24GiB for eight cards of 24 GiB, or '
                "1x24259MiB,2x7611MiB, or a list of {count, units, model}"
            )
        units = units_of(int(match[2]) * _MIB[match[3]])
        if not int(match[1]):
            raise ValueError(f'"{value}": give 1 card or more, or leave the field out')
        if not units:
            raise ValueError(f'"{value}": a card has at least 256 MiB')
        cards += [{"units": str(units)}] * min(int(match[1]), MOST_CARDS + 1)
    return cards


def _few_cards(cards: "tuple[CardEntry, ...]") -> "tuple[CardEntry, ...]":
    if sum(card.count for card in cards) > MOST_CARDS:
        raise ValueError(f"these are too many; a node has at most {MOST_CARDS} cards")
    return cards


def _links(value: object, info: ValidationInfo) -> tuple[int, ...]:
    """Read the name of a topology, or a row of pair scores for each card."""
    cards = info.data.get("cards")
    if cards is None:
        # They are wrong themselves, and complained about.
        return ()
    scores = topologies.score_topology(
        simplify_yaml(value), sum(card.count for card in cards)
    )
    if isinstance(scores, str):
        raise ValueError(scores)  # noqa: TRY004
    return scores


def _template(value: object) -> Json:
    raw = simplify_yaml(value)
    try:
        manifest = orjson.loads(orjson.dumps(raw))
    except (TypeError, orjson.JSONEncodeError) as error:
        raise ValueError(f"is not a Kubernetes object: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("spec"), Mapping):
        raise ValueError("needs a spec, as a Pod or a Deployment has")  # noqa: TRY004
    inner = manifest["spec"].get("template")
    try:
        pod = read_template(
            inner if isinstance(inner, dict) and "spec" in inner else manifest
        )
    except Malformed as error:
        raise ValueError(str(error)) from error
    priority_class = pod["spec"].get("priorityClassName")
    if priority_class and "priority" not in pod["spec"]:
        raise ValueError(
            f'spec.priorityClassName: is "{clean_text(str(priority_class))}", and a '
            "scenario has no priority classes; give the value as spec.priority"
        )
    return pod


_Name = Annotated[Text, AfterValidator(_name)]
_Count = Annotated[int, bounded_number(0, MOST)]
_Seconds = Annotated[float, BeforeValidator(_seconds), BeforeValidator(str)]
_Quantity = Annotated[Text, AfterValidator(_quantity)]
_Texts = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
_Labels = dict[str, Text]
_Policy = Annotated[Text, _one_of(POLICIES)]


class _Entry(YamlValue):
    """Fields of which one that is null counts as left out."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:  # noqa: ANN401
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


class CardEntry(_Entry):
    """Cards of one size."""

    count: Annotated[int, bounded_number(1, MOST_CARDS)] = 1
    units: Annotated[int, bounded_number(1, MOST)]
    model: Text = ""


class _Several(_Entry):
    """Things that are alike; with a ``count`` their names have a number."""

    name: _Name
    count: _Count | None = None

    @property
    def number(self) -> int:
        """Return how many these are."""
        return 1 if self.count is None else self.count

    @property
    def names(self) -> Iterator[str]:
        """Yield the name of each."""
        for number in range(1, self.number + 1):
            yield self.name if self.count is None else f"{self.name}-{number}"


class NodeEntry(_Several):
    """Nodes that are alike."""

    count: Annotated[int | None, bounded_number(0, MOST_NODES)] = None
    cards: Annotated[
        tuple[CardEntry, ...], BeforeValidator(_card_terms), AfterValidator(_few_cards)
    ] = ()
    links: Annotated[tuple[int, ...], BeforeValidator(_links)] = ()
    model: Text = ""
    cpu: _Quantity = ""
    memory: _Quantity = ""
    pods: _Count | None = None
    labels: _Labels = Field(default_factory=dict)
    unschedulable: Flag = False

    def nodes(self) -> Iterator[Json]:
        """Yield the nodes."""
        host = synthetic.HostSpec(
            self.cpu, self.memory, self.pods, self.labels, self.unschedulable
        )
        sizes = [
            (card.units, card.model or self.model)
            for card in self.cards
            for _ in range(card.count)
        ]
        for name in self.names:
            cards = [
                synthetic.make_card(name, index, *size)
                for index, size in enumerate(sizes)
            ]
            linked = with_scores(cards, self.links) if self.links else cards
            yield synthetic.make_node(name, linked, host)


class PodEntry(_Several):
    """Pods that are alike and come one after the other."""

    namespace: _Name = ""
    at: _Seconds = 0.0
    every: _Seconds = 0.0
    lasts: _Seconds | None = None
    units: _Count = 0
    cores: Annotated[int | None, AfterValidator(_cores), bounded_number(0, MOST)] = None
    cpu: _Quantity = ""
    memory: _Quantity = ""
    models: _Texts = ()
    uuids: _Texts = ()
    policy: _Policy = ""
    priority: Annotated[int, bounded_number(_LEAST_PRIORITY, MOST)] = 0
    node_selector: _Labels = Field(default_factory=dict)
    template: Annotated[Json | None, BeforeValidator(_template)] = None

    @property
    def coming(self) -> Iterator[tuple[PodName, float]]:
        """Yield namespace and name of each pod, and the second in which it comes."""
        metadata = (self.template or {}).get("metadata") or {}
        space = self.namespace or str(metadata.get("namespace") or "default")
        for number, name in enumerate(self.names):
            yield (space, name), round_to_ms(self.at + number * self.every)

    def manifest(self) -> Json:
        """Return the manifest that all of them have."""
        if self.template is not None:
            return self.template
        values = {
            field_.name: getattr(self, field_.name)
            for field_ in fields(synthetic.PodSpec)
        }
        if self.cores is None:
            # The webhook does the same: memory comes with one core at least.
            values["cores"] = min(self.units, 1)
        return synthetic.make_pod("default", "pod", synthetic.PodSpec(**values))

    def complaints(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong between fields: a field and the problem."""
        when = {"name", "namespace", "count", "at", "every", "lasts", "template"}
        if self.template is not None and (both := self.model_fields_set - when):
            field_name = next(name for name in PodEntry.model_fields if name in both)
            yield field_name, "stands in the template, or here, but not in both"
            return
        length = self.at + self.every * self.number + (self.lasts or 0.0)
        if length > MOST:
            times = {"every": self.every, "lasts": self.lasts, "at": self.at}
            problem = f"at + every x count + lasts is {length:.15g} s"
            longest = next(key for key, told_s in times.items() if told_s)
            yield longest, f"{problem}; it may be {MOST} s"
        pod = synthetic.instantiate_pod(self.manifest(), "default", self.name)
        if wrong := synthetic.find_refusal(pod):
            yield "name" if self.template is None else "template", wrong


class EventEntry(_Entry):
    """One thing that happens: one field beside ``at``."""

    at: _Seconds = 0.0
    drain: Text = ""
    remove: Text = ""
    add: NodeEntry | None = None
    delete: Text = ""

    @property
    def kinds(self) -> list[str]:
        """Return what it says that happens: must be one."""
        return [kind for kind in EVENTS if kind in self.model_fields_set]


EVENTS = ("drain", "remove", "add", "delete")


class ExpectEntry(_Entry):
    """What should come of the scenario."""

    placed: _Count | None = None
    refused: _Count | None = None
    pods: _Labels = Field(default_factory=dict)


class MovesEntry(_Entry):
    """That pods may be moved to make room for one that waits."""

    most: Annotated[int, bounded_number(1, _MOST_MOVES)] = MOST_MOVES


class _Top(_Entry):
    """The fields of the file itself; its entries are read one by one."""

    name: Text = ""
    policy: _Policy = PolicyChoice().default
    card_order: Annotated[Text, _one_of(tuple(CARD_ORDERS))] = PolicyChoice().card_order
    wait: Flag = True
    moves: MovesEntry | None = None
    nodes: tuple[Any, ...]
    pods: tuple[Any, ...] = ()
    events: tuple[Any, ...] = ()
    expect: Any = None


E = TypeVar("E", bound=_Entry)


class _Entries:
    """The entries of a file that are right, each by its place in its list.

    ``sound`` has the lists without a wrong entry, and ``top`` if the file's own fields
    are right. What depends on a part that is wrong is not judged.
    """

    def __init__(self, file: YamlFile) -> None:
        self.file = file
        self._raw = file.root if isinstance(file.root, dict) else {}
        self.sound: set[str] = set()
        self.top = file.part(_Top, file.root)
        self.nodes = self._read("nodes", NodeEntry)
        self.pods = self._read("pods", PodEntry)
        self.events = self._read("events", EventEntry)
        raw = self._raw.get("expect")
        expected = {} if raw is None else raw
        self.expect = file.part(ExpectEntry, expected, ("expect",)) or ExpectEntry()

    def _read(self, key: str, model: type[E]) -> dict[int, E]:
        raw = self._raw.get(key)
        every = raw if isinstance(raw, list) else []
        entries = {}
        for number, value in enumerate(every):
            entry = self.file.part(model, value, (key, number))
            if entry is not None:
                entries[number] = entry
        if self.top and len(entries) == len(every):
            self.sound.add(key)
        return entries


def read_scenario(text: str | bytes, name: str) -> Scenario:
    """Read a scenario; ``YamlError`` has all complaints with file, line and field."""
    file = YamlFile(text, name, example="docs/simulator.md has an example")
    entries = _Entries(file)
    _check(entries)
    nodes = [node for entry in entries.nodes.values() for node in entry.nodes()]
    pods = {key: at_s for entry in entries.pods.values() for key, at_s in entry.coming}
    there = _names(entries)
    steps = [*_arrivals(entries)]
    if entries.sound >= {"nodes", "pods", "events"}:
        steps += _Events(file, there, pods).steps(entries.events)
    where = {}
    if "pods" in entries.sound:
        where = _places(file, entries.expect.pods, pods)
    file.check()
    top, expect = entries.top, entries.expect
    if top is None:
        raise AssertionError(file)
    order = next(known for known in CARD_ORDERS if known == top.card_order)
    return Scenario(
        name=top.name or name,
        nodes=tuple(nodes),
        steps=tuple(sorted(steps, key=_turn)),
        choice=PolicyChoice(top.policy, order),
        waits=top.wait,
        moves=top.moves.most if top.moves else 0,
        expected=ExpectedResult(expect.placed, expect.refused, where),
    )


def _check(entries: _Entries) -> None:
    """Check single entries, and sizes, before nodes and pods are made of them."""
    file = entries.file
    for number, pod in entries.pods.items():
        for key, problem in pod.complaints():
            file.complain(("pods", number, key), problem)
    if entries.top and entries.top.moves and not entries.top.wait:
        problem = "needs wait: true; a pod that is dropped waits for no room"
        file.complain(("moves",), problem)
    for number, event in entries.events.items():
        if len(event.kinds) != 1:
            problem = f"needs just one of {', '.join(EVENTS)} beside it"
            file.complain(("events", number, "at"), problem)
            entries.sound.discard("events")
    adding = [event.add for event in entries.events.values() if event.add]
    nodes = sum(entry.number for entry in entries.nodes.values())
    added = sum(entry.number for entry in adding)
    pods = sum(entry.number for entry in entries.pods.values())
    for key, what, total, most in (
        ("nodes", "nodes", nodes, MOST_NODES),
        ("events", "nodes with those before", nodes + added, MOST_NODES),
        ("pods", "pods", pods, MOST_PODS),
    ):
        if total > most:
            file.complain((key,), f"these are {total} {what}; it may be {most}")
            file.check()


def _names(entries: _Entries) -> set[str]:
    seen: set[str] = set()
    for number, entry in entries.nodes.items():
        for name in entry.names:
            if name in seen:
                problem = f"there is a node {name} already"
                entries.file.complain(("nodes", number, "name"), problem)
            seen.add(name)
    return seen


def _arrivals(entries: _Entries) -> Iterator[ScenarioStep]:
    seen: set[PodName] = set()
    for place, entry in entries.pods.items():
        manifest = entry.manifest()
        for key, at_s in entry.coming:
            if key in seen:
                problem = f"there is a pod {key[1]} already"
                entries.file.complain(("pods", place, "name"), problem)
            seen.add(key)
            arrive = Arrive(synthetic.instantiate_pod(manifest, *key), entry.lasts)
            yield ScenarioStep(at_s, arrive)


def _turn(step: ScenarioStep) -> tuple[float, bool, int]:
    """Order by time; pods before events, and of pods the most important first."""
    if isinstance(step.what, Arrive):
        return (step.at_s, False, -step.what.priority)
    return (step.at_s, True, 0)


@dataclass(slots=True)
class _Events:
    """The events in the order of time: each must be possible when it happens."""

    file: YamlFile
    nodes: set[str]
    pods: Mapping[PodName, float]
    coming: dict[str, float] = field(default_factory=dict)
    removed: dict[str, float] = field(default_factory=dict)
    deleted: dict[PodName, float] = field(default_factory=dict)

    def steps(self, events: Mapping[int, EventEntry]) -> Iterator[ScenarioStep]:
        """Yield the steps; of two at the same time the first in the file is first."""
        order = sorted(events.items(), key=lambda item: item[1].at)
        for _, event in reversed(order):
            for name in event.add.names if event.add else ():
                self.coming[name] = event.at
        for number, event in order:
            (kind,) = event.kinds
            location = ("events", number, kind)
            if event.add:
                yield from self._added(location, event.at, event.add)
            elif kind == "delete":
                yield self._deleted(location, event.at, event.delete)
            else:
                yield self._drained(location, event.at, event.drain or event.remove)

    def _added(
        self, location: Location, at_s: float, add: NodeEntry
    ) -> Iterator[ScenarioStep]:
        for name, node in zip(add.names, add.nodes(), strict=True):
            if name in self.nodes:
                self.file.complain(location, f"there is a node {name} already")
            self.nodes.add(name)
            yield ScenarioStep(at_s, Join(node))

    def _drained(self, location: Location, at_s: float, name: str) -> ScenarioStep:
        gone = location[-1] == "remove"
        if name not in self.nodes:
            problem = f"there is no node {name}"
            if name in self.removed:
                removed = format_duration(self.removed[name])
                problem += f" any more: it was removed at {removed}"
            elif name in self.coming:
                problem += f" yet: it comes at {format_duration(self.coming[name])}"
            self.file.complain(
                location, f"{problem}; this is at {format_duration(at_s)}"
            )
        elif gone:
            self.nodes.remove(name)
            self.removed[name] = at_s
        return ScenarioStep(at_s, Drain(name, gone=gone))

    def _deleted(self, location: Location, at_s: float, text: str) -> ScenarioStep:
        """Check a deletion; the pod may have ended by then, which nobody knows here."""
        space, slash, name = text.rpartition("/")
        key = (space if slash else "default", name)
        problem = f"there is no pod {'/'.join(key)}"
        if key not in self.pods:
            problem += " in this scenario; give NAMESPACE/POD"
        elif self.pods[key] > at_s:
            came, now = format_duration(self.pods[key]), format_duration(at_s)
            problem += f" yet: it comes at {came}; this is at {now}"
        elif key in self.deleted:
            problem += (
                f" any more: it was deleted at {format_duration(self.deleted[key])}"
            )
        else:
            problem = ""
            self.deleted[key] = at_s
        if problem:
            self.file.complain(location, problem)
        return ScenarioStep(at_s, Leave(*key))


def _places(
    file: YamlFile, wanted: Mapping[str, str], pods: Collection[PodName]
) -> dict[PodName, str]:
    spaces: dict[str, list[str]] = {}
    for space, name in pods:
        spaces.setdefault(name, []).append(space)
    where: dict[PodName, str] = {}
    for text, place in wanted.items():
        space, slash, name = text.rpartition("/")
        there = spaces.get(name, [])
        problem = ""
        if not there or (slash and space not in there):
            problem = "there is no such pod in this scenario"
        elif not slash and len(there) > 1:
            listed = words.listed(sorted(there), _MOST_SPACES)
            problem = f"there are {len(there)} pods of this name, in {listed}"
            problem += "; give NAMESPACE/POD"
        else:
            key = (space if slash else there[0], name)
            if key in where:
                problem = f"{'/'.join(key)} is there twice; give it once"
            where[key] = place
        if problem:
            file.complain(("expect", "pods", text), problem)
    return where
