"""Find the node's cards, read them, apply annotations, and update what is offered."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from deviceplugin.allocation.injection import CardSetup
from deviceplugin.cards.advertised import Offer, OwnNode
from deviceplugin.cards.devices import Cards, colliding_cards
from deviceplugin.cards.health import Health
from deviceplugin.metrics import PluginMetrics
from gpushare.cards.source import CardSource, DriverLost, NoCardsYet
from gpushare.domain.model import CardUUID
from gpushare.kube import names, words
from gpushare.kube.errors import ClusterError
from gpushare.logs import LogOnce

logger = logging.getLogger(__name__)

_NONE = "no cards to share yet"
_MOST_NAMES = 20


class CollidingCardsError(Exception):
    """Two cards would have the same device ids; ``str()`` names them."""


@dataclass(frozen=True, slots=True)
class Watcher:
    """Updates the offered devices while cards, their health or annotations change."""

    source: CardSource
    offer: Offer
    health: Health
    node: OwnNode
    setup: CardSetup
    metrics: PluginMetrics
    holders: Callable[[CardUUID, Cards], Mapping[str, Collection[str]]]
    """The names of the ``pods`` and ``claims`` that hold a part of a card."""
    log_once: LogOnce = field(default_factory=lambda: LogOnce(logger))
    _logged: dict[str, dict[str, str]] = field(default_factory=dict)

    def wait_for_cards(self, stop: Event, every_s: float) -> bool:
        """Look until there is a card, and log what is missing; False when stopped.

        Raises ``CollidingCardsError`` if cards would have the same device ids.
        """
        while not stop.is_set():
            if self.look_for_cards():
                return True
            stop.wait(every_s)
        return False

    def look_for_cards(self) -> bool:
        """Look for cards once; return whether any card was ever found."""
        try:
            on_node = self.source.cards()
        except NoCardsYet as error:
            self.log_once.problem("cards", str(error), _NONE, because=str(error))
            return bool(self.offer.cards.all)
        left_out = {card.name: card.because for card in on_node.left_out}
        left_out |= self.offer.too_small(on_node.cards)
        self._log_cards("card left out", left_out)
        if not on_node.cards:
            why = "there is no card on this node"
            self.log_once.problem("cards", why, _NONE, because=why)
        else:
            self.log_once.recovered("cards")
        if collisions := colliding_cards(on_node.cards):
            raise CollidingCardsError("; ".join(collisions))
        self.offer.set_found(on_node.cards)
        self.health.set_known(
            card.uuid for card in on_node.cards if card.known_to_driver
        )
        return bool(self.offer.cards.all)

    def read(self) -> None:
        """Read all cards once, and offer those that are well."""
        self.health.set_driver_load(self.source.driver_load())
        try:
            self.health.read(self.source.readings())
        except NoCardsYet as error:
            self.log_once.problem("cards", str(error), _NONE, because=str(error))
        self._choose_injection()
        self._choose_isolation()
        self._publish()

    def run(self, stop: Event, every_s: float) -> None:
        """Look for cards and read them every so often until ``stop`` is set.

        It ends earlier if only a new process can have the driver's cards back.
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
            self.look_for_cards()
        except CollidingCardsError as error:
            logger.error("cards left out", extra={"because": str(error)})  # noqa: TRY400
        self.read()
        self.apply_annotations()

    def watch_faults(self, stop: Event, every_s: float) -> None:
        """Take faults as the driver reports them, until ``stop`` is set."""
        while not stop.is_set():
            event = self.source.wait_for_event(every_s)
            if event is None:
                continue
            facts = {"card": event.uuid or "unknown", "xid": event.xid}
            self.health.set_driver_load(self.source.driver_load())
            if self.health.record_fault(event):
                logger.warning("a card reported a fault", extra=facts)
                self._publish()
            else:
                message = "a program caused a fault; the card is healthy"
                logger.info(message, extra=facts)

    def apply_annotations(self) -> None:
        """Apply the annotations on the node: cordoned cards, and faults to clear."""
        self.offer.set_cordoned(self.node.uuids(names.CORDON))
        ordered = self.node.uuids(names.CLEAR)
        mine = {card.uuid for card in self.offer.cards.all}
        unknown = ",".join(sorted(ordered - mine))
        facts = {"cards": unknown, "annotation": names.CLEAR}
        self.log_once.problem(names.CLEAR, unknown, "no such cards to clear", **facts)
        if not ordered & mine:
            return
        for uuid in ordered & mine:
            had_faults = self.health.clear(uuid)
            extra = {"card": uuid, "had_faults": had_faults}
            logger.info("cleared by an operator", extra=extra)
        self._publish()
        try:
            self.node.annotate({names.CLEAR: unknown or None})
        except ClusterError as error:
            facts = {"because": str(error)}
            logger.warning("annotation to clear faults not removed", extra=facts)

    def _choose_injection(self) -> None:
        """Choose for the cards that are well: no specification has a lost one."""
        others = self.offer.sick().keys() - self._held_back().keys()
        sick = others | self.health.sick().keys()
        cards = self.offer.cards
        well = cards.as_found(card.uuid for card in cards.all if card.uuid not in sick)
        self.setup.injection.choose_for(
            card.uuid for card in well if card.known_to_driver
        )

    def _choose_isolation(self) -> None:
        sick = self.health.sick().keys() | self.offer.missing
        every = self.offer.found_cards
        isolation = self.setup.isolation
        isolation.choose_for([card for card in every if card.uuid not in sick])
        self.offer.set_isolation(isolation.tier)

    def _held_back(self) -> Mapping[CardUUID, str]:
        return {**self.setup.isolation.held_back, **self.setup.injection.held_back}

    def _publish(self) -> None:
        self.offer.set_sick({**self._held_back(), **self.health.sick()})
        self.health.save()
        sick = self.offer.sick()
        for uuid in self._log_cards("card is sick", sick, self._holders):
            logger.info("card is healthy again", extra={"card": uuid})
        for card in self.offer.cards.all:
            self.metrics.sick.labels(card.uuid).set(card.uuid in sick)

    def _holders(self, uuid: CardUUID) -> Mapping[str, str]:
        """Name who has a part of a card: an operator decides about them."""
        holders = self.holders(uuid, self.offer.cards)
        return {
            kind: words.listed(sorted(holder_names), _MOST_NAMES)
            for kind, holder_names in holders.items()
            if holder_names
        }

    def _log_cards(
        self,
        message: str,
        reasons: Mapping[Any, str],
        more: Callable[[Any], Mapping[str, str]] = lambda _: {},
    ) -> set[str]:
        """Log each card whose reason is new; return the cards that have none now.

        ``more`` are further facts of a card.
        """
        before = self._logged.get(message, {})
        for name, why in reasons.items():
            if before.get(name) != why:
                facts = {"card": name, "because": why, **more(name)}
                logger.warning(message, extra=facts)
        self._logged[message] = dict(reasons)
        return before.keys() - reasons.keys()
