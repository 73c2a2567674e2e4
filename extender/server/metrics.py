"""Collect what Prometheus reads of the ledger and the learner.

docs/operations.md explains each metric. What views count is beside the views.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from extender.scheduling.learning import FragLearning
from extender.scheduling.state import ExtenderState
from gpushare.domain.model import Card
from gpushare.domain.node import Node
from gpushare.kube.codec import PodRecord
from gpushare.kube.reflector import Readiness
from gpushare.server.exposition import Labels, LargeGauge
from gpushare.server.public import PAUSE_S

logger = logging.getLogger(__name__)

_AT_A_TIME = 500
"""Pods; half a millisecond."""

_OF_CARDS: Mapping[str, tuple[str, Callable[[Node, Card], float]]] = {
    "vcuda_card_units": (
        "Units of 256 MiB that the card has.",
        lambda _, card: card.units,
    ),
    "vcuda_card_placed_units": (
        "Units of the card that pods and ResourceClaims hold.",
        lambda node, card: node.charged.get(card.uuid, (0, 0))[1],
    ),
    "vcuda_card_placed_cores": (
        "Cores of the card, of 100, that pods and ResourceClaims hold.",
        lambda node, card: node.charged.get(card.uuid, (0, 0))[0],
    ),
    "vcuda_card_unknown_units": (
        "Units of the card set aside for pods on its node whose card is unknown.",
        lambda node, card: (
            node.charged_for_unplaced[card.uuid].units if node.unplaced else 0
        ),
    ),
    "vcuda_card_healthy": (
        "1 if the device plugin reports the card as healthy; XIDs count.",
        lambda _, card: card.healthy,
    ),
    "vcuda_card_cordoned": (
        "1 when the card gets no new pods.",
        lambda _, card: card.cordoned,
    ),
}


class LedgerCollector(Collector):
    """The ledger at the moment of the scrape."""

    def __init__(self, state: ExtenderState, readiness: Readiness) -> None:
        self._ledger = state.ledger
        self._state = state
        self._readiness = readiness

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges of cards, then those of the extender itself."""
        nodes = [node for node in self._ledger.nodes() if node.cards]
        yield from _of_cards(nodes)
        yield LargeGauge(
            "vcuda_node_largest_free_units",
            "The most units that a pod with one core could still get on the node.",
            Labels(["NodeName"], lambda: ([node.name] for node in nodes)),
            lambda: (node.summary.largest.units for node in nodes),
        )
        yield from self._counts()
        ages = GaugeMetricFamily(
            "vcuda_extender_ledger_age_seconds",
            "Time since the last news of this kind from the API server.",
            labels=["kind"],
        )
        for kind, age_s in self._readiness.ages_s().items():
            ages.add_metric([kind], age_s)
        yield ages

    def _counts(self) -> Iterator[Metric]:
        state = self._state
        pending = without_placement = 0
        for pod in _paced(state.pods.records()):
            pending += pod.waits
            without_placement += state.pods.is_without_placement(pod)
        for name, (text, value) in {
            "vcuda_extender_pending_yeses": (
                "Pods let through by filter whose bind has not come.",
                len(state.inflight),
            ),
            "vcuda_extender_reservations": (
                "Placements not yet seen back from the API server.",
                len(state.ledger.reservations()),
            ),
            "vcuda_extender_pods_pending": (
                "Pods that ask for cards and have no node yet.",
                pending,
            ),
            "vcuda_extender_pods_without_placement": (
                (
                    "Pods that ask for cards and were bound without the extender; is "
                    "its stanza in kube-scheduler's configuration?"
                ),
                without_placement,
            ),
            "vcuda_extender_nodes_not_understood": (
                "Nodes whose annotation with cards cannot be read; the log says why.",
                len(state.nodes.broken()),
            ),
            "vcuda_extender_ready": (
                "1 when filter answers.",
                not self._readiness.why_not(),
            ),
        }.items():
            yield _gauge(name, text, value)


def _of_cards(nodes: Sequence[Node]) -> Iterator[LargeGauge]:
    def each(value: Callable[[Node, Card], Any]) -> Iterator[Any]:
        return (value(node, card) for node in nodes for card in node.cards)

    labels = Labels(
        ["NodeName", "UUID", "GPU_I_UUID"],
        partial(each, lambda node, card: (node.name, *_uuids(card))),
    )
    for name, (text, value) in _OF_CARDS.items():
        yield LargeGauge(name, text, labels, partial(each, value))


def _uuids(card: Card) -> tuple[str, str]:
    """Return the physical card's UUID and the MIG instance's, as the exporter does."""
    return (card.parent, card.uuid) if card.parent else (card.uuid, "")


def _paced(pods: Sequence[PodRecord]) -> Iterator[PodRecord]:
    """Yield all pods, and let other threads run between some of them."""
    for start in range(0, len(pods), _AT_A_TIME):
        yield from pods[start : start + _AT_A_TIME]
        time.sleep(PAUSE_S)


class ResourceClaimsCollector(Collector):
    """ResourceClaims in the ledger; only where they are followed."""

    def __init__(self, state: ExtenderState) -> None:
        self._state = state

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield how many claims hold cards, are only reserved, or are not read."""
        ledger = self._state.ledger
        charged, reservations = ledger.resource_claims(), ledger.reservations()
        yield _gauge(
            "vcuda_extender_claims",
            "ResourceClaims that hold a share of a card, reserved ones too.",
            len(charged),
        )
        yield _gauge(
            "vcuda_extender_claims_reserved",
            "Of these, the ones whose allocation the API server has not told yet.",
            len(charged & reservations),
        )
        yield _gauge(
            "vcuda_extender_claims_not_understood",
            "ResourceClaims whose allocation cannot be read; the log says why.",
            len(self._state.resource_claims.broken()),
        )


class LearningCollector(Collector):
    """How the policy ``frag`` learns."""

    def __init__(self, learning: FragLearning) -> None:
        self._learning = learning

    def collect(self) -> Iterable[Metric]:
        """Yield the pods counted, the failed attempts, and when it last learned."""
        yield _gauge(
            "vcuda_extender_frag_pods_seen",
            "Pods with cards that the policy frag has counted since the start.",
            self._learning.packer.seen,
        )
        yield CounterMetricFamily(
            "vcuda_extender_frag_lessons_failed",
            "Failed attempts of the policy frag to learn; each is tried again.",
            value=self._learning.failed,
        )
        if self._learning.learned_at is not None:
            yield _gauge(
                "vcuda_extender_frag_learnt_timestamp_seconds",
                "When the policy frag last learned; absent while it places as "
                "best-fit.",
                self._learning.learned_at,
            )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
