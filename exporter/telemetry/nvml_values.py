"""The fields of one NVIDIA card, each with the NVML call that reads it, and GPM.

Calls and units are those of NVML's reference. A field that a card or its driver does
not support, or that a call refuses, is left out.

GPM (profiling) tells how well the parts of a card are used, on Hopper and newer. A
value is for the time between two samples, so each round's sample is kept for the next
one. Older data-centre cards tell this to DCGM only, other cards not at all. Values of a
MIG instance are those of its own parts.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pynvml

from exporter.telemetry import fields
from exporter.telemetry.base import CardAnswer
from gpushare.cards import nvml
from gpushare.cards.nvml import Handle
from gpushare.domain.model import CardUUID

_MIB = 2**20
_W = 1 / 1000
_BLANKS = frozenset({2**32 - 1, 2**64 - 1})
"""NVML's values for an unknown amount, of 32 and of 64 bits."""

_ALL_LINKS = 2**32 - 1
_NVLINK_SENT = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS)
_NVLINK_RECEIVED = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS)
_UNION = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}

Numbers = Sequence[float | None]


Refused = dict[str, str]
"""The reason for each field that failed just now: it is neither known nor unsupported.
One group alone does not tell whether a card that refuses all of it is sick."""


@dataclass(frozen=True, slots=True)
class _NvmlCall:
    """One call, and the fields that its answer has, in order."""

    names: tuple[str, ...]
    ask: Callable[[Handle], Numbers | None]


def read_nvml_values(
    handle: Handle, wanted: Collection[str]
) -> tuple[CardAnswer, Refused]:
    """Read some fields of one card, each in its own unit (``fields``).

    An unknown field is unsupported. ``CardFailed``, ``NoDriver``.
    """
    known: dict[str, float] = {}
    refused: Refused = {}
    for call in _CALLS:
        names = [name for name in call.names if name in wanted]
        if not names:
            continue
        try:
            numbers = nvml.query(partial(call.ask, handle)) or ()
        except nvml.QueryRefused as error:
            refused |= dict.fromkeys(names, str(error))
            continue
        named = zip(call.names, numbers, strict=False)
        known |= {k: float(v) for k, v in named if v is not None and k in names}
    return _answer(wanted, known, refused)


def _answer(
    wanted: Collection[str], known: Mapping[str, float], refused: Refused
) -> tuple[CardAnswer, Refused]:
    unsupported = frozenset(wanted) - known.keys() - refused.keys()
    return CardAnswer(known, unsupported), refused


