"""From one opening of NVIDIA's driver to its end: the handles, and the faults."""

import logging
import threading
from collections.abc import Mapping
from functools import partial

from deviceplugin import nvml
from deviceplugin.asking import Asking, Late
from deviceplugin.cards import FoundCard, LeftOut, XidEvent
from gpushare.domain.model import CardUUID

logger = logging.getLogger(__name__)

_END_S = 5.0


class Session:
    """What is good only until the driver is let go of."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._waiting = threading.Lock()
        self._registering = threading.Lock()
        self._handles: dict[CardUUID, nvml.Handle] = {}
        self._asked: set[CardUUID] = set()
        self._faults: nvml.FaultSet | None = None
        self._over = threading.Event()
        self._silent: set[CardUUID] = set()
        self._trouble = ""
        self._reporting: set[CardUUID] = set()

    @property
    def reports(self) -> bool:
        """Whether any card may report faults."""
        return bool(self._reporting)

    def reports_of(self, uuid: CardUUID) -> bool:
        """Tell whether a card's faults are reported."""
        return uuid in self._reporting

    def handles(self) -> Mapping[CardUUID, nvml.Handle]:
        """Give the handle of each card that answered once."""
        return dict(self._handles)

    def look(self, count: int) -> dict[int, FoundCard | LeftOut | Exception]:
        """Describe each card, by its place in the driver's list; each may fail.

        ``NoDriver`` where the driver went meanwhile.
        """
        answers = self._asking.ask(
            {place: partial(_describe, place) for place in range(count)}
        )
        found: dict[int, FoundCard | LeftOut | Exception] = {}
        for place, answer in answers.items():
            if isinstance(answer, nvml.NoDriver):
                raise answer
            if isinstance(answer, Exception):
                found[place] = answer
                continue
            handle, card = answer
            found[place] = card
            if isinstance(card, FoundCard):
                self._handles[card.uuid] = handle
        self._register()
        return found

    def wait(self, timeout_s: float) -> XidEvent | None:
        """Wait for a fault; one waiter at a time, the others wait for their turn."""
        if not self._waiting.acquire(timeout=timeout_s):
            return None
        try:
            faults = self._faults
            if self._over.is_set() or faults is None:
                return None
            try:
                fault = faults.wait(int(timeout_s * 1000))
            except nvml.NoDriver as error:
                self._note(str(error))
                self._listen_anew(faults)
                # What comes now is kept by the new set; meanwhile this must not spin.
                self._over.wait(timeout_s)
                return None
        finally:
            self._waiting.release()
        self._trouble = ""
        return None if fault is None else XidEvent(self._named(fault), fault.xid)

    def end(self) -> None:
        """Let go of the driver, after the present wait for faults."""
        self._over.set()
        if self._waiting.acquire(timeout=_END_S):
            self._waiting.release()
        # As any other call it may hang; nothing here needs to know its end.
        self._asking.ask({"stop": self._stop})

    def _stop(self) -> None:
        if self._faults is not None:
            self._faults.free()
        nvml.stop()

    def _note(self, why: str) -> None:
        if why != self._trouble:
            logger.warning("the driver reports no faults", extra={"why": why})
        self._trouble = why

    def _named(self, fault: nvml.Fault) -> CardUUID | None:
        # By the handle: a card that fell off the bus no longer tells its UUID.
        for uuid, handle in self.handles().items():
            if fault.address and nvml.address(handle) == fault.address:
                return uuid
        return None

    def _register(self) -> None:
        """Ask for the faults of cards not yet asked, now and not at the first wait.

        A fault between the two would go by unseen.
        """
        with self._registering:
            new = {
                uuid: one
                for uuid, one in self._handles.items()
                if uuid not in self._asked
            }
            if not new:
                return
            try:
                self._faults = self._faults or self._asking.ask_one(
                    "set", nvml.FaultSet
                )
            except (nvml.NoDriver, Late) as error:
                self._note(str(error))
                return
            register = self._faults.register
            self._note_registered(
                self._asking.ask(
                    {
                        ("register", uuid): partial(register, one)
                        for uuid, one in new.items()
                    }
                )
            )

    def _note_registered(
        self, answers: Mapping[tuple[str, CardUUID], bool | Exception]
    ) -> None:
        for (_, uuid), answer in answers.items():
            if isinstance(answer, Exception):
                self._note_silent(uuid, answer)
                continue
            self._silent.discard(uuid)
            self._asked.add(uuid)
            self._reporting |= {uuid} if answer else set()

    def _listen_anew(self, useless: nvml.FaultSet) -> None:
        """Put another set in place of one that fails, without the cards that are lost.

        Those are tried again at each look, as cards that were never asked.
        """
        with self._registering:
            self._faults = None
            self._asked = set()
        self._register()
        self._asking.ask({"free": useless.free})

    def _note_silent(self, uuid: CardUUID, why: Exception) -> None:
        if uuid not in self._silent:
            extra = {"card": uuid, "why": str(why)}
            logger.warning("a card's faults are not reported", extra=extra)
        self._silent.add(uuid)


def _describe(place: int) -> tuple[nvml.Handle, FoundCard | LeftOut]:
    handle = nvml.handle_at(place)
    return handle, nvml.describe(handle, place)
