"""Whether a pod fits on a node, on which cards, and which node is best.

``filter``, ``bind``, ``why`` and ``simulate`` all call these functions. A pod with one
claim fits or not, whatever the policy. Several claims are placed in the policy's order
first, and by a bounded search if that fails.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from gpushare.domain import links
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
    PodRequest,
    Refusal,
    Share,
    join_shares,
    refuse_insufficient,
    share_whole_cards,
)
from gpushare.domain.node import CardCapacity, Node, Summary
from gpushare.domain.policies import Policy, Rank

_MOST_STEPS = 500
"""Steps of the search for several claims on one node: about 5 ms."""
_SIZES = 4
"""Of about so many sizes the shares are counted before a search: a few µs."""
_CARDS_A_STEP = 16
"""A step on a node with more cards counts as several, because it looks at each card."""
_MOST_STEPS_IN_ALL = 2000
"""Steps on all nodes of one filter call: it has a deadline, and any pod can ask for
something that only a long search can answer."""

Cards = tuple[Card, ...]
Costs = Callable[[Claim, Mapping[CardUUID, Amount]], Mapping[CardUUID, float]]
"""Return the cost of a share on each card, by the free amounts of the cards."""


@dataclass(slots=True)
class FreeCapacity:
    """The free capacity of one node's open cards while a pod's claims are placed.

    It is mutable, and lives for one placement.
    """

    cards: Mapping[CardUUID, Card]
    policy: Policy
    free: dict[CardUUID, Amount]
    untouched: set[CardUUID] = field(default_factory=set)
    costs: Costs | None = None
    """Comes before the policy's own order, for the cards that it returns."""
    listed: Cards = ()
    """All cards of the node, in the order in which their links are listed."""

    @classmethod
    def of(
        cls, node: Node, policy: Policy, request: PodRequest, costs: Costs | None = None
    ) -> "FreeCapacity":
        """Read the free capacity of the cards that the pod may have."""
        cards = {c.uuid: c for c in node.cards if c.open and request.allows(c)}
        free = {uuid: node.free[uuid] for uuid in cards}
        untouched = {card.uuid for card in node.untouched if card.uuid in cards}
        return cls(cards, policy, free, untouched, costs, node.cards)

    def choices(self, claim: Claim) -> list[Cards]:
        """Return the ways to meet the claim, the policy's best one first.

        A share has one way for each card with enough free capacity. Whole cards have
        one way for each kind of cards, the largest untouched ones: full cards, or MIG
        instances of one profile, because no claim mixes them. Of equally large ones the
        best linked set is taken (``links``), where links are known.
        """
        if claim.whole_cards:
            return self._whole(claim)
        fitting = [u for u, room in self.free.items() if claim.amount.fits(room)]
        ranked = sorted((self.cards[u] for u in fitting), key=self._rank)
        if self.costs is not None and (costs := self.costs(claim, self.free)):
            ranked.sort(key=lambda card: costs[card.uuid])
        return [(card,) for card in ranked]

    def take(self, claim: Claim, cards: Cards) -> list[Share]:
        """Take the claim from the chosen cards and return the resulting shares."""
        if claim.whole_cards:
            shares = share_whole_cards(claim, cards)
        else:
            shares = [Share(cards[0].uuid, claim.amount, claim.containers)]
        for share in shares:
            self.free[share.card] -= share.amount
            self.untouched.discard(share.card)
        return shares

    def _rank(self, card: Card) -> Rank:
        return self.policy.rank(card, self.free[card.uuid])

    def _whole(self, claim: Claim) -> list[Cards]:
        kinds: dict[str, list[Card]] = {}
        for card in (self.cards[uuid] for uuid in self.untouched):
            kinds.setdefault(card.kind, []).append(card)
        ways: list[tuple[int, str, Cards]] = []
        for kind, cards in kinds.items():
            cards.sort(key=lambda card: (-card.units, self._rank(card)))
            largest = links.choose_best_set(cards, claim.whole_cards, self.listed)
            units = sum(card.units for card in largest)
            if len(largest) == claim.whole_cards and units >= claim.amount.units:
                ways.append((-units, kind, largest))
        return [largest for _, _, largest in sorted(ways)]


