"""What pods and ResourceClaims hold of each card, kept up to date one object at a time.

Its own arithmetic, on the JSON of the API server's objects: nothing of the product has
a say in it. Each answer is a list of what is wrong, in words, mostly empty.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal

from tests.controlplane.world import CARDS, PLACEMENT, World, node_of
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.rest import Json, Rest

Card = tuple[str, str]
"""Node and UUID."""
Amounts = tuple[int, int]
"""Cores and units."""

CORES = 100
FINISHED = frozenset({"Succeeded", "Failed"})
APART = "baidu.com/vcuda-containers"
UNIT_MIB = 256


class Books:
    """The sums over all pods that are bound and have not ended, and over all claims."""

    def __init__(self, units: dict[Card, int]) -> None:
        self.units = units
        self._devices = {(node, uuid.lower()): uuid for node, uuid in units}
        self._cards: dict[str, tuple[Card, ...]] = {}
        self._charged: dict[Card, dict[str, Amounts]] = defaultdict(dict)

    def put(self, kind: str, an_object: Json) -> list[str]:
        """Take a pod or a claim as it is now, in place of what it was."""
        uid = an_object["metadata"]["uid"]
        self.drop(uid)
        charge = self._charge_claim if kind == "claims" else self._charge_pod
        faults = charge(an_object)
        touched = dict.fromkeys(self._cards.get(uid, ()))
        return faults + [fault for card in touched for fault in self._over(card)]

    def drop(self, uid: str) -> list[str]:
        for card in self._cards.pop(uid, ()):
            self._charged[card].pop(uid, None)
        return []

    def charged(self, card: Card) -> Amounts:
        return _sum(self._charged[card].values())

    def holders(self, card: Card) -> dict[str, Amounts]:
        """Give what each pod and claim holds of a card, by its UID."""
        return dict(self._charged[card])

    def part_charged(self) -> float:
        units = sum(self.charged(card)[1] for card in self.units)
        return units / sum(self.units.values())

    def free(self) -> dict[Card, Amounts]:
        return {
            card: (CORES - cores, size - units)
            for card, size in self.units.items()
            for cores, units in (self.charged(card),)
        }

    def _charge_pod(self, a_pod: Json) -> list[str]:
        """Put a pod's shares on their cards, and say what is wrong with them."""
        node = node_of(a_pod)
        asks = _asks_of(a_pod)
        over = a_pod["status"].get("phase") in FINISHED
        if not node or over or _sum(asks.values()) == (0, 0):
            return []
        name, uid = a_pod["metadata"]["name"], a_pod["metadata"]["uid"]
        try:
            shares = _shares_of(a_pod)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            return [f"{name} is bound to {node} by a broken placement: {error!r}"]
        if not shares:
            return [f"{name} is bound to {node} without a placement of its own"]
        foreign = [uuid for uuid in shares if (node, uuid) not in self.units]
        if foreign:
            return [f"{name} is placed on {foreign}, which {node} does not have"]
        self._charge(
            uid, {(node, uuid): amounts for uuid, (amounts, _) in shares.items()}
        )
        apart = a_pod["metadata"]["annotations"].get(APART) == "apart"
        groups = [{key: ask} for key, ask in asks.items()] if apart else [asks]
        wrong = self._unlike(node, groups, shares)
        return [f"{name} asks {asks} and has {shares}: {wrong}"] if wrong else []

    def _unlike(
        self, node: str, groups: Sequence[dict[str, Amounts]], shares: "Shares"
    ) -> str:
        """Compare what a pod has with what each of its groups asks: "" if it is right.

        A group is what must be on one card, or on whole cards of its own.
        """
        due: dict[str, Amounts] = defaultdict(lambda: (0, 0))
        for group in groups:
            cores, units = _sum(group.values())
            own = [uuid for uuid, (_, parts) in shares.items() if group.keys() & parts]
            if any(ask != (0, 0) and not own for ask in group.values()):
                return f"{list(group)} has no card"
            if cores < CORES and len(own) > 1:
                return f"{list(group)} is on several cards"
            if cores >= CORES:
                if len(own) * CORES != cores:
                    return f"{list(group)} has {len(own)} whole cards"
                if sum(self.units[node, uuid] for uuid in own) < units:
                    return f"{list(group)} has too little memory"
            for uuid in own:
                whole = (CORES, self.units[node, uuid])
                due[uuid] = _sum(
                    [due[uuid], whole if cores >= CORES else (cores, units)]
                )
        charged = {uuid: amounts for uuid, (amounts, _) in shares.items()}
        return "" if charged == due else f"due is {dict(due)}"

    def _charge_claim(self, claim: Json) -> list[str]:
        """Put what a claim was given on its cards; whole is said by one request."""
        name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
        status = claim.get("status") or {}
        devices = (status.get("allocation") or {}).get("devices") or {}
        given = {each["request"]: each for each in devices.get("results") or ()}
        if not given:
            return []
        asks = {
            each["name"]: _amounts(each["exactly"]["capacity"]["requests"])
            for each in claim["spec"]["devices"]["requests"]
        }
        has = {key: _amounts(each["consumedCapacity"]) for key, each in given.items()}
        cards: dict[Card, Amounts] = {}
        for request, each in given.items():
            node = each["pool"]
            uuid = self._devices.get((node, each["device"]))
            if uuid is None:
                return [f"{name} has {each['device']}, which {node} does not have"]
            card, amounts = (node, uuid), has[request]
            if amounts[0] >= CORES:
                amounts = (CORES, self.units[card])
            cards[card] = _sum([cards.get(card, (0, 0)), amounts])
        self._charge(uid, cards)
        return [] if has == asks else [f"{name} asks {asks} and has {has}"]

    def _charge(self, uid: str, cards: dict[Card, Amounts]) -> None:
        self._cards[uid] = tuple(cards)
        for card, amounts in cards.items():
            self._charged[card][uid] = amounts

    def _over(self, card: Card) -> list[str]:
        cores, units = self.charged(card)
        if cores <= CORES and units <= self.units[card]:
            return []
        sums = f"{cores} of {CORES} cores and {units} of {self.units[card]} units"
        return [f"card {card} is over-committed: {sums}, {self.holders(card)}"]


