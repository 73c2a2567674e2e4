"""Why a claim may not be prepared: the last check of its cards, room and limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deviceplugin.allocation.injection import InjectionChooser
from deviceplugin.allocation.isolation import IsolationChooser
from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.allocation.preload import NodeLibrary, why_no_limits
from deviceplugin.allocation.prestart import PreStart
from deviceplugin.allocation.response import why_unusable
from deviceplugin.cards.advertised import Offer
from deviceplugin.cards.devices import Cards
from gpushare.domain.model import NOTHING, Amount, Card, CardUUID
from gpushare.kube.claims.allocated import AllocatedDevice, ResourceClaim, device_name
from gpushare.kube.errors import ClusterError
from gpushare.kubelet.hard_limit import HardLimit
from gpushare.kubelet.pods import Listed


class NotPreparedError(Exception):
    """The claim's containers may not start now; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one request of a claim has: devices, each with its card."""

    request: str
    held: tuple[tuple[AllocatedDevice, Card], ...]

    @property
    def cards(self) -> tuple[CardUUID, ...]:
        """Its cards, each once."""
        return tuple(dict.fromkeys(card.uuid for _, card in self.held))

    @property
    def amounts(self) -> Mapping[CardUUID, Amount]:
        """What it has of each card."""
        found: dict[CardUUID, Amount] = {}
        for one, card in self.held:
            found[card.uuid] = found.get(card.uuid, NOTHING) + one.amount
        return found

    @property
    def total(self) -> Amount:
        """What it has of all its cards."""
        return sum((one.amount for one, _ in self.held), NOTHING)

    @property
    def is_whole(self) -> bool:
        """Whether the request has all of each of its cards."""
        amounts = self.amounts
        return all(card.capacity.fits(amounts[card.uuid]) for _, card in self.held)


def parts_of(claim: ResourceClaim, cards: Cards) -> list[Part]:
    """Return the requests of a claim; a chosen alternative counts as its request."""
    by_name = {device_name(card.uuid): card for card in cards.all}
    held: dict[str, list[tuple[AllocatedDevice, Card]]] = {}
    for one in claim.devices:
        card = by_name.get(one.name)
        if card is None:
            raise NotPreparedError(f"this node has no card {one.name}")
        held.setdefault(one.request.partition("/")[0], []).append((one, card))
    return [Part(request, tuple(its)) for request, its in held.items()]


@dataclass(frozen=True, slots=True)
class ClaimChecks:
    """The checks. Each raises ``NotPreparedError``."""

    occupancy: Occupancy
    offer: Offer
    chooser: InjectionChooser
    isolation: IsolationChooser
    library: NodeLibrary
    prestart: PreStart

    def insist_on_all(
        self, claim: ResourceClaim, parts: Sequence[Part], listed: Listed, cards: Cards
    ) -> Mapping[str, HardLimit]:
        """Make all checks; return the hard limits by request, of those that have one.

        Hold ``Occupancy.room_lock`` until the claim is noted.
        """
        for part in parts:
            self.insist_on_cards(part, cards)
        self._insist_on_room(parts, listed, cards)
        limits = {
            part.request: limit
            for part in parts
            if (limit := self._limit(claim, part)) is not None
        }
        self._insist_on_memory(_needed(parts, limits), listed, cards)
        return limits

    def insist_on_cards(self, part: Part, cards: Cards) -> None:
        """Refuse cards that are sick, or that no container could use."""
        for one, card in part.held:
            if not card.healthy:
                why = card.reason or "the reason is not known"
                raise NotPreparedError(f"card {card.uuid} is sick: {why}")
            if not one.amount.units:
                raise NotPreparedError(
                    f"request {part.request} has 0 MiB of card {card.uuid}; ask for at "
                    "least 256Mi of memory"
                )
        found = cards.as_found(part.cards)
        wrong = why_unusable(found, self.chooser.chosen)
        if wrong := wrong or self.isolation.why_refused(found):
            raise NotPreparedError(wrong)

    def _insist_on_room(
        self, parts: Sequence[Part], listed: Listed, cards: Cards
    ) -> None:
        node = self.occupancy.charged(listed, cards)
        wanted: dict[CardUUID, Amount] = {}
        for part in parts:
            for uuid, amount in part.amounts.items():
                wanted[uuid] = wanted.get(uuid, NOTHING) + amount
        for uuid, amount in wanted.items():
            card = cards.of(uuid)
            room = NOTHING if card is None else card.capacity
            room -= Amount(*node.charged.get(uuid, (0, 0)))
            if not amount.fits(room):
                raise NotPreparedError(
                    f"card {uuid} has {room.units} units and {room.cores} cores left, "
                    f"not {amount.units} and {amount.cores}; the pod starts when there "
                    "is room"
                )

    def _limit(self, claim: ResourceClaim, part: Part) -> HardLimit | None:
        """Return the hard limit of a request's containers; None if they have none."""
        units = None if part.is_whole else part.total.units
        limit = self.isolation.limit(units)
        if limit is None:
            return None
        wrong = why_no_limits(part.cards)
        if not wrong and limit.tier == "preload":
            wrong = self.library.put_right()
        if not wrong and limit.tier == "driver":
            wrong = self._why_together(claim, part)
        if wrong:
            raise NotPreparedError(f"isolation tier {limit.tier}: {wrong}")
        return limit

    def _why_together(self, claim: ResourceClaim, part: Part) -> str:
        """Say which containers would each have all of a request's share; else empty.

        NVIDIA's driver limits a container, and not what several have together.
        """
        names: list[str] = []
        for user in claim.reserved_for:
            name = (claim.namespace, user.name)
            pod = self.prestart.pods.find(name)
            try:
                if pod is None or pod.uid != user.uid:
                    pod = self.prestart.pods.fetch(name)
            except ClusterError as error:
                return f"it is not known which containers use the claim: {error}"
            names += [
                f"{user.name}/{use.container}"
                for use in (() if pod is None else pod.claim_uses)
                if use.claim == claim.name and use.request in ("", part.request)
                # Init containers that end run one at a time.
                if not use.ends
            ]
        if len(set(names)) <= 1:
            return ""
        which = ", ".join(dict.fromkeys(names))
        return (
            f"containers {which} use request {part.request} together, and each could "
            "take all of its memory; give each container a request of its own"
        )

    def _insist_on_memory(
        self, needed: Mapping[CardUUID, int], listed: Listed, cards: Cards
    ) -> None:
        for uuid, mib in needed.items():
            card = cards.of(uuid)
            if card is None:
                continue
            total = mib + self.prestart.started.sum_mib(card, (), listed, cards)
            if total > (has := self.offer.usable_mib(uuid)):
                raise NotPreparedError(
                    f"with it the hard limits of containers on card {uuid} would be "
                    f"{total} MiB, and the card has {has}; the pod starts when others "
                    "have ended"
                )


def _needed(
    parts: Sequence[Part], limits: Mapping[str, HardLimit]
) -> Mapping[CardUUID, int]:
    needed: dict[CardUUID, int] = {}
    for part in parts:
        if (limit := limits.get(part.request)) is not None:
            uuid = part.cards[0]
            needed[uuid] = needed.get(uuid, 0) + limit.needed_mib
    return needed
