"""A node: its cards, the placements on them, and what is free."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpushare.domain.model import (
    CORES_PER_CARD,
    NO_CARDS,
    NOTHING,
    UNTOUCHED_CARDS,
    Amount,
    Card,
    CardUUID,
    Claim,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
    Refusal,
    refuse_insufficient,
)

CardCapacity = tuple[bool, int, int, str]
"""A card as the search sees it: whether it is untouched, its free units and cores, and
its kind.

In this order, so that the smallest of several is the best one for a share.
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """What filter needs to know of a node's free capacity.

    ``cards`` counts the open cards. ``most`` has the largest free cores and the largest
    free units, usually not of the same card. ``frontier`` has the free amounts that no
    other card exceeds in both parts. ``untouched`` has the units of the untouched
    full cards, largest first, and ``instances`` those of the untouched MIG instances,
    each kind by itself.
    """

    cards: int
    most: Amount
    frontier: tuple[Amount, ...]
    untouched: tuple[int, ...]
    instances: tuple[tuple[int, ...], ...] = ()

    @property
    def largest(self) -> Amount:
        """The free amount with the most units of those with a free core."""
        return next((room for room in reversed(self.frontier) if room.cores), NOTHING)

    def refusal(self, claim: Claim) -> Refusal | None:
        """Return why no card can meet the claim, or None if one can."""
        if self.fits(claim):
            return None
        if not self.cards:
            return NO_CARDS
        whole = claim.whole_cards
        return (
            UNTOUCHED_CARDS if whole else refuse_insufficient(claim.amount, self.most)
        )

    def fits(self, claim: Claim) -> bool:
        """Return whether the cards can meet the claim."""
        amount, whole = claim.amount, claim.whole_cards
        if not whole:
            return self.has_room(amount)
        largest = self.untouched[:whole]
        if len(largest) == whole and sum(largest) >= amount.units:
            return True
        return bool(self.instances) and any(
            len(kind) >= whole and sum(kind[:whole]) >= amount.units
            for kind in self.instances
        )

    @property
    def wholes(self) -> tuple[int, ...]:
        """The units of the untouched cards of the kind of which there are most."""
        return max(
            (self.untouched, *self.instances), key=lambda kind: (len(kind), kind)
        )

    def has_room(self, amount: Amount) -> bool:
        """Return whether a single card has the whole amount free."""
        # A loop, because filter calls this for every node with each new kind of pod.
        for room in self.frontier:  # noqa: SIM110
            if amount.fits(room):
                return True
        return False


def frontier(free: Iterable[Amount]) -> tuple[Amount, ...]:
    """Return the free amounts that no other card exceeds in both parts.

    Cores fall and units rise along the tuple. Cards below zero are left out.
    """
    best: list[Amount] = []
    for room in sorted(free, key=lambda room: (-room.cores, -room.units)):
        if min(room.cores, room.units) < 0:
            continue
        if not best or room.units > best[-1].units:
            best.append(room)
    return tuple(best)


@dataclass(frozen=True, slots=True)
class Block:
    """The free amount of one open card."""

    node: NodeName
    card: Card
    free: Amount

    def __str__(self) -> str:
        return f"{self.node} card {self.card.index}"


def summarize(free: Iterable[Amount], untouched: Iterable[Card]) -> Summary:
    """Summarize the free amounts of open cards, and the untouched ones."""
    rooms = tuple(free)
    most = Amount(
        max((room.cores for room in rooms), default=NOTHING.cores),
        max((room.units for room in rooms), default=NOTHING.units),
    )
    cards = tuple(untouched)
    full = sorted([card.units for card in cards if not card.parent], reverse=True)
    # Few nodes have instances, and a change of any node makes a summary.
    instances = () if len(full) == len(cards) else _by_kind(cards)
    return Summary(len(rooms), most, frontier(rooms), tuple(full), instances)


def _by_kind(cards: Iterable[Card]) -> tuple[tuple[int, ...], ...]:
    kinds: dict[str, list[int]] = {}
    for card in cards:
        if card.parent:
            kinds.setdefault(card.kind, []).append(card.units)
    return tuple(sorted(tuple(sorted(units, reverse=True)) for units in kinds.values()))


NOTHING_LEFT = summarize((), ())
"""The summary of a node without open cards, or without any that the pod may have."""


