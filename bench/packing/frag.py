"""The product's policy ``frag`` at work in a replay, in the numbers that it knows."""

from collections import Counter

from bench.packing.cluster import Cluster, Spot
from bench.packing.cluster import Shape as Asked
from gpushare.domain.frag.index import Index
from gpushare.domain.frag.learning import due, learn
from gpushare.domain.frag.shapes import Shape, State


class Frag:
    """Learns from the pods as they arrive, and knows nothing of the trace before."""

    def __init__(self, cluster: Cluster) -> None:
        """Begin with empty tables."""
        self._cluster = cluster
        # The index ranks equal nodes by name; so it is the trace's order that counts.
        self._names = [f"{number:06d}" for number in range(len(cluster.nodes))]
        self._models = [node.model for node in cluster.nodes]
        self._cards = [node.cards for node in cluster.nodes]
        states = {name: self._state(row) for row, name in enumerate(self._names)}
        self._index = Index(
            states,
            cards=sum(self._cards),
            cpu_milli=int(cluster.cpu.sum()),
            memory_mib=int(cluster.memory.sum()),
        )
        self._seen: Counter[Shape] = Counter()
        self._arrivals = 0
        self._upto = len(cluster.changes)

    def choose(self, asked: Asked) -> Spot | None:
        """Find the pod its place; None where it fits nowhere."""
        for row in self._cluster.changes[self._upto :]:
            self._index.put(self._names[row], self._state(row))
        self._upto = len(self._cluster.changes)
        shape = Shape(
            asked.milli, asked.cards, asked.cpu_milli, asked.memory_mib, asked.models
        )
        self._learn(shape)
        best = self._index.best(shape)
        return None if best is None else Spot(int(best.node), best.card)

    def _learn(self, shape: Shape) -> None:
        self._seen[shape] += 1
        self._arrivals += 1
        if due(self._arrivals):
            self._index.swap(learn(self._seen, self._index.pool))

    def _state(self, row: int) -> State:
        free = self._cluster.free[row, : self._cards[row]].tolist()
        return State(
            int(self._cluster.cpu[row]),
            int(self._cluster.memory[row]),
            tuple(free),
            self._models[row],
        )
