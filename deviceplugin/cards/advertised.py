"""What this node offers: its cards, healthy, cordoned or sick, and their annotation."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from threading import Condition, Event

from deviceplugin.cards.devices import Cards, device_ids, shared_card
from gpushare.cards.source import FoundCard
from gpushare.domain.links import pairs, with_scores
from gpushare.domain.model import UNIT_MIB, Card, CardUUID, NodeName
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards, read_uuids, why_too_many
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.errors import ClusterError, Forbidden, Invalid
from gpushare.kube.reflector import Sink
from gpushare.kubelet.pods import KINDS

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 15.0
LONGEST_REASON = 120
"""Characters of the reason for which a card is sick; each card may have one."""
_LOOKS = 3
_GONE = "it is not found any more"


class _Reasons:
    """Why cards are sick, as the annotation shows it: short, and not to and fro.

    Each change is a write that wakes all waiting pods. So the first reason of a card
    stays while it is sick, until another one has come in three looks in a row.
    """

    def __init__(self) -> None:
        self.shown: dict[CardUUID, str] = {}
        self._other: dict[CardUUID, tuple[str, int]] = {}

    def take(self, sick: Mapping[CardUUID, str]) -> None:
        """Take over the reasons of one look."""
        before, waiting = self.shown, self._other
        self.shown, self._other = {}, {}
        for uuid, reason in sick.items():
            why = _short(reason)
            first = before.get(uuid, why)
            other, looks = waiting.get(uuid, (why, 0))
            looks = looks + 1 if other == why else 1
            if why == first or looks >= _LOOKS:
                first = why
            else:
                self._other[uuid] = (why, looks)
            self.shown[uuid] = first


def _short(reason: str) -> str:
    """Return as many whole clauses as there is room for; else cut it."""
    text = " ".join(reason.split())
    if len(text) <= LONGEST_REASON:
        return text
    clauses = text[: LONGEST_REASON + 1].rpartition("; ")[0]
    return clauses or f"{text[: LONGEST_REASON - 1]}…"


class Offer:
    """The cards as they are offered; threads that list them wait here for a change.

    A card that was offered once stays, as sick, when its source no longer finds it:
    kubelet fails pods whose device ids vanish (contracts 2.2).
    """

    def __init__(self, reserve_mib: int) -> None:
        self._reserve_mib = reserve_mib
        self._changed = Condition()
        self._found: dict[CardUUID, FoundCard] = {}
        self._missing: frozenset[CardUUID] = frozenset()
        self._sick: Mapping[CardUUID, str] = {}
        self._reasons = _Reasons()
        self._cordoned: frozenset[CardUUID] = frozenset()
        self.version = 0
        """Grows with each change."""
        self.cards = Cards(())
        """A snapshot of the cards as pods may have them now, by index.

        A card without a single unit is not offered: its cores would be of no use.
        """
        self.isolation = ""
        """The node's isolation tier; empty before it is chosen."""

    def set_found(self, cards: Sequence[FoundCard]) -> None:
        """Take over what a look at the node found."""
        with self._changed:
            before = (dict(self._found), self._missing)
            here = {card.uuid for card in cards}
            self._found |= {card.uuid: card for card in cards}
            self._missing = frozenset(self._found.keys() - here)
            if (self._found, self._missing) != before:
                self._publish()

    def set_sick(self, sick: Mapping[CardUUID, str]) -> None:
        """Take over which cards are sick, each with the reason; once in each look."""
        with self._changed:
            shown = self._reasons.shown
            self._reasons.take(sick)
            if dict(sick) != self._sick or self._reasons.shown != shown:
                self._sick = dict(sick)
                self._publish()

    def set_cordoned(self, cordoned: Collection[CardUUID]) -> None:
        """Take over which cards get no new pods."""
        with self._changed:
            if frozenset(cordoned) != self._cordoned:
                self._cordoned = frozenset(cordoned)
                self._publish()

    def set_isolation(self, tier: str) -> None:
        """Take over the node's tier."""
        with self._changed:
            if tier != self.isolation:
                self.isolation = tier
                self._publish()

    @property
    def found_cards(self) -> tuple[FoundCard, ...]:
        """All cards as their source knows them, also those without a unit."""
        return tuple(self._found.values())

    @property
    def missing(self) -> frozenset[CardUUID]:
        """The cards that their source no longer finds."""
        return self._missing

    def sick(self) -> Mapping[CardUUID, str]:
        """Return the sick cards, also those that vanished, each with the reason."""
        return {**dict.fromkeys(self._missing, _GONE), **self._sick}

    def too_small(self, cards: Iterable[FoundCard]) -> dict[str, str]:
        """Return which cards have no unit after the reserve, each with the reason."""
        return {
            card.uuid: f"its {card.memory_mib} MiB less GPUSHARE_RESERVE_MIB="
            f"{self._reserve_mib} are less than one unit of {UNIT_MIB} MiB"
            for card in cards
            if not shared_card(card, self._reserve_mib).units
        }

    def wait_for_change(self, version: int, timeout_s: float) -> bool:
        """Wait until something changed after ``version``; False if nothing did."""
        with self._changed:
            return self._changed.wait_for(lambda: self.version > version, timeout_s)

    def devices(self, resource: str) -> list[tuple[str, bool]]:
        """Return all device ids of a resource, each with whether its card is healthy.

        Those of a cordoned card are healthy: its pods go on, and must survive a restart
        of kubelet.
        """
        kind = KINDS[resource]
        return [
            (name, card.healthy)
            for card in self.cards.all
            for name in device_ids(card, kind)
        ]

    def _publish(self) -> None:
        why = {**dict.fromkeys(self._missing, _GONE), **self._reasons.shown}
        shared = [
            replace(
                shared_card(card, self._reserve_mib, healthy=card.uuid not in why),
                cordoned=card.uuid in self._cordoned,
                reason=why.get(card.uuid, ""),
            )
            for card in self._found.values()
        ]
        with_units = (card for card in shared if card.units)
        by_index = sorted(with_units, key=lambda card: card.index)
        scores = [self._link(by_index[a], by_index[b]) for a, b in pairs(len(by_index))]
        linked = with_scores(by_index, scores) if any(scores) else by_index
        self.cards = Cards(linked, dict(self._found))
        self.version += 1
        self._changed.notify_all()

    def _link(self, a: Card, b: Card) -> int:
        """Return the score of a pair; 0 if it is not known.

        A card that vanished is no longer among the links of the others.
        """
        of_a, of_b = self._found[a.uuid].links, self._found[b.uuid].links
        return of_a.get(b.uuid) or of_b.get(a.uuid, 0)


