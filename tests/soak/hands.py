"""Many small writes, each at its time, over the API server's restarts."""

import heapq
import http.client
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Self

from tests.testbed.rest import Json

Call = Callable[[], tuple[int, Json]]

AGAIN_S = 0.2
_MOST_REFUSALS = 300
_LONGEST_S = 90.0


class Hands:
    """Threads that do what is due, until their ``with`` ends.

    A write is tried until the API server has answered it with one of the statuses that
    settle it; what it refuses for a minute is a fault.
    """

    def __init__(self, number: int = 6) -> None:
        self.faults: list[str] = []
        self.writes = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._changed = threading.Condition()
        self._paused = False
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"hand-{n}") for n in range(number)
        ]

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have it done so many seconds from now."""
        with self._changed:
            entry = (time.monotonic() + seconds, next(self._order), action)
            heapq.heappush(self._due, entry)
            self._changed.notify()

    def pause(self, paused: bool) -> None:
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def until_settled(self, what: str, call: Call, settled: frozenset[int]) -> bool:
        """Write until it is answered by one of these statuses; False if it never is."""
        for _ in range(_MOST_REFUSALS):
            answer: Json = {}
            try:
                status, answer = call()
            except (OSError, http.client.HTTPException) as error:
                status, answer = 0, {"message": str(error)}
            if status in settled:
                self.writes += 1
                return True
            if self._stopping.wait(AGAIN_S):
                return False
        self.faults.append(f"{what}: {status} {answer.get('message', answer)}")
        return False

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_LONGEST_S)

    def _work(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception as error:
                self.faults.append(f"{action}: {error!r}")

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._stopping.is_set():
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if self._paused:
                    wait = None
                elif wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)
            return None
