"""Choose nodes and cards for the policy ``frag``: where a pod's cost is least.

The cost of each kind of pod on each node is kept, and updated for changed nodes.
"""

import math
from array import array
from collections import OrderedDict
from collections.abc import (
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableSequence,
    Sequence,
)
from dataclasses import dataclass, field
from threading import Lock

from gpushare.domain.frag.cluster_index import CardStock, ClusterIndex
from gpushare.domain.frag.costs import NEVER, PricedNode
from gpushare.domain.frag.learner import Learner
from gpushare.domain.frag.prices import Tables, plain
from gpushare.domain.frag.shapes import Kind
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Amount, CardUUID, Claim, NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy

ENOUGH = 10
"""Pods that must be seen before anything is learned; until then it is best-fit."""

_MOST_COSTS = 2_000_000
"""Costs kept over all kinds, 8 bytes each: 200 kinds at 10,000 nodes."""
_MOST_KINDS = 1024
_DRIFT_LIMIT = 0.6
"""Eighths of a price's range. A price that is off by more is changed, and then all
nodes are priced again. At 0.5, two pods that come and go in turn would change it each
time."""
_STALE = math.nan


@dataclass(slots=True)
class _Row:
    """The cost of one kind of pod at each place; ``_STALE`` if it must be computed."""

    costs: MutableSequence[float]
    upto: int


@dataclass(slots=True)
class _Asked:
    """One pod's costs by node, and the nodes to price outside the lock."""

    kind: Kind
    row: _Row
    tables: Tables
    costs: dict[NodeName, float]
    stale: list[tuple[NodeName, int, PricedNode | None]]
    priced: list[PricedNode | None] = field(default_factory=list)
    """The stale nodes with these tables, in the same order."""

    def price(self, request: PodRequest, policy: Policy) -> None:
        known: dict[Hashable, float] = {None: NEVER}
        for name, _, node in self.stale:
            now, alike = node, None if node is None else node.alike(request)
            if node is not None and (alike is None or alike not in known):
                now = node.by(self.tables)
                self.costs[name] = now.cost(request, policy)
                known.setdefault(alike, self.costs[name])
            else:
                self.costs[name] = known[alike]
            self.priced.append(now)


