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

from gpushare.kube.admission import admit, deny, read_admission_request
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpushare.kube.reflector import Readiness, Sink
from gpushare.logs import about
from gpushare.server.asgi import Application, PostsAndPages
from gpushare.server.public import MetricsPage, create_bare_app
from webhook.pool import UNKNOWN, CardPool, PoolNode, read_pool_node
from webhook.rules.review import ReviewSettings, patch_between, review_pod

logger = logging.getLogger(__name__)

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)
_INTERNAL_ERROR = (
    "internal error in the vcuda webhook, so the pod was denied; the log of "
    "gpushare-webhook in kube-system has the details"
)


_DEBUGGING = "ephemeralcontainers"
"""The subresource of a pod that gets a debugging container."""


class ReviewResult(StrEnum):
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


@dataclass(frozen=True, slots=True)
class PodReview:
    """One review of a new pod, of one that gets a debugging container, or of an update.

    ``pod`` is None if the review is about anything else, for which there are no rules.
    ``before_debugging`` is the pod before a debugging container is added,
    ``before_update`` the pod before an update; both are None for a new pod. ``user``
    made the request.
    """

    uid: str
    namespace: str
    pod: Json | None
    before_debugging: Json | None = None
    user: str = ""
    before_update: Json | None = None


def read_pod_review(body: bytes) -> PodReview:
    """Read a review; raise ``Malformed`` for one that no API server would send."""
    request = read_admission_request(body)
    uid, namespace = request.text("uid"), request.optional_text("namespace")
    kind = request.object("kind")
    is_pod = not kind.optional_text("group") and kind.optional_text("kind") == "Pod"
    operation = request.optional_text("operation"), request.optional_text("subResource")
    known = (("CREATE", ""), ("UPDATE", ""), ("UPDATE", _DEBUGGING))
    if not is_pod or operation not in known:
        return PodReview(uid, namespace, None)
    before = request.object("oldObject").raw if operation[0] == "UPDATE" else None
    is_debugging = bool(operation[1])
    return PodReview(
        uid,
        namespace,
        request.object("object").raw,
        before_debugging=before if is_debugging else None,
        user=request.optional_object("userInfo").optional_text("username"),
        before_update=None if is_debugging else before,
    )


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
        for path, result in product(PATHS, ReviewResult):
            self._reviews.labels(path, result.value)
        self._warnings = Counter(
            "vcuda_webhook_warnings",
            "Warnings given to those who create pods.",
            registry=registry,
        )

    def timed(self, path: str) -> AbstractContextManager[object]:
        """Time one review."""
        return self._seconds.labels(path).time()

    def reviewed(self, path: str, result: ReviewResult, warnings: int = 0) -> None:
        """Count a review, and the warnings that it gave."""
        self._reviews.labels(path, result.value).inc()
        if warnings:
            self._warnings.inc(warnings)


@dataclass(frozen=True, slots=True)
class WebhookParts:
    """What the views need."""

    rules: ReviewSettings
    pool: Callable[[], CardPool]
    readiness: Readiness
    metrics: ReviewMetrics
    metrics_page: MetricsPage


def create_webhook_app(parts: WebhookParts) -> Application:
    """Make the application for the API server: reviews and nothing else."""
    answers = {path: partial(_answer, parts, path) for path in PATHS}
    refused = partial(parts.metrics.reviewed, result=ReviewResult.MALFORMED)
    return PostsAndPages(create_bare_app(), answers, refused=refused)


async def _answer(parts: WebhookParts, path: str, body: bytes) -> bytes:
    """Answer one review; an error while judging its pod is an answer too."""
    with parts.metrics.timed(path):
        try:
            review = read_pod_review(body)
        except Malformed:
            parts.metrics.reviewed(path, ReviewResult.MALFORMED)
            raise
        if review.pod is None:
            parts.metrics.reviewed(path, ReviewResult.ALLOWED)
            return admit(review.uid)
        with about(pod=_name(review)):
            try:
                answer, result, warnings = _judge(parts, path, review, review.pod)
            except Exception:
                # Not a 500: the API server would show people nothing but the number.
                logger.exception("internal error")
                answer = deny(review.uid, [_INTERNAL_ERROR])
                result, warnings = ReviewResult.FAILED, 0
        parts.metrics.reviewed(path, result, warnings)
        return answer


def _judge(
    parts: WebhookParts, path: str, review: PodReview, pod: Json
) -> tuple[bytes, ReviewResult, int]:
    mode = PATHS[path]
    verdict = review_pod(
        pod,
        namespace=review.namespace,
        mutating=mode is not None,
        mode=mode or "",
        rules=parts.rules,
        pool=parts.pool(),
        user=review.user,
        before_debugging=review.before_debugging,
        before_update=review.before_update,
        dra=path == DRA_PATH,
    )
    count = len(verdict.warnings)
    if verdict.denials:
        logger.info("denied", extra={"because": "; ".join(verdict.denials)})
        answer = deny(review.uid, verdict.denials, verdict.warnings)
        return answer, ReviewResult.DENIED, count
    steps = patch_between(pod, verdict.pod)
    logger.debug("reviewed", extra={"steps": len(steps), "warnings": count})
    result = ReviewResult.CHANGED if steps else ReviewResult.ALLOWED
    return admit(review.uid, steps, verdict.warnings), result, count


def _name(review: PodReview) -> str:
    """Name the pod for the log; a controller's pod has no name yet."""
    metadata = (review.pod or {}).get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    name = known.get("name") or f"{known.get('generateName') or ''}*"
    return f"{review.namespace}/{name}"


class PoolBook(Sink):
    """Keep the pool of cards, as a reflector of nodes reports them.

    Nodes change every few minutes, their cards hardly ever: the pool is summed up only
    if a change concerns it.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, PoolNode] = {}
        self._pool = UNKNOWN
        self._is_listing = True

    def pool(self) -> CardPool:
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
            self._pool = CardPool.of(self._nodes.values())


def _read(node: Json) -> tuple[str, PoolNode]:
    name = str(node["metadata"]["name"])
    try:
        return name, read_pool_node(node)
    except Malformed as error:
        # Only info: the extender, which places pods by it, warns of it.
        logger.info("node not understood", extra={"node": name, "because": str(error)})
        return name, PoolNode()
