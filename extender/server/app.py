"""The extender's HTTP: one short view per verb, and what operators look at.

Two applications in one worker. Whoever reaches the verbs can bind pods, so they listen
on loopback; Prometheus cannot reach loopback, so health and metrics, which are
read-only, have a listener of their own (``publicapp``, ``gpushare.listener``).

By which names a server for this machine alone is called. Pure.

A web page of anybody's can have its own name mean this machine, by DNS, and then read
in a browser here what the server says: to the browser it is the page's own server. It
cannot keep the browser from sending that name along.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any
from wsgiref.types import WSGIApplication, WSGIEnvironment

import orjson
from flask import Flask, Request, Response, request
from werkzeug.exceptions import BadRequest, MisdirectedRequest, UnsupportedMediaType

from extender.scheduling import wire
from extender.scheduling.bind import Binder, Bound, Outcome
from extender.scheduling.service import Verbs
from extender.scheduling.wire import FilterResult
from extender.server.metrics import VerbMetrics
from extender.server.public import (
    JSON,
    MOST_BYTES,
    Answer,
    MetricsPage,
    Readiness,
    anybody,
    create_public_app,
    json_response,
    shortened,
)
from extender.server.ui import Page
from gpushare.domain.refusal import users_words
from gpushare.kube.names import EXTENDER_PREFIX
from gpushare.logs import about
from gpushare.page_policy import STATE_HEADERS

_HOST = re.compile(r"(?:\[([^]]+)\]|([^:]+))(?::\d*)?", re.ASCII)
"""An address in brackets or a name, and a port or none."""
_LOCALHOST = "localhost"


def is_local(host: str) -> bool:
    """Tell whether a ``Host`` header can be one of somebody who means this machine.

    True for addresses, whichever, since no name was asked for; for ``localhost``, which
    means this machine everywhere; and where there is none, as in HTTP/1.0.

    >>> is_local("127.0.0.1:39999"), is_local("[::1]:39999"), is_local("a.example")
    (True, True, False)
    """
    parts = _HOST.fullmatch(host)
    if parts is None:
        return not host
    address, name = parts[1], (parts[2] or "").lower().removesuffix(".")
    if name == _LOCALHOST or name.endswith(f".{_LOCALHOST}"):
        return True
    return _is_address(address or name)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the views need."""

    verbs: Verbs
    binder: Binder
    readiness: Readiness
    metrics: VerbMetrics
    metrics_page: MetricsPage
    snapshot: Callable[[], dict[str, Any]]
    page: Page | None = None
    """None where it is not wanted."""
    tls: bool = False
    """Whether the verbs want a client's certificate."""


View = Callable[[Parts, bytes], bytes]


def create_app(parts: Parts) -> WSGIApplication:
    """Make the application for loopback: verbs, /snapshot, and the read-only rest.

    A call as kube-scheduler writes it is answered without Flask (``shortcut``).
    """
    app = create_public_app(parts.readiness, parts.metrics_page)
    app.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
    if not parts.tls:
        app.before_request(_insist_on_local_name)
    answers: dict[str, Answer] = {}
    for verb, view in _VIEWS.items():
        rule = f"{EXTENDER_PREFIX}/{verb}"
        answers[rule] = partial(_timed, parts, verb, view)
        by_flask = partial(_by_flask, parts, verb, view)
        app.add_url_rule(rule, verb, by_flask, methods=["POST"])

    @app.get("/snapshot")
    def snapshot() -> Response:
        return json_response(orjson.dumps(parts.snapshot()))

    if parts.page:
        _show(app, parts.page)
    return shortened(app, answers, anybody if parts.tls else _by_local_name)


def _timed(parts: Parts, verb: str, view: View, body: bytes) -> bytes:
    with parts.metrics.timed(verb):
        return view(parts, body)


def _by_flask(parts: Parts, verb: str, view: View) -> Response:
    with parts.metrics.timed(verb):
        return json_response(view(parts, _body(request)))


def _by_local_name(environ: WSGIEnvironment) -> bool:
    return is_local(environ.get("HTTP_HOST", ""))


def _insist_on_local_name() -> None:
    """Refuse what a web page from elsewhere has a browser on this host ask for.

    Not with TLS: then who has no client's certificate has not come this far, and
    kube-scheduler may call by any name that the server's certificate has. Whether there
    is TLS the settings say, since a header of the page's own may say so too.
    """
    if _by_local_name(request.environ):
        return
    host = request.environ.get("HTTP_HOST", "")
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
        return Response(body, content_type=JSON, headers=dict(STATE_HEADERS))


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


_VIEWS: Mapping[str, View] = {
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
    if incoming.mimetype != JSON:
        raise UnsupportedMediaType(f"Content-Type must be {JSON}")
    return incoming.get_data(cache=False)
