"""The public trace of a cluster that shares cards, replayed as its paper does. Pure.

Alibaba's ``cluster-trace-gpu-v2023`` (github.com/alibaba/clusterdata), published with
"Beware of Fragmentation" (USENIX ATC 2023), whose order of pods and whose measure these
are. ``openbfile`` reads its files.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

WHOLE = 1000
"""Milli of one whole card."""
TUNED_LOAD = 1.3
"""The demand of a replay's pods, as a part of the capacity."""
SEEDS = tuple(range(42, 52))
"""The paper's own; a figure is the mean over them."""


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
    """What one pod of the trace asks."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    """0: no card. 1: a share of a card, or a whole one. 2 and more: whole cards."""
    milli: int
    """Of each card: 0 without a card, 1 to 1000 of one, 1000 of each of several."""
    models: frozenset[str] | None = None
    """The card models that it may have; None is any."""

    @property
    def demand(self) -> int:
        """Milli over all its cards."""
        return self.cards * self.milli


@dataclass(frozen=True, slots=True)
class Trace:
    """The cluster and the pods of one list, both as they stand in the files."""

    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]

    @property
    def capacity(self) -> int:
        """Milli of all cards."""
        return WHOLE * sum(node.cards for node in self.nodes)

    def shuffled_nodes(self, seed: int) -> tuple[TraceNode, ...]:
        """Give the nodes in an order of chance, a replay's fixed order of them.

        Where several are equally good the first is taken. The file has the nodes of a
        kind in a row, so that some are always first: that costs the paper's policy a
        point on the list ``cpu200``. In an order of chance its figures are met.
        """
        nodes = list(self.nodes)
        random.Random(seed).shuffle(nodes)  # noqa: S311 - as in arrivals
        return tuple(nodes)

    def arrivals(self, seed: int, load: float = TUNED_LOAD) -> list[TracePod]:
        """Give the pods in the order in which they arrive.

        Sorted by name, shuffled with the seed, then tuned to a demand of ``load`` times
        the capacity: random pods of the list come on top, or random ones are left out.
        A ValueError where no pod of the list asks a card.
        """
        if not any(pod.demand for pod in self.pods):
            raise ValueError(
                "no pod of the list asks a card, so no load can be reached"
            )
        dice = random.Random(seed)  # noqa: S311 - a replay wants repeatable chance
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
    """The paper's measure: the allocated share of all cards, over the arrived load."""

    def __init__(self, capacity: int) -> None:
        """Begin with an empty cluster of so many milli."""
        self._capacity = capacity
        self._arrived = 0
        self._allocated = 0
        self._at: dict[int, list[float]] = {}

    def arrived(self, demand: int, *, placed: bool) -> None:
        """Take down one arrival, of so many milli, and whether it found its place."""
        self._arrived += demand
        if placed:
            self._allocated += demand
        load = round(100 * self._arrived / self._capacity)
        self._at.setdefault(load, []).append(100 * self._allocated / self._capacity)

    def share(self, load: int) -> float | None:
        """Give the allocated share, in percent, at a load in percent.

        The mean over the moments (one after each arrival) at which the load rounds to
        it; None where it never did.
        """
        seen = self._at.get(load)
        return None if seen is None else fmean(seen)

    def curve(self) -> list[tuple[int, float]]:
        """Give load and share, both in percent, in the order of the load."""
        return [(load, fmean(seen)) for load, seen in sorted(self._at.items())]


def mean_share(meters: Iterable[Meter], load: int) -> float | None:
    """Give the mean of several replays at one load; None where one never got there."""
    shares = [meter.share(load) for meter in meters]
    known = [share for share in shares if share is not None]
    return fmean(known) if known and len(known) == len(shares) else None