class Rates:
    """Turns NVLink's counter into the rate since a card was last read.

    In thousands of KiB a second, which DCGM calls MB/s (``DcgmCacheManager.cpp``,
    ``ReadAndCacheNvLinkBandwidth``). Unknown at the first reading, and after the
    counter was reset. ``clock`` returns monotonic seconds. One thread at a time for
    each card.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[CardUUID, tuple[float, float]] = {}

    def put(self, uuid: CardUUID, says: CardAnswer) -> CardAnswer:
        """Replace the counter by the rate; other fields stay as they are."""
        name = fields.NVLINK_BANDWIDTH_TOTAL
        if name not in says.values:
            return says
        known = dict(says.values)
        counted_kib, now = known.pop(name), self._clock()
        before_kib, then = self._last.get(uuid, (counted_kib, now))
        self._last[uuid] = (counted_kib, now)
        if now > then and counted_kib >= before_kib:
            known[name] = (counted_kib - before_kib) / (now - then) / 1000
        return replace(says, values=known)


def busy_percent(handle: Handle) -> float | None:
    """Return how busy a card is (%), None if it does not tell."""
    try:
        numbers = nvml.query(partial(_utilization, handle))
    except nvml.QueryRefused:
        return None
    return numbers[0] if numbers else None


def _utilization(handle: Handle) -> Numbers:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return (_known(rates.gpu), _known(rates.memory))


def _memory(handle: Handle) -> Numbers | None:
    """Return whole MiB, as dcgm-exporter does.

    Before 510, what the driver reserves counts as used, because it is not told apart.
    """
    get = pynvml.nvmlDeviceGetMemoryInfo
    newer = nvml.query(partial(get, handle, version=pynvml.nvmlMemory_v2))
    memory = newer or nvml.query(partial(get, handle))
    if memory is None:
        return None
    kept = int(newer.reserved) // _MIB if newer else None
    total = int(memory.total) // _MIB
    return (min(int(memory.used) // _MIB, total), memory.free // _MIB, kept, total)


def _temperature(handle: Handle) -> Numbers | None:
    sensor = pynvml.NVML_TEMPERATURE_GPU
    return _first(
        lambda: [_known(pynvml.nvmlDeviceGetTemperatureV(handle, sensor))],
        lambda: [_known(pynvml.nvmlDeviceGetTemperature(handle, sensor))],
    )


def _memory_temperature(handle: Handle) -> Numbers:
    return _field_values(handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])


def _violation(policy: str, handle: Handle) -> Numbers | None:
    """Return nanoseconds; CUDA 14 removes the call, and the field value stays."""
    get = pynvml.nvmlDeviceGetViolationStatus
    by_call = getattr(pynvml, f"NVML_PERF_POLICY_{policy}")
    by_field = getattr(pynvml, f"NVML_FI_DEV_PERF_POLICY_{policy}")
    return _first(
        lambda: [_known(get(handle, by_call).violationTime)],
        lambda: _field_values(handle, [by_field]),
    )


def _remapped_rows(handle: Handle) -> Numbers:
    correctable, uncorrectable, _, failure = pynvml.nvmlDeviceGetRemappedRows(handle)
    return (correctable, uncorrectable, failure)


def _license(handle: Handle) -> Numbers:
    """Return 1 if a feature of this card is licensed, as a vGPU in a guest needs."""
    licensable = pynvml.nvmlDeviceGetGridLicensableFeatures(handle)
    features = licensable.gridLicensableFeatures[: licensable.licensableFeaturesCount]
    licensed = licensable.isGridLicenseSupported and any(
        feature.featureState for feature in features
    )
    return [int(bool(licensed))]


def _nvlink(handle: Handle) -> Numbers | None:
    """Return KiB sent and received over all links since the driver was loaded.

    Both or nothing: a sum without one part would look like a counter that was reset.
    ``Rates`` turns it into a rate.
    """
    sent, received = _field_values(handle, [_NVLINK_SENT, _NVLINK_RECEIVED])
    return None if sent is None or received is None else [sent + received]


def _field_values(
    handle: Handle, wanted: Sequence[int | tuple[int, int]]
) -> list[float | None]:
    """Return the values of fields; a pair is a field and its scope.

    The call succeeds even if a field fails, also for a lost card.
    """
    return [
        _known(getattr(value.value, _UNION[value.valueType]))
        if nvml.has_part(value.nvmlReturn)
        else None
        for value in pynvml.nvmlDeviceGetFieldValues(handle, list(wanted))
    ]


def _first(*calls: Callable[[], Numbers]) -> Numbers | None:
    for call in calls:
        answer = nvml.query(call)
        if answer is not None:
            return answer
    return None


def _known(raw: float, factor: float = 1) -> float | None:
    return None if raw in _BLANKS else raw * factor


def _call(
    name: str, get: Callable[..., float], *more: int, factor: float = 1
) -> _NvmlCall:
    return _NvmlCall((name,), lambda handle: [_known(get(handle, *more), factor)])


def _retired_pages(handle: Handle, cause: int) -> int:
    return len(pynvml.nvmlDeviceGetRetiredPages(handle, cause))


_CORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE = pynvml.NVML_VOLATILE_ECC
_AGGREGATE = pynvml.NVML_AGGREGATE_ECC
_SINGLE_BIT = pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS
_DOUBLE_BIT = pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
_MEMORY = (fields.FB_USED, fields.FB_FREE, fields.FB_RESERVED, fields.FB_TOTAL)
_REMAPPED = (
    fields.CORRECTABLE_REMAPPED_ROWS,
    fields.UNCORRECTABLE_REMAPPED_ROWS,
    fields.ROW_REMAP_FAILURE,
)
_clock = pynvml.nvmlDeviceGetClockInfo
_ecc = pynvml.nvmlDeviceGetTotalEccErrors
_pcie = pynvml.nvmlDeviceGetPcieThroughput

_CALLS = (
    _NvmlCall((fields.GPU_UTIL, fields.MEM_COPY_UTIL), _utilization),
    _call(fields.ENC_UTIL, lambda gpu: pynvml.nvmlDeviceGetEncoderUtilization(gpu)[0]),
    _call(fields.DEC_UTIL, lambda gpu: pynvml.nvmlDeviceGetDecoderUtilization(gpu)[0]),
    _NvmlCall(_MEMORY, _memory),
    _NvmlCall((fields.GPU_TEMP,), _temperature),
    _NvmlCall((fields.MEMORY_TEMP,), _memory_temperature),
    _call(fields.POWER_USAGE, pynvml.nvmlDeviceGetPowerUsage, factor=_W),
    _call(fields.TOTAL_ENERGY_CONSUMPTION, pynvml.nvmlDeviceGetTotalEnergyConsumption),
    _call(fields.SM_CLOCK, _clock, pynvml.NVML_CLOCK_SM),
    _call(fields.MEM_CLOCK, _clock, pynvml.NVML_CLOCK_MEM),
    _NvmlCall((fields.POWER_VIOLATION,), partial(_violation, "POWER")),
    _NvmlCall((fields.THERMAL_VIOLATION,), partial(_violation, "THERMAL")),
    _call(fields.PCIE_REPLAY_COUNTER, pynvml.nvmlDeviceGetPcieReplayCounter),
    _call(fields.ECC_SBE_VOL_TOTAL, _ecc, _CORRECTED, _VOLATILE),
    _call(fields.ECC_DBE_VOL_TOTAL, _ecc, _UNCORRECTED, _VOLATILE),
    _call(fields.ECC_SBE_AGG_TOTAL, _ecc, _CORRECTED, _AGGREGATE),
    _call(fields.ECC_DBE_AGG_TOTAL, _ecc, _UNCORRECTED, _AGGREGATE),
    _NvmlCall(_REMAPPED, _remapped_rows),
    _NvmlCall((fields.VGPU_LICENSE_STATUS,), _license),
    _NvmlCall((fields.NVLINK_BANDWIDTH_TOTAL,), _nvlink),
    _call(fields.RETIRED_SBE, _retired_pages, _SINGLE_BIT),
    _call(fields.RETIRED_DBE, _retired_pages, _DOUBLE_BIT),
    _call(fields.RETIRED_PENDING, pynvml.nvmlDeviceGetRetiredPagesPendingStatus),
    _call(fields.PCIE_TX_THROUGHPUT, _pcie, pynvml.NVML_PCIE_UTIL_TX_BYTES),
    _call(fields.PCIE_RX_THROUGHPUT, _pcie, pynvml.NVML_PCIE_UTIL_RX_BYTES),
)
"""In the order of the documentation; those of one tuple are read at once."""


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
"""By field: NVML's metric, and the factor from its unit to the field's unit."""

_APART_S = 0.12
"""The card refreshes its samples every 100 ms; closer ones are useless (nvml.h)."""

STALE_S = 60.0
"""A longer average would hide what the card does now."""


_Sample = tuple[Any, float]
"""A sample in NVML's memory, to be freed; when it was taken, by the monotonic clock."""
_GetSample = Callable[[Any], Any]
"""Fills a sample of one card or instance."""


