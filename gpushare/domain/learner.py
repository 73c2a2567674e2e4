"""What pods there are, counted as they come, and what is learnt of them."""

from collections import Counter
from threading import Event, Lock

from gpushare.domain.frag.learning import due, learn
from gpushare.domain.frag.pool import Pool
from gpushare.domain.frag.shapes import Shape
from gpushare.domain.frag.tables import Tables
from gpushare.domain.model import PodRequest
from gpushare.domain.packing import Kind, Yardstick

_MOST_KINDS = 4000
_MOST_SEEN = 100_000
"""Counts are halved when they sum up to so many: what is old weighs less and less."""


class Learner:
    """Counts each pod once when it is first seen, and learns anew when that is due.

    After a restart the running pods are seen again, so what was learnt comes back from
    what the API server holds. Memory is bounded: the rarest kinds are forgotten first.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[Kind, tuple[int, int]] = {}
        """How often a kind was seen, and as the how manieth pod it was seen last."""
        self._sum = 0
        self._seen = 0
        self._due = Event()

    @property
    def seen(self) -> int:
        """How many pods with cards were seen since the start."""
        return self._seen

    @property
    def kinds(self) -> int:
        """How many kinds of pods are told apart now."""
        return len(self._counts)

    @property
    def due(self) -> bool:
        """Whether enough came since the last time to learn anew."""
        return self._due.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is due; False when it is not by then."""
        return self._due.wait(timeout_s)

    def see(self, request: PodRequest) -> None:
        """Count a pod, unless it asks no card."""
        if not request.claims:
            return
        kind = Kind.of(request)
        with self._lock:
            self._sum += 1
            self._seen += 1
            count, _ = self._counts.get(kind, (0, 0))
            self._counts[kind] = (count + 1, self._seen)
            if len(self._counts) > _MOST_KINDS or self._sum > _MOST_SEEN:
                self._forget()
            if due(self._seen):
                self._due.set()

    def tables(self, yardstick: Yardstick, pool: Pool) -> Tables:
        """Learn from all that was seen; some 10 ms, so not on a request's thread.

        Where that fails it is as due as before.
        """
        with self._lock:
            self._due.clear()
            counts = tuple(self._counts.items())
        try:
            shapes = Counter[Shape]()
            for kind, (count, _) in counts:
                for shape in yardstick.shapes(kind):
                    shapes[shape] += count
            return learn(shapes, pool)
        except BaseException:
            self._due.set()
            raise

    def _forget(self) -> None:
        """Let old counts fade, and keep the half of the kinds that comes most often.

        Of equal ones the half that came last, or a mix that has changed would never
        drive out the old one.
        """
        if self._sum > _MOST_SEEN:
            halved = {
                k: (count // 2, last) for k, (count, last) in self._counts.items()
            }
            self._counts = {kind: each for kind, each in halved.items() if each[0]}
        if len(self._counts) > _MOST_KINDS:
            ranked = sorted(self._counts, key=self._counts.__getitem__, reverse=True)
            self._counts = {k: self._counts[k] for k in ranked[: _MOST_KINDS // 2]}
        self._sum = sum(count for count, _ in self._counts.values())
