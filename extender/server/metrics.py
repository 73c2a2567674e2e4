"""What Prometheus sees of the extender; docs/operations.md explains each.

What Prometheus sees of the webhook; docs/webhook.md explains each.
"""

import logging
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import starmap

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from extender.scheduling.bind import Bound, Outcome
from extender.scheduling.inflight import Inflight
from extender.scheduling.wire import FilterResult
from extender.server.public import Labels, LargeGauge, Readiness
from extender.server.tls import TlsFiles, expires_at
from gpushare.cache.pods import NodeBook, PodBook
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Card
from gpushare.domain.node import Node
from gpushare.domain.refusal import Refusal
from gpushare.kube.codec import PodRecord

logger = logging.getLogger(__name__)

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 4, 10)
_INVALID = "Invalid vcuda request"
_OF_CARDS: Mapping[str, tuple[str, Callable[[Node, Card], float]]] = {
    "vcuda_card_units": (
        "Units of 256 MiB that the card has.",
        lambda _, card: card.units,
    ),
    "vcuda_card_placed_units": (
        "Units that pods hold of it.",
        lambda node, card: node.charged.get(card.uuid, (0, 0))[1],
    ),
    "vcuda_card_placed_cores": (
        "Cores of 100 that pods hold.",
        lambda node, card: node.charged.get(card.uuid, (0, 0))[0],
    ),
    "vcuda_card_unknown_units": (
        "Units kept on it for pods of its node of which nobody knows the card.",
        lambda node, card: node.unknown[card.uuid].units,
    ),
    "vcuda_card_healthy": (
        "1 when the node calls it well.",
        lambda _, card: card.healthy,
    ),
    "vcuda_card_cordoned": (
        "1 when it gets nothing new.",
        lambda _, card: card.cordoned,
    ),
}


class VerbMetrics:
    """Counters and timings, bumped by the views."""

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
        for outcome in Outcome:
            self._binds.labels(outcome.value)

    @contextmanager
    def timed(self, verb: str) -> Iterator[None]:
        """Time one call."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds.labels(verb).observe(time.perf_counter() - began)

    def filtered(self, result: FilterResult) -> None:
        """Count a filter's refusals."""
        if not result.refused:
            return
        for reason, nodes in Tally(result.refused.values()).items():
            # A user's own words would make a series each.
            label = _INVALID if reason.startswith(_INVALID) else reason
            self._refusals.labels(label).inc(nodes)

    def bound(self, bound: Bound) -> None:
        """Count a bind."""
        self._binds.labels(bound.outcome.value).inc()


class LedgerCollector(Collector):
    """What the books say at the moment of the scrape."""

    def __init__(
        self,
        ledger: Ledger,
        pods: PodBook,
        nodes: NodeBook,
        inflight: Inflight,
        readiness: Readiness,
    ) -> None:
        self._ledger = ledger
        self._pods = pods
        self._nodes = nodes
        self._inflight = inflight
        self._readiness = readiness

    def collect(self) -> Iterable[Metric]:
        """Give the gauges of cards, then those of the extender itself."""
        yield from self._cards()
        yield from self._largest_free()
        yield _gauge(
            "vcuda_extender_pending_yeses",
            "Pods let through by filter whose bind has not come.",
            len(self._inflight),
        )
        yield _gauge(
            "vcuda_extender_reservations",
            "Placements not yet seen back from the API server.",
            len(self._ledger.reservations()),
        )
        yield _gauge(
            "vcuda_extender_pods_pending",
            "Pods that ask for cards and have no node yet.",
            sum(map(_waits, self._pods.records())),
        )
        yield _gauge(
            "vcuda_extender_pods_without_placement",
            "Pods that ask for cards and were bound without us; is our stanza in "
            "kube-scheduler's configuration?",
            len(self._pods.without_placement()),
        )
        yield _gauge(
            "vcuda_extender_nodes_not_understood",
            "Nodes whose annotation with cards cannot be read; the log says why.",
            len(self._nodes.broken()),
        )
        ready = not self._readiness.why_not()
        yield _gauge("vcuda_extender_ready", "1 when filter answers.", ready)
        yield self._ages()

    def _ages(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "vcuda_extender_ledger_age_seconds",
            "Time since the API server last said anything of this kind.",
            labels=["kind"],
        )
        for kind, age_s in self._readiness.ages_s().items():
            family.add_metric([kind], age_s)
        return family

    def _cards(self) -> Iterable[LargeGauge]:
        cards = [(node, card) for node in self._ledger.nodes() for card in node.cards]
        labels = [Labels.of(NodeName=node.name, UUID=card.uuid) for node, card in cards]
        for name, (text, value) in _OF_CARDS.items():
            yield LargeGauge(name, text, labels, partial(starmap, value, cards))

    def _largest_free(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "vcuda_node_largest_free_units",
            "The most units that one pod could still get on one card of the node.",
            labels=["NodeName"],
        )
        for node in self._ledger.nodes():
            if node.cards:
                rooms = node.summary.frontier
                family.add_metric([node.name], rooms[-1].units if rooms else 0)
        yield family


