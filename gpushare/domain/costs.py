"""What a pod costs on a node, by what it leaves there of what others need. Pure.

The scores are those of ``frag.tables``; here stands which cards a pod would take, and
what that leaves of them, in cores and in memory, of cards of any size.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from gpushare.domain.frag.shapes import WHOLE, State
from gpushare.domain.frag.tables import Gauge, Tables
from gpushare.domain.model import (
    Amount,
    CardUUID,
    Claim,
    HostAmount,
    Placement,
    PodRequest,
)
from gpushare.domain.node import Node
from gpushare.domain.packing import milli_free, milli_left, state_of
from gpushare.domain.policies import Policy
from gpushare.domain.scheduling import place

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
    state: State
    looks: tuple[Look, ...]
    gauge: Gauge

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
        return cls(page, state, looks(page, state, left), tables.gauge(state))

    def by(self, tables: Tables) -> "Standing":
        """Give the same node by other tables."""
        return Standing(self.page, self.state, self.looks, tables.gauge(self.state))

    def cost(self, request: PodRequest, policy: Policy, tables: Tables) -> float:
        """Give what the pod costs on its best cards here; ``NEVER`` if it fits not."""
        page, claims = self.page, request.claims
        if len(claims) == 1 and not claims[0].whole_cards:
            found = self._limited(request).share_costs(claims[0], request.host, tables)
            return min((cost for cost, _ in found), default=NEVER)
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
        return self._cost(left, self._then(request.host), tables)

    def share_costs(
        self, claim: Claim, asked: HostAmount | None, tables: Tables
    ) -> list[tuple[float, Look]]:
        """Price a share on each kind of card with room for it."""
        found = []
        cores, units = claim.amount.cores, claim.amount.units
        host = self._then(asked)
        for look in self.looks:
            room = look.room
            if cores <= room.cores and units <= room.units:
                rest = milli_left(room.cores - cores, room.units - units, look.size)
                cost = self._cost(((look.residual, rest),), host, tables)
                found.append((cost, look))
        return found

    def _limited(self, request: PodRequest) -> "Standing":
        """Leave out the cards that the pod may not have; the node is worth the same."""
        limited = self.page.as_limited_by(request)
        if limited is self.page:
            return self
        return replace(self, looks=looks(self.page, self.state, limited.free))

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
        """Give the CPU and memory that are left with the pod."""
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
        tables: Tables,
    ) -> float:
        """Price a pod by the milli that its cards had before and have after it."""
        cards, untouched = self.gauge.cards, self.gauge.untouched
        rests = []
        for before, rest in left:
            cards += tables.rest_worth(rest) - tables.rest_worth(before)
            untouched -= before >= WHOLE
            rests.append(rest)
        model = self.state.model
        lost = self.gauge.worth - tables.worth(model, cards, untouched, host)
        return tables.charge(model, lost, rests)