class OwnNode(Sink):
    """Sink for this node's object: the annotations and the status that it has.

    ``cluster`` and ``name`` are for who writes it.
    """

    def __init__(self, cluster: Cluster, name: NodeName) -> None:
        self.cluster = cluster
        self.name = name
        self._changed = Condition()
        self._node: Json | None = None

    def begin_list(self) -> AbstractSet[str]:
        """Return the node's name, if there is a node."""
        return {self._node["metadata"]["name"]} if self._node else set()

    def put(self, body: Json) -> None:
        """Take over the node."""
        self._set(body)

    def drop(self, _key: str) -> None:
        """Note that there is no node."""
        self._set(None)

    def exists(self) -> bool:
        """Return whether the node's object exists; kubelet creates it."""
        return self._node is not None

    def uid(self) -> str:
        """Return the node's UID; empty if there is no node."""
        return str(((self._node or {}).get("metadata") or {}).get("uid") or "")

    def annotation(self, key: str) -> str | None:
        """Return one annotation of the node."""
        return self._metadata("annotations", key)

    def label(self, key: str) -> str | None:
        """Return one label of the node."""
        return self._metadata("labels", key)

    def taints(self) -> tuple[list[Json], str]:
        """Return the node's taints, and the resourceVersion of which they are."""
        node = self._node or {}
        version = (node.get("metadata") or {}).get("resourceVersion") or ""
        return (node.get("spec") or {}).get("taints") or [], str(version)

    def status(self) -> Json:
        """Return the node's status; empty if there is no node."""
        return (self._node or {}).get("status") or {}

    def uuids(self, key: str) -> frozenset[CardUUID]:
        """Read an annotation that lists UUIDs."""
        return read_uuids(self.annotation(key) or "")

    def annotate(
        self,
        notes: Mapping[str, str | None],
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        """Write annotations and labels in one write. Raises ``ClusterError``."""
        self.cluster.annotate(Kind.NODES, "", self.name, notes, labels=labels or {})

    def _metadata(self, part: str, key: str) -> str | None:
        metadata = (self._node or {}).get("metadata") or {}
        value = (metadata.get(part) or {}).get(key)
        return value if isinstance(value, str) else None

    def _set(self, node: Json | None) -> None:
        with self._changed:
            self._node = node
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait for a change of the node."""
        with self._changed:
            self._changed.wait(timeout_s)


@dataclass
class Publisher:
    """Keeps the node's annotation, and the label of its tier, equal to the offer.

    It writes only when they changed, both at once, because each write wakes every pod
    that waits for a card (contracts 1.7).
    """

    node: OwnNode
    offer: Offer
    _written: str | None = None
    _refused: str = ""
    """The tier with which the label was refused."""
    _problem: str = ""

    def run(self, stop: Event) -> None:
        """Write whenever the cards changed, until ``stop`` is set."""
        wait_s = _FIRST_WAIT_S
        while not stop.is_set():
            version = self.offer.version
            try:
                self.publish()
                wait_s = _FIRST_WAIT_S
                self.offer.wait_for_change(version, _LOOK_S)
            except ClusterError as error:
                facts = {"because": str(error), "wait_s": wait_s}
                logger.warning("cards not published", extra=facts)
                stop.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def is_published(self) -> bool:
        """Return whether the API server's node shows the cards as they are offered."""
        text = encode_cards(self.offer.cards.all, self.offer.isolation)
        return self.node.annotation(names.CARDS) == text

    def publish(self) -> None:
        """Write what differs. Raises ``ClusterError``."""
        if not self.node.exists():
            return
        cards, tier = self.offer.cards.all, self.offer.isolation
        if self._too_many(cards):
            return
        text = encode_cards(cards, tier)
        there = self.node.annotation(names.CARDS)
        labels = {}
        if tier not in ("", self._refused, self.node.label(names.ISOLATION)):
            labels = {names.ISOLATION: tier}
        if there == text and not labels:
            self._written = text
            return
        if self._written == text and there is None:
            logger.warning("the annotation of the cards was removed; writing it again")
        self._write(text, labels)
        self._written = text
        units = sum(card.units for card in cards)
        facts = {"cards": len(cards), "units": units, "isolation": tier}
        logger.info("cards published", extra=facts)
        self.node.wait(_LOOK_S)

    def _too_many(self, cards: Sequence[Card]) -> bool:
        """Return whether the extender would refuse the node; log once why."""
        problem = why_too_many(cards)
        if problem and problem != self._problem:
            facts = {"because": f"the node {problem}"}
            logger.error("cards not published, no pod gets one here", extra=facts)
        self._problem = problem
        return bool(problem)

    def _write(self, text: str, labels: Mapping[str, str]) -> None:
        """Write both; only the annotation if the label is refused.

        It is by a guard of an earlier version, with which cards must be offered too.
        """
        notes = {names.CARDS: text}
        try:
            self.node.annotate(notes, labels)
        except (Forbidden, Invalid) as error:
            if not labels:
                raise
            self.node.annotate(notes)
            self._refused = labels[names.ISOLATION]
            facts = {"label": names.ISOLATION, "because": str(error)}
            logger.warning(
                "the label was refused; apply annotation-guard.yaml of this version, "
                "then restart the device plugin",
                extra=facts,
            )
