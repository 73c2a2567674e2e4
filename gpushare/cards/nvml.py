"""The access to NVIDIA's driver: typed calls of ``pynvml``.

What a card or a driver does not support is None, never an error: functions that an old
driver lacks (``FunctionNotFound``) and those that a card lacks (``NotSupported``).
How cards are joined is asked by ``links``.
"""

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NewType, TypeVar

import pynvml

from gpushare.cards.source import FoundCard, LeftOut, MigInstance
from gpushare.domain.card_selector import read_mig_profile
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
_LIMITS_KNOWN = frozenset(
    {pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION}
)
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


_Part = tuple[Handle, FoundCard | LeftOut]
_NO_INSTANCE = (
    "it is in MIG mode and has no instance; nvidia-smi mig -cgi PROFILE -C makes one, "
    "nvidia-smi -mig 0 ends the mode"
)
_FIRST_INSTANCE = 100
_JETSON = re.compile(r"nvgpu|\bThor\b", re.IGNORECASE)
"""In the names of Jetsons' GPUs: ``Orin (nvgpu)``, ``NVIDIA Thor``."""


@dataclass(frozen=True, slots=True)
class Described:
    """What is in one place of the driver's list: a card, or the instances of one.

    ``uuid`` and ``handle`` are of the physical card. ``parts`` are the card itself or
    its MIG instances, each with its handle, or why it cannot be shared.
    """

    uuid: CardUUID
    handle: Handle
    parts: tuple[_Part, ...]

    @property
    def cards(self) -> tuple[FoundCard, ...]:
        """The parts that can be shared."""
        return tuple(part for _, part in self.parts if isinstance(part, FoundCard))

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The parts that cannot be shared."""
        return tuple(part for _, part in self.parts if isinstance(part, LeftOut))


def describe(place: int) -> Described:
    """Return what does not change of the card in this place of the driver's list."""
    handle = handle_at(place)
    uuid = uuid_of(handle)
    pci = _optional(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    card = FoundCard(
        uuid=uuid,
        index=place,
        memory_mib=0,
        bus=pci.busId if pci else None,
        minor=_optional(lambda: pynvml.nvmlDeviceGetMinorNumber(handle)),
    )
    mode = _optional(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if not mode or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return Described(uuid, handle, ((handle, _filled(handle, card)),))
    none: _Part = (handle, LeftOut(uuid, _NO_INSTANCE))
    return Described(uuid, handle, tuple(_instances(handle, card)) or (none,))


def _filled(handle: Handle, card: FoundCard) -> FoundCard | LeftOut:
    # The total includes what the driver reserves: an old driver cannot tell that apart,
    # and an update of the driver must not change a card's units.
    memory = _optional(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    model = _optional(lambda: pynvml.nvmlDeviceGetName(handle)) or ""
    if _JETSON.search(model):
        return replace(card, model=model, integrated=True)
    if memory is None:
        return LeftOut(card.uuid, "the driver does not report how much memory it has")
    instance = card.instance
    if instance is not None:
        instance = replace(instance, profile=read_mig_profile(model))
    memory_mib = int(memory.total) // _MIB
    return replace(card, memory_mib=memory_mib, model=model, instance=instance)


def _instances(parent: Handle, card: FoundCard) -> list[_Part]:
    """Return the instances of a card in MIG mode, in the order of their places."""
    most = _needed(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(parent))
    parts = [
        part for at in range(most) if (part := _instance(parent, card, at)) is not None
    ]
    instances = Counter(
        part.instance.gpu_instance
        for _, part in parts
        if isinstance(part, FoundCard) and part.instance
    )
    return [(handle, _alone(part, instances)) for handle, part in parts]


def _instance(parent: Handle, card: FoundCard, at: int) -> _Part | None:
    try:
        handle = Handle(
            _needed(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, at))
        )
        instance = replace(
            card,
            uuid=uuid_of(handle),
            # Full cards keep the driver's numbers; an instance has its card's in it.
            index=_FIRST_INSTANCE + 10 * card.index + at,
            instance=MigInstance(
                card.uuid,
                _needed(lambda: pynvml.nvmlDeviceGetGpuInstanceId(handle)),
                _needed(lambda: pynvml.nvmlDeviceGetComputeInstanceId(handle)),
                parent_index=card.index,
                parent_model=_optional(lambda: pynvml.nvmlDeviceGetName(parent)) or "",
            ),
        )
        return handle, _filled(handle, instance)
    except CardLost:
        raise
    except CardFailed as error:
        cause = error.__cause__
        if getattr(cause, "value", None) == pynvml.NVML_ERROR_NOT_FOUND:
            return None
        return parent, LeftOut(f"instance {at} of {card.uuid}", str(error))


def _alone(
    part: FoundCard | LeftOut, instances: Mapping[int, int]
) -> FoundCard | LeftOut:
    """Leave out an instance that shares its memory with another one.

    Several compute instances of one GPU instance have all of its memory together, so
    the memory of none of them is its own.
    """
    if isinstance(part, LeftOut) or part.instance is None:
        return part
    number = part.instance.gpu_instance
    if instances[number] == 1:
        return part
    because = f"it shares the memory of GPU instance {number} with other instances"
    return LeftOut(part.uuid, f"{because}; one compute instance in each is shared")


def is_instance(uuid: CardUUID) -> bool:
    """Return whether it is the UUID of a MIG instance; the driver's begin with MIG."""
    return uuid.startswith("MIG-")


def used_mib(handle: Handle) -> int | None:
    """Return the MiB of a card that are in use now, None if the driver cannot tell.

    Without what the driver itself reserves, if it tells that apart (from 510 on).
    """
    memory = _optional(
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    ) or _optional(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    return None if memory is None else int(memory.used) // _MIB


class _Limits(ctypes.Structure):
    """``nvmlGetMemoryLimits_v1_t``: not every ``pynvml`` that is supported has it."""

    _fields_ = (
        ("nameSpace", ctypes.c_char_p),
        ("softLimit", ctypes.c_ulonglong),
        ("hardLimit", ctypes.c_ulonglong),
        ("currentUsed", ctypes.c_ulonglong),
    )


def why_no_limits(uuid: CardUUID) -> str:
    """Say why the driver cannot limit groups' memory on a card; empty if it can.

    It is asked for the limits of the root group. That it knows no such group, or that
    only the host's root may ask, is an answer of a driver that has limits.
    """
    handle = _needed(lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid))
    mode = _optional(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        return "it is in MIG mode"
    # By name and not by pynvml's function, which came later than the oldest supported.
    call = getattr(pynvml.nvmlLib, "nvmlDeviceGetMemoryLimits_v1", None)
    if call is None:
        return "the driver's NVML has no memory limits"
    code = call(handle, ctypes.byref(_Limits(b"/")))
    if code in _LIMITS_KNOWN:
        return ""
    return f"NVML answers for its memory limits: {pynvml.NVMLError(code)} ({code})"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault as the driver reports it.

    ``address`` is of the physical card's handle, 0 for none. ``instance`` has the
    numbers of the GPU instance and the compute instance if the card is in MIG mode, all
    ones if the fault is of the whole card.
    """

    address: int
    instance: tuple[int, int]
    xid: int


OF_NO_INSTANCE = 2**32 - 1


class FaultSet:
    """NVML's event set, for XIDs only. ``NoDriver`` if it cannot be created.

    ``in_use``: a registration may still hang in it, so it must not be freed before.
    """

    def __init__(self) -> None:
        self._set = _of_driver(pynvml.nvmlEventSetCreate)
        self.in_use = False

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

    def wait(self, timeout_ms: int) -> "Fault | None":
        """Wait for a fault; None if none came.

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
        instance = (int(event.gpuInstanceId), int(event.computeInstanceId))
        return Fault(address(Handle(event.device)), instance, int(event.eventData))

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
