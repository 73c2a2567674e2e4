"""What top shows: a row for each pod on each card, and for each card. Frozen values."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpushare.domain.model import UNIT_MIB, Amount, Card
from gpusharectl.inspection.books import Books
from gpusharectl.inspection.picture import Trouble
from gpusharectl.inspection.views import Stay

TOLERANCE = 1.05
"""So many times its share a pod may use before anything is said of it. The exporter's
word decides: it knows what of the memory is CUDA's contexts."""


def excess_mib(allotted: Amount | None, used_mib: float | None) -> float:
    """Give the MiB above a share, 0 for who is not over it or has no share of memory.

    >>> excess_mib(Amount(units=4), 1075), excess_mib(Amount(units=4), 1280)
    (0.0, 256.0)
    """
    mib = allotted.units * UNIT_MIB if allotted else 0
    if used_mib is None or not mib or used_mib <= mib * TOLERANCE:
        return 0.0
    return float(used_mib - mib)


class Sign(StrEnum):
    """What is worth a look about a pod or a card."""

    OVER = "over"
    """It uses more memory than its share."""
    NO_SHARE = "no-share"
    """It uses a card of which it has no share."""
    UNPLACED = "unplaced"
    """Nobody knows on which card it is."""
    GONE = "gone"
    """Its card is no more."""
    IDLE = "idle"
    LEAVING = "leaving"
    NOT_STARTED = "not-started"
    SICK = "sick"
    CORDONED = "cordoned"
    OUTSIDE = "outside"
    """Processes outside Kubernetes use the card."""
    UNATTRIBUTED = "unattributed"
    """Memory is in use that no process is known to use."""

    @property
    def calm(self) -> bool:
        """Whether it is a word beside the numbers, and nothing to act on."""
        return self in _CALM


_CALM = frozenset({Sign.IDLE, Sign.LEAVING, Sign.NOT_STARTED, Sign.CORDONED})


@dataclass(frozen=True, slots=True)
class Flag:
    """A sign in words; ``do`` is the next step, empty where the words say it all."""

    sign: Sign
    words: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """One container's part of a pod's row; None is unknown, or for allotted: none.

    ``seen``: its exporter tells of it, as it does not of one that has ended.
    """

    name: str
    allotted: Amount | None = None
    used_mib: float | None = None
    sm: float | None = None
    last_busy: float | None = None
    seen: bool = False
    over: bool = False


@dataclass(frozen=True, slots=True)
class PodRow:
    """One pod on one card: what it was allotted, beside what it uses; None is unknown.

    ``uuid`` and ``index`` are empty and None where nobody knows its card, and ``stay``
    and ``allotted`` None for a pod that has no share of it. ``sm`` is in percent of the
    whole card, as cores are hundredths of it; ``idle_s`` since when it has computed
    nothing.
    """

    namespace: str
    name: str
    uid: str
    node: str
    uuid: str
    index: int | None
    stay: Stay | None = None
    allotted: Amount | None = None
    whole: bool = False
    used_mib: float | None = None
    sm: float | None = None
    idle_s: float | None = None
    containers: tuple[ContainerRow, ...] = ()
    flags: tuple[Flag, ...] = ()

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class CardRow:
    """One card: what of it is allotted, beside what is used; None is unknown.

    ``allotted`` is by the books, everything else by the node's exporter.
    """

    node: str
    card: Card
    allotted: Amount
    used_mib: float | None = None
    busy: float | None = None
    celsius: float | None = None
    watts: float | None = None
    outside_mib: float | None = None
    unattributed_mib: float | None = None
    sm_source: str = ""
    flags: tuple[Flag, ...] = ()

    @property
    def where(self) -> str:
        """``node-1 0``, as the card commands take it."""
        return f"{self.node} {self.card.index}"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """Whether a node's exporter told; ``because`` says why not."""

    name: str
    told: bool
    because: str = ""


@dataclass(frozen=True, slots=True)
class Top:
    """All that there is to show; ``elsewhere`` counts what inspect would warn of."""

    books: Books
    at: datetime
    nodes: tuple[NodeRow, ...]
    cards: tuple[CardRow, ...]
    pods: tuple[PodRow, ...]
    troubles: tuple[Trouble, ...] = ()
    elsewhere: int = 0
