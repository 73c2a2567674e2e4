"""What top shows: what is allotted, and beside it what is used. Pure.

A row for each pod on each card, and a row for each card. None is not known. It is also
what top prints as data, in the shape that ``gpusharectl.top.command`` promises.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from gpushare.domain.model import (
    NOTHING,
    UNIT_MIB,
    Amount,
    Card,
)
from gpusharectl.output import (
    HIDDEN,
    INLINE,
    VERSION,
    Data,
)
from gpusharectl.state.read import Placements, Setup, Trouble
from gpusharectl.state.scrape import CardSeen, ContainerSeen
from gpusharectl.state.view import (
    Stay,
    sum_units,
)

Sort = Literal["mem", "sm", "allotted", "name"]
TOLERANCE = 1.05
"""A pod may use so many times its share before its excess is shown. Whether it is over
is the exporter's decision: it knows how much of the memory is CUDA's contexts."""


class Sign(StrEnum):
    """What is unusual about a pod or a card."""

    OVER = "over"
    """It uses more memory than its share."""
    NOT_HELD = "not-held"
    """Its isolation tier does not hold it to its share."""
    NO_SHARE = "no-share"
    """It uses a card of which it has no share."""
    UNPLACED = "unplaced"
    """Its card is not known."""
    GONE = "gone"
    """Its card no longer exists."""
    IDLE = "idle"
    LEAVING = "leaving"
    NOT_STARTED = "not-started"
    CLAIM = "claim"
    """It has its share by ResourceClaims, or is one without a known pod."""
    SICK = "sick"
    CORDONED = "cordoned"
    OUTSIDE = "outside"
    """Processes outside Kubernetes use the card."""
    UNATTRIBUTED = "unattributed"
    """Memory is in use that no known process uses."""

    @property
    def calm(self) -> bool:
        """Whether it only informs, and needs no action."""
        return self in _CALM


_CALM = frozenset(
    {Sign.IDLE, Sign.LEAVING, Sign.NOT_STARTED, Sign.CLAIM, Sign.CORDONED}
)


@dataclass(frozen=True, slots=True)
class Flag:
    """A sign in words; ``do`` is the next step, if there is one."""

    sign: Sign
    words: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """One container of a pod: what it is allotted, and what its exporter reports."""

    name: str
    allotted: Amount | None
    seen: ContainerSeen = field(metadata=INLINE)


@dataclass(frozen=True, slots=True)
class PodRow:
    """One pod on one card.

    ``card`` is empty and ``index`` None if its card is not known. ``stay`` and
    ``allotted`` are None for a pod without a share of the card. ``claims`` are the
    names of the ResourceClaims by which it has the share; a claim without a known pod
    has a row under its own name. ``sm_percent`` is of the whole card, ``idle_s`` the
    time since it last computed, ``card_units`` the card's size.
    """

    namespace: str
    name: str
    uid: str
    node: str
    card: str
    index: int | None
    stay: Stay | None
    whole: bool
    allotted: Amount | None
    used_mib: float | None
    sm_percent: float | None = None
    idle_s: float | None = None
    containers: tuple[ContainerRow, ...] = ()
    flags: tuple[Flag, ...] = ()
    claims: tuple[str, ...] = ()
    card_units: int = field(default=0, metadata=HIDDEN)

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class CardRow:
    """One card: what is allotted by the placements, and what its exporter reports."""

    node: str
    card: Card = field(metadata=INLINE)
    allotted: Amount
    seen: CardSeen = field(metadata=INLINE)
    flags: tuple[Flag, ...] = ()

    @property
    def where(self) -> str:
        """``node-1 0``, as the card commands take it."""
        return f"{self.node} {self.card.index}"


@dataclass(frozen=True, slots=True)
class TopView:
    """All that there is to show; ``elsewhere`` counts the warnings of inspect.

    ``others`` counts the nodes that share no cards.

    ``nodes`` says for each why its exporter has not answered; empty if it has.
    """

    placements: Placements
    at: datetime
    nodes: Mapping[str, str]
    cards: tuple[CardRow, ...]
    pods: tuple[PodRow, ...]
    troubles: tuple[Trouble, ...] = ()
    elsewhere: int = 0
    setup: Setup = Setup.INSTALLED
    others: int = 0

    def as_data(self) -> Data:
        """Return all of it, also what the screen leaves out."""
        units, allotted = self.units
        known = self.used_mib
        return {
            "v": VERSION,
            "at": self.at,
            "books": self.placements,
            "totals": {
                "cards": len(self.cards),
                "memory_mib": units * UNIT_MIB,
                "allotted_mib": allotted * UNIT_MIB,
                "used_mib": sum(known) if known else None,
                "cards_told": len(known),
            },
            "nodes": [
                {"name": name, "told": not because, "because": because or None}
                for name, because in self.nodes.items()
            ],
            "cards": self.cards,
            "pods": self.pods,
            "warnings": self.troubles,
        }

    @property
    def units(self) -> tuple[int, int]:
        """The units of all cards, and how many are allotted."""
        return sum_units((row.card, row.allotted) for row in self.cards)

    @property
    def used_mib(self) -> list[float]:
        """The used memory of each card of which it is known."""
        used = (row.seen.used_mib for row in self.cards)
        return [mib for mib in used if mib is not None]


def order_rows(top: TopView, sort: Sort | None) -> TopView:
    """Return the rows in this order.

    ``sort`` None: pods by memory, cards by node and index, which is their name.
    """

    def order(
        used: float | None, busy: float | None, allotted: Amount | None
    ) -> tuple[bool, float, int, int]:
        """The most first; what is not known comes last, by what is allotted."""
        value = None if sort == "allotted" else busy if sort == "sm" else used
        if value is not None:
            return (False, -value, 0, 0)
        amount = allotted or NOTHING
        return (True, 0.0, -amount.units, -amount.cores)

    cards = [*top.cards]
    pods = sorted(top.pods, key=lambda row: (row.full_name, row.node, row.card))
    if sort not in (None, "name"):
        cards.sort(
            key=lambda row: order(
                row.seen.used_mib, row.seen.busy_percent, row.allotted
            )
        )
    if sort != "name":
        pods.sort(key=lambda row: order(row.used_mib, row.sm_percent, row.allotted))
    return replace(top, cards=tuple(cards), pods=tuple(pods))


def filter_rows(top: TopView, text: str) -> TopView:
    """Return the rows that have this text in a name or a model, in any case."""

    def is_in(*names: str) -> bool:
        return text.lower() in " ".join(names).lower()

    return replace(
        top,
        cards=tuple(row for row in top.cards if is_in(row.where, row.card.model)),
        pods=tuple(row for row in top.pods if is_in(row.full_name, row.node)),
    )


def compute_excess(allotted: Amount | None, used_mib: float | None) -> float:
    """Return the MiB above a share; 0 if it is not exceeded or has no memory.

    >>> compute_excess(Amount(units=4), 1075), compute_excess(Amount(units=4), 1280)
    (0.0, 256.0)
    """
    mib = allotted.units * UNIT_MIB if allotted else 0
    if used_mib is None or not mib or used_mib <= mib * TOLERANCE:
        return 0.0
    return float(used_mib - mib)
