"""What can be read of cards while they work, and who reads it: one Protocol.

``NvmlTelemetry`` asks NVIDIA's driver, ``AmdTelemetry`` reads amdgpu's files,
``PlainTelemetry`` makes do with what any ``CardSource`` tells.

Unknown is a missing value, never 0; idle is a 0, never a missing value.

Telemetry of cards that tell their memory in use, at most: any ``CardSource``'s.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from deviceplugin.cards.source import (
    CardReading,
    CardSource,
    Found,
    FoundCard,
    XidEvent,
)
from deviceplugin.telemetry import fields as names
from gpushare.domain.model import CardUUID


@dataclass(frozen=True, slots=True)
class CardSays:
    """What one card answered to one group of questions.

    ``values`` by field name, in the field's own unit (``fields``). ``unsupported``
    names the fields that this card or its driver does not have. ``failure`` is empty
    for a card that answered; else it says what was wrong and nothing else is known.
    A question that it merely refuses is no failure: its fields are missing, neither
    told nor unsupported.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    unsupported: frozenset[str] = frozenset()
    failure: str = ""


class SmSource(StrEnum):
    """How the driver told the processes' share of a card's time."""

    SAMPLES = "process-utilization"
    """nvmlDeviceGetProcessUtilization."""
    INFO = "processes-utilization-info"
    """nvmlDeviceGetProcessesUtilizationInfo."""
    CARD = "card"
    """The card's own utilization, where one container has it to itself."""
    NONE = "none"
    """It does not tell."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on one card; ``pid`` as the host counts.

    ``memory_mib`` in MiB, the rest in percent of the whole card; None where the driver
    cannot tell.
    """

    pid: int
    memory_mib: float | None = None
    sm: float | None = None
    memory_copy: float | None = None
    encoder: float | None = None
    decoder: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessesSay:
    """The processes of one card; ``failure`` as in ``CardSays``.

    ``known`` is False where the driver does not list processes at all.
    """

    processes: tuple[ProcessUse, ...] = ()
    sm_source: SmSource = SmSource.NONE
    known: bool = True
    failure: str = ""


class Telemetry(Protocol):
    """Who reads cards at work. All methods may be called from any thread.

    A card that hangs fails after a deadline and does not keep the others waiting;
    another group's question to it neither. ``NoCardsYet`` where there is nothing to
    ask: no driver, or one that does not answer yet.
    """

    def cards(self) -> Found:
        """Look at the node now. ``NoCardsYet``, ``DriverLost`` as of ``CardSource``."""
        ...

    def driver_version(self) -> str:
        """Give the driver's version, as ``550.54.15``; empty where it has none."""
        ...

    def read(self, group: str, fields: Collection[str]) -> Mapping[CardUUID, CardSays]:
        """Read some fields of a group, of every card last found. ``NoCardsYet``.

        A field of another vendor's is unsupported, no error.
        """
        ...

    def processes(self) -> Mapping[CardUUID, ProcessesSay]:
        """Read who uses each card last found. ``NoCardsYet``."""
        ...

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait for the next fault; None after ``timeout_s``, or where none can come."""
        ...

    def close(self) -> None:
        """Let go of the driver; it may not be asked again."""
        ...


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
