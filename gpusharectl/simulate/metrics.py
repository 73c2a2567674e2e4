"""Measure how full the cluster is, and how much of the free memory pods can use.

Fragmentation is measured as in "Beware of Fragmentation" (USENIX ATC 2023): the part of
the free units that a random pod of those seen cannot use. Either no card of the node
has enough, or its CPU, memory or labels do not fit, or the pod needs more untouched
cards than there are. Only nodes that changed are measured again.
"""

from collections import Counter
from dataclasses import dataclass, field

from gpushare.domain.model import CORES_PER_CARD, NodeName
from gpushare.domain.node import Node
from gpusharectl.simulate.cluster import PodNeeds, World

_TYPICAL = 0.95
"""The most frequent kinds of pods are used, up to this share of all pods."""
_MOST_KINDS = 60


@dataclass(slots=True)
class _Sums:
    by_node: dict[NodeName, int] = field(default_factory=dict)
    total: int = 0

    def put(self, name: NodeName, value: int) -> None:
        self.total += value - self.by_node.get(name, 0)
        self.by_node[name] = value


@dataclass(slots=True)
class _Kind:
    needs: PodNeeds
    position: int = 0
    useless: _Sums = field(default_factory=_Sums)


class Gauge:
    """Units and cores held and free over all nodes, kept up to date."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._position = 0
        self._held, self._units = _Sums(), _Sums()
        self._held_cores, self._cores = _Sums(), _Sums()
        self._free = _Sums()
        self._seen: Counter[object] = Counter()
        self._kinds: dict[object, _Kind] = {}

    def see(self, needs: PodNeeds) -> None:
        """Count a new pod, if it asks for cards."""
        if needs.request.claims:
            kind = needs.kind
            self._seen[kind] += 1
            if kind not in self._kinds:
                self._kinds[kind] = _Kind(needs)

    def full(self) -> tuple[int, int, int, int]:
        """Return units held, all units, cores held and all cores."""
        world = self._world
        for name in world.candidates.changed_since(self._position):
            page = world.ledger.node(name)
            self._put(name, page or Node(name))
        self._position = world.candidates.position()
        return (
            self._held.total,
            self._units.total,
            self._held_cores.total,
            self._cores.total,
        )

    def fragmented(self) -> float | None:
        """Return the share of the free units that a typical pod cannot use, 0 to 1."""
        self.full()
        typical = self._typical()
        if not self._free.total or not typical:
            return None
        lost = sum(number * self._useless(kind) for kind, number in typical)
        pods = sum(number for _, number in typical)
        return lost / pods / self._free.total

    def units_a_card(self) -> int:
        """Return the units of an average card: a whole card counts as many."""
        cards = self._cores.total // CORES_PER_CARD
        return self._units.total // cards if cards else 0

    def _put(self, name: NodeName, page: Node) -> None:
        charged = page.charged.values()
        self._held.put(name, sum(units for _, units in charged))
        self._held_cores.put(name, sum(cores for cores, _ in charged))
        self._units.put(name, sum(card.units for card in page.cards))
        self._cores.put(name, CORES_PER_CARD * len(page.cards))
        self._free.put(name, sum(max(0, room.units) for room in page.free.values()))

    def _typical(self) -> list[tuple[_Kind, int]]:
        """Return the most frequent kinds with the number of their pods."""
        left = _TYPICAL * self._seen.total()
        found = []
        for kind, number in self._seen.most_common(_MOST_KINDS):
            if left <= 0:
                break
            found.append((self._kinds[kind], number))
            left -= number
        return found

    def _useless(self, kind: _Kind) -> int:
        candidates = self._world.candidates
        for name in candidates.changed_since(kind.position):
            page = self._world.ledger.node(name)
            value = 0
            if page is not None and page.cards and candidates.knows(name):
                fits = not candidates.judge(kind.needs, name)
                value = useless(kind.needs, page, fits=fits)
            kind.useless.put(name, value)
        kind.position = candidates.position()
        return kind.useless.total


def useless(needs: PodNeeds, page: Node, *, fits: bool) -> int:
    """Return the free units of a node that the pod cannot use; all unless it fits."""
    request = needs.request
    free = {uuid: room for uuid, room in page.free.items() if room.units > 0}
    if not fits:
        return sum(room.units for room in free.values())
    whole = any(claim.whole_cards for claim in request.claims)
    least = min(request.claims, key=lambda claim: claim.amount.units).amount
    untouched = {card.uuid for card in page.untouched}
    lost = 0
    for card in page.cards:
        room = free.get(card.uuid)
        if room is None:
            continue
        usable = card.uuid in untouched if whole else least.fits(room)
        if not usable or request.limits(card):
            lost += room.units
    return lost