class Profiler:
    """Reads GPM of cards, each card from one thread at a time.

    The first reading of a card takes 0.12 s, because it needs two samples, and so does
    one that comes more than ``stale_s`` after the last.
    """

    def __init__(self, stale_s: float = STALE_S) -> None:
        self._stale_s = stale_s
        self._kept: dict[CardUUID, _Sample] = {}

    def read(
        self, uuid: CardUUID, handle: Handle, wanted: Collection[str]
    ) -> tuple[CardAnswer, Refused]:
        """Read some fields of one card. ``CardFailed`` and ``NoDriver``."""
        known_names = [name for name in wanted if name in _METRICS]
        metrics: dict[str, Any] = {}
        try:
            on, get = _sampled(uuid, handle)
            support = nvml.query(partial(pynvml.nvmlGpmQueryDeviceSupport, on))
            if known_names and support is not None and support.isSupportedDevice:
                metrics = self._metrics(uuid, get, known_names)
            else:
                self._forget(uuid)
        except nvml.QueryRefused as error:
            return _answer(wanted, {}, dict.fromkeys(known_names, str(error)))
        known: dict[str, float] = {}
        refused: Refused = {}
        for name, metric in metrics.items():
            # By its own code, because one may fail if the call succeeds.
            try:
                has_it = nvml.query(partial(nvml.has_part, metric.nvmlReturn))
            except nvml.QueryRefused as error:
                refused[name] = str(error)
                continue
            if has_it and math.isfinite(metric.value):
                known[name] = metric.value * _METRICS[name][1]
        return _answer(wanted, known, refused)

    def close(self) -> None:
        """Free all samples."""
        for uuid in list(self._kept):
            self._forget(uuid)

    def _metrics(
        self, uuid: CardUUID, get: _GetSample, metric_names: Collection[str]
    ) -> dict[str, Any]:
        """Return NVML's metrics by field, for the time since the last sample."""
        if time.monotonic() - self._kept.get(uuid, (None, 0.0))[1] > self._stale_s:
            self._forget(uuid)
        before = self._kept.pop(uuid, None) or _sample(get)
        try:
            time.sleep(max(0.0, before[1] + _APART_S - time.monotonic()))
            now = self._kept[uuid] = _sample(get)
            return _between(before, now, metric_names)
        finally:
            _free(before)

    def _forget(self, uuid: CardUUID) -> None:
        if sample := self._kept.pop(uuid, None):
            _free(sample)


