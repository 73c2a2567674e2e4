"""Cards that the driver does not know: a node's accelerators, listed in a file."""

import os.path
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.asking import Asking
from deviceplugin.cardfile import cards_in
from deviceplugin.cards import CardReading, Found, FoundCard, XidEvent
from gpushare.domain.model import CardUUID

_MOST_DIGITS = 12
_READ_BYTES = 64


@dataclass(frozen=True, slots=True)
class InventoryCard:
    """One card of the file, and the file that tells its memory in use, if any does."""

    card: FoundCard
    used_mib_file: str | None = None


def read_inventory(path: Path) -> tuple[InventoryCard, ...] | list[str]:
    """Give the cards of an inventory file (``cardfile`` shows one), or all complaints.

    Cards without an index follow, in the file's order, those that have one.
    """
    written = cards_in(path, needed=("uuid", "memory_mib"))
    if isinstance(written, list):
        return written
    following = 1 + max(
        (one.index for one in written if one.index is not None), default=-1
    )
    found = []
    for one in written:
        index = one.index
        if index is None:
            index, following = following, following + 1
        card = FoundCard(
            uuid=CardUUID(one.uuid),
            index=index,
            memory_mib=one.memory_mib,
            model=one.model,
            nodes=one.nodes,
            variables=one.variables,
            known_to_driver=False,
        )
        found.append(InventoryCard(card, one.used_mib_file))
    return tuple(sorted(found, key=lambda one: one.card.index))


class InventoryCards:
    """A ``CardSource`` of the cards in an inventory file.

    A card is there while its device nodes are: one that is missing is a failure, for
    no container could open the card. That the file of the memory in use is missing, or
    holds no number, is none: such files come and go with the vendor's own daemon, and
    the card works without. Its use is then unknown, None.
    """

    def __init__(
        self, cards: Sequence[InventoryCard], *, deadline_s: float = 5.0
    ) -> None:
        self._cards = tuple(cards)
        self._asking = Asking(deadline_s)
        self._closed = threading.Event()

    def cards(self) -> Found:
        """Give the file's cards, whether or not their device nodes are there."""
        return Found(tuple(one.card for one in self._cards))

    def readings(self) -> Sequence[CardReading]:
        """Look for each card's device nodes, and read its memory in use."""
        answers = self._asking.ask(
            {one.card.uuid: _Reading(one) for one in self._cards}
        )
        return [
            CardReading(uuid, None, str(answer))
            if isinstance(answer, Exception)
            else answer
            for uuid, answer in answers.items()
        ]

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait in vain: nobody reports faults of such cards."""
        self._closed.wait(timeout_s)
        return None

    def driver_load(self) -> str:
        """Give nothing: their drivers are not known."""
        return ""

    def close(self) -> None:
        """Wake whoever waits for an event."""
        self._closed.set()


@dataclass(frozen=True, slots=True)
class _Reading:
    """The question that is asked of one card."""

    one: InventoryCard

    def __call__(self) -> CardReading:
        card = self.one.card
        missing = [node for node in card.nodes if not os.path.exists(node)]  # noqa: PTH110
        if missing:
            return CardReading(card.uuid, None, f"{', '.join(missing)} is missing")
        used = _used_mib(self.one.used_mib_file)
        # A number above the card's memory is some other number: then nothing is known.
        known = used is not None and used <= card.memory_mib
        return CardReading(card.uuid, used if known else None)


def _used_mib(path: str | None) -> int | None:
    if path is None:
        return None
    try:
        with Path(path).open("rb") as opened:
            text = opened.read(_READ_BYTES).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else None
