"""All that the exporter knows at one moment: written by the sampler, read by scrapes.

Whoever answers a scrape reads this and nothing else, so that no scrape ever waits for
a driver.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deviceplugin.cards.source import Found
from deviceplugin.exporter.owners import Owner
from deviceplugin.telemetry.base import CardAnswer, ProcessesAnswer
from deviceplugin.telemetry.fields import Field
from gpushare.domain.model import CardUUID


@dataclass(frozen=True, slots=True)
class Round:
    """One pass of a group over all cards.

    ``at`` is when it ended, in seconds since 1970. ``failure`` says why nothing could
    be asked at all; ``cards`` is then empty.
    """

    group: str
    at: float
    took_s: float
    cards: Mapping[CardUUID, CardAnswer] = field(default_factory=dict)
    failure: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether every card answered."""
        return not self.failure and not any(one.failure for one in self.cards.values())


@dataclass(frozen=True, slots=True)
class ProcessRound:
    """One pass over the processes of all cards, and whose they are.

    ``owners`` has a pid only where its cgroup could be read; ``NOBODY`` (of
    ``attribution``) stands for a process outside Kubernetes.
    """

    at: float
    took_s: float
    cards: Mapping[CardUUID, ProcessesAnswer] = field(default_factory=dict)
    owners: Mapping[int, Owner] = field(default_factory=dict)
    failure: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether every card answered."""
        return not self.failure and not any(one.failure for one in self.cards.values())


@dataclass(frozen=True, slots=True)
class XidTally:
    """The faults that a card has reported since we began: the last, and each count."""

    last: int = 0
    counts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the last round of each group brought.

    ``found`` is None until cards were found once; ``no_cards`` says why none can be
    asked now, and is empty while they can. ``fields`` are those switched on now.
    ``troubles`` are sentences by what they are about (``config``, ``processes``): what
    is missing from the page, and why. The page adds those of cards, pods and kubelet.
    """

    driver_version: str = ""
    found: Found | None = None
    no_cards: str = ""
    groups: frozenset[str] = frozenset()
    fields: tuple[Field, ...] = ()
    rounds: Mapping[str, Round] = field(default_factory=dict)
    processes: ProcessRound | None = None
    xids: Mapping[CardUUID, XidTally] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)
