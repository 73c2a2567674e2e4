"""How long filter may wait for news before it refuses a pod everywhere.

kube-scheduler asks for a refused pod again within milliseconds of the event that may
help it, such as another pod's end. If its watch is a little ahead of ours, our books
still say no; and if that event was the last, nobody asks again for five minutes
(contracts 1.7). So a pod that fits nowhere is given a moment for our watch to catch up.
Filter is on the scheduler's serial path, so of all time at most a share goes into that.
"""

import time
from collections.abc import Callable
from threading import Lock


class Patience:
    """A budget of seconds: it fills with time, and waiting empties it."""

    def __init__(
        self,
        wait_s: float,
        *,
        share: float = 0.2,
        saved_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wait_s = wait_s
        self._share = share
        self._saved_s = saved_s
        self._clock = clock
        self._lock = Lock()
        self._left_s = saved_s
        self._filled_at = clock()

    def allowed_s(self) -> float:
        """Give the seconds that one call may wait now; 0 when the budget is used up."""
        with self._lock:
            now = self._clock()
            earned = (now - self._filled_at) * self._share
            self._left_s = min(self._saved_s, self._left_s + earned)
            self._filled_at = now
            return self._wait_s if self._left_s >= self._wait_s else 0.0

    def spend(self, seconds: float) -> None:
        """Take off what a call has waited."""
        with self._lock:
            self._left_s -= seconds
