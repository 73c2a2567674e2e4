"""Which pods to evict so that a card becomes free, not only the node's total.

kube-scheduler chooses victims by a node's totals (contracts 1.8). If its victims are on
the wrong cards, their eviction frees no card; then other victims are chosen here.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain

from gpushare.domain.hosts import Hosts
from gpushare.domain.model import (
    NO_HOST,
    NOTHING,
    Card,
    CardUUID,
    Claim,
    HostAmount,
    PodRequest,
    PodUID,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal
from gpushare.domain.policies import Policy

Cost = tuple[int, int, int, int]

_FEWEST_TRIES, _MOST_TRIES, _MOST_TRIES_IN_ALL = 50, 300, 10_000
"""Sets of victims to try on a node when a first one is known, and on all nodes. One
takes mostly 0.05 to 0.2 ms, and kube-scheduler waits for the answer."""
NOT_STARTED = "~"
"""Sorts after every time: a pod that has not started counts as the youngest."""


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods to evict from one node, and how many disruption budgets that violates.

    The most important pod comes first, because kube-scheduler takes its priority as the
    highest when it compares nodes (contracts 1.8).
    """

    uids: tuple[PodUID, ...]
    budget_violations: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: the pods that it covers, and the allowed disruptions."""

    pods: frozenset[PodUID]
    allowed: int


@dataclass(frozen=True, slots=True)
class EvictionFacts:
    """What is known of pods besides their cards.

    ``hosts`` has the CPU, memory and priority of each pod. ``reserved`` are the pods
    whose binding was not yet seen: kube-scheduler may not know them on that node, and
    an answer that names one fails for all nodes (contracts 1.8). ``started`` returns
    the time when a pod started, as sortable text. ``tries`` is how many sets of victims
    are tried on a node when a first one is known.
    """

    hosts: Hosts = field(default_factory=Hosts)
    budgets: Sequence[Budget] = ()
    reserved: Collection[PodUID] = ()
    started: Callable[[PodUID], str] = lambda _uid: NOT_STARTED
    tries: int = _MOST_TRIES


@dataclass(frozen=True, slots=True)
class PossibleVictim:
    """A pod that could be evicted, and the cards and host resources that it holds."""

    priority: int
    started: str
    cards: frozenset[CardUUID]
    host: HostAmount


def find_violations(
    uids: Iterable[PodUID], budgets: Collection[Budget]
) -> frozenset[PodUID]:
    """Return the evictions that, in this order, violate a budget."""
    allowed = {id(budget): budget.allowed for budget in budgets}
    beyond: set[PodUID] = set()
    for uid in uids:
        for budget in budgets:
            if uid in budget.pods:
                allowed[id(budget)] -= 1
                if allowed[id(budget)] < 0:
                    beyond.add(uid)
    return frozenset(beyond)


def tries_on_each(nodes: int) -> int:
    """Return how many sets of victims to try on each of so many nodes."""
    share = _MOST_TRIES_IN_ALL // max(1, nodes)
    return max(_FEWEST_TRIES, min(_MOST_TRIES, share))


def choose_victims(
    request: PodRequest,
    node: Node,
    proposal: Victims,
    policy: Policy,
    facts: EvictionFacts | None = None,
) -> Victims | None:
    """Return the proposal if it frees the cards, else better victims, or None.

    The proposal's pods stay victims if their CPU, memory or other node resources are
    needed. The others are the cheapest by kube-scheduler's measure, if the search ends
    within ``tries``; so it does on most nodes of 8 cards with 40 pods, unless many
    containers are apart. None means that evicting pods of lower priority does not help.
    """
    node = node.as_seen_by(request.pod)
    search = _VictimSearch(request, node, proposal, policy, facts or EvictionFacts())
    if search.frees_cards(request, proposal.uids):
        return proposal
    return search.victims()


class _VictimSearch:
    """Search for the pods to evict from one node for one pod."""

    def __init__(
        self,
        request: PodRequest,
        node: Node,
        proposal: Victims,
        policy: Policy,
        facts: EvictionFacts,
    ) -> None:
        self._request = request
        self._seen = node
        self._node = node.as_limited_by(request)
        self._policy = policy
        self._budgets = facts.budgets
        self._tries = facts.tries
        self._tenants = _tenants(request, node, proposal, facts)
        ranked = sorted(
            self._tenants,
            key=lambda uid: (-self._tenants[uid].priority, self._tenants[uid].started),
        )
        self._ranks = {uid: rank for rank, uid in enumerate(ranked)}
        self._named = frozenset(proposal.uids)
        self._evictable = {
            uid
            for uid, tenant in self._tenants.items()
            if uid in self._named
            or (tenant.priority < request.pod.priority and uid not in facts.reserved)
        }
        known_violations = find_violations(self._in_order(self._named), self._budgets)
        self._others_violations = max(
            0, proposal.budget_violations - len(known_violations)
        )
        self._host_free = facts.hosts.free(node.name)
        # If the extender's data says that even the proposal does not free enough CPU
        # and memory, it differs from kube-scheduler's, and is not used.
        self._host_known = self._frees_host(self._named)
        self._kept = self._taken_for_something_else()

    def frees_cards(self, request: PodRequest, gone: Collection[PodUID]) -> bool:
        return find_refusal(request, self._node.without(gone), self._policy) is None

    def victims(self) -> Victims | None:
        """Return the cheapest sufficient victims, the most important first."""
        # If evicting all does not help, nothing does.
        if not self._enough(self._request, self._evictable):
            return None
        # A first answer, quickly: claim by claim, each on its cheapest card. From the
        # pods that must go anyway, and where CPU or memory is short also from all that
        # kube-scheduler named.
        starts = [self._kept]
        if self._host_known and not self._frees_host(self._kept):
            starts.append(self._named)
        first_answers = [
            way for start in starts if (way := self._first_victims(start)) is not None
        ]
        if not first_answers:
            # A pod that stayed for one claim may block another claim.
            first_answers = [
                self._reprieved(self._request, self._evictable, self._kept)
            ]
        self._best = min(first_answers, key=self._cost)
        # Then cheaper ones within the limited tries; the first answer is the bound.
        self._search_cheaper(self._kept, self._clearable())
        uids = self._in_order(self._best)
        return Victims(tuple(uids), self._violations(uids))

    def _clearable(self) -> list[frozenset[PodUID]]:
        """Return the pods of each card that can be cleared, the cheapest first."""
        free, stay = (
            self._evictable - self._kept,
            self._tenants.keys() - self._evictable,
        )
        blocked = frozenset().union(*(self._tenants[uid].cards for uid in stay))
        pods = (
            frozenset(uid for uid in free if card.uuid in self._tenants[uid].cards)
            for card in self._node.cards
            if card.open and card.uuid not in blocked
        )
        return sorted(filter(None, pods), key=self._cost)

    def _search_cheaper(
        self, gone: frozenset[PodUID], cards: Sequence[frozenset[PodUID]]
    ) -> None:
        """Try cheaper victims: cards cleared for whole cards, then single pods."""
        if not self._is_cheaper(gone):
            return
        claims = tuple(claim for claim in self._request.claims if claim.whole_cards)
        # Whole cards first: a card is of use to them only when all its pods are gone.
        if not self.frees_cards(replace(self._request, claims=claims), gone):
            self._tries -= 1
            for number, pods in enumerate(cards, 1):
                self._search_cheaper(gone | pods, cards[number:])
        elif self._try(gone):
            self._best = gone
        else:
            self._evict(gone, self._in_order(self._evictable - gone)[::-1])

    def _evict(self, gone: frozenset[PodUID], pods: Sequence[PodUID]) -> None:
        """Try ``gone``, which is not enough, with one of the pods, then with more."""
        # Each single pod before any pair: one pod is mostly enough.
        for uid in pods:
            more = gone | {uid}
            if self._is_cheaper(more) and self._try(more):
                self._best = more
        # Then deeper, but only where this pod with all the cheap rest would do.
        for number, uid in enumerate(pods, 1):
            more = gone | {uid}
            if self._is_cheaper(more):
                rest = [u for u in pods[number:] if self._is_cheaper(more | {u})]
                if rest and self._try(more.union(rest)):
                    self._evict(more, rest)

    def _is_cheaper(self, gone: frozenset[PodUID]) -> bool:
        return self._tries > 0 and self._cost(gone) < self._cost(self._best)

    def _try(self, gone: frozenset[PodUID]) -> bool:
        self._tries -= 1
        return self._tries >= 0 and self._enough(self._request, gone)

    def _first_victims(self, start: frozenset[PodUID]) -> frozenset[PodUID] | None:
        """Evict for one claim after the other, each on its cheapest card.

        ``start`` is evicted from the beginning; those whose room is not needed are
        reprieved at the end.
        """
        gone: frozenset[PodUID] | None = start
        for count in range(1, len(self._request.claims) + 1):
            if gone is None:
                return None
            so_far = replace(self._request, claims=self._request.claims[:count])
            gone = self._for_last_claim(so_far, gone)
        return gone

    def _for_last_claim(
        self, request: PodRequest, gone: frozenset[PodUID]
    ) -> frozenset[PodUID] | None:
        whole = len(request.claims) == len(self._request.claims)
        stay = self._kept if whole else gone
        ways = []
        for cards in self._ways(request.claims[-1], gone):
            here = {uid for uid in self._evictable if self._tenants[uid].cards & cards}
            if self._enough(request, gone | here):
                ways.append(self._reprieved(request, gone | here, stay))
        return min(ways, key=self._cost, default=None)

    def _ways(
        self, claim: Claim, gone: AbstractSet[PodUID]
    ) -> Iterable[frozenset[CardUUID]]:
        """Return the sets of cards to try: each card, or the N cheapest and more.

        Whole cards are of one kind.
        """
        usable = [card for card in self._node.cards if card.open]
        if not claim.whole_cards:
            return [frozenset({card.uuid}) for card in usable]
        here = {uid: self._tenants[uid] for uid in self._tenants.keys() - gone}

        def burden(card: Card) -> tuple[int, int]:
            priorities = [
                tenant.priority
                for uid, tenant in here.items()
                if uid in self._evictable and card.uuid in tenant.cards
            ]
            return (max(priorities, default=-(2**31)), len(priorities))

        stay = (here[uid].cards for uid in here.keys() - self._evictable)
        blocked = frozenset(chain.from_iterable(stay))
        kinds: dict[str, list[CardUUID]] = {}
        for card in sorted((c for c in usable if c.uuid not in blocked), key=burden):
            kinds.setdefault(card.kind, []).append(card.uuid)
        return [
            frozenset(easy[:count])
            for easy in kinds.values()
            for count in range(claim.whole_cards, len(easy) + 1)
        ]

    def _reprieved(
        self,
        request: PodRequest,
        victims: AbstractSet[PodUID],
        stay: AbstractSet[PodUID],
    ) -> frozenset[PodUID]:
        """Drop every victim that is not needed, the most important first.

        Victims under a budget are tried before all others; those in ``stay`` never.
        """
        ranked = self._in_order(victims)
        protected = find_violations(ranked, self._budgets)
        gone = set(victims)
        for uid in sorted(ranked, key=lambda uid: uid not in protected):
            if uid not in stay and self._enough(request, gone - {uid}):
                gone.discard(uid)
        return frozenset(gone)

    def _enough(self, request: PodRequest, gone: Collection[PodUID]) -> bool:
        """Return whether the claims fit and, with all claims, the CPU and memory."""
        whole = len(request.claims) == len(self._request.claims)
        if whole and self._host_known and not self._frees_host(gone):
            return False
        return self.frees_cards(request, gone)

    def _frees_host(self, gone: Collection[PodUID]) -> bool:
        amount, room = self._request.host, self._host_free
        if amount is None or room is None:
            return False
        for uid in gone:
            room += self._tenants[uid].host
        return amount.fits(room)

    def _frees_totals(self, gone: Collection[PodUID]) -> bool:
        """Return whether the cards have enough in sum, not whether one card has."""
        rooms = self._seen.without(gone).free.values()
        total = sum((claim.amount for claim in self._request.claims), NOTHING)
        return total.fits(sum(rooms, NOTHING))

    def _taken_for_something_else(self) -> frozenset[PodUID]:
        """Return the proposal's pods that are evicted for something not known here.

        kube-scheduler names only pods that it needs. So if CPU, memory and the sum of
        the cards suffice without a pod, it was chosen for something else, such as a
        port or an affinity. If CPU and memory are not known, all pods are kept.
        """
        if not self._host_known:
            return self._named
        return frozenset(
            uid
            for uid in self._named
            if self._frees_host(rest := self._named - {uid})
            and not (self._tenants[uid].cards and not self._frees_totals(rest))
        )

    def _in_order(self, uids: Collection[PodUID]) -> list[PodUID]:
        return sorted(uids, key=self._ranks.__getitem__)

    def _violations(self, uids: Collection[PodUID]) -> int:
        """Count the evictions that violate a budget, as far as it is known.

        Not all budgets of pods without shares are known here. kube-scheduler counted
        them in the proposal; they count as long as such pods stay victims.
        """
        known = find_violations(self._in_order(uids), self._budgets)
        others = [u for u in uids if u not in known and not self._tenants[u].cards]
        return len(known) + min(len(others), self._others_violations)

    def _cost(self, uids: Collection[PodUID]) -> Cost:
        """Return kube-scheduler's sort key: budgets, top priority, sum, number."""
        priorities = [self._tenants[uid].priority for uid in uids]
        return (
            self._violations(uids),
            max(priorities, default=-(2**31)),
            sum(priority + 2**31 for priority in priorities),
            len(priorities),
        )


