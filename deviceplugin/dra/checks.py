"""Why a claim may not be prepared: the last check of its cards, room and limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deviceplugin.allocation.injection import CardSetup
from deviceplugin.allocation.isolation import why_no_single_card
from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.cards.advertised import Offer
from deviceplugin.cards.devices import Cards, why_no_room
from gpushare.domain.model import NOTHING, Amount, Card, CardUUID
from gpushare.kube.errors import ClusterError
from gpushare.kube.resource_claims.allocated import (
    AllocatedDevice,
    ResourceClaim,
    name_device,
)
from gpushare.kubelet.pods import HardLimit, ListedDevices


class NotPreparedError(Exception):
    """The claim's containers may not start now; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class RequestDevices:
    """What one request of a claim has: devices, each with its card."""

    name: str
    devices: tuple[tuple[AllocatedDevice, Card], ...]

    @property
    def cards(self) -> tuple[CardUUID, ...]:
        """Its cards, each once."""
        return tuple(dict.fromkeys(card.uuid for _, card in self.devices))

    @property
    def amounts(self) -> Mapping[CardUUID, Amount]:
        """What it has of each card."""
        amounts: dict[CardUUID, Amount] = {}
        for device, card in self.devices:
            amounts[card.uuid] = amounts.get(card.uuid, NOTHING) + device.amount
        return amounts

    @property
    def total(self) -> Amount:
        """What it has of all its cards."""
        return sum((device.amount for device, _ in self.devices), NOTHING)

    @property
    def is_whole(self) -> bool:
        """Whether the request has all of each of its cards."""
        amounts = self.amounts
        return all(card.capacity.fits(amounts[card.uuid]) for _, card in self.devices)


def devices_by_request(claim: ResourceClaim, cards: Cards) -> list[RequestDevices]:
    """Return the requests of a claim; a chosen alternative counts as its request."""
    by_name = {name_device(card.uuid): card for card in cards.all}
    by_request: dict[str, list[tuple[AllocatedDevice, Card]]] = {}
    for device in claim.devices:
        card = by_name.get(device.name)
        if card is None:
            raise NotPreparedError(f"this node has no card {device.name}")
        request = device.request.partition("/")[0]
        by_request.setdefault(request, []).append((device, card))
    return [RequestDevices(name, tuple(pairs)) for name, pairs in by_request.items()]


@dataclass(frozen=True, slots=True)
class ResourceClaimChecks:
    """The checks. Each raises ``NotPreparedError``."""

    occupancy: Occupancy
    offer: Offer
    setup: CardSetup

    def insist_on_all(
        self,
        claim: ResourceClaim,
        requests: Sequence[RequestDevices],
        listed: ListedDevices,
        cards: Cards,
    ) -> Mapping[str, HardLimit]:
        """Make all checks; return the hard limits by request, of those that have one.

        Hold ``Occupancy.room_lock`` until the claim is noted.
        """
        for request in requests:
            self.insist_on_cards(request, cards)
        self._insist_on_room(requests, listed, cards)
        return {
            request.name: limit
            for request in requests
            if (limit := self._limit(claim, request)) is not None
        }

    def insist_on_cards(self, request: RequestDevices, cards: Cards) -> None:
        """Refuse cards that are sick, or that no container could use."""
        for device, card in request.devices:
            if not card.healthy:
                why = card.reason or "the reason is not known"
                raise NotPreparedError(f"card {card.uuid} is sick: {why}")
            if not device.amount.units:
                raise NotPreparedError(
                    f"request {request.name} has 0 MiB of card {card.uuid}; ask for at "
                    "least 256Mi of memory"
                )
        if wrong := self.setup.why_refused(cards.as_found(request.cards)):
            raise NotPreparedError(wrong)

    def _insist_on_room(
        self, requests: Sequence[RequestDevices], listed: ListedDevices, cards: Cards
    ) -> None:
        node = self.occupancy.charged(listed, cards)
        wanted: dict[CardUUID, Amount] = {}
        for request in requests:
            for uuid, amount in request.amounts.items():
                wanted[uuid] = wanted.get(uuid, NOTHING) + amount
        if why := why_no_room(wanted, node, cards):
            raise NotPreparedError(f"{why}; the pod starts when there is room")

    def _limit(self, claim: ResourceClaim, request: RequestDevices) -> HardLimit | None:
        units = None if request.is_whole else request.total.units
        limit = self.setup.isolation.limit(units)
        if limit is None:
            return None
        wrong = why_no_single_card(request.cards)
        if not wrong and limit.tier == "preload":
            wrong = self.setup.library.install()
        if not wrong and limit.tier == "driver":
            wrong = self._why_together(claim, request)
        if wrong:
            raise NotPreparedError(f"isolation tier {limit.tier}: {wrong}")
        return limit

    def _why_together(self, claim: ResourceClaim, request: RequestDevices) -> str:
        """Say which containers would each have all of a request's share; else empty.

        NVIDIA's driver limits a container, and not what several have together.
        """
        names: list[str] = []
        for user in claim.reserved_for:
            name = (claim.namespace, user.name)
            pod = self.occupancy.pods.find(name)
            try:
                if pod is None or pod.uid != user.uid:
                    pod = self.occupancy.pods.fetch(name)
            except ClusterError as error:
                return f"it is not known which containers use the claim: {error}"
            names += [
                f"{user.name}/{use.container}"
                for use in (() if pod is None else pod.claim_uses)
                if use.claim == claim.name and use.request in ("", request.name)
                # Init containers that end run one at a time.
                if not use.ends
            ]
        if len(set(names)) <= 1:
            return ""
        which = ", ".join(dict.fromkeys(names))
        return (
            f"containers {which} use request {request.name} together, and each could "
            "take all of its memory; give each container a request of its own"
        )
