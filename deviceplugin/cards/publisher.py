"""The node's cards as its annotation, written only when they changed.

Each touch wakes every pod that waits for a card (contracts 1.7).
"""

import logging
from collections.abc import Iterator
from threading import Condition, Event

from deviceplugin.cards.advertised import Offer
from gpushare.domain.model import CardUUID, NodeName
from gpushare.kube import codec, names
from gpushare.kube.annotations import encode_cards
from gpushare.kube.cluster import Cluster, Json, Kind, Page, WatchEvent
from gpushare.kube.errors import ClusterError

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 15.0


class OwnNode:
    """Sink for this node's object: what operators and we ourselves wrote on it."""

    def __init__(self, name: NodeName) -> None:
        self._name = name
        self._changed = Condition()
        self._node: Json | None = None

    def replace(self, pages: Iterator[Page]) -> None:
        """Take over the node, or that there is none."""
        found = [node for page in pages for node in page.items]
        self._set(found[0] if found else None)

    def apply(self, event: WatchEvent) -> None:
        """Take over one change."""
        self._set(None if event.type == "DELETED" else event.object)

    def exists(self) -> bool:
        """Tell whether kubelet has made the node's object."""
        return self._node is not None

    def annotation(self, key: str) -> str | None:
        """Give one annotation of the node."""
        metadata = (self._node or {}).get("metadata") or {}
        found = (metadata.get("annotations") or {}).get(key)
        return found if isinstance(found, str) else None

    def status(self) -> Json:
        """Give the node's status; empty where there is no node."""
        return (self._node or {}).get("status") or {}

    def uuids(self, key: str) -> frozenset[CardUUID]:
        """Read an annotation that lists UUIDs."""
        return codec.uuids(self.annotation(key) or "")

    def _set(self, node: Json | None) -> None:
        with self._changed:
            self._node = node
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait for news of the node."""
        with self._changed:
            self._changed.wait(timeout_s)


class Publisher:
    """Keeps the annotation equal to the offer."""

    def __init__(
        self,
        cluster: Cluster,
        name: NodeName,
        node: OwnNode,
        offer: Offer,
        look_s: float = _LOOK_S,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._node = node
        self._offer = offer
        self._look_s = look_s
        self._written: str | None = None

    def run(self, stop: Event) -> None:
        """Write whenever the cards changed, until ``stop`` is set."""
        wait_s = _FIRST_WAIT_S
        while not stop.is_set():
            version = self._offer.version()
            try:
                self.publish()
                wait_s = _FIRST_WAIT_S
                self._offer.wait_for_change(version, self._look_s)
            except ClusterError as error:
                facts = {"because": str(error), "wait_s": wait_s}
                logger.warning("cards not published", extra=facts)
                stop.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def publish(self) -> None:
        """Write the annotation where it differs; ``ClusterError``."""
        if not self._node.exists():
            return
        cards = self._offer.cards().all
        text = encode_cards(cards)
        there = self._node.annotation(names.CARDS)
        if there == text:
            self._written = text
            return
        if self._written == text and there is None:
            logger.warning("somebody removed our annotation; writing it again")
        self._cluster.annotate(Kind.NODES, "", self._name, {names.CARDS: text})
        self._written = text
        facts = {"cards": len(cards), "units": sum(card.units for card in cards)}
        logger.info("cards published", extra=facts)
        self._node.wait(self._look_s)
