"""Which node and card is best for a pod, kept up to date node by node."""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpushare.domain.frag.pool import Pool
from gpushare.domain.frag.shapes import Shape, State
from gpushare.domain.frag.standing import NOWHERE, Standing
from gpushare.domain.frag.tables import Tables, plain

ROWS_AT_MOST = 256
SCORES_AT_MOST = 1_000_000
"""Over all rows, at 8 bytes each: 100 shapes are kept for 10,000 nodes."""
LOG_AT_MOST = 4096
FEW = 8
"""Up to one node in so many, a new shape is scored on the nodes asked for alone."""


@dataclass(frozen=True, slots=True)
class Best:
    """The place that a pod should have."""

    node: str
    card: int
    """Position of the card, the first one for several; -1 for a pod without cards."""
    score: float


@dataclass(slots=True)
class _Row:
    """One shape's scores on all nodes, right up to a point in the log of changes."""

    scores: "array[float]"
    upto: int


class Index:
    """The scores of all nodes, by shape; only nodes that changed are scored again.

    It starts as best-fit, until it is given tables. Nodes of equal score rank by name.
    Not for several threads at once: the caller has a lock, or an index for each.
    """

    def __init__(
        self,
        states: Mapping[str, State],
        *,
        cards: int,
        cpu_milli: int | None = None,
        memory_mib: int | None = None,
    ) -> None:
        self._states = dict(states)
        self._totals = (cards, cpu_milli, memory_mib)
        self._idle: Counter[str] = Counter()
        self._untouched: Counter[int] = Counter()
        for state in self._states.values():
            self._count(state, 1)
        self._tables = plain()
        self._moved = True
        self._standing: Standing | None = None
        self._rows: OrderedDict[Shape, _Row] = OrderedDict()
        self._log: list[int] = []

    @property
    def pool(self) -> Pool:
        """The cluster's sums as they are now, to learn by."""
        return Pool(*self._totals, dict(self._idle), dict(self._untouched))

    @property
    def tables(self) -> Tables:
        """The tables in use, as priced at the last question."""
        return self._tables

    def resize(
        self, *, cards: int, cpu_milli: int | None = None, memory_mib: int | None = None
    ) -> None:
        """Take note of other totals; they count when tables are learnt next."""
        self._totals = (cards, cpu_milli, memory_mib)

    def put(self, node: str, state: State) -> None:
        """Take note of a node that changed or is new."""
        old = self._states.get(node)
        if state == old:
            return
        if old is not None:
            self._count(old, -1)
        self._states[node] = state
        self._count(state, 1)
        self._moved = True
        if self._standing is None:
            return
        if old is None:
            self._standing = None
            return
        at = self._standing.at[node]
        self._standing.put(at, state)
        self._log.append(at)

    def drop(self, node: str) -> None:
        """Take note of a node that is gone; one that was never there is no error."""
        old = self._states.pop(node, None)
        if old is not None:
            self._count(old, -1)
            self._moved = True
            self._standing = None

    def swap(self, tables: Tables) -> None:
        """Score by other tables from now on."""
        self._moved = True
        self._use(tables)

    def best(self, shape: Shape, among: Collection[str] | None = None) -> Best | None:
        """Find the best place on these nodes, or on all; None where it fits on none.

        Names that the index does not know are passed over.
        """
        self._price()
        standing = self._stand()
        if among is not None and self._new_for_few(shape, among, standing):
            return self._pick(shape, among)
        scores = self._row(shape, standing)
        low = min(scores, default=NOWHERE)
        if low == NOWHERE:
            return None
        node = standing.order[scores.index(low)]
        if among is None or node in among:
            return self._pick(shape, [node])
        at = [standing.at[name] for name in among if name in standing.at]
        first = min(((scores[i], i) for i in at), default=(NOWHERE, -1))
        if first[0] == NOWHERE:
            return None
        return self._pick(shape, [standing.order[first[1]]])

    def _new_for_few(
        self, shape: Shape, among: Collection[str], standing: Standing
    ) -> bool:
        return shape not in self._rows and len(among) * FEW < len(standing.order)

    def _pick(self, shape: Shape, nodes: Iterable[str]) -> Best | None:
        """Look closely at a few nodes."""
        best: Best | None = None
        for node in sorted(nodes):
            state = self._states.get(node)
            found = None if state is None else self._tables.best_card(state, shape)
            if found and (best is None or found[0] < best.score):
                best = Best(node, found[1], found[0])
        return best

    def _price(self) -> None:
        if self._moved:
            self._moved = False
            priced = self._tables.under(self.pool)
            if priced is not self._tables:
                self._use(priced)

    def _use(self, tables: Tables) -> None:
        self._tables = tables
        self._rows.clear()
        self._log.clear()
        if self._standing is not None:
            self._standing.forget()

    def _stand(self) -> Standing:
        if self._standing is None:
            self._standing = Standing(self._states)
            self._rows.clear()
            self._log.clear()
        return self._standing

    def _row(self, shape: Shape, standing: Standing) -> "array[float]":
        row = self._rows.get(shape)
        if row is None:
            scores = array("d", standing.scores(shape, self._tables))
            self._rows[shape] = _Row(scores, len(self._log))
            most = SCORES_AT_MOST // max(1, len(scores))
            while len(self._rows) > max(1, min(ROWS_AT_MOST, most)):
                self._rows.popitem(last=False)
            return scores
        self._rows.move_to_end(shape)
        for at in set(self._log[row.upto :]):
            row.scores[at] = standing.score(at, shape, self._tables)
        row.upto = len(self._log)
        if row.upto > max(LOG_AT_MOST, len(standing.order)):
            self._shorten()
        return row.scores

    def _shorten(self) -> None:
        """Begin a new log; rows that had yet to read the old one are dropped."""
        end = len(self._log)
        for shape in [shape for shape, row in self._rows.items() if row.upto < end]:
            del self._rows[shape]
        for row in self._rows.values():
            row.upto = 0
        self._log.clear()

    def _count(self, state: State, sign: int) -> None:
        self._idle[state.model] += sign * state.idle
        self._untouched[state.untouched] += sign
