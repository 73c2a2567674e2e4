"""What is left of a node's cards while the claims of one pod are being placed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    PodRequest,
    Share,
)
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy, Rank
from gpushare.domain.summary import (
    NO_CARDS,
    UNTOUCHED_CARDS,
    Refusal,
    shortage,
)

Cards = tuple[Card, ...]
Costs = Callable[[Claim, Mapping[CardUUID, Amount]], Mapping[CardUUID, float]]
"""What a share costs on each card, by what the cards have left."""
Spot = tuple[bool, int, int]
"""A card for a search: whether nobody has a share of it, and its free units and cores.

In this order, so that the least of several is the one to take a share from.
"""


@dataclass(slots=True)
class Room:
    """The open cards of one node with what is free, to be taken piece by piece.

    The only changing value on this floor, and it never leaves ``place``.
    """

    cards: Mapping[CardUUID, Card]
    policy: Policy
    free: dict[CardUUID, Amount]
    untouched: set[CardUUID] = field(default_factory=set)
    costs: Costs | None = None
    """Goes before the policy's own order, for the cards of which it tells."""

    @classmethod
    def of(
        cls,
        node: Node,
        policy: Policy,
        request: PodRequest,
        costs: Costs | None = None,
    ) -> "Room":
        """Begin with what the node has free on the cards that the pod may have."""
        cards = {c.uuid: c for c in node.cards if c.open and request.allows(c)}
        free = {uuid: node.free[uuid] for uuid in cards}
        untouched = {card.uuid for card in node.untouched if card.uuid in cards}
        return cls(cards, policy, free, untouched, costs)

    def choices(self, claim: Claim) -> list[Cards]:
        """Give the ways to meet the claim, best first by the policy.

        A share has one way for each card with room. Whole cards have one way: the
        largest untouched cards, so that what is left over is of the least use.
        """
        if claim.whole_cards:
            return self._whole(claim)
        fitting = [u for u, room in self.free.items() if claim.amount.fits(room)]
        ranked = sorted((self.cards[u] for u in fitting), key=self._rank)
        if self.costs is not None and (costs := self.costs(claim, self.free)):
            ranked.sort(key=lambda card: costs[card.uuid])
        return [(card,) for card in ranked]

    def take(self, claim: Claim, cards: Cards) -> list[Share]:
        """Take the claim from the cards chosen; the shares that this makes."""
        if claim.whole_cards:
            shares = whole_shares(claim, cards)
        else:
            shares = [Share(cards[0].uuid, claim.amount, claim.containers)]
        for share in shares:
            self.free[share.card] -= share.amount
            self.untouched.discard(share.card)
        return shares

    def _rank(self, card: Card) -> Rank:
        return self.policy.rank(card, self.free[card.uuid])

    def _whole(self, claim: Claim) -> list[Cards]:
        ranked = sorted(
            (self.cards[uuid] for uuid in self.untouched),
            key=lambda card: (-card.units, self._rank(card)),
        )
        largest = tuple(ranked[: claim.whole_cards])
        units = sum(card.units for card in largest)
        enough = len(largest) == claim.whole_cards and units >= claim.amount.units
        return [largest] if enough else []


