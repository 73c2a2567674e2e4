"""Who is on one of NVIDIA's cards, and what each of them takes of its time.

Neither is told plainly. Lists of processes come in three layouts that only the call's
name tells apart; samples of their work come in a ring with garbage in it, empty for an
idle card and, with some drivers, empty for a busy one, too.
"""

import ctypes
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pynvml

from deviceplugin.cards import nvml
from deviceplugin.cards.nvml import Handle
from deviceplugin.telemetry.base import ProcessesSay, ProcessUse, SmSource
from deviceplugin.telemetry.nvml_values import busy_percent
from gpushare.domain.model import CardUUID

_MIB = 2**20
_UNKNOWN_BYTES = 2**64 - 1
_FULL = 100
_SHORTEST_S = 1.0
_LONGEST_S = 10.0
_NOTHING_NEW = frozenset({pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND})
"""An idle card; pynvml raises even the success, where no sample comes with it."""

Listed = dict[int, float | None]
"""MiB by process id, None where the driver cannot tell."""


@dataclass(frozen=True, slots=True)
class Work:
    """How busy a process kept the card (%), until ``at`` (us since 1970)."""

    at: int
    sm: float
    memory_copy: float
    encoder: float
    decoder: float

    @property
    def likely(self) -> bool:
        """Whether a card can be so busy: a driver's ring holds garbage as well."""
        return max(self.sm, self.memory_copy, self.encoder, self.decoder) <= _FULL


