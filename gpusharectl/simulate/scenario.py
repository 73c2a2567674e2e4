"""What is to be played: nodes, pods that come and go, and what is expected of it. Pure.

Nodes and pods are objects in the shape of the Kubernetes API, whoever wrote them: a
scenario's file, a trace, or a cluster that runs.

Stretches of time as people write and read them. Pure.

What a pod asks, in words that tell kinds of pods apart. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpushare.domain.model import PodRequest
from gpushare.domain.policies import Choice
from gpushare.kube import words
from gpushare.kube.cluster import Json
from gpusharectl.simulate.cluster import Question

NOWHERE = "nowhere"
"""Where a pod is expected that is to be refused."""


@dataclass(frozen=True, slots=True)
class Arrive:
    """A pod comes, and stays for so many seconds after its start; None: for good."""

    pod: Json
    lasts_s: float | None = None

    @property
    def priority(self) -> int:
        """How important the pod is; 0 where it does not say."""
        return int(self.pod["spec"].get("priority") or 0)


@dataclass(frozen=True, slots=True)
class Leave:
    """A pod is deleted, whether it runs or waits."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Join:
    """A node is added, which is empty."""

    node: Json


@dataclass(frozen=True, slots=True)
class Drain:
    """A node takes nothing more, and its pods come anew, as their owners make them.

    ``gone``: the node itself goes, too.
    """

    node: str
    gone: bool = False


Happening = Arrive | Leave | Join | Drain


@dataclass(frozen=True, slots=True)
class Step:
    """What happens so many seconds after the beginning."""

    at_s: float
    what: Happening


@dataclass(frozen=True, slots=True)
class Expected:
    """What somebody wrote down that should come of it; None and empty: nothing."""

    placed: int | None = None
    refused: int | None = None
    where: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By namespace and name: ``node-1 card 0``, or ``nowhere``."""

    def __bool__(self) -> bool:
        return bool(self.where) or (self.placed, self.refused) != (None, None)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is there at the beginning, and then happens, in the order of time.

    ``there`` are pods that are bound when it begins. ``waits``: a pod without room
    stays pending and is tried again; else it is dropped, as traces have it.
    """

    name: str
    nodes: tuple[Json, ...]
    steps: tuple[Step, ...]
    there: tuple[Json, ...] = ()
    choice: Choice = field(default_factory=Choice)
    waits: bool = True
    expected: Expected = field(default_factory=Expected)
    remarks: tuple[str, ...] = ()
    """What whoever reads the outcome should know of the beginning."""

    @property
    def arrivals(self) -> int:
        """How many pods are to come."""
        return sum(isinstance(step.what, Arrive) for step in self.steps)


_TERM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)
_MS = 1000
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float | None:
    """Read ``90``, ``90s``, ``1h30m`` or ``2d`` as seconds; None for anything else.

    >>> seconds("1h30m"), seconds("90"), seconds("soon")
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
    return whole_ms(total) if text and place == len(text) else None


def whole_ms(time_s: float) -> float:
    """Give a time in seconds to the millisecond: so equal sums are equal.

    >>> 0.1 + 0.2 == 0.3, whole_ms(0.1 + 0.2) == 0.3
    (False, True)
    """
    return round(time_s, 3)


def stretch(length_s: float) -> str:
    """Say so many seconds in the two largest units that matter; ms below a second.

    >>> stretch(0), stretch(5400), stretch(90), stretch(200000), stretch(0.3)
    ('0 s', '1 h 30 min', '1 min 30 s', '2 d 7 h', '300 ms')
    """
    if 0 < (milliseconds := round(_MS * length_s)) < _MS:
        return f"{milliseconds} ms"
    left = round(length_s)
    parts = []
    for word, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number:
            parts.append((word, number))
    if not parts:
        return "0 s"
    first = parts[0][0]
    following = {"d": "h", "h": "min", "min": "s"}.get(first)
    kept = [parts[0], *(part for part in parts[1:2] if part[0] == following)]
    return " ".join(f"{number} {word}" for word, number in kept)


def asks(question: Question) -> str:
    """Say what a pod asks of cards and beside them, and what it wants of both."""
    request = question.request
    amounts = ", ".join(_amounts(request)) or "nothing"
    return ", ".join((amounts, *_wishes(question)))


def _amounts(request: PodRequest) -> Iterator[str]:
    if request.claims:
        yield words.claims(request.claims)
    host = request.host
    if host is not None and host.cpu_milli:
        yield f"{host.cpu_milli / 1000:g} CPU"
    if host is not None and host.memory_mib:
        yield f"{host.memory_mib / 1024:.3g} GiB of the node"


def _wishes(question: Question) -> Iterator[str]:
    request = question.request
    if request.cards is not None:
        yield words.allowed(request.cards)
    if question.wish.selector:
        labels = (f"{key}={value}" for key, value in question.wish.selector)
        yield f"on nodes with {' and '.join(labels)}"
    if request.policy:
        yield f"by the policy {request.policy}"
