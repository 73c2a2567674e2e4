"""The nodes of a replay as arrays, and their scores, of which many are made at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bench.packing.trace import WHOLE, TraceNode, TracePod

Rows: TypeAlias = NDArray[np.int64]
"""Numbers of nodes, from 0, in the order of the trace."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pod asks; equal shapes are scored alike."""

    cpu_milli: int
    memory_mib: int
    cards: int
    milli: int
    models: frozenset[str] | None

    @classmethod
    def of(cls, pod: TracePod) -> "Shape":
        """Leave the pod's name out."""
        return cls(pod.cpu_milli, pod.memory_mib, pod.cards, pod.milli, pod.models)

    @property
    def demand(self) -> int:
        """Milli over all its cards."""
        return self.cards * self.milli


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a pod goes; ``card`` is the card of a share, and tells nothing else."""

    node: int
    card: int = -1


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A pod that runs, and the cards it has."""

    shape: Shape
    node: int
    cards: tuple[int, ...]


class ReplayCluster:
    """What every node has free, and which nodes changed since when."""

    def __init__(self, nodes: tuple[TraceNode, ...]) -> None:
        """Begin with empty nodes."""
        self.nodes = nodes
        self.names = sorted({node.model for node in nodes})
        model = {name: number for number, name in enumerate(self.names)}
        self.model = np.array([model[node.model] for node in nodes])
        self.cpu = np.array([node.cpu_milli for node in nodes])
        self.memory = np.array([node.memory_mib for node in nodes])
        self.free = np.zeros((len(nodes), max(node.cards for node in nodes)), int)
        for row, node in enumerate(nodes):
            self.free[row, : node.cards] = WHOLE
        self.changes: list[int] = []
        """Every node that took or gave back a pod, in order."""
        self.ended: list[RunningPod] = []
        """The pods that gave back what they held, in order."""

    @property
    def all(self) -> Rows:
        """Give the rows of all nodes."""
        return np.arange(len(self.nodes))

    def allowed(self, models: frozenset[str] | None) -> NDArray[np.bool_]:
        """Tell of each model, in the order of ``names``, whether it may be had."""
        return np.array([models is None or name in models for name in self.names])

    def fits(self, shape: Shape, rows: Rows) -> NDArray[np.bool_]:
        """Tell of each of these nodes whether the pod fits."""
        fit = (self.cpu[rows] >= shape.cpu_milli) & (
            self.memory[rows] >= shape.memory_mib
        )
        if shape.cards:
            able = (self.free[rows] >= shape.milli).sum(axis=1) >= shape.cards
            fit &= able & self.allowed(shape.models)[self.model[rows]]
        return fit

    def able(self, shape: Shape, node: int) -> Rows:
        """Give the cards of a node that have room for one card's part of the pod."""
        return np.flatnonzero(self.free[node] >= shape.milli)

    def take(self, shape: Shape, spot: Spot) -> RunningPod:
        """Let a pod that fits have its place; whole cards are the lowest free ones."""
        cards: tuple[int, ...] = ()
        if shape.cards == 1:
            cards = (spot.card,)
        elif shape.cards:
            cards = tuple(self.able(shape, spot.node)[: shape.cards].tolist())
        pod = RunningPod(shape, spot.node, cards)
        self._move(pod, -1)
        if (
            self.cpu[spot.node] < 0
            or self.memory[spot.node] < 0
            or len(cards) != shape.cards
            or (self.free[spot.node] < 0).any()
        ):
            raise AssertionError(f"{pod} does not fit on {self.nodes[spot.node]}")
        return pod

    def give_back(self, pod: RunningPod) -> None:
        """Let a pod end."""
        self._move(pod, 1)
        self.ended.append(pod)

    def _move(self, pod: RunningPod, sign: int) -> None:
        self.cpu[pod.node] += sign * pod.shape.cpu_milli
        self.memory[pod.node] += sign * pod.shape.memory_mib
        for card in pod.cards:
            self.free[pod.node, card] += sign * pod.shape.milli
        self.changes.append(pod.node)


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
        """Return every node's score now; below 0 where the pod does not fit."""
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
        """Return the first node with the highest score; None: it fits nowhere."""
        scores = self.scores(shape)
        row = int(scores.argmax())
        return row if scores[row] > _NEVER else None
