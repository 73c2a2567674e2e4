"""What all our servers have: health, readiness, metrics, words for what goes wrong."""

import logging
from typing import Protocol

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

logger = logging.getLogger(__name__)

_OOPS = "the extender met an error of its own; its log has the details"


class Public(Protocol):
    """What everybody may look at, of any server of ours."""

    @property
    def readiness(self) -> Readiness:
        """Whether it answers."""
        ...

    @property
    def registry(self) -> CollectorRegistry:
        """Its metrics."""
        ...


def create_public_app(parts: Public) -> Flask:
    """Make the application for everybody: health, readiness and metrics."""
    app = bare_app()

    @app.get("/healthz")
    def healthz() -> Response:
        return Response("ok\n", mimetype="text/plain")

    @app.get("/readyz")
    def readyz() -> Response:
        reasons = parts.readiness.why_not()
        text = "\n".join(reasons) or "ok"
        return Response(text + "\n", 503 if reasons else 200, mimetype="text/plain")

    @app.get("/metrics")
    def metrics() -> Response:
        # Whole or not at all: half a page would look like fewer cards.
        body = b"".join(exposition(parts.registry))
        return Response(body, content_type=CONTENT_TYPE_LATEST)

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
