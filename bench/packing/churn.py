"""The same cluster with pods that end: Poisson arrivals, exponential lives."""

import heapq
import random
from dataclasses import dataclass

from bench.packing.cluster import Held, ReplayCluster, Shape
from bench.packing.replay import Making
from bench.packing.trace import Trace

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
    books = _Books()
    running: list[tuple[float, int, Held]] = []

    def end_until(at: float) -> None:
        while running and running[0][0] <= at:
            ends, _, held = heapq.heappop(running)
            cluster.give_back(held)
            books.moved(ends, -held.shape.demand)

    for number, (at, life, shape) in enumerate(arrivals):
        end_until(at)
        spot = policy.choose(shape)
        if spot is not None:
            held = cluster.take(shape, spot)
            heapq.heappush(running, (at + life, number, held))
            books.moved(at, shape.demand)
        books.asked(at, shape.demand, placed=spot is not None)
    end_until(WARM_UP + WATCHED)
    books.moved(WARM_UP + WATCHED, 0)
    return Churned(
        100 * books.held / (WATCHED * trace.capacity),
        100 * books.refused / books.demand,
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


class _Books:
    """Milli held over time, asked and refused, once it is warm."""

    def __init__(self) -> None:
        self.held = 0.0
        self.demand = 0
        self.refused = 0
        self._now = 0.0
        self._allocated = 0

    def moved(self, at: float, milli: int) -> None:
        self.held += self._allocated * max(0.0, at - max(self._now, WARM_UP))
        self._now = max(self._now, at)
        self._allocated += milli

    def asked(self, at: float, milli: int, *, placed: bool) -> None:
        if at >= WARM_UP:
            self.demand += milli
            self.refused += 0 if placed else milli