def list_capacities(
    node: Node, request: PodRequest
) -> tuple[tuple[CardCapacity, ...], Cards]:
    """Return the cards that the pod may have, the smallest capacity first."""
    if request.cards is None:
        return node.capacities
    pairs = zip(*node.capacities, strict=True)
    allowed = [(capacity, card) for capacity, card in pairs if request.allows(card)]
    return tuple(capacity for capacity, _ in allowed), tuple(c for _, c in allowed)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    ``ways`` has the positions of the cards for each claim, None if there is no way.
    ``no`` says what was missing for the first claim that could not be placed.
    """

    ways: tuple[tuple[int, ...], ...] | None
    no: Refusal
    steps: int


class ClaimSearch:
    """Search for a way to meet several claims at once, the largest first.

    It ignores the policy's preference, because filter may run it on thousands of nodes.
    A state that failed is not tried again with cards that differ in name only.
    """

    def __init__(self, amounts: Sequence[Amount]) -> None:
        self.total = sum(amounts, NOTHING)
        self._whole = sum(amount.cores // CORES_PER_CARD for amount in amounts)
        parts = [amount for amount in amounts if amount.cores < CORES_PER_CARD]
        self._units = _shares_by_size(amount.units for amount in parts)
        self._cores = _shares_by_size(amount.cores for amount in parts)
        # The largest first: it has the fewest ways, so failures show early.
        order = sorted(range(len(amounts)), key=lambda i: self._size(amounts[i]))
        self._claims = [(i, amounts[i]) for i in reversed(order)]
        self._cards: list[CardCapacity] = []
        self._steps_left = 0
        self._ways: dict[int, tuple[int, ...]] = {}
        self._failed: set[tuple[int, tuple[CardCapacity, ...]]] = set()
        self._no: Refusal | None = None

    def run(self, cards: Sequence[CardCapacity], most_steps: int) -> SearchResult:
        """Search until a way is found, all were tried, or the steps are used up.

        The steps always suffice for one attempt without backtracking.
        """
        price = max(1, -(-len(cards) // _CARDS_A_STEP))
        most = max(len(self._claims), most_steps // price)
        self._cards, self._steps_left = list(cards), most
        self._failed.clear()
        # Two bounds before the search: most refusals need no step of it.
        self._no = self._short_in_sum() or self._short_in_number()
        ways = None
        if self._no is None and self._fill(0):
            ways = tuple(self._ways[i] for i in range(len(self._claims)))
        no = self._no or NO_CARDS
        return SearchResult(ways, no, (most - self._steps_left) * price)

    def _size(self, amount: Amount) -> tuple[int, float]:
        return amount.cores // CORES_PER_CARD, max(
            amount.cores / max(1, self.total.cores),
            amount.units / max(1, self.total.units),
        )

    def _short_in_sum(self) -> Refusal | None:
        """Return what all cards together have too little of, None if nothing."""
        if self._whole > sum(card[0] for card in self._cards):
            return UNTOUCHED_CARDS
        units = sum(units for _, units, _, _ in self._cards if units > 0)
        cores = sum(cores for _, _, cores, _ in self._cards if cores > 0)
        there = Amount(cores, units)
        return (
            None if self.total.fits(there) else refuse_insufficient(self.total, there)
        )

    def _short_in_number(self) -> Refusal | None:
        """Return what the cards have in too small pieces for the largest claims.

        Each card by itself: one of 94 units takes one share of 48, and no two.
        """
        units = _exceed_rooms(self._units, [units for _, units, _, _ in self._cards])
        cores = _exceed_rooms(self._cores, [cores for _, _, cores, _ in self._cards])
        return (
            refuse_insufficient(Amount(cores, units), NOTHING)
            if cores or units
            else None
        )

    def _fill(self, depth: int) -> bool:
        """Place the claims from this one on; restore everything if that fails."""
        if depth == len(self._claims):
            return True
        if not self._steps_left:
            return False
        self._steps_left -= 1
        # Cards that differ in name only are one state, so their orders are not tried.
        if self._failed and self._state(depth) in self._failed:
            return False
        number, amount = self._claims[depth]
        for way in self._ways_of(amount):
            before = [self._cards[i] for i in way]
            for i in way:
                self._cards[i] = _without(self._cards[i], amount)
            self._ways[number] = way
            if self._fill(depth + 1):
                return True
            for i, card in zip(way, before, strict=True):
                self._cards[i] = card
            if not self._steps_left:
                # Of whole cards there may be more ways than can be looked at.
                break
        self._failed.add(self._state(depth))
        self._no = self._no or self._lack(amount)
        return False

    def _state(self, depth: int) -> tuple[int, tuple[CardCapacity, ...]]:
        return depth, tuple(sorted(self._cards))

    def _ways_of(self, amount: Amount) -> Iterable[tuple[int, ...]]:
        """Return cards for a claim: the fullest first, or the largest whole ones."""
        cards = self._cards
        whole = amount.cores // CORES_PER_CARD
        if not whole:
            fitting = [
                (card, i)
                for i, card in enumerate(cards)
                if amount.units <= card[1] and amount.cores <= card[2]
            ]
            return [(i,) for _, i in sorted(fitting)]
        kinds: dict[str, dict[int, list[int]]] = {}
        for i in sorted(range(len(cards)), key=lambda i: -cards[i][1]):
            untouched, units, _, kind = cards[i]
            if untouched:
                kinds.setdefault(kind, {}).setdefault(units, []).append(i)
        return self._whole_ways(kinds.values(), whole, amount.units)

    def _whole_ways(
        self, kinds: Iterable[Mapping[int, list[int]]], number: int, units: int
    ) -> Iterator[tuple[int, ...]]:
        """Yield the ways with enough units; one with too few is a step for nothing."""
        for sizes in kinds:
            largest = [size for size, cards in sizes.items() for _ in cards]
            if sum(largest[:number]) < units:
                continue
            for way in _choices(list(sizes.values()), number):
                if sum(self._cards[i][1] for i in way) >= units:
                    yield way
                elif self._steps_left:
                    self._steps_left -= 1
                else:
                    return

    def _lack(self, amount: Amount) -> Refusal:
        """Return why no card takes a claim without blocking the other claims."""
        if amount.cores >= CORES_PER_CARD:
            return UNTOUCHED_CARDS
        cores = max(cores for _, _, cores, _ in self._cards)
        units = max(units for _, units, _, _ in self._cards)
        return refuse_insufficient(amount, Amount(cores, units))


def _shares_by_size(sizes: Iterable[int]) -> Sequence[tuple[int, int]]:
    """Return some sizes, the smallest first, and how many shares are as large."""
    ordered = sorted(filter(None, sizes), reverse=True)
    numbers = {size: number for number, size in enumerate(ordered, 1)}
    some = max(1, len(numbers) // _SIZES)
    return tuple(numbers.items())[::-some]


def _exceed_rooms(numbers: Iterable[tuple[int, int]], rooms: Iterable[int]) -> bool:
    """Return whether cards of this room cannot take so many shares of some size."""
    has = [room for room in rooms if room > 0]
    # A loop, because filter calls this for every node with each new kind of pod.
    for size, number in numbers:  # noqa: SIM110
        if sum([room // size for room in has]) < number:
            return True
    return False


def _without(card: CardCapacity, amount: Amount) -> CardCapacity:
    if amount.cores >= CORES_PER_CARD:
        return (False, 0, 0, card[3])
    return (False, card[1] - amount.units, card[2] - amount.cores, card[3])


def _choices(kinds: Sequence[Sequence[int]], number: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to choose a number of cards; cards of one kind are equal."""
    if not number:
        yield ()
    elif number <= sum(map(len, kinds)):
        first, *rest = kinds
        for count in range(min(number, len(first)), -1, -1):
            for others in _choices(rest, number - count):
                yield (*first[:count], *others)


