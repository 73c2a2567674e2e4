"""The one who looks on: at each state of each pod, is any card over-committed?"""

import threading

from tests.soak.books import Books, Card, Held
from tests.testbed.rest import Json

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
        """Give cores and units left on each card now."""
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
