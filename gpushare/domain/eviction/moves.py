"""Which pods to move so that a card gets room for a waiting pod. Pure.

A pod is moved by its eviction: its controller makes another one, which lands where
``landing`` says. The cards that get the room are cordoned meanwhile. ``preemption``
chooses pods of lower priority to end; here no pod ends for good.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate, combinations, islice

from gpushare.domain.eviction.landing import (
    LandingPrediction,
    PodMove,
    Situation,
    StateAfterMoves,
)
from gpushare.domain.model import (
    NOTHING,
    Amount,
    Card,
    CardUUID,
    NodeName,
    Placement,
    PodRequest,
    PodUID,
    Refusal,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal, place
from gpushare.domain.policies import Policy

MOST_MOVES = 5
"""Moves of a plan, unless the caller says otherwise: each one restarts a pod."""
_MOST_SETS = 20_000
"""Cards, or sets of whole cards, to try on all nodes."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a plan and the search for it may be.

    A step is one eviction that is tried. ``direct_steps`` are for moves away from the
    cards that get the room, ``chain_steps`` for plans that also move pods of other
    cards, so that the first ones can land. 1,000 steps take some 0.2 s.
    """

    moves: int = MOST_MOVES
    direct_steps: int = 20_000
    chain_steps: int = 10_000


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Moves in their order, and what the waiting pod can have after them.

    ``cards`` of ``node`` are to be cordoned from before the first move until after the
    last one. ``exact``: the search was not cut short, so no plan has fewer moves, and
    none with as many is cheaper.
    """

    node: NodeName
    cards: tuple[CardUUID, ...]
    moves: tuple[PodMove, ...]
    placement: Placement
    exact: bool = True


class NoPlanReason(Enum):
    """Why there is no plan."""

    FITS = "fits"
    """It fits now."""
    NEVER = "never"
    """It fits on no node that it may use, even if all cards are empty and open."""
    CLOSED = "closed"
    """All cards that could hold it are sick or cordoned."""
    APART = "apart"
    """It has several claims, and plans are for one."""
    NONE_MAY_MOVE = "none-may-move"
    """On each card too little is held by pods that may be moved."""
    NO_PLAN = "no-plan"
    """No moves, as many as allowed, make the room."""


@dataclass(frozen=True, slots=True)
class NoPlan:
    """Why no moves help, as a value, and the same in a sentence.

    ``exact`` is False if the search was cut short, so that a plan may exist.
    """

    why: NoPlanReason
    words: str
    exact: bool = True


