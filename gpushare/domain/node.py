"""One page of the ledger: a node's cards and who holds what of them."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpushare.domain.model import (
    CORES_PER_CARD,
    Amount,
    Card,
    CardUUID,
    NodeName,
    Placement,
    PodRef,
    PodUID,
)
from gpushare.domain.summary import Summary, summarize


@dataclass(frozen=True)
class Node:
    """A node with its cards, its placements, and the room kept for nominated pods.

    Never changed: a change is a new node, so readers need no lock. What is free is
    worked out once from the placements, never counted up and down. Placements may
    name cards that the node no longer has, and may exceed a card: what is so is kept.
    """

    name: NodeName
    cards: tuple[Card, ...] = ()
    placements: Mapping[PodUID, Placement] = field(default_factory=dict)
    nominations: Mapping[PodUID, Placement] = field(default_factory=dict)

    @cached_property
    def charged(self) -> Mapping[CardUUID, tuple[int, int]]:
        """Cores and units charged to each card that anybody holds a share of."""
        sums: dict[CardUUID, tuple[int, int]] = {}
        for placement in self._holders():
            for share in placement.shares:
                cores, units = sums.get(share.card, (0, 0))
                amount = share.amount
                sums[share.card] = (cores + amount.cores, units + amount.units)
        return sums

    @cached_property
    def free(self) -> Mapping[CardUUID, Amount]:
        """What each healthy card has left; below zero where it is over-placed."""
        charged = self.charged
        left: dict[CardUUID, Amount] = {}
        for card in self.cards:
            if card.healthy:
                cores, units = charged.get(card.uuid, (0, 0))
                left[card.uuid] = Amount(CORES_PER_CARD - cores, card.units - units)
        return left

    @cached_property
    def untouched(self) -> tuple[Card, ...]:
        """The healthy cards of which nobody holds any share."""
        charged = self.charged
        return tuple(
            card for card in self.cards if card.healthy and card.uuid not in charged
        )

    @cached_property
    def summary(self) -> Summary:
        """What filter looks at."""
        return summarize(self.free.values(), (card.units for card in self.untouched))

    @cached_property
    def fullness(self) -> float:
        """How much of the healthy cards is charged, 0 to 1, by cores or by units.

        Whichever is more; 1 where there is nothing to give.
        """
        cores = CORES_PER_CARD * len(self.free)
        units = sum(card.units for card in self.cards if card.healthy)
        if not units:
            return 1.0
        left = self.free.values()
        cores_left = sum(max(0, room.cores) for room in left)
        units_left = sum(max(0, room.units) for room in left)
        return max(1 - cores_left / cores, 1 - units_left / units)

    def _holders(self) -> Iterator[Placement]:
        yield from self.placements.values()
        for uid, placement in self.nominations.items():
            if uid not in self.placements:
                yield placement

    def with_placement(self, placement: Placement) -> "Node":
        """Give the node with the placement, in place of the pod's earlier one."""
        return replace(
            self, placements={**self.placements, placement.pod.uid: placement}
        )

    def without(self, uids: Container[PodUID]) -> "Node":
        """Give the node as it would be without these pods."""
        return replace(
            self,
            placements={u: p for u, p in self.placements.items() if u not in uids},
            nominations={u: p for u, p in self.nominations.items() if u not in uids},
        )

    def as_seen_by(self, pod: PodRef) -> "Node":
        """Give the node without what must not stand in this pod's way.

        That is its own placement and nomination, and the nominations of pods of lower
        priority, as kube-scheduler has it for whole nodes (contracts 1.2).
        """
        outranked = {
            uid
            for uid, kept in self.nominations.items()
            if kept.pod.priority < pod.priority
        }
        own = {pod.uid} & (self.placements.keys() | self.nominations.keys())
        if not outranked and not own:
            return self
        seen = self.without(own)
        kept = {u: p for u, p in seen.nominations.items() if u not in outranked}
        return replace(seen, nominations=kept)
