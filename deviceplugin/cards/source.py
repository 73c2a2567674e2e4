"""How the device plugin knows a node's cards: one Protocol, and the ids of devices.

``NvmlCards`` asks the driver, ``SimulatedCards`` plays cards, ``InventoryCards`` reads
a file about accelerators that the driver does not know; one contract suite
(``tests/contract/test_card_source.py``) holds all to the same behaviour.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpushare.domain.model import CORES_PER_CARD, Card, CardUUID, units_of

_HEX = re.compile(r"[0-9a-f]{8}")
_DEVICE = re.compile(r"(?P<key>[0-9a-f]{8})-(?P<kind>[cm])(?P<number>\d{3,7})")


class NoCardsYet(Exception):
    """There is nothing to ask: no driver, or one that does not answer yet.

    ``str()`` says why, in words for an operator. Ask again later.
    """


class DriverLost(Exception):
    """The driver serves this process no more, and opening it anew did not help.

    ``str()`` says why. End the process, so that a new one is started in its place.
    """


@dataclass(frozen=True, slots=True)
class FoundCard:
    """One card as its source knows it; nothing here changes while the driver is loaded.

    ``index`` orders cards and is what people call them by. ``bus`` is the PCI address,
    ``minor`` the number in ``/dev/nvidiaN``; None where there is none. ``nodes`` are
    the device nodes of this card alone, ``variables`` what a container needs beside
    them; both are empty for NVIDIA's cards, which ``allocation`` knows.
    """

    uuid: CardUUID
    index: int
    memory_mib: int
    model: str = ""
    bus: str | None = None
    minor: int | None = None
    nodes: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    known_to_driver: bool = True
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A card that is there and cannot be shared, and why: ``it is in MIG mode``."""

    name: str
    because: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a look at the node found: by index, and what was left out."""

    cards: tuple[FoundCard, ...]
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class CardReading:
    """What the source said of a card just now.

    ``failure`` is empty for a card that answered; else it says what was wrong, and
    ``used_mib`` is None. None beside no failure: the source cannot tell the use.
    """

    uuid: CardUUID
    used_mib: int | None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A fault that the driver reported; ``uuid`` is None where it named no card."""

    uuid: CardUUID | None
    xid: int


class CardSource(Protocol):
    """Who knows the cards of this node. All methods may be called from any thread."""

    def cards(self) -> Found:
        """Look at the node now.

        ``NoCardsYet`` where there is nothing to ask, ``DriverLost`` where there will
        be nothing until this process is started anew.
        """
        ...

    def readings(self) -> Sequence[CardReading]:
        """Read each card that ``cards`` last found, those that fail included.

        A card that hangs is reported as a failure after a deadline and does not keep
        the others waiting. ``NoCardsYet`` where the driver itself is gone, and
        ``DriverLost`` as ``cards``.
        """
        ...

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait for the next fault; None after ``timeout_s``, or where none can come."""
        ...

    def driver_load(self) -> str:
        """Name the present loading of the driver: another name after each loading.

        Empty where that cannot be told.
        """
        ...

    def close(self) -> None:
        """Let go of the driver; the source may not be asked again."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceId:
    """One device as kubelet knows it: one unit or one core of one card.

    ``1f9c27aa-m0017``: the card's key, ``m`` for memory or ``c`` for cores, a number.
    At most 16 characters, since kubelet writes all of them down again and again
    (contracts 2.5), and the same over restarts, reboots and versions.
    """

    key: str
    kind: str
    number: int

    def __str__(self) -> str:
        width = 3 if self.kind == "c" else 4
        return f"{self.key}-{self.kind}{self.number:0{width}d}"

    @classmethod
    def parse(cls, text: str) -> "DeviceId | None":
        """Read an id; None for what is none of ours."""
        found = _DEVICE.fullmatch(text)
        if found is None:
            return None
        return cls(found["key"], found["kind"], int(found["number"]))


CORE_KIND = "c"
MEMORY_KIND = "m"


def card_key(uuid: CardUUID) -> str:
    """Give the eight hex digits that a card's device ids begin with.

    The first eight of its UUID, with or without a vendor's prefix; of its SHA-256 where
    it does not begin with any.

    >>> card_key(CardUUID("GPU-9F12F917-e458-4bb8-3d9d-8dc7fd6cddf7"))
    '9f12f917'
    """
    lowered = uuid.lower()
    for text in (lowered, lowered.partition("-")[2]):
        if _HEX.match(text):
            return text[:8]
    return hashlib.sha256(uuid.encode()).hexdigest()[:8]


def colliding(cards: Iterable[FoundCard | Card]) -> list[str]:
    """Say which cards cannot be told apart by their ids; empty where all can."""
    by_key: dict[str, list[str]] = {}
    for card in cards:
        by_key.setdefault(card_key(card.uuid), []).append(card.uuid)
    return [
        f"cards {' and '.join(uuids)} would have the same device ids ({key}-...); "
        "leave one of them out"
        for key, uuids in by_key.items()
        if len(uuids) > 1
    ]


def shared_card(card: FoundCard, reserve_mib: int, *, healthy: bool = True) -> Card:
    """Give a card as it is offered: its memory less the reserve, in whole units."""
    units = units_of(max(0, card.memory_mib - reserve_mib))
    return Card(card.uuid, card.index, units, healthy, card.model)


def device_ids(card: Card, kind: str) -> list[str]:
    """Name all cores or all units of a card."""
    count = CORES_PER_CARD if kind == CORE_KIND else card.units
    key = card_key(card.uuid)
    return [str(DeviceId(key, kind, number)) for number in range(count)]
