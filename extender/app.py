"""The extender's HTTP: one short view per verb, and what operators look at.

Two applications in one worker. Whoever reaches the verbs can bind pods, so they listen
on loopback; Prometheus cannot reach loopback, so health and metrics, which are
read-only, have a listener of their own (``extender.public``).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import orjson
from flask import Flask, Request, Response, request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from werkzeug.exceptions import (
    BadRequest,
    HTTPException,
    MisdirectedRequest,
    UnsupportedMediaType,
)

from extender import wire
from extender.bind import Binder, Bound, Outcome
from extender.localnames import is_local
from extender.metrics import VerbMetrics
from extender.readiness import Readiness
from extender.ui import Page
from extender.verbs import Verbs
from extender.wire import FilterResult
from gpushare.domain.summary import users_words
from gpushare.kube.fields import Malformed
from gpushare.kube.names import EXTENDER_PREFIX
from gpushare.kube.pagepolicy import STATE_HEADERS
from gpushare.logs import about

logger = logging.getLogger(__name__)

MOST_BYTES = 8 << 20
"""Of one request; 10,000 names and the largest pod are under 3 MiB."""
_JSON = "application/json"
_OOPS = "the extender met an error of its own; its log has the details"

Args = TypeVar("Args")


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


@dataclass(frozen=True, slots=True)
class Parts:
    """What the views need."""

    verbs: Verbs
    binder: Binder
    readiness: Readiness
    metrics: VerbMetrics
    registry: CollectorRegistry
    snapshot: Callable[[], dict[str, Any]]
    page: Page | None = None
    """None where it is not wanted."""
    tls: bool = False
    """Whether the verbs want a client's certificate."""


def create_app(parts: Parts) -> Flask:
    """Make the application for loopback: verbs, /snapshot, and the read-only rest."""
    app = create_public_app(parts)
    app.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
    if not parts.tls:
        app.before_request(_insist_on_local_name)

    def serve(verb: str, view: Callable[[Parts, bytes], bytes]) -> None:
        def call() -> Response:
            with parts.metrics.timed(verb):
                return _json(view(parts, _body(request)))

        rule = f"{EXTENDER_PREFIX}/{verb}"
        app.add_url_rule(rule, verb, call, methods=["POST"])

    for verb, view in _VIEWS.items():
        serve(verb, view)

    @app.get("/snapshot")
    def snapshot() -> Response:
        return _json(orjson.dumps(parts.snapshot()))

    if parts.page:
        _show(app, parts.page)
    return app


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
        body = generate_latest(parts.registry)
        return Response(body, content_type=CONTENT_TYPE_LATEST)

    return app


def bare_app() -> Flask:
    """Make an application that has nothing yet but words for what goes wrong."""
    app = Flask("extender")
    app.register_error_handler(Malformed, malformed)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _surprise)
    return app


def _insist_on_local_name() -> None:
    """Refuse what a web page from elsewhere has a browser on this host ask for.

    Not with TLS: then who has no client's certificate has not come this far, and
    kube-scheduler may call by any name that the server's certificate has. Whether there
    is TLS the settings say, since a header of the page's own may say so too.
    """
    host = request.environ.get("HTTP_HOST", "")
    if is_local(host):
        return
    raise MisdirectedRequest(
        f'this server is for its own machine alone, and no "{users_words(host)}"; call '
        "it by 127.0.0.1, [::1] or localhost, as in kube-scheduler's urlPrefix"
    )


def _show(app: Flask, page: Page) -> None:
    """Serve the page for a browser, and what it shows."""

    @app.get("/ui")
    def ui() -> Response:
        return Response(page.html, headers=dict(page.headers))

    @app.get("/ui/state")
    def ui_state() -> Response:
        body = orjson.dumps(page.state())
        return Response(body, content_type=_JSON, headers=dict(STATE_HEADERS))


def _filter(parts: Parts, body: bytes) -> bytes:
    args = wire.extender_args(body)
    reasons = parts.readiness.why_not()
    with about(pod=str(args.pod)):
        if reasons:
            result = FilterResult(error=_not_ready(reasons))
        else:
            result = parts.verbs.filter(args)
        parts.metrics.filtered(result)
        facts = {"kept": len(result.kept), "refused": len(result.refused or ())}
        logger.debug("filtered", extra=facts)
    return wire.filter_reply(result)


def _prioritize(parts: Parts, body: bytes) -> bytes:
    args = wire.extender_args(body)
    _insist_on_ready(parts)
    return wire.prioritize_reply(parts.verbs.prioritize(args))


def _preempt(parts: Parts, body: bytes) -> bytes:
    args = wire.preemption_args(body)
    _insist_on_ready(parts)
    with about(pod=str(args.pod)):
        chosen = parts.verbs.preempt(args)
        facts = {"nodes": len(args.proposals), "kept": len(chosen)}
        logger.info("preemption", extra=facts)
    return wire.preempt_reply(chosen)


def _bind(parts: Parts, body: bytes) -> bytes:
    args = wire.binding_args(body)
    reasons = parts.readiness.why_not()
    with about(pod=f"{args.namespace}/{args.name}", node=args.node):
        if reasons:
            bound = Bound(Outcome.REFUSED, _not_ready(reasons))
        else:
            bound = parts.binder.bind(args)
        parts.metrics.bound(bound)
        if bound.error:
            facts = {"outcome": bound.outcome.value, "because": bound.error}
            logger.warning("not bound", extra=facts)
    # kube-scheduler takes the text for a format (contracts 1.6).
    return wire.bind_reply(bound.error.replace("%", " percent"))


_VIEWS: Mapping[str, Callable[[Parts, bytes], bytes]] = {
    "filter": _filter,
    "prioritize": _prioritize,
    "preempt": _preempt,
    "bind": _bind,
}


def _insist_on_ready(parts: Parts) -> None:
    """Refuse a verb that has no ``Error`` to say it in, until the books are whole."""
    if reasons := parts.readiness.why_not():
        raise BadRequest(_not_ready(reasons))


def _not_ready(reasons: list[str]) -> str:
    return "vcuda extender is not ready: " + "; ".join(reasons)


def _body(incoming: Request) -> bytes:
    """Read what kube-scheduler sends.

    A web page in a browser on this host can make one send a POST here, but not of this
    type: for that the browser would first ask us whether it may.
    """
    if incoming.mimetype != _JSON:
        raise UnsupportedMediaType(f"Content-Type must be {_JSON}")
    return incoming.get_data(cache=False)


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, content_type=_JSON)


def malformed(error: Malformed) -> Response:
    """Say what is wrong with a request, and log it: nobody of ours sends such a one."""
    logger.warning("request not understood", extra={"because": str(error)})
    return _json(orjson.dumps({"error": str(error), "field": error.field}), 400)


def _http(error: HTTPException) -> Response:
    text = f"{error.name}: {error.description}"
    return _json(orjson.dumps({"error": text}), error.code or 500)


def _surprise(error: Exception) -> Response:
    """Answer a bug of ours: as an ``Error`` where the verb has one, else as a 500."""
    logger.error("surprise", exc_info=error, extra={"path": request.path})
    if request.path == f"{EXTENDER_PREFIX}/filter":
        return _json(wire.filter_reply(FilterResult(error=_OOPS)))
    if request.path == f"{EXTENDER_PREFIX}/bind":
        return _json(wire.bind_reply(_OOPS))
    return _json(orjson.dumps({"error": _OOPS}), 500)
