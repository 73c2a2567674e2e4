"""From cards to kubelet's devices and back: ids for a plan, a placement from ids. Pure.

``resource`` is one of our two resource names throughout; their ids say the card.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from deviceplugin.cards.source import CORE_KIND, MEMORY_KIND, DeviceId, card_key
from deviceplugin.pods import Held, NodePod
from gpushare.domain.model import (
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    NodeName,
    Placement,
    PodRef,
    Share,
)
from gpushare.domain.placement import one_share_a_card, whole_shares
from gpushare.domain.refusal import Refusal
from gpushare.kube import names, words

KINDS: Mapping[str, str] = {names.CORE: CORE_KIND, names.MEMORY: MEMORY_KIND}
"""The letter in the device ids of each resource."""


class Cards:
    """The node's cards by UUID and by the key that their device ids begin with."""

    def __init__(self, cards: Iterable[Card]) -> None:
        self.all = tuple(cards)
        self._by_key = {card_key(card.uuid): card for card in self.all}
        self._by_uuid = {card.uuid: card for card in self.all}

    def of(self, uuid: CardUUID) -> Card | None:
        """Give the card with this UUID."""
        return self._by_uuid.get(uuid)

    def holding(self, ids: Iterable[str]) -> tuple[Card, ...]:
        """Give the cards that these ids belong to, by index; strangers are skipped."""
        keys = {found.key for found in map(DeviceId.parse, ids) if found}
        cards = [self._by_key[key] for key in keys if key in self._by_key]
        return tuple(sorted(cards, key=lambda card: card.index))

    def unknown(self, resource: str, ids: Iterable[str]) -> list[str]:
        """Give the ids that no card of this node has."""
        return sorted(text for text in ids if not self._knows(resource, text))

    def count(self, ids: Iterable[str]) -> Counter[CardUUID]:
        """Count ids by card."""
        counted = Counter(found.key for found in map(DeviceId.parse, ids) if found)
        return Counter(
            {
                self._by_key[key].uuid: number
                for key, number in counted.items()
                if key in self._by_key
            }
        )

    def _knows(self, resource: str, text: str) -> bool:
        found = DeviceId.parse(text)
        card = None if found is None else self._by_key.get(found.key)
        if found is None or card is None or found.kind != KINDS[resource]:
            return False
        return found.number < part(card.capacity, resource)


class Tally:
    """Counts devices by their card's key and their kind, each set of them once.

    A node's pods hold thousands, and few change between two counts.
    """

    def __init__(self) -> None:
        self._known: dict[frozenset[str], Counter[tuple[str, str]]] = {}

    def of(self, sets: Iterable[frozenset[str]]) -> Mapping[tuple[str, str], int]:
        """Count the devices of all these sets, 0 for others; strangers are skipped."""
        before, self._known = self._known, {}
        total: defaultdict[tuple[str, str], int] = defaultdict(int)
        for ids in sets:
            counted = before.get(ids)
            if counted is None:
                parsed = filter(None, map(DeviceId.parse, ids))
                counted = Counter((one.key, one.kind) for one in parsed)
            self._known[ids] = counted
            for which, number in counted.items():
                total[which] += number
        return total


def part(amount: Amount, resource: str) -> int:
    """Give the part of an amount that one resource counts."""
    return amount.cores if resource == names.CORE else amount.units


def amount_of(resource: str, count: int) -> Amount:
    """Give an amount that is so much of one resource."""
    if resource == names.CORE:
        return Amount(cores=count)
    return Amount(units=count)


def plan(placement: Placement, container: str) -> dict[CardUUID, Amount]:
    """Give what a placement has for one container, card by card."""
    found: dict[CardUUID, Amount] = {}
    for share in placement.shares:
        for held in share.containers:
            if held.name == container:
                found[share.card] = found.get(share.card, Amount()) + held.amount
    return found


