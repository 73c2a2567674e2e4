"""How long filter may wait for news before it refuses a pod everywhere.

kube-scheduler asks for a refused pod again within milliseconds of the event that may
help it, such as another pod's end. If its watch is a little ahead of ours, our books
still say no; and if that event was the last, nobody asks again for five minutes
(contracts 1.7). So a pod that fits nowhere is given a moment for our watch to catch up.
Filter is on the scheduler's serial path, so of all time at most a share goes into that,
and three quarters of that into the pods of one namespace.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

_MOST_NAMESPACES = 1000
"""Whose waits are remembered at a time."""


@dataclass(slots=True)
class _Budget:
    """Seconds that fill with time and that waiting empties."""

    share: float
    saved_s: float
    left_s: float
    filled_at: float

    def fill(self, now: float) -> float:
        """Add what was earned since; give what there is now."""
        earned = (now - self.filled_at) * self.share
        self.left_s = min(self.saved_s, self.left_s + earned)
        self.filled_at = now
        return self.left_s


class Patience:
    """The time that waits may take: of all pods together, and of each namespace's.

    Without the second, one namespace's refused pods would leave none to the others.
    """

    def __init__(
        self,
        wait_s: float,
        *,
        share: float = 0.2,
        saved_s: float = 1.0,
        part: float = 0.75,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wait_s = wait_s
        self._share = share
        self._saved_s = saved_s
        self._part = part
        self._clock = clock
        self._lock = Lock()
        self._all = _Budget(share, saved_s, saved_s, clock())
        self._namespaces: dict[str, _Budget] = {}

    def allowed_s(self, namespace: str) -> float:
        """Give the seconds that a pod of a namespace may wait now; 0 for none."""
        with self._lock:
            now = self._clock()
            own = self._own(namespace, now)
            left_s = min(self._all.fill(now), own.fill(now))
            return self._wait_s if left_s >= self._wait_s else 0.0

    def spend(self, namespace: str, seconds: float) -> None:
        """Take off what a pod has waited."""
        with self._lock:
            self._all.left_s -= seconds
            self._own(namespace, self._clock()).left_s -= seconds

    def _own(self, namespace: str, now: float) -> _Budget:
        """Give a namespace's budget; those that are full again are forgotten first."""
        if namespace not in self._namespaces:
            if len(self._namespaces) >= _MOST_NAMESPACES:
                self._namespaces = {
                    name: budget
                    for name, budget in self._namespaces.items()
                    if budget.fill(now) < budget.saved_s
                }
            saved_s = max(self._saved_s * self._part, self._wait_s)
            share = self._share * self._part
            self._namespaces[namespace] = _Budget(share, saved_s, saved_s, now)
        return self._namespaces[namespace]
