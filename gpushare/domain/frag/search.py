"""The search for the node where a pod costs least, and what is kept between searches.

Pods of one kind cost the same, and few nodes change between two of them. So a search
looks at the nodes that changed and at the cheapest of the others. It looks only as
closely as it must: a node's cost is computed if the least that it can be is not more
than the cost of another node.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest
from itertools import groupby
from operator import itemgetter

from gpushare.domain.frag.cluster_index import ClusterIndex
from gpushare.domain.frag.costs import NEVER, LeastCost, PricedNode, Standing
from gpushare.domain.frag.prices import Tables
from gpushare.domain.frag.shapes import RequestKind
from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.policies import Policy

NEAREST = 64
"""How many of the cheapest nodes are kept for each kind."""
MOST_UNKNOWN = 2048
"""Names kept, for each kind, of nodes of which nothing is known."""
MOST_KINDS = 512

CostEntry = tuple[float, NodeName, bool]
"""A node's cost, or the least that it can be, and whether it is the cost."""
CostLimit = tuple[float, str]
"""Entries below it are complete."""
_NOTHING: CostLimit = (-1.0, "")
_ALL: CostLimit = (NEVER, "")


@dataclass(slots=True)
class CostRow:
    """What is known of the costs of one kind of pod."""

    upto: int
    """The end of the log of changed nodes when this was right."""
    unknown: set[NodeName] | None = None
    """The nodes of which nothing is known; None if they are too many."""
    limit: CostLimit = _NOTHING
    nearest: list[CostEntry] = field(default_factory=list)
    """The known nodes below the limit, sorted."""
    costs: dict[NodeName, float] = field(default_factory=dict)
    """The costs in ``nearest``."""

    def forget(self, name: NodeName) -> None:
        """Drop what is known of a node that changed."""
        self._remove(name)
        if self.unknown is not None:
            self.unknown.add(name)
            if len(self.unknown) > MOST_UNKNOWN:
                self.unknown = None

    def put(self, entry: CostEntry) -> None:
        """Record what is known of a node."""
        name = entry[1]
        self._remove(name)
        if self.unknown is not None:
            self.unknown.discard(name)
        if entry < self.limit:
            insort(self.nearest, entry)
            self.costs[name] = entry[0]
            # Cut at twice the number, so that it is rare. What is cut off lies beyond
            # the new limit, where nothing is known to be complete.
            if len(self.nearest) > 2 * NEAREST:
                self.limit = self.nearest[NEAREST][:2]
                for _, far, _ in self.nearest[NEAREST:]:
                    del self.costs[far]
                del self.nearest[NEAREST:]

    def _remove(self, name: NodeName) -> None:
        cost = self.costs.pop(name, None)
        if cost is not None:
            del self.nearest[bisect_left(self.nearest, (cost, name))]


@dataclass(frozen=True, slots=True)
class NodeQuestion:
    """A pod, and the names of the nodes that it may have."""

    request: PodRequest
    policy: Policy
    names: AbstractSet[NodeName]
    kind: RequestKind


@dataclass(slots=True)
class NodeSearch:
    """One search, which needs no lock.

    A node that changes meanwhile is looked at again by the next search.
    """

    question: NodeQuestion
    tables: Tables
    nodes: Mapping[NodeName, PricedNode]
    """As they are now."""
    row: CostRow
    limit: CostLimit
    known: Sequence[CostEntry]
    """Of known nodes, all that are below the limit."""
    unknown: Sequence[tuple[NodeName, PricedNode]]
    priced: list[tuple[CostEntry, PricedNode]] = field(default_factory=list)
    """What is known in addition; the last entry of a node counts."""
    alike: dict[Hashable, float] = field(default_factory=dict)
    """The costs of nodes that are alike, which are computed once."""

    @property
    def complete(self) -> bool:
        """Whether there is no other node, if none was found."""
        return self.limit == _ALL

    def best(self, others: Mapping[NodeName, float]) -> NodeName | None:
        """Return the first by name of the nodes with the least cost, if one is near.

        ``others`` has the costs of nodes that this pod sees otherwise than its kind.
        """
        # First a floor for each node that changed: it costs a look-up for each
        # standing. Then only the nodes that can be the cheapest are priced.
        self._estimate()
        return self._cheapest(
            [*self.known, *(entry for entry, _ in self.priced)], others
        )

    def _estimate(self) -> None:
        floor = LeastCost(self.question.request, self.tables)
        least: dict[Standing, float] = {}
        for name, node in self.unknown:
            standing = node.standing
            cost = least.get(standing)
            if cost is None:
                cost = least[standing] = floor.of(standing)
            self.priced.append(((cost, name, cost == NEVER), node))

    def _cheapest(
        self, heap: list[CostEntry], others: Mapping[NodeName, float]
    ) -> NodeName | None:
        # Best first. A floor never exceeds its cost, so the first exact entry that
        # comes off the heap is the cheapest, and what is behind it needs no price.
        heap += ((cost, name, True) for name, cost in others.items())
        heapify(heap)
        while heap and heap[0] < self.limit:
            cost, name, exact = heappop(heap)
            # A node of ``others`` is in the row, too, with the cost for its kind of
            # pod.
            if name not in self.question.names or others.get(name, cost) != cost:
                continue
            if exact:
                return name
            entry = self._price(name)
            if entry is not None:
                heappush(heap, entry)
        return None

    def _price(self, name: NodeName) -> CostEntry | None:
        """Compute the cost on a node; None if it is gone."""
        node = self.nodes.get(name)
        if node is None:
            return None
        request = self.question.request
        key = node.alike(request)
        cost = self.alike.get(key)
        if cost is None:
            cost = node.by(self.tables).cost(request, self.question.policy)
            self.alike[key] = cost
        entry = (cost, name, True)
        self.priced.append((entry, node))
        return entry

    def keep(self) -> None:
        """Write what was found into the row, except of nodes that changed meanwhile."""
        for entry, node in self.priced:
            if self.nodes.get(entry[1]) is node:
                self.row.put(entry)


