"""Whether a request fits on each node and card, what is missing, what would help. Pure.

The domain decides whether it fits, here as in the extender; this adds the numbers, and
looks for the smallest set of pods to delete and for closed cards to open.
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
"""One core more is a whole card."""


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """One card, judged for one request.

    ``free`` is None for a closed card. ``missing`` is what a share lacks, nothing if it
    fits. ``whole``: whole cards are requested. ``ever``: the empty card would be
    enough. ``excluded``: the pod's annotations that exclude the card.
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
    """The largest requests of one container that fit on the node now.

    ``shares`` have falling cores and rising units. ``whole`` counts the untouched cards
    and ``whole_units`` their units.
    """

    shares: tuple[Amount, ...]
    whole: int
    whole_units: int


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """One node, judged for one request; ``no`` is None if it fits."""

    name: NodeName
    no: Refusal | None
    cards: tuple[CardVerdict, ...]
    offers: Offers

    @property
    def fits(self) -> bool:
        """Whether the extender would place it here now."""
        return self.no is None


def judge(request: PodRequest, node: Node, policy: Policy) -> NodeVerdict:
    """Judge a node for a request, without what does not count for this pod."""
    seen = node.as_seen_by(request.pod)
    cards = tuple(_card(request, seen, card, policy) for card in seen.cards)
    no = refusal(request, seen, policy)
    return NodeVerdict(seen.name, no, cards, offers(seen.as_limited_by(request)))


def offers(node: Node) -> Offers:
    """Return the largest requests that fit on a node now.

    >>> from gpushare.domain.model import Card
    >>> offers(Node(NodeName("n"), (Card(CardUUID("GPU-0"), 0, 29),))).shares
    (Amount(cores=99, units=29),)
    """
    best: dict[int, int] = {}
    for room in node.summary.frontier:
        cores = min(room.cores, MOST_OF_A_SHARE)
        best[cores] = max(room.units, best.get(cores, 0))
    shares = tuple(Amount(cores, units) for cores, units in best.items())
    untouched = node.summary.untouched
    return Offers(tuple(filter(None, shares)), len(untouched), sum(untouched))


def on_one_card(node: Node, card: Card) -> Node:
    """Return the node as if it had only this card, with all that is held of it."""
    return replace(node, cards=(card,))


def largest_share(verdicts: Mapping[NodeName, Offers], cores: int) -> Amount:
    """Return the largest share that fits on some node, with at least these cores."""
    rooms = [
        room
        for found in verdicts.values()
        for room in found.shares
        if room.cores >= cores
    ]
    return max(rooms, key=lambda room: (room.units, room.cores), default=NOTHING)


def _card(request: PodRequest, node: Node, card: Card, policy: Policy) -> CardVerdict:
    claim = request.claims[0]
    alone = on_one_card(node, card)
    free = alone.free.get(card.uuid)
    single = replace(request, claims=(_part_for_one_card(claim),))
    fits = refusal(single, alone, policy) is None
    ever = refusal(single, _emptied(card), policy) is None
    missing = NOTHING
    if free is not None and not claim.whole_cards:
        missing = NOTHING.peak(claim.amount - free)
    untouched, whole = card in node.untouched, bool(claim.whole_cards)
    excluded = request.limits(card)
    return CardVerdict(card, free, untouched, missing, whole, fits, ever, excluded)


def _part_for_one_card(claim: Claim) -> Claim:
    if claim.whole_cards <= 1:
        return claim
    return replace(claim, amount=Amount(CORES_PER_CARD))


def _emptied(card: Card) -> Node:
    return Node(NodeName(""), (replace(card, healthy=True, cordoned=False),))


def holders(node: Node, uuid: CardUUID) -> dict[PodUID, Amount]:
    """Return what each pod holds of a card, with nominated and unplaced pods."""
    found: dict[PodUID, Amount] = {}
    for placement in (*node.nominations.values(), *node.placements.values()):
        for share in placement.shares:
            if share.card == uuid:
                found[placement.pod.uid] = share.amount
    for uid, asked in node.unplaced.items():
        found[uid] = sum((claim.amount for claim in asked.claims), NOTHING)
    return found


_MOST_TRIES = 400
"""Sets of one size, some 20 ms; above that the largest pods are taken first."""
_HIGHEST = 2**31
Cost = tuple[int, int, int, tuple[PodUID, ...]]


def from_card(
    request: PodRequest, node: Node, card: Card, policy: Policy
) -> tuple[PodUID, ...] | None:
    """Return the smallest set of pods to delete for a share on this card.

    The fewest pods, then the lowest priority, then the fewest units. None if no set is
    enough.
    """
    alone = on_one_card(node.as_seen_by(request.pod), card)
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
            return min(found, key=cost)
    missing = request.claims[0].amount - alone.free[card.uuid]
    return _largest_first(held, missing, enough)


def from_node(
    request: PodRequest, node: Node, policy: Policy
) -> tuple[PodUID, ...] | None:
    """Return pods to delete for whole cards or several claims.

    They are what a pod of the highest priority would preempt, so not always the fewest.
    """
    pod = replace(request.pod, priority=_HIGHEST)
    asked = replace(request, pod=pod)
    found = choose_victims(asked, node, Victims(()), policy)
    return None if found is None else found.uids


def _largest_first(
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


def _priorities(node: Node) -> dict[PodUID, int]:
    found = {uid: asked.pod.priority for uid, asked in node.unplaced.items()}
    for placement in (*node.nominations.values(), *node.placements.values()):
        found[placement.pod.uid] = placement.pod.priority
    return found


@dataclass(frozen=True, slots=True)
class Reopened:
    """The closed cards of a node that would have to be opened."""

    node: NodeName
    cards: tuple[Card, ...]

    @property
    def sick(self) -> bool:
        """Whether one of them has to be repaired first."""
        return any(not card.healthy for card in self.cards)


def reopened(
    request: PodRequest, nodes: Iterable[Node], policy: Policy
) -> Reopened | None:
    """Return the fewest cards to open, cordoned ones before sick ones."""
    found = [way for node in nodes for way in _ways(request, node, policy)]
    return min(found, key=lambda way: (way.sick, len(way.cards)), default=None)


def _ways(request: PodRequest, node: Node, policy: Policy) -> Iterator[Reopened]:
    cordoned = [card for card in node.cards if card.healthy and card.cordoned]
    closed = [card for card in node.cards if not card.open]
    for cards in (*([card] for card in closed), cordoned, closed):
        if cards and _fits(request, _with_open(node, cards), policy):
            yield Reopened(node.name, tuple(cards))


def _with_open(node: Node, cards: Iterable[Card]) -> Node:
    chosen = {card.uuid for card in cards}
    return replace(
        node,
        cards=tuple(
            replace(card, healthy=True, cordoned=False) if card.uuid in chosen else card
            for card in node.cards
        ),
    )


def _fits(request: PodRequest, node: Node, policy: Policy) -> bool:
    return refusal(request, node.as_seen_by(request.pod), policy) is None
