"""What all our servers have: health, readiness, metrics, words for what goes wrong."""

import logging
import math
import time
from collections.abc import Callable
from threading import Lock

import orjson
from flask import Flask, Response, request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from werkzeug.exceptions import HTTPException

from extender import wire
from extender.exposition import exposition
from extender.readiness import Readiness
from extender.shortcut import JSON
from extender.wire import FilterResult
from gpushare.kube.fields import Malformed
from gpushare.kube.names import EXTENDER_PREFIX

FRESH_S = 1.0
"""How long a page of metrics is given to whoever asks."""
_PAUSE_S = 0.0001
logger = logging.getLogger(__name__)

_OOPS = "the extender met an error of its own; its log has the details"


class MetricsPage:
    """The page of metrics, rendered once for all who ask within a second.

    Anybody can ask for it, and at 10,000 nodes it takes seconds of the processor time
    that kube-scheduler's calls need.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._lock = Lock()
        self._page = b""
        self._until = -math.inf

    def text(self) -> bytes:
        """Give the page; whoever asks while it is rendered waits for it."""
        with self._lock:
            if self._clock() >= self._until:
                # Whole or not at all: half a page would look like fewer cards.
                self._page = b"".join(map(_pausing, exposition(self._registry)))
                self._until = self._clock() + FRESH_S
            return self._page


def _pausing(piece: bytes) -> bytes:
    """Let others have the interpreter, who would wait 5 ms each time to be given it."""
    time.sleep(_PAUSE_S)
    return piece


def create_public_app(readiness: Readiness, metrics: MetricsPage) -> Flask:
    """Make the application for everybody: health, readiness and metrics."""
    app = bare_app()

    @app.get("/healthz")
    def healthz() -> Response:
        return Response("ok\n", mimetype="text/plain")

    @app.get("/readyz")
    def readyz() -> Response:
        reasons = readiness.why_not()
        text = "\n".join(reasons) or "ok"
        return Response(text + "\n", 503 if reasons else 200, mimetype="text/plain")

    @app.get("/metrics")
    def shown() -> Response:
        return Response(metrics.text(), content_type=CONTENT_TYPE_LATEST)

    return app


def bare_app() -> Flask:
    """Make an application that has nothing yet but words for what goes wrong."""
    app = Flask("extender")
    app.register_error_handler(Malformed, _malformed)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _surprise)
    return app


def json_response(body: bytes, status: int = 200) -> Response:
    """Answer JSON that is written already."""
    return Response(body, status, content_type=JSON)


def _malformed(error: Malformed) -> Response:
    """Say what is wrong with a request, and log it: nobody of ours sends such a one."""
    logger.warning("request not understood", extra={"because": str(error)})
    return json_response(orjson.dumps({"error": str(error), "field": error.field}), 400)


def _http(error: HTTPException) -> Response:
    text = f"{error.name}: {error.description}"
    return json_response(orjson.dumps({"error": text}), error.code or 500)


def _surprise(error: Exception) -> Response:
    """Answer a bug of ours: as an ``Error`` where the verb has one, else as a 500."""
    logger.error("surprise", exc_info=error, extra={"path": request.path})
    if request.path == f"{EXTENDER_PREFIX}/filter":
        return json_response(wire.filter_reply(FilterResult(error=_OOPS)))
    if request.path == f"{EXTENDER_PREFIX}/bind":
        return json_response(wire.bind_reply(_OOPS))
    return json_response(orjson.dumps({"error": _OOPS}), 500)