def _tenants(
    request: PodRequest, node: Node, proposal: Victims, facts: EvictionFacts
) -> dict[PodUID, PossibleVictim]:
    """Return the proposal's pods, in its order, and all that hold shares of the node.

    A ResourceClaim is none of them: what it holds stays charged.
    An unplaced pod counts on every card. A pod without shares keeps its position in the
    proposal; if its priority is unknown, it gets that of the pod before it, which is
    its maximum.
    """
    everywhere = frozenset(card.uuid for card in node.cards)
    cards = dict.fromkeys(node.unplaced, everywhere)
    pods = {uid: request_of_pod.pod for uid, request_of_pod in node.unplaced.items()}
    for uid, placement in node.placements.items():
        # A ResourceClaim is no pod and cannot be evicted.
        if not placement.pod.is_resource_claim:
            cards[uid] = frozenset(placement.cards())
            pods[uid] = placement.pod
    tenants: dict[PodUID, PossibleVictim] = {}
    before = (request.pod.priority - 1, "")
    for uid in dict.fromkeys((*proposal.uids, *sorted(pods))):
        host_use = facts.hosts.pod(uid)
        if uid in pods:
            before = (pods[uid].priority, facts.started(uid))
        elif host_use is not None:
            same = host_use.priority == before[0]
            before = (host_use.priority, before[1] if same else "")
        host = NO_HOST if host_use is None else host_use.amount
        tenants[uid] = PossibleVictim(*before, cards.get(uid, frozenset()), host)
    return tenants