_Alike = tuple[Standing, AbstractSet[NodeName]]
"""The names of nodes that have the same free; the set may change, but not while C code
reads it."""


@dataclass(slots=True)
class WideNodeSearch(NodeSearch):
    """A search among all nodes, which makes a new row."""

    groups: Sequence[_Alike] = ()
    """All nodes, by what they have free."""

    def best(self, others: Mapping[NodeName, float]) -> NodeName | None:
        """Return the first by name of the nodes with the least cost, if it fits on one.

        Only if none is among the nearest, all are sorted.
        """
        names = self.question.names
        floor = LeastCost(self.question.request, self.tables)
        least = [
            (floor.of(standing), alike)
            for standing, alike in self.groups
            if not alike.isdisjoint(names)
        ]
        # Nodes with equal free capacity have one floor: a large cluster has few of
        # them.
        least.sort(key=itemgetter(0))
        # The cheapest floors first. Mostly one of those nodes has the least cost, and
        # it is below all other floors.
        best = self._among(least, NEAREST, others)
        if best is None and not self.complete:
            best = self._among(least, len(names), others)
        return best

    def keep(self) -> None:
        """Fill the row; it is brought up to date when it is next used."""
        row = self.row
        entries = {entry[1]: entry for entry in self.known}
        entries.update((entry[1], entry) for entry, _ in self.priced)
        row.limit = self.limit
        row.nearest = sorted(entry for entry in entries.values() if entry < row.limit)
        row.costs = {name: cost for cost, name, _ in row.nearest}

    def _among(
        self,
        least: Iterable[tuple[float, AbstractSet[NodeName]]],
        most: int,
        others: Mapping[NodeName, float],
    ) -> NodeName | None:
        """Search among about so many nodes that can cost least."""
        entries: list[CostEntry] = []
        self.limit = _ALL
        for cost, same in groupby(least, key=itemgetter(0)):
            if cost == NEVER or self.limit != _ALL:
                break
            # Below this floor all nodes are known, which ``limit`` says.
            if len(entries) >= most:
                self.limit = (cost, "")
                break
            names = [name for _, alike in same for name in alike & self.question.names]
            # Thousands of equal nodes, as in an empty cluster: only the first by name.
            if len(names) > 2 * most:
                *names, last = nsmallest(most + 1, names)
                self.limit = (cost, last)
            entries += [(cost, name, False) for name in names]
        self.known = entries
        return self._cheapest(entries.copy(), others)


class CostRows:
    """What is known of each kind of pod. Not thread-safe."""

    def __init__(self, index: ClusterIndex) -> None:
        self._index = index
        self._rows: OrderedDict[RequestKind, CostRow] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of kinds."""
        return len(self._rows)

    def clear(self) -> None:
        """Forget all, because the tables are others."""
        self._rows.clear()

    def near(self, question: NodeQuestion, tables: Tables) -> NodeSearch | None:
        """Begin a search among the nearest nodes and those that changed.

        None if too little is known.
        """
        row, nodes = self._row(question.kind), self._index.nodes
        if row.unknown is None:
            return None
        names = question.names & row.unknown
        unknown = [(name, nodes[name]) for name in names if name in nodes]
        known = row.nearest.copy()
        return NodeSearch(question, tables, nodes, row, row.limit, known, unknown)

    def everywhere(self, question: NodeQuestion, tables: Tables) -> WideNodeSearch:
        """Begin a search among all nodes."""
        index, names = self._index, question.names
        row = CostRow(index.now())
        if len(index.nodes) - len(names) <= MOST_UNKNOWN:
            row.unknown = index.nodes.keys() - names
        groups = list(index.alike.items())
        return WideNodeSearch(
            question, tables, index.nodes, row, _ALL, (), (), groups=groups
        )

    def keep(self, search: NodeSearch) -> None:
        """Keep what was found."""
        kind = search.question.kind
        if isinstance(search, WideNodeSearch):
            search.keep()
            self._rows[kind] = search.row
            self._rows.move_to_end(kind)
            while len(self._rows) > MOST_KINDS:
                self._rows.popitem(last=False)
        elif self._rows.get(kind) is search.row:
            search.keep()

    def _row(self, kind: RequestKind) -> CostRow:
        """Return the row without what changed, or an empty one."""
        index, row = self._index, self._rows.get(kind)
        changed = None if row is None else index.since(row.upto)
        if row is None or changed is None:
            return CostRow(index.now())
        self._rows.move_to_end(kind)
        # A changed node may have become the cheapest, so it is unknown until it is
        # priced again.
        for name in changed:
            row.forget(name)
        row.upto = index.now()
        return row
