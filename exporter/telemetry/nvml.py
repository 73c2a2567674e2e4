"""Telemetry of NVIDIA's cards over NVML, and the processes that use them.

NVML's lists of processes have three layouts, which only the call's name tells apart.
The samples of the processes' work come in a ring buffer that may have invalid entries;
it is empty for an idle card and, with some drivers, also for a busy one.
"""

import ctypes
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import pynvml

from exporter.telemetry import fields
from exporter.telemetry.base import (
    CardAnswer,
    ProcessesAnswer,
    ProcessUse,
    SmSource,
    answered,
)
from exporter.telemetry.nvml_values import (
    Profiler,
    Rates,
    busy_percent,
    read_nvml_values,
)
from gpushare.cards import nvml
from gpushare.cards.nvml import Handle, QueryRefused
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.cards.source import FoundCards, XidEvent
from gpushare.domain.model import CardUUID

logger = logging.getLogger(__name__)

_BASIC = frozenset(
    {fields.FB_TOTAL, fields.GPU_UTIL, fields.GPU_TEMP, fields.POWER_USAGE}
)
"""Fields that every card that answers tells to every user."""
_MIB = 2**20
_UNKNOWN_BYTES = 2**64 - 1
_FULL = 100
_SHORTEST_S = 1.5
_LONGEST_S = 10.0
_NOTHING_NEW = frozenset({pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND})
"""An idle card; pynvml raises even success if there is no sample."""
_WORK_CALLS = (
    (SmSource.SAMPLES, "nvmlDeviceGetProcessUtilization"),
    (SmSource.INFO, "nvmlDeviceGetProcessesUtilizationInfo"),
)

Listed = dict[int, float | None]
"""MiB by process id, None if the driver cannot tell."""
Work = tuple[float, ...]
"""How busy a process kept SM, memory, encoder and decoder of a card (%)."""
_IDLE: Work = (0.0, 0.0, 0.0, 0.0)


