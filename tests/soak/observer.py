"""What two watches tell of pods and claims, judged in the API server's order."""

import heapq
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count

from tests.controlplane.books import Books
from tests.testbed.rest import Json


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
