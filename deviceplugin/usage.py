"""What containers were allotted and what they use, on each card. Pure.

The nouns are here; ``reckoning`` works them out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deviceplugin.telemetry import SmSource
from gpushare.domain.model import Amount, CardUUID

UseKey = tuple[CardUUID, str, str]
"""Card, pod's UID and container: what a ``ContainerUse`` is known by."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """One container on one card: what it was allotted beside what it uses.

    ``allotted`` is None for a container that uses a card without having asked for it,
    or of which nobody knows the placement; then ``placed`` is False. ``memory_mib`` in
    MiB, the rest in percent of the whole card; None is unknown. ``exclusive``: its pod
    has the card to itself by its request (whole cards). ``last_busy`` is when it was
    last seen at work, at the earliest when it was first seen at all; seconds since
    1970. ``contexts_mib`` is what of its memory is put down to CUDA's contexts, which
    are no part of a share. All names are empty for what runs outside Kubernetes.
    """

    card: CardUUID
    namespace: str
    pod: str
    uid: str
    container: str
    allotted: Amount | None = None
    exclusive: bool = False
    memory_mib: float | None = None
    sm: float | None = None
    memory_copy: float | None = None
    encoder: float | None = None
    decoder: float | None = None
    last_busy: float | None = None
    placed: bool = True
    contexts_mib: float = 0.0

    @property
    def key(self) -> UseKey:
        """What tells it from all others of the node."""
        return (self.card, self.uid, self.container)


@dataclass(frozen=True, slots=True)
class CardUse:
    """What all of it comes to on one card; None is unknown.

    ``unattributed_mib`` is what is in use less all that containers and processes
    outside Kubernetes are known to use. ``context_mib`` is the least that a process
    which allocates nothing was ever seen to hold.
    """

    allotted_units: int | None = None
    exclusive: bool = False
    unattributed_mib: float | None = None
    sm_source: SmSource = SmSource.NONE
    context_mib: float | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """A process that does not work, the memory that it holds, and since when it does.

    In MiB, and in seconds since 1970.
    """

    memory_mib: float
    since: float


@dataclass(frozen=True, slots=True)
class Usage:
    """Everything of one node; containers in a fixed order.

    ``at`` is when the processes were read that it goes by, None where they were not.
    ``resting`` are the pods' processes that do not work, by card and pid.
    """

    containers: tuple[ContainerUse, ...] = ()
    cards: Mapping[CardUUID, CardUse] = field(default_factory=dict)
    at: float | None = None
    resting: Mapping[tuple[CardUUID, int], Rest] = field(default_factory=dict)
