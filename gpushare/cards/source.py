"""How the device plugin knows a node's cards: the ``CardSource`` protocol.

``NvmlCards`` asks NVIDIA's driver, ``SimulatedCards`` invents cards, ``InventoryCards``
reads a file about accelerators that the driver does not know. One contract suite
(``tests/contract/test_card_source.py``) holds all to the same behaviour.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpushare.domain.model import CardUUID


class NoCardsYet(Exception):
    """There is nothing to ask: no driver, or one that does not answer yet.

    ``str()`` says why, in words for an operator. Ask again later.
    """


class DriverLost(Exception):
    """The driver no longer serves this process, and opening it again did not help.

    ``str()`` says why. End the process, so that a new one is started in its place.
    """


@dataclass(frozen=True, slots=True)
class MigInstance:
    """Which part of which card a MIG instance is.

    ``parent`` is the card's UUID. ``profile`` is NVIDIA's name of its size, such as
    ``2g.20gb``; empty if the driver does not tell. ``parent_index`` and
    ``parent_model`` are the driver's number and name of the card.
    """

    parent: CardUUID
    gpu_instance: int
    compute_instance: int
    profile: str = ""
    parent_index: int = 0
    parent_model: str = ""


@dataclass(frozen=True, slots=True)
class FoundCard:
    """One card as its source knows it; nothing here changes while the driver is loaded.

    ``index`` orders cards and is the number that people use. ``bus`` is the PCI
    address, ``minor`` the number in ``/dev/nvidiaN``; None if there is none. A MIG
    instance has those of its card. ``device_nodes`` are those of this card alone beside
    ``/dev/nvidiaN``, ``variables`` what a container needs beside them. NVIDIA's cards
    have no variables here, because the device plugin knows them. An ``integrated`` one
    has no memory of its own, as a Jetson's: it is measured, and no part of it is
    allotted. One that is not ``offered`` has memory of its own and is only measured
    too: the device plugin does not know it. ``links`` has the score of each pair with
    another card that is known (``gpushare.domain.links``).
    """

    uuid: CardUUID
    index: int
    memory_mib: int
    model: str = ""
    bus: str | None = None
    minor: int | None = None
    device_nodes: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    known_to_driver: bool = True
    simulated: bool = False
    integrated: bool = False
    offered: bool = True
    instance: MigInstance | None = None
    links: Mapping[CardUUID, int] = field(default_factory=dict)

    @property
    def physical(self) -> CardUUID:
        """The UUID of the card that can be lost: of an instance, its parent's."""
        return self.uuid if self.instance is None else self.instance.parent


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A card that exists but cannot be shared, and why: ``it is in MIG mode``."""

    name: str
    because: str


@dataclass(frozen=True, slots=True)
class FoundCards:
    """The cards found on the node, by index, and those that were left out."""

    cards: tuple[FoundCard, ...]
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class CardReading:
    """The last reading of one card.

    ``failure`` is empty if the card answered; else it says what was wrong, and
    ``used_mib`` is None. ``used_mib`` None without a failure: the source cannot tell.
    """

    uuid: CardUUID
    used_mib: int | None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A fault that the driver reported; ``uuid`` is None if it named no card."""

    uuid: CardUUID | None
    xid: int


class FindsCards(Protocol):
    """Finds the cards of this node. All methods may be called from any thread."""

    def cards(self) -> FoundCards:
        """Look for cards on the node now.

        Raises ``NoCardsYet`` if there is nothing to ask, and ``DriverLost`` if only a
        new process can have the cards.
        """
        ...

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait for the next fault; None after ``timeout_s``, or if none can come."""
        ...

    def close(self) -> None:
        """Release the driver; the source may not be used afterwards."""
        ...


class WithoutFaults:
    """The part of ``FindsCards`` of cards that never report a fault."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait and return None."""
        self._closed.wait(timeout_s)
        return None

    def close(self) -> None:
        """Wake the threads that wait for an event."""
        self._closed.set()


class CardSource(FindsCards, Protocol):
    """Knows the cards of this node, and reads the memory in use of each."""

    def readings(self) -> Sequence[CardReading]:
        """Read each card that ``cards`` found last, also those that fail.

        A card that hangs becomes a failure after a deadline and does not delay the
        others. Raises ``NoCardsYet`` if the driver itself is gone, and ``DriverLost``.
        """
        ...

    def driver_load(self) -> str:
        """Return a name of the present loading of the driver; each loading differs.

        Empty if that cannot be told.
        """
        ...