class Packer:
    """Choose by learned tables, over one ledger and its hosts.

    Thread-safe. ``learn`` takes long and needs a thread of its own. No lock is held
    while a pod is priced.
    """

    def __init__(self, ledger: Ledger, hosts: Hosts) -> None:
        self.learner = Learner()
        self._ledger = ledger
        self._hosts = hosts
        self._lock = Lock()
        self._index = ClusterIndex(ledger, hosts)
        self._tables = plain()
        self._learned: CardStock | None = None
        self._stock_changed = False
        self._wanted = False
        self._rows: OrderedDict[Kind, _Row] = OrderedDict()

    @property
    def tables(self) -> Tables | None:
        """What was learned; None while too few pods were seen."""
        return self._tables if self._learned else None

    @property
    def seen(self) -> int:
        """How many pods with cards were seen since the start."""
        return self.learner.seen

    @property
    def wanted(self) -> bool:
        """Whether a pod ever asked for a choice; otherwise learning is useless.

        A pod can ask for ``frag`` at any time if the cluster has another policy.
        """
        return self._wanted

    @property
    def due(self) -> bool:
        """Whether to learn again, because of new pods or other cards."""
        return self.learner.seen >= ENOUGH and (self.learner.due or self._stock_changed)

    def see(self, request: PodRequest) -> None:
        """Count a pod; call it once for each pod."""
        self.learner.see(request)

    def learn(self) -> None:
        """Learn from the pods seen so far, and choose by the result from now on."""
        totals = self._totals(self._ledger.nodes())
        with self._lock:
            self._index.follow(self._tables)
            pool, stock = self._index.pool(*totals), self._index.card_stock()
        tables = self.learner.tables(stock.sizes, pool)
        with self._lock:
            self._use(tables)
            self._learned, self._stock_changed = stock, False

    def best(
        self, request: PodRequest, names: Sequence[NodeName], policy: Policy
    ) -> NodeName | None:
        """Return the node with the least cost; the first by name of several."""
        self._wanted = True
        with self._lock:
            if self._learned is None:
                return None
            self._follow(self._learned)
            asked = self._ask(request, names)
        asked.price(request, policy)
        if asked.stale:
            with self._lock:
                self._keep(asked)
        for name, cost in self._seen_otherwise(request, policy, asked):
            asked.costs[name] = cost
        least = min(asked.costs.values(), default=NEVER)
        if least == NEVER:
            return None
        return min(name for name, cost in asked.costs.items() if cost == least)

    def costs(
        self,
        request: PodRequest,
        node: Node,
        claim: Claim,
        free: Mapping[CardUUID, Amount],
    ) -> Mapping[CardUUID, float]:
        """Return a share's cost on each card with room; empty if nothing is learned."""
        tables = self.tables
        if tables is None:
            return {}
        host = self._hosts.free(node.name)
        standing = PricedNode.of(node, host, tables, free)
        found = standing.share_costs(claim, request.host)
        return {uuid: cost for cost, group in found for uuid in group.cards}

    def _follow(self, learned: CardStock) -> None:
        """Apply changes; the scarcity of blocks and models changes with every pod."""
        if not self._index.follow(self._tables):
            return
        pool = self._index.pool()
        if self._tables.drifted(pool, _DRIFT_LIMIT):
            self._use(self._tables.under(pool))
        self._stock_changed = not self._index.card_stock().like(learned)

    def _totals(self, nodes: Iterable[Node]) -> tuple[int, int | None, int | None]:
        have = [node for node in nodes if node.cards]
        cards = sum(len(node.cards) for node in have)
        hosts = [h for node in have if (h := self._hosts.allocatable(node.name))]
        if not hosts:
            return cards, None, None
        cpu = sum(host.cpu_milli for host in hosts)
        return cards, cpu, sum(host.memory_mib for host in hosts)

    def _use(self, tables: Tables) -> None:
        self._tables = tables
        self._rows.clear()

    def _ask(self, request: PodRequest, names: Sequence[NodeName]) -> _Asked:
        kind, places = Kind.of(request), self._index.places
        row = self._row(kind)
        asked = _Asked(kind, row, self._tables, {}, [])
        for name in names:
            at = places.get(name)
            if at is None:
                continue
            cost = asked.costs[name] = row.costs[at]
            if math.isnan(cost):
                asked.stale.append((name, at, self._index.nodes[at]))
        return asked

    def _keep(self, asked: _Asked) -> None:
        """Keep the computed costs, except of nodes that changed meanwhile."""
        if self._tables is not asked.tables:
            return
        nodes, current = self._index.nodes, self._rows.get(asked.kind) is asked.row
        for (name, at, before), now in zip(asked.stale, asked.priced, strict=True):
            if nodes[at] is before:
                nodes[at] = now
                if current:
                    asked.row.costs[at] = asked.costs[name]

    def _seen_otherwise(
        self, request: PodRequest, policy: Policy, asked: _Asked
    ) -> Iterator[tuple[NodeName, float]]:
        """Price again the nodes that keep capacity which does not block this pod."""
        pod = request.pod
        own = self._ledger.placement(pod.uid)
        for name in self._ledger.nominated() | ({own.node} if own else set()):
            node = self._ledger.node(name)
            if node is None or name not in asked.costs:
                continue
            seen = node.as_seen_by(pod)
            if seen is not node:
                there = PricedNode.of(seen, self._hosts.free(name), asked.tables)
                yield name, there.cost(request, policy)

    def _row(self, kind: Kind) -> _Row:
        index, row = self._index, self._rows.get(kind)
        changed = None if row is None else index.since(row.upto)
        if row is None or changed is None:
            row, changed = _Row(array("d"), 0), []
            self._rows[kind] = row
        self._rows.move_to_end(kind)
        most = min(_MOST_KINDS, _MOST_COSTS // max(1, len(index.nodes)))
        while len(self._rows) > max(1, most):
            self._rows.popitem(last=False)
        # New places are in the log too, and are stale from the start.
        row.costs.extend([_STALE] * (len(index.nodes) - len(row.costs)))
        for at in changed:
            row.costs[at] = _STALE
        row.upto = index.now()
        return row
