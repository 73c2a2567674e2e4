"""Where a pod goes that came without a placement, or whose card kubelet cannot give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deviceplugin.cards import card_key
from deviceplugin.devices import KINDS, Cards, Tally, amount_of, part
from deviceplugin.nodepod import NOBODY, Listed, PodName
from deviceplugin.occupancy import Occupancy
from gpushare.domain.carving import whole_shares
from gpushare.domain.model import (
    CORES_PER_CARD,
    Amount,
    Card,
    Claim,
    ContainerAmount,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
    Share,
)
from gpushare.domain.policies import DEFAULT_POLICY, POLICIES
from gpushare.domain.scheduling import place
from gpushare.domain.summary import Refusal


@dataclass(frozen=True, slots=True)
class Deciding:
    """Asks the domain's one decision about this node alone."""

    occupancy: Occupancy
    cards: Callable[[], Cards]
    _tally: Tally = field(default_factory=Tally)

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
        page = page.without(self.occupancy.namesakes(request.pod))
        policy = POLICIES.get(request.policy or DEFAULT_POLICY)
        policy = policy or POLICIES[DEFAULT_POLICY]
        found = place(request, page, policy)
        if isinstance(found, Refusal):
            return found
        lost = self._lost(listed, resource, available)
        return place(request, page.with_placement(lost), policy)

    def on_whole_cards(self, pod: PodRef, units: int, on: Sequence[Card]) -> Placement:
        """Place a pod's one nameless container on whole cards."""
        amount = Amount(CORES_PER_CARD * len(on), units)
        claim = Claim(amount, (ContainerAmount("", amount),))
        return Placement(pod, self.occupancy.node, tuple(whole_shares(claim, on)))

    def _lost(
        self, listed: Listed, resource: str, available: Sequence[str]
    ) -> Placement:
        """Give what kubelet has no devices of, and lists nobody who holds them."""
        cards = self.cards()
        held = self._tally.of(self.occupancy.held(listed, NOBODY))
        free = cards.count(available)
        shares = []
        for card in cards.all:
            had = held[card_key(card.uuid), KINDS[resource]]
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
        held = self._tally.of(self.occupancy.held(listed, pod))
        cards = self.cards()
        return any(
            part(share.amount, resource) + held[card_key(share.card), kind]
            > part(card.capacity, resource)
            for share in placement.shares
            if (card := cards.of(share.card)) is not None
            for resource, kind in KINDS.items()
        )
