"""GPM: how well a card's parts are used, on Hopper and newer, through NVML alone.

A value is what happened between two samples, so each round's sample is kept for the
next. Older data-centre cards tell this to DCGM only, other cards to nobody.
"""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

from deviceplugin import fields, nvml
from deviceplugin.nvml import Handle
from deviceplugin.telemetry import CardSays
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

    def read(self, uuid: CardUUID, handle: Handle, wanted: Collection[str]) -> CardSays:
        """Read some fields of one card. ``CardFailed``, ``NotTold``, ``NoDriver``."""
        asked = {name: _METRICS[name] for name in wanted if name in _METRICS}
        if not asked or not _supported(handle):
            self._forget(uuid)
            return CardSays(unsupported=frozenset(wanted))
        before = self._kept.pop(uuid, None)
        if before is not None and time.monotonic() - before.at > self._stale_s:
            _give_back(before)
            before = None
        before = before or _sample(handle)
        try:
            time.sleep(max(0.0, before.at + _APART_S - time.monotonic()))
            now = _sample(handle)
            self._kept[uuid] = now
            numbers = _between(before, now, [number for number, _ in asked.values()])
        finally:
            _give_back(before)
        known = {
            name: numbers[number] * factor
            for name, (number, factor) in asked.items()
            if number in numbers
        }
        return CardSays(known, frozenset(wanted) - known.keys())

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


def _between(before: _Sample, now: _Sample, numbers: list[int]) -> dict[int, float]:
    """Give NVML's metrics by number, those that it tells."""
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(numbers)
    asked.sample1, asked.sample2 = before.taken, now.taken
    for place, number in enumerate(numbers):
        asked.metrics[place].metricId = number
    if nvml.told(partial(pynvml.nvmlGpmMetricsGet, asked)) is None:
        return {}
    return {
        one.metricId: one.value
        for one in asked.metrics[: len(numbers)]
        if one.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(one.value)
    }
