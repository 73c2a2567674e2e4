"""Read the public trace openb, order its pods and measure a replay as its paper does.

The trace is Alibaba's ``cluster-trace-gpu-v2023`` (github.com/alibaba/clusterdata),
published with "Beware of Fragmentation" (USENIX ATC 2023). Pure but for the files.

A card has 1000 units, so one unit is one milli, and 100 cores. A share of a card asks
for its milli and one core: with fewer than 100 pods on a card memory always runs out
first. Several cards are asked for as whole ones. Nothing is rounded.

``MADE`` has lists made from the public list ``default``, for mixes that no file has.
``models33``: a third of the pods with cards name the models that they may have, drawn
by the number of cards of each. ``scarce33``: the same, drawn evenly, so that some
models are asked more than there are. ``cpu250``: 2.5 times the pods without cards.
"""

import csv
import io
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from pathlib import Path
from statistics import fmean

from gpushare.domain.model import CORES_PER_CARD
from gpushare.kube.cluster import Json
from gpusharectl.simulator import synthetic
from gpusharectl.simulator.scenario import Arrive, Scenario, ScenarioStep

WHOLE = 1000
"""Milli of one whole card."""
TUNED_LOAD = 1.3
"""The demand of a replay's pods, as a multiple of the capacity."""
SEEDS = tuple(range(42, 52))
"""The seeds of the paper; its figures are the mean over them."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node of the trace."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    model: str


@dataclass(frozen=True, slots=True)
class TracePod:
    """What one pod of the trace asks for."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    """0: no card. 1: a share of a card, or a whole one. 2 and more: whole cards."""
    milli: int
    """Of each card: 0 without a card, 1 to 1000 of one, 1000 of each of several."""
    models: frozenset[str] | None = None
    """The card models that it accepts; None is any."""

    @property
    def demand(self) -> int:
        """Milli over all its cards."""
        return self.cards * self.milli


@dataclass(frozen=True, slots=True)
class Trace:
    """The cluster and the pods of one list, in the order of the files."""

    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]

    @property
    def capacity(self) -> int:
        """Milli of all cards."""
        return WHOLE * sum(node.cards for node in self.nodes)

    def shuffled_nodes(self, seed: int) -> tuple[TraceNode, ...]:
        """Return the nodes in a random order, which is fixed for a seed.

        Of nodes that are equally good the first is taken. The file has all nodes of one
        kind in a row, so some would always be first: that costs the paper's policy a
        point on the list ``cpu200``. In a random order its figures are reached.
        """
        nodes = list(self.nodes)
        random.Random(seed).shuffle(nodes)
        return tuple(nodes)

    def arrivals(self, seed: int, load: float = TUNED_LOAD) -> list[TracePod]:
        """Return the pods in the order of their arrival.

        They are sorted by name, shuffled with the seed, then tuned to a demand of
        ``load`` times the capacity: random pods of the list are added or removed.
        ``ValueError`` if no pod of the list asks for a card.
        """
        if not any(pod.demand for pod in self.pods):
            raise ValueError(
                "no pod of the list asks a card, so no load can be reached"
            )
        dice = random.Random(seed)
        listed = sorted(self.pods, key=lambda pod: pod.name)
        pods = listed.copy()
        dice.shuffle(pods)
        demand, wanted = sum(pod.demand for pod in pods), load * self.capacity
        while demand < wanted:
            pods.append(dice.choice(listed))
            demand += pods[-1].demand
        while demand > wanted and len(pods) > 1:
            left_out = pods.pop(dice.randrange(len(pods)))
            demand -= left_out.demand
        return pods


class Meter:
    """The measure of the paper: the allocated share of all cards over the load."""

    def __init__(self, capacity: int) -> None:
        """Start with an empty cluster of so many milli."""
        self.pods = self.placed = 0
        self._capacity = capacity
        self._arrived = 0
        self._allocated = 0
        self._at: dict[int, list[float]] = {}

    def arrived(self, demand: int, *, placed: bool) -> None:
        """Record one arrival, of so many milli, and whether it was placed."""
        self.pods += 1
        self.placed += placed
        self._arrived += demand
        self._allocated += demand if placed else 0
        load = round(100 * self._arrived / self._capacity)
        self._at.setdefault(load, []).append(100 * self._allocated / self._capacity)

    def share(self, load: int) -> float | None:
        """Return the allocated share in percent at a load in percent.

        It is the mean over the moments (one after each arrival) at which the load
        rounds to it; None if it never does.
        """
        seen = self._at.get(load)
        return None if seen is None else fmean(seen)

    def curve(self) -> list[tuple[int, float]]:
        """Return load and share, both in percent, in the order of the load."""
        return [(load, fmean(seen)) for load, seen in sorted(self._at.items())]


NODE_FILE = "openb_node_list_gpu_node.csv"
FOLDER_VARIABLE = "GPUSHARE_TRACE_DIR"
"""The environment variable that may name the folder of the files."""
TRACE_FOLDER = Path(__file__).parents[3] / "shared" / "data" / "openb"
"""Where the trace is, unless another folder is named: beside the checkout."""
SOURCE = "cluster-trace-gpu-v2023/csv of https://github.com/alibaba/clusterdata has it"
_PODS = "openb_pod_list_"
_NODE_FIELDS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_FIELDS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_MOST = 10**12


class TraceError(ValueError):
    """A trace that cannot be replayed; the message names file, line and field."""


def pod_lists(folder: Path) -> list[str]:
    """Return the names of the pod lists in a folder, such as ``default``, sorted."""
    found = folder.glob(f"{_PODS}*.csv")
    return sorted(path.stem.removeprefix(_PODS) for path in found)


def read_trace(folder: Path, pod_list: str = "default") -> Trace:
    """Read the nodes and one list of pods. Raises ``TraceError``."""
    nodes = read_nodes(folder / NODE_FILE)
    path = folder / f"{_PODS}{pod_list}.csv"
    if not path.is_file() and (known := pod_lists(folder)):
        raise TraceError(
            f'{path}: there is no pod list "{pod_list}"; here are {", ".join(known)}'
        )
    pods = read_pods(path)
    if not any(pod.demand for pod in pods):
        raise TraceError(f"{path}: no pod asks a card, so no load can be reached")
    return Trace(nodes, pods)


def read_nodes(path: Path) -> tuple[TraceNode, ...]:
    """Read the list of nodes, in its order. Raises ``TraceError``."""
    nodes = tuple(_node(row) for row in _rows(path, _NODE_FIELDS))
    if not any(node.cards for node in nodes):
        raise TraceError(f"{path}: no node has a card; is this the list of GPU nodes?")
    return nodes


def read_pods(path: Path) -> tuple[TracePod, ...]:
    """Read a list of pods, in its order. Raises ``TraceError``.

    ``gpu_spec`` and the columns after it may be absent, as in some published lists.
    """
    return tuple(_pod(row) for row in _rows(path, _POD_FIELDS))


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a file, and its place for a complaint."""

    path: Path
    line: int
    values: Mapping[str, str]

    def wrong(self, field: str, problem: str) -> TraceError:
        return TraceError(f"{self.path}:{self.line}: {field}: {problem}")

    def text(self, field: str) -> str:
        value = self.values.get(field, "").strip()
        if not value:
            raise self.wrong(field, "is empty")
        return value

    def number(self, field: str) -> int:
        text = self.text(field)
        if not (text.isascii() and text.isdigit() and int(text) <= _MOST):
            raise self.wrong(
                field, f'is "{text}"; it must be a whole number, 0 or more'
            )
        return int(text)


