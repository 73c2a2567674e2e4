"""Whether a request fits on each node and card, what is missing, what would help. Pure.

The domain decides whether it fits, here as in the extender; this adds the numbers, and
looks for the smallest set of pods to delete and for closed cards to open.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice

from gpushare.domain.card_selector import Limit
from gpushare.domain.eviction.preemption import EvictionFacts, Victims, choose_victims
from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Card,
    NodeName,
    PodRef,
    PodRequest,
    PodUID,
    Refusal,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal
from gpushare.domain.policies import Policy
from gpushare.kube import names, words
from gpushare.kube.annotations import LIMITS
from gpushare.kube.codec import refusal_text
from gpusharectl.output import INLINE, Data, encode


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

    @property
    def can_fit(self) -> bool:
        """Whether a share would fit if pods left: the card is open and large enough."""
        return self.free is not None and self.ever

    @property
    def distance(self) -> tuple[int, int]:
        """Sort key among cards that ``can_fit``: missing units, then missing cores."""
        return _by_units(self.missing)

    def as_data(self) -> Data:
        """Return the card and the verdict; None is missing if no share is judged."""
        no_share = self.free is None or self.whole
        return {
            **encode(self.card),
            "free": self.free,
            "missing": None if no_share else self.missing,
            "untouched": self.untouched,
            "fits": self.fits,
            "ever": self.ever,
            "excluded_by": [LIMITS[limit] for limit in self.excluded],
        }


@dataclass(frozen=True, slots=True)
class LargestRequests:
    """The largest requests of one container that fit on the node now.

    ``shares`` have falling cores, fewer than a whole card's, and rising units.
    ``whole_cards`` counts the untouched cards and ``whole_units`` their units.
    """

    shares: tuple[Amount, ...]
    whole_cards: int
    whole_units: int


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """One node, judged for one request; ``no`` is None if it fits.

    ``barred`` is why the pod may not use the node whatever is free there; mostly empty.
    Nodes with a smaller ``distance`` are nearer to fitting. Those that fit come first,
    those on which the request can never fit come last. Between them count the whole
    cards that are missing, then what the nearest card of each share lacks.
    """

    name: NodeName
    no: Refusal | None
    cards: tuple[CardVerdict, ...]
    fits_now: LargestRequests
    distance: tuple[int, int, int, int]
    barred: str = ""

    @property
    def fits(self) -> bool:
        """Whether the extender would place it here now."""
        return self.no is None and not self.barred

    def as_data(self) -> Data:
        """Return the node and its cards' verdicts."""
        return {
            "name": self.name,
            "fits": self.fits,
            "barred": self.barred or None,
            "because": self.no and refusal_text(self.no),
            "fits_now": self.fits_now,
            "cards": self.cards,
        }


def needs_node(request: PodRequest) -> bool:
    """Return whether no single card decides: for whole cards, or several claims."""
    return len(request.claims) > 1 or bool(request.claims[0].whole_cards)


def judge_node(
    request: PodRequest, node: Node, policy: Policy, barred: str = ""
) -> NodeVerdict:
    """Judge a node for a request, without what does not count for this pod."""
    seen = node.as_seen_by(request.pod)
    cards = tuple(_card(request, seen, card, policy) for card in seen.cards)
    no = find_refusal(request, seen, policy)
    limited = seen.as_limited_by(request)
    distance = (0, 0, 0, 0) if no is None else _distance(request, limited)
    return NodeVerdict(
        seen.name, no, cards, find_largest_requests(limited), distance, barred
    )


def _distance(request: PodRequest, node: Node) -> tuple[int, int, int, int]:
    """Return what a node without room lacks: all cards of a request added up."""
    can_fit, whole, missing = True, 0, NOTHING
    cards = [card for card in node.cards if card.open]
    for claim in request.claims:
        if count := claim.whole_cards:
            largest = node.summary.wholes[:count]
            can_fit = can_fit and len(cards) >= count
            whole += count - len(largest)
            missing += NOTHING.peak(Amount(units=claim.amount.units - sum(largest)))
            continue
        lacks = [
            _missing(claim.amount, node.free[card.uuid])
            for card in cards
            if claim.amount.fits(card.capacity)
        ]
        can_fit = can_fit and bool(lacks)
        missing += min(lacks, key=_by_units, default=NOTHING)
    return (1 if can_fit else 2, whole, *_by_units(missing))


