"""What is to be played: nodes, pods that come and go, and what is expected of it. Pure.

Nodes and pods are objects in the shape of the Kubernetes API, whoever wrote them: a
scenario's file, a trace, or a cluster that runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.domain.policies import Choice
from gpushare.kube.cluster import Json

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
