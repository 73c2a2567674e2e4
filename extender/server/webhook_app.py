"""The webhook's HTTP: reviews of new pods for the API server, over TLS.

It keeps nothing between two reviews but the pool of cards, which a thread of its own
follows: as many replicas as one wishes answer alike.

What the API server says of nodes, kept as far as the webhook's rules need it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock
from wsgiref.types import WSGIApplication

from flask import Response, request
from werkzeug.exceptions import (
    ExpectationFailed,
    HTTPException,
    LengthRequired,
    UnsupportedMediaType,
)

from extender.jsonpatch import patch_between
from extender.pool import UNKNOWN, NodeFacts, Pool, node_facts
from extender.server.metrics import PathMetrics, Result, ReviewMetrics
from extender.server.public import (
    JSON,
    MOST_BYTES,
    Answer,
    MetricsPage,
    Readiness,
    bare_app,
    shortened,
)
from extender.webhook.review import Question, allowed, denied, question
from extender.webhook.rules import Rules, review
from gpushare.kube.cluster import Json, Page, WatchEvent
from gpushare.kube.json_reader import Malformed
from gpushare.logs import about

logger = logging.getLogger(__name__)

_OOPS = (
    "the webhook of vcuda met an error of its own, and turned the pod away; the log of "
    "gpushare-webhook in kube-system has the details"
)


@dataclass(frozen=True, slots=True)
class Path:
    """How the reviews of one path are judged."""

    mutating: bool
    mode: str = ""
    """How pods for Bitfusion that say nothing of it themselves are translated."""


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
    """Make the application for the API server: reviews and nothing else.

    A request as an API server writes it is answered without Flask (``shortcut``).
    """
    app = bare_app()
    app.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
    reviews: dict[str, Answer] = {}
    for rule, path in PATHS.items():
        metrics = parts.metrics.of(rule)
        reviews[rule] = partial(_timed, parts, metrics, path)
        by_flask = partial(_by_flask, reviews[rule], metrics)
        app.add_url_rule(rule, rule, by_flask, methods=["POST"])

    return shortened(app, reviews)


def _by_flask(review: Answer, metrics: PathMetrics) -> Response:
    try:
        _insist_on_whole_body()
        if request.mimetype != JSON:
            raise UnsupportedMediaType(f"Content-Type must be {JSON}")
        body = request.get_data(cache=False)
    except HTTPException:
        metrics.reviewed(Result.MALFORMED)
        raise
    return Response(review(body), content_type=JSON)


def _insist_on_whole_body() -> None:
    """Refuse bodies that come otherwise than whole, with their length before them."""
    if "Transfer-Encoding" in request.headers:
        raise LengthRequired("send a Content-Length; bodies in chunks are not read")
    if "Expect" in request.headers:
        raise ExpectationFailed("send the body at once, without Expect")


def _timed(parts: WebhookParts, metrics: PathMetrics, path: Path, body: bytes) -> bytes:
    with metrics.timed():
        return _answered(parts, metrics, path, body)


def _answered(
    parts: WebhookParts, metrics: PathMetrics, path: Path, body: bytes
) -> bytes:
    """Answer one review; whatever goes wrong with its pod is an answer too."""
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
            answer, result, warnings = _judged(parts, path, asked, asked.pod)
        except Exception:
            # Not a 500: of that the API server tells people nothing but the number.
            logger.exception("surprise")
            answer, result, warnings = denied(asked.uid, [_OOPS]), Result.FAILED, 0
    metrics.reviewed(result, warnings)
    return answer


def _judged(
    parts: WebhookParts, path: Path, asked: Question, pod: dict[str, object]
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
    """Name the pod for the log; a controller's has no name of its own yet."""
    metadata = (asked.pod or {}).get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    name = known.get("name") or f"{known.get('generateName') or ''}*"
    return f"{asked.namespace}/{name}"


class PoolBook:
    """Sink for nodes: what each adds to the pool, and the pool that they make.

    Nodes say something every few minutes, their cards next to never: the pool is summed
    up only when what it is made of has changed.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeFacts] = {}
        self._pool = UNKNOWN
        self._lock = Lock()

    def pool(self) -> Pool:
        """Give the cluster's cards as last heard; ``UNKNOWN`` before the first list."""
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
        # The extender, which shares out the cards, makes a noise of it.
        logger.info("node not understood", extra={"node": name, "because": str(error)})
        return name, NodeFacts()