class Decider:
    """Decide about one request on one node after another.

    The steps of all searches together are limited. When they are used up, each further
    node gets one attempt without backtracking. Nodes with equal free capacity are
    searched once.
    """

    def __init__(self, request: PodRequest, policy: Policy) -> None:
        self._request = request
        self._policy = policy
        self._steps = _MOST_STEPS_IN_ALL
        self._results: dict[tuple[CardCapacity, ...], SearchResult] = {}

    def place(self, node: Node) -> Placement | Refusal:
        """Choose the cards, as the function ``place`` does."""
        request = self._request
        summary = node.summary_for(request)
        # In this order because each stage costs more than the one before: the summary
        # refuses most, the policy's order places most, the search takes the rest.
        no, alone = self._too_much(summary), len(request.claims) == 1
        # Several claims may fit only otherwise than the chooser wants it.
        shares = no or (alone and self._chosen(node)) or self._shares(node)
        if isinstance(shares, Refusal):
            return shares if summary is node.summary else _limited(shares, request)
        if not alone:
            shares = self._chosen(node) or shares
        return Placement(request.pod, node.name, shares)

    def refusal(self, node: Node) -> Refusal | None:
        """Return why the node cannot take the pod, as ``find_refusal`` does."""
        summary = node.summary_for(self._request)
        no = self._too_much(summary)
        if no is None and len(self._request.claims) > 1:
            total = self._search.total
            if total.cores >= CORES_PER_CARD or not summary.has_room(total):
                # Else one card has room for all claims, and any order succeeds.
                result = self._searched(list_capacities(node, self._request)[0])
                no = result.no if result.ways is None else None
        if no is None or summary is node.summary:
            return no
        return _limited(no, self._request)

    def _too_much(self, summary: Summary) -> Refusal | None:
        for claim in self._request.claims:
            no = summary.refusal(claim)
            if no is not None:
                return no
        return None

    def _chosen(self, node: Node) -> tuple[Share, ...] | None:
        """Place the claims in the order that the policy's chooser prefers, if any."""
        if self._policy.chooser is None:
            return None
        costs = partial(self._policy.chooser.costs, self._request, node)
        room = FreeCapacity.of(node, self._policy, self._request, costs)
        return _in_order(self._request.claims, room)

    def _shares(self, node: Node) -> tuple[Share, ...] | Refusal:
        """Place the claims in the policy's order, or by a search if that fails."""
        claims = self._request.claims
        shares = _in_order(claims, FreeCapacity.of(node, self._policy, self._request))
        if shares is not None:
            return shares
        room = FreeCapacity.of(node, self._policy, self._request)
        ranked, cards = list_capacities(node, self._request)
        result = self._searched(ranked)
        if result.ways is None:
            return result.no
        taken: list[Share] = []
        for claim, way in zip(claims, result.ways, strict=True):
            taken += room.take(claim, tuple(cards[i] for i in way))
        return join_shares(taken)

    def _searched(self, ranked: tuple[CardCapacity, ...]) -> SearchResult:
        result = self._results.get(ranked)
        if result is None:
            most = min(self._steps, _MOST_STEPS)
            result = self._results[ranked] = self._search.run(ranked, most)
            self._steps = max(0, self._steps - result.steps)
        return result

    @cached_property
    def _search(self) -> ClaimSearch:
        return ClaimSearch([claim.amount for claim in self._request.claims])


