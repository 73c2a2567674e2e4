"""An index of all nodes for the policy ``frag``, with totals of what is free."""

from collections import Counter
from dataclasses import dataclass

from gpushare.domain.frag.costs import PricedNode, Standing, Standings
from gpushare.domain.frag.prices import Tables
from gpushare.domain.frag.shapes import CardSizes, ClusterCapacity
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Card, NodeName

_LONGEST_LOG = 65_536


@dataclass(frozen=True, slots=True)
class CardStock:
    """The number and sizes of all cards, on which learned tables depend."""

    sizes: CardSizes
    cards: int
    largest: int
    """The most cards of one node."""

    def like(self, other: "CardStock") -> bool:
        """Return whether tables that were learned for one are valid for the other.

        Single nodes of a known kind that come and go do not require learning again.
        """
        same = self.sizes == other.sizes and self.largest == other.largest
        return same and 8 * abs(self.cards - other.cards) <= other.cards


class ClusterIndex:
    """All nodes, the totals of free capacity, and a log of changed nodes.

    Not thread-safe.
    """

    def __init__(self, ledger: Ledger, hosts: Hosts) -> None:
        self._ledger = ledger
        self._hosts = hosts
        self._position = -1
        self.nodes: dict[NodeName, PricedNode] = {}
        """All nodes; their tables may be older ones."""
        self.alike: dict[Standing, set[NodeName]] = {}
        """The names of nodes that have the same free."""
        self._standings = Standings()
        self._idle: Counter[str] = Counter()
        self._untouched: Counter[int] = Counter()
        self._cpu = 0
        """Free milli of all nodes with cards whose CPU is known."""
        self._hostless = 0
        """Nodes with cards whose CPU is not known."""
        self._sizes: Counter[tuple[str, int]] = Counter()
        self._numbers: Counter[int] = Counter()
        self._stock: CardStock | None = None
        """None if cards were added or removed since it was computed."""
        self._log: list[NodeName] = []
        self._log_start = 0

    def follow(self, tables: Tables) -> bool:
        """Apply the changes of ledger and hosts; return whether there were any."""
        self._position, changed = self._ledger.changed_since(self._position)
        hosts = self._hosts.changes()
        if changed is None or hosts is None:
            changed = [*self.nodes, *(node.name for node in self._ledger.nodes())]
        names = dict.fromkeys([*changed, *(hosts or ())])
        moved = [self._take(name, tables) for name in names]
        return any(moved)

    def pool(
        self, cards: int = 0, cpu: int | None = None, memory: int | None = None
    ) -> ClusterCapacity:
        """Return what is free now; the caller gives the totals."""
        idle, untouched = dict(self._idle), dict(self._untouched)
        largest, free_cpu = self._largest or None, None if self._hostless else self._cpu
        return ClusterCapacity(cards, cpu, memory, idle, untouched, largest, free_cpu)

    def card_stock(self) -> CardStock:
        """Return the number and sizes of the cluster's cards."""
        if self._stock is None:
            cards = sum(self._sizes.values())
            self._stock = CardStock(CardSizes.of(self._sizes), cards, self._largest)
        return self._stock

    def now(self) -> int:
        """Return the log's end, for ``since``."""
        return self._log_start + len(self._log)

    def since(self, position: int) -> list[NodeName] | None:
        """Return the nodes that changed after a position; None if it is too old."""
        if position < self._log_start:
            return None
        return self._log[position - self._log_start :]

    @property
    def _largest(self) -> int:
        return max(
            (cards for cards, nodes in self._numbers.items() if nodes), default=0
        )

    def _take(self, name: NodeName, tables: Tables) -> bool:
        node, before = self._ledger.node(name), self.nodes.get(name)
        if node is None:
            if before is not None:
                self._put(name, before, None)
            return before is not None
        host, standings = self._hosts.free(name), self._standings
        if before is None or before.node is not node:
            after = PricedNode.of(node, host, tables, standings=standings)
        elif before.host is not host:
            after = before.with_host(host, standings)
        else:
            return False
        self._put(name, before, after)
        return True

    def _put(
        self, name: NodeName, before: PricedNode | None, after: PricedNode | None
    ) -> None:
        if before is not None:
            self._count(before, -1)
            alike = self.alike[before.standing]
            alike.discard(name)
            if not alike:
                del self.alike[before.standing]
        if after is None:
            del self.nodes[name]
        else:
            self.nodes[name] = after
            self._count(after, +1)
            self.alike.setdefault(after.standing, set()).add(name)
        had, has = before and before.node.cards, after and after.node.cards
        if had is not has:
            self._count_cards(had or (), -1)
            self._count_cards(has or (), +1)
        self._note(name)

    def _count(self, node: PricedNode, sign: int) -> None:
        state = node.state
        if node.node.cards:
            self._cpu += sign * (state.cpu_milli or 0)
            self._hostless += sign * (state.cpu_milli is None)
        self._idle[state.model] += sign * state.idle
        self._untouched[state.untouched] += sign

    def _count_cards(self, cards: tuple[Card, ...], sign: int) -> None:
        self._stock = None
        self._numbers[len(cards)] += sign
        for card in cards:
            self._sizes[card.model, card.units] += sign

    def _note(self, name: NodeName) -> None:
        self._log.append(name)
        if len(self._log) > _LONGEST_LOG:
            half = len(self._log) // 2
            del self._log[:half]
            self._log_start += half
