"""Serve what the HTTP servers of this package have in common.

That is health, readiness and metrics, JSON for errors, and ``posts``: a shorter way
than Flask's for requests as Kubernetes writes them. Matching a route and making a
request and a response object cost as much as most answers. All other requests, and all
errors, go through Flask.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import orjson
from flask import Flask, Response, request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from werkzeug.exceptions import (
    ExpectationFailed,
    HTTPException,
    LengthRequired,
    UnsupportedMediaType,
)

from gpushare import exposition
from gpushare.kube.json_reader import Malformed
from gpushare.kube.reflector import Reflector

logger = logging.getLogger(__name__)

JSON = "application/json"
MOST_BYTES = 8 << 20
"""Of one request; 10,000 names and the largest pod are under 3 MiB."""
FRESH_S = 1.0
"""How long a rendered page of metrics is served."""
_PAUSE_S = 0.0001
_MOST_DIGITS = 10
_BODY_COMES_LATER = {"HTTP_TRANSFER_ENCODING", "HTTP_EXPECT"}
"""Fields of requests whose body ``extender.server.workers`` does not wait for."""
INTERNAL_ERROR = "internal error in the vcuda extender; its log has the details"

Answer = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether every reflector has synced and heard from the API server lately."""

    reflectors: tuple[tuple[str, Reflector], ...]
    stale_after_s: float

    def why_not(self) -> list[str]:
        """Return a sentence for each reason not to answer; empty when ready."""
        reasons = []
        for name, reflector in self.reflectors:
            age_s = reflector.age_s()
            if not reflector.synced.is_set():
                reasons.append(f"{name} have not been listed yet")
            elif age_s is None or age_s > self.stale_after_s:
                reasons.append(
                    f"no news of {name} for {age_s or 0:.0f} s; "
                    "is the API server reachable?"
                )
        return reasons

    def ages_s(self) -> dict[str, float]:
        """Return the seconds since each reflector last heard something."""
        ages = {name: reflector.age_s() for name, reflector in self.reflectors}
        return {name: age_s for name, age_s in ages.items() if age_s is not None}


def posts(
    app: Flask,
    answers: Mapping[str, Answer],
    *,
    is_trusted: Callable[[WSGIEnvironment], bool] = lambda _environ: True,
    refused: Callable[[str], None] = lambda _path: None,
) -> WSGIApplication:
    """Answer POSTs of JSON to these paths, and leave all other requests to the app.

    ``is_trusted`` tells which requests may take the short way. ``refused`` is called
    with the path of a request whose body is not read. Errors that an answer raises
    become what the app's error handlers make of them, on both ways.
    """
    app.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
    for path, answer in answers.items():
        view = partial(_by_flask, answer, partial(refused, path))
        app.add_url_rule(path, path, view, methods=["POST"])

    def application(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        answer, length = answers.get(environ["PATH_INFO"]), plain_length(environ)
        if answer is None or length is None or not is_trusted(environ):
            return app(environ, start)
        # gunicorn handles a client that hangs up in the middle.
        body = environ["wsgi.input"].read(length)
        try:
            answered = answer(body)
        except Exception as error:  # noqa: BLE001
            with app.request_context(environ):
                response = app.make_response(app.handle_user_exception(error))
                return response(environ, start)
        size = str(len(answered))
        start("200 OK", [("Content-Type", JSON), ("Content-Length", size)])
        return [answered]

    return application


def plain_length(environ: WSGIEnvironment) -> int | None:
    """Return the body's length of a request as Kubernetes writes it, else None."""
    plain = environ["REQUEST_METHOD"] == "POST" and environ.get("CONTENT_TYPE") == JSON
    length = environ.get("CONTENT_LENGTH") or ""
    complete = not environ.keys() & _BODY_COMES_LATER
    if not (plain and complete and length.isdigit()) or len(length) > _MOST_DIGITS:
        return None
    return int(length) if int(length) <= MOST_BYTES else None


def _by_flask(answer: Answer, refused: Callable[[], None]) -> Response:
    try:
        body = _whole_json()
    except HTTPException:
        refused()
        raise
    return json_response(answer(body))


def _whole_json() -> bytes:
    """Read a body of JSON that comes with its length before it.

    A web page in a browser on this host can make one send a POST here, but not of this
    type: the browser would first ask this server whether it may.
    """
    if "Transfer-Encoding" in request.headers:
        raise LengthRequired("send a Content-Length; bodies in chunks are not read")
    if "Expect" in request.headers:
        raise ExpectationFailed("send the body at once, without Expect")
    if request.mimetype != JSON:
        raise UnsupportedMediaType(f"Content-Type must be {JSON}")
    return request.get_data(cache=False)


class MetricsPage:
    """The page of metrics, rendered once for all who ask within a second.

    Anybody can ask for it, and at 10,000 nodes it takes seconds of the processor time
    that kube-scheduler's calls need.
    """

    def __init__(
        self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._lock = Lock()
        self._page = b""
        self._until = -math.inf

    def text(self) -> bytes:
        """Return the page; callers wait while it is rendered."""
        with self._lock:
            if self._clock() >= self._until:
                # Never half a page: it would look as if there were fewer cards.
                pieces = exposition.text(self._registry.collect())
                self._page = b"".join(map(_pausing, pieces))
                self._until = self._clock() + FRESH_S
            return self._page


def _pausing(piece: bytes) -> bytes:
    """Let other threads run; each would wait 5 ms for the interpreter otherwise."""
    time.sleep(_PAUSE_S)
    return piece


def create_public_app(
    readiness: Readiness,
    metrics: MetricsPage,
    internal_errors: Mapping[str, bytes] | None = None,
) -> Flask:
    """Make the application for everybody: health, readiness and metrics."""
    app = bare_app(internal_errors)

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


def bare_app(internal_errors: Mapping[str, bytes] | None = None) -> Flask:
    """Make an application that has nothing yet but answers to errors.

    ``internal_errors`` are bodies for status 200, by path, where the caller expects an
    unexpected exception inside an ordinary answer; elsewhere it is a 500.
    """
    bodies = internal_errors or {}

    def failed(error: Exception) -> Response:
        logger.error("internal error", exc_info=error, extra={"path": request.path})
        if request.path in bodies:
            return json_response(bodies[request.path])
        return _error({"error": INTERNAL_ERROR}, 500)

    def malformed(error: Malformed) -> Response:
        # No component of Kubernetes sends such a request.
        logger.warning("request not understood", extra={"because": str(error)})
        return _error({"error": str(error), "field": error.field}, 400)

    def refused(error: HTTPException) -> Response:
        text = f"{error.name}: {error.description}"
        return _error({"error": text}, error.code or 500)

    app = Flask("extender")
    app.register_error_handler(Malformed, malformed)
    app.register_error_handler(HTTPException, refused)
    app.register_error_handler(Exception, failed)
    return app


def json_response(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with JSON that is written already."""
    return Response(body, content_type=JSON, headers=dict(headers or {}))


def _error(body: Mapping[str, str], status: int) -> Response:
    return Response(orjson.dumps(body), status, content_type=JSON)
