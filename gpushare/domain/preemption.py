"""Which pods to evict so that one card, not merely one node, comes free.

kube-scheduler picks victims by a node's totals (contracts 1.8). Where its victims sit
on the wrong cards, evicting them would free no card: then others are chosen here.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from gpushare.domain.model import Card, CardUUID, Claim, Placement, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.scheduling import place

Cost = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods to evict from one node, and how many disruption budgets that breaks."""

    uids: tuple[PodUID, ...]
    budget_violations: int = 0


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod that could be evicted: how important it is, and which cards it leaves."""

    priority: int
    cards: frozenset[CardUUID]


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: the pods that it covers, and how many may go now."""

    pods: frozenset[PodUID]
    allowed: int


def violating(uids: Iterable[PodUID], budgets: Collection[Budget]) -> frozenset[PodUID]:
    """Say which evictions, made in this order, go beyond a budget."""
    left = {id(budget): budget.allowed for budget in budgets}
    beyond: set[PodUID] = set()
    for uid in uids:
        for budget in budgets:
            if uid in budget.pods:
                left[id(budget)] -= 1
                if left[id(budget)] < 0:
                    beyond.add(uid)
    return frozenset(beyond)


def choose_victims(
    request: PodRequest,
    node: Node,
    proposal: Victims,
    policy: Policy,
    budgets: Collection[Budget] = (),
) -> Victims | None:
    """Keep the proposal if it makes room for the pod, better it if not, or give None.

    The proposal's pods without shares stay victims: they were chosen for CPU or memory
    of the node. Pods whose eviction breaks a disruption budget come last, as with
    kube-scheduler. None: evicting pods of lower priority from this node does not help.
    """
    node = node.as_seen_by(request.pod).as_limited_by(request)
    if _fits(request, node.without(set(proposal.uids)), policy):
        return proposal
    holders = node.placements.keys() | node.unplaced.keys()
    bystanders = tuple(u for u in proposal.uids if u not in holders)
    chosen = _clear_cards(request, node, policy, budgets)
    if chosen is None:
        return None
    uids = (*bystanders, *chosen)
    return Victims(uids, len(violating(uids, budgets))) if uids else None


def _fits(request: PodRequest, node: Node, policy: Policy) -> bool:
    return isinstance(place(request, node, policy), Placement)


def _clear_cards(
    request: PodRequest, node: Node, policy: Policy, budgets: Collection[Budget]
) -> tuple[PodUID, ...] | None:
    """Evict for one claim after the other, each on the card where it costs least."""
    victims: set[PodUID] = set()
    for count in range(1, len(request.claims) + 1):
        so_far = replace(request, claims=request.claims[:count])
        evicted = _for_last_claim(so_far, node.without(victims), policy, budgets)
        if evicted is None:
            return None
        victims |= evicted
    if not _fits(request, node.without(victims), policy):
        return None
    return _reprieve(request, node, policy, victims, budgets)


def _for_last_claim(
    request: PodRequest,
    node: Node,
    policy: Policy,
    budgets: Collection[Budget],
) -> set[PodUID] | None:
    """Evict from the cheapest cards such that the last claim fits with those before."""
    claim = request.claims[-1]
    lower = _lower(request, node)
    ways: list[tuple[Cost, int, set[PodUID]]] = []
    for cards in _ways(claim, node, lower):
        victims = {uid for uid, tenant in lower.items() if tenant.cards & cards}
        if _fits(request, node.without(victims), policy):
            least = set(_reprieve(request, node, policy, victims, budgets))
            ways.append((_cost(least, lower, budgets), len(ways), least))
    return min(ways)[2] if ways else None


def _ways(
    claim: Claim, node: Node, lower: Mapping[PodUID, Tenant]
) -> Iterable[frozenset[CardUUID]]:
    """Give the sets of cards worth clearing: each card, or the cheapest N and more."""
    usable = [card for card in node.cards if card.open]
    if not claim.whole_cards:
        return [frozenset({card.uuid}) for card in usable]

    def burden(card: Card) -> tuple[int, int]:
        held = [t.priority for t in lower.values() if card.uuid in t.cards]
        return (max(held, default=-(2**31)), len(held))

    kept = {
        uuid
        for uid, tenant in _tenants(node).items()
        if uid not in lower
        for uuid in tenant.cards
    }
    easy = sorted((c for c in usable if c.uuid not in kept), key=burden)
    return [
        frozenset(card.uuid for card in easy[:count])
        for count in range(claim.whole_cards, len(easy) + 1)
    ]


def _reprieve(
    request: PodRequest,
    node: Node,
    policy: Policy,
    victims: Collection[PodUID],
    budgets: Collection[Budget],
) -> tuple[PodUID, ...]:
    """Let every victim live that need not go, the most important first."""
    gone = set(victims)
    tenants = _tenants(node)
    ranked = sorted(victims, key=lambda uid: (-tenants[uid].priority, uid))
    protected = violating(ranked, budgets)
    worth = sorted(ranked, key=lambda uid: uid not in protected)
    for uid in worth:
        if _fits(request, node.without(gone - {uid}), policy):
            gone.discard(uid)
    return tuple(uid for uid in reversed(worth) if uid in gone)


def _cost(
    victims: Collection[PodUID],
    lower: Mapping[PodUID, Tenant],
    budgets: Collection[Budget],
) -> Cost:
    """Order as kube-scheduler orders nodes: budgets, highest priority, sum, number."""
    priorities = [lower[uid].priority for uid in victims]
    return (
        len(violating(victims, budgets)),
        max(priorities, default=-(2**31)),
        sum(priority + 2**31 for priority in priorities),
        len(priorities),
    )


def _lower(request: PodRequest, node: Node) -> dict[PodUID, Tenant]:
    return {
        uid: tenant
        for uid, tenant in _tenants(node).items()
        if tenant.priority < request.pod.priority
    }


def _tenants(node: Node) -> dict[PodUID, Tenant]:
    """Give who sits where; a pod of which nobody knows the card sits on all of them."""
    everywhere = frozenset(card.uuid for card in node.cards)
    found = {
        uid: Tenant(unplaced.pod.priority, everywhere)
        for uid, unplaced in node.unplaced.items()
    }
    for uid, placement in node.placements.items():
        found[uid] = Tenant(placement.pod.priority, frozenset(placement.cards()))
    return found
