"""Choose nodes and cards for the policy ``frag``: where a pod's cost is least.

The cost of each kind of pod on each node is kept, and updated for changed nodes.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from threading import Lock

from gpushare.domain.frag.cluster_index import CardStock, ClusterIndex
from gpushare.domain.frag.costs import PricedNode
from gpushare.domain.frag.learner import Learner
from gpushare.domain.frag.prices import Tables, untrained_tables
from gpushare.domain.frag.search import CostRows, NodeQuestion
from gpushare.domain.frag.shapes import RequestKind
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Amount, CardUUID, Claim, NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy

ENOUGH = 10
"""Pods that must be seen before anything is learned; until then it is best-fit."""

_DRIFT_LIMIT = 0.6
"""Eighths of a price's range. A price that is off by more is changed, and then all
nodes are priced again. At 0.5, two pods that come and go in turn would change it each
time."""


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
        self._tables = untrained_tables()
        self._learned: CardStock | None = None
        self._stock_changed = False
        self._wanted = False
        self._rows = CostRows(self._index)

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
            standings = list(self._index.alike)
        tables = self.learner.tables(stock.sizes, pool)
        for standing in standings:
            # Here, and not when the first pod asks for all nodes.
            standing.slope(tables)
        with self._lock:
            self._use(tables)
            self._learned, self._stock_changed = stock, False

    def best(
        self, request: PodRequest, names: Collection[NodeName], policy: Policy
    ) -> NodeName | None:
        """Return the node with the least cost; the first by name of several."""
        self._wanted = True
        if self._learned is None:
            return None
        wanted = names if isinstance(names, AbstractSet) else frozenset(names)
        question = NodeQuestion(request, policy, wanted, RequestKind.of(request))
        others: dict[NodeName, float] | None = None
        # Near what is known first: of the nodes of the last search, and those that
        # changed. Among all nodes only if none of them is below what is complete.
        for begin in (self._rows.near, self._rows.everywhere):
            with self._lock:
                self._follow(self._learned)
                search = begin(question, self._tables)
            if search is None:
                continue
            if others is None:
                others = self._seen_otherwise(question, search.tables)
            best = search.best(others)
            with self._lock:
                # Tables that were learned meanwhile have made the row worthless.
                if search.tables is self._tables:
                    self._rows.keep(search)
            if best is not None or search.complete:
                return best
        return None

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
        known = self._index.nodes.get(node.name)
        if (
            known
            and known.node is node
            and known.host is host
            and not _taken(node, free)
        ):
            group_costs = known.by(tables).share_costs(claim, request.host)
        else:
            there = PricedNode.of(node, host, tables, free)
            group_costs = there.share_costs(claim, request.host)
        return {uuid: cost for cost, group in group_costs for uuid in group.cards}

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

    def _seen_otherwise(
        self, question: NodeQuestion, tables: Tables
    ) -> dict[NodeName, float]:
        """Price the nodes that keep capacity which does not block this pod."""
        pod, costs = question.request.pod, {}
        own = self._ledger.placement(pod.uid)
        for name in self._ledger.nodes_with_nominations() | (
            {own.node} if own else set()
        ):
            node = self._ledger.node(name)
            if node is None or name not in question.names:
                continue
            seen = node.as_seen_by(pod)
            if seen is not node:
                there = PricedNode.of(seen, self._hosts.free(name), tables)
                costs[name] = there.cost(question.request, question.policy)
        return costs


def _taken(node: Node, free: Mapping[CardUUID, Amount]) -> bool:
    """Return whether these are not the node's own free amounts."""
    own_free = node.free
    return any(own_free[uuid] is not room for uuid, room in free.items())
