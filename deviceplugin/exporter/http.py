"""The exporter's HTTP answers: /metrics, /healthz and /v1/collect, from the snapshot.

BIE's edge agent reads ``GET /v1/collect`` (seed 000). It waits without a timeout, and
one answer that is not a success makes it drop all its pods. So the answer is made from
the last readings and is always a success.
"""

import gzip
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from deviceplugin.exporter.snapshot import ProcessRound, Round, Snapshot
from deviceplugin.telemetry.fields import FB_TOTAL, FB_USED, MEMORY
from gpushare.exposition import openmetrics, text

Unit = Literal["mib", "bytes"]
"""What memory is counted in; the seed does not say, its numbers look like MiB."""

_IN_A_MIB = {"mib": 1, "bytes": 1 << 20}


def collect_page(snapshot: Snapshot, node: str, unit: Unit = "mib") -> dict[str, Any]:
    """Return the body: under the node's name its cards, by index, and their sums.

    A card whose memory in use is unknown is left out of everything: counted as unused
    it would look free. ``percent`` is a fraction, of the node by its sums.
    """
    known = [
        (used * _IN_A_MIB[unit], total * _IN_A_MIB[unit])
        for used, total in _cards(snapshot)
    ]
    sums = (sum(used for used, _ in known), sum(total for _, total in known))
    body: dict[str, Any] = {
        "deviceNum": len(known),
        "devices": [_memory(one) for one in known],
    }
    return {node: body | _memory(sums)}


def _cards(snapshot: Snapshot) -> Iterator[tuple[int, int]]:
    """Return used and total MiB of each card that told them."""
    found = snapshot.rounds.get(MEMORY)
    if found is None or snapshot.found is None:
        return
    for card in sorted(snapshot.found.cards, key=lambda card: card.index):
        says = found.cards.get(card.uuid)
        used = None if says is None else says.values.get(FB_USED)
        if says is not None and used is not None:
            yield int(used), int(says.values.get(FB_TOTAL, card.memory_mib))


def _memory(pair: Sequence[int]) -> dict[str, Any]:
    used, total = pair
    percent = used / total if total else 0.0
    return {"percent": percent, "totalMemory": total, "usedMemory": used}


_OPENMETRICS = "application/openmetrics-text"
_OURS = frozenset({_OPENMETRICS, "text/plain", "text/*", "*/*"})
_JSON = "application/json"
_FAST = 1
"""gzip's level: its best takes as long as the page itself, for a tenth less."""
_FRONT = b"gpushare exporter: /metrics, /healthz, /v1/collect\n"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked; names of headers in small letters."""

    path: str
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


def served_by(pages: Callable[[Request], Response]) -> WSGIApplication:
    """Make the application that answers with these pages."""

    def application(environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        query = parse_qs(environ["QUERY_STRING"])
        said = pages(Request(environ["PATH_INFO"], query, headers))
        content_type = ("Content-Type", said.content_type)
        start(
            f"{said.status} {said.status.phrase}",
            [content_type, *said.headers.items()],
        )
        return [said.body]

    return application


@dataclass(frozen=True, slots=True)
class ExporterPages:
    """The pages; ``metrics`` and ``troubles`` are the exposition's."""

    node: str
    unit: Unit
    snapshot: Callable[[], Snapshot]
    metrics: Collector
    troubles: Callable[[], Mapping[str, str]]

    def every(self, request: Request) -> Response:
        """Answer where Prometheus, probes and people ask."""
        match request.path:
            case "/metrics":
                return self._metrics(request)
            case "/healthz":
                return self._healthz()
            case "/":
                return Response(_FRONT)
            case _:
                return self.collect_alone(request)

    def collect_alone(self, request: Request) -> Response:
        """Answer where the edge agent asks, for ``/v1/collect`` and nothing else."""
        if request.path != "/v1/collect":
            return Response(b"not found\n", status=HTTPStatus.NOT_FOUND)
        return _json(collect_page(self.snapshot(), self.node, self.unit))

    def _metrics(self, request: Request) -> Response:
        # By its own rules for what is asked; the writing is ours.
        preferred = _preferred(request.headers.get("accept", ""))
        _, content_type = choose_encoder(preferred)
        metrics = self.metrics.collect()
        if names := request.query.get("name[]"):
            metrics = _only(frozenset(names), metrics)
        write = openmetrics if content_type.startswith(_OPENMETRICS) else text
        body = b"".join(write(metrics))
        headers = {"Vary": "Accept, Accept-Encoding"}
        if gzip_accepted(request.headers.get("accept-encoding", "")):
            body = gzip.compress(body, _FAST)
            headers["Content-Encoding"] = "gzip"
        return Response(body, content_type, headers=headers)

    def _healthz(self) -> Response:
        now, seen = time.time(), self.snapshot()
        rounds: dict[str, Round | ProcessRound] = {**seen.rounds}
        if seen.processes is not None:
            rounds["processes"] = seen.processes
        page = {
            "node": self.node,
            "driver": seen.driver_version,
            "cards": 0 if seen.found is None else len(seen.found.cards),
            "no_cards": seen.no_cards,
            "troubles": dict(self.troubles()),
            "groups": {name: _round(one, now) for name, one in sorted(rounds.items())},
        }
        return _json(page)


def _preferred(accept: str) -> str:
    """Return the entry of an Accept header that we can meet with the highest ``q``.

    Of equal ones the first; empty if there is none. ``choose_encoder`` itself takes
    the first that it knows, whatever its ``q``.
    """
    found = ("", 0.0)
    for entry in accept.split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        if kind.lower() in _OURS and (weight := _weight(parameters)) > found[1]:
            found = entry, weight
    return found[0]


def _weight(parameters: Iterable[str]) -> float:
    for name, _, value in (one.partition("=") for one in parameters):
        if name.strip().lower() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _only(names: frozenset[str], metrics: Iterable[Metric]) -> Iterator[Metric]:
    """Return only the samples of these names."""
    for metric in metrics:
        if kept := [one for one in metric.samples if one.name in names]:
            only = Metric(metric.name, metric.documentation, metric.type)
            only.samples = kept
            yield only


def _round(one: Round | ProcessRound, now: float) -> dict[str, object]:
    return {
        "age_s": round(max(0.0, now - one.at), 3),
        "took_s": round(one.took_s, 3),
        "failure": one.failure,
        "failed_cards": {
            uuid: says.failure for uuid, says in one.cards.items() if says.failure
        },
    }


def _json(page: object) -> Response:
    return Response(json.dumps(page).encode() + b"\n", _JSON)
