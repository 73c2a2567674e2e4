"""Run the learning of the policy ``frag`` on a thread of its own."""

import logging
import time
from collections.abc import Callable, Iterable
from threading import Event

from gpushare.domain.frag.policy import Packer

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


class FragLearning:
    """Let a packer learn when that is due, once any pod asks for its policy.

    ``wanted`` is set if ``frag`` is the cluster's own policy. Otherwise the first pod
    that asks for it is placed as best-fit does, and later ones by what was learned.
    Nothing is learned before all of ``after`` are set: pods are measured by the cards
    of the cluster, and tables learned without its nodes would stay in use for long.
    """

    def __init__(
        self,
        packer: Packer,
        *,
        wanted: bool,
        after: Iterable[Event] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.packer = packer
        self._wanted = wanted
        self._after = tuple(after)
        self._clock = clock
        self.failed = 0
        """How often learning failed since the start."""
        self.learned_at: float | None = None
        """Seconds since 1970; None before the first tables were learned."""

    def run(self, stop: Event) -> None:
        """Learn until ``stop`` is set, whatever happens."""
        while not stop.is_set():
            due = self.packer.learner.wait(_LOOK_EVERY_S)
            if not self.learn_if_due() and due:
                stop.wait(_LOOK_EVERY_S)

    def learn_if_due(self) -> bool:
        """Learn, if that is due, wanted and possible; tell whether it was done."""
        packer = self.packer
        if not packer.due or not (self._wanted or packer.wanted):
            return False
        if not all(event.is_set() for event in self._after):
            return False
        began = time.monotonic()
        try:
            packer.learn()
        except Exception:
            # Pods are placed by the tables that were learned last; it is tried again.
            self.failed += 1
            logger.exception("frag: learning failed")
            return False
        self.learned_at = self._clock()
        took_ms = round((time.monotonic() - began) * 1000, 1)
        facts = {"pods_seen": packer.seen, "took_ms": took_ms}
        logger.debug("frag: tables learned", extra=facts)
        return True
