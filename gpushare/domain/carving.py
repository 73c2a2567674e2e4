"""What is left of a node's cards while the claims of one pod are being placed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

from gpushare.domain.model import (
    CORES_PER_CARD,
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    Share,
)
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy, Rank
from gpushare.domain.summary import Summary, summarize

Cards = tuple[Card, ...]
Costs = Callable[[Claim, Mapping[CardUUID, Amount]], Mapping[CardUUID, float]]
"""What a share costs on each card, by what the cards have left."""


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
    def of(cls, node: Node, policy: Policy, costs: Costs | None = None) -> "Room":
        """Begin with what the node has free."""
        cards = {card.uuid: card for card in node.cards if card.open}
        untouched = {card.uuid for card in node.untouched}
        return cls(cards, policy, dict(node.free), untouched, costs)

    def summary(self) -> Summary:
        """Sum up what is left now."""
        return summarize(
            self.free.values(), (self.cards[uuid].units for uuid in self.untouched)
        )

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

    def distinct_choices(self, claim: Claim) -> Iterator[Cards]:
        """Give all ways to meet the claim that differ in more than names.

        Lazily, since there are many ways to choose whole cards: the search that asks
        has a bound. Beside the largest, smaller untouched cards are tried, which may
        leave a large one to a share that needs it.
        """
        ways: Iterable[Cards] = self.choices(claim)
        if claim.whole_cards:
            ways = self._all_whole(claim)
        look = {uuid: self._look(card) for uuid, card in self.cards.items()}
        seen: set[tuple[tuple[Amount, bool, int], ...]] = set()
        for way in ways:
            looks = tuple(look[card.uuid] for card in way)
            if looks not in seen:
                seen.add(looks)
                yield way

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

    def mark(self) -> tuple[dict[CardUUID, Amount], set[CardUUID]]:
        """Remember what is left, for ``undo``."""
        return dict(self.free), set(self.untouched)

    def undo(self, mark: tuple[dict[CardUUID, Amount], set[CardUUID]]) -> None:
        """Go back to what was left at ``mark``."""
        self.free, self.untouched = dict(mark[0]), set(mark[1])

    def _rank(self, card: Card) -> Rank:
        return self.policy.rank(card, self.free[card.uuid])

    def _look(self, card: Card) -> tuple[Amount, bool, int]:
        return (self.free[card.uuid], card.uuid in self.untouched, card.units)

    def _whole(self, claim: Claim) -> list[Cards]:
        return list(islice(self._all_whole(claim), 1))

    def _all_whole(self, claim: Claim) -> Iterator[Cards]:
        """Give the sets of untouched cards that hold the claim, the largest first."""
        ranked = sorted(
            (self.cards[uuid] for uuid in self.untouched),
            key=lambda card: (-card.units, self._rank(card)),
        )
        largest = ranked[: claim.whole_cards]
        units = sum(card.units for card in largest)
        if len(largest) < claim.whole_cards or units < claim.amount.units:
            return
        for chosen in combinations(ranked, claim.whole_cards):
            if sum(card.units for card in chosen) >= claim.amount.units:
                yield chosen


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
