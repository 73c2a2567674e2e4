"""The cost of a pod on a node: the value that the node's free capacity loses. Pure.

``prices`` has the values. This module decides which cards a pod would take, and what is
then left of them, in cores and memory, for cards of any size.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple, Self
from weakref import WeakValueDictionary

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.frag.prices import ROUNDING, NodeWorth, Slope, Tables, score_loss
from gpushare.domain.frag.shapes import (
    WHOLE,
    FreeOnNode,
    milli_free,
    milli_left,
    read_free_on_node,
)
from gpushare.domain.model import (
    NO_HOST,
    Amount,
    CardUUID,
    Claim,
    HostAmount,
    Placement,
    PodRequest,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import place
from gpushare.domain.policies import Policy, Rank

NEVER = math.inf
"""The cost if a pod does not fit."""

_LESS_ROUNDING = ROUNDING / 2
"""A slope is computed otherwise than a cost; with less, it is never the larger one."""


class CardRoom(NamedTuple):
    """What an open card has free. A share costs the same on equal ones of a node."""

    residual: int
    cores: int
    units: int
    size: int
    model: str


@dataclass(frozen=True, slots=True)
class CardGroup:
    """Cards of a node with equal free capacity."""

    room: CardRoom
    cards: tuple[CardUUID, ...]


def group_cards(
    node: Node, state: FreeOnNode, free: Mapping[CardUUID, Amount]
) -> tuple[CardGroup, ...]:
    """Group the cards with free capacity by what is free."""
    alike: dict[CardRoom, list[CardUUID]] = {}
    for card, residual in zip(node.cards, state.residuals, strict=True):
        room_left = free.get(card.uuid)
        if room_left is not None and (room_left.cores > 0 or room_left.units > 0):
            room = CardRoom(
                residual, room_left.cores, room_left.units, card.units, card.model
            )
            alike.setdefault(room, []).append(card.uuid)
    return tuple(CardGroup(room, tuple(cards)) for room, cards in alike.items())


@dataclass(eq=False, slots=True, weakref_slot=True)
class Standing:
    """What a node has free: all that the cost of a pod with one claim depends on.

    Nodes that have the same free share one object, which is compared by identity.
    """

    state: FreeOnNode
    rooms: tuple[tuple[CardRoom, int], ...]
    """The groups of cards with free capacity, and how many cards each has."""
    untouched: tuple[tuple[str, int], ...]
    """The models of the untouched cards, and how many each has."""
    _gauge: tuple[Tables, NodeWorth] | None = None
    _slope: tuple[object, Slope] = (None, Slope(0.0, 0.0, 0.0))

    def gauge(self, tables: Tables) -> NodeWorth:
        """Return the worth by these tables; the last one is kept."""
        known = self._gauge
        if known is None or known[0] is not tables:
            known = self._gauge = (tables, tables.gauge(self.state))
        return known[1]

    def slope(self, tables: Tables) -> Slope:
        """Return how the worth falls; it is the same until tables are learned."""
        lesson, slope = self._slope
        if lesson is not tables.lesson:
            slope = tables.slope(self.state)
            self._slope = (tables.lesson, slope)
        return slope


class Standings:
    """One object for each standing that a node has."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, Standing] = WeakValueDictionary()

    def of(self, state: FreeOnNode, grouped: Iterable[CardGroup]) -> Standing:
        """Return the standing of a node."""
        rooms = tuple((group.room, len(group.cards)) for group in grouped)
        key = (state, rooms)
        standing = self._known.get(key)
        if standing is None:
            whole: Counter[str] = Counter()
            for room, number in rooms:
                if room.residual >= WHOLE:
                    whole[room.model] += number
            standing = self._known[key] = Standing(state, rooms, tuple(whole.items()))
        return standing


_Loss = tuple[float, int]
"""What a share takes of a card's worth, and what it leaves of its milli."""
_MOST_PARTED = 4
"""Shares of one pod for which all ways to put several on one card are compared."""