Shares = dict[str, tuple[Amounts, frozenset[str]]]
"""Of each card what is charged, and the containers that are on it."""


def _shares_of(a_pod: Json) -> Shares:
    text = a_pod["metadata"].get("annotations", {}).get(PLACEMENT)
    if text is None:
        return {}
    placement = json.loads(text)
    assert placement["v"] == 1
    assert placement["uid"] == a_pod["metadata"]["uid"]
    shares: Shares = {}
    for share in placement["shares"]:
        amounts, containers = shares.get(share["card"], ((0, 0), frozenset()))
        shares[share["card"]] = (
            _sum([amounts, (share["cores"], share["units"])]),
            containers | frozenset(share.get("containers") or ()),
        )
    return shares


def _asks_of(a_pod: Json) -> dict[str, Amounts]:
    asks = {}
    for container in a_pod["spec"]["containers"]:
        requests = container.get("resources", {}).get("requests", {})
        cores, units = (number(requests.get(key, "0")) for key in (CORE, MEMORY))
        asks[container["name"]] = (cores, units)
    return asks


def _amounts(quantities: Json) -> Amounts:
    """Read what a claim asks or has: ``{"cores": "50", "memory": "5Gi"}``."""
    text = quantities["memory"]
    mib = int(text[:-2]) * {"Mi": 1, "Gi": 1024}[text[-2:]]
    return int(quantities["cores"]), mib // UNIT_MIB


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    pairs = list(amounts)
    return sum(cores for cores, _ in pairs), sum(units for _, units in pairs)


def number(quantity: str) -> int:
    scale = {"m": Decimal("0.001"), "k": Decimal(1000)}.get(quantity[-1], Decimal(1))
    return int(Decimal(quantity.rstrip("mk")) * scale)


def checked_books(rest: Rest) -> Books:
    """Add up what pods hold, insisting that nothing is wrong with it.

    No card is over its capacity; every bound pod that asks has a placement of its own,
    on cards of its node, for just what it asks; whole cards are nobody else's.
    """
    books = Books(_capacities(rest.items("/api/v1/nodes")))
    pods = rest.items("/api/v1/pods")
    faults = [fault for a_pod in pods for fault in books.put("pods", a_pod)]
    assert not faults, faults
    return books


def assert_refused(world: World, a_pod: Json, says: str) -> None:
    """Insist that the pod waits, and that its event begins so."""
    verdict = world.verdict(a_pod)
    name = a_pod["metadata"]["name"]
    assert not verdict.node, f"{name} runs on {verdict.node}, cards {verdict.cards}"
    count = len(world.nodes)
    words = f"0/{count} nodes are available: {says}. "
    right = f"{verdict.event} ".startswith(words)
    assert right, f"the event says something else: {verdict.event}"
    checked_books(world.rest)


def pending_though_fitting(rest: Rest) -> list[str]:
    """Name the pods that wait although one node has the cards for them."""
    books = checked_books(rest)
    return [
        a_pod["metadata"]["name"]
        for a_pod in rest.items("/api/v1/pods")
        if not node_of(a_pod) and _fits(books, *_sum(_asks_of(a_pod).values()))
    ]


def _capacities(nodes: Iterable[Json]) -> dict[Card, int]:
    cards: dict[Card, int] = {}
    for node in nodes:
        name = node["metadata"]["name"]
        text = node["metadata"].get("annotations", {}).get(CARDS)
        # A broken annotation gives no cards, so that no pod may be there at all.
        with suppress(TypeError, ValueError):
            for card in json.loads(text)["cards"]:
                cards[name, card["uuid"]] = card["units"]
    return cards


def _fits(books: Books, cores: int, units: int) -> bool:
    if cores < 100:
        rooms = books.free().values()
        return any(cores <= room[0] and units <= room[1] for room in rooms)
    untouched: dict[str, list[int]] = defaultdict(list)
    for (node, uuid), size in books.units.items():
        if not books.holders((node, uuid)):
            untouched[node].append(size)
    count = cores // 100
    return any(
        len(sizes) >= count and sum(sorted(sizes)[-count:]) >= units
        for sizes in untouched.values()
    )
