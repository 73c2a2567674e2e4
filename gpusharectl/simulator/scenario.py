"""Describe what is played: nodes, pods, events, and what is expected. Pure.

Nodes and pods are objects of the Kubernetes API, from a file, a trace or a
running cluster. Times are seconds since the beginning.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from gpushare.domain.model import Placement
from gpushare.domain.policies import PolicyChoice
from gpushare.kube import words
from gpushare.kube.cluster import Json
from gpusharectl.simulator.cluster import PodNeeds

NOWHERE = "nowhere"
"""The place of a pod that is expected to be refused."""
PodName = tuple[str, str]
"""Namespace and name."""


class NotPlayable(ValueError):
    """What is asked for cannot be simulated; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Arrive:
    """A pod is created. It ends ``lasts_s`` seconds after its start; None: never."""

    pod: Json
    lasts_s: float | None = None

    @property
    def priority(self) -> int:
        """The pod's priority; 0 if it has none."""
        return int(self.pod["spec"].get("priority") or 0)


@dataclass(frozen=True, slots=True)
class Leave:
    """A pod is deleted, whether it runs or is pending."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Join:
    """An empty node is added."""

    node: Json


@dataclass(frozen=True, slots=True)
class Drain:
    """A node is drained: its pods are created again, as their owners do it.

    ``gone``: the node itself is removed, too.
    """

    node: str
    gone: bool = False


Event = Arrive | Leave | Join | Drain


@dataclass(frozen=True, slots=True)
class ScenarioStep:
    """An event, so many seconds after the beginning."""

    at_s: float
    what: Event


@dataclass(frozen=True, slots=True)
class ExpectedResult:
    """What the author of a scenario expects; None or empty where nothing is."""

    placed: int | None = None
    refused: int | None = None
    where: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By namespace and name: ``node-1 card 0``, or ``nowhere``."""

    def __bool__(self) -> bool:
        return bool(self.where) or (self.placed, self.refused) != (None, None)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The nodes and pods at the beginning, and the steps in the order of time.

    ``there`` are pods that are bound at the beginning. ``claims`` is what
    ResourceClaims hold of cards, which they keep whatever happens. ``waits``: a pod
    without room stays pending and is tried again; else it is dropped, as in traces.
    """

    name: str
    nodes: tuple[Json, ...]
    steps: tuple[ScenarioStep, ...]
    there: tuple[Json, ...] = ()
    claims: tuple[Placement, ...] = ()
    choice: PolicyChoice = field(default_factory=PolicyChoice)
    waits: bool = True
    moves: int = 0
    """At most so many pods move for one that waits; 0: none ever do."""
    expected: ExpectedResult = field(default_factory=ExpectedResult)
    remarks: tuple[str, ...] = ()
    """What a reader of the result should know about the beginning."""

    @property
    def length_s(self) -> float:
        """Seconds until the last step; 0 if the steps have only an order."""
        return self.steps[-1].at_s if self.steps else 0.0

    @property
    def arrivals(self) -> int:
        """The number of pods that will come."""
        return sum(isinstance(step.what, Arrive) for step in self.steps)


_TERM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)
_MS = 1000
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_seconds(text: str) -> float | None:
    """Parse ``90``, ``90s``, ``1h30m`` or ``2d`` as seconds; None if it is no time.

    >>> parse_seconds("1h30m"), parse_seconds("90"), parse_seconds("soon")
    (5400.0, 90.0, None)
    """
    total, place = 0.0, 0
    for match in _TERM.finditer(text):
        if match.start() != place or (match[2] is None and match.end() != len(text)):
            return None
        if match[2] is None and place:
            return None
        total += float(match[1]) * _SECONDS[match[2] or "s"]
        place = match.end()
    return round_to_ms(total) if text and place == len(text) else None


def round_to_ms(time_s: float) -> float:
    """Round seconds to milliseconds, so that equal sums are equal.

    >>> 0.1 + 0.2 == 0.3, round_to_ms(0.1 + 0.2) == 0.3
    (False, True)
    """
    return round(time_s, 3)


def format_duration(length_s: float) -> str:
    """Write seconds in their two largest units; ms below one second.

    >>> [format_duration(length_s) for length_s in (0, 5400, 90, 200000, 0.3)]
    ['0 s', '1 h 30 min', '1 min 30 s', '2 d 7 h', '300 ms']
    """
    if 0 < (milliseconds := round(_MS * length_s)) < _MS:
        return f"{milliseconds} ms"
    for (word, size), (smaller, least) in pairwise((*_UNITS, _UNITS[-1])):
        number, rest = divmod(round(length_s), size)
        if number:
            more = f" {rest // least} {smaller}" if rest // least else ""
            return f"{number} {word}{more}"
    return "0 s"


def describe_request(needs: PodNeeds) -> str:
    """Describe what a pod asks for; different kinds of pods get different words."""
    request, host = needs.request, needs.request.host
    amounts = [words.format_claims(request.claims)] if request.claims else []
    if host is not None and host.cpu_milli:
        amounts.append(f"{host.cpu_milli / 1000:g} CPU")
    if host is not None and host.memory_mib:
        amounts.append(f"{host.memory_mib / 1024:.3g} GiB of the node")
    parts = amounts or ["nothing"]
    if request.cards is not None:
        parts.append(words.format_selector(request.cards))
    if needs.constraints.selector:
        labels = (f"{key}={value}" for key, value in needs.constraints.selector)
        parts.append(f"on nodes with {' and '.join(labels)}")
    if request.policy:
        parts.append(f"by the policy {request.policy}")
    return ", ".join(parts)
