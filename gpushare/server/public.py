"""Serve what the HTTP servers of this package have in common.

That is health, readiness and metrics, and JSON for errors.
"""

import logging
import math
import time
import zlib
from collections.abc import Callable, Mapping
from threading import Lock

import orjson
from flask import Flask, Response, request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from werkzeug.exceptions import HTTPException

from gpushare.kube.json_reader import Malformed
from gpushare.kube.reflector import Readiness
from gpushare.server import exposition

logger = logging.getLogger(__name__)

JSON = "application/json"
FRESH_S = 1.0
"""How long a rendered page of metrics is served."""
PAUSE_S = 0.0001
"""For other threads, between small parts of long work."""
_GZIP = 31
"""What zlib calls the format of gzip, with its largest window."""
INTERNAL_ERROR = "internal error in the vcuda extender; its log has the details"


class MetricsPage:
    """The page of metrics, rendered once for all who ask within a second.

    Anybody can ask for it. That of 80,000 cards is 34 MiB and is kept compressed, as
    Prometheus reads it. No other thread waits for long while it is rendered: it comes
    in small pieces, and compressing one releases the interpreter's lock.
    """

    def __init__(
        self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._lock = Lock()
        self._packed = b""
        self._size = 0
        self._until = -math.inf

    def text(self) -> bytes:
        """Return the page; callers wait while it is rendered."""
        packed, size = self._newest()
        return zlib.decompress(packed, _GZIP, size)

    def packed(self) -> bytes:
        """Return the page compressed by gzip; callers wait likewise."""
        return self._newest()[0]

    def _newest(self) -> tuple[bytes, int]:
        with self._lock:
            if self._clock() >= self._until:
                # Never half a page: it would look as if there were fewer cards.
                self._packed, self._size = self._rendered()
                self._until = self._clock() + FRESH_S
            return self._packed, self._size

    def _rendered(self) -> tuple[bytes, int]:
        packer = zlib.compressobj(zlib.Z_BEST_SPEED, zlib.DEFLATED, _GZIP)
        packed, size = [], 0
        for piece in exposition.write_text(self._registry.collect()):
            packed.append(packer.compress(piece))
            size += len(piece)
            # Without it a thread that wants to run may wait 5 ms, and again.
            time.sleep(PAUSE_S)
        packed.append(packer.flush())
        return b"".join(packed), size


def create_public_app(
    readiness: Readiness,
    metrics: MetricsPage,
) -> Flask:
    """Make the application for everybody: health, readiness and metrics."""
    app = create_readiness_app(readiness)

    @app.get("/healthz")
    def healthz() -> Response:
        return Response("ok\n", mimetype="text/plain")

    @app.get("/metrics")
    def shown() -> Response:
        answer = Response(content_type=CONTENT_TYPE_LATEST)
        answer.vary.add("Accept-Encoding")
        if request.accept_encodings["gzip"]:
            answer.data, answer.content_encoding = metrics.packed(), "gzip"
        else:
            answer.data = metrics.text()
        return answer

    return app


def create_readiness_app(readiness: Readiness) -> Flask:
    """Make an application that says whether it is ready, and why not."""
    app = create_bare_app()

    @app.get("/readyz")
    def readyz() -> Response:
        reasons = readiness.why_not()
        text = "\n".join(reasons or ["ok", *readiness.notes().values()])
        return Response(text + "\n", 503 if reasons else 200, mimetype="text/plain")

    return app


def create_bare_app() -> Flask:
    """Make an application that has nothing yet but answers to errors."""

    def failed(error: Exception) -> Response:
        status, body = answer_error(error, request.path)
        return Response(body, status, content_type=JSON)

    app = Flask("extender")
    app.register_error_handler(Exception, failed)
    return app


def answer_error(
    error: Exception, path: str, internal: bytes | None = None
) -> tuple[int, bytes]:
    """Return status and body for what an answer raised; log what is not the client's.

    ``internal`` is the body for status 200 where the caller expects an unexpected
    exception inside an ordinary answer; elsewhere it is a 500.
    """
    if isinstance(error, Malformed):
        # No component of Kubernetes sends such a request.
        logger.warning("request not understood", extra={"because": str(error)})
        return 400, orjson.dumps({"error": str(error), "field": error.field})
    if isinstance(error, HTTPException):
        text = f"{error.name}: {error.description}"
        return error.code or 500, orjson.dumps({"error": text})
    logger.error("internal error", exc_info=error, extra={"path": path})
    if internal is not None:
        return 200, internal
    return 500, orjson.dumps({"error": INTERNAL_ERROR})


def json_response(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with JSON that is written already."""
    return Response(body, content_type=JSON, headers=dict(headers or {}))
