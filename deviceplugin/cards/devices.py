"""Cards as kubelet's devices: device ids, snapshots of the cards, and placements. Pure.

``resource`` is ``baidu.com/vcuda-core`` or ``baidu.com/vcuda-memory`` throughout;
device ids name the card.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpushare.cards.source import FoundCard
from gpushare.domain.model import (
    CORES_PER_CARD,
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    NodeName,
    Placement,
    PodRef,
    Refusal,
    Share,
    join_shares,
    share_whole_cards,
    units_of,
)
from gpushare.domain.node import Node
from gpushare.kube import names, words
from gpushare.kubelet.pods import (
    CORE_KIND,
    KINDS,
    DeviceId,
    HeldDevices,
    NodePod,
    card_key,
)


def colliding_cards(cards: Iterable[FoundCard | Card]) -> list[str]:
    """Say which cards would have the same device ids; empty if none."""
    by_key: dict[str, list[str]] = {}
    for card in cards:
        by_key.setdefault(card_key(card.uuid), []).append(card.uuid)
    return [
        f"cards {' and '.join(uuids)} would have the same device ids ({key}-...); "
        "leave one of them out"
        for key, uuids in by_key.items()
        if len(uuids) > 1
    ]


def shared_card(card: FoundCard, reserve_mib: int, *, healthy: bool = True) -> Card:
    """Return a card as it is offered: its memory less the reserve, in whole units."""
    units = units_of(max(0, card.memory_mib - reserve_mib))
    parent = "" if card.instance is None else card.instance.parent
    return Card(card.uuid, card.index, units, healthy, card.model, parent=parent)


def device_ids(card: Card, kind: str) -> list[str]:
    """Return the ids of all cores or all units of a card."""
    count = CORES_PER_CARD if kind == CORE_KIND else card.units
    key = card_key(card.uuid)
    return [str(DeviceId(key, kind, number)) for number in range(count)]


class Cards:
    """The node's cards at one moment; it never changes.

    ``found_cards`` has each card as its source knows it.
    """

    def __init__(
        self,
        cards: Iterable[Card],
        found_cards: Mapping[CardUUID, FoundCard] | None = None,
    ) -> None:
        self.all = tuple(cards)
        self._found = found_cards or {}
        self._by_key = {card_key(card.uuid): card for card in self.all}
        self._by_uuid = {card.uuid: card for card in self.all}

    def of(self, uuid: CardUUID) -> Card | None:
        """Return the card with this UUID."""
        return self._by_uuid.get(uuid)

    def as_found(self, uuids: Iterable[CardUUID]) -> tuple[FoundCard, ...]:
        """Return these cards as their sources know them; unknown ones are skipped."""
        return tuple(self._found[uuid] for uuid in uuids if uuid in self._found)

    def holding(self, ids: Iterable[str]) -> tuple[Card, ...]:
        """Return the cards of these ids, by index; unknown ids are skipped."""
        keys = {device.key for device in map(DeviceId.parse, ids) if device}
        cards = [self._by_key[key] for key in keys if key in self._by_key]
        return tuple(sorted(cards, key=lambda card: card.index))

    def unknown(self, resource: str, ids: Iterable[str]) -> list[str]:
        """Return the ids that no card of this node has."""
        return sorted(text for text in ids if not self._knows(resource, text))

    def count(self, ids: Iterable[str]) -> Counter[CardUUID]:
        """Count ids by card."""
        counted = Counter(device.key for device in map(DeviceId.parse, ids) if device)
        return Counter(
            {
                self._by_key[key].uuid: number
                for key, number in counted.items()
                if key in self._by_key
            }
        )

    def _knows(self, resource: str, text: str) -> bool:
        device = DeviceId.parse(text)
        card = None if device is None else self._by_key.get(device.key)
        if device is None or card is None or device.kind != KINDS[resource]:
            return False
        return device.number < count_of(card.capacity, resource)


class Tally:
    """Counts devices by their card's key and their kind, each set of ids only once.

    A node's pods hold thousands of devices, and few change between two counts.
    """

    def __init__(self) -> None:
        self._known: dict[frozenset[str], Counter[tuple[str, str]]] = {}

    def of(self, sets: Iterable[frozenset[str]]) -> Mapping[tuple[str, str], int]:
        """Count the devices of all these sets; unknown ids are skipped."""
        before, self._known = self._known, {}
        total: defaultdict[tuple[str, str], int] = defaultdict(int)
        for ids in sets:
            counted = before.get(ids)
            if counted is None:
                parsed = filter(None, map(DeviceId.parse, ids))
                counted = Counter((device.key, device.kind) for device in parsed)
            self._known[ids] = counted
            for which, number in counted.items():
                total[which] += number
        return total


def count_of(amount: Amount, resource: str) -> int:
    """Return the part of an amount that one resource counts."""
    return amount.cores if resource == names.CORE else amount.units


def amount_of(resource: str, count: int) -> Amount:
    """Return an amount of one resource."""
    if resource == names.CORE:
        return Amount(cores=count)
    return Amount(units=count)


def amounts_by_card(placement: Placement, container: str) -> dict[CardUUID, Amount]:
    """Return what a placement has for one container, card by card."""
    amounts: dict[CardUUID, Amount] = {}
    for share in placement.shares:
        for part in share.containers:
            if part.name == container:
                amounts[share.card] = amounts.get(share.card, Amount()) + part.amount
    return amounts


def why_impossible(placement: Placement, pod: NodePod, cards: Cards) -> str:
    """Say why a placement is impossible on these cards; empty if it is possible."""
    for uuid, amount in placement.by_card().items():
        card = cards.of(uuid)
        if card is None:
            return f"this node has no card {uuid}"
        if not amount.fits(card.capacity):
            return (
                f"card {uuid} has {card.capacity.cores} cores and {card.units} "
                f"units, not {amount.cores} and {amount.units}"
            )
    for container in pod.gpu_containers:
        planned = sum(amounts_by_card(placement, container.name).values(), Amount())
        if planned != container.amount:
            return (
                f"container {container.name} asks for {container.amount.cores} cores "
                f"and {container.amount.units} units, the placement has "
                f"{planned.cores} and {planned.units} for it"
            )
    return ""


def why_no_room(
    wanted: Mapping[CardUUID, Amount],
    node: Node,
    cards: Cards,
    has: str = "card {} has",
) -> str:
    """Say which card has no room for so much beside the others; empty if all have.

    ``has`` begins the sentence, with a place for the card.
    """
    for uuid, amount in wanted.items():
        card = cards.of(uuid)
        room = Amount() if card is None else card.capacity
        room -= Amount(*node.charged.get(uuid, (0, 0)))
        if not amount.fits(room):
            return (
                f"{has.format(uuid)} {room.units} units and {room.cores} cores left, "
                f"not {amount.units} and {amount.cores}"
            )
    return ""


def why_excluded(placement: Placement, pod: NodePod, cards: Cards) -> str:
    """Say which card the pod's card selector excludes; empty if none."""
    request = pod.record.request
    if isinstance(request, Refusal):
        return ""
    for card in filter(None, map(cards.of, placement.cards())):
        if limits := request.limits(card):
            return f"kubelet chose card {card.uuid}, {words.excluded_by(limits)}"
    return ""