def _missing(wanted: Amount, free: Amount) -> Amount:
    return NOTHING.peak(wanted - free)


def _by_units(amount: Amount) -> tuple[int, int]:
    return (amount.units, amount.cores)


def find_largest_requests(node: Node) -> LargestRequests:
    """Return the largest requests that fit on a node now.

    >>> from gpushare.domain.model import CardUUID
    >>> card = Card(CardUUID("GPU-0"), 0, 29)
    >>> find_largest_requests(Node(NodeName("n"), (card,))).shares
    (Amount(cores=99, units=29),)
    """
    best: dict[int, int] = {}
    for room in node.summary.frontier:
        cores = min(room.cores, CORES_PER_CARD - 1)
        best[cores] = max(room.units, best.get(cores, 0))
    shares = tuple(Amount(cores, units) for cores, units in best.items())
    untouched = node.summary.wholes
    return LargestRequests(tuple(filter(None, shares)), len(untouched), sum(untouched))


def _card(request: PodRequest, node: Node, card: Card, policy: Policy) -> CardVerdict:
    claim = request.claims[0]
    part = claim
    if claim.whole_cards > 1:
        part = replace(claim, amount=Amount(CORES_PER_CARD))
    single = replace(request, claims=(part,))
    alone = replace(node, cards=(card,))
    empty = Node(NodeName(""), (replace(card, healthy=True, cordoned=False),))
    free = alone.free.get(card.uuid)
    fits = find_refusal(single, alone, policy) is None
    ever = find_refusal(single, empty, policy) is None
    missing = NOTHING
    if free is not None and not claim.whole_cards:
        missing = _missing(claim.amount, free)
    untouched, whole = card in node.untouched, bool(claim.whole_cards)
    excluded = request.limits(card)
    return CardVerdict(card, free, untouched, missing, whole, fits, ever, excluded)


@dataclass(frozen=True, slots=True)
class InSum:
    """What a node has free in all, as an autoscaler sees it: no card has to have it."""

    node: NodeName
    free: Amount = field(metadata=INLINE)


Requested = Mapping[PodUID, Amount]
"""What kube-scheduler counts of each pod in the sums of its node."""


def find_room_in_sum(
    request: PodRequest, nodes: Iterable[Node], requested: Requested
) -> InSum | None:
    """Return the node with the most free memory on which the request fits by sums.

    None if it fits on none. The sums are kube-scheduler's own: without sick cards, with
    cordoned ones, with pods whose card is gone, and without ResourceClaims, which
    request no resource of the node. A whole card counts as what its pod requests.
    """
    enough = [
        InSum(node.name, _in_sum(node, requested))
        for node in nodes
        if fits_in_sum(request, node, requested)
    ]
    return max(enough, key=lambda s: (s.free.units, s.free.cores), default=None)


def fits_in_sum(request: PodRequest, node: Node, requested: Requested) -> bool:
    """Return whether a node has enough by the sums of ``find_room_in_sum``."""
    wanted = sum((claim.amount for claim in request.claims), NOTHING)
    return wanted.fits(_in_sum(node, requested))