def spots(node: Node, request: PodRequest) -> tuple[tuple[Spot, ...], Cards]:
    """Give what is left of the cards that the pod may have, the least first."""
    free, untouched = node.free, {card.uuid for card in node.untouched}
    found = []
    for number, card in enumerate(node.cards):
        room = free.get(card.uuid)
        if room is not None and request.allows(card):
            spot = (card.uuid in untouched, room.units, room.cores)
            found.append((spot, card.index, number))
    found.sort()
    ranked = tuple(node.cards[number] for _, _, number in found)
    return tuple(spot for spot, _, _ in found), ranked


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to.

    ``ways`` has the numbers of the spots for each claim, None where there is no way;
    ``no`` says what was short for the first claim that was left over.
    """

    ways: tuple[tuple[int, ...], ...] | None
    no: Refusal
    steps: int


class Search:
    """Looks for a way to meet several claims at once, the largest first.

    By numbers alone and without taste: filter may ask it of thousands of nodes. What
    led nowhere is not tried again with cards or claims that differ in name alone.
    """

    def __init__(self, amounts: Sequence[Amount]) -> None:
        self.total = sum(amounts, NOTHING)
        self._whole = sum(amount.cores // CORES_PER_CARD for amount in amounts)
        order = sorted(range(len(amounts)), key=lambda i: self._size(amounts[i]))
        self._claims = [(i, amounts[i]) for i in reversed(order)]
        self._spots: list[Spot] = []
        self._left = 0
        self._ways: dict[int, tuple[int, ...]] = {}
        self._failed: set[tuple[int, tuple[Spot, ...]]] = set()
        self._no: Refusal | None = None

    def run(self, spots: Sequence[Spot], most_steps: int) -> Found:
        """Search until a way is found, all are tried, or the steps are used up."""
        self._spots, self._left = list(spots), most_steps
        self._failed.clear()
        self._no = self._short_in_sum()
        ways = None
        if self._no is None and self._fill(0):
            ways = tuple(self._ways[i] for i in range(len(self._claims)))
        no = self._no or NO_CARDS
        return Found(ways, no, most_steps - self._left)

    def _size(self, amount: Amount) -> tuple[int, float]:
        """Compare claims: whole cards first, then by the larger part of the sum."""
        return amount.cores // CORES_PER_CARD, max(
            amount.cores / max(1, self.total.cores),
            amount.units / max(1, self.total.units),
        )

    def _short_in_sum(self) -> Refusal | None:
        """Say what all cards together have too little of."""
        if self._whole > sum(untouched for untouched, _, _ in self._spots):
            return UNTOUCHED_CARDS
        units = sum(units for _, units, _ in self._spots if units > 0)
        cores = sum(cores for _, _, cores in self._spots if cores > 0)
        there = Amount(cores, units)
        return None if self.total.fits(there) else shortage(self.total, there)

    def _fill(self, depth: int) -> bool:
        """Place the claims from this one on; leave all as it was where that fails."""
        if depth == len(self._claims):
            return True
        if not self._left:
            return False
        self._left -= 1
        if self._failed and self._state(depth) in self._failed:
            return False
        number, amount = self._claims[depth]
        for way in self._ways_of(amount):
            before = [self._spots[i] for i in way]
            for i in way:
                self._spots[i] = _without(self._spots[i], amount)
            self._ways[number] = way
            if self._fill(depth + 1):
                return True
            for i, spot in zip(way, before, strict=True):
                self._spots[i] = spot
        self._failed.add(self._state(depth))
        self._no = self._no or self._lack(amount)
        return False

    def _state(self, depth: int) -> tuple[int, tuple[Spot, ...]]:
        return depth, tuple(sorted(self._spots))

    def _ways_of(self, amount: Amount) -> Iterable[tuple[int, ...]]:
        """Give the cards for a claim: the fullest first, or the largest whole ones."""
        spots = self._spots
        whole = amount.cores // CORES_PER_CARD
        if not whole:
            fitting = [
                (spot, i)
                for i, spot in enumerate(spots)
                if amount.units <= spot[1] and amount.cores <= spot[2]
            ]
            return [(i,) for _, i in sorted(fitting)]
        sizes: dict[int, list[int]] = {}
        for i in sorted(range(len(spots)), key=lambda i: -spots[i][1]):
            if spots[i][0]:
                sizes.setdefault(spots[i][1], []).append(i)
        return (
            way
            for way in _choices(list(sizes.values()), whole)
            if sum(spots[i][1] for i in way) >= amount.units
        )

    def _lack(self, amount: Amount) -> Refusal:
        """Say why no card takes a claim, or none that leaves room for the rest."""
        if amount.cores >= CORES_PER_CARD:
            return UNTOUCHED_CARDS
        cores = max(cores for _, _, cores in self._spots)
        units = max(units for _, units, _ in self._spots)
        return shortage(amount, Amount(cores, units))


def _without(spot: Spot, amount: Amount) -> Spot:
    """Give what is left of a card; nothing, where the claim is of whole cards."""
    if amount.cores >= CORES_PER_CARD:
        return (False, 0, 0)
    return (False, spot[1] - amount.units, spot[2] - amount.cores)


def _choices(kinds: Sequence[Sequence[int]], number: int) -> Iterator[tuple[int, ...]]:
    """Give the ways to choose so many of cards that are alike in kinds."""
    if not number:
        yield ()
    elif kinds:
        first, *rest = kinds
        for count in range(min(number, len(first)), -1, -1):
            for others in _choices(rest, number - count):
                yield (*first[:count], *others)


def whole_shares(claim: Claim, cards: Sequence[Card]) -> list[Share]:
    """Charge whole cards in full, and say which container has which of them.

    Containers take cores in the order in which kubelet admits them, and units from
    their own cards first. What an init container had, later ones have again.
    """
    left = {card.uuid: card.capacity for card in cards}
    held: dict[CardUUID, list[ContainerAmount]] = {card.uuid: [] for card in cards}
    for container in claim.containers:
        pool = dict(left) if container.name in claim.passing else left
        for uuid, part in _carve(container.amount, pool).items():
            held[uuid].append(ContainerAmount(container.name, part))
    return [
        Share(card.uuid, Amount(CORES_PER_CARD, card.units), tuple(held[card.uuid]))
        for card in cards
    ]


def _carve(amount: Amount, pool: dict[CardUUID, Amount]) -> dict[CardUUID, Amount]:
    parts: dict[CardUUID, Amount] = {}
    cores = amount.cores
    for uuid, room in pool.items():
        part = Amount(cores=min(cores, room.cores))
        if part:
            parts[uuid] = part
            cores -= part.cores
    units = amount.units
    for uuid in [*parts, *(uuid for uuid in pool if uuid not in parts)]:
        part = Amount(units=min(units, pool[uuid].units))
        if part:
            parts[uuid] = parts.get(uuid, Amount()) + part
            units -= part.units
    for uuid, part in parts.items():
        pool[uuid] -= part
    return parts
