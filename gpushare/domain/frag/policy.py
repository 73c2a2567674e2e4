"""Who chooses for the policy ``frag``: where a pod costs least of what others need.

What each node costs for a kind of pod is kept, and mended for the nodes that changed.
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

from gpushare.domain.frag.cluster_index import Build, ClusterIndex
from gpushare.domain.frag.costs import NEVER, Standing
from gpushare.domain.frag.learner import Learner
from gpushare.domain.frag.prices import Tables, plain
from gpushare.domain.frag.shapes import Kind
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Amount, CardUUID, Claim, NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy

ENOUGH = 10
"""Pods to have seen before anything is learnt of them; best-fit chooses until then."""

_MOST_COSTS = 2_000_000
"""Over all kinds, at 8 bytes each: 200 kinds are kept for 10,000 nodes."""
_MOST_KINDS = 1024
_EIGHTHS = 0.6
"""A price must be off by so much before it is changed, since all nodes are priced
anew then: at 0.5 two pods that come and go in turn would do it each time."""
_STALE = math.nan


@dataclass(slots=True)
class _Row:
    """What one kind of pod costs at each place; ``_STALE`` where that must be asked."""

    costs: MutableSequence[float]
    upto: int


@dataclass(slots=True)
class _Asked:
    """One pod's costs by node, and what must be priced for it outside the lock."""

    kind: Kind
    row: _Row
    tables: Tables
    costs: dict[NodeName, float]
    stale: list[tuple[NodeName, int, Standing | None]]
    priced: list[Standing | None] = field(default_factory=list)
    """The stale nodes by the tables, in their order."""

    def price(self, request: PodRequest, policy: Policy) -> None:
        """Price the stale ones, those that are alike once."""
        known: dict[Hashable, float] = {None: NEVER}
        for name, _, node in self.stale:
            now, alike = node, None if node is None else node.alike(request)
            if node is not None and (alike is None or alike not in known):
                now = node.by(self.tables)
                self.costs[name] = now.cost(request, policy, self.tables)
                known.setdefault(alike, self.costs[name])
            else:
                self.costs[name] = known[alike]
            self.priced.append(now)


class Packer:
    """Chooses by what was learnt, over one ledger and the book of its hosts.

    Safe for several threads. ``learn`` is for a thread of its own; all else is quick,
    and nobody waits while another's pod is priced.
    """

    def __init__(self, ledger: Ledger, hosts: Hosts) -> None:
        self.learner = Learner()
        self._ledger = ledger
        self._hosts = hosts
        self._lock = Lock()
        self._roll = ClusterIndex(ledger, hosts)
        self._tables = plain()
        self._learnt: Build | None = None
        self._rebuilt = False
        self._wanted = False
        self._rows: OrderedDict[Kind, _Row] = OrderedDict()

    @property
    def tables(self) -> Tables | None:
        """What was learnt; None while too little has been seen."""
        return self._tables if self._learnt else None

    @property
    def seen(self) -> int:
        """How many pods with cards were seen since the start."""
        return self.learner.seen

    @property
    def wanted(self) -> bool:
        """Whether anybody ever asked for a choice: else there is nothing to learn for.

        A pod may ask for ``frag`` at any time where the cluster's policy is another.
        """
        return self._wanted

    @property
    def due(self) -> bool:
        """Whether there is something to learn: of new pods, or for other cards."""
        return self.learner.seen >= ENOUGH and (self.learner.due or self._rebuilt)

    def see(self, request: PodRequest) -> None:
        """Count a pod; each once, when it is first heard of."""
        self.learner.see(request)

    def learn(self) -> None:
        """Learn from the pods that were seen, and choose by that from now on."""
        totals = self._totals(self._ledger.nodes())
        with self._lock:
            self._roll.follow(self._tables)
            pool, build = self._roll.pool(*totals), self._roll.build()
        tables = self.learner.tables(build.yardstick, pool)
        with self._lock:
            self._use(tables)
            self._learnt, self._rebuilt = build, False

    def best(
        self, request: PodRequest, names: Sequence[NodeName], policy: Policy
    ) -> NodeName | None:
        """Name the node of these where the pod costs least; of equals the first one."""
        self._wanted = True
        with self._lock:
            if self._learnt is None:
                return None
            self._follow(self._learnt)
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
        """Return what the share costs on each card with room; nothing if unlearnt."""
        tables = self.tables
        if tables is None:
            return {}
        host = self._hosts.free(node.name)
        standing = Standing.of(node, host, tables, free)
        found = standing.share_costs(claim, request.host, tables)
        return {uuid: cost for cost, look in found for uuid in look.cards}

    def _follow(self, learnt: Build) -> None:
        """Take over what changed; blocks and models get scarce with every pod."""
        if not self._roll.follow(self._tables):
            return
        pool = self._roll.pool()
        if self._tables.drifted(pool, _EIGHTHS):
            self._use(self._tables.under(pool))
        self._rebuilt = not self._roll.build().like(learnt)

    def _totals(self, nodes: Iterable[Node]) -> tuple[int, int | None, int | None]:
        """Sum up what the nodes with cards were built with, where they tell it."""
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
        kind, places = Kind.of(request), self._roll.places
        row = self._row(kind)
        asked = _Asked(kind, row, self._tables, {}, [])
        for name in names:
            at = places.get(name)
            if at is None:
                continue
            cost = asked.costs[name] = row.costs[at]
            if math.isnan(cost):
                asked.stale.append((name, at, self._roll.nodes[at]))
        return asked

    def _keep(self, asked: _Asked) -> None:
        """Write down what was priced, but where things have changed meanwhile."""
        if self._tables is not asked.tables:
            return
        nodes, current = self._roll.nodes, self._rows.get(asked.kind) is asked.row
        for (name, at, before), now in zip(asked.stale, asked.priced, strict=True):
            if nodes[at] is before:
                nodes[at] = now
                if current:
                    asked.row.costs[at] = asked.costs[name]

    def _seen_otherwise(
        self, request: PodRequest, policy: Policy, asked: _Asked
    ) -> Iterator[tuple[NodeName, float]]:
        """Price anew where room is kept that does not stand in this pod's way."""
        pod = request.pod
        own = self._ledger.placement(pod.uid)
        for name in self._ledger.nominated() | ({own.node} if own else set()):
            page = self._ledger.node(name)
            if page is None or name not in asked.costs:
                continue
            seen = page.as_seen_by(pod)
            if seen is not page:
                there = Standing.of(seen, self._hosts.free(name), asked.tables)
                yield name, there.cost(request, policy, asked.tables)

    def _row(self, kind: Kind) -> _Row:
        roll, row = self._roll, self._rows.get(kind)
        changed = None if row is None else roll.since(row.upto)
        if row is None or changed is None:
            row, changed = _Row(array("d"), 0), []
            self._rows[kind] = row
        self._rows.move_to_end(kind)
        most = min(_MOST_KINDS, _MOST_COSTS // max(1, len(roll.nodes)))
        while len(self._rows) > max(1, most):
            self._rows.popitem(last=False)
        # New places come in the log, too, and are stale from the start.
        row.costs.extend([_STALE] * (len(roll.nodes) - len(row.costs)))
        for at in changed:
            row.costs[at] = _STALE
        row.upto = roll.now()
        return row