_TELLERS = (
    (SmSource.SAMPLES, "nvmlDeviceGetProcessUtilization"),
    (SmSource.INFO, "nvmlDeviceGetProcessesUtilizationInfo"),
)
_IDLE = Work(0, 0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Card:
    """What is remembered of a card: when it was read, and which call told of work.

    ``lists`` are the kinds of processes that were ever listed of it.
    """

    read_at: float = 0.0
    teller: SmSource | None = None
    lists: set[str] = field(default_factory=set)


class ProcessLists:
    """Reads the processes of cards, each card from one thread at a time.

    ``clock`` gives seconds since 1970, as the driver stamps its samples.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cards: dict[CardUUID, _Card] = {}

    def read(self, uuid: CardUUID, handle: Handle) -> ProcessesSay:
        """Read who uses a card. ``CardFailed``, ``NotTold`` and ``NoDriver``.

        ``NotTold`` where a part of its processes is not told just now: those that are
        would look like all there are, and the others' containers idle.
        """
        card = self._cards.setdefault(uuid, _Card())
        owners = _running(card, handle)
        if owners is None:
            return ProcessesSay(known=False)
        clients = _listed("MPSCompute", card, handle) or {}
        running = _joined(owners, clients)
        now = self._clock()
        # Since the last reading: a whole ring would show what ended long ago. And a
        # second at least, for the driver samples no oftener than that.
        since = min(max(card.read_at, now - _LONGEST_S), now - _SHORTEST_S)
        card.read_at = now
        source, work = _told(card, handle, int(since * 1e6), running.keys())
        return ProcessesSay(
            tuple(
                _use(pid, running[pid], _of(work, pid, client=pid in clients))
                for pid in sorted(running)
            ),
            source,
        )


def _running(card: _Card, handle: Handle) -> Listed | None:
    compute = _listed("Compute", card, handle)
    graphics = _listed("Graphics", card, handle)
    if compute is None and graphics is None:
        return None
    return _joined(compute or {}, graphics or {})


def _joined(one: Listed, other: Listed) -> Listed:
    """Join two lists; a process in both is told of with the same memory, so once."""
    joined = dict(one)
    for pid, mib in other.items():
        known = [had for had in (joined.get(pid), mib) if had is not None]
        joined[pid] = max(known, default=None)
    return joined


def _listed(kind: str, card: _Card, handle: Handle) -> Listed | None:
    """List by the newest call that the driver has; None where it has none for a card.

    A lesser list that was never told is as good as none. ``NotTold`` for any other that
    fails: there may be somebody in it.
    """
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    calls = (
        partial(_newer_list, f"{name}_v3", handle),
        partial(_newer_list, f"{name}_v2", handle),
        partial(_first_list, name, handle),
    )
    try:
        for call in calls:
            listed = nvml.told(call)
            if listed is not None:
                card.lists.add(kind)
                return listed
    except nvml.NotTold:
        if kind == "Compute" or kind in card.lists:
            raise
    return None


def _newer_list(name: str, handle: Handle) -> Listed:
    return _by_pid(
        (one.pid, one.usedGpuMemory) for one in getattr(pynvml, name)(handle)
    )


class _FirstProcess(ctypes.Structure):
    """The layout before ``_v2``, which pynvml no longer knows."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))


def _first_list(name: str, handle: Handle) -> Listed:
    call = getattr(pynvml.nvmlLib, name, None)
    if call is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    count = ctypes.c_uint(0)
    code = call(handle, ctypes.byref(count), None)
    if code == pynvml.NVML_SUCCESS:
        return {}
    # As pynvml does: more room than asked for, since processes come meanwhile.
    count.value = count.value * 2 + 5
    room = (_FirstProcess * count.value)()
    if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        code = call(handle, ctypes.byref(count), room)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return _by_pid((one.pid, one.used) for one in room[: count.value])


def _by_pid(listed: Iterable[tuple[int, int | None]]) -> Listed:
    joined: Listed = {}
    for pid, used in listed:
        mib = None if used is None or used == _UNKNOWN_BYTES else used / _MIB
        joined = _joined(joined, {pid: mib})
    return joined


def _told(
    card: _Card, handle: Handle, since_us: int, running: Collection[int]
) -> tuple[SmSource, Mapping[int, Work] | None]:
    """Give who told of the processes' work, and the work; None where nobody does.

    A call that has told of work once is believed when it tells of none: an idle card.
    One that never did may be blind, as some drivers are: then the card itself must say
    that it is idle.
    """
    empty: SmSource | None = None
    for source, call in _TELLERS:
        work = _work(call, handle, since_us, running)
        if work:
            card.teller = source
            return source, work
        if work is not None and card.teller is source:
            return source, {}
        if work is not None:
            empty = empty or source
    busy = busy_percent(handle)
    if empty is not None and busy == 0:
        return empty, {}
    return (SmSource.NONE if busy is None else SmSource.CARD), None


def _work(
    call: str, handle: Handle, since_us: int, running: Collection[int]
) -> dict[int, Work] | None:
    """Give the newest likely work of each process; None where the call is no use."""
    try:
        samples = nvml.told(partial(_samples, call, handle, since_us))
    except nvml.NotTold:
        return None
    if samples is None:
        return None
    likely = [
        (pid, work)
        for pid, work in samples
        if pid in running and work.likely and work.at > since_us
    ]
    return dict(sorted(likely, key=lambda sample: sample[1].at))


def _samples(call: str, handle: Handle, since_us: int) -> list[tuple[int, Work]]:
    try:
        told: Iterable[Any] = getattr(pynvml, call)(handle, since_us)
    except pynvml.NVMLError as error:
        if error.value in _NOTHING_NEW:
            return []
        raise
    return [
        (
            one.pid,
            Work(one.timeStamp, one.smUtil, one.memUtil, one.encUtil, one.decUtil),
        )
        for one in told
    ]


def _of(work: Mapping[int, Work] | None, pid: int, *, client: bool) -> Work | None:
    """Give a process's work; of an MPS client the server may have it instead."""
    if work is None:
        return None
    return work.get(pid, None if client else _IDLE)


def _use(pid: int, mib: float | None, work: Work | None) -> ProcessUse:
    if work is None:
        return ProcessUse(pid, mib)
    return ProcessUse(pid, mib, work.sm, work.memory_copy, work.encoder, work.decoder)
