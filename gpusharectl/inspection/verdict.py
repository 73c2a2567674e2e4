"""Whether a request fits on a node and on each of its cards, and what is missing. Pure.

Fit itself is the domain's to say, here as in production; this puts numbers to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpushare.domain.cardselector import Limit
from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Card,
    CardUUID,
    Claim,
    NodeName,
    PodRequest,
    PodUID,
)
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.scheduling import refusal
from gpushare.domain.summary import Refusal

MOST_OF_A_SHARE = CORES_PER_CARD - 1
"""Cores: one more is a whole card."""


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """One card, seen by one request.

    ``free`` is None for a card that gets nothing new; ``missing`` what it has too
    little of for a share, nothing where it fits; ``whole`` where whole cards are asked.
    ``ever``: empty, it would be enough. ``excluded``: the pod's lists that shut it out.
    """

    card: Card
    free: Amount | None
    untouched: bool
    missing: Amount
    whole: bool
    fits: bool
    ever: bool
    excluded: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class Offers:
    """The largest requests of one container that the node can take now.

    ``shares`` with cores falling and units rising; ``whole`` how many untouched cards,
    with ``whole_units`` in all.
    """

    shares: tuple[Amount, ...]
    whole: int
    whole_units: int


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """One node, seen by one request; ``no`` is None where it fits."""

    name: NodeName
    no: Refusal | None
    cards: tuple[CardVerdict, ...]
    offers: Offers

    @property
    def fits(self) -> bool:
        """Whether the domain would place it here now."""
        return self.no is None


def judge(request: PodRequest, page: Node, policy: Policy) -> NodeVerdict:
    """Say what the request finds on a node, without what must not stand in its way."""
    seen = page.as_seen_by(request.pod)
    cards = tuple(_card(request, seen, card, policy) for card in seen.cards)
    no = refusal(request, seen, policy)
    return NodeVerdict(seen.name, no, cards, offers(seen.as_limited_by(request)))


def offers(page: Node) -> Offers:
    """Say the largest requests that fit on a node now.

    >>> from gpushare.domain.model import Card
    >>> offers(Node(NodeName("n"), (Card(CardUUID("GPU-0"), 0, 29),))).shares
    (Amount(cores=99, units=29),)
    """
    best: dict[int, int] = {}
    for room in page.summary.frontier:
        cores = min(room.cores, MOST_OF_A_SHARE)
        best[cores] = max(room.units, best.get(cores, 0))
    shares = tuple(Amount(cores, units) for cores, units in best.items())
    untouched = page.summary.untouched
    return Offers(tuple(filter(None, shares)), len(untouched), sum(untouched))


def on_one_card(page: Node, card: Card) -> Node:
    """Give the node as if it had this card alone, with all that is held of it."""
    return replace(page, cards=(card,))


def largest_share(verdicts: Mapping[NodeName, Offers], cores: int) -> Amount:
    """Give the largest share that some node takes, of at least so many cores."""
    rooms = [
        room
        for found in verdicts.values()
        for room in found.shares
        if room.cores >= cores
    ]
    return max(rooms, key=lambda room: (room.units, room.cores), default=NOTHING)


def _card(request: PodRequest, page: Node, card: Card, policy: Policy) -> CardVerdict:
    claim = request.claims[0]
    alone = on_one_card(page, card)
    free = alone.free.get(card.uuid)
    single = replace(request, claims=(_part_for_one_card(claim),))
    fits = refusal(single, alone, policy) is None
    ever = refusal(single, _emptied(card), policy) is None
    missing = NOTHING
    if free is not None and not claim.whole_cards:
        missing = NOTHING.peak(claim.amount - free)
    untouched, whole = card in page.untouched, bool(claim.whole_cards)
    excluded = request.limits(card)
    return CardVerdict(card, free, untouched, missing, whole, fits, ever, excluded)


def _part_for_one_card(claim: Claim) -> Claim:
    """Ask one card for what one card can do: of several whole ones, one."""
    if claim.whole_cards <= 1:
        return claim
    return replace(claim, amount=Amount(CORES_PER_CARD))


def _emptied(card: Card) -> Node:
    return Node(NodeName(""), (replace(card, healthy=True, cordoned=False),))


def holders(page: Node, uuid: CardUUID) -> dict[PodUID, Amount]:
    """Give who holds how much of a card, kept room and unknown pods included."""
    found: dict[PodUID, Amount] = {}
    for placement in (*page.nominations.values(), *page.placements.values()):
        for share in placement.shares:
            if share.card == uuid:
                found[placement.pod.uid] = share.amount
    for uid, asked in page.unplaced.items():
        found[uid] = sum((claim.amount for claim in asked.claims), NOTHING)
    return found
