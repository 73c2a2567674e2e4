"""One replay: the pods of a seed arrive one by one, and none leaves."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from bench.packing.cluster import ReplayCluster, Shape, Spot
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
