"""What a pod costs on a node, by what it leaves there of what others need. Pure.

The scores are those of ``frag.tables``; here stands which cards a pod would take, and
what that leaves of them, in cores and in memory, of cards of any size.
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
"""The cost where a pod does not fit."""

_UNASKED = HostAmount()


@dataclass(frozen=True, slots=True)
class Look:
    """Cards of a node that are left alike: to a share it is all one which it gets."""

    residual: int
    room: Amount
    size: int
    cards: tuple[CardUUID, ...]


def looks(
    page: Node, state: State, free: Mapping[CardUUID, Amount]
) -> tuple[Look, ...]:
    """Tell the cards that have anything free apart, as far as it matters."""
    alike: dict[tuple[int, Amount, int], list[CardUUID]] = {}
    for card, residual in zip(page.cards, state.residuals, strict=True):
        room = free.get(card.uuid)
        if room is not None and (room.cores > 0 or room.units > 0):
            alike.setdefault((residual, room, card.units), []).append(card.uuid)
    return tuple(Look(*look, tuple(cards)) for look, cards in alike.items())


@dataclass(frozen=True, slots=True)
class Standing:
    """One node, and what its rest is worth by some tables."""

    page: Node
    host: HostAmount | None
    state: State
    looks: tuple[Look, ...]
    tables: Tables
    gauge: Gauge
    """By ``tables``."""

    @classmethod
    def of(
        cls,
        page: Node,
        host: HostAmount | None,
        tables: Tables,
        free: Mapping[CardUUID, Amount] | None = None,
    ) -> Self:
        """Look at a node; ``free`` is what cards have left where not what it says."""
        left = page.free if free is None else {**page.free, **free}
        state = state_of(page, host, left)
        gauge = tables.gauge(state)
        return cls(page, host, state, looks(page, state, left), tables, gauge)

    def by(self, tables: Tables) -> "Standing":
        """Return the same node by other tables."""
        if tables is self.tables:
            return self
        return replace(self, tables=tables, gauge=tables.gauge(self.state))

    def alike(self, request: PodRequest) -> Hashable:
        """Return what nodes have in common on which the pod costs the same.

        None where that is not known: for pods that name cards, or ask more than a
        share of one.
        """
        named = request.cards is not None and request.cards.uuids
        if len(request.claims) != 1 or request.claims[0].whole_cards or named:
            return None
        models = tuple(card.model for card in self.page.cards) if request.cards else ()
        rooms = tuple(
            (each.residual, each.room.cores, each.room.units, each.size)
            for each in self.looks
        )
        state = self.state
        host = (state.cpu_milli, state.memory_mib)
        return (host, state.residuals, state.model, rooms, models)

    def cost(self, request: PodRequest, policy: Policy, tables: Tables) -> float:
        """Return the pod's cost on its best cards; ``NEVER`` if it does not fit."""
        if tables is not self.tables:
            return self.by(tables).cost(request, policy, tables)
        page, claims = self.page, request.claims
        if len(claims) == 1 and not claims[0].whole_cards:
            found = self._limited(request).share_costs(claims[0], request.host, tables)
            return min((cost for cost, _ in found), default=NEVER)
        host = self._then(request.host)
        if claims and not any(claim.whole_cards for claim in claims):
            apart = self._apart(request, policy)
            if apart is not None:
                return self._cost(apart, host)
        summary = page.summary_for(request)
        if any(summary.refusal(claim) for claim in claims):
            return NEVER
        if len(claims) > 1:
            placed = place(request, page, policy)
            if not isinstance(placed, Placement):
                return NEVER
            left = self._left(placed)
        else:
            # All of an untouched card goes, whichever it is.
            left = [(WHOLE, 0)] * sum(claim.whole_cards for claim in claims)
        return self._cost(left, host)

    def share_costs(
        self, claim: Claim, asked: HostAmount | None, tables: Tables
    ) -> list[tuple[float, Look]]:
        """Price a share on each kind of card with room for it."""
        if tables is not self.tables:
            return self.by(tables).share_costs(claim, asked, tables)
        found = []
        cores, units = claim.amount.cores, claim.amount.units
        host = self._then(asked)
        for look in self.looks:
            room = look.room
            if cores <= room.cores and units <= room.units:
                rest = milli_left(room.cores - cores, room.units - units, look.size)
                cost = self._cost(((look.residual, rest),), host)
                found.append((cost, look))
        return found

    def _limited(self, request: PodRequest) -> "Standing":
        """Leave out the cards that the pod may not have; the node is worth the same."""
        wanted = request.cards
        if wanted is None:
            return self
        if not wanted.uuids:
            models = {card.model for card in self.page.cards}
            out = [model for model in models if wanted.against("", model)]
            if not out:
                return self
            if len(out) == len(models):
                return replace(self, looks=())
        limited = self.page.as_limited_by(request)
        return replace(self, looks=looks(self.page, self.state, limited.free))

    def _apart(
        self, request: PodRequest, policy: Policy
    ) -> list[tuple[int, int]] | None:
        """Return what cards had and have, each claim on the card where it costs least.

        As ``place`` does with these costs, but the node is not looked at anew for each
        claim. None where one finds no room: a search may find it.
        """
        allowed = {uuid for look in self._limited(request).looks for uuid in look.cards}
        cards, free = self.page.cards, self.page.free
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
                look = (room.cores, room.units, cards[at].units)
                priced = costs.get(look)
                if priced is None:
                    rest = milli_free(cards[at], room - claim.amount)
                    cost = self._cost(((rests[at], rest),), host, gauge)
                    priced = costs[look] = (cost, rest)
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
        free = self.page.free
        cards = zip(self.page.cards, self.state.residuals, strict=True)
        return [
            (residual, milli_free(card, free[card.uuid] - taken[card.uuid]))
            for card, residual in cards
            if card.uuid in taken
        ]

    def _then(self, asked: HostAmount | None) -> tuple[int | None, int | None]:
        """Return the CPU and memory that are left with the pod."""
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
        """Price a pod by the milli that its cards had before and have after it."""
        gauge, tables, model = gauge or self.gauge, self.tables, self.state.model
        cards, untouched = gauge.cards, gauge.untouched
        rests = []
        for before, rest in left:
            cards += tables.rest_worth(rest) - tables.rest_worth(before)
            untouched -= before >= WHOLE
            rests.append(rest)
        lost = gauge.worth - tables.worth(model, cards, untouched, host)
        return tables.charge(model, lost, rests)
