"""Telemetry of cards that tell their memory in use, at most: any ``CardSource``'s."""

from collections.abc import Collection, Mapping

from deviceplugin import fields as names
from deviceplugin.cards import CardReading, CardSource, Found, FoundCard, XidEvent
from deviceplugin.telemetry import CardSays, ProcessesSay
from gpushare.domain.model import CardUUID


class PlainTelemetry:
    """A ``Telemetry`` over the cards of an inventory, or simulated ones.

    Deadlines are the source's own.
    """

    def __init__(self, source: CardSource) -> None:
        self._source = source

    def cards(self) -> Found:
        """Give the source's cards. ``NoCardsYet``."""
        return self._source.cards()

    def driver_version(self) -> str:
        """Give nothing: such cards' drivers are not known."""
        return ""

    def read(self, group: str, fields: Collection[str]) -> Mapping[CardUUID, CardSays]:
        """Tell the memory; all else is unsupported, and so is a use that is unknown."""
        del group
        wanted = frozenset(fields)
        return {
            card.uuid: _says(card, reading, wanted)
            for card, reading in self._readings()
        }

    def processes(self) -> Mapping[CardUUID, ProcessesSay]:
        """Say what the memory in use gives away: of nothing, nobody uses any."""
        return {
            card.uuid: ProcessesSay(
                known=reading.used_mib == 0, failure=reading.failure
            )
            for card, reading in self._readings()
        }

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait for what the source reports."""
        return self._source.wait_for_event(timeout_s)

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _readings(self) -> list[tuple[FoundCard, CardReading]]:
        cards = {card.uuid: card for card in self._source.cards().cards}
        return [
            (cards[reading.uuid], reading)
            for reading in self._source.readings()
            if reading.uuid in cards
        ]


def _says(card: FoundCard, reading: CardReading, wanted: frozenset[str]) -> CardSays:
    if reading.failure:
        return CardSays(failure=reading.failure)
    told: dict[str, float] = {names.FB_TOTAL: card.memory_mib}
    if reading.used_mib is not None:
        told[names.FB_USED] = reading.used_mib
        told[names.FB_FREE] = max(0, card.memory_mib - reading.used_mib)
    values = {name: told[name] for name in wanted if name in told}
    return CardSays(values, wanted - set(values))
