"""The exporter's HTTP answers: /metrics, /healthz and /v1/collect, from the snapshot.

BIE's edge agent reads ``GET /v1/collect`` (seed 000). It waits without a timeout, and
one answer that is not a success makes it drop all its pods. So the answer is made from
the last readings and is always a success.
"""

import gzip
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from werkzeug.wrappers import Request, Response

from exporter.snapshot import Round, TelemetrySnapshot
from exporter.telemetry.fields import FB_TOTAL, FB_USED, MEMORY
from gpushare.server.exposition import write_openmetrics, write_text

Unit = Literal["mib", "bytes"]
"""What memory is counted in; the seed does not say, its numbers look like MiB."""

_IN_A_MIB = {"mib": 1, "bytes": 1 << 20}
_OPENMETRICS = "application/openmetrics-text"
_SUPPORTED = frozenset({_OPENMETRICS, "text/plain", "text/*", "*/*"})
_FAST = 1
"""gzip's level: its best takes as long as the page itself, for a tenth less."""


@dataclass(frozen=True, slots=True)
class ExporterPages:
    """The pages; ``metrics`` and ``troubles`` are the exposition's."""

    node: str
    unit: Unit
    snapshot: Callable[[], TelemetrySnapshot]
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
                return Response("gpushare exporter: /metrics, /healthz, /v1/collect\n")
            case _:
                return self.collect_alone(request)

    def collect_alone(self, request: Request) -> Response:
        """Answer where the edge agent asks, for ``/v1/collect`` and nothing else."""
        if request.path != "/v1/collect":
            return Response("not found\n", 404)
        return _json(collect_page(self.snapshot(), self.node, self.unit))

    def _metrics(self, request: Request) -> Response:
        # prometheus_client chooses the format; the text is written here.
        _, content_type = choose_encoder(_preferred(request))
        metrics = self.metrics.collect()
        if names := request.args.getlist("name[]"):
            metrics = _only(frozenset(names), metrics)
        write = (
            write_openmetrics if content_type.startswith(_OPENMETRICS) else write_text
        )
        answer = Response(b"".join(write(metrics)), content_type=content_type)
        answer.headers["Vary"] = "Accept, Accept-Encoding"
        if request.accept_encodings.quality("gzip"):
            answer.data = gzip.compress(answer.data, _FAST)
            answer.headers["Content-Encoding"] = "gzip"
        return answer

    def _healthz(self) -> Response:
        now, seen = time.time(), self.snapshot()
        page = {
            "node": self.node,
            "driver": seen.driver_version,
            "cards": len(seen.cards),
            "no_cards": seen.no_cards,
            "troubles": dict(self.troubles()),
            "groups": {name: _round(round_, now) for name, round_ in seen.all_rounds()},
        }
        return _json(page)


def collect_page(
    snapshot: TelemetrySnapshot, node: str, unit: Unit = "mib"
) -> dict[str, Any]:
    """Return the body: under the node's name its cards, by index, and their sums.

    A card whose memory in use is unknown is left out of everything: counted as unused
    it would look free. ``percent`` is a fraction, of the node by its sums.
    """
    factor = _IN_A_MIB[unit]
    known = [(used * factor, total * factor) for used, total in _cards(snapshot)]
    used, total = (sum(memory[part] for memory in known) for part in (0, 1))
    devices = [_memory(*memory) for memory in known]
    return {node: {"deviceNum": len(known), "devices": devices} | _memory(used, total)}


def _cards(snapshot: TelemetrySnapshot) -> Iterator[tuple[int, int]]:
    memory_round = snapshot.rounds.get(MEMORY)
    for card in sorted(snapshot.cards, key=lambda card: card.index):
        says = memory_round.cards.get(card.uuid) if memory_round else None
        values = says.values if says else {}
        if (used := values.get(FB_USED)) is not None:
            yield int(used), int(values.get(FB_TOTAL, card.memory_mib))


def _memory(used: int, total: int) -> dict[str, Any]:
    percent = used / total if total else 0.0
    return {"percent": percent, "totalMemory": total, "usedMemory": used}


def _preferred(request: Request) -> str:
    """Return the supported entry of the Accept header that has the highest ``q``.

    Empty if there is none. ``choose_encoder`` itself takes the first that it knows,
    whatever its ``q``.
    """
    supported = [
        (weight, kind)
        for kind, weight in request.accept_mimetypes
        if weight and kind.partition(";")[0].strip().lower() in _SUPPORTED
    ]
    return max(supported, key=lambda item: item[0], default=(0, ""))[1]


def _only(names: frozenset[str], metrics: Iterable[Metric]) -> Iterator[Metric]:
    for metric in metrics:
        if kept := [sample for sample in metric.samples if sample.name in names]:
            only = Metric(metric.name, metric.documentation, metric.type)
            only.samples = kept
            yield only


def _round(round_: Round[Any], now: float) -> dict[str, object]:
    failed = {uuid: says.failure for uuid, says in round_.cards.items() if says.failure}
    return {
        "age_s": round(max(0.0, now - round_.at), 3),
        "took_s": round(round_.took_s, 3),
        "failure": round_.failure,
        "failed_cards": failed,
    }


def _json(page: object) -> Response:
    return Response(json.dumps(page) + "\n", content_type="application/json")
