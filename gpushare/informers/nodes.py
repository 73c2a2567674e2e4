"""Nodes of the API server, followed into the ledger."""

import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Card, CardUUID, NodeName
from gpushare.kube import codec
from gpushare.kube.annotations import decode_isolation, find_broken_links
from gpushare.kube.cluster import Json
from gpushare.kube.facts import annotation, host_capacity
from gpushare.kube.json_reader import Malformed
from gpushare.kube.names import CARDS
from gpushare.kube.node_filters import NodeProperties, read_properties
from gpushare.kube.reflector import Sink

logger = logging.getLogger(__name__)

_MOST_STRAYS = 20
"""So many UUIDs of a cordon are logged; an annotation has room for thousands."""


class NodeInformer(Sink):
    """The sink for nodes: record their cards in the ledger.

    A node whose annotation is broken shares no cards until it is repaired; the log says
    what is wrong. ``set_cards`` records the cards; that of a ``PodInformer`` also
    records what is held of them. ``hosts`` records CPU and memory; None if not needed.
    ``properties`` are the labels and taints of nodes with cards, if they are wanted,
    and ``isolation`` their tiers, empty where that is not known.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        set_cards: Callable[[NodeName, tuple[Card, ...]], None] | None = None,
        hosts: Hosts | None = None,
        with_properties: bool = False,
    ) -> None:
        self._ledger = ledger
        self._set_cards = set_cards or ledger.set_cards
        self._hosts = hosts
        self._with_properties = with_properties
        self.properties: dict[NodeName, NodeProperties] = {}
        self.isolation: dict[NodeName, str] = {}
        self._broken: dict[NodeName, str] = {}
        self._strays: dict[NodeName, str] = {}
        self._broken_links: dict[NodeName, str] = {}
        self._known: set[NodeName] = set()

    def begin_list(self) -> AbstractSet[str]:
        """Return the names of the nodes."""
        return set(self._known)

    def knows(self, name: NodeName) -> bool:
        """Return whether the node exists, with cards or without."""
        return name in self._known

    def broken(self) -> dict[NodeName, str]:
        """Return the nodes whose annotation cannot be read, and what is wrong."""
        return dict(self._broken)

    def put(self, body: Json) -> None:
        """Record a node's cards, and what else is wanted of it."""
        name = NodeName(body["metadata"]["name"])
        try:
            cards = codec.read_cards(body)
            self._broken.pop(name, None)
        except Malformed as error:
            cards = ()
            if self._broken.get(name) != str(error):
                facts = {"node": name, "because": str(error)}
                logger.warning("node annotation not understood", extra=facts)
            self._broken[name] = str(error)
        if cards:
            self._log_strays(name, codec.read_cordon(body) - {c.uuid for c in cards})
            self._log_links(name, find_broken_links(annotation(body, CARDS)))
        self._set_cards(name, cards)
        if self._hosts is not None:
            self._hosts.set_allocatable(name, host_capacity(body))
        if self._with_properties and cards:
            self.properties[name] = read_properties(body)
            self.isolation[name] = decode_isolation(annotation(body, CARDS))
        else:
            self._drop_properties(name)
        self._known.add(name)

    def drop(self, key: str) -> None:
        """Forget a node, by its name."""
        name = NodeName(key)
        self._broken.pop(name, None)
        self._broken_links.pop(name, None)
        self._strays.pop(name, None)
        self._known.discard(name)
        self._ledger.forget(name)
        if self._hosts is not None:
            self._hosts.set_allocatable(name, None)
        self._drop_properties(name)

    def _drop_properties(self, name: NodeName) -> None:
        self.properties.pop(name, None)
        self.isolation.pop(name, None)

    def _log_strays(self, name: NodeName, strays: frozenset[CardUUID]) -> None:
        """Log once that a cordon names cards that the node does not have."""
        shown = ",".join(sorted(strays)[:_MOST_STRAYS])
        if shown and shown != self._strays.get(name):
            facts = {"node": name, "cards": shown}
            logger.warning("cordon on cards that the node does not have", extra=facts)
        self._strays[name] = shown

    def _log_links(self, name: NodeName, problem: str) -> None:
        """Log once that links cannot be read; the cards are used without them."""
        if problem and problem != self._broken_links.get(name):
            facts = {"node": name, "because": problem}
            logger.warning("links between cards not understood", extra=facts)
        if problem:
            self._broken_links[name] = problem
        else:
            self._broken_links.pop(name, None)
