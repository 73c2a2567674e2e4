"""What pods and ResourceClaims hold of each card, kept up to date one object at a time.

Its own arithmetic, on the JSON of the API server's objects: nothing of the product has
a say in it. Each answer is a list of what is wrong, in words, mostly empty.
"""

import heapq
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from tests.controlplane.books import number
from tests.controlplane.world import PLACEMENT, node_of
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.rest import Json

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


@dataclass(frozen=True)
class Listing:
    """All objects of a kind, the revision that they show, and when they were asked."""

    objects: list[Json]
    revision: int
    asked_at: float


_EVERY = 64


class Observer:
    """Keeps the books by what two watches tell, and what was ever wrong in them.

    Pods and claims come by a watch each. Their events are put into the order of the
    API server's revisions: one is judged when both watches are as far.
    """

    def __init__(self, books: Books, kinds: Iterable[str]) -> None:
        self._books = books
        self._lock = threading.Lock()
        self._seen = dict.fromkeys(kinds, 0)
        self._uids: dict[str, set[str]] = {kind: set() for kind in self._seen}
        self._waiting: list[tuple[int, int, Callable[[], list[str]]]] = []
        self._order = count()
        self.faults: list[str] = []
        self.moments = 0
        """States of the cluster that were looked at."""
        self.lists = 0
        self.fullest = 0.0
        """The largest part of all units that was held, 0 to 1."""
        self._parts = [0.0, 0]

    @property
    def mean_charged(self) -> float:
        """The mean part of all units that was held."""
        total, number = self._parts
        return total / number if number else 0.0

    @property
    def seen(self) -> int:
        """The revision up to which all is judged."""
        with self._lock:
            return min(self._seen.values())

    def listed(self, kind: str, listing: Listing) -> None:
        """Take a list for all there are.

        When between the last event and the list an object went or changed is unknown.
        So it counts for nothing in between: a fault is never made up.
        """
        with self._lock:
            self.lists += 1
            before = self._seen[kind]
            newer = [each for each in listing.objects if _revision(each) > before]
            changed = {each["metadata"]["uid"] for each in newer}
            there = {each["metadata"]["uid"] for each in listing.objects}
            for uid in self._uids[kind] & changed | self._uids[kind] - there:
                self._later(before, partial(self._books.drop, uid))
            for each in newer:
                self._later(_revision(each), partial(self._books.put, kind, each))
            self._uids[kind] = there
            self._reached(kind, listing.revision)

    def changed(self, kind: str, an_object: Json) -> None:
        with self._lock:
            self._uids[kind].add(an_object["metadata"]["uid"])
            put = partial(self._books.put, kind, an_object)
            self._later(_revision(an_object), put)
            self._reached(kind, _revision(an_object))

    def gone(self, kind: str, an_object: Json) -> None:
        uid = an_object["metadata"]["uid"]
        with self._lock:
            self._uids[kind].discard(uid)
            self._later(_revision(an_object), partial(self._books.drop, uid))
            self._reached(kind, _revision(an_object))

    def _later(self, revision: int, apply: Callable[[], list[str]]) -> None:
        heapq.heappush(self._waiting, (revision, next(self._order), apply))

    def _reached(self, kind: str, revision: int) -> None:
        self._seen[kind] = max(self._seen[kind], revision)
        reached = min(self._seen.values())
        while self._waiting and self._waiting[0][0] <= reached:
            self._note(heapq.heappop(self._waiting)[2]())

    def _note(self, faults: list[str]) -> None:
        self.moments += 1
        self.faults += faults
        if self.moments % _EVERY == 0:
            part = self._books.part_charged()
            self.fullest = max(self.fullest, part)
            total, number = self._parts
            self._parts = [total + part, number + 1]


def _revision(an_object: Json) -> int:
    return int(an_object["metadata"]["resourceVersion"])