class NvmlTelemetry:
    """A ``Telemetry`` over the cards of NVIDIA's driver, which it closes with itself.

    Each group's call to a card has the cards' deadline, and a card that hangs at one
    group is still asked the others. ``clock`` returns seconds since 1970, ``ticks``
    monotonic seconds.
    """

    def __init__(
        self,
        cards: NvmlCards,
        *,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rates = Rates(ticks)
        self._cards = cards
        self._lists = ProcessLists(clock)
        self._profiler = Profiler()
        self._refused: set[tuple[CardUUID, str]] = set()

    def cards(self) -> FoundCards:
        """Look for cards now; those known from before stay. ``NoCardsYet``."""
        return self._cards.cards()

    def driver_version(self) -> str:
        """Return the driver's version; empty while it is not open."""
        return self._cards.driver_version()

    def read(
        self, group: str, fields: Collection[str]
    ) -> Mapping[CardUUID, CardAnswer]:
        """Read some fields of a group, of every card last found. ``NoCardsYet``.

        A field that a card refuses just now is logged once. A card that refuses a whole
        group has answered, as long as it tells any basic field.
        """
        wanted = frozenset(fields)
        answers = self._cards.ask(group, partial(self._read, group, wanted))
        return answered(CardAnswer, ((card.uuid, answer) for card, answer in answers))

    def processes(self) -> Mapping[CardUUID, ProcessesAnswer]:
        """Read the processes of each card last found. ``NoCardsYet``.

        A card that refuses to list them just now is logged once.
        """
        answers = self._cards.ask(fields.PROCESSES, self._who)
        return answered(
            ProcessesAnswer, ((card.uuid, answer) for card, answer in answers)
        )

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait for an XID; None after ``timeout_s``."""
        return self._cards.wait_for_event(timeout_s)

    def close(self) -> None:
        """Release the driver."""
        self._profiler.close()
        self._cards.close()

    def _read(
        self, group: str, wanted: frozenset[str], uuid: CardUUID, handle: Handle
    ) -> CardAnswer:
        if group == fields.PROFILING:
            says, refused = self._profiler.read(uuid, handle, wanted)
        else:
            says, refused = read_nvml_values(handle, wanted - {fields.XID_ERRORS})
            says = self._rates.put(uuid, says)
        for name, why in refused.items():
            self._note(uuid, name, why)
        if refused and not says.values and not _answers(handle):
            says = CardAnswer(failure=next(iter(refused.values())))
        if fields.XID_ERRORS not in wanted or self._cards.reports_faults_of(uuid):
            return says
        # "No fault so far" would be wrong for a card that never reports any.
        silent = says.unsupported | {fields.XID_ERRORS}
        return CardAnswer(says.values, silent, says.failure)

    def _who(self, uuid: CardUUID, handle: Handle) -> ProcessesAnswer:
        try:
            return self._lists.read(uuid, handle)
        except QueryRefused as error:
            self._note(uuid, fields.PROCESSES, str(error))
            if not _answers(handle):
                raise
        return ProcessesAnswer(known=False)

    def _note(self, uuid: CardUUID, name: str, why: str) -> None:
        if (uuid, name) not in self._refused:
            extra = {"card": uuid, "field": name, "because": why}
            logger.warning("a card does not report a field", extra=extra)
        self._refused.add((uuid, name))


def _answers(handle: Handle) -> bool:
    """Return whether a card that refused a whole group tells any basic field.

    A driver may refuse a whole group; a sick card tells nothing. ``CardFailed``,
    ``NoDriver``.
    """
    return bool(read_nvml_values(handle, _BASIC)[0].values)


@dataclass(slots=True)
class _ProcessHistory:
    """What is remembered of a card: when it was read, and which call told of work.

    ``lists`` are the kinds of processes that were ever listed.
    """

    read_at: float = 0.0
    work_call: SmSource | None = None
    lists: set[str] = field(default_factory=set)


class ProcessLists:
    """Reads the processes of cards, each card from one thread at a time.

    ``clock`` returns seconds since 1970, as in the driver's samples.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cards: dict[CardUUID, _ProcessHistory] = {}

    def read(self, uuid: CardUUID, handle: Handle) -> ProcessesAnswer:
        """Read the processes of a card. ``CardFailed``, ``QueryRefused``, ``NoDriver``.

        ``QueryRefused`` if a part of the processes is refused just now: the containers
        of those would otherwise look idle.
        """
        card = self._cards.setdefault(uuid, _ProcessHistory())
        compute = _listed("Compute", card, handle)
        graphics = _listed("Graphics", card, handle)
        if compute is None and graphics is None:
            return ProcessesAnswer(known=False)
        clients = _listed("MPSCompute", card, handle) or {}
        running = _joined(compute or {}, graphics or {}, clients)
        now = self._clock()
        # Since the last reading, because the ring also has what ended long ago; at
        # least 1.5 s, because the driver samples about once a second.
        since = min(max(card.read_at, now - _LONGEST_S), now - _SHORTEST_S)
        card.read_at = now
        source, work = _work_of(card, handle, int(since * 1e6), running.keys())
        uses: list[ProcessUse] = []
        for pid, mib in sorted(running.items()):
            # An MPS client's work may be counted for the MPS server.
            idle = () if pid in clients or work is None else _IDLE
            uses.append(ProcessUse(pid, mib, *(work or {}).get(pid, idle)))
        return ProcessesAnswer(tuple(uses), source)


def _listed(kind: str, card: _ProcessHistory, handle: Handle) -> Listed | None:
    """List with the newest call that the driver has; None if it has none for a card.

    ``QueryRefused`` if the call fails, because there may be processes in the list; not
    for graphics or MPS lists that never worked.
    """
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    calls = (
        partial(_newer_list, f"{name}_v3", handle),
        partial(_newer_list, f"{name}_v2", handle),
        partial(_first_list, name, handle),
    )
    try:
        for call in calls:
            listed = nvml.query(call)
            if listed is not None:
                card.lists.add(kind)
                return listed
    except nvml.QueryRefused:
        if kind == "Compute" or kind in card.lists:
            raise
    return None


def _joined(*lists: Listed) -> Listed:
    """Join lists; a process in several has the same memory in all."""
    joined: Listed = {}
    for pid, mib in (process for listed in lists for process in listed.items()):
        known = [had for had in (joined.get(pid), mib) if had is not None]
        joined[pid] = max(known, default=None)
    return joined


def _newer_list(name: str, handle: Handle) -> Listed:
    return _by_pid(
        (process.pid, process.usedGpuMemory)
        for process in getattr(pynvml, name)(handle)
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
    # More room than needed, as in pynvml, because processes may start meanwhile.
    count.value = count.value * 2 + 5
    room = (_FirstProcess * count.value)()
    if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        code = call(handle, ctypes.byref(count), room)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return _by_pid((process.pid, process.used) for process in room[: count.value])


def _by_pid(listed: Iterable[tuple[int, int | None]]) -> Listed:
    processes = (
        (pid, _UNKNOWN_BYTES if used is None else used) for pid, used in listed
    )
    return _joined(
        *({pid: None if b == _UNKNOWN_BYTES else b / _MIB} for pid, b in processes)
    )


def _work_of(
    card: _ProcessHistory, handle: Handle, since_us: int, running: Collection[int]
) -> tuple[SmSource, Mapping[int, Work] | None]:
    """Return which call told of the processes' work, and the work; None if none does.

    A call that has told of work before is trusted when it tells of none: the card is
    idle. One that never did may never tell, as with some drivers: then the card's own
    utilization must show that it is idle.
    """
    empty: SmSource | None = None
    for source, call in _WORK_CALLS:
        work = _work(call, handle, since_us, running)
        if work:
            card.work_call = source
            return source, work
        if work is not None and card.work_call is source:
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
    """Return the newest possible work of each process; None if the call is refused."""
    try:
        samples = nvml.query(partial(_samples, call, handle, since_us))
    except nvml.QueryRefused:
        return None
    if samples is None:
        return None
    newest: dict[int, Work] = {}
    for sample in sorted(samples, key=attrgetter("timeStamp")):
        work = (sample.smUtil, sample.memUtil, sample.encUtil, sample.decUtil)
        # The driver's ring has impossible values, too.
        if sample.pid in running and sample.timeStamp > since_us and max(work) <= _FULL:
            newest[sample.pid] = work
    return newest


def _samples(call: str, handle: Handle, since_us: int) -> list[Any]:
    try:
        return list(getattr(pynvml, call)(handle, since_us))
    except pynvml.NVMLError as error:
        if error.value in _NOTHING_NEW:
            return []
        raise