def place(request: PodRequest, node: Node, policy: Policy) -> Placement | Refusal:
    """Choose the cards for a pod on one node, or say why there are none.

    The policy chooses among the cards; it does not decide whether the pod fits. Cards
    that the pod's lists exclude are not used. A chooser computes costs once for each
    claim, not at each step of the search. For several claims it is asked last.
    """
    return Decider(request, policy).place(node)


def find_refusal(request: PodRequest, node: Node, policy: Policy) -> Refusal | None:
    """Return why the node cannot take the pod, or None; ``place`` without placement.

    The node's summary answers for a single claim, and for several if one of them is too
    large or if one card has room for all. A chooser is not asked.
    """
    return Decider(request, policy).refusal(node)


def score_node(node: Node, policy: Policy) -> int:
    """Return the policy's score of a node on which the pod fits, 0 to 10."""
    return policy.node_score(node)


def score_links(request: PodRequest, node: Node, policy: Policy) -> int:
    """Return the sum of the pair scores of the cards that the pod would get on a node.

    0 if it does not ask for several whole cards by one claim, if the links of the
    node's cards are not known, or if it does not fit.
    """
    if not links.links_count_for(request) or not any(card.links for card in node.cards):
        return 0
    ways = FreeCapacity.of(node, policy, request).choices(request.claims[0])
    return links.sum_scores(ways[0], node.cards) if ways else 0


def choose_node(request: PodRequest, fitting: Iterable[Node], policy: Policy) -> Node:
    """Return the node that the policy prefers of those on which the pod fits.

    The policy's chooser decides, else the score, in which links may count
    (``links.add_links``). Among nodes with the same score it is the first by name.
    kube-scheduler chooses at random there, but a simulation must be repeatable.
    """
    nodes = {node.name: node for node in fitting}
    if policy.chooser is not None:
        name = policy.chooser.best(request, tuple(nodes), policy)
        if name is not None:
            return nodes[name]
    scores = [score_node(node, policy) for node in nodes.values()]
    if links.links_count_for(request):
        linked = [score_links(request, node, policy) for node in nodes.values()]
        scores = links.add_links(scores, linked)
    ranked = zip(nodes.values(), scores, strict=True)
    best, _ = min(ranked, key=lambda scored: (-scored[1], scored[0].name))
    return best


def schedule(
    request: PodRequest, nodes: Iterable[Node], policy: Policy
) -> Placement | dict[NodeName, Refusal]:
    """Place a pod on the best of the nodes, or give each node's refusal."""
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
    best = choose_node(request, fitting, policy)
    placed = place(request, best, policy)
    return {best.name: placed} if isinstance(placed, Refusal) else placed


def _limited(no: Refusal, request: PodRequest) -> Refusal:
    limits = () if request.cards is None else request.cards.limits
    return Refusal(no.reason, no.detail, limits)


def _in_order(
    claims: tuple[Claim, ...], room: FreeCapacity
) -> tuple[Share, ...] | None:
    shares: list[Share] = []
    for claim in claims:
        choices = room.choices(claim)
        if not choices:
            return None
        shares += room.take(claim, choices[0])
    return join_shares(shares)
