"""The only access to NVIDIA's driver: typed calls of ``pynvml``, and a session.

What a card or a driver does not support is None, never an error: functions that an old
driver lacks (``FunctionNotFound``) and those that a card lacks (``NotSupported``). A
``Session`` has what is valid from one opening of the driver to its end: the handles and
the faults.
"""

import ctypes
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NewType, TypeVar

import pynvml

from deviceplugin.cards.deadline import DeadlineCalls, DeadlineExceeded
from deviceplugin.cards.source import FoundCard, LeftOut, XidEvent
from gpushare.domain.model import CardUUID

Answer = TypeVar("Answer")
Handle = NewType("Handle", object)
"""NVML's pointer to a card; valid until the driver is released."""

_MIB = 2**20
_DRIVERLESS = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Errors of a call about one card that concern the driver; others concern the card."""
_ABSENT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
_NOT_OF_THIS_CARD = _ABSENT | {
    pynvml.NVML_ERROR_DEPRECATED,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
}
_NO_SUCH_PART = _NOT_OF_THIS_CARD | {
    pynvml.NVML_SUCCESS,
    # A field or a metric that this driver does not know.
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
}
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
_BROKEN = frozenset(
    {pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_UNKNOWN}
)
"""Errors of a driver that no longer serves this process: it was upgraded, or the
container has lost its access to the device nodes."""
_WORDS = {
    pynvml.NVML_ERROR_UNINITIALIZED: "the driver was unloaded",
    pynvml.NVML_ERROR_NO_PERMISSION: "this user has no permission to ask it",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "NVIDIA's driver is not loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "there is no libnvidia-ml.so.1 here",
    # A loaded library stays until the process ends, so asking again does not help.
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "libnvidia-ml.so.1 is of another version than the loaded driver"
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: "the driver has lost it (GPU is lost)",
}


class NoDriver(Exception):
    """The driver itself does not answer; ``str()`` says why."""


class DriverBroken(NoDriver):
    """The driver refuses this process; opening it again may help, or a new process."""


class CardFailed(Exception):
    """One card does not answer; ``str()`` says why."""


class CardLost(CardFailed):
    """The driver has lost the card; it may find it when it is opened again."""


class QueryRefused(Exception):
    """A card answers, but refuses this one call; ``str()`` says why."""


def start() -> None:
    """Load the library and open the driver. ``NoDriver`` for any failure."""
    _of_driver(pynvml.nvmlInit)


def stop() -> None:
    """Release the driver, which may be gone already."""
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def count() -> int:
    """Return how many cards the driver lists. ``NoDriver`` for any failure."""
    return int(_of_driver(pynvml.nvmlDeviceGetCount))


def version() -> str:
    """Return the driver's version, as ``550.54.15``. ``NoDriver`` for any failure."""
    return str(_of_driver(pynvml.nvmlSystemGetDriverVersion))


def query(call: Callable[[], Answer]) -> Answer | None:
    """Call NVML; return its answer, None if the card does not support the call.

    ``QueryRefused`` if only this call fails, also for a missing permission: other calls
    may still work. ``CardFailed`` if the card is lost, and ``NoDriver``.
    """
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in _NOT_OF_THIS_CARD:
            return None
        if error.value in _DRIVERLESS:
            raise _no_driver(error) from error
        if error.value in _LOST:
            raise CardLost(_words(error)) from error
        raise QueryRefused(_words(error)) from error


def has_part(code: int) -> bool:
    """Return whether a card has one part of an answer, by the part's code.

    Raises NVML's own error for any other failure, so call it inside ``query``.
    """
    if code not in _NO_SUCH_PART:
        raise pynvml.NVMLError(code)
    return bool(code == pynvml.NVML_SUCCESS)


def handle_at(index: int) -> Handle:
    """Return the handle of the card at this place in the driver's list."""
    return Handle(_needed(lambda: pynvml.nvmlDeviceGetHandleByIndex(index)))