def _sampled(uuid: CardUUID, handle: Handle) -> tuple[Handle, _GetSample]:
    """Return the card that GPM knows, and what takes a sample of it.

    A MIG instance is sampled by its card and its number. ``QueryRefused``,
    ``CardFailed`` and ``NoDriver``.
    """
    if not nvml.is_instance(uuid):
        return handle, partial(pynvml.nvmlGpmSampleGet, handle)
    card = _must(partial(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle))
    number = _must(partial(pynvml.nvmlDeviceGetGpuInstanceId, handle))
    return Handle(card), partial(pynvml.nvmlGpmMigSampleGet, card, number)


def _must(call: Callable[[], Any]) -> Any:  # noqa: ANN401
    answer = nvml.query(call)
    if answer is None:
        raise nvml.QueryRefused("the driver does not tell the instance's card")
    return answer


def _sample(get: _GetSample) -> _Sample:
    sample = (nvml.query(pynvml.nvmlGpmSampleAlloc), time.monotonic())
    try:
        nvml.query(partial(get, sample[0]))
    except Exception:
        _free(sample)
        raise
    return sample


def _free(sample: _Sample) -> None:
    with suppress(pynvml.NVMLError):
        pynvml.nvmlGpmSampleFree(sample[0])


def _between(before: _Sample, now: _Sample, names: Collection[str]) -> dict[str, Any]:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(names)
    request.sample1, request.sample2 = before[0], now[0]
    for place, name in enumerate(names):
        request.metrics[place].metricId = _METRICS[name][0]
    if nvml.query(partial(pynvml.nvmlGpmMetricsGet, request)) is None:
        return {}
    return dict(zip(names, request.metrics, strict=False))
