"""What can be read of cards while they work, and who reads it: one Protocol.

``NvmlTelemetry`` asks NVIDIA's driver, ``AmdTelemetry`` reads amdgpu's files,
``PlainTelemetry`` makes do with what any ``CardSource`` tells.

Unknown is a missing value, never 0; idle is a 0, never a missing value.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from deviceplugin.cards import Found, XidEvent
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
