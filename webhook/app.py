"""Serve the webhook: reviews of new pods for the API server, over TLS.

Between two reviews it keeps nothing but the pool of cards, which a thread follows. So
any number of replicas give the same answers.
"""

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Histogram

from gpushare.kube.admission import admit, deny
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpushare.kube.reflector import Sink
from gpushare.logs import about
from gpushare.server.asgi import Application, Posts
from gpushare.server.public import MetricsPage, Readiness, bare_app
from webhook.pool import UNKNOWN, Pool, PoolNode, pool_node
from webhook.rules.review import Question, patch_between, question
from webhook.rules.rules import Rules, review

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


DRA_PATH = "/mutate/dra"
"""Called for namespaces whose pods get their cards by claims."""
PATHS: Mapping[str, str | None] = {
    "/mutate": "",
    DRA_PATH: "",
    "/mutate/bitfusion-all": "all",
    "/mutate/bitfusion-injection": "injection",
    "/validate": None,
}
"""What the webhook configurations call, with how Bitfusion pods without an annotation
of their own are translated; None if the pod may not be changed."""


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
        for path, result in product(PATHS, Result):
            self._reviews.labels(path, result.value)
        self._warnings = Counter(
            "vcuda_webhook_warnings",
            "Warnings given to those who create pods.",
            registry=registry,
        )

    def timed(self, path: str) -> AbstractContextManager[object]:
        """Time one review."""
        return self._seconds.labels(path).time()

    def reviewed(self, path: str, result: Result, warnings: int = 0) -> None:
        """Count a review, and the warnings that it gave."""
        self._reviews.labels(path, result.value).inc()
        if warnings:
            self._warnings.inc(warnings)


@dataclass(frozen=True, slots=True)
class WebhookParts:
    """What the views need."""

    rules: Rules
    pool: Callable[[], Pool]
    readiness: Readiness
    metrics: ReviewMetrics
    metrics_page: MetricsPage


def create_webhook_app(parts: WebhookParts) -> Application:
    """Make the application for the API server: reviews and nothing else."""
    answers = {path: partial(_answer, parts, path) for path in PATHS}
    refused = partial(parts.metrics.reviewed, result=Result.MALFORMED)
    return Posts(bare_app(), answers, refused=refused)


async def _answer(parts: WebhookParts, path: str, body: bytes) -> bytes:
    """Answer one review; an error while judging its pod is an answer too."""
    with parts.metrics.timed(path):
        try:
            asked = question(body)
        except Malformed:
            parts.metrics.reviewed(path, Result.MALFORMED)
            raise
        if asked.pod is None:
            parts.metrics.reviewed(path, Result.ALLOWED)
            return admit(asked.uid)
        with about(pod=_name(asked)):
            try:
                answer, result, warnings = _judge(parts, path, asked, asked.pod)
            except Exception:
                # Not a 500: the API server would show people nothing but the number.
                logger.exception("internal error")
                answer = deny(asked.uid, [_INTERNAL_ERROR])
                result, warnings = Result.FAILED, 0
        parts.metrics.reviewed(path, result, warnings)
        return answer


def _judge(
    parts: WebhookParts, path: str, asked: Question, pod: Json
) -> tuple[bytes, Result, int]:
    mode = PATHS[path]
    verdict = review(
        pod,
        namespace=asked.namespace,
        mutating=mode is not None,
        mode=mode or "",
        rules=parts.rules,
        pool=parts.pool(),
        user=asked.user,
        old=asked.old,
        updated=asked.updated,
        dra=path == DRA_PATH,
    )
    count = len(verdict.warnings)
    if verdict.denials:
        logger.info("denied", extra={"because": "; ".join(verdict.denials)})
        answer = deny(asked.uid, verdict.denials, verdict.warnings)
        return answer, Result.DENIED, count
    steps = patch_between(pod, verdict.pod)
    logger.debug("reviewed", extra={"steps": len(steps), "warnings": count})
    result = Result.CHANGED if steps else Result.ALLOWED
    return admit(asked.uid, steps, verdict.warnings), result, count


def _name(asked: Question) -> str:
    """Name the pod for the log; a controller's pod has no name yet."""
    metadata = (asked.pod or {}).get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    name = known.get("name") or f"{known.get('generateName') or ''}*"
    return f"{asked.namespace}/{name}"


class PoolBook(Sink):
    """Keep the pool of cards, as a reflector of nodes reports them.

    Nodes change every few minutes, their cards hardly ever: the pool is summed up only
    if a change concerns it.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, PoolNode] = {}
        self._pool = UNKNOWN
        self._is_listing = True

    def pool(self) -> Pool:
        """Return the cluster's cards; ``UNKNOWN`` before the first list of nodes."""
        return self._pool

    def begin_list(self) -> AbstractSet[str]:
        """Sum the pool up once, at the end of the list."""
        self._is_listing = True
        return set(self._nodes)

    def put(self, body: Json) -> None:
        """Take over a node."""
        name, node = _read(body)
        is_new = self._nodes.get(name) != node
        self._nodes[name] = node
        if is_new:
            self._sum_up()

    def drop(self, key: str) -> None:
        """Forget a node."""
        if self._nodes.pop(key, None) is not None:
            self._sum_up()

    def end_list(self) -> None:
        """Sum up what the list brought."""
        self._is_listing = False
        self._sum_up()

    def _sum_up(self) -> None:
        if not self._is_listing:
            self._pool = Pool.of(self._nodes.values())


def _read(node: Json) -> tuple[str, PoolNode]:
    name = str(node["metadata"]["name"])
    try:
        return name, pool_node(node)
    except Malformed as error:
        # Only info: the extender, which places pods by it, warns of it.
        logger.info("node not understood", extra={"node": name, "because": str(error)})
        return name, PoolNode()