def _node(row: _Row) -> TraceNode:
    cpu, memory, cards = map(row.number, _NODE_FIELDS[1:4])
    return TraceNode(row.text("sn"), cpu, memory, cards, row.values["model"].strip())


def _pod(row: _Row) -> TracePod:
    cpu, memory, cards, milli = map(row.number, _POD_FIELDS[1:])
    if cards == 1 and not 0 < milli <= WHOLE:
        raise row.wrong("gpu_milli", f"is {milli}; of one card it is 1 to {WHOLE}")
    if cards != 1:
        # Several cards are whole ones, whatever the column says, as in the paper.
        milli = WHOLE if cards else 0
    text = row.values.get("gpu_spec", "").strip()
    names = [name.strip() for name in text.split("|")] if text else []
    if not all(names):
        raise row.wrong("gpu_spec", f'is "{text}"; write models as A or A|B')
    models = frozenset(names) or None
    return TracePod(row.text("name"), cpu, memory, cards, milli, models)


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[_Row]:
    """Yield the lines; the first of the needed columns is the key."""
    reader = csv.reader(io.StringIO(_text(path)), strict=True)
    first: dict[str, int] = {}
    try:
        heading = next(reader)
        missing = [field for field in needed if field not in heading]
        if missing:
            raise TraceError(
                f"{path}:1: the column {missing[0]} is missing; there must be "
                f"{', '.join(needed)}"
            )
        # A quoted field may have several lines: the first is the row's.
        line = reader.line_num + 1
        for values in reader:
            if len(values) != len(heading):
                raise TraceError(
                    f"{path}:{line}: has {len(values)} of {len(heading)} fields, up to "
                    f'"{values[-1] if values else ""}": the line is cut; {SOURCE}'
                )
            row = _Row(path, line, dict(zip(heading, values, strict=True)))
            name = row.text(needed[0])
            if name in first:
                problem = f"{name} is there twice (first in line {first[name]})"
                raise row.wrong(needed[0], problem)
            first[name] = line
            yield row
            line = reader.line_num + 1
    except csv.Error as error:
        raise TraceError(f"{path}:{reader.line_num}: is not CSV: {error}") from error
    if not first:
        raise TraceError(f"{path}: has a heading and nothing below it; {SOURCE}")


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise TraceError(f"{path}: there is no such file; {SOURCE}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if not text.strip():
        raise TraceError(f"{path}: is empty; {SOURCE}")
    if not text.endswith("\n"):
        line = text.count("\n") + 1
        raise TraceError(
            f"{path}:{line}: the last line has no line end: the file is cut; {SOURCE}"
        )
    return text


def trace_scenario(trace: Trace, name: str, seed: int) -> Scenario:
    """Make a scenario of one order of arrivals; nobody waits, and nobody leaves.

    ``ValueError`` as in ``Trace.arrivals``.
    """
    nodes = starmap(_scenario_node, enumerate(trace.shuffled_nodes(seed)))
    pods = starmap(_scenario_pod, enumerate(trace.arrivals(seed)))
    steps = tuple(ScenarioStep(0.0, Arrive(pod)) for pod in pods)
    return Scenario(f"openb {name}, seed {seed}", tuple(nodes), steps, waits=False)


def _scenario_node(place: int, node: TraceNode) -> Json:
    """Make a node; its name begins with its place, since the first by name is taken."""
    name = f"{place:04}-{node.name}"
    cards = [
        synthetic.make_card(name, index, WHOLE, node.model)
        for index in range(node.cards)
    ]
    host = synthetic.HostSpec(f"{node.cpu_milli}m", f"{node.memory_mib}Mi")
    return synthetic.make_node(name, cards, host)


def _scenario_pod(number: int, pod: TracePod) -> Json:
    whole = pod.cards > 1
    spec = synthetic.PodSpec(
        units=0 if whole else pod.milli,
        cores=CORES_PER_CARD * pod.cards if whole else pod.cards,
        cpu=f"{pod.cpu_milli}m",
        memory=f"{pod.memory_mib}Mi",
        models=tuple(sorted(pod.models or ())),
    )
    # A pod of the list may come twice, but a name only once.
    return synthetic.make_pod("openb", f"{pod.name}-{number}", spec)


_SOURCE = "default"
_PART = 1 / 3
_CPU_PODS = 2.5


def read_list(folder: Path, name: str) -> Trace:
    """Read a list of the folder, or make one of ``MADE``. Raises ``TraceError``."""
    make = MADE.get(name)
    if make is None:
        return read_trace(folder, name)
    trace = read_trace(folder, _SOURCE)
    return replace(trace, pods=tuple(make(trace)))


def _named(trace: Trace, *, evenly: bool) -> Iterator[TracePod]:
    cards: Counter[frozenset[str]] = Counter()
    for node in trace.nodes:
        cards[_kin(node, trace)] += node.cards
    sets = sorted(cards, key=sorted)
    dice = random.Random(33)
    for pod in trace.pods:
        if not pod.cards or dice.random() >= _PART:
            yield pod
            continue
        able = [models for models in sets if _fits(pod, models, trace)]
        weights = [1 if evenly else cards[models] for models in able]
        yield replace(pod, models=dice.choices(able, weights)[0] if able else None)


def _kin(node: TraceNode, trace: Trace) -> frozenset[str]:
    """Give the models of one make: V100M16 and V100M32 differ in memory alone."""
    make = node.model.partition("M")[0]
    models = {other.model for other in trace.nodes}
    return frozenset(model for model in models if model.partition("M")[0] == make)


def _fits(pod: TracePod, models: frozenset[str], trace: Trace) -> bool:
    return any(
        node.model in models
        and node.cards >= pod.cards
        and node.cpu_milli >= pod.cpu_milli
        and node.memory_mib >= pod.memory_mib
        for node in trace.nodes
    )


def _more_cpu(trace: Trace) -> Iterator[TracePod]:
    bare = [pod for pod in trace.pods if not pod.cards]
    dice = random.Random(250)
    yield from trace.pods
    for number in range(round((_CPU_PODS - 1) * len(bare))):
        yield replace(dice.choice(bare), name=f"more-{number:04}")


MADE: Mapping[str, Callable[[Trace], Iterator[TracePod]]] = {
    "models33": partial(_named, evenly=False),
    "scarce33": partial(_named, evenly=True),
    "cpu250": _more_cpu,
}
