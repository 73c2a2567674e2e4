"""The nodes in their fixed order, laid out so that few need a closer look."""

from collections.abc import Mapping

from gpushare.domain.frag.shapes import Shape, State
from gpushare.domain.frag.tables import Gauge, Tables

NOWHERE = float("inf")


class Standing:
    """One list for each thing that is quickly asked, all by a node's place in order.

    A pass over thousands of nodes mostly meets such as have no room; the lists tell so
    without looking at a node's cards.
    """

    def __init__(self, states: Mapping[str, State]) -> None:
        self.order = sorted(states)
        self.at = {name: at for at, name in enumerate(self.order)}
        self.states = [states[name] for name in self.order]
        self._largest = [_largest(state) for state in self.states]
        self._cpu = [_or_endless(state.cpu_milli) for state in self.states]
        self._memory = [_or_endless(state.memory_mib) for state in self.states]
        self._gauges: list[Gauge | None] = [None] * len(self.states)

    def put(self, at: int, state: State) -> None:
        """Take note of a node that changed."""
        self.states[at] = state
        self._largest[at] = _largest(state)
        self._cpu[at] = _or_endless(state.cpu_milli)
        self._memory[at] = _or_endless(state.memory_mib)
        self._gauges[at] = None

    def forget(self) -> None:
        """Drop what was worked out with tables that are no longer in use."""
        self._gauges = [None] * len(self.states)

    def score(self, at: int, shape: Shape, tables: Tables) -> float:
        """Score one node: its best card's, or ``NOWHERE``."""
        gauge = self._gauges[at]
        if gauge is None:
            gauge = self._gauges[at] = tables.gauge(self.states[at])
        found = tables.best_card(self.states[at], shape, gauge)
        return NOWHERE if found is None else found[0]

    def scores(self, shape: Shape, tables: Tables) -> list[float]:
        """Score all nodes in order, those that are alike only once."""
        scores = [NOWHERE] * len(self.states)
        known: dict[State, float] = {}
        for at in self._roomy(shape):
            state = self.states[at]
            score = known.get(state)
            if score is None:
                score = known[state] = self.score(at, shape, tables)
            scores[at] = score
        return scores

    def _roomy(self, shape: Shape) -> list[int]:
        need = shape.milli
        cpu, memory = shape.cpu_milli or -NOWHERE, shape.memory_mib or -NOWHERE
        columns = zip(self._largest, self._cpu, self._memory, strict=True)
        return [
            at
            for at, (largest, has_cpu, has_memory) in enumerate(columns)
            if largest >= need and has_cpu >= cpu and has_memory >= memory
        ]


def _largest(state: State) -> int:
    """Give the most that is free on one card; 0 where there is no card."""
    return max(0, max(state.residuals, default=0))


def _or_endless(free: int | None) -> float:
    return NOWHERE if free is None else free
