"""What pods hold of each card, kept up to date by one pod at a time.

Its own arithmetic, on the JSON of the API server's objects: nothing of the product has
a say in it. Each answer is a list of what is wrong, in words, mostly empty.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable

from tests.controlplane.books import asked
from tests.controlplane.world import node_of, shares_of
from tests.testbed.rest import Json

Card = tuple[str, str]
"""Node and UUID."""
Held = tuple[int, int]
"""Cores and units."""

CORES = 100
FINISHED = frozenset({"Succeeded", "Failed"})


class Books:
    """The sums over all pods that are bound and have not finished."""

    def __init__(self, units: dict[Card, int]) -> None:
        self.units = units
        self._cards: dict[str, tuple[Card, ...]] = {}
        self._held: dict[Card, dict[str, Held]] = defaultdict(dict)

    def replace(self, pods: Iterable[Json]) -> list[str]:
        """Forget all, and take these pods for all there are."""
        self._cards.clear()
        self._held.clear()
        for a_pod in pods:
            self._charge(a_pod)
        return [fault for card in self.units for fault in self._over(card)]

    def put(self, a_pod: Json) -> list[str]:
        """Take a pod as it is now, in place of what it was."""
        uid = a_pod["metadata"]["uid"]
        self.drop(uid)
        faults = self._charge(a_pod)
        touched = dict.fromkeys(self._cards.get(uid, ()))
        return faults + [fault for card in touched for fault in self._over(card)]

    def drop(self, uid: str) -> None:
        for card in self._cards.pop(uid, ()):
            self._held[card].pop(uid, None)

    def held(self, card: Card) -> Held:
        held = self._held[card].values()
        return sum(cores for cores, _ in held), sum(units for _, units in held)

    def part_held(self) -> float:
        held = sum(self.held(card)[1] for card in self.units)
        return held / sum(self.units.values())

    def free(self) -> dict[Card, Held]:
        found = {}
        for card, size in self.units.items():
            cores, units = self.held(card)
            found[card] = (CORES - cores, size - units)
        return found

    def _charge(self, a_pod: Json) -> list[str]:
        """Put a pod's shares on their cards, and say what is wrong with them."""
        node = node_of(a_pod)
        if not node or a_pod["status"].get("phase") in FINISHED:
            return []
        cores, units = asked(a_pod)
        if not (cores or units):
            return []
        uid, name = a_pod["metadata"]["uid"], a_pod["metadata"]["name"]
        try:
            shares = shares_of(a_pod)
        except (AssertionError, KeyError, ValueError) as error:
            return [f"{name} is bound to {node} by a broken placement: {error!r}"]
        if not shares:
            return [f"{name} is bound to {node} without a placement of its own"]
        foreign = [uuid for uuid, _, _ in shares if (node, uuid) not in self.units]
        if foreign:
            return [f"{name} is placed on {foreign}, which {node} does not have"]
        self._cards[uid] = tuple((node, uuid) for uuid, _, _ in shares)
        for uuid, share_cores, share_units in shares:
            self._held[node, uuid][uid] = (share_cores, share_units)
        return self._unlike(name, node, cores, units, shares)

    def _unlike(
        self,
        name: str,
        node: str,
        cores: int,
        units: int,
        shares: list[tuple[str, int, int]],
    ) -> list[str]:
        """Compare what a pod has with what it asks: a share, or whole cards."""
        got = [(share_cores, share_units) for _, share_cores, share_units in shares]
        if cores < CORES:
            right = got == [(cores, units)]
        else:
            full = [(CORES, self.units[node, uuid]) for uuid, _, _ in shares]
            different = len({uuid for uuid, _, _ in shares}) == len(shares)
            enough = sum(size for _, size in full) >= units
            right = got == full and len(full) * CORES == cores and different and enough
        return [] if right else [f"{name} asks {cores}, {units} and has {shares}"]

    def _over(self, card: Card) -> list[str]:
        cores, units = self.held(card)
        if cores <= CORES and units <= self.units[card]:
            return []
        said = f"{cores} of {CORES} cores and {units} of {self.units[card]} units"
        return [f"card {card} is over-committed: {said}, {dict(self._held[card])}"]


_EVERY = 64


class Observer:
    """Keeps the books by what the API server tells, and what was ever wrong in them."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._lock = threading.Lock()
        self.faults: list[str] = []
        self.moments = 0
        """States of the cluster that were looked at."""
        self.lists = 0
        self.fullest = 0.0
        """The largest part of all units that was held, 0 to 1."""
        self._parts = [0.0, 0]

    @property
    def mean_held(self) -> float:
        """The mean part of all units that was held."""
        total, count = self._parts
        return total / count if count else 0.0

    def free(self) -> dict[Card, Held]:
        with self._lock:
            return self._books.free()

    def all_pods(self, pods: list[Json], asked_at: float) -> None:
        self.lists += 1
        with self._lock:
            self._note(self._books.replace(pods))

    def changed(self, a_pod: Json) -> None:
        with self._lock:
            self._note(self._books.put(a_pod))

    def gone(self, a_pod: Json) -> None:
        with self._lock:
            self._books.drop(a_pod["metadata"]["uid"])
            self._note([])

    def _note(self, faults: list[str]) -> None:
        self.moments += 1
        self.faults += faults
        if self.moments % _EVERY == 0:
            part = self._books.part_held()
            self.fullest = max(self.fullest, part)
            total, count = self._parts
            self._parts = [total + part, count + 1]
