"""What the exporter knows at one moment: written by the sampler, read by scrapes. Pure.

A scrape reads only this, so that no scrape waits for a driver.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from exporter.held import NodeLimits
from exporter.owners.owner_pods import Owner
from exporter.telemetry.base import Answer, CardAnswer, ProcessesAnswer
from exporter.telemetry.fields import PROCESSES, Field
from gpushare.cards.source import FoundCard, FoundCards
from gpushare.domain.model import CardUUID


@dataclass(frozen=True, slots=True)
class Round(Generic[Answer]):
    """One pass of a group over all cards.

    ``at`` is when it ended, in seconds since 1970. ``failure`` says why no card could
    be read; ``cards`` is then empty.
    """

    group: str
    at: float
    took_s: float
    cards: Mapping[CardUUID, Answer] = field(default_factory=dict)
    failure: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether every card answered."""
        return not (self.failure or any(card.failure for card in self.cards.values()))


@dataclass(frozen=True, slots=True)
class ProcessRound(Round[ProcessesAnswer]):
    """One pass over the processes of all cards, and their owners.

    ``owners`` has a pid only if its cgroup could be read; ``NO_POD`` stands for a
    process outside Kubernetes. ``limits`` is what should hold their containers.
    """

    owners: Mapping[int, Owner] = field(default_factory=dict)
    limits: NodeLimits = field(default_factory=NodeLimits)


@dataclass(frozen=True, slots=True)
class XidTally:
    """The faults that a card reported since the start: the last, and the counts."""

    last: int = 0
    counts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TelemetrySnapshot:
    """The last round of each group.

    ``found`` is None until cards were found once; ``no_cards`` says why none can be
    read now, and is empty if they can. ``fields`` are those switched on now.
    ``troubles`` say what is missing from the page and why, by topic (``config``,
    ``processes``). The page adds those of cards, pods and kubelet.
    """

    driver_version: str = ""
    found: FoundCards | None = None
    no_cards: str = ""
    groups: frozenset[str] = frozenset()
    fields: tuple[Field, ...] = ()
    rounds: Mapping[str, Round[CardAnswer]] = field(default_factory=dict)
    processes: ProcessRound | None = None
    xids: Mapping[CardUUID, XidTally] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)

    @property
    def cards(self) -> tuple[FoundCard, ...]:
        """The cards that were found last."""
        return () if self.found is None else self.found.cards

    def all_rounds(self) -> list[tuple[str, Round[Any]]]:
        """Return the last round of each group by its name, that of processes too."""
        rounds: dict[str, Round[Any]] = {**self.rounds}
        if self.processes is not None:
            rounds[PROCESSES] = self.processes
        return sorted(rounds.items())
