"""Serve the webhook: reviews of new pods for the API server, over TLS.

Between two reviews it keeps nothing but the pool of cards, which a thread follows. So
any number of replicas give the same answers.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from threading import Lock
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry, Counter, Histogram

from extender.pool import UNKNOWN, NodeFacts, Pool, node_facts
from extender.server.public import MetricsPage, Readiness, bare_app, posts
from extender.webhook.review import Question, allowed, denied, patch_between, question
from extender.webhook.rules import Rules, review
from gpushare.kube.cluster import Json, Page, WatchEvent
from gpushare.kube.json_reader import Malformed
from gpushare.logs import about

logger = logging.getLogger(__name__)

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)
_INTERNAL_ERROR = (
    "internal error in the vcuda webhook, so the pod was denied; the log of "
    "gpushare-webhook in kube-system has the details"
)


class Result(StrEnum):
    """What came of one review."""

    ALLOWED = "allowed"
    CHANGED = "changed"
    DENIED = "denied"
    MALFORMED = "malformed"
    """No API server sends such a review."""
    FAILED = "failed"
    """An internal error; the pod was denied."""


class ReviewMetrics:
    """Count and time reviews."""

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
            "Reviews by what came of them; failed: an internal error of the webhook.",
            ["path", "result"],
            registry=registry,
        )
        self._warnings = Counter(
            "vcuda_webhook_warnings",
            "Warnings given to those who create pods.",
            registry=registry,
        )

    def of(self, path: str) -> "PathMetrics":
        """Return the metrics of one path, with every result at 0 to begin with."""
        results = {one: self._reviews.labels(path, one.value) for one in Result}
        return PathMetrics(self._seconds.labels(path), results, self._warnings)


@dataclass(frozen=True, slots=True)
class PathMetrics:
    """Count and time the reviews of one path."""

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


@dataclass(frozen=True, slots=True)
class Path:
    """How the reviews of one path are judged."""

    mutating: bool
    mode: str = ""
    """How Bitfusion pods without an annotation of their own are translated."""


PATHS: Mapping[str, Path] = {
    "/mutate": Path(mutating=True),
    "/mutate/bitfusion-all": Path(mutating=True, mode="all"),
    "/mutate/bitfusion-injection": Path(mutating=True, mode="injection"),
    "/validate": Path(mutating=False),
}
"""What the webhook configurations call."""


@dataclass(frozen=True, slots=True)
class WebhookParts:
    """What the views need."""

    rules: Rules
    pool: Callable[[], Pool]
    readiness: Readiness
    metrics: ReviewMetrics
    metrics_page: MetricsPage


def create_webhook_app(parts: WebhookParts) -> WSGIApplication:
    """Make the application for the API server: reviews and nothing else."""
    metrics = {rule: parts.metrics.of(rule) for rule in PATHS}
    answers = {
        path: partial(_timed, parts, metrics[path], PATHS[path]) for path in PATHS
    }
    return posts(
        bare_app(),
        answers,
        refused=lambda rule: metrics[rule].reviewed(Result.MALFORMED),
    )


def _timed(parts: WebhookParts, metrics: PathMetrics, path: Path, body: bytes) -> bytes:
    with metrics.timed():
        return _answer(parts, metrics, path, body)


def _answer(
    parts: WebhookParts, metrics: PathMetrics, path: Path, body: bytes
) -> bytes:
    """Answer one review; an error while judging its pod is an answer too."""
    try:
        asked = question(body)
    except Malformed:
        metrics.reviewed(Result.MALFORMED)
        raise
    if asked.pod is None:
        metrics.reviewed(Result.ALLOWED)
        return allowed(asked.uid)
    with about(pod=_name(asked)):
        try:
            answer, result, warnings = _judge(parts, path, asked, asked.pod)
        except Exception:
            # Not a 500: the API server would show people nothing but the number.
            logger.exception("internal error")
            answer = denied(asked.uid, [_INTERNAL_ERROR])
            result, warnings = Result.FAILED, 0
    metrics.reviewed(result, warnings)
    return answer


def _judge(
    parts: WebhookParts, path: Path, asked: Question, pod: Json
) -> tuple[bytes, Result, int]:
    verdict = review(
        pod,
        namespace=asked.namespace,
        mutating=path.mutating,
        mode=path.mode,
        rules=parts.rules,
        pool=parts.pool(),
        user=asked.user,
        old=asked.old,
    )
    count = len(verdict.warnings)
    if verdict.denials:
        logger.info("denied", extra={"because": "; ".join(verdict.denials)})
        answer = denied(asked.uid, verdict.denials, verdict.warnings)
        return answer, Result.DENIED, count
    steps = patch_between(pod, verdict.pod)
    facts = {"steps": len(steps), "warnings": count}
    logger.debug("reviewed", extra=facts)
    result = Result.CHANGED if steps else Result.ALLOWED
    return allowed(asked.uid, steps, verdict.warnings), result, count


def _name(asked: Question) -> str:
    """Name the pod for the log; a controller's pod has no name yet."""
    metadata = (asked.pod or {}).get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    name = known.get("name") or f"{known.get('generateName') or ''}*"
    return f"{asked.namespace}/{name}"


class PoolBook:
    """Keep the pool of cards, as a reflector of nodes reports them.

    Nodes change every few minutes, their cards hardly ever: the pool is summed up only
    if a change concerns it.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeFacts] = {}
        self._pool = UNKNOWN
        self._lock = Lock()

    def pool(self) -> Pool:
        """Return the cluster's cards; ``UNKNOWN`` before the first list of nodes."""
        return self._pool

    def replace(self, pages: Iterator[Page]) -> None:
        """Take over all nodes."""
        found = dict(_read(node) for page in pages for node in page.items)
        with self._lock:
            self._nodes = found
            self._pool = Pool.of(found.values())

    def apply(self, event: WatchEvent) -> None:
        """Take over one change."""
        name, facts = _read(event.object)
        with self._lock:
            if event.type == "DELETED":
                changed = self._nodes.pop(name, None) is not None
            else:
                changed = self._nodes.get(name) != facts
                self._nodes[name] = facts
            if changed:
                self._pool = Pool.of(self._nodes.values())


def _read(node: Json) -> tuple[str, NodeFacts]:
    name = str(node["metadata"]["name"])
    try:
        return name, node_facts(node)
    except Malformed as error:
        # Only info: the extender, which places pods by it, warns of it.
        logger.info("node not understood", extra={"node": name, "because": str(error)})
        return name, NodeFacts()