def address(handle: Handle) -> int:
    """Return the address that a handle points to; an event has the same address."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def uuid_of(handle: Handle) -> CardUUID:
    """Return a card's UUID, as the driver spells it."""
    return CardUUID(_needed(lambda: pynvml.nvmlDeviceGetUUID(handle)))


def describe(handle: Handle, index: int) -> FoundCard | LeftOut:
    """Return what does not change of a card, or why it cannot be shared."""
    uuid = uuid_of(handle)
    mode = _optional(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        return LeftOut(uuid, "it is in MIG mode; nvidia-smi -mig 0 ends that")
    # The total includes what the driver reserves: an old driver cannot tell that apart,
    # and an update of the driver must not change a card's units.
    memory = _optional(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    if memory is None:
        return LeftOut(uuid, "the driver does not report how much memory it has")
    pci = _optional(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    return FoundCard(
        uuid=uuid,
        index=index,
        memory_mib=int(memory.total) // _MIB,
        model=_optional(lambda: pynvml.nvmlDeviceGetName(handle)) or "",
        bus=pci.busId if pci else None,
        minor=_optional(lambda: pynvml.nvmlDeviceGetMinorNumber(handle)),
    )


def used_mib(handle: Handle) -> int | None:
    """Return the MiB of a card that are in use now, None if the driver cannot tell.

    Without what the driver itself reserves, if it tells that apart (from 510 on).
    """
    memory = _optional(
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    ) or _optional(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    return None if memory is None else int(memory.used) // _MIB


class FaultSet:
    """NVML's event set, for XIDs only. ``NoDriver`` if it cannot be created."""

    def __init__(self) -> None:
        self._set = _of_driver(pynvml.nvmlEventSetCreate)

    def register(self, handle: Handle) -> bool:
        """Register for a card's faults; False for a card that reports none.

        ``CardFailed`` for a card that does not answer: a lost card in the set would end
        every wait, and the faults of the others would be missed.
        """
        kind = pynvml.nvmlEventTypeXidCriticalError
        used_mib(handle)
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, kind, self._set)
        except pynvml.NVMLError as error:
            if error.value in _ABSENT:
                return False
            raise CardFailed(_words(error)) from error
        return True

    def wait(self, timeout_ms: int) -> tuple[int, int] | None:
        """Wait for a fault: the address of its card's handle, 0 for none, and its XID.

        ``NoDriver`` if waiting itself fails: then the set may be useless, because a
        lost card ends every later wait.
        """
        try:
            event = pynvml.nvmlEventSetWait(self._set, timeout_ms)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise NoDriver(_words(error)) from error
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        return address(Handle(event.device)), int(event.eventData)

    def free(self) -> None:
        """Free the set, as far as the driver still accepts that."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self._set)


def _of_driver(call: Callable[[], Answer]) -> Answer:
    try:
        return call()
    except pynvml.NVMLError as error:
        raise _no_driver(error) from error


def _needed(call: Callable[[], Answer]) -> Answer:
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in _DRIVERLESS:
            raise _no_driver(error) from error
        lost = error.value in _LOST | {pynvml.NVML_ERROR_UNKNOWN}
        raise (CardLost if lost else CardFailed)(_words(error)) from error


def _optional(call: Callable[[], Answer]) -> Answer | None:
    try:
        return _needed(call)
    except (CardFailed, NoDriver) as error:
        cause = error.__cause__
        if isinstance(cause, pynvml.NVMLError) and cause.value in _ABSENT:
            return None
        raise


def _no_driver(error: pynvml.NVMLError) -> NoDriver:
    broken = error.value in _BROKEN
    return (DriverBroken if broken else NoDriver)(_words(error))


def _words(error: pynvml.NVMLError) -> str:
    return _WORDS.get(error.value) or f"NVML says: {error} ({error.value})"


logger = logging.getLogger(__name__)

_END_S = 5.0


class Session:
    """What is valid only until the driver is released."""

    def __init__(self, calls: DeadlineCalls) -> None:
        self._calls = calls
        self._waiting = threading.Lock()
        self._registering = threading.Lock()
        self._handles: dict[CardUUID, Handle] = {}
        self._registered: set[CardUUID] = set()
        self._faults: FaultSet | None = None
        self._over = threading.Event()
        self._silent: set[CardUUID] = set()
        self._trouble = ""
        self._reporting: set[CardUUID] = set()

    @property
    def reports(self) -> bool:
        """Whether any card may report faults."""
        return bool(self._reporting)

    def reports_of(self, uuid: CardUUID) -> bool:
        """Return whether a card's faults are reported."""
        return uuid in self._reporting

    def handles(self) -> Mapping[CardUUID, Handle]:
        """Return the handle of each card that answered once."""
        return dict(self._handles)

    def look(self, count: int) -> dict[int, FoundCard | LeftOut | Exception]:
        """Describe each card, by its place in the driver's list; each may fail.

        ``NoDriver`` if the driver went meanwhile.
        """
        answers = self._calls.run(
            {place: partial(_describe, place) for place in range(count)}
        )
        found: dict[int, FoundCard | LeftOut | Exception] = {}
        for place, answer in answers.items():
            if isinstance(answer, NoDriver):
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
        """Wait for a fault; only one thread waits at a time."""
        if not self._waiting.acquire(timeout=timeout_s):
            return None
        try:
            faults = self._faults
            if self._over.is_set() or faults is None:
                return None
            try:
                fault = faults.wait(int(timeout_s * 1000))
            except NoDriver as error:
                self._note(str(error))
                self._replace_set(faults)
                # The new set keeps what comes now; this must not be a busy loop.
                self._over.wait(timeout_s)
                return None
        finally:
            self._waiting.release()
        self._trouble = ""
        return None if fault is None else XidEvent(self._named(fault[0]), fault[1])

    def end(self) -> None:
        """Release the driver, after the present wait for faults."""
        self._over.set()
        if self._waiting.acquire(timeout=_END_S):
            self._waiting.release()
        # It may hang as any other call; nothing here depends on its end.
        self._calls.run({"stop": self._stop})

    def _stop(self) -> None:
        if self._faults is not None:
            self._faults.free()
        stop()

    def _note(self, why: str) -> None:
        if why != self._trouble:
            logger.warning("the driver reports no faults", extra={"because": why})
        self._trouble = why

    def _named(self, at: int) -> CardUUID | None:
        # By the handle, because a card that fell off the bus does not tell its UUID.
        its = (
            uuid for uuid, one in self.handles().items() if at and address(one) == at
        )
        return next(its, None)

    def _register(self) -> None:
        """Register for the faults of new cards now, not at the first wait.

        A fault between the two would be missed.
        """
        with self._registering:
            known = self._handles.items()
            new = {uuid: one for uuid, one in known if uuid not in self._registered}
            if not new:
                return
            try:
                self._faults = self._faults or self._calls.run_one("set", FaultSet)
            except (NoDriver, DeadlineExceeded) as error:
                self._note(str(error))
                return
            register = self._faults.register
            calls = {("register", u): partial(register, one) for u, one in new.items()}
            for (_, uuid), answer in self._calls.run(calls).items():
                if isinstance(answer, Exception):
                    self._note_silent(uuid, answer)
                    continue
                self._silent.discard(uuid)
                self._registered.add(uuid)
                self._reporting |= {uuid} if answer else set()

    def _replace_set(self, useless: FaultSet) -> None:
        """Replace a set that fails by one without the cards that are lost.

        Those are tried again at each look, like new cards.
        """
        with self._registering:
            self._faults = None
            self._registered = set()
        self._register()
        self._calls.run({"free": useless.free})

    def _note_silent(self, uuid: CardUUID, why: Exception) -> None:
        if uuid not in self._silent:
            extra = {"card": uuid, "because": str(why)}
            logger.warning("a card's faults are not reported", extra=extra)
        self._silent.add(uuid)


def _describe(place: int) -> tuple[Handle, FoundCard | LeftOut]:
    handle = handle_at(place)
    return handle, describe(handle, place)
