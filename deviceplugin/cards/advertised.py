"""What this node offers just now: its cards, which are sick, which are cordoned."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Condition

from deviceplugin.cards.devices import KINDS, Cards
from deviceplugin.cards.source import FoundCard, device_ids, shared_card
from gpushare.domain.model import UNIT_MIB, Card, CardUUID


class Offer:
    """The cards as they are offered; whoever lists them waits here for a change.

    A card that was offered once stays, sick, when its source no longer finds it:
    kubelet fails pods whose device ids vanish (contracts 2.2).
    """

    def __init__(self, reserve_mib: int) -> None:
        self._reserve_mib = reserve_mib
        self._changed = Condition()
        self._found: dict[CardUUID, FoundCard] = {}
        self._missing: frozenset[CardUUID] = frozenset()
        self._sick: Mapping[CardUUID, str] = {}
        self._cordoned: frozenset[CardUUID] = frozenset()
        self._version = 0

    def set_found(self, cards: Sequence[FoundCard]) -> None:
        """Take over what a look at the node found."""
        with self._changed:
            before = (dict(self._found), self._missing)
            here = {card.uuid for card in cards}
            self._found |= {card.uuid: card for card in cards}
            self._missing = frozenset(self._found.keys() - here)
            self._publish((self._found, self._missing) != before)

    def set_sick(self, sick: Mapping[CardUUID, str]) -> None:
        """Take over which cards are sick, each with the reason."""
        with self._changed:
            changed = dict(sick) != self._sick
            self._sick = dict(sick)
            self._publish(changed)

    def set_cordoned(self, cordoned: Collection[CardUUID]) -> None:
        """Take over which cards get nothing new."""
        with self._changed:
            changed = frozenset(cordoned) != self._cordoned
            self._cordoned = frozenset(cordoned)
            self._publish(changed)

    def found(self, uuid: CardUUID) -> FoundCard | None:
        """Give a card as its source knows it."""
        return self._found.get(uuid)

    def sick(self) -> Mapping[CardUUID, str]:
        """Say which cards are sick, those that vanished included, and why."""
        gone = dict.fromkeys(self._missing, "it is not found any more")
        return {**gone, **self._sick}

    def cards(self) -> Cards:
        """Give the cards as pods may have them now, by index.

        A card without a unit is none: its cores would be of no use.
        """
        with self._changed:
            found, sick, cordoned = self._found.values(), self.sick(), self._cordoned
            shared = [self._card(card, sick, cordoned) for card in found]
        with_units = (card for card in shared if card.units)
        return Cards(sorted(with_units, key=lambda card: card.index))

    def too_small(self, cards: Iterable[FoundCard]) -> dict[str, str]:
        """Say which of these cards have no unit after the reserve, each with why."""
        return {
            card.uuid: f"its {card.memory_mib} MiB less a reserve of "
            f"{self._reserve_mib} MiB are less than one unit of {UNIT_MIB} MiB"
            for card in cards
            if not shared_card(card, self._reserve_mib).units
        }

    def version(self) -> int:
        """Give a number that grows with each change."""
        return self._version

    def wait_for_change(self, version: int, timeout_s: float) -> bool:
        """Wait until something changed after ``version``; False when nothing did."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version > version, timeout_s)

    def devices(self, resource: str) -> list[tuple[str, bool]]:
        """Give all device ids of a resource, each with whether its card is healthy.

        A cordoned card's are healthy: what runs there goes on, over a restart of
        kubelet too.
        """
        kind = KINDS[resource]
        return [
            (name, card.healthy)
            for card in self.cards().all
            for name in device_ids(card, kind)
        ]

    def _card(
        self,
        card: FoundCard,
        sick: Mapping[CardUUID, str],
        cordoned: Collection[CardUUID],
    ) -> Card:
        healthy = card.uuid not in sick
        shared = shared_card(card, self._reserve_mib, healthy=healthy)
        return replace(shared, cordoned=card.uuid in cordoned)

    def _publish(self, changed: bool) -> None:  # noqa: FBT001
        if changed:
            self._version += 1
            self._changed.notify_all()
