"""Where a pod goes that came without a placement, or whose card kubelet cannot give."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from deviceplugin.cards import card_key
from deviceplugin.devices import KINDS, Cards, amount_of, part
from deviceplugin.nodepod import NOBODY, Listed, PodName
from deviceplugin.occupancy import Occupancy
from gpushare.domain.model import (
    CardUUID,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
    Share,
)
from gpushare.domain.policies import DEFAULT_POLICY, POLICIES
from gpushare.domain.scheduling import place
from gpushare.domain.summary import Refusal

_KIND_AT = 9
"""Where a device id has the letter of its resource: ``1f9c27aa-m0017``."""


@dataclass(frozen=True, slots=True)
class Deciding:
    """Asks the domain's one decision about this node alone."""

    occupancy: Occupancy
    cards: Callable[[], Cards]

    def place(
        self,
        request: PodRequest,
        listed: Listed,
        resource: str,
        available: Sequence[str],
    ) -> Placement | Refusal:
        """Place a pod on the cards whose devices kubelet has to give.

        ``available`` are those of one resource.
        """
        page = self.occupancy.page(listed).as_seen_by(request.pod)
        policy = POLICIES.get(request.policy or DEFAULT_POLICY)
        policy = policy or POLICIES[DEFAULT_POLICY]
        found = place(request, page, policy)
        if isinstance(found, Refusal):
            return found
        lost = self._lost(listed, resource, available)
        return place(request, page.with_placement(lost), policy)

    def _lost(
        self, listed: Listed, resource: str, available: Sequence[str]
    ) -> Placement:
        """Give what kubelet has no devices of, and lists nobody who holds them."""
        cards = self.cards()
        held = self._held(listed, NOBODY, [card.uuid for card in cards.all])
        free = cards.count(available)
        shares = []
        for card in cards.all:
            had = held[f"{card_key(card.uuid)}-{KINDS[resource]}"]
            gone = part(card.capacity, resource) - free[card.uuid] - had
            if gone > 0:
                shares.append(Share(card.uuid, amount_of(resource, gone)))
        ref = PodRef(PodUID("lost"), *NOBODY)
        return Placement(ref, self.occupancy.node, tuple(shares))

    def is_short(self, placement: Placement, pod: PodName, listed: Listed) -> bool:
        """Tell whether others hold so much of a card that kubelet cannot give this.

        kubelet lets go of a pod's devices later than the API server of the pod, where
        somebody deleted it by force. Seen at the first step, a pod can still move.
        """
        held = self._held(listed, pod, placement.cards())
        cards = self.cards()
        return any(
            part(share.amount, resource) + held[f"{card_key(share.card)}-{kind}"]
            > part(card.capacity, resource)
            for share in placement.shares
            if (card := cards.of(share.card)) is not None
            for resource, kind in KINDS.items()
        )

    def _held(
        self, listed: Listed, but: PodName, on: Iterable[CardUUID]
    ) -> Counter[str]:
        """Count these cards' devices that pods have, one left out, by resource."""
        keys = tuple(map(card_key, on))
        holder = self.occupancy.holder(listed)
        return Counter(
            one[: _KIND_AT + 1]
            for one, pod in holder.items()
            if one.startswith(keys) and pod != but
        )
