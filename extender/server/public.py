"""What all our servers have: health, readiness, metrics, words for what goes wrong.

Whether the ledger can be trusted, and in words why not.

A shorter way than Flask's for requests as Kubernetes itself writes them.

Matching a route, a request and a response object cost as much as most answers. Whatever
is written otherwise goes the long way, and so does every error.

/metrics as text, a family at a time.

As Prometheus' client writes it. But a gauge of each card of a large cluster is 80,000
lines: six of them as objects at once were 150 MiB that the process never gave back, and
by the client's own writer Prometheus gave up before the page was whole. So such a gauge
has no objects for its lines, and its labels are written once for all six. Gauges have
no timestamps here, and plain names.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Protocol, Self
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import orjson
from flask import Flask, Response, request
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString
from werkzeug.exceptions import HTTPException

from extender.scheduling import wire
from extender.scheduling.wire import FilterResult
from gpushare.kube.json_reader import Malformed
from gpushare.kube.names import EXTENDER_PREFIX
from gpushare.kube.reflector import Reflector


@dataclass(frozen=True, slots=True)
class Readiness:
    """Ready when every reflector has synced and been heard from lately."""

    reflectors: tuple[tuple[str, Reflector], ...]
    stale_after_s: float

    def why_not(self) -> list[str]:
        """Give a sentence for each reason not to answer; none when ready."""
        reasons = []
        for name, reflector in self.reflectors:
            age_s = reflector.age_s()
            if not reflector.synced.is_set():
                reasons.append(f"{name} have not been listed yet")
            elif age_s is None or age_s > self.stale_after_s:
                reasons.append(
                    f"nothing heard of {name} for {age_s or 0:.0f} s; "
                    "is the API server reachable?"
                )
        return reasons

    def ages_s(self) -> dict[str, float]:
        """Give the seconds since each reflector last heard something."""
        ages = {name: reflector.age_s() for name, reflector in self.reflectors}
        return {name: age_s for name, age_s in ages.items() if age_s is not None}


JSON = "application/json"
MOST_BYTES = 8 << 20
"""Of one request; 10,000 names and the largest pod are under 3 MiB."""
_MOST_DIGITS = 10
_UNHEARD = {"HTTP_TRANSFER_ENCODING", "HTTP_EXPECT"}
"""Of requests whose body has not come: ``extender.server.workers`` waits for none."""

Answer = Callable[[bytes], bytes]


def anybody(_environ: WSGIEnvironment) -> bool:
    """Let every request take the short way."""
    return True


def shortened(
    app: Flask,
    answers: Mapping[str, Answer],
    welcome: Callable[[WSGIEnvironment], bool] = anybody,
) -> WSGIApplication:
    """Answer a plain POST to one of these paths at once, and leave the rest to Flask.

    Flask is to know the same paths. ``welcome`` tells which requests it need not see.
    What an answer raises is said as Flask's own error handlers would.
    """

    def application(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        answer, length = answers.get(environ["PATH_INFO"]), plain_length(environ)
        if answer is None or length is None or not welcome(environ):
            return app(environ, start)
        # Who hangs up in the middle is no error of ours: gunicorn takes it from here.
        asked = environ["wsgi.input"].read(length)
        try:
            said = answer(asked)
        except Exception as error:  # noqa: BLE001
            with app.request_context(environ):
                wrong = app.make_response(app.handle_user_exception(error))
                return wrong(environ, start)
        start("200 OK", [("Content-Type", JSON), ("Content-Length", str(len(said)))])
        return [said]

    return application


def plain_length(environ: WSGIEnvironment) -> int | None:
    """Give the body's length where a request is as Kubernetes writes it, else None."""
    plain = environ["REQUEST_METHOD"] == "POST" and environ.get("CONTENT_TYPE") == JSON
    length = environ.get("CONTENT_LENGTH") or ""
    whole = not environ.keys() & _UNHEARD
    if not (plain and whole and length.isdigit()) or len(length) > _MOST_DIGITS:
        return None
    return int(length) if int(length) <= MOST_BYTES else None


_LINES = 200
"""Written at a time: a third of a millisecond, which others wait for."""
Values = Callable[[], Iterable[float]]
_number: Callable[[float], str] = floatToGoString
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Families(Protocol):
    """A registry, or whoever else has families of metrics."""

    def collect(self) -> Iterable[Metric]:
        """Give them."""
        ...


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of one line in each of several gauges, and as they are written there."""

    by_name: Mapping[str, str]
    text: str

    @classmethod
    def of(cls, **by_name: str) -> Self:
        """Write them down once."""
        return cls(by_name, _written(by_name))


class LargeGauge(Metric):
    """A gauge with a line for each of many labels, made only as it is written.

    Whoever looks for samples finds them as in any other.
    """

    def __init__(
        self, name: str, documentation: str, labels: Sequence[Labels], values: Values
    ) -> None:
        # Not the parent's, which would have a list of samples.
        self.name, self.documentation = name, documentation
        self.type, self.unit = "gauge", ""
        self._labels, self._values = labels, values

    @property
    def samples(self) -> list[Sample]:  # type: ignore[override]
        """Make all at once; for a look at a few."""
        pairs = zip(self._labels, self._values(), strict=True)
        return [Sample(self.name, dict(each.by_name), value) for each, value in pairs]

    def lines(self) -> Iterator[str]:
        """Write line by line."""
        for each, value in zip(self._labels, self._values(), strict=True):
            yield f"{self.name}{each.text} {_number(value)}\n"


def exposition(families: Families) -> Iterator[bytes]:
    """Write all families in Prometheus' text format, piece by piece."""
    for family in families.collect():
        if family.type == "gauge":
            yield from _gauge(family)
        else:
            yield generate_latest(_Alone(family))


class _Alone(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def _gauge(family: Metric) -> Iterator[bytes]:
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {family.name} {text}\n# TYPE {family.name} gauge\n".encode()
    if isinstance(family, LargeGauge):
        lines = family.lines()
    else:
        lines = map(_line, family.samples)
    while some := "".join(islice(lines, _LINES)):
        yield some.encode()


def _line(sample: Sample) -> str:
    labels = _written(sample.labels) if sample.labels else ""
    return f"{sample.name}{labels} {_number(sample.value)}\n"


def _written(labels: Mapping[str, str]) -> str:
    pairs = (f'{k}="{v.translate(_ESCAPES)}"' for k, v in sorted(labels.items()))
    return "{" + ",".join(pairs) + "}"


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