def plan_moves(
    request: PodRequest, situation: Situation, bounds: Bounds | None = None
) -> MovePlan | NoPlan:
    """Return the fewest moves that make room for a pod, and of those the cheapest.

    Cheaper is the lower priority of the most important pod that moves, then the fewer
    units that move, then the first in a stable order. The landing of each
    pod is what ``schedule`` says with the target's cards cordoned. It must be the same
    whether the evicted pod has ended or not, because a replacement may be placed before
    that; a move for which it is not is not planned.

    The search is complete unless ``bounds`` cut it. What is given up first are chains,
    plans that move pods of other cards, too; the answer may then be a longer plan
    without any. Of more than 20,000 cards or sets of whole cards, only those with the
    fewest pods of each node are tried.
    """
    bounds = bounds or Bounds()
    policy = situation.choice.policy(request.policy)
    if isinstance(policy, Refusal):
        return NoPlan(NoPlanReason.NEVER, policy.detail)
    if len(request.claims) != 1:
        return NoPlan(
            NoPlanReason.APART, "room is made for one claim only, not for several"
        )
    # First what needs no search: it fits now, or no empty card could hold it.
    nodes = [node for node in situation.nodes if situation.may_use(node.name)]
    world = LandingPrediction(request, situation, policy)
    for node in nodes:
        if world.fits(node.as_seen_by(request.pod), world.start):
            return NoPlan(NoPlanReason.FITS, f"it fits on {node.name} now")
    # Then the cards that would do if they were empty, each node with its part of the
    # number that is tried, so that one large node does not use it up.
    targets = [
        target
        for node in nodes
        for target in islice(
            _targets(request, node, policy), max(1, _MOST_SETS // len(nodes))
        )
    ]
    if not targets:
        return _no_target(request, nodes, policy)
    return _MoveSearch(world, bounds).plan(targets)


def apply_moves(nodes: Iterable[Node], moves: Iterable[PodMove]) -> tuple[Node, ...]:
    """Return the nodes as they are after the moves."""
    now = {node.name: node for node in nodes}
    for move in moves:
        source, landing = move.source.node, move.landing.node
        now[source] = now[source].without({move.pod.uid})
        now[landing] = now[landing].with_placement(move.landing)
    return tuple(now.values())


def predict_landing(
    request: PodRequest, situation: Situation, uid: PodUID
) -> Placement | None:
    """Return where one pod would land if it were evicted now; None if nowhere.

    For a plan that is carried out: the target is cordoned already. Budgets do not
    count, because the API server checks them at the eviction.
    """
    policy = situation.choice.policy(request.policy)
    facts = replace(situation.facts, budgets=())
    if isinstance(policy, Refusal):
        return None
    world = LandingPrediction(request, replace(situation, facts=facts), policy)
    if uid not in world.at:
        return None
    done = world.moved(uid, world.start, world.without(uid, world.start))
    return done and done[0].landing


def has_room(
    request: PodRequest, situation: Situation, name: NodeName, cards: Iterable[CardUUID]
) -> bool:
    """Return whether a pod fits on these cards of a node once they are open again."""
    policy = situation.choice.policy(request.policy)
    node = next((node for node in situation.nodes if node.name == name), None)
    if isinstance(policy, Refusal) or node is None:
        return False
    world = LandingPrediction(request, situation, policy)
    return world.fits(_Target(name, frozenset(cards)).alone(node), world.start)


def _no_target(request: PodRequest, nodes: Iterable[Node], policy: Policy) -> NoPlan:
    for node in nodes:
        opened = tuple(replace(c, healthy=True, cordoned=False) for c in node.cards)
        if find_refusal(request, Node(node.name, opened), policy) is None:
            words = "each card that could hold it is sick or cordoned"
            return NoPlan(NoPlanReason.CLOSED, words)
    return NoPlan(
        NoPlanReason.NEVER, "no node that it may use could hold it, even if empty"
    )


@dataclass(frozen=True, slots=True)
class _Target:
    """Open cards of one node that could hold the waiting pod if they were empty."""

    name: NodeName
    cards: frozenset[CardUUID]

    def closed(self, node: Node) -> Node:
        """Return the node with these cards cordoned."""
        return _cordoned(node, lambda card: card.cordoned or card.uuid in self.cards)

    def alone(self, node: Node) -> Node:
        """Return the node with these cards open, and no others."""
        return _cordoned(node, lambda card: card.uuid not in self.cards)


def _cordoned(node: Node, which: Callable[[Card], bool]) -> Node:
    cards = tuple(replace(card, cordoned=which(card)) for card in node.cards)
    return replace(node, cards=cards)


def _targets(request: PodRequest, node: Node, policy: Policy) -> Iterator[_Target]:
    """Return cards that could get the room, those with the fewest pods first."""
    (claim,) = request.claims
    pods_on: dict[CardUUID, int] = {}
    for placement in node.placements.values():
        for uuid in placement.cards():
            pods_on[uuid] = pods_on.get(uuid, 0) + 1
    usable = [card for card in node.cards if card.open and request.allows(card)]
    # Both sorts are stable, so that equal cards stay in the order of the node.
    usable.sort(key=lambda card: pods_on.get(card.uuid, 0))
    kinds: dict[str, list[Card]] = {}
    for card in usable:
        kinds.setdefault(card.kind if claim.whole_cards else "", []).append(card)
    for kind in kinds.values():
        for cards in combinations(kind, max(1, claim.whole_cards)):
            if find_refusal(request, Node(node.name, cards), policy) is None:
                yield _Target(node.name, frozenset(card.uuid for card in cards))


_Cost = tuple[int, int]
"""The highest priority that moves, and the units that do."""
_NOTHING_YET: _Cost = (-(2**31), 0)


@dataclass(slots=True)
class _Pass:
    """One way to search; ``chains``: pods of other cards move, too."""

    chains: bool
    steps: int
    cut: bool = False


@dataclass(slots=True)
class _Branch:
    """The search for plans of one length on one target; ``seen`` are states of it."""

    target: _Target
    length: int
    how: _Pass
    seen: dict[object, tuple[int, _Cost]] = field(default_factory=dict)

    def was_here(self, state: StateAfterMoves, moves_left: int, cost: _Cost) -> bool:
        """Return whether the state was seen with as many moves left, and as cheap."""
        before = self.seen.get(state.key)
        if before is not None and before[0] >= moves_left and before[1] <= cost:
            return True
        self.seen[state.key] = moves_left, cost
        return False


class _MoveSearch:
    """Search for plans of one move, then of two and so on, on all targets."""

    def __init__(self, world: LandingPrediction, bounds: Bounds) -> None:
        self._world = world
        self._bounds = bounds
        self._best: MovePlan | None = None
        self._best_cost = _NOTHING_YET
        self._order = sorted(world.at, key=self._rank)

    def plan(self, targets: Iterable[_Target]) -> MovePlan | NoPlan:
        """Return the best plan of the smallest length for which there is one."""
        world = self._world
        # How many moves each target needs at least: a bound that cuts most branches.
        begun = [
            (
                least,
                target,
                world.begin(target.closed(world.now(target.name, world.start))),
            )
            for target in targets
            if (least := self._least(target, world.now(target.name, world.start)))
            is not None
        ]
        if not begun:
            words = "no card gets room by pods that may be moved"
            return NoPlan(NoPlanReason.NONE_MAY_MOVE, words)
        passes = (
            _Pass(chains=False, steps=self._bounds.direct_steps),
            _Pass(chains=True, steps=self._bounds.chain_steps),
        )
        # By length, so that the first plan found is of the fewest moves. In each length
        # first without chains, because those are the cheapest to find.
        for length in range(1, self._bounds.moves + 1):
            for how in passes:
                for least, target, state in begun:
                    # A chain is a move beside those that the target needs itself.
                    if least + how.chains <= length and not how.cut:
                        branch = _Branch(target, length, how)
                        self._extend(branch, state, (), _NOTHING_YET)
            if self._best is not None:
                return replace(
                    self._best, exact=not any(search_pass.cut for search_pass in passes)
                )
        most = self._bounds.moves
        words = f"no plan of at most {most} move{'' if most == 1 else 's'} makes room"
        return NoPlan(
            NoPlanReason.NO_PLAN,
            words,
            not any(search_pass.cut for search_pass in passes),
        )

    def _extend(
        self,
        branch: _Branch,
        state: StateAfterMoves,
        moves: tuple[PodMove, ...],
        cost: _Cost,
    ) -> None:
        moves_left = branch.length - len(moves)
        # The same moves in another order lead to the same state.
        if branch.was_here(state, moves_left, cost):
            return
        world, target = self._world, branch.target
        least = self._least(target, world.now(target.name, state))
        if least is None or (not least and self._offer(target, state, moves, cost)):
            return
        for uid in self._candidates(branch, state, moves_left, least):
            then = _with(cost, world.placement(uid, state))
            # Costs only grow along a branch.
            if self._best is not None and then >= self._best_cost:
                continue
            if not branch.how.steps:
                branch.how.cut = True
                return
            # The prediction of a landing is the expensive part, so it is what is
            # counted.
            branch.how.steps -= 1
            gone = world.without(uid, state)
            if world.placement(uid, state).node == target.name:
                least_then = self._least(target, world.now(target.name, gone))
                if least_then is None or least_then > moves_left - 1:
                    continue
            if (done := world.moved(uid, state, gone)) is not None:
                self._extend(branch, done[1], (*moves, done[0]), then)

    def _offer(
        self,
        target: _Target,
        state: StateAfterMoves,
        moves: tuple[PodMove, ...],
        cost: _Cost,
    ) -> bool:
        """Take the moves as the best plan if the pod fits; return whether it does."""
        world = self._world
        node = target.alone(world.now(target.name, state))
        if not moves or not world.fits(node, state):
            return False
        placed = place(world.request, node.as_seen_by(world.request.pod), world.policy)
        if isinstance(placed, Refusal):
            return False
        cards = tuple(card.uuid for card in node.cards if card.uuid in target.cards)
        self._best = MovePlan(target.name, cards, moves, placed)
        self._best_cost = cost
        return True

    def _candidates(
        self, branch: _Branch, state: StateAfterMoves, moves_left: int, least: int
    ) -> Iterator[PodUID]:
        """Return the pods to move next, the cheapest of the target's first."""
        if not moves_left:
            return
        target, world = branch.target, self._world
        here = world.now(target.name, state).placements
        on_it = [uid for uid in here if uid in world.at and _is_on(here[uid], target)]
        # The target's own pods first, because each makes room by itself. Others, in a
        # chain, only make room where one of them lands.
        yield from sorted(on_it, key=self._rank)
        if branch.how.chains and least < moves_left:
            yield from (uid for uid in self._order if uid not in on_it)

    def _rank(self, uid: PodUID) -> tuple[int, int, str, PodUID]:
        placement = self._world.at[uid]
        pod = placement.pod
        return (pod.priority, _units(placement), str(pod), uid)

    def _least(self, target: _Target, node: Node) -> int | None:
        """Return how many of the target's own pods have to move at least.

        None if moving all of them that may be moved is not enough. ``node`` is the
        target's, as it is in some state.
        """
        node = node.as_seen_by(self._world.request.pod)
        kept = [node.placements.get(u, p) for u, p in node.nominations.items()]
        there = [p for p in (*node.placements.values(), *kept) if _is_on(p, target)]
        mine = [
            pod_placement
            for pod_placement in there
            if pod_placement.pod.key in self._world.at
        ]
        (claim,) = self._world.request.claims
        # A whole card must lose all its pods; a share only what is missing.
        if claim.whole_cards:
            return None if len(mine) < len(there) or node.unplaced else len(mine)
        (card,) = (card for card in node.cards if card.uuid in target.cards)
        cores, units = node.charged.get(card.uuid, (0, 0))
        missing = claim.amount + Amount(cores, units) - card.capacity
        if node.unplaced:
            missing += node.charged_for_unplaced[card.uuid]
        amounts = [_amount_on(placement, card) for placement in mine]
        if not missing.fits(sum(amounts, NOTHING)):
            return None
        return max(
            _fewest((amount.units for amount in amounts), missing.units),
            _fewest((amount.cores for amount in amounts), missing.cores),
        )


def _fewest(amounts: Iterable[int], missing: int) -> int:
    """Return how many amounts, the largest first, reach what is missing."""
    if missing <= 0:
        return 0
    sums = accumulate(sorted(amounts, reverse=True))
    return 1 + sum(1 for reached in sums if reached < missing)


def _amount_on(placement: Placement, card: Card) -> Amount:
    """Return what leaves a card with a pod; a whole card may have grown since."""
    on = (share for share in placement.shares if share.card == card.uuid)
    amounts = (s.amount.peak(card.capacity) if s.is_whole else s.amount for s in on)
    return sum(amounts, NOTHING)


def _is_on(placement: Placement, target: _Target) -> bool:
    # A loop, because it is asked for every pod of a node at each step.
    for share in placement.shares:  # noqa: SIM110
        if share.card in target.cards:
            return True
    return False


def _units(placement: Placement) -> int:
    return sum(share.amount.units for share in placement.shares)


def _with(cost: _Cost, placement: Placement) -> _Cost:
    priority, units = cost
    return max(priority, placement.pod.priority), units + _units(placement)
