"""Keeps the offer true: looks for cards, reads them, hears faults, heeds operators."""

import logging
from dataclasses import dataclass, field
from threading import Event

from deviceplugin.allocation.injection import Injecting
from deviceplugin.cards.advertised import Offer
from deviceplugin.cards.health import Health, HealthFile
from deviceplugin.cards.publisher import OwnNode
from deviceplugin.cards.source import (
    CardSource,
    DriverLost,
    FoundCard,
    NoCardsYet,
    colliding,
)
from deviceplugin.metrics import PluginMetrics
from gpushare.domain.model import CardUUID, NodeName
from gpushare.kube import names
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.errors import ClusterError

logger = logging.getLogger(__name__)


class CollidingCardsError(Exception):
    """Two cards would have the same device ids; ``str()`` names them."""


@dataclass(slots=True)
class _Said:
    """What has been logged already, so that it is logged once."""

    why_none: str = ""
    unknown: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    sick: dict[CardUUID, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Watcher:
    """Everything that changes the offer while the plugin runs."""

    source: CardSource
    offer: Offer
    health: Health
    file: HealthFile
    node: OwnNode
    name: NodeName
    cluster: Cluster
    injecting: Injecting
    metrics: PluginMetrics
    said: _Said = field(default_factory=_Said)

    def wait_for_cards(self, stop: Event, every_s: float) -> bool:
        """Look until there is a card, and say what is missing; False when stopped.

        ``CollidingCardsError`` where cards cannot be told apart.
        """
        while not stop.is_set():
            if self.look():
                return True
            stop.wait(every_s)
        return False

    def look(self) -> bool:
        """Look at the node once; tell whether any card was ever found."""
        try:
            found = self.source.cards()
        except NoCardsYet as error:
            self._say_none(str(error))
            return bool(self.offer.cards().all)
        left_out = {one.name: one.because for one in found.left_out}
        self._say_left_out(left_out | self.offer.too_small(found.cards))
        if not found.cards:
            self._say_none("there is no card on this node")
        else:
            self.said.why_none = ""
        shared = self._tellable(found.cards)
        self.offer.set_found(shared)
        self.health.know(card.uuid for card in shared if card.known_to_driver)
        return bool(self.offer.cards().all)

    def read(self) -> None:
        """Read all cards once, and offer those that are well."""
        self.health.loaded(self.source.driver_load())
        try:
            self.health.read(self.source.readings())
        except NoCardsYet as error:
            self._say_none(str(error))
        self._look_how_to_inject()
        self._publish()

    def run(self, stop: Event, every_s: float) -> None:
        """Look and read every so often until ``stop`` is set.

        It ends before that where only a new process can have the driver's cards back.
        """
        while not stop.wait(every_s):
            try:
                self._round()
            except DriverLost as error:
                facts = {"because": str(error)}
                logger.error("driver lost, the process ends", extra=facts)  # noqa: TRY400
                return

    def _round(self) -> None:
        try:
            self.look()
        except CollidingCardsError as error:
            logger.error("cards left out", extra={"because": str(error)})  # noqa: TRY400
        self.read()
        self.heed()

    def hear(self, stop: Event, every_s: float) -> None:
        """Hear faults as the driver reports them, until ``stop`` is set."""
        while not stop.is_set():
            event = self.source.wait_for_event(every_s)
            if event is None:
                continue
            facts = {"card": event.uuid or "unknown", "xid": event.xid}
            self.health.loaded(self.source.driver_load())
            if self.health.fault(event):
                logger.warning("a card reported a fault", extra=facts)
                self._publish()
            else:
                logger.info("a program's own fault", extra=facts)

    def heed(self) -> None:
        """Do what the operator's annotations on the node say."""
        self.offer.set_cordoned(self.node.uuids(names.CORDON))
        ordered = self.node.uuids(names.CLEAR)
        mine = {card.uuid for card in self.offer.cards().all}
        if unknown := ordered - mine:
            self._say_unknown(",".join(sorted(unknown)))
        if not ordered & mine:
            return
        for uuid in ordered & mine:
            facts = {"card": uuid, "had_faults": self.health.clear(uuid)}
            logger.info("cleared by an operator", extra=facts)
        self._publish()
        left = ",".join(sorted(unknown)) or None
        try:
            self.cluster.annotate(Kind.NODES, "", self.name, {names.CLEAR: left})
        except ClusterError as error:
            logger.warning("order not taken off", extra={"because": str(error)})

    def _look_how_to_inject(self) -> None:
        """Choose for the cards that are well: no specification has a lost one."""
        others = self.offer.sick().keys() - self.injecting.held().keys()
        sick = others | self.health.sick().keys()
        self.injecting.look(
            card.uuid
            for card in self._found_all()
            if card.known_to_driver and card.uuid not in sick
        )

    def _say_unknown(self, cards: str) -> None:
        if cards != self.said.unknown:
            facts = {"cards": cards, "annotation": names.CLEAR}
            logger.warning("order names cards that are not here", extra=facts)
        self.said.unknown = cards

    def _found_all(self) -> list[FoundCard]:
        found = [self.offer.found(card.uuid) for card in self.offer.cards().all]
        return [card for card in found if card is not None]

    def _tellable(self, cards: tuple[FoundCard, ...]) -> tuple[FoundCard, ...]:
        if collisions := colliding(cards):
            raise CollidingCardsError("; ".join(collisions))
        return cards

    def _publish(self) -> None:
        self.offer.set_sick({**self.injecting.held(), **self.health.sick()})
        self.file.save(self.health)
        now = dict(self.offer.sick())
        for uuid, why in now.items():
            if self.said.sick.get(uuid) != why:
                facts = {"card": uuid, "because": why}
                logger.warning("card is sick", extra=facts)
        for uuid in self.said.sick.keys() - now.keys():
            logger.info("card is well again", extra={"card": uuid})
        for card in self.offer.cards().all:
            self.metrics.sick.labels(card.uuid).set(card.uuid in now)
        self.said.sick = now

    def _say_none(self, why: str) -> None:
        if why != self.said.why_none:
            logger.warning("no cards to share yet", extra={"because": why})
        self.said.why_none = why

    def _say_left_out(self, left_out: dict[str, str]) -> None:
        for name, because in left_out.items():
            if self.said.left_out.get(name) != because:
                facts = {"card": name, "because": because}
                logger.warning("card left out", extra=facts)
        self.said.left_out = left_out
