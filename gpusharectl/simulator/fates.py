"""What came of each pod of a scenario. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpushare.domain.model import PodRef
from gpusharectl.simulator.durations import whole_ms


class Outcome(StrEnum):
    """How it ended for a pod."""

    PLACED = "placed"
    """At once, as it came."""
    WAITED = "waited"
    """Placed, after others had made room."""
    REFUSED = "refused"
    """Never placed: dropped, or waiting at the end."""
    LEFT = "left"
    """Deleted while it waited."""


@dataclass(slots=True)
class Fate:
    """One pod: when it came, where it went, when it left; times in seconds.

    ``cards`` are indexes. ``reasons`` are how many nodes refused it for which reason,
    at its last try; a pod that no node could ever take has its one reason with 0.
    """

    pod: PodRef
    asks: str
    came_s: float
    outcome: Outcome = Outcome.REFUSED
    placed_s: float | None = None
    left_s: float | None = None
    node: str = ""
    cards: tuple[int, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    nodes: int = 0
    """How many refused it: fewer than the reasons say, where one had several."""
    first: str = ""
    """What the pod was called that came first, where this one took its place."""

    @property
    def came_as(self) -> tuple[str, str]:
        """Namespace and first name: the same for all that took one pod's place."""
        return (self.pod.namespace, self.first or self.pod.name)

    @property
    def waited_s(self) -> float | None:
        """Seconds from coming to being placed; None where it never was."""
        if self.placed_s is None:
            return None
        return whole_ms(self.placed_s - self.came_s)

    @property
    def place(self) -> str:
        """Where it was put: ``node-1 card 0``, ``node-2 cards 0, 1``, ``nowhere``."""
        if not self.node:
            return "nowhere"
        if not self.cards:
            return self.node
        several = "s" if len(self.cards) > 1 else ""
        return f"{self.node} card{several} {', '.join(map(str, self.cards))}"


@dataclass(frozen=True, slots=True)
class Moment:
    """How full the cluster is after something happened.

    ``arrived`` and ``held`` in units of memory: what all pods that have come asked, and
    what those that run hold; ``asked`` what those ask that run or wait. ``fragmented``
    is the share (0 to 1) of the free units that a pod of those seen could not use,
    drawn by lot; None where it was not looked at, or nothing is free.
    """

    at_s: float
    arrived: int
    asked: int
    held: int
    units: int
    held_cores: int
    cores: int
    waiting: int
    fragmented: float | None = None

    @property
    def allotted(self) -> float | None:
        """The share of all units that is held, 0 to 1; None without any units."""
        return self.held / self.units if self.units else None

    @property
    def load(self) -> float | None:
        """What has arrived, as a share of all units; may be above 1."""
        return self.arrived / self.units if self.units else None
