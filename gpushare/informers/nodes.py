"""Nodes of the API server, followed into the ledger."""

import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Card, NodeName
from gpushare.kube.annotations import (
    decode_isolation,
    find_broken_links,
    read_cards,
    read_cordon,
)
from gpushare.kube.cluster import Json
from gpushare.kube.facts import annotation, host_capacity
from gpushare.kube.json_reader import Malformed
from gpushare.kube.names import CARDS
from gpushare.kube.node_filters import NodeProperties, read_properties
from gpushare.kube.reflector import Sink
from gpushare.logs import LogOnce

logger = logging.getLogger(__name__)

_BROKEN = "node annotation not understood"
_STRAYS = "cordon on cards that the node does not have"
_LINKS = "links between cards not understood"
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
        self._log_once = LogOnce(logger)
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
        cards: tuple[Card, ...] = ()
        try:
            cards, problem = read_cards(body), ""
            self._broken.pop(name, None)
        except Malformed as error:
            problem = self._broken[name] = str(error)
        self._log(name, problem, _BROKEN, because=problem)
        if cards:
            strays = read_cordon(body) - {card.uuid for card in cards}
            shown = ",".join(sorted(strays)[:_MOST_STRAYS])
            self._log(name, shown, _STRAYS, cards=shown)
            # The cards are used without their links.
            problem = find_broken_links(annotation(body, CARDS))
            self._log(name, problem, _LINKS, because=problem)
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
        for message in (_BROKEN, _STRAYS, _LINKS):
            self._log(name, "", message)
        self._known.discard(name)
        self._ledger.forget(name)
        if self._hosts is not None:
            self._hosts.set_allocatable(name, None)
        self._drop_properties(name)

    def _drop_properties(self, name: NodeName) -> None:
        self.properties.pop(name, None)
        self.isolation.pop(name, None)

    def _log(self, name: NodeName, why: str, message: str, **facts: str) -> None:
        """Log what is wrong with a node; nothing if it is known, or if it is right."""
        self._log_once.problem((name, message), why, message, node=name, **facts)
