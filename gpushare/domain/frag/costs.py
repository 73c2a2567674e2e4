"""The cost of a pod on a node: the value that the node's free capacity loses. Pure.

``prices`` has the values. This module decides which cards a pod would take, and what is
then left of them, in cores and memory, for cards of any size.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from gpushare.domain.frag.prices import Gauge, Tables
from gpushare.domain.frag.shapes import WHOLE, State, milli_free, milli_left, state_of
from gpushare.domain.model import (
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

_UNASKED = HostAmount()


@dataclass(frozen=True, slots=True)
class CardGroup:
    """Cards of a node with equal free capacity, which are equal to a share."""

    residual: int
    room: Amount
    size: int
    cards: tuple[CardUUID, ...]


def groups(
    node: Node, state: State, free: Mapping[CardUUID, Amount]
) -> tuple[CardGroup, ...]:
    """Group the cards with free capacity by what is free."""
    alike: dict[tuple[int, Amount, int], list[CardUUID]] = {}
    for card, residual in zip(node.cards, state.residuals, strict=True):
        room = free.get(card.uuid)
        if room is not None and (room.cores > 0 or room.units > 0):
            alike.setdefault((residual, room, card.units), []).append(card.uuid)
    return tuple(CardGroup(*group, tuple(cards)) for group, cards in alike.items())


@dataclass(frozen=True, slots=True)
class PricedNode:
    """One node, and the value of its free capacity by some tables."""

    node: Node
    host: HostAmount | None
    state: State
    groups: tuple[CardGroup, ...]
    tables: Tables
    gauge: Gauge
    """The node's value by ``tables``."""

    @classmethod
    def of(
        cls,
        node: Node,
        host: HostAmount | None,
        tables: Tables,
        free: Mapping[CardUUID, Amount] | None = None,
    ) -> Self:
        """Read a node; ``free`` overrides the free amounts of some cards."""
        left = node.free if free is None else {**node.free, **free}
        state = state_of(node, host, left)
        gauge = tables.gauge(state)
        return cls(node, host, state, groups(node, state, left), tables, gauge)

    def by(self, tables: Tables) -> "PricedNode":
        """Return the same node with other tables."""
        if tables is self.tables:
            return self
        return replace(self, tables=tables, gauge=tables.gauge(self.state))

    def alike(self, request: PodRequest) -> Hashable:
        """Return a key that is equal for nodes on which the pod costs the same.

        None for pods that name cards by UUID, or that ask for more than one share.
        """
        named = request.cards is not None and request.cards.uuids
        if len(request.claims) != 1 or request.claims[0].whole_cards or named:
            return None
        models = tuple(card.model for card in self.node.cards) if request.cards else ()
        rooms = tuple(
            (each.residual, each.room.cores, each.room.units, each.size)
            for each in self.groups
        )
        state = self.state
        host = (state.cpu_milli, state.memory_mib)
        return (host, state.residuals, state.model, rooms, models)

    def cost(self, request: PodRequest, policy: Policy) -> float:
        """Return the pod's cost on its best cards; ``NEVER`` if it does not fit."""
        node, claims = self.node, request.claims
        if len(claims) == 1 and not claims[0].whole_cards:
            found = self._limited(request).share_costs(claims[0], request.host)
            return min((cost for cost, _ in found), default=NEVER)
        host = self._then(request.host)
        if claims and not any(claim.whole_cards for claim in claims):
            apart = self._apart(request, policy)
            if apart is not None:
                return self._cost(apart, host)
        summary = node.summary_for(request)
        if any(summary.refusal(claim) for claim in claims):
            return NEVER
        if len(claims) > 1:
            placed = place(request, node, policy)
            if not isinstance(placed, Placement):
                return NEVER
            left = self._left(placed)
        else:
            # An untouched card is used up completely, so all are equal.
            left = [(WHOLE, 0)] * sum(claim.whole_cards for claim in claims)
        return self._cost(left, host)

    def share_costs(
        self, claim: Claim, asked: HostAmount | None
    ) -> list[tuple[float, CardGroup]]:
        """Return a share's cost on each group of cards with room for it."""
        found = []
        cores, units = claim.amount.cores, claim.amount.units
        host = self._then(asked)
        for group in self.groups:
            room = group.room
            if cores <= room.cores and units <= room.units:
                rest = milli_left(room.cores - cores, room.units - units, group.size)
                cost = self._cost(((group.residual, rest),), host)
                found.append((cost, group))
        return found

    def _limited(self, request: PodRequest) -> "PricedNode":
        """Leave out cards that the pod may not have; the node's value stays."""
        wanted = request.cards
        if wanted is None:
            return self
        if not wanted.uuids:
            models = {card.model for card in self.node.cards}
            out = [model for model in models if wanted.against("", model)]
            if not out:
                return self
            if len(out) == len(models):
                return replace(self, groups=())
        limited = self.node.as_limited_by(request)
        return replace(self, groups=groups(self.node, self.state, limited.free))

    def _apart(
        self, request: PodRequest, policy: Policy
    ) -> list[tuple[int, int]] | None:
        """Return what cards had and have, with each claim on its cheapest card.

        The result is that of ``place`` with these costs, computed without reading the
        node again for each claim. None if a claim does not fit; a search may succeed.
        """
        allowed = {
            uuid for group in self._limited(request).groups for uuid in group.cards
        }
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
            gauge = self._gauge_after(gauge, rests[at], rest)
            rests[at], rooms[at] = rest, rooms[at] - claim.amount
            taken.add(at)
        return [(self.state.residuals[at], rests[at]) for at in sorted(taken)]

    def _gauge_after(self, gauge: Gauge, before: int, rest: int) -> Gauge:
        tables, state = self.tables, self.state
        cards = gauge.cards + tables.rest_worth(rest) - tables.rest_worth(before)
        untouched = gauge.untouched - (before >= WHOLE) + (rest >= WHOLE)
        host = (state.cpu_milli, state.memory_mib)
        worth = tables.worth(state.model, cards, untouched, host)
        return Gauge(worth, cards, untouched)

    def _left(self, placed: Placement) -> list[tuple[int, int]]:
        taken = {share.card: share.amount for share in placed.shares}
        free = self.node.free
        cards = zip(self.node.cards, self.state.residuals, strict=True)
        return [
            (residual, milli_free(card, free[card.uuid] - taken[card.uuid]))
            for card, residual in cards
            if card.uuid in taken
        ]

    def _then(self, asked: HostAmount | None) -> tuple[int | None, int | None]:
        host, state = asked or _UNASKED, self.state
        cpu, memory = state.cpu_milli, state.memory_mib
        return (
            None if cpu is None else cpu - host.cpu_milli,
            None if memory is None else memory - host.memory_mib,
        )

    def _cost(
        self,
        left: Iterable[tuple[int, int]],
        host: tuple[int | None, int | None],
        gauge: Gauge | None = None,
    ) -> float:
        """Return the cost, by the free milli of the pod's cards before and after it."""
        gauge, tables, model = gauge or self.gauge, self.tables, self.state.model
        cards, untouched = gauge.cards, gauge.untouched
        rests = []
        for before, rest in left:
            cards += tables.rest_worth(rest) - tables.rest_worth(before)
            untouched -= before >= WHOLE
            rests.append(rest)
        lost = gauge.worth - tables.worth(model, cards, untouched, host)
        return tables.charge(model, lost, rests)
