"""Who chooses for the policy ``frag``: where a pod costs least of what others need.

What each node costs for a kind of pod is kept, and mended for the nodes that changed.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from threading import Lock

from gpushare.domain.costs import NEVER, Standing
from gpushare.domain.frag.pool import Pool
from gpushare.domain.frag.tables import Tables, plain
from gpushare.domain.hosts import Hosts
from gpushare.domain.learner import Learner
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    Amount,
    CardUUID,
    Claim,
    NodeName,
    PodRequest,
)
from gpushare.domain.node import Node
from gpushare.domain.packing import Kind
from gpushare.domain.policies import Policy

ENOUGH = 10
"""Pods to have seen before anything is learnt of them; best-fit chooses until then."""

_MOST_KINDS = 64
"""Kept at a time: at 10,000 nodes a kind takes 80 kB."""
_LONGEST_LOG = 65_536


@dataclass(slots=True)
class _Row:
    """What one kind of pod costs on each node; ``stale`` where that is not so now."""

    costs: MutableSequence[float]
    stale: set[int]
    upto: int


class Packer:
    """Chooses by what was learnt, over one ledger and the book of its hosts.

    Safe for several threads. ``learn`` is for a thread of its own; all else is quick.
    """

    def __init__(self, ledger: Ledger, hosts: Hosts) -> None:
        self.learner = Learner()
        self._ledger = ledger
        self._hosts = hosts
        self._lock = Lock()
        self._position = -1
        self._tables = plain()
        self._learnt = False
        self._wanted = False
        self._places: dict[NodeName, int] = {}
        self._names: list[NodeName] = []
        self._nodes: list[Standing | None] = []
        self._idle: Counter[str] = Counter()
        self._untouched: Counter[int] = Counter()
        self._log: list[int] = []
        self._log_start = 0
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
        """Whether there is something to learn."""
        return self.learner.due and self.learner.seen >= ENOUGH

    def see(self, request: PodRequest) -> None:
        """Count a pod; each once, when it is first heard of."""
        self.learner.see(request)

    def learn(self) -> None:
        """Learn from the pods that were seen, and choose by that from now on."""
        nodes = self._ledger.nodes()
        with self._lock:
            self._follow()
            pool = self._pool(*self._totals(nodes))
        tables = self.learner.tables(nodes, pool)
        with self._lock:
            self._use(tables)
            self._learnt = True

    def best(
        self, request: PodRequest, names: Sequence[NodeName], policy: Policy
    ) -> NodeName | None:
        """Name the node of these where the pod costs least; of equals the first one."""
        self._wanted = True
        with self._lock:
            if not self._learnt:
                return None
            if self._follow():
                # Blocks and models get scarce and plenty with every pod.
                under = self._tables.under(self._pool())
                if under is not self._tables:
                    self._use(under)
            known = [name for name in names if name in self._places]
            places = [self._places[name] for name in known]
            row = self._row(Kind.of(request))
            for at in row.stale.intersection(places):
                node = self._nodes[at]
                row.costs[at] = (
                    NEVER if node is None else node.cost(request, policy, self._tables)
                )
            row.stale.difference_update(places)
            found = [row.costs[at] for at in places]
        least = min(found, default=NEVER)
        if least == NEVER:
            return None
        return min(n for n, each in zip(known, found, strict=True) if each == least)

    def costs(
        self,
        request: PodRequest,
        node: Node,
        claim: Claim,
        free: Mapping[CardUUID, Amount],
    ) -> Mapping[CardUUID, float]:
        """Say what the share costs on each card with room; nothing if unlearnt."""
        tables = self.tables
        if tables is None:
            return {}
        host = self._hosts.free(node.name)
        standing = Standing.of(node, host, tables, free)
        found = standing.share_costs(claim, request.host, tables)
        return {uuid: cost for cost, look in found for uuid in look.cards}

    def _follow(self) -> bool:
        """Take over what changed in the books; tell whether anything did."""
        self._position, changed = self._ledger.changed_since(self._position)
        hosts = self._hosts.changes()
        if changed is None:
            changed = [*self._names, *(node.name for node in self._ledger.nodes())]
        names: Iterable[NodeName] = dict.fromkeys([*changed, *hosts])
        moved = [self._take(name) for name in names]
        return any(moved)

    def _take(self, name: NodeName) -> bool:
        page = self._ledger.node(name)
        at = self._places.get(name)
        if page is None and at is None:
            return False
        if at is None:
            at = self._places[name] = len(self._names)
            self._names.append(name)
            self._nodes.append(None)
        before, after = self._nodes[at], None
        if page is not None:
            after = Standing.of(page, self._hosts.free(name), self._tables)
        if after and before and after.state == before.state and before.page is page:
            return False
        self._count(before, -1)
        self._nodes[at] = after
        self._count(after, +1)
        self._note(at)
        return True

    def _count(self, node: Standing | None, sign: int) -> None:
        if node is not None:
            self._idle[node.state.model] += sign * node.state.idle
            self._untouched[node.state.untouched] += sign

    def _note(self, at: int) -> None:
        self._log.append(at)
        if len(self._log) > _LONGEST_LOG:
            half = len(self._log) // 2
            del self._log[:half]
            self._log_start += half

    def _totals(self, nodes: Iterable[Node]) -> tuple[int, int | None, int | None]:
        """Sum up what the nodes with cards were built with, where they tell it."""
        have = [node for node in nodes if node.cards]
        cards = sum(len(node.cards) for node in have)
        hosts = [h for node in have if (h := self._hosts.allocatable(node.name))]
        if not hosts:
            return cards, None, None
        cpu = sum(host.cpu_milli for host in hosts)
        return cards, cpu, sum(host.memory_mib for host in hosts)

    def _pool(
        self, cards: int = 0, cpu: int | None = None, memory: int | None = None
    ) -> Pool:
        """Sum up what is idle now."""
        return Pool(cards, cpu, memory, dict(self._idle), dict(self._untouched))

    def _use(self, tables: Tables) -> None:
        self._tables = tables
        self._rows.clear()
        self._nodes = [node and node.by(tables) for node in self._nodes]

    def _row(self, kind: Kind) -> _Row:
        now = self._log_start + len(self._log)
        row = self._rows.get(kind)
        if row is None or row.upto < self._log_start:
            row = _Row(array("d"), set(), now)
            self._rows[kind] = row
            if len(self._rows) > _MOST_KINDS:
                self._rows.popitem(last=False)
        self._rows.move_to_end(kind)
        row.stale.update(self._log[row.upto - self._log_start :])
        row.upto = now
        new = range(len(row.costs), len(self._nodes))
        row.stale.update(new)
        row.costs.extend([NEVER] * len(new))
        return row
