"""One page of the ledger: a node's cards and who holds what of them."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Card,
    CardUUID,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.refusal import NOTHING_LEFT, Summary, summarize


@dataclass(frozen=True)
class Node:
    """A node with its cards, its placements, and the room kept for nominated pods.

    Never changed: a change is a new node, so readers need no lock. What is free is
    worked out once from the placements, never counted up and down. Placements may
    name cards that the node no longer has, and may exceed a card: what is so is kept.
    ``unplaced`` are the pods that run here on nobody knows which card.
    """

    name: NodeName
    cards: tuple[Card, ...] = ()
    placements: Mapping[PodUID, Placement] = field(default_factory=dict)
    nominations: Mapping[PodUID, Placement] = field(default_factory=dict)
    unplaced: Mapping[PodUID, PodRequest] = field(default_factory=dict)

    @cached_property
    def charged(self) -> Mapping[CardUUID, tuple[int, int]]:
        """Cores and units charged to each card that anybody holds a share of.

        100 cores are the whole card: it may list more units by now than it did when
        they were placed.
        """
        sums: dict[CardUUID, tuple[int, int]] = {}
        sizes = {card.uuid: card.units for card in self.cards}
        for placement in self._holders():
            for share in placement.shares:
                cores, units = sums.get(share.card, (0, 0))
                held = share.amount.units
                if share.amount.cores >= CORES_PER_CARD:
                    held = max(held, sizes.get(share.card, 0))
                sums[share.card] = (cores + share.amount.cores, units + held)
        return sums

    @cached_property
    def free(self) -> Mapping[CardUUID, Amount]:
        """What each open card has left; below zero where it is over-placed."""
        charged = self.charged
        left: dict[CardUUID, Amount] = {}
        for card in self.cards:
            if card.open:
                cores, units = charged.get(card.uuid, (0, 0))
                left[card.uuid] = Amount(CORES_PER_CARD - cores, card.units - units)
        if self.unplaced:
            unknown = self.unknown
            left = {uuid: room - unknown[uuid] for uuid, room in left.items()}
        return left

    @cached_property
    def unknown(self) -> Mapping[CardUUID, Amount]:
        """What each card is charged for the unplaced pods: each of them in full.

        They may be on any card, so all of it is kept on every card, and a pod of whole
        cards may have every card.
        """
        whole, shared = 0, NOTHING
        for request in self.unplaced.values():
            if any(claim.whole_cards for claim in request.claims):
                whole += 1
            else:
                shared += sum((claim.amount for claim in request.claims), NOTHING)
        return {
            card.uuid: shared + Amount(whole * CORES_PER_CARD, whole * card.units)
            for card in self.cards
        }

    @cached_property
    def untouched(self) -> tuple[Card, ...]:
        """The open cards of which nobody holds any share, or may hold one."""
        if self.unplaced:
            return ()
        charged = self.charged
        return tuple(
            card for card in self.cards if card.open and card.uuid not in charged
        )

    @cached_property
    def summary(self) -> Summary:
        """What filter looks at."""
        return summarize(self.free.values(), (card.units for card in self.untouched))

    @cached_property
    def fullness(self) -> float:
        """How much of the open cards is charged, 0 to 1, by cores or by units.

        Whichever is more; 1 where there is nothing to give.
        """
        cores = CORES_PER_CARD * len(self.free)
        units = sum(card.units for card in self.cards if card.open)
        if not units:
            return 1.0
        left = self.free.values()
        cores_left = sum(max(0, room.cores) for room in left)
        units_left = sum(max(0, room.units) for room in left)
        return max(1 - cores_left / cores, 1 - units_left / units)

    def _holders(self) -> Iterator[Placement]:
        yield from self.placements.values()
        for uid, placement in self.nominations.items():
            if uid not in self.placements and uid not in self.unplaced:
                yield placement

    def could_hold(self, placement: Placement) -> bool:
        """Tell whether the placement is of cards that are here, free or not."""
        here = {card.uuid for card in self.cards}
        return all(
            share.card in here and share.amount.cores <= CORES_PER_CARD
            for share in placement.shares
        )

    def with_placement(self, placement: Placement) -> "Node":
        """Give the node with the placement, in place of the pod's earlier one."""
        uid = placement.pod.uid
        unplaced = self.unplaced
        if uid in unplaced:
            unplaced = {u: r for u, r in unplaced.items() if u != uid}
        placements = {**self.placements, uid: placement}
        return replace(self, placements=placements, unplaced=unplaced)

    def with_plan(self, plan: Placement) -> "Node":
        """Give the node with a placement that is planned.

        The node itself where the pod is here already: it holds what it holds, and a
        plan that was made before would move it to another card.
        """
        here = plan.pod.uid in self.placements or plan.pod.uid in self.unplaced
        return self if here else self.with_placement(plan)

    def with_unplaced(self, request: PodRequest) -> "Node":
        """Give the node with a pod that runs here on nobody knows which card."""
        return replace(self, unplaced={**self.unplaced, request.pod.uid: request})

    def without(self, uids: Container[PodUID]) -> "Node":
        """Give the node as it would be without these pods."""
        return replace(
            self,
            placements={u: p for u, p in self.placements.items() if u not in uids},
            nominations={u: p for u, p in self.nominations.items() if u not in uids},
            unplaced={u: r for u, r in self.unplaced.items() if u not in uids},
        )

    def summary_for(self, request: PodRequest) -> Summary:
        """Sum up what the cards that the pod wants have left.

        The node's own summary, the very one, where it wants all that are open.
        """
        if request.cards is None:
            return self.summary
        allows = request.cards.allows
        wanted = {c.uuid for c in self.cards if c.open and allows(c.uuid, c.model)}
        if len(wanted) == len(self.free):
            return self.summary
        if not wanted:
            return NOTHING_LEFT
        return summarize(
            (self.free[uuid] for uuid in wanted),
            (card.units for card in self.untouched if card.uuid in wanted),
        )

    def as_limited_by(self, request: PodRequest) -> "Node":
        """Give the node as if the open cards that the pod does not want were cordoned.

        The node itself where it wants them all, as most pods do.
        """
        if request.cards is None:
            return self
        shut = {c.uuid for c in self.cards if c.open and not request.allows(c)}
        if not shut:
            return self
        cards = (
            replace(card, cordoned=True) if card.uuid in shut else card
            for card in self.cards
        )
        return replace(self, cards=tuple(cards))

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
        stands = (self.placements, self.nominations, self.unplaced)
        own = {pod.uid} if any(pod.uid in held for held in stands) else set()
        if not outranked and not own:
            return self
        seen = self.without(own)
        kept = {u: p for u, p in seen.nominations.items() if u not in outranked}
        return replace(seen, nominations=kept)