class LeastCost:
    """The least that a pod costs by some tables, from what nodes have free.

    A node's worth is concave but for its blocks, and blocks are only lost. So the pod
    takes at least what the node's slope says, of the cards where that is least. Most
    nodes need no closer look, because another one costs less than this.
    """

    def __init__(self, request: PodRequest, tables: Tables) -> None:
        cards = request.cards
        allows = None if cards is None else CardSelector(cards.models)
        self._tables = tables
        self._allows = allows
        self._whole = sum(claim.whole_cards for claim in request.claims)
        shares = [c.amount for c in request.claims if not c.whole_cards]
        self._parted = len(shares) <= _MOST_PARTED
        # Several shares may go on one card, which can lose less than two cards. So each
        # way to join them counts, up to four shares: 15 ways.
        ways = _partitions(shares) if self._parted else {(share,) for share in shares}
        losses = {
            amount: _Losses(amount, tables, allows) for way in ways for amount in way
        }
        self._losses = list(losses.values())
        order = list(losses)
        self._ways = [[order.index(amount) for amount in way] for way in ways]
        self._host = request.host or NO_HOST
        self._pressures = {m: p for m, p in tables.pressures.items() if p}

    def of(self, standing: Standing) -> float:
        """Return a cost that the pod reaches; ``NEVER`` if it cannot fit."""
        lost, rest, whole = 0.0, 0, self._whole
        if whole and self._untouched(standing) < whole:
            return NEVER
        if self._losses:
            lost, rest = self._shares(standing.rooms)
            if lost == NEVER:
                return NEVER
        state, used = standing.state, whole + lost
        # The worth is concave in what is free: by its slope now, no loss is overstated.
        by_card, host = self._slopes(standing)
        lost = (by_card + self._pressures.get(state.model, 0.0)) * used + host
        # Blocks are steps and not concave; whole cards lose an exact number of them.
        if whole:
            lost += self._blocks(standing)
        # Rounded to notches as a cost is, and with less slack, so it is never above it.
        cost = score_loss(lost, rest, _LESS_ROUNDING)
        if self._tables.cpu_scarce and (whole or self._losses):
            cpu = state.cpu_milli
            cpu_left = None if cpu is None else cpu - self._host.cpu_milli
            cost += self._tables.tie(cpu_left)
        return cost

    def _shares(self, rooms: Iterable[tuple[CardRoom, int]]) -> _Loss:
        """Return the least of both parts that all shares can come to."""
        least = []
        for losses in self._losses:
            lost, rest = NEVER, WHOLE
            for room, _ in rooms:
                loss_and_rest = losses[room]
                if loss_and_rest is not None:
                    loss, rest_there = loss_and_rest
                    lost = min(lost, loss)
                    rest = min(rest, rest_there)
            least.append((lost, rest))
        if len(least) == 1 and self._parted:
            return least[0]
        if not self._parted:
            # Several may go on one card, and the other ones then cost nothing.
            return max(lost for lost, _ in least), 0
        ways = [[least[part] for part in way] for way in self._ways]
        return (
            min(sum(lost for lost, _ in way) for way in ways),
            min(sum(rest for _, rest in way) for way in ways),
        )

    def _slopes(self, standing: Standing) -> tuple[float, float]:
        """Return what is lost with each card's worth, and with CPU and memory."""
        by_card, by_cpu, by_memory = standing.slope(self._tables)
        state, host, lost = standing.state, self._host, 0.0
        if by_cpu and (cpu := state.cpu_milli) is not None:
            lost = by_cpu * max(0, min(host.cpu_milli, cpu))
        if by_memory and (memory := state.memory_mib) is not None:
            lost += by_memory * max(0, min(host.memory_mib, memory))
        return by_card, lost

    def _blocks(self, standing: Standing) -> float:
        """Return what is lost of blocks with the whole cards."""
        state, blocks_worth = standing.state, self._tables.blocks_worth
        cpu, untouched = state.cpu_milli, state.untouched
        cpu_left = None if cpu is None else cpu - self._host.cpu_milli
        before = blocks_worth(state.model, untouched, cpu)
        return before - blocks_worth(state.model, untouched - self._whole, cpu_left)

    def _untouched(self, standing: Standing) -> int:
        allows = self._allows
        return sum(
            [
                number
                for model, number in standing.untouched
                if allows is None or allows.allows("", model)
            ]
        )


def _partitions(shares: Sequence[Amount]) -> set[tuple[Amount, ...]]:
    """Return all ways to put shares together, each as what is then on each card."""
    ways: set[tuple[Amount, ...]] = {()}
    for share in shares:
        joined = {
            (*way[:i], way[i] + share, *way[i + 1 :])
            for way in ways
            for i in range(len(way))
        }
        ways = joined | {(*way, share) for way in ways}
    return {tuple(sorted(way, key=astuple)) for way in ways}


