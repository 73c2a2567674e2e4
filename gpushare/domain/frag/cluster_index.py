"""An index of all nodes for the policy ``frag``, with totals of what is free."""

from collections import Counter
from dataclasses import dataclass

from gpushare.domain.frag.costs import PricedNode
from gpushare.domain.frag.prices import Tables
from gpushare.domain.frag.shapes import CardSizes, Pool
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
    """All nodes by place, the totals of free capacity, and a log of changed places.

    A place is an index into ``nodes``; new nodes reuse the places of deleted ones. Not
    thread-safe.
    """

    def __init__(self, ledger: Ledger, hosts: Hosts) -> None:
        self._ledger = ledger
        self._hosts = hosts
        self._position = -1
        self.places: dict[NodeName, int] = {}
        self.nodes: list[PricedNode | None] = []
        """None at a free place. Gauges may be by older tables."""
        self._vacant: list[int] = []
        self._idle: Counter[str] = Counter()
        self._untouched: Counter[int] = Counter()
        self._sizes: Counter[tuple[str, int]] = Counter()
        self._numbers: Counter[int] = Counter()
        self._stock: CardStock | None = None
        """None if cards were added or removed since it was computed."""
        self._log: list[int] = []
        self._log_start = 0

    def follow(self, tables: Tables) -> bool:
        """Apply the changes of ledger and hosts; return whether there were any."""
        self._position, changed = self._ledger.changed_since(self._position)
        hosts = self._hosts.changes()
        if changed is None or hosts is None:
            changed = [*self.places, *(node.name for node in self._ledger.nodes())]
        names = dict.fromkeys([*changed, *(hosts or ())])
        moved = [self._take(name, tables) for name in names]
        return any(moved)

    def pool(
        self, cards: int = 0, cpu: int | None = None, memory: int | None = None
    ) -> Pool:
        """Return what is free now; the caller gives the totals."""
        idle, untouched = dict(self._idle), dict(self._untouched)
        return Pool(cards, cpu, memory, idle, untouched, self._largest or None)

    def card_stock(self) -> CardStock:
        """Return the number and sizes of the cluster's cards."""
        if self._stock is None:
            cards = sum(self._sizes.values())
            self._stock = CardStock(CardSizes.of(self._sizes), cards, self._largest)
        return self._stock

    def now(self) -> int:
        """Return the log's end, for ``since``."""
        return self._log_start + len(self._log)

    def since(self, position: int) -> list[int] | None:
        """Return the places that changed after a position; None if it is too old."""
        if position < self._log_start:
            return None
        return self._log[position - self._log_start :]

    @property
    def _largest(self) -> int:
        return max(
            (cards for cards, nodes in self._numbers.items() if nodes), default=0
        )

    def _take(self, name: NodeName, tables: Tables) -> bool:
        node, at = self._ledger.node(name), self.places.get(name)
        if node is None:
            if at is None:
                return False
            del self.places[name]
            self._put(at, None)
            self._vacant.append(at)
            return True
        host = self._hosts.free(name)
        before = None if at is None else self.nodes[at]
        if before and before.node is node and before.host is host:
            return False
        if at is None and self._vacant:
            at = self.places[name] = self._vacant.pop()
        elif at is None:
            at = self.places[name] = len(self.nodes)
            self.nodes.append(None)
        self._put(at, PricedNode.of(node, host, tables))
        return True

    def _put(self, at: int, after: PricedNode | None) -> None:
        before, self.nodes[at] = self.nodes[at], after
        for node, sign in ((before, -1), (after, +1)):
            if node is not None:
                self._idle[node.state.model] += sign * node.state.idle
                self._untouched[node.state.untouched] += sign
        had, has = before and before.node.cards, after and after.node.cards
        if had is not has:
            self._count_cards(had or (), -1)
            self._count_cards(has or (), +1)
        self._note(at)

    def _count_cards(self, cards: tuple[Card, ...], sign: int) -> None:
        self._stock = None
        self._numbers[len(cards)] += sign
        for card in cards:
            self._sizes[card.model, card.units] += sign

    def _note(self, at: int) -> None:
        self._log.append(at)
        if len(self._log) > _LONGEST_LOG:
            half = len(self._log) // 2
            del self._log[:half]
            self._log_start += half
