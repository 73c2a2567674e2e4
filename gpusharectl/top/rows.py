"""What top shows: a row for each pod on each card, and for each card. Frozen values.

Numbers and names in columns. Pure.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from rich.cells import cell_len, set_cell_size

from gpushare.domain.model import UNIT_MIB, Amount, Card
from gpushare.kube.words import NOT_KNOWN
from gpusharectl.output import age
from gpusharectl.state.placements import Books
from gpusharectl.state.read import Trouble
from gpusharectl.state.view import Stay

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


_GIB = 1024
_LEAST = 0.01
_CUT = "…"


def gib(mib: float | None) -> str:
    """Say MiB in GiB, for a column.

    >>> gib(12800), gib(3), gib(0), gib(None)
    ('12.50', '<0.01', '0', 'n/a')
    """
    if mib is None:
        return NOT_KNOWN
    found = mib / _GIB
    return f"<{_LEAST}" if 0 < found < _LEAST else f"{found:.2f}" if found else "0"


def size(mib: float) -> str:
    """Say MiB in a sentence.

    >>> size(300.4), size(1280)
    ('300 MiB', '1.25 GiB')
    """
    return f"{max(1, round(mib))} MiB" if mib < _GIB else f"{plain(mib)} GiB"


def plain(mib: float) -> str:
    """Say MiB in GiB, for a sentence that names the unit.

    >>> plain(12800), plain(0)
    ('12.5', '0')
    """
    return f"{mib / _GIB:.2f}".rstrip("0").rstrip(".")


def whole(number: float | None) -> str:
    """Say a number without its fraction; what is not quite 0 is not 0.

    >>> whole(22.6), whole(0), whole(0.2), whole(None)
    ('23', '0', '<1', 'n/a')
    """
    if number is None:
        return NOT_KNOWN
    return "<1" if 0 < number < 1 else str(round(number))


def for_so_long(seconds: float) -> str:
    """Say how long, as kubectl does.

    >>> for_so_long(7800)
    '130m'
    """
    then = datetime(2000, 1, 1, tzinfo=UTC)
    return age(then.isoformat(), then + timedelta(seconds=seconds))


def column(text: str, width: int, tail: int | None = None) -> str:
    """Make text exactly so many cells wide.

    Of a text that is too long so many cells stay at its end, or else half of them.

    >>> column("bert-7b5f9c6d4b-x2x7k", 12), column("Tesla P100", 6, 0), column("a", 3)
    ('bert-7…x2x7k', 'Tesla…', 'a  ')
    """
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    kept = (width - 1) // 2 if tail is None else min(tail, width - 1)
    end = _first(text[::-1], kept)[::-1]
    begin = _first(text, width - 1 - cell_len(end))
    return set_cell_size(f"{begin}{_CUT}{end}", width)


def _first(text: str, width: int) -> str:
    """Give as much of a text as there is room for; some characters are two cells."""
    used = 0
    for number, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:number]
    return text
