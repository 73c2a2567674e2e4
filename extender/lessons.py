"""When the policy ``frag`` learns: on a thread of its own, and what that looks like."""

import logging
import time
from collections.abc import Callable, Iterable
from threading import Event

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpushare.domain.packer import Packer

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


class Lessons:
    """Has a packer learn when that is due, as soon as anybody wants its choice.

    ``wanted`` where the cluster's own policy is ``frag``; else the first pod that asks
    for it is placed as best-fit places, and the next ones by what was learnt. ``after``
    is what must have come before: pods are measured by the cards that there are, and
    what is learnt without them would stand for long.
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
        """Lessons that failed since the start."""
        self.learnt_at: float | None = None
        """Seconds since 1970; None while nothing was learnt."""

    def run(self, stop: Event) -> None:
        """Learn until ``stop`` is set, whatever happens."""
        while not stop.is_set():
            due = self.packer.learner.wait(_LOOK_EVERY_S)
            if not self.take() and due:
                stop.wait(_LOOK_EVERY_S)

    def take(self) -> bool:
        """Learn, if that is due, wanted and possible; tell whether it was so."""
        packer = self.packer
        if not packer.due or not (self._wanted or packer.wanted):
            return False
        if not all(event.is_set() for event in self._after):
            return False
        began = time.monotonic()
        try:
            packer.learn()
        except Exception:
            # Pods are placed by what was learnt before, and the next turn comes.
            self.failed += 1
            logger.exception("nothing learnt")
            return False
        self.learnt_at = self._clock()
        took_ms = round((time.monotonic() - began) * 1000, 1)
        facts = {"pods_seen": packer.seen, "took_ms": took_ms}
        logger.debug("learnt", extra=facts)
        return True


class LessonCollector(Collector):
    """What Prometheus sees of it."""

    def __init__(self, lessons: Lessons) -> None:
        self._lessons = lessons

    def collect(self) -> Iterable[Metric]:
        """Give the pods counted, the lessons that failed, and when the last one was."""
        yield GaugeMetricFamily(
            "vcuda_extender_frag_pods_seen",
            "Pods with cards that the policy frag has counted since the start.",
            value=self._lessons.packer.seen,
        )
        yield CounterMetricFamily(
            "vcuda_extender_frag_lessons_failed",
            "Lessons of the policy frag that failed; each is tried again.",
            value=self._lessons.failed,
        )
        learnt_at = self._lessons.learnt_at
        if learnt_at is not None:
            yield GaugeMetricFamily(
                "vcuda_extender_frag_learnt_timestamp_seconds",
                "When the policy frag last learnt; absent while best-fit stands in.",
                value=learnt_at,
            )
