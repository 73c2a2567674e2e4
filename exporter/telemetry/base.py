"""What cards report while they work: the ``Telemetry`` protocol. Pure.

``NvmlTelemetry`` asks NVIDIA's driver, ``AmdTelemetry`` reads amdgpu's files,
``TegraTelemetry`` those of a Jetson, ``PlainTelemetry`` uses what any ``CardSource``
reads.

An unknown value is missing, never 0; the value of an idle card is 0, never missing.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

from exporter.telemetry import fields as names
from gpushare.cards.source import (
    CardReading,
    CardSource,
    FindsCards,
    FoundCard,
    FoundCards,
    XidEvent,
)
from gpushare.domain.model import CardUUID


@dataclass(frozen=True, slots=True)
class CardAnswer:
    """One card's answer for one group of fields.

    ``values`` by field name, in the field's own unit (``fields``). ``unsupported``
    names the fields that this card or its driver does not have. ``failure`` is empty if
    the card answered; else it says what was wrong, and nothing else is known. Fields
    that the card only refuses to tell now are in neither, and are no failure.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    unsupported: frozenset[str] = frozenset()
    failure: str = ""

    @classmethod
    def failed(cls, because: str) -> "CardAnswer":
        """Return the answer of a card that failed."""
        return cls(failure=because)


class SmSource(StrEnum):
    """From where the processes' share of a card's time is known."""

    SAMPLES = "process-utilization"
    """nvmlDeviceGetProcessUtilization."""
    INFO = "processes-utilization-info"
    """nvmlDeviceGetProcessesUtilizationInfo."""
    CARD = "card"
    """The card's own utilization, if one container has the card to itself."""
    NONE = "none"
    """It is not known."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on one card; ``pid`` in the host's namespace.

    ``memory_mib`` in MiB, the others in percent of the whole card; None if the driver
    cannot tell.
    """

    pid: int
    memory_mib: float | None = None
    sm: float | None = None
    memory_copy: float | None = None
    encoder: float | None = None
    decoder: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessesAnswer:
    """The processes of one card; ``failure`` as in ``CardAnswer``.

    ``known`` is False if the driver does not list processes at all.
    """

    processes: tuple[ProcessUse, ...] = ()
    sm_source: SmSource = SmSource.NONE
    known: bool = True
    failure: str = ""

    @classmethod
    def failed(cls, because: str) -> "ProcessesAnswer":
        """Return the answer of a card that failed."""
        return cls(known=False, failure=because)


Answer = TypeVar("Answer", CardAnswer, ProcessesAnswer)


def answered(
    kind: type[Answer],
    answers: Iterable[tuple[CardUUID, Answer | Exception]],
    why: Callable[[Exception], str] = str,
) -> dict[CardUUID, Answer]:
    """Return the answers by card; an error is the answer of a card that failed."""
    return {
        uuid: kind.failed(why(answer)) if isinstance(answer, Exception) else answer
        for uuid, answer in answers
    }


class Telemetry(FindsCards, Protocol):
    """Reads cards while they work. All methods may be called from any thread.

    A card that hangs fails after a deadline; it delays neither the other cards nor
    other groups. ``NoCardsYet`` if there is nothing to ask: no driver, or one that does
    not answer yet.
    """

    def driver_version(self) -> str:
        """Return the driver's version, as ``550.54.15``; empty if it has none."""
        ...

    def read(
        self, group: str, fields: Collection[str]
    ) -> Mapping[CardUUID, CardAnswer]:
        """Read some fields of a group, of every card last found. ``NoCardsYet``.

        A field of another vendor is unsupported, not an error.
        """
        ...

    def processes(self) -> Mapping[CardUUID, ProcessesAnswer]:
        """Read the processes of each card last found. ``NoCardsYet``."""
        ...


class PlainTelemetry:
    """A ``Telemetry`` over the cards of an inventory, or simulated ones.

    Deadlines are the source's own.
    """

    def __init__(self, source: CardSource) -> None:
        self._source = source

    def cards(self) -> FoundCards:
        """Return the source's cards. ``NoCardsYet``."""
        return self._source.cards()

    def driver_version(self) -> str:
        """Return nothing: the drivers of such cards are not known."""
        return ""

    def read(
        self, group: str, fields: Collection[str]
    ) -> Mapping[CardUUID, CardAnswer]:
        """Return the memory; all else is unsupported, also a use that is unknown."""
        del group
        wanted = frozenset(fields)
        return {
            card.uuid: _says(card, reading, wanted)
            for card, reading in self._readings()
        }

    def processes(self) -> Mapping[CardUUID, ProcessesAnswer]:
        """Return no processes; it is known that there are none if no memory is used."""
        return {
            card.uuid: ProcessesAnswer(
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


def _says(card: FoundCard, reading: CardReading, wanted: frozenset[str]) -> CardAnswer:
    if reading.failure:
        return CardAnswer(failure=reading.failure)
    known: dict[str, float] = {names.FB_TOTAL: card.memory_mib}
    if reading.used_mib is not None:
        known[names.FB_USED] = reading.used_mib
        known[names.FB_FREE] = max(0, card.memory_mib - reading.used_mib)
    values = {name: known[name] for name in wanted & known.keys()}
    return CardAnswer(values, wanted - known.keys())
