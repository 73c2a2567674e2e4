"""What Prometheus sees of the webhook; docs/webhook.md explains each."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)


class Result(StrEnum):
    """What came of one review."""

    ALLOWED = "allowed"
    CHANGED = "changed"
    DENIED = "denied"
    MALFORMED = "malformed"
    """No review that an API server would send."""
    FAILED = "failed"
    """An error of our own; the pod was turned away."""


class ReviewMetrics:
    """Counters and timings, bumped by the views."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "vcuda_webhook_review_seconds",
            "Time to answer one review of the API server.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._reviews = Counter(
            "vcuda_webhook_reviews",
            "Reviews by what came of them; failed: an error of the webhook's own.",
            ["path", "result"],
            registry=registry,
        )
        self._warnings = Counter(
            "vcuda_webhook_warnings",
            "Warnings given to those who make pods.",
            registry=registry,
        )

    def of(self, path: str) -> "PathMetrics":
        """Give the metrics of one path, every result 0 before its first review."""
        results = {one: self._reviews.labels(path, one.value) for one in Result}
        return PathMetrics(self._seconds.labels(path), results, self._warnings)


@dataclass(frozen=True, slots=True)
class PathMetrics:
    """One path's counters and timings."""

    seconds: Histogram
    results: Mapping[Result, Counter]
    warnings: Counter

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time one review."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds.observe(time.perf_counter() - began)

    def reviewed(self, result: Result, warnings: int = 0) -> None:
        """Count a review, and the warnings that it gave."""
        self.results[result].inc()
        if warnings:
            self.warnings.inc(warnings)
