"""Fragmentation gradient descent, as in "Beware of Fragmentation" (USENIX ATC 2023)."""

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bench.packing.cluster import ReplayCluster, Rows, ScoreBook, Scores, Shape, Spot

_POPULAR = 0.95
"""Typical pods are the most frequent shapes up to this part of all."""

_Floats: TypeAlias = NDArray[np.float64]


class Fgd:
    """The node, and the card on it, where the unusable room grows least.

    The score is rounded down to whole points, and the first of the best wins; without
    the rounding the policy loses its concentration, and more than two points.
    """

    def __init__(self, cluster: ReplayCluster, pods: Iterable[Shape]) -> None:
        self._cluster = cluster
        typical = typical_pods(pods)
        shapes = [shape for shape, _ in typical if shape.cards]
        self._part = np.array([part for shape, part in typical if shape.cards])
        self._cpu = np.array([shape.cpu_milli for shape in shapes])
        self._milli = np.array([shape.milli for shape in shapes])
        self._cards = np.array([shape.cards for shape in shapes])
        allowed = [cluster.allowed(shape.models) for shape in shapes]
        self._models = np.array(allowed).T
        self._book = ScoreBook(cluster, self._score)
        self._seen = 0
        rows = cluster.all
        self._count, self._usable = self._parts(cluster.free)
        self._before = self._worth(self._count, self._usable, self._fits(rows, 0))

    def choose(self, shape: Shape) -> Spot | None:
        """Find the pod its place; None where it fits nowhere."""
        self._look_again()
        node = self._book.best(shape)
        if node is None or shape.cards != 1:
            return None if node is None else Spot(node)
        _, cards, points = self._by_card(shape, np.array([node]))
        return Spot(node, int(cards[points.argmax()]))

    def _look_again(self) -> None:
        """Bring up to date what is kept of each node."""
        rows = np.unique(np.array(self._cluster.changes[self._seen :], int))
        self._seen = len(self._cluster.changes)
        count, usable = self._parts(self._cluster.free[rows])
        self._count[rows], self._usable[rows] = count, usable
        self._before[rows] = self._worth(count, usable, self._fits(rows, 0))

    def _score(self, shape: Shape, rows: Rows) -> Scores:
        if shape.cards == 1:
            which, _, points = self._by_card(shape, rows)
            scores = np.zeros(len(rows), int)
            np.maximum.at(scores, which, points)
            return scores
        parts = self._count[rows], self._usable[rows]
        if shape.cards:
            free = self._cluster.free[rows]
            whole = free >= shape.milli
            taken = whole & (whole.cumsum(axis=1) <= shape.cards)
            parts = self._parts(np.where(taken, 0, free))
        after = self._worth(*parts, self._fits(rows, shape.cpu_milli))
        return _points(shape.demand, self._before[rows], after)

    def _by_card(self, shape: Shape, rows: Rows) -> tuple[Rows, Rows, Scores]:
        """Score a share on the first of each kind of card that has room.

        Gives the place of the node in ``rows``, the card and its score, each an array.
        """
        free = self._cluster.free[rows]
        like_earlier = np.tril(free[:, :, None] == free[:, None, :], -1).any(axis=2)
        which, cards = np.nonzero((free >= shape.milli) & ~like_earlier)
        was = free[which, cards][:, None]
        now, nodes = was - shape.milli, rows[which]
        did, does = was >= self._milli, now >= self._milli
        count = self._count[nodes] - did + does
        usable = self._usable[nodes] - did * was + does * now
        after = self._worth(count, usable, self._fits(nodes, shape.cpu_milli))
        return which, cards, _points(shape.milli, self._before[nodes], after)

    def _fits(self, rows: Rows, taken: int) -> NDArray[np.bool_]:
        """Tell of nodes and typical pods whether CPU and model do."""
        enough = (self._cluster.cpu[rows] - taken)[:, None] >= self._cpu
        fits: NDArray[np.bool_] = enough & self._models[self._cluster.model[rows]]
        return fits

    def _parts(self, free: NDArray[np.int64]) -> tuple[Scores, Scores]:
        """Give, of nodes and typical pods, how many cards do, and their idle milli."""
        able = free[..., None] >= self._milli
        return able.sum(axis=1), (able * free[..., None]).sum(axis=1)

    def _worth(self, count: Scores, usable: Scores, fits: NDArray[np.bool_]) -> _Floats:
        """Give the idle milli that a typical pod can use, in the mean."""
        # Not by BLAS, whose threads would take the other replays' processors.
        able = usable * (fits & (count >= self._cards))
        return np.asarray(np.einsum("nt,t->n", able, self._part))


def typical_pods(pods: Iterable[Shape]) -> list[tuple[Shape, float]]:
    """Give the most frequent shapes and the part of the pods that each is.

    Memory is left out, as the paper does.
    """
    counted = Counter(
        Shape(shape.cpu_milli, 0, shape.cards, shape.milli, shape.models)
        for shape in pods
    )
    chosen, so_far = [], 0
    for shape, number in counted.most_common():
        if so_far >= _POPULAR * counted.total():
            break
        chosen.append((shape, number))
        so_far += number
    return [(shape, number / so_far) for shape, number in chosen]


def _points(taken: int, before: _Floats, after: _Floats) -> Scores:
    """Score by how the unusable idle milli, which is idle less usable, shrinks."""
    # Idle shrinks by what the pod takes, and the parts of all typical pods make 1.
    shrinks = taken - (before - after)
    return (100 / (1 + np.exp(-shrinks / 1000))).astype(int)
