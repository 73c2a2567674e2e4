"""Measure how full a simulated cluster is, and how much of what is free is of use.

Fragmentation is measured as in "Beware of Fragmentation" (USENIX ATC 2023): the part of
the free units that a random pod of those seen cannot use. Either no card of the node
has enough, or its CPU, memory or labels do not fit, or the pod needs more untouched
cards than there are. Only nodes that changed are measured again.
"""

from collections import Counter
from dataclasses import dataclass, field

from gpushare.domain.model import CORES_PER_CARD, NodeName
from gpushare.domain.node import Node
from gpusharectl.simulator.cluster import PodNeeds, SimulatedCluster

_TYPICAL = 0.95
"""The most frequent kinds of pods are used, up to this share of all pods."""
_MOST_KINDS = 60


class _Sums:
    """Totals over all nodes of several figures of each, kept up to date."""

    def __init__(self, figures: int) -> None:
        self.totals = self._none = (0,) * figures
        self._by_node: dict[NodeName, tuple[int, ...]] = {}

    def put(self, name: NodeName, *values: int) -> None:
        before = self._by_node.get(name, self._none)
        changes = zip(self.totals, before, values, strict=True)
        self.totals = tuple(total - old + new for total, old, new in changes)
        self._by_node[name] = values


@dataclass(slots=True)
class _PodKind:
    needs: PodNeeds
    position: int = 0
    unusable: _Sums = field(default_factory=lambda: _Sums(1))


class ClusterGauge:
    """Units and cores held and free over all nodes, kept up to date."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._position = 0
        self._sums = _Sums(5)
        self._seen: Counter[object] = Counter()
        self._kinds: dict[object, _PodKind] = {}

    def see(self, needs: PodNeeds) -> None:
        """Count a new pod, if it asks for cards."""
        if needs.request.claims:
            self._seen[needs.kind] += 1
            self._kinds.setdefault(needs.kind, _PodKind(needs))

    def full(self) -> tuple[int, ...]:
        """Return units held, all units, cores held, all cores and units free."""
        candidates = self._cluster.candidates
        changed, self._position = candidates.changed_since(self._position)
        for name in changed:
            node = self._cluster.ledger.node(name) or Node(name)
            charged = node.charged.values()
            self._sums.put(
                name,
                sum(units for _, units in charged),
                sum(card.units for card in node.cards),
                sum(cores for cores, _ in charged),
                CORES_PER_CARD * len(node.cards),
                sum(max(0, room.units) for room in node.free.values()),
            )
        return self._sums.totals

    def fragmented(self) -> float | None:
        """Return the share of the free units that a typical pod cannot use, 0 to 1."""
        free = self.full()[-1]
        typical = self._typical()
        if not free or not typical:
            return None
        lost = sum(number * self._unusable(kind) for kind, number in typical)
        return lost / sum(number for _, number in typical) / free

    def units_of(self, needs: PodNeeds) -> int:
        """Return the units that a pod asks for; a whole card is an average one."""
        _, units, _, cores, _ = self._sums.totals
        cards = cores // CORES_PER_CARD
        mean = units // cards if cards else 0
        claims = needs.request.claims
        return sum(max(each.amount.units, each.whole_cards * mean) for each in claims)

    def _typical(self) -> list[tuple[_PodKind, int]]:
        """Return the most frequent kinds with the number of their pods."""
        uncounted = _TYPICAL * self._seen.total()
        typical = []
        for kind, number in self._seen.most_common(_MOST_KINDS):
            if uncounted <= 0:
                break
            typical.append((self._kinds[kind], number))
            uncounted -= number
        return typical

    def _unusable(self, kind: _PodKind) -> int:
        candidates = self._cluster.candidates
        changed, kind.position = candidates.changed_since(kind.position)
        for name in changed:
            node = self._cluster.ledger.node(name)
            value = 0
            if node is not None and node.cards and name in candidates.properties:
                fits = not candidates.judge(kind.needs, name)
                value = count_unusable_units(kind.needs, node, fits=fits)
            kind.unusable.put(name, value)
        return kind.unusable.totals[0]


def count_unusable_units(needs: PodNeeds, node: Node, *, fits: bool) -> int:
    """Return the free units of a node that the pod cannot use; all unless it fits."""
    request = needs.request
    free = {uuid: room for uuid, room in node.free.items() if room.units > 0}
    if not fits:
        return sum(room.units for room in free.values())
    whole = any(claim.whole_cards for claim in request.claims)
    least = min(request.claims, key=lambda claim: claim.amount.units).amount
    untouched = {card.uuid for card in node.untouched}
    lost = 0
    for card in node.cards:
        room = free.get(card.uuid)
        if room is None:
            continue
        usable = card.uuid in untouched if whole else least.fits(room)
        if not usable or request.limits(card):
            lost += room.units
    return lost