def pick_device_ids(
    wanted: Mapping[CardUUID, int],
    available: Iterable[str],
    must: Sequence[str],
    *,
    size: int,
) -> list[str] | None:
    """Choose ``size`` ids of the wanted cards, lowest first; None if there are too few.

    ``must`` are in the answer whatever their card is: kubelet passes on an init
    container's ids at random (contracts 2.3).
    """
    chosen = list(must)
    free = set(available).difference(must)
    for uuid, count in wanted.items():
        key = card_key(uuid)
        have = sum(device.startswith(key) for device in must)
        missing = min(count - have, size - len(chosen))
        if missing > 0:
            of_card = [device for device in free if device.startswith(key)]
            chosen += sorted(of_card)[:missing]
    return chosen if len(chosen) == size else None


def placement_from(
    pod: NodePod, node: NodeName, containers: Mapping[str, HeldDevices], cards: Cards
) -> Placement | None:
    """Derive a pod's placement from the devices that its containers hold.

    None while they hold too few to tell, or if the request can never be met. Init
    containers that end may be missing from ``containers``, and then the others may hold
    devices of only some of a claim's whole cards.
    """
    request = pod.record.request
    if isinstance(request, Refusal):
        return None
    shares: list[Share] = []
    for claim in request.claims:
        of_claim = _shares(claim, containers, cards)
        if not of_claim:
            return None
        shares += of_claim
    if not shares:
        return None
    return Placement(pod.ref, node, join_shares(shares))


def placement_of_unknown_pod(
    pod: PodRef, node: NodeName, containers: Mapping[str, HeldDevices], cards: Cards
) -> Placement:
    """Derive the placement of a pod of which only the devices are known."""
    return Placement(pod, node, tuple(_counted(containers, cards)))


def _shares(
    claim: Claim, containers: Mapping[str, HeldDevices], cards: Cards
) -> list[Share]:
    mine = {
        c.name: containers[c.name] for c in claim.containers if c.name in containers
    }
    on = cards.holding(
        i for devices in mine.values() for ids in devices.values() for i in ids
    )
    if not on or len(on) < claim.whole_cards:
        return []
    if claim.whole_cards:
        return share_whole_cards(claim, on)
    if len(on) == 1:
        return [Share(on[0].uuid, claim.amount, claim.containers)]
    return _counted(mine, cards)


def _counted(containers: Mapping[str, HeldDevices], cards: Cards) -> list[Share]:
    """Charge each card exactly the devices that the containers hold."""
    sums: dict[CardUUID, dict[str, Amount]] = {}
    for container, devices in containers.items():
        for resource, ids in devices.items():
            for uuid, number in cards.count(ids).items():
                amounts = sums.setdefault(uuid, {})
                more = amount_of(resource, number)
                amounts[container] = amounts.get(container, Amount()) + more
    return [
        Share(
            uuid,
            sum(amounts.values(), Amount()),
            tuple(ContainerAmount(name, amount) for name, amount in amounts.items()),
        )
        for uuid, amounts in sums.items()
    ]
