"""Serve kube-scheduler's calls and the pages that an operator reads.

Whoever reaches the calls can bind pods, so this listener is on loopback, or wants a
client's certificate. Health and metrics, which are read-only, have a second listener
(``public``), since Prometheus cannot reach loopback.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import Any

import orjson
from flask import Response, request
from prometheus_client import CollectorRegistry, Counter, Histogram
from werkzeug.exceptions import BadRequest, MisdirectedRequest

from extender.scheduling import wire
from extender.scheduling.bind import Binder, BindOutcome, BindResult
from extender.scheduling.service import SchedulingVerbs
from extender.scheduling.wire import FilterResult
from extender.server.ui import ExtenderPage
from gpushare.domain.model import clean_text
from gpushare.kube.names import EXTENDER_PREFIX
from gpushare.kube.reflector import Readiness
from gpushare.logs import about
from gpushare.server.asgi import Application, PostHandler, PostsAndPages, in_thread
from gpushare.server.page_policy import STATE_HEADERS
from gpushare.server.public import (
    INTERNAL_ERROR,
    MetricsPage,
    create_public_app,
    json_response,
)

logger = logging.getLogger(__name__)

_HOST = re.compile(r"(?:\[([^]]+)\]|([^:]+))(?::\d*)?", re.ASCII)
"""An address in brackets or a name, and a port or none."""
_LOCALHOST = "localhost"
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 4, 10)
_INVALID = "Invalid vcuda request"
_WAITS = 4
"""Filters, and preemptions, that wait at a time."""


class VerbMetrics:
    """Count and time kube-scheduler's calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "vcuda_extender_request_seconds",
            "Time to answer one call of kube-scheduler.",
            ["verb"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._refusals = Counter(
            "vcuda_extender_refusals",
            "Nodes refused by filter, by the reason that the event shows.",
            ["reason"],
            registry=registry,
        )
        self._binds = Counter(
            "vcuda_extender_binds",
            "Binds by outcome; conflict: the card was taken since filter.",
            ["outcome"],
            registry=registry,
        )
        for outcome in BindOutcome:
            self._binds.labels(outcome.value)

    def timed(self, verb: str) -> AbstractContextManager[object]:
        """Time one call, whatever comes of it."""
        return self._seconds.labels(verb).time()

    def filtered(self, result: FilterResult) -> None:
        """Count a filter's refusals."""
        for reason, names in result.reasons.items():
            # A user's own words would make a series each.
            label = _INVALID if reason.startswith(_INVALID) else reason
            self._refusals.labels(label).inc(len(names))

    def bound(self, bound: BindResult) -> None:
        """Count a bind."""
        self._binds.labels(bound.outcome.value).inc()


@dataclass(frozen=True, slots=True)
class VerbThreads:
    """Where calls wait, each kind in threads of its own.

    So a bind does not queue behind a list of budgets, and no filter behind a bind.
    """

    binds: Executor
    filters: Executor
    preemptions: Executor

    @classmethod
    def of(cls, binds: int) -> "VerbThreads":
        """Make threads for so many binds at a time; they start when needed."""
        return cls(
            ThreadPoolExecutor(binds, "bind"),
            ThreadPoolExecutor(_WAITS, "filter"),
            ThreadPoolExecutor(_WAITS, "preempt"),
        )


@dataclass(frozen=True, slots=True)
class ExtenderParts:
    """What the views need."""

    verbs: SchedulingVerbs
    binder: Binder
    readiness: Readiness
    metrics: VerbMetrics
    metrics_page: MetricsPage
    snapshot: Callable[[], dict[str, Any]]
    threads: VerbThreads
    page: ExtenderPage | None = None
    """None where it is switched off."""
    tls: bool = False
    """Whether the listener wants a client's certificate."""


def create_app(parts: ExtenderParts) -> Application:
    """Make the application of the inner listener: verbs, pages, and the public rest."""
    app = create_public_app(parts.readiness, parts.metrics_page)
    insist = _accept_any_name if parts.tls else _insist_on_local_name
    app.before_request(lambda: insist(request.environ.get("HTTP_HOST", "")))

    @app.get("/snapshot")
    def snapshot() -> Response:
        return json_response(orjson.dumps(parts.snapshot()))

    if page := parts.page:

        @app.get("/")
        def root() -> Response:
            return Response(status=302, headers={"Location": "/ui"})

        @app.get("/ui")
        def ui() -> Response:
            return Response(page.html, headers=dict(page.headers))

        @app.get("/ui/state")
        def ui_state() -> Response:
            return json_response(orjson.dumps(page.state()), STATE_HEADERS)

    answers: dict[str, PostHandler] = {
        f"{EXTENDER_PREFIX}/{verb}": partial(_timed, parts, verb, view)
        for verb, view in _VIEWS.items()
    }
    failed = FilterResult(error=INTERNAL_ERROR)
    internal_errors = {
        f"{EXTENDER_PREFIX}/filter": wire.write_filter_reply(failed),
        f"{EXTENDER_PREFIX}/bind": wire.write_bind_reply(INTERNAL_ERROR),
    }
    return PostsAndPages(app, answers, insist=insist, internal_errors=internal_errors)


@lru_cache(maxsize=64)
def is_local(host: str) -> bool:
    """Tell whether a ``Host`` header names this machine.

    A web page from elsewhere can have its own name resolve to this machine by DNS, and
    then read in a browser here what this server answers. The browser sends that name.
    True for any address, since no name was resolved for it; for ``localhost``; and
    where there is no header, as in HTTP/1.0.

    >>> is_local("127.0.0.1:39999"), is_local("[::1]:39999"), is_local("a.example")
    (True, True, False)
    """
    parts = _HOST.fullmatch(host)
    if parts is None:
        return not host
    address, name = parts[1], (parts[2] or "").lower().removesuffix(".")
    if name == _LOCALHOST or name.endswith(f".{_LOCALHOST}"):
        return True
    try:
        ip_address(address or name)
    except ValueError:
        return False
    return True


def _accept_any_name(_host: str) -> None:
    """Accept what has shown a certificate.

    kube-scheduler may call by any name in the server's certificate. The settings say
    whether there is TLS, since a page could send a header that says so.
    """


def _insist_on_local_name(host: str) -> None:
    """Refuse requests that a web page from elsewhere has a browser on this host send.

    Only without TLS: with it no client without a certificate comes this far.
    """
    if not is_local(host):
        raise MisdirectedRequest(
            f'this server answers on its own machine only, not as "{clean_text(host)}"'
            "; call it by 127.0.0.1, [::1] or localhost, as in kube-scheduler's "
            "urlPrefix"
        )


View = Callable[[ExtenderParts, bytes], Awaitable[bytes]]


async def _timed(parts: ExtenderParts, verb: str, view: View, body: bytes) -> bytes:
    with parts.metrics.timed(verb):
        return await view(parts, body)


async def _filter(parts: ExtenderParts, body: bytes) -> bytes:
    args = wire.read_extender_args(body)
    if why_not := _not_ready(parts):
        result = FilterResult(error=why_not)
    elif (at_once := parts.verbs.filter_at_once(args)) is not None:
        result = at_once
    else:
        filtered = partial(parts.verbs.filter, args)
        result = await in_thread(parts.threads.filters, filtered)
    parts.metrics.filtered(result)
    if logger.isEnabledFor(logging.DEBUG):
        counts = {"kept": len(result.kept), "refused": len(result.refused)}
        logger.debug("filtered", extra={"pod": args.pod, **counts})
    return wire.write_filter_reply(result)


async def _prioritize(parts: ExtenderParts, body: bytes) -> bytes:
    args = wire.read_extender_args(body)
    _insist_on_ready(parts)
    return wire.write_prioritize_reply(parts.verbs.prioritize(args))


async def _preempt(parts: ExtenderParts, body: bytes) -> bytes:
    args = wire.read_preemption_args(body)
    _insist_on_ready(parts)
    with about(pod=str(args.pod)):
        # It reads disruption budgets from the API server.
        preempt = partial(parts.verbs.preempt, args)
        chosen = await in_thread(parts.threads.preemptions, preempt)
        facts = {"nodes": len(args.proposals), "kept": len(chosen)}
        logger.info("preemption", extra=facts)
    return wire.write_preempt_reply(chosen)


async def _bind(parts: ExtenderParts, body: bytes) -> bytes:
    args = wire.read_binding_args(body)
    with about(pod=f"{args.namespace}/{args.name}", node=args.node):
        if why_not := _not_ready(parts):
            bound = BindResult(BindOutcome.REFUSED, why_not)
        else:
            bind = partial(parts.binder.bind, args)
            bound = await in_thread(parts.threads.binds, bind)
        parts.metrics.bound(bound)
        if bound.error:
            facts = {"outcome": bound.outcome.value, "because": bound.error}
            logger.warning("not bound", extra=facts)
    # kube-scheduler uses the text as a format string (contracts 1.6).
    return wire.write_bind_reply(bound.error.replace("%", " percent"))


_VIEWS: Mapping[str, View] = {
    "filter": _filter,
    "prioritize": _prioritize,
    "preempt": _preempt,
    "bind": _bind,
}


def _insist_on_ready(parts: ExtenderParts) -> None:
    """Refuse a verb whose answer has no ``Error`` field while the ledger is not."""
    if why_not := _not_ready(parts):
        raise BadRequest(why_not)


def _not_ready(parts: ExtenderParts) -> str:
    reasons = "; ".join(parts.readiness.why_not())
    return reasons and f"vcuda extender is not ready: {reasons}"