def _in_sum(node: Node, requested: Requested) -> Amount:
    healthy = [card for card in node.cards if card.healthy]
    total = sum((card.capacity for card in healthy), NOTHING)
    holders = _holders(node, gone=True).items()
    amounts = (requested.get(uid, holder.amount) for uid, holder in holders)
    return total - sum(amounts, NOTHING)


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod, and what it holds of one card or of a node."""

    pod: PodRef = field(metadata=INLINE)
    amount: Amount = field(metadata=INLINE)


@dataclass(frozen=True, slots=True)
class DeletionPlan:
    """Pods whose deletion makes room: on one card, or on the node."""

    node: NodeName
    card: Card | None
    pods: tuple[Holder, ...]

    @property
    def cost(self) -> tuple[int, int, int]:
        """Fewest pods first, then the lowest priority, then the fewest units."""
        return (
            len(self.pods),
            max((holder.pod.priority for holder in self.pods), default=0),
            sum(holder.amount.units for holder in self.pods),
        )

    def as_data(self) -> Data:
        """Return where it is, and the pods."""
        uuid, index = (self.card and self.card.uuid), (self.card and self.card.index)
        return {"node": self.node, "card": uuid, "index": index, "pods": self.pods}


def _holders(node: Node, *, gone: bool = False) -> dict[PodUID, Holder]:
    """Return what each pod holds of a node's cards, nominated and unplaced ones too.

    No ResourceClaims: they are not deleted for a pod, so what they hold stays charged.
    ``gone``: also what they hold of cards that the node no longer has.
    """
    here = {card.uuid for card in node.cards}
    holders: dict[PodUID, Holder] = {}
    for placement in (*node.nominations.values(), *node.placements.values()):
        amounts = [s.amount for s in placement.shares if gone or s.card in here]
        if amounts and not placement.pod.is_resource_claim:
            total = sum(amounts, NOTHING)
            holders[placement.pod.uid] = Holder(placement.pod, total)
    for uid, request in node.unplaced.items():
        total = sum((claim.amount for claim in request.claims), NOTHING)
        holders[uid] = Holder(request.pod, total)
    return holders


_MOST_TRIES = 400
"""Sets of one size, some 20 ms; above that the largest pods are taken first."""
_HIGHEST = 2**31


def plan_on_card(
    request: PodRequest, node: Node, card: Card, policy: Policy
) -> DeletionPlan | None:
    """Return the smallest set of pods to delete for a share on this card.

    The fewest pods, then the lowest priority, then the fewest units. None if no set is
    enough.
    """
    alone = replace(node.as_seen_by(request.pod), cards=(card,))
    holders = _holders(alone)

    def enough(uids: Iterable[PodUID]) -> bool:
        return find_refusal(request, alone.without(set(uids)), policy) is None

    def way(uids: Iterable[PodUID]) -> DeletionPlan:
        return DeletionPlan(node.name, card, tuple(holders[uid] for uid in uids))

    if not enough(holders):
        return None
    for size in range(len(holders) + 1):
        sets = list(islice(combinations(sorted(holders), size), _MOST_TRIES + 1))
        if len(sets) > _MOST_TRIES:
            break
        if ways := [way(uids) for uids in sets if enough(uids)]:
            return min(ways, key=lambda plan: plan.cost)
    missing = request.claims[0].amount - alone.free[card.uuid]
    return way(_largest_first(holders, missing, enough))


def plan_on_node(
    request: PodRequest, node: Node, policy: Policy
) -> DeletionPlan | None:
    """Return pods to delete for whole cards or several claims.

    They are what a pod of the highest priority would preempt, so not always the fewest.
    """
    as_highest = replace(request, pod=replace(request.pod, priority=_HIGHEST))
    victims = choose_victims(as_highest, node, Victims(()), policy)
    if victims is None:
        return None
    holders = _holders(node)
    return DeletionPlan(
        node.name, None, tuple(holders[uid] for uid in victims.uids if uid in holders)
    )


def gives_way(request: PodRequest, node: Node, policy: Policy) -> bool:
    """Return whether evicting pods of a lower priority would make room on a node."""
    victims = choose_victims(request, node, Victims(()), policy, EvictionFacts(tries=0))
    return victims is not None and bool(victims.uids)


def _largest_first(
    holders: Mapping[PodUID, Holder],
    missing: Amount,
    enough: Callable[[Iterable[PodUID]], bool],
) -> Sequence[PodUID]:
    def size(uid: PodUID) -> tuple[int, int]:
        amount = holders[uid].amount
        main, other = amount.units, amount.cores
        return (main, other) if missing.units > 0 else (other, main)

    order = sorted(holders, key=size, reverse=True)
    chosen: list[PodUID] = []
    for uid in order:
        if enough(chosen):
            break
        chosen.append(uid)
    for uid in reversed(order):
        rest = [other for other in chosen if other != uid]
        if uid in chosen and enough(rest):
            chosen = rest
    return chosen


@dataclass(frozen=True, slots=True)
class Reopened:
    """The closed cards of a node that would have to be opened."""

    node: NodeName
    cards: tuple[Card, ...]

    @property
    def sick(self) -> bool:
        """Whether one of them has to be repaired first."""
        return any(not card.healthy for card in self.cards)


def find_cards_to_open(
    request: PodRequest, nodes: Iterable[Node], policy: Policy
) -> Reopened | None:
    """Return the fewest cards to open, cordoned ones before sick ones."""
    ways = [way for node in nodes for way in _ways(request, node, policy)]
    return min(ways, key=lambda way: (way.sick, len(way.cards)), default=None)


def _ways(request: PodRequest, node: Node, policy: Policy) -> Iterator[Reopened]:
    cordoned = [card for card in node.cards if card.healthy and card.cordoned]
    closed = [card for card in node.cards if not card.open]
    for cards in filter(None, (*([card] for card in closed), cordoned, closed)):
        as_open = tuple(
            replace(card, healthy=True, cordoned=False) if card in cards else card
            for card in node.cards
        )
        seen = replace(node, cards=as_open).as_seen_by(request.pod)
        if find_refusal(request, seen, policy) is None:
            yield Reopened(node.name, tuple(cards))


def suggest_smaller(request: PodRequest, verdicts: Sequence[NodeVerdict]) -> str:
    """Suggest the largest request that fits; what is not too large stays."""
    claim = request.claims[0]
    largest = [verdict.fits_now for verdict in verdicts]
    if len(request.claims) > 1:
        return ""
    if claim.whole_cards:
        most = max(requests.whole_cards for requests in largest)
        too_many = 0 < most < claim.whole_cards
        return f"request {words.counted(most, 'whole card')}" if too_many else ""
    rooms = [room for requests in largest for room in requests.shares]
    wanted = claim.amount
    units = max((room.units for room in rooms if room.cores >= wanted.cores), default=0)
    if units:
        return f"request at most {words.units(units)} ({words.memory(units)})"
    cores = max((room.cores for room in rooms if room.units >= wanted.units), default=0)
    if 0 < cores < wanted.cores:
        return f"request at most {words.cores(cores)}"
    return ""


def suggest_possible(
    request: PodRequest, verdicts: Sequence[NodeVerdict]
) -> Iterator[str]:
    """Say what could run on these nodes at all, for a request that never can."""
    sizes = [
        sorted(verdict.card.units for verdict in node.cards if not verdict.excluded)
        for node in verdicts
    ]
    largest = max(map(max, filter(None, sizes)))
    (claim, *more) = request.claims
    if more or claim.whole_cards:
        most = words.counted(max(map(len, sizes)), "whole card")
        if not more and claim.whole_cards > max(map(len, sizes)):
            yield f"request at most {most}"
        return
    now = max(
        (room.units for verdict in verdicts for room in verdict.fits_now.shares),
        default=0,
    )
    yield (
        f"request at most {words.units(largest)} ({words.memory(largest)}); now "
        f"{now} are free on one card"
    )
    units = claim.amount.units
    enough = [
        count
        for size in sizes
        for count in range(2, len(size) + 1)
        if sum(size[-count:]) >= units
    ]
    if enough:
        whole = min(enough)
        cores = f"{names.CORE}: {whole * CORES_PER_CARD}"
        yield f"request {words.counted(whole, 'whole card')} ({cores})"
