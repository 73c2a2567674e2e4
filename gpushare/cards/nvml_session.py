"""What is valid from one opening of NVIDIA's driver to its end: handles and faults."""

import logging
import threading
from collections import deque
from collections.abc import Mapping
from functools import partial

from gpushare.cards import nvml
from gpushare.cards.deadline import DeadlineCalls, DeadlineExceeded
from gpushare.cards.nvml import (
    OF_NO_INSTANCE,
    Described,
    Fault,
    FaultSet,
    Handle,
    NoDriver,
    address,
    describe,
)
from gpushare.cards.source import FoundCard, XidEvent
from gpushare.domain.model import CardUUID

logger = logging.getLogger(__name__)

RELEASE = "release"


class NvmlSession:
    """The handles and the faults of one opening of the driver."""

    def __init__(self, calls: DeadlineCalls) -> None:
        self._calls = calls
        self._waiting = threading.Lock()
        self._registering = threading.Lock()
        self._handles: dict[CardUUID, Handle] = {}
        self._physical: dict[CardUUID, Described] = {}
        self._owners: dict[CardUUID, CardUUID] = {}
        self._events: deque[XidEvent] = deque()
        self._registered: set[CardUUID] = set()
        self._faults: FaultSet | None = None
        self._created: FaultSet | None = None
        self._over = threading.Event()
        self._silent: set[CardUUID] = set()
        self._trouble = ""
        self._reporting: set[CardUUID] = set()

    @property
    def reports(self) -> bool:
        """Whether any card may report faults."""
        return self._faults is not None and bool(self._reporting)

    def reports_of(self, uuid: CardUUID) -> bool:
        """Return whether a card's faults, or its parent's, are reported."""
        return self.reports and self._owners.get(uuid) in self._reporting

    def handles(self) -> Mapping[CardUUID, Handle]:
        """Return the handle of each card that answered once."""
        return dict(self._handles)

    def describe_cards(self, count: int) -> dict[int, Described | Exception]:
        """Describe what is in each place of the driver's list; each may fail.

        ``NoDriver`` if the driver went meanwhile.
        """
        answers = self._calls.make_all(
            {place: partial(describe, place) for place in range(count)}
        )
        for answer in answers.values():
            if isinstance(answer, NoDriver):
                raise answer
            if isinstance(answer, Described) and answer.cards:
                self._physical[answer.uuid] = answer
                for handle, part in answer.parts:
                    if isinstance(part, FoundCard):
                        self._handles[part.uuid] = handle
                        self._owners[part.uuid] = answer.uuid
        self._register()
        return dict(answers)

    def wait(self, timeout_s: float) -> XidEvent | None:
        """Wait for a fault; only one thread waits at a time."""
        if not self._waiting.acquire(timeout=timeout_s):
            return None
        try:
            faults = self._faults
            if self._over.is_set() or faults is None:
                return None
            if self._events:
                return self._events.popleft()
            try:
                fault = faults.wait(int(timeout_s * 1000))
            except NoDriver as error:
                self._note(str(error))
                self._replace_set(faults)
                # The new set keeps what comes now; this must not be a busy loop.
                self._over.wait(timeout_s)
                return None
            self._trouble = ""
            if fault is None:
                return None
            self._events += (XidEvent(u, fault.xid) for u in self._concerned(fault))
            return self._events.popleft()
        finally:
            self._waiting.release()

    def end(self) -> None:
        """Let nobody wait for faults any more; ``release`` comes later."""
        self._over.set()

    def release(self) -> None:
        """Release the driver when no call of it is made any more, however late.

        To be made as the call ``RELEASE``. A library that is shut down, and a set that
        is freed, under a call that hangs are a corrupt heap when the driver answers.
        """
        with self._waiting:
            self._calls.wait_for_others(RELEASE)
            # A set whose creation had hung may be there too.
            for faults in filter(None, (self._faults, self._created)):
                faults.free()
            nvml.stop()

    def _note(self, why: str) -> None:
        if why != self._trouble:
            logger.warning("the driver reports no faults", extra={"because": why})
        self._trouble = why

    def _concerned(self, fault: Fault) -> tuple[CardUUID | None, ...]:
        """Return the card or the instances that a fault concerns, None if unknown.

        A fault of an instance that is not known yet is its card's alone: the other
        instances go on.
        """
        # By the handle, because a card that fell off the bus does not tell its UUID.
        known = list(self._physical.values()) if fault.address else ()
        at = (card for card in known if address(card.handle) == fault.address)
        if (concerned := next(at, None)) is None:
            return (None,)
        parts = {
            (instance.gpu_instance, instance.compute_instance): card.uuid
            for card in concerned.cards
            if (instance := card.instance)
        }
        if not parts:
            return (concerned.uuid,)
        if fault.instance[0] == OF_NO_INSTANCE:
            return tuple(parts.values())
        return (parts.get(fault.instance, concerned.uuid),)

    def _register(self) -> None:
        """Register for the faults of new cards now, not at the first wait.

        A fault between the two would be missed.
        """
        with self._registering:
            # Only whole cards: the driver reports the faults of their instances, too.
            known = self._physical.items()
            new = {u: card.handle for u, card in known if u not in self._registered}
            if not new:
                return
            try:
                faults = self._faults or self._new_set()
            except (NoDriver, DeadlineExceeded) as error:
                self._note(str(error))
                return
            if faults is None:
                return
            self._faults = faults

            def register(handle: Handle) -> tuple[FaultSet, bool]:
                return faults, faults.register(handle)

            calls = {
                ("register", u): partial(register, handle) for u, handle in new.items()
            }
            for (_, uuid), answer in self._calls.make_all(calls).items():
                if isinstance(answer, Exception):
                    faults.in_use |= isinstance(answer, DeadlineExceeded)
                    self._note_silent(uuid, answer)
                    continue
                registered_in, reports = answer
                if registered_in is not faults:
                    # A session that ended has just made this call, for its own set.
                    continue
                self._silent.discard(uuid)
                self._registered.add(uuid)
                self._reporting |= {uuid} if reports else set()

    def _new_set(self) -> FaultSet | None:
        """Create a set of this session's own; None if that has to be tried again.

        Sessions share their calls. The one that ended may be creating a set just now:
        it would be freed twice if both had it.
        """

        def create() -> None:
            self._created = FaultSet()

        self._calls.make_one("set", create)
        faults, self._created = self._created, None
        return faults

    def _replace_set(self, useless: FaultSet) -> None:
        """Replace a set that fails by one without the cards that are lost.

        Those are tried again at each look, like new cards.
        """
        with self._registering:
            self._faults = None
            self._registered = set()
        self._register()
        if not useless.in_use:
            self._calls.make_all({"free": useless.free})

    def _note_silent(self, uuid: CardUUID, why: Exception) -> None:
        if uuid not in self._silent:
            extra = {"card": uuid, "because": str(why)}
            logger.warning("a card's faults are not reported", extra=extra)
        self._silent.add(uuid)