def what_is_impossible(placement: Placement, pod: NodePod, cards: Cards) -> str:
    """Say why a placement cannot be carried out on these cards; empty where it can."""
    for share in placement.shares:
        card = cards.of(share.card)
        if card is None:
            return f"this node has no card {share.card}"
        if not share.amount.fits(card.capacity):
            return (
                f"card {share.card} has {card.capacity.cores} cores and {card.units} "
                f"units, not {share.amount.cores} and {share.amount.units}"
            )
    for asking in pod.asking:
        planned = sum(plan(placement, asking.name).values(), Amount())
        if planned != asking.amount:
            return (
                f"container {asking.name} asks {asking.amount.cores} cores and "
                f"{asking.amount.units} units, the placement has {planned.cores} and "
                f"{planned.units} for it"
            )
    return ""


def what_is_excluded(placement: Placement, pod: NodePod, cards: Cards) -> str:
    """Say which card the pod's own lists shut out; empty where none."""
    request = pod.record.request
    if isinstance(request, Refusal):
        return ""
    for card in filter(None, map(cards.of, placement.cards())):
        if limits := request.limits(card):
            return f"kubelet chose card {card.uuid}, {words.excluded_by(limits)}"
    return ""


def pick(
    wanted: Mapping[CardUUID, int],
    available: Iterable[str],
    must: Sequence[str],
    *,
    size: int,
) -> list[str] | None:
    """Choose ``size`` ids of the cards wanted, lowest first; None where too few.

    ``must`` are in the answer whatever their card: kubelet hands on an init container's
    ids at random (contracts 2.3).
    """
    chosen = list(must)
    free = set(available).difference(must)
    for uuid, count in wanted.items():
        key = card_key(uuid)
        have = sum(one.startswith(key) for one in must)
        missing = min(count - have, size - len(chosen))
        if missing > 0:
            own = [one for one in free if one.startswith(key)]
            chosen += sorted(own)[:missing]
    return chosen if len(chosen) == size else None


def placement_from(
    pod: NodePod, node: NodeName, held: Mapping[str, Held], cards: Cards
) -> Placement | None:
    """Read a pod's placement from the devices that its containers hold.

    None while they hold too few to tell, or for a request that nothing can meet.
    ``held`` is by container; init containers that end may be missing from it, and then
    the others' devices may lie on some of a claim's whole cards alone.
    """
    request = pod.record.request
    if isinstance(request, Refusal):
        return None
    shares: list[Share] = []
    for claim in request.claims:
        of_claim = _shares(claim, held, cards)
        if not of_claim:
            return None
        shares += of_claim
    if not shares:
        return None
    return Placement(pod.ref, node, one_share_a_card(shares))


def placement_of_stranger(
    pod: PodRef, node: NodeName, held: Mapping[str, Held], cards: Cards
) -> Placement:
    """Read the placement of a pod of which only the devices are known."""
    return Placement(pod, node, tuple(_counted(held, cards)))


def differs(actual: Placement, planned: Placement | None) -> bool:
    """Tell whether a pod has other cards, or more of one, than was planned for it."""
    if planned is None:
        return True
    return _charges(actual) != _charges(planned)


def _charges(placement: Placement) -> set[tuple[CardUUID, Amount]]:
    return {(share.card, share.amount) for share in placement.shares}


def _shares(claim: Claim, held: Mapping[str, Held], cards: Cards) -> list[Share]:
    mine = {c.name: held[c.name] for c in claim.containers if c.name in held}
    on = cards.holding(i for one in mine.values() for ids in one.values() for i in ids)
    if not on or len(on) < claim.whole_cards:
        return []
    if claim.whole_cards:
        return whole_shares(claim, on)
    if len(on) == 1:
        return [Share(on[0].uuid, claim.amount, claim.containers)]
    return _counted(mine, cards)


def _counted(held: Mapping[str, Held], cards: Cards) -> list[Share]:
    """Charge each card just what the containers' devices are."""
    sums: dict[CardUUID, dict[str, Amount]] = {}
    for container, one in held.items():
        for resource, ids in one.items():
            for uuid, number in cards.count(ids).items():
                its = sums.setdefault(uuid, {})
                more = amount_of(resource, number)
                its[container] = its.get(container, Amount()) + more
    return [
        Share(
            uuid,
            sum(its.values(), Amount()),
            tuple(ContainerAmount(name, amount) for name, amount in its.items()),
        )
        for uuid, its in sums.items()
    ]