class CertificateCollector(Collector):
    """When the certificates expire, by the files as they are now.

    Read at each scrape: two small files cost less than one node's cards. ``name`` is
    the metric's: the webhook has its own, as others may renew its certificate, later.
    """

    def __init__(
        self,
        files: TlsFiles,
        name: str = "vcuda_certificate_not_after_timestamp_seconds",
    ) -> None:
        self._name = name
        self._paths = {"server": files.cert}
        if files.client_ca is not None:
            self._paths["ca"] = files.client_ca
        self._told: set[str] = set()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Give a gauge for each file that can be read."""
        family = GaugeMetricFamily(
            self._name,
            "When the certificate expires; the soonest of a file with several.",
            labels=["file"],
        )
        for file, path in self._paths.items():
            try:
                family.add_metric([file], expires_at(path).timestamp())
                self._told.discard(file)
            except (OSError, ValueError) as error:
                self._tell(file, path, error)
        yield family

    def _tell(self, file: str, path: str, error: Exception) -> None:
        """Warn once, not at each scrape."""
        if file not in self._told:
            self._told.add(file)
            facts = {"path": path, "because": str(error)}
            logger.warning("certificate cannot be read", extra=facts)


def _waits(pod: PodRecord) -> bool:
    # A request that is invalid waits for a person.
    return not pod.node and (pod.asks or isinstance(pod.request, Refusal))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


_REVIEW_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)


class Result(StrEnum):
    """What came of one review."""

    ALLOWED = "allowed"
    CHANGED = "changed"
    DENIED = "denied"
    MALFORMED = "malformed"
    """No review that an API server would send."""
    FAILED = "failed"
    """An error of our own; the pod was turned away."""


class ReviewMetrics:
    """Counters and timings, bumped by the views."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "vcuda_webhook_review_seconds",
            "Time to answer one review of the API server.",
            ["path"],
            buckets=_REVIEW_SECONDS,
            registry=registry,
        )
        self._reviews = Counter(
            "vcuda_webhook_reviews",
            "Reviews by what came of them; failed: an error of the webhook's own.",
            ["path", "result"],
            registry=registry,
        )
        self._warnings = Counter(
            "vcuda_webhook_warnings",
            "Warnings given to those who make pods.",
            registry=registry,
        )

    def of(self, path: str) -> "PathMetrics":
        """Give the metrics of one path, every result 0 before its first review."""
        results = {one: self._reviews.labels(path, one.value) for one in Result}
        return PathMetrics(self._seconds.labels(path), results, self._warnings)


@dataclass(frozen=True, slots=True)
class PathMetrics:
    """One path's counters and timings."""

    seconds: Histogram
    results: Mapping[Result, Counter]
    warnings: Counter

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time one review."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds.observe(time.perf_counter() - began)

    def reviewed(self, result: Result, warnings: int = 0) -> None:
        """Count a review, and the warnings that it gave."""
        self.results[result].inc()
        if warnings:
            self.warnings.inc(warnings)
