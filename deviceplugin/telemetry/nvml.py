"""NVIDIA's cards at work, as the driver tells of them: a ``Telemetry`` over NVML.

GPM: how well a card's parts are used, on Hopper and newer, through NVML alone.

A value is what happened between two samples, so each round's sample is kept for the
next. Older data-centre cards tell this to DCGM only, other cards to nobody.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

from deviceplugin.cards import nvml
from deviceplugin.cards.nvml import Handle, NotTold
from deviceplugin.cards.nvml_cards import NvmlCards
from deviceplugin.cards.source import Found, XidEvent
from deviceplugin.telemetry import fields
from deviceplugin.telemetry.base import CardSays, ProcessesSay
from deviceplugin.telemetry.nvml_processes import ProcessLists
from deviceplugin.telemetry.nvml_values import Rates, ValuesSaid, values
from gpushare.domain.model import CardUUID

_RATIO = 1 / 100
_MIB = 2**20
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
    ) -> ValuesSaid:
        """Read some fields of one card. ``CardFailed`` and ``NoDriver``."""
        asked = [name for name in wanted if name in _METRICS]
        try:
            if not asked or not _supported(handle):
                self._forget(uuid)
                return ValuesSaid(CardSays(unsupported=frozenset(wanted)), {})
            metrics = self._metrics(uuid, handle, asked)
        except nvml.NotTold as error:
            refused = dict.fromkeys(asked, str(error))
            return ValuesSaid(
                CardSays(unsupported=frozenset(wanted) - set(asked)), refused
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
    support = nvml.told(partial(pynvml.nvmlGpmQueryDeviceSupport, handle))
    return support is not None and bool(support.isSupportedDevice)


def _sample(handle: Handle) -> _Sample:
    sample = _Sample(nvml.told(pynvml.nvmlGpmSampleAlloc), time.monotonic())
    try:
        nvml.told(partial(pynvml.nvmlGpmSampleGet, handle, sample.taken))
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
    if nvml.told(partial(pynvml.nvmlGpmMetricsGet, asked)) is None:
        return {}
    return dict(zip(names, asked.metrics, strict=False))


def _said(wanted: frozenset[str], metrics: Mapping[str, Any]) -> ValuesSaid:
    """Judge each metric by its own code: one may fail where the call succeeds."""
    known: dict[str, float] = {}
    refused: dict[str, str] = {}
    for name, one in metrics.items():
        try:
            has_it = nvml.told(partial(nvml.has_part, one.nvmlReturn))
        except nvml.NotTold as error:
            refused[name] = str(error)
            continue
        if has_it and math.isfinite(one.value):
            known[name] = one.value * _METRICS[name][1]
    unsupported = wanted - known.keys() - refused.keys()
    return ValuesSaid(CardSays(known, unsupported), refused)


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

    def read(self, group: str, fields: Collection[str]) -> Mapping[CardUUID, CardSays]:
        """Read some fields of a group, of every card last found. ``NoCardsYet``.

        A field in neither of a card's answers was refused just now, and is logged once.
        A card that refuses a whole group has answered, as long as it tells anything.
        """
        wanted = frozenset(fields)
        answers = self._cards.ask(group, partial(self._read, group, wanted))
        return {
            card.uuid: CardSays(failure=str(answer))
            if isinstance(answer, Exception)
            else answer
            for card, answer in answers
        }

    def processes(self) -> Mapping[CardUUID, ProcessesSay]:
        """Read who uses each card last found. ``NoCardsYet``.

        What a card refuses to list just now is not known, and is logged once.
        """
        answers = self._cards.ask(fields.PROCESSES, self._who)
        return {
            card.uuid: ProcessesSay(known=False, failure=str(answer))
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
    ) -> CardSays:
        if group == fields.PROFILING:
            said = self._profiler.read(uuid, handle, wanted)
        else:
            said = values(handle, wanted - {fields.XID_ERRORS})
            said = self._rates.put(uuid, said)
        for name, why in said.refused.items():
            self._note(uuid, name, why)
        says = said.says
        if said.refused and not says.values and not _lives(handle):
            says = CardSays(failure=next(iter(said.refused.values())))
        if fields.XID_ERRORS not in wanted or self._cards.reports_faults_of(uuid):
            return says
        # No fault so far would be a lie about a card that never tells of any.
        silent = says.unsupported | {fields.XID_ERRORS}
        return CardSays(says.values, silent, says.failure)

    def _who(self, uuid: CardUUID, handle: Handle) -> ProcessesSay:
        try:
            return self._lists.read(uuid, handle)
        except NotTold as error:
            self._note(uuid, fields.PROCESSES, str(error))
            if not _lives(handle):
                raise
        return ProcessesSay(known=False)

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
