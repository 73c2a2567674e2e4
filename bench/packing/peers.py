"""The simple policies that others are measured against."""

import random

import numpy as np

from bench.packing.cluster import ReplayCluster, Rows, ScoreBook, Scores, Shape, Spot

_MOST_CPU_MILLI = 128_000
_MOST_GPU_MILLI = 8_000


def _even(_shape: Shape, rows: Rows) -> Scores:
    return np.zeros(len(rows), int)


class FirstFit:
    """The first node and the lowest card with room."""

    def __init__(self, cluster: ReplayCluster) -> None:
        self._cluster = cluster
        self._book = ScoreBook(cluster, _even)

    def choose(self, shape: Shape) -> Spot | None:
        """Find the pod its place; None where it fits nowhere."""
        node = self._book.best(shape)
        if node is None:
            return None
        return Spot(
            node, int(self._cluster.able(shape, node)[0]) if shape.cards else -1
        )


class Chance:
    """Any node and any card with room."""

    def __init__(self, cluster: ReplayCluster, seed: int) -> None:
        self._cluster = cluster
        self._book = ScoreBook(cluster, _even)
        self._dice = random.Random(seed)

    def choose(self, shape: Shape) -> Spot | None:
        """Find the pod its place; None where it fits nowhere."""
        nodes = np.flatnonzero(self._book.scores(shape) >= 0).tolist()
        if not nodes:
            return None
        node = self._dice.choice(nodes)
        able = self._cluster.able(shape, node).tolist()
        return Spot(node, self._dice.choice(able) if shape.cards else -1)


class BestFit:
    """The node with the least left over, and its tightest card.

    As the paper's: CPU and cards weigh half each, against the largest node there is.
    """

    def __init__(self, cluster: ReplayCluster) -> None:
        self._cluster = cluster
        self._book = ScoreBook(cluster, self._score)

    def choose(self, shape: Shape) -> Spot | None:
        """Find the pod its place; None where it fits nowhere."""
        node = self._book.best(shape)
        if node is None:
            return None
        if not shape.cards:
            return Spot(node)
        able = self._cluster.able(shape, node)
        return Spot(node, int(able[self._cluster.free[node, able].argmin()]))

    def _score(self, shape: Shape, rows: Rows) -> Scores:
        cpu = (self._cluster.cpu[rows] - shape.cpu_milli) / _MOST_CPU_MILLI
        gpu = (self._cluster.free[rows].sum(axis=1) - shape.demand) / _MOST_GPU_MILLI
        # Not below 0, though a node be larger than any of the trace.
        return np.asarray(np.maximum(100 * (1 - (cpu + gpu) / 2), 0)).astype(int)