@dataclass(frozen=True)
class Node:
    """A node with its cards, its placements, and the capacity kept for nominated pods.

    Immutable: a change creates a new node, so readers need no lock. Free capacity is
    computed from the placements and never counted up and down. Placements may name
    cards that the node no longer has, and may exceed a card. ``unplaced`` has the pods
    that run here while their cards are unknown.
    """

    name: NodeName
    cards: tuple[Card, ...] = ()
    placements: Mapping[PodUID, Placement] = field(default_factory=dict)
    nominations: Mapping[PodUID, Placement] = field(default_factory=dict)
    unplaced: Mapping[PodUID, PodRequest] = field(default_factory=dict)

    @cached_property
    def charged(self) -> Mapping[CardUUID, tuple[int, int]]:
        """Cores and units charged to each card of which a pod holds a share.

        A whole card's units may have grown since the placement.
        """
        sums: dict[CardUUID, tuple[int, int]] = {}
        sizes = {card.uuid: card.units for card in self.cards}
        for placement in self._holders():
            for share in placement.shares:
                cores, units = sums.get(share.card, (0, 0))
                charged_units = share.amount.units
                if share.is_whole:
                    charged_units = max(charged_units, sizes.get(share.card, 0))
                sums[share.card] = (cores + share.amount.cores, units + charged_units)
        return sums

    @cached_property
    def free(self) -> Mapping[CardUUID, Amount]:
        """The free amount of each open card; below zero if it is over-placed."""
        charged = self.charged
        rooms: dict[CardUUID, Amount] = {}
        for card in self.cards:
            if card.open:
                cores, units = charged.get(card.uuid, (0, 0))
                rooms[card.uuid] = Amount(CORES_PER_CARD - cores, card.units - units)
        if self.unplaced:
            for_unplaced = self.charged_for_unplaced
            rooms = {uuid: room - for_unplaced[uuid] for uuid, room in rooms.items()}
        return rooms

    @cached_property
    def charged_for_unplaced(self) -> Mapping[CardUUID, Amount]:
        """What each card is charged for the unplaced pods, each of them in full.

        An unplaced pod may be on any card, so every card is charged its request. A pod
        of whole cards may have any card, so every card is charged completely.
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
        """Open cards of which no pod holds a share; none while pods are unplaced."""
        if self.unplaced:
            return ()
        charged = self.charged
        return tuple(
            card for card in self.cards if card.open and card.uuid not in charged
        )

    @cached_property
    def capacities(self) -> tuple[tuple[CardCapacity, ...], tuple[Card, ...]]:
        """The open cards as a search sees them, the smallest first, and the cards."""
        untouched = {card.uuid for card in self.untouched}
        ranked = []
        for number, card in enumerate(self.cards):
            room = self.free.get(card.uuid)
            if room is not None:
                is_untouched = card.uuid in untouched
                capacity = (is_untouched, room.units, room.cores, card.kind)
                ranked.append((capacity, card.index, number))
        ranked.sort()
        cards = tuple(self.cards[number] for _, _, number in ranked)
        return tuple(capacity for capacity, _, _ in ranked), cards

    @cached_property
    def summary(self) -> Summary:
        """What filter looks at."""
        return summarize(self.free.values(), self.untouched)

    @cached_property
    def models(self) -> frozenset[str]:
        """The models of the open cards."""
        return frozenset(card.model for card in self.cards if card.open)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The free amounts of the open cards that have any, in the order of cards."""
        return tuple(
            Block(self.name, card, self.free[card.uuid])
            for card in self.cards
            if card.open and (room := self.free[card.uuid]) and NOTHING.fits(room)
        )

    @cached_property
    def fullness(self) -> float:
        """The charged part of the open cards, 0 to 1: of cores or units, the larger.

        1 if the node has no capacity.
        """
        cores = CORES_PER_CARD * len(self.free)
        units = sum(card.units for card in self.cards if card.open)
        if not units:
            return 1.0
        rooms = self.free.values()
        cores_left = sum(max(0, room.cores) for room in rooms)
        units_left = sum(max(0, room.units) for room in rooms)
        return max(1 - cores_left / cores, 1 - units_left / units)

    def _holders(self) -> Iterator[Placement]:
        yield from self.placements.values()
        for uid, placement in self.nominations.items():
            if uid not in self.placements and uid not in self.unplaced:
                yield placement

    def could_hold(self, placement: Placement) -> bool:
        """Return whether the node has all cards of the placement, free or not."""
        here = {card.uuid for card in self.cards}
        return all(
            card in here and amount.cores <= CORES_PER_CARD
            for card, amount in placement.by_card().items()
        )

    def with_placement(self, placement: Placement) -> "Node":
        """Return the node with the placement, which replaces the pod's earlier one."""
        uid = placement.pod.key
        unplaced = self.unplaced
        if uid in unplaced:
            unplaced = {u: r for u, r in unplaced.items() if u != uid}
        placements = {**self.placements, uid: placement}
        # Not by ``replace``, which takes twice as long, and a start makes 100,000.
        return Node(self.name, self.cards, placements, self.nominations, unplaced)

    def with_plan(self, plan: Placement) -> "Node":
        """Return the node with a planned placement.

        Returns the node itself if the pod is here already: the older plan must not
        move it to another card.
        """
        here = plan.pod.uid in self.placements or plan.pod.uid in self.unplaced
        return self if here else self.with_placement(plan)

    def with_unplaced(self, request: PodRequest) -> "Node":
        """Return the node with a pod that runs here while its cards are unknown."""
        return replace(self, unplaced={**self.unplaced, request.pod.uid: request})

    def without(self, uids: Container[PodUID]) -> "Node":
        """Return the node without these pods."""
        return replace(
            self,
            placements={u: p for u, p in self.placements.items() if u not in uids},
            nominations={u: p for u, p in self.nominations.items() if u not in uids},
            unplaced={u: r for u, r in self.unplaced.items() if u not in uids},
        )

    def summary_for(self, request: PodRequest) -> Summary:
        """Summarize the free capacity of the cards that the pod may have.

        Returns the node's own summary, the same object, if that is all open cards.
        """
        if request.cards is None:
            return self.summary
        allows = request.cards.allows
        if not request.cards.uuids and len(self.models) == 1:
            (model,) = self.models
            return self.summary if allows("", model) else NOTHING_LEFT
        wanted = {c.uuid for c in self.cards if c.open and allows(c.uuid, c.model)}
        if len(wanted) == len(self.free):
            return self.summary
        if not wanted:
            return NOTHING_LEFT
        return summarize(
            (self.free[uuid] for uuid in wanted),
            (card for card in self.untouched if card.uuid in wanted),
        )

    def as_limited_by(self, request: PodRequest) -> "Node":
        """Return the node with the open cards cordoned that the pod may not have.

        Returns the node itself if it may have all of them.
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
        """Return the node without what must not count against this pod.

        That is the pod's own placement and nomination, and the nominations of pods of
        lower priority. kube-scheduler does the same for whole nodes (contracts 1.2).
        """
        outranked = {
            uid
            for uid, kept in self.nominations.items()
            if kept.pod.priority < pod.priority
        }
        stands = (self.placements, self.nominations, self.unplaced)
        own_uid = {pod.uid} if any(pod.uid in stand for stand in stands) else set()
        if not outranked and not own_uid:
            return self
        seen = self.without(own_uid)
        kept = {u: p for u, p in seen.nominations.items() if u not in outranked}
        return replace(seen, nominations=kept)


@dataclass(frozen=True, slots=True)
class FreeUnits:
    """What a new pod could have of the free units; each pod needs a core beside them.

    ``largest`` is the card with the most free units of those with a free core, None if
    there is none. ``without_cores`` counts the units on cards without a free core.
    """

    largest: Block | None
    without_cores: int


def find_free_units(nodes: Iterable[Node]) -> FreeUnits:
    """Return the largest block that a pod with one core could have, and the rest."""
    known = tuple(nodes)
    best = max(known, key=lambda node: node.summary.largest.units, default=None)
    most = best.summary.largest if best else NOTHING
    blocks = best.blocks if best and most.units else ()
    return FreeUnits(
        next((block for block in blocks if block.free == most), None),
        sum(
            block.free.units
            for node in known
            for block in node.blocks
            if not block.free.cores
        ),
    )


def why_no_room(node: Node, placement: Placement) -> str:
    """Return why a node cannot have this placement; empty if it can.

    For a ResourceClaim, whose card kube-scheduler has chosen; ``placement`` is where
    the extender chooses. Everything else that is charged counts, and what is kept for
    nominated pods, whatever their priority. Nothing else may be on a whole card.
    """
    others = node.without({placement.pod.key})
    if not others.cards:
        return f"node {node.name} shares no cards, or they are not known yet"
    return "; ".join(filter(None, _complaints(others, placement)))


def _complaints(node: Node, placement: Placement) -> Iterator[str]:
    known = {card.uuid: card for card in node.cards}
    whole = {share.card for share in placement.shares if share.is_whole}
    for uuid, amount in placement.by_card().items():
        card = known.get(uuid)
        if card is None:
            yield f"node {node.name} has no card {uuid}"
        else:
            yield _complaint(node, card, amount, whole=uuid in whole)


def _complaint(node: Node, card: Card, amount: Amount, *, whole: bool) -> str:
    name = f"card {card.uuid} of node {node.name}"
    if not card.healthy:
        return f"{name} is sick" + (f": {card.reason}" if card.reason else "")
    if card.cordoned:
        return f"{name} is cordoned"
    if whole and card not in node.untouched:
        return f"{name} is in use, and {CORES_PER_CARD} cores need a card alone"
    free = node.free[card.uuid]
    short = [
        f"{max(0, remaining)} {what} left, not {wanted}"
        for what, remaining, wanted in (
            ("units", free.units, amount.units),
            ("cores", free.cores, amount.cores),
        )
        if wanted > remaining
    ]
    return f"{name} has {' and '.join(short)}" if short else ""
