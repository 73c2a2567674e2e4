"""The one decision that filter, bind, why and simulate ask.

What is left of a node's cards while the claims of one pod are being placed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    NodeName,
    Placement,
    PodRequest,
    Share,
)
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy, Rank
from gpushare.domain.refusal import (
    NO_CARDS,
    UNTOUCHED_CARDS,
    Refusal,
    Summary,
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


_MOST_STEPS = 500
"""Steps of the search for several claims on one node: some 5 ms."""
_MOST_STEPS_IN_ALL = 2000
"""Steps on all the nodes that filter looks at: it has a deadline, and any pod may ask
for what only a long search can tell."""


class Decider:
    """Decides about one request on one node after another.

    What searches may cost on all these nodes together has a bound: when their steps
    are used up, each further node gets one try without a way back. Nodes that have the
    same left on their cards are searched once.
    """

    def __init__(self, request: PodRequest, policy: Policy) -> None:
        self._request = request
        self._policy = policy
        self._steps = _MOST_STEPS_IN_ALL
        self._found: dict[tuple[Spot, ...], Found] = {}

    def place(self, node: Node) -> Placement | Refusal:
        """Choose the cards, as the function ``place`` does."""
        request, policy = self._request, self._policy
        summary = node.summary_for(request)
        shares = self._too_much(summary) or self._shares(node)
        if isinstance(shares, Refusal):
            return shares if summary is node.summary else _limited(shares, request)
        if policy.chooser is not None:
            costs = partial(policy.chooser.costs, request, node)
            room = Room.of(node, policy, request, costs)
            shares = _in_order(request.claims, room) or shares
        return Placement(request.pod, node.name, shares)

    def refusal(self, node: Node) -> Refusal | None:
        """Say why the node cannot take the pod, as the function ``refusal`` does."""
        summary = node.summary_for(self._request)
        no = self._too_much(summary)
        if no is None and len(self._request.claims) > 1:
            no = None if self._fit_on_one_card(summary) else self._no_way(node)
        if no is None or summary is node.summary:
            return no
        return _limited(no, self._request)

    def _too_much(self, summary: Summary) -> Refusal | None:
        """Say why one of the claims, by itself, is too much."""
        for claim in self._request.claims:
            no = summary.refusal(claim)
            if no is not None:
                return no
        return None

    def _fit_on_one_card(self, summary: Summary) -> bool:
        """Tell whether a card has room for all claims: then any order finds room."""
        total = self._search.total
        return total.cores < CORES_PER_CARD and summary.has_room(total)

    def _shares(self, node: Node) -> tuple[Share, ...] | Refusal:
        """Place by taste where that succeeds, and by a search where it does not."""
        claims = self._request.claims
        shares = _in_order(claims, Room.of(node, self._policy, self._request))
        if shares is not None:
            return shares
        room = Room.of(node, self._policy, self._request)
        ranked, cards = spots(node, self._request)
        found = self._searched(ranked)
        if found.ways is None:
            return found.no
        taken: list[Share] = []
        for claim, way in zip(claims, found.ways, strict=True):
            taken += room.take(claim, tuple(cards[i] for i in way))
        return one_share_a_card(taken)

    def _no_way(self, node: Node) -> Refusal | None:
        found = self._searched(spots(node, self._request)[0])
        return None if found.ways is not None else found.no

    def _searched(self, ranked: tuple[Spot, ...]) -> Found:
        found = self._found.get(ranked)
        if found is None:
            most = max(len(self._request.claims), min(self._steps, _MOST_STEPS))
            found = self._found[ranked] = self._search.run(ranked, most)
            self._steps = max(0, self._steps - found.steps)
        return found

    @cached_property
    def _search(self) -> Search:
        return Search([claim.amount for claim in self._request.claims])


def place(request: PodRequest, node: Node, policy: Policy) -> Placement | Refusal:
    """Choose the cards for a pod on one node, or say why there are none.

    One claim fits or not whatever the policy. Several are placed in the policy's order
    and, if that fails, by a bounded search, so that taste does not decide about fit.
    Cards that the pod's lists shut out are left alone. What a chooser likes better is
    taken last, so that its costs are asked once a claim and not at each step.
    """
    return Decider(request, policy).place(node)


def refusal(request: PodRequest, node: Node, policy: Policy) -> Refusal | None:
    """Say why the node cannot take the pod, or None; ``place`` without the placement.

    For a single claim, or several of which one alone is too much or which all fit on
    one card, a look at the summary is enough. Nobody is asked what a card costs: that
    is taste.
    """
    return Decider(request, policy).refusal(node)


def score(node: Node, policy: Policy) -> int:
    """Say how much the policy likes the node for a pod that fits there, 0 to 10."""
    return policy.node_score(node)


def schedule(
    request: PodRequest, nodes: Iterable[Node], policy: Policy
) -> Placement | dict[NodeName, Refusal]:
    """Place a pod on the best of the nodes, or give each node's refusal.

    Among nodes of one score the first by name is taken: kube-scheduler draws lots
    there, and a simulation should come out the same twice.
    """
    refused: dict[NodeName, Refusal] = {}
    fitting: list[Node] = []
    decider = Decider(request, policy)
    for node in nodes:
        no = decider.refusal(node)
        if no is None:
            fitting.append(node)
        else:
            refused[node.name] = no
    if not fitting:
        return refused
    best = favourite(request, fitting, policy)
    if best is None:
        best = min(fitting, key=lambda node: (-score(node, policy), node.name))
    placed = place(request, best, policy)
    return {best.name: placed} if isinstance(placed, Refusal) else placed


def favourite(
    request: PodRequest, fitting: Iterable[Node], policy: Policy
) -> Node | None:
    """Give the one node that the policy wants of those on which the pod fits.

    None for a policy that scores each node by itself, as all but ``frag`` do.
    """
    if policy.chooser is None:
        return None
    pages = {node.name: node for node in fitting}
    name = policy.chooser.best(request, tuple(pages), policy)
    return None if name is None else pages[name]


def _limited(no: Refusal, request: PodRequest) -> Refusal:
    """Say that the refusal is about the cards that the pod's lists leave."""
    limits = () if request.cards is None else request.cards.limits
    return Refusal(no.reason, no.detail, limits)


def _in_order(claims: tuple[Claim, ...], room: Room) -> tuple[Share, ...] | None:
    shares: list[Share] = []
    for claim in claims:
        choices = room.choices(claim)
        if not choices:
            return None
        shares += room.take(claim, choices[0])
    return one_share_a_card(shares)


def one_share_a_card(shares: list[Share]) -> tuple[Share, ...]:
    """Merge the shares that several containers of one pod have on the same card."""
    merged: dict[str, Share] = {}
    for share in shares:
        before = merged.get(share.card)
        merged[share.card] = (
            share
            if before is None
            else Share(
                share.card,
                before.amount + share.amount,
                before.containers + share.containers,
            )
        )
    return tuple(merged.values())
