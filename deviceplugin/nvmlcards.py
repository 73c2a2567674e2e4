"""NVIDIA's cards as the driver tells of them; ``nvml`` is the door to it.

What a driver does to its users is met here: it may be loaded later or anew, cards fall
off the bus, calls hang. A card once known stays listed under its index, since its
devices and pods do not vanish with it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from deviceplugin import nvml
from deviceplugin.asking import Asking, Late
from deviceplugin.cards import (
    CardReading,
    Found,
    FoundCard,
    LeftOut,
    NoCardsYet,
    XidEvent,
)
from deviceplugin.nvmlsession import Session
from gpushare.domain.model import CardUUID

Answer = TypeVar("Answer")

DEADLINE_S = 5.0
_SLICE_S = 0.5


class NvmlCards:
    """A ``CardSource`` over NVML.

    ``deadline_s`` is how long one card, or the driver, may take over one answer.
    ``root`` is where the host's ``/proc`` and ``/sys`` are found.
    """

    def __init__(
        self, *, deadline_s: float = DEADLINE_S, root: Path = Path("/")
    ) -> None:
        self._asking = Asking(deadline_s)
        self._root = root
        self._looking = threading.Lock()
        self._closed = threading.Event()
        self._session: Session | None = None
        self._known: dict[str, FoundCard] = {}
        self._listed: tuple[FoundCard, ...] = ()

    def cards(self) -> Found:
        """Look at the node: cards known from before stay, those in MIG mode do not."""
        with self._looking:
            try:
                session = self._session or self._open()
                left_out = self._look(session)
            except (nvml.NoDriver, Late) as error:
                self._drop()
                raise NoCardsYet(str(error)) from error
            return Found(self._listed, left_out)

    def readings(self) -> Sequence[CardReading]:
        """Read the memory in use of each card; the driver is opened where need be."""
        answers = self.ask("memory in use", lambda _, handle: nvml.used_mib(handle))
        return [_reading(card, answer) for card, answer in answers]

    def ask(
        self, about: str, question: Callable[[CardUUID, nvml.Handle], Answer]
    ) -> list[tuple[FoundCard, Answer | Exception]]:
        """Ask each card last found; the driver is opened where need be. ``NoCardsYet``.

        ``about`` tells questions apart: a card that hangs at one is asked the others.
        """
        if self._session is None:
            self.cards()
        session, listed = self._session, self._listed
        if session is None:
            raise NoCardsYet("the driver was let go of")
        handles = session.handles()
        answers = self._asking.ask(
            {
                (about, card.uuid): partial(question, card.uuid, handles[card.uuid])
                for card in listed
                if card.uuid in handles
            }
        )
        for answer in answers.values():
            if isinstance(answer, nvml.NoDriver):
                with self._looking:
                    self._drop(session)
                raise NoCardsYet(str(answer)) from answer
        unlisted = nvml.CardFailed("the driver does not list it any more")
        return [(card, answers.get((about, card.uuid), unlisted)) for card in listed]

    def driver_version(self) -> str:
        """Give the driver's version; empty while it is not open, or does not tell."""
        if self._session is None:
            return ""
        try:
            return self._asking.ask_one("version", nvml.version)
        except (nvml.NoDriver, Late):
            return ""

    def reports_faults_of(self, uuid: CardUUID) -> bool:
        """Tell whether ``wait_for_event`` may bring a card's faults."""
        session = self._session
        return session is not None and session.reports_of(uuid)

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait for an XID, in slices, so that ``close`` need not wait long.

        Without a driver, and where no card reports faults, the time passes in vain.
        """
        ends = time.monotonic() + timeout_s
        while not self._closed.is_set():
            left_s = min(_SLICE_S, ends - time.monotonic())
            session = self._session
            event = session.wait(max(0.0, left_s)) if session else None
            if event is not None or left_s <= 0:
                return event
            if session is None or not session.reports:
                self._closed.wait(left_s)
        return None

    def driver_load(self) -> str:
        """Name the loading by the boot and the inode of the module's folder in sysfs.

        sysfs gives a folder a new number each time it is made, so each time that the
        module is loaded.
        """
        try:
            boot = (self._root / "proc/sys/kernel/random/boot_id").read_text().strip()
            module = (self._root / "sys/module/nvidia").stat().st_ino
        except OSError:
            return ""
        return f"{boot}/{module}"

    def close(self) -> None:
        """Let go of the driver."""
        self._closed.set()
        with self._looking:
            self._drop()

    def _open(self) -> Session:
        if self._closed.is_set():
            raise nvml.NoDriver("this source was closed")
        self._asking.ask_one("start", nvml.start)
        self._session = Session(self._asking)
        return self._session

    def _drop(self, expected: Session | None = None) -> None:
        session = self._session
        if session is not None and expected in (None, session):
            self._session = None
            session.end()

    def _look(self, session: Session) -> tuple[LeftOut, ...]:
        count = self._asking.ask_one("count", nvml.count)
        left_out: dict[str, LeftOut] = {}
        for index, answer in session.look(count).items():
            if isinstance(answer, FoundCard):
                self._remember(answer)
            elif isinstance(answer, LeftOut):
                left_out[answer.name] = answer
            elif session.uuid_at(index) is None:
                name = f"card {index}"
                left_out[name] = LeftOut(name, str(answer))
        cards = [card for uuid, card in self._known.items() if uuid not in left_out]
        self._listed = tuple(sorted(cards, key=lambda card: card.index))
        return tuple(left_out.values())

    def _remember(self, card: FoundCard) -> None:
        """Keep a card under the index it had first, whatever the driver counts now."""
        known = self._known.get(card.uuid)
        taken = {one.index for one in self._known.values()}
        if known is not None:
            card = replace(card, index=known.index)
        elif card.index in taken:
            card = replace(card, index=max(taken) + 1)
        self._known[card.uuid] = card


def _reading(card: FoundCard, answer: int | Exception | None) -> CardReading:
    if isinstance(answer, Exception):
        return CardReading(card.uuid, None, str(answer))
    # What the driver keeps may be counted in: never more than there is.
    return CardReading(
        card.uuid, None if answer is None else min(answer, card.memory_mib)
    )
