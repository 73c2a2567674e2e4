"""How full any policy could pack the trace: a linear program, with fractions of pods.

Nodes alike are one kind, with their CPU, memory and cards added up; each card of a kind
holds one of the patterns of shares that fit on a card. Every real placement is a
solution, so the optimum bounds them all. Patterns are found as they are needed (column
generation, as Gilmore and Gomory do).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csc_array

from bench.packing.cluster import Shape
from bench.packing.trace import WHOLE, Trace, TraceNode

_ENOUGH = 1e-6
_ROUNDS = 300

Pattern: TypeAlias = tuple[tuple[int, int], ...]
"""Sizes in milli and how many of each one card holds, sorted."""
Key: TypeAlias = tuple[str, *tuple[int, ...]]
"""A row: what it limits, and the number of the kind of node, shape, size or block."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is possible at most, in percent of all cards."""

    bound: float
    """Allocated once pods worth a load of 100 have arrived, whichever are refused."""
    ceiling: float
    """λ*: the largest load of the mean mix of which nothing need be refused."""


def limits(trace: Trace) -> Limits:
    """Work out both for a list."""
    return Limits(solved(trace, refusing=True), solved(trace, refusing=False))


def solved(trace: Trace, *, refusing: bool) -> float:
    """Solve the one that may refuse pods of a load of 100, or the one for λ*."""
    program = _Program(trace, refusing=refusing)
    for _ in range(_ROUNDS):
        optimum, prices = program.optimum()
        if not program.grown(prices):
            return 100 * optimum
    raise RuntimeError(f"no optimum after {_ROUNDS} rounds")


class _Program:
    """Gains, limits and columns, in cores, GiB and cards."""

    def __init__(self, trace: Trace, *, refusing: bool) -> None:
        alike = Counter(replace(node, name="") for node in trace.nodes)
        self._kinds = sorted(alike.items(), key=lambda kind: str(kind[0]))
        counted = Counter(Shape.of(pod) for pod in trace.pods)
        demand = sum(shape.demand * number for shape, number in counted.items())
        scale = trace.capacity / demand
        self._mix = [(shape, number * scale) for shape, number in counted.items()]
        self._sizes = sorted({shape.milli for shape in counted if shape.cards == 1})
        self._columns: list[dict[Key, float]] = []
        self._gains: list[float] = []
        self._limits = dict(self._rights(refusing=refusing))
        self._rows = {key: row for row, key in enumerate(self._limits)}
        self._patterns: set[tuple[int, Pattern]] = set()
        self._fill(trace.capacity, refusing=refusing)

    def optimum(self) -> tuple[float, dict[Key, float]]:
        """Solve with the patterns known so far: the most, and the price of each row."""
        solution = linprog(
            -np.array(self._gains),
            A_ub=self._matrix(),
            b_ub=np.array(list(self._limits.values())),
            method="highs",
        )
        if solution.status != 0:
            raise RuntimeError(solution.message)
        prices = -solution.ineqlin.marginals
        return -float(solution.fun), dict(zip(self._rows, prices.tolist(), strict=True))

    def grown(self, prices: dict[Key, float]) -> bool:
        """Add for each kind of node the pattern worth most; False where none pays."""
        before = len(self._columns)
        for kind in range(len(self._kinds)):
            sizes = {size: prices["size", kind, size] for size in self._sizes}
            worth, pattern = dearest(sizes)
            if worth > prices["cards", kind] + _ENOUGH:
                self._add_pattern(kind, pattern)
        return len(self._columns) > before

    def _rights(self, *, refusing: bool) -> Iterator[tuple[Key, float]]:
        for number, (_, pods) in enumerate(self._mix):
            yield ("pods", number), pods if refusing else 0.0
        for kind, (node, nodes) in enumerate(self._kinds):
            yield ("cpu", kind), nodes * node.cpu_milli / 1000
            yield ("memory", kind), nodes * node.memory_mib / 1024
            yield ("cards", kind), nodes * node.cards
            for size in self._sizes:
                yield ("size", kind, size), 0.0
            for cards in range(2, node.cards + 1):
                yield ("block", kind, cards), nodes * (node.cards // cards)

    def _fill(self, capacity: int, *, refusing: bool) -> None:
        for number, (shape, _) in enumerate(self._mix):
            for kind, (node, _) in enumerate(self._kinds):
                if _may_be(shape, node):
                    gain = shape.demand / capacity if refusing else 0.0
                    sign = 1 if refusing else -1
                    self._add(gain, {("pods", number): sign} | _use(shape, kind))
        if not refusing:
            pods = {("pods", n): pods for n, (_, pods) in enumerate(self._mix)}
            self._add(1.0, {key: float(value) for key, value in pods.items()})
        for kind in range(len(self._kinds)):
            for pattern in alone(self._sizes):
                self._add_pattern(kind, pattern)

    def _add(self, gain: float, column: dict[Key, float]) -> None:
        self._gains.append(gain)
        self._columns.append(column)

    def _add_pattern(self, kind: int, pattern: Pattern) -> None:
        if (kind, pattern) not in self._patterns:
            self._patterns.add((kind, pattern))
            counts: dict[Key, float] = {("size", kind, s): -n for s, n in pattern}
            self._add(0.0, {("cards", kind): 1.0} | counts)

    def _matrix(self) -> csc_array:
        values: list[float] = []
        rows: list[int] = []
        starts = [0]
        for column in self._columns:
            values += column.values()
            rows += [self._rows[key] for key in column]
            starts.append(len(values))
        shape = len(self._rows), len(self._columns)
        return csc_array((np.array(values), rows, starts), shape=shape)


def _may_be(shape: Shape, node: TraceNode) -> bool:
    fits = node.cpu_milli >= shape.cpu_milli and node.memory_mib >= shape.memory_mib
    model = not shape.cards or shape.models is None or node.model in shape.models
    return fits and model and node.cards >= shape.cards


def _use(shape: Shape, kind: int) -> dict[Key, float]:
    """Give what one pod takes of the limits of a kind of node."""
    use: dict[Key, float] = {
        ("cpu", kind): shape.cpu_milli / 1000,
        ("memory", kind): shape.memory_mib / 1024,
    }
    if shape.cards == 1:
        use["size", kind, shape.milli] = 1.0
    elif shape.cards:
        use["cards", kind] = float(shape.cards)
        use["block", kind, shape.cards] = 1.0
    return use


def alone(sizes: Sequence[int]) -> list[Pattern]:
    """Give, of each size, as many as a card holds."""
    return [((size, WHOLE // size),) for size in sizes]


def dearest(prices: Mapping[int, float]) -> tuple[float, Pattern]:
    """Find the shares that fit on one card and are worth most, and what they are worth.

    An unbounded knapsack in steps of the sizes' greatest common divisor.
    """
    step = math.gcd(WHOLE, *prices)
    worth = [0.0] * (WHOLE // step + 1)
    last = [0] * len(worth)
    sized = [(size // step, price) for size, price in prices.items() if price > 0]
    for room in range(1, len(worth)):
        worth[room] = worth[room - 1]
        for size, price in sized:
            if size <= room and worth[room - size] + price > worth[room]:
                worth[room], last[room] = worth[room - size] + price, size
    return worth[-1], _walked(last, step)


def _walked(last: Sequence[int], step: int) -> Pattern:
    counts: Counter[int] = Counter()
    room = len(last) - 1
    while room > 0:
        counts[last[room] * step] += 1
        room -= last[room] or 1
    counts.pop(0, None)
    return tuple(sorted(counts.items()))
