"""The scores of all nodes for each shape of pod; only what changed is scored anew."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bench.packing.cluster import ReplayCluster, Rows, Shape

Scores: TypeAlias = NDArray[np.int64]
Scoring: TypeAlias = Callable[[Shape, Rows], Scores]
"""Score nodes on which the pod fits, 0 and above; higher is better."""

_NEVER = -1


class ScoreBook:
    """Kept scores, as a scheduler would compute them afresh for every pod."""

    def __init__(self, cluster: ReplayCluster, scoring: Scoring) -> None:
        """Begin with nothing scored."""
        self._cluster = cluster
        self._scoring = scoring
        self._kept: dict[Shape, tuple[Scores, int]] = {}

    def scores(self, shape: Shape) -> Scores:
        """Give every node's score now; below 0 where the pod does not fit."""
        changes = self._cluster.changes
        if shape in self._kept:
            scores, seen = self._kept[shape]
            rows = np.unique(np.array(changes[seen:], int))
        else:
            rows = self._cluster.all
            scores = np.empty(len(rows), int)
        scores[rows] = _NEVER
        fit = rows[self._cluster.fits(shape, rows)]
        if fit.size:
            scores[fit] = self._scoring(shape, fit)
        self._kept[shape] = (scores, len(changes))
        return scores

    def best(self, shape: Shape) -> int | None:
        """Give the first of the nodes with the highest score; None: it fits nowhere."""
        scores = self.scores(shape)
        row = int(scores.argmax())
        return row if scores[row] > _NEVER else None
