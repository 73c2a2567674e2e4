"""Whether a request fits on a node and on each of its cards, and what is missing. Pure.

Fit itself is the domain's to say, here as in production; this puts numbers to it.

Which running pods would have to go for a request to fit. Pure.

The domain says of each set whether it is enough; here the smallest is looked for.

Which closed cards would have room for a request, were they open. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, islice

from gpushare.domain.card_selector import Limit
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
from gpushare.domain.placement import refusal
from gpushare.domain.policies import Policy
from gpushare.domain.preemption import Victims, choose_victims
from gpushare.domain.refusal import Refusal

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


_MOST_TRIES = 400
"""Of one size on one card: some 20 ms. With more sets than that, big pods go first."""
_HIGHEST = 2**31
Cost = tuple[int, int, int, tuple[PodUID, ...]]


@dataclass(frozen=True, slots=True)
class Leaving:
    """The pods that would have to go: from one card, or somewhere on the node."""

    uids: tuple[PodUID, ...]


def from_card(
    request: PodRequest, page: Node, card: Card, policy: Policy
) -> Leaving | None:
    """Give the smallest set for a share on this card; None where no set is enough.

    Fewest pods first, then the least important, then the least units.
    """
    alone = on_one_card(page.as_seen_by(request.pod), card)
    held = holders(alone, card.uuid)
    ranks = _priorities(alone)

    def enough(uids: Iterable[PodUID]) -> bool:
        return refusal(request, alone.without(set(uids)), policy) is None

    def cost(uids: tuple[PodUID, ...]) -> Cost:
        highest = max((ranks[uid] for uid in uids), default=0)
        amounts = [held[uid] for uid in uids]
        return (highest, sum(a.units for a in amounts), len(uids), uids)

    if not enough(held):
        return None
    for size in range(len(held) + 1):
        sets = list(islice(combinations(sorted(held), size), _MOST_TRIES + 1))
        if len(sets) > _MOST_TRIES:
            break
        if found := [one for one in sets if enough(one)]:
            return Leaving(min(found, key=cost))
    missing = request.claims[0].amount - alone.free[card.uuid]
    return Leaving(_big_ones_first(held, missing, enough))


def from_node(request: PodRequest, page: Node, policy: Policy) -> Leaving | None:
    """Give pods for whole cards or several claims, as a most important pod would evict.

    By the domain's own choice of victims, so not always the fewest.
    """
    pod = replace(request.pod, priority=_HIGHEST)
    asked = replace(request, pod=pod)
    found = choose_victims(asked, page, Victims(()), policy)
    return None if found is None else Leaving(found.uids)


def _big_ones_first(
    held: Mapping[PodUID, Amount],
    missing: Amount,
    enough: Callable[[Iterable[PodUID]], bool],
) -> tuple[PodUID, ...]:
    def size(uid: PodUID) -> tuple[int, int]:
        amount = held[uid]
        main, other = amount.units, amount.cores
        return (main, other) if missing.units > 0 else (other, main)

    order = sorted(held, key=size, reverse=True)
    gone: list[PodUID] = []
    for uid in order:
        if enough(gone):
            break
        gone.append(uid)
    for uid in reversed(order):
        rest = [one for one in gone if one != uid]
        if uid in gone and enough(rest):
            gone = rest
    return tuple(gone)


def _priorities(page: Node) -> dict[PodUID, int]:
    found = {uid: asked.pod.priority for uid, asked in page.unplaced.items()}
    for placement in (*page.nominations.values(), *page.placements.values()):
        found[placement.pod.uid] = placement.pod.priority
    return found


@dataclass(frozen=True, slots=True)
class Reopened:
    """The closed cards of a node that would have to be open; the fewest that will do.

    ``sick`` where one of them has to be mended first.
    """

    node: NodeName
    cards: tuple[Card, ...]

    @property
    def sick(self) -> bool:
        """Whether opening is not enough."""
        return any(not card.healthy for card in self.cards)


def reopened(
    request: PodRequest, pages: Iterable[Node], policy: Policy
) -> Reopened | None:
    """Give the nearest way: cordoned cards before sick ones, one before several."""
    found = [way for page in pages for way in _ways(request, page, policy)]
    return min(found, key=lambda way: (way.sick, len(way.cards)), default=None)


def _ways(request: PodRequest, page: Node, policy: Policy) -> Iterator[Reopened]:
    cordoned = [card for card in page.cards if card.healthy and card.cordoned]
    closed = [card for card in page.cards if not card.open]
    for cards in (*([card] for card in closed), cordoned, closed):
        if cards and _fits(request, _with_open(page, cards), policy):
            yield Reopened(page.name, tuple(cards))


def _with_open(page: Node, cards: Iterable[Card]) -> Node:
    chosen = {card.uuid for card in cards}
    return replace(
        page,
        cards=tuple(
            replace(card, healthy=True, cordoned=False) if card.uuid in chosen else card
            for card in page.cards
        ),
    )


def _fits(request: PodRequest, page: Node, policy: Policy) -> bool:
    return refusal(request, page.as_seen_by(request.pod), policy) is None
