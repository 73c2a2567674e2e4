"""Look again and again until something is so, or time is up."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gpushare.kube.errors import ClusterError

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Pace:
    """How to look; the clock counts seconds."""

    every_s: float = 0.5
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

    def until(self, look: Callable[[], Seen | None], timeout_s: float) -> Seen | None:
        """Give what is seen first; None when nothing is seen in time.

        An API server that is away for a moment is waited for too: it starts anew on
        the host whose files we change.
        """
        deadline = self.clock() + timeout_s
        while True:
            try:
                seen = look()
            except ClusterError as error:
                if not error.retryable:
                    raise
                seen = None
            if seen is not None:
                return seen
            if self.clock() >= deadline:
                return None
            self.pause(self.every_s)
