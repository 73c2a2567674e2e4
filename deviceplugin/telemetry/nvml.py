"""NVIDIA's cards at work, as the driver tells of them: a ``Telemetry`` over NVML.

GPM: how well a card's parts are used, on Hopper and newer, through NVML alone.

A value is what happened between two samples, so each round's sample is kept for the
next. Older data-centre cards tell this to DCGM only, other cards to nobody.

Who is on one of NVIDIA's cards, and what each of them takes of its time.

Neither is told plainly. Lists of processes come in three layouts that only the call's
name tells apart; samples of their work come in a ring with garbage in it, empty for an
idle card and, with some drivers, empty for a busy one, too.
"""

import ctypes
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pynvml

from deviceplugin.cards import nvml
from deviceplugin.cards.nvml import Handle, QueryRefused
from deviceplugin.cards.nvml_cards import NvmlCards
from deviceplugin.cards.source import Found, XidEvent
from deviceplugin.telemetry import fields
from deviceplugin.telemetry.base import (
    CardAnswer,
    ProcessesAnswer,
    ProcessUse,
    SmSource,
)
from deviceplugin.telemetry.nvml_values import Rates, ValuesAnswer, busy_percent, values
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

    def read(self, uuid: CardUUID, handle: Handle) -> ProcessesAnswer:
        """Read who uses a card. ``CardFailed``, ``NotTold`` and ``NoDriver``.

        ``NotTold`` where a part of its processes is not told just now: those that are
        would look like all there are, and the others' containers idle.
        """
        card = self._cards.setdefault(uuid, _Card())
        owners = _running(card, handle)
        if owners is None:
            return ProcessesAnswer(known=False)
        clients = _listed("MPSCompute", card, handle) or {}
        running = _joined(owners, clients)
        now = self._clock()
        # Since the last reading: a whole ring would show what ended long ago. And a
        # second at least, for the driver samples no oftener than that.
        since = min(max(card.read_at, now - _LONGEST_S), now - _SHORTEST_S)
        card.read_at = now
        source, work = _told(card, handle, int(since * 1e6), running.keys())
        return ProcessesAnswer(
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
            listed = nvml.query(call)
            if listed is not None:
                card.lists.add(kind)
                return listed
    except nvml.QueryRefused:
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
        samples = nvml.query(partial(_samples, call, handle, since_us))
    except nvml.QueryRefused:
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


_RATIO = 1 / 100
_METRICS = {
    fields.GR_ENGINE_ACTIVE: (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, _RATIO),
    fields.SM_ACTIVE: (pynvml.NVML_GPM_METRIC_SM_UTIL, _RATIO),
    fields.SM_OCCUPANCY: (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, _RATIO),
    fields.PIPE_TENSOR_ACTIVE: (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, _RATIO),
    fields.DRAM_ACTIVE: (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, _RATIO),
    fields.PROF_PCIE_TX_BYTES: (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, _MIB),
    fields.PROF_PCIE_RX_BYTES: (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, _MIB),
}
"""By field: NVML's number, and what makes its percent or MiB/s the field's unit."""

_APART_S = 0.12
"""The card refreshes its samples every 100 ms; closer ones tell nothing (nvml.h)."""

STALE_S = 60.0
"""An older sample would hide in an average what the card does now."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """NVML's own memory, to be given back; ``at`` by the monotonic clock."""

    taken: Any
    at: float


class Profiler:
    """Reads GPM of cards, each card from one thread at a time.

    The first reading of a card takes 0.12 s, for want of an earlier sample; so does one
    that comes more than ``stale_s`` after the last.
    """

    def __init__(self, stale_s: float = STALE_S) -> None:
        self._stale_s = stale_s
        self._kept: dict[CardUUID, _Sample] = {}

    def read(
        self, uuid: CardUUID, handle: Handle, wanted: Collection[str]
    ) -> ValuesAnswer:
        """Read some fields of one card. ``CardFailed`` and ``NoDriver``."""
        asked = [name for name in wanted if name in _METRICS]
        try:
            if not asked or not _supported(handle):
                self._forget(uuid)
                return ValuesAnswer(CardAnswer(unsupported=frozenset(wanted)), {})
            metrics = self._metrics(uuid, handle, asked)
        except nvml.QueryRefused as error:
            refused = dict.fromkeys(asked, str(error))
            return ValuesAnswer(
                CardAnswer(unsupported=frozenset(wanted) - set(asked)), refused
            )
        return _said(frozenset(wanted), metrics)

    def _metrics(
        self, uuid: CardUUID, handle: Handle, asked: Collection[str]
    ) -> dict[str, Any]:
        """Give NVML's metrics by field, of what went on since the last sample."""
        before = self._kept.pop(uuid, None)
        if before is not None and time.monotonic() - before.at > self._stale_s:
            _give_back(before)
            before = None
        before = before or _sample(handle)
        try:
            time.sleep(max(0.0, before.at + _APART_S - time.monotonic()))
            now = _sample(handle)
            self._kept[uuid] = now
            return _between(before, now, asked)
        finally:
            _give_back(before)

    def close(self) -> None:
        """Give all samples back."""
        for uuid in list(self._kept):
            self._forget(uuid)

    def _forget(self, uuid: CardUUID) -> None:
        sample = self._kept.pop(uuid, None)
        if sample is not None:
            _give_back(sample)


def _supported(handle: Handle) -> bool:
    support = nvml.query(partial(pynvml.nvmlGpmQueryDeviceSupport, handle))
    return support is not None and bool(support.isSupportedDevice)


def _sample(handle: Handle) -> _Sample:
    sample = _Sample(nvml.query(pynvml.nvmlGpmSampleAlloc), time.monotonic())
    try:
        nvml.query(partial(pynvml.nvmlGpmSampleGet, handle, sample.taken))
    except Exception:
        _give_back(sample)
        raise
    return sample


def _give_back(sample: _Sample) -> None:
    try:
        pynvml.nvmlGpmSampleFree(sample.taken)
    except pynvml.NVMLError:
        return


def _between(before: _Sample, now: _Sample, names: Collection[str]) -> dict[str, Any]:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(names)
    asked.sample1, asked.sample2 = before.taken, now.taken
    for place, name in enumerate(names):
        asked.metrics[place].metricId = _METRICS[name][0]
    if nvml.query(partial(pynvml.nvmlGpmMetricsGet, asked)) is None:
        return {}
    return dict(zip(names, asked.metrics, strict=False))


def _said(wanted: frozenset[str], metrics: Mapping[str, Any]) -> ValuesAnswer:
    """Judge each metric by its own code: one may fail where the call succeeds."""
    known: dict[str, float] = {}
    refused: dict[str, str] = {}
    for name, one in metrics.items():
        try:
            has_it = nvml.query(partial(nvml.has_part, one.nvmlReturn))
        except nvml.QueryRefused as error:
            refused[name] = str(error)
            continue
        if has_it and math.isfinite(one.value):
            known[name] = one.value * _METRICS[name][1]
    unsupported = wanted - known.keys() - refused.keys()
    return ValuesAnswer(CardAnswer(known, unsupported), refused)


logger = logging.getLogger(__name__)

_SIGNS = frozenset(
    {fields.FB_TOTAL, fields.GPU_UTIL, fields.GPU_TEMP, fields.POWER_USAGE}
)
"""Of life: any one of them is told by any card, to any user."""


class NvmlTelemetry:
    """A ``Telemetry`` over the cards of NVIDIA's driver, which it closes with itself.

    Each group's question to a card has the cards' deadline, and a card that hangs at
    one group is still asked the others. ``clock`` gives seconds since 1970, ``ticks``
    those of a clock that nobody sets.
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

    def cards(self) -> Found:
        """Look at the node now: cards known from before stay. ``NoCardsYet``."""
        return self._cards.cards()

    def driver_version(self) -> str:
        """Give the driver's version; empty while it is not open."""
        return self._cards.driver_version()

    def read(
        self, group: str, fields: Collection[str]
    ) -> Mapping[CardUUID, CardAnswer]:
        """Read some fields of a group, of every card last found. ``NoCardsYet``.

        A field in neither of a card's answers was refused just now, and is logged once.
        A card that refuses a whole group has answered, as long as it tells anything.
        """
        wanted = frozenset(fields)
        answers = self._cards.ask(group, partial(self._read, group, wanted))
        return {
            card.uuid: CardAnswer(failure=str(answer))
            if isinstance(answer, Exception)
            else answer
            for card, answer in answers
        }

    def processes(self) -> Mapping[CardUUID, ProcessesAnswer]:
        """Read who uses each card last found. ``NoCardsYet``.

        What a card refuses to list just now is not known, and is logged once.
        """
        answers = self._cards.ask(fields.PROCESSES, self._who)
        return {
            card.uuid: ProcessesAnswer(known=False, failure=str(answer))
            if isinstance(answer, Exception)
            else answer
            for card, answer in answers
        }

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait for an XID; None after ``timeout_s``."""
        return self._cards.wait_for_event(timeout_s)

    def close(self) -> None:
        """Let go of the driver."""
        self._profiler.close()
        self._cards.close()

    def _read(
        self, group: str, wanted: frozenset[str], uuid: CardUUID, handle: Handle
    ) -> CardAnswer:
        if group == fields.PROFILING:
            said = self._profiler.read(uuid, handle, wanted)
        else:
            said = values(handle, wanted - {fields.XID_ERRORS})
            said = self._rates.put(uuid, said)
        for name, why in said.refused.items():
            self._note(uuid, name, why)
        says = said.says
        if said.refused and not says.values and not _lives(handle):
            says = CardAnswer(failure=next(iter(said.refused.values())))
        if fields.XID_ERRORS not in wanted or self._cards.reports_faults_of(uuid):
            return says
        # No fault so far would be a lie about a card that never tells of any.
        silent = says.unsupported | {fields.XID_ERRORS}
        return CardAnswer(says.values, silent, says.failure)

    def _who(self, uuid: CardUUID, handle: Handle) -> ProcessesAnswer:
        try:
            return self._lists.read(uuid, handle)
        except QueryRefused as error:
            self._note(uuid, fields.PROCESSES, str(error))
            if not _lives(handle):
                raise
        return ProcessesAnswer(known=False)

    def _note(self, uuid: CardUUID, name: str, why: str) -> None:
        if (uuid, name) not in self._refused:
            extra = {"card": uuid, "field": name, "why": why}
            logger.warning("a card does not tell a field just now", extra=extra)
        self._refused.add((uuid, name))


def _lives(handle: Handle) -> bool:
    """Ask a card that refused everything for some sign. ``CardFailed``, ``NoDriver``.

    A driver may keep all of a group to itself; a card that is sick tells nothing.
    """
    return bool(values(handle, _SIGNS).says.values)
