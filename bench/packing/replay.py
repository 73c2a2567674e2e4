"""Replays: the pods of a seed arrive one by one and none leaves, or they come and go.

Those that end have Poisson arrivals and exponential lives.
"""

import heapq
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from bench.packing.cluster import ReplayCluster, RunningPod, Shape, Spot
from bench.packing.fgd import Fgd
from bench.packing.frag import Frag
from bench.packing.peers import BestFit, Chance, FirstFit
from bench.packing.trace import Meter, Trace


class ReplayPolicy(Protocol):
    """What decides in a replay; it sees the cluster, and the pods as they come."""

    def choose(self, shape: Shape) -> Spot | None:
        """Find the pod its place; None where it fits nowhere."""
        ...


Making: TypeAlias = Callable[[ReplayCluster, Trace, int], ReplayPolicy]
"""Make a policy for a cluster, a trace and a seed."""


POLICIES: Mapping[str, Making] = {
    "random": lambda cluster, _trace, seed: Chance(cluster, seed),
    "bestfit": lambda cluster, _trace, _seed: BestFit(cluster),
    "firstfit": lambda cluster, _trace, _seed: FirstFit(cluster),
    "fgd": lambda cluster, trace, _seed: Fgd(cluster, map(Shape.of, trace.pods)),
    "frag": lambda cluster, _trace, _seed: Frag(cluster),
}
"""From the simplest on."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What one replay gave."""

    curve: dict[int, float]
    """Load that has arrived to allocated share, both in percent."""
    decisions_us: tuple[float, ...]
    """Processor microseconds of each decision, sorted; learning is in them."""


def replay(trace: Trace, making: Making, seed: int) -> Replayed:
    """Place the pods of one seed."""
    cluster = ReplayCluster(trace.shuffled_nodes(seed))
    policy = making(cluster, trace, seed)
    meter = Meter(trace.capacity)
    took = []
    for pod in trace.arrivals(seed):
        shape = Shape.of(pod)
        # The processor's time: two replays and what else runs here share it.
        began = time.thread_time()
        spot = policy.choose(shape)
        took.append(1e6 * (time.thread_time() - began))
        if spot is not None:
            cluster.take(shape, spot)
        meter.arrived(shape.demand, placed=spot is not None)
    return Replayed(dict(meter.curve()), tuple(sorted(took)))


WARM_UP = 1.0
"""In mean lives; it begins with as many pods as there are in the mean."""
WATCHED = 2.0


@dataclass(frozen=True, slots=True)
class Churned:
    """What was seen once the pods' first lives were over."""

    share: float
    """Allocated share of all cards, in percent, in the mean over time."""
    refused: float
    """Part of the demand that found no place, in percent; none is tried again."""


def churn(trace: Trace, making: Making, seed: int, load: float) -> Churned:
    """Let pods of the list come and go, a demand of ``load`` (1 is the capacity).

    Which pods come, when, and how long they live are the same for every policy.
    """
    arrivals = drawn(trace, seed, load)
    cluster = ReplayCluster(trace.shuffled_nodes(seed))
    policy = making(cluster, trace, seed)
    sums = _DemandSums()
    running: list[tuple[float, int, RunningPod]] = []

    def end_until(at: float) -> None:
        while running and running[0][0] <= at:
            ends, _, pod = heapq.heappop(running)
            cluster.give_back(pod)
            sums.moved(ends, -pod.shape.demand)

    for number, (at, life, shape) in enumerate(arrivals):
        end_until(at)
        spot = policy.choose(shape)
        if spot is not None:
            pod = cluster.take(shape, spot)
            heapq.heappush(running, (at + life, number, pod))
            sums.moved(at, shape.demand)
        sums.arrived(at, shape.demand, placed=spot is not None)
    end_until(WARM_UP + WATCHED)
    sums.moved(WARM_UP + WATCHED, 0)
    return Churned(
        100 * sums.held_milli / (WATCHED * trace.capacity),
        100 * sums.refused / sums.demand,
    )


def drawn(trace: Trace, seed: int, load: float) -> list[tuple[float, float, Shape]]:
    """Give each arrival's time, life (in mean lives) and shape, in order."""
    dice = random.Random(seed)
    shapes = [Shape.of(pod) for pod in sorted(trace.pods, key=lambda pod: pod.name)]
    mean = sum(shape.demand for shape in shapes) / len(shapes)
    rate = load * trace.capacity / mean
    arrivals = [
        (0.0, dice.expovariate(1), dice.choice(shapes)) for _ in range(int(rate))
    ]
    at = dice.expovariate(rate)
    while at < WARM_UP + WATCHED:
        arrivals.append((at, dice.expovariate(1), dice.choice(shapes)))
        at += dice.expovariate(rate)
    return arrivals


class _DemandSums:
    """Milli held over time, demanded and refused, once it is warm."""

    def __init__(self) -> None:
        self.held_milli = 0.0
        self.demand = 0
        self.refused = 0
        self._now = 0.0
        self._allocated = 0

    def moved(self, at: float, milli: int) -> None:
        self.held_milli += self._allocated * max(0.0, at - max(self._now, WARM_UP))
        self._now = max(self._now, at)
        self._allocated += milli

    def arrived(self, at: float, milli: int, *, placed: bool) -> None:
        if at >= WARM_UP:
            self.demand += milli
            self.refused += 0 if placed else milli