class _Losses(dict[CardRoom, _Loss | None]):
    """What a share takes from a card; None if it does not fit."""

    def __init__(
        self, amount: Amount, tables: Tables, allows: CardSelector | None
    ) -> None:
        super().__init__()
        self._amount, self._tables, self._allows = amount, tables, allows

    def __missing__(self, room: CardRoom) -> _Loss | None:
        loss = self[room] = self._loss(room)
        return loss

    def _loss(self, room: CardRoom) -> _Loss | None:
        cores, units = self._amount.cores, self._amount.units
        if cores > room.cores or units > room.units:
            return None
        if self._allows is not None and not self._allows.allows("", room.model):
            return None
        rest = milli_left(room.cores - cores, room.units - units, room.size)
        worth = self._tables.rest_worth
        return worth(room.residual) - worth(rest), rest


@dataclass(eq=False, slots=True)
class PricedNode:
    """One node, and the tables by which its free capacity is valued; immutable."""

    node: Node
    host: HostAmount | None
    standing: Standing
    groups: tuple[CardGroup, ...]
    tables: Tables

    @classmethod
    def of(
        cls,
        node: Node,
        host: HostAmount | None,
        tables: Tables,
        free: Mapping[CardUUID, Amount] | None = None,
        standings: Standings | None = None,
    ) -> Self:
        """Read a node; ``free`` overrides the free amounts of some cards."""
        rooms = node.free if free is None else {**node.free, **free}
        state = read_free_on_node(node, host, rooms)
        grouped = group_cards(node, state, rooms)
        standing = (standings or Standings()).of(state, grouped)
        return cls(node, host, standing, grouped, tables)

    def with_host(self, host: HostAmount | None, standings: Standings) -> "PricedNode":
        """Return the node with other free CPU and memory."""
        cpu, memory = (host.cpu_milli, host.memory_mib) if host else (None, None)
        state = FreeOnNode(cpu, memory, self.state.residuals, self.state.model)
        standing = standings.of(state, self.groups)
        return PricedNode(self.node, host, standing, self.groups, self.tables)

    def by(self, tables: Tables) -> "PricedNode":
        """Return the same node with other tables."""
        if tables is self.tables:
            return self
        return PricedNode(self.node, self.host, self.standing, self.groups, tables)

    @property
    def state(self) -> FreeOnNode:
        """What the node has free, as numbers."""
        return self.standing.state

    @property
    def gauge(self) -> NodeWorth:
        """The node's value by ``tables``."""
        return self.standing.gauge(self.tables)

    def alike(self, request: PodRequest) -> Hashable:
        """Return a key that is equal for nodes on which the pod costs the same."""
        named = request.cards is not None and request.cards.uuids
        return self.node.name if named or len(request.claims) > 1 else self.standing

    def cost(self, request: PodRequest, policy: Policy) -> float:
        """Return the pod's cost on its best cards; ``NEVER`` if it does not fit."""
        node, claims = self.node, request.claims
        # One share, as most pods: each group of equal cards is priced once.
        if len(claims) == 1 and not claims[0].whole_cards:
            allowed = self._limited(request)
            group_costs = self.share_costs(claims[0], request.host, allowed)
            return min([cost for cost, _ in group_costs], default=NEVER)
        host = self._then(request.host)
        # Several shares: greedily, each on its cheapest card, which mostly succeeds.
        if claims and not any(claim.whole_cards for claim in claims):
            apart = self._apart(request, policy)
            if apart is not None:
                return self._cost(apart, host)
        # Whole cards, or shares for which greed fails: first whether it fits at all,
        # then by the search of ``place``.
        summary = node.summary_for(request)
        if any(summary.refusal(claim) for claim in claims):
            return NEVER
        if len(claims) > 1:
            placed = place(request, node, policy)
            if not isinstance(placed, Placement):
                return NEVER
            cards_milli = self._milli_left(placed)
        else:
            # An untouched card is used up completely, so all are equal.
            cards_milli = [(WHOLE, 0)] * sum(claim.whole_cards for claim in claims)
        return self._cost(cards_milli, host)

    def share_costs(
        self,
        claim: Claim,
        host_amount: HostAmount | None,
        allowed: Iterable[CardGroup] | None = None,
    ) -> list[tuple[float, CardGroup]]:
        """Return a share's cost on each group of cards with room for it."""
        costs = []
        cores, units = claim.amount.cores, claim.amount.units
        host = self._then(host_amount)
        for group in self.groups if allowed is None else allowed:
            room = group.room
            if cores <= room.cores and units <= room.units:
                rest = milli_left(room.cores - cores, room.units - units, room.size)
                cost = self._cost(((room.residual, rest),), host)
                costs.append((cost, group))
        return costs

    def _limited(self, request: PodRequest) -> tuple[CardGroup, ...]:
        """Return the groups of the cards that the pod may have."""
        wanted = request.cards
        if wanted is None:
            return self.groups
        if not wanted.uuids:
            allows = wanted.allows
            return tuple(g for g in self.groups if allows("", g.room.model))
        limited = self.node.as_limited_by(request)
        return group_cards(self.node, self.state, limited.free)

    def _apart(
        self, request: PodRequest, policy: Policy
    ) -> list[tuple[int, int]] | None:
        """Return what cards had and have, with each claim on its cheapest card.

        The result is that of ``place`` with these costs, computed without reading the
        node again for each claim. None if a claim does not fit; a search may succeed.
        """
        allowed = {uuid for group in self._limited(request) for uuid in group.cards}
        cards, free = self.node.cards, self.node.free
        rests = list(self.state.residuals)
        rooms = {i: free[c.uuid] for i, c in enumerate(cards) if c.uuid in allowed}
        host, gauge = self._then(request.host), self.gauge
        taken: set[int] = set()
        for claim in request.claims:
            costs: dict[tuple[int, int, int], tuple[float, int]] = {}
            ranks: list[tuple[float, Rank, int, int]] = []
            for at, room in rooms.items():
                if not claim.amount.fits(room):
                    continue
                group = (room.cores, room.units, cards[at].units)
                priced = costs.get(group)
                if priced is None:
                    rest = milli_free(cards[at], room - claim.amount)
                    cost = self._cost(((rests[at], rest),), host, gauge)
                    priced = costs[group] = (cost, rest)
                ranks.append((priced[0], policy.rank(cards[at], room), at, priced[1]))
            if not ranks:
                return None
            _, _, at, rest = min(ranks)
            # The next share sees the node as this one leaves it.
            gauge = self._gauge_after(gauge, rests[at], rest)
            rests[at], rooms[at] = rest, rooms[at] - claim.amount
            taken.add(at)
        return [(self.state.residuals[at], rests[at]) for at in sorted(taken)]

    def _gauge_after(self, gauge: NodeWorth, before: int, rest: int) -> NodeWorth:
        tables, state = self.tables, self.state
        cards = gauge.cards + tables.rest_worth(rest) - tables.rest_worth(before)
        untouched = gauge.untouched - (before >= WHOLE) + (rest >= WHOLE)
        host = (state.cpu_milli, state.memory_mib)
        worth = tables.worth(state.model, cards, untouched, host)
        return NodeWorth(worth, cards, untouched)

    def _milli_left(self, placed: Placement) -> list[tuple[int, int]]:
        taken = placed.by_card()
        free = self.node.free
        cards = zip(self.node.cards, self.state.residuals, strict=True)
        return [
            (residual, milli_free(card, free[card.uuid] - taken[card.uuid]))
            for card, residual in cards
            if card.uuid in taken
        ]

    def _then(self, host_amount: HostAmount | None) -> tuple[int | None, int | None]:
        host, state = host_amount or NO_HOST, self.state
        cpu, memory = state.cpu_milli, state.memory_mib
        return (
            None if cpu is None else cpu - host.cpu_milli,
            None if memory is None else memory - host.memory_mib,
        )

    def _cost(
        self,
        cards_milli: Iterable[tuple[int, int]],
        host: tuple[int | None, int | None],
        gauge: NodeWorth | None = None,
    ) -> float:
        """Return the cost, by the free milli of the pod's cards before and after it."""
        gauge, tables, model = gauge or self.gauge, self.tables, self.state.model
        cards, untouched, rests = gauge.cards, gauge.untouched, []
        for before, rest in cards_milli:
            cards += tables.rest_worth(rest) - tables.rest_worth(before)
            untouched -= before >= WHOLE
            rests.append(rest)
        lost = gauge.worth - tables.worth(model, cards, untouched, host)
        cost = tables.charge(model, lost, gauge.cards - cards, sum(rests))
        return cost + tables.tie(host[0]) if rests else cost
