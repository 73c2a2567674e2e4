"""What one of NVIDIA's cards tells of itself at work: each field by the call it takes.

Calls, units and the cards that lack them are those of NVML's own reference; what a card
or its driver does not support is left out, and what one call fails to tell as well.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pynvml

from deviceplugin.cards import nvml
from deviceplugin.cards.nvml import Handle
from deviceplugin.telemetry import fields
from deviceplugin.telemetry.base import CardAnswer
from gpushare.domain.model import CardUUID

_MIB = 2**20
_W = 1 / 1000
_BLANKS = frozenset({2**32 - 1, 2**64 - 1})
"""NVML's words for an amount that it cannot tell, in either width."""

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


@dataclass(frozen=True, slots=True)
class ValuesAnswer:
    """What a card said; ``refused`` has why, for fields that failed just now.

    Those are neither known nor unsupported. Whether a card that refuses all of a group
    is sick cannot be told from that group alone.
    """

    says: CardAnswer
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Call:
    """One question, and the fields that its answer holds, in order."""

    names: tuple[str, ...]
    ask: Callable[[Handle], Numbers | None]


def values(handle: Handle, wanted: Collection[str]) -> ValuesAnswer:
    """Read some fields of one card, each in its own unit (``fields``).

    A field of which nobody here knows is unsupported. ``CardFailed``, ``NoDriver``.
    """
    known: dict[str, float] = {}
    refused: dict[str, str] = {}
    for call in _CALLS:
        asked = [name for name in call.names if name in wanted]
        if not asked:
            continue
        try:
            numbers = nvml.query(partial(call.ask, handle)) or ()
        except nvml.QueryRefused as error:
            refused |= dict.fromkeys(asked, str(error))
            continue
        told = dict(zip(call.names, numbers, strict=False))
        known |= {
            name: float(number)
            for name in asked
            if (number := told.get(name)) is not None
        }
    unsupported = frozenset(wanted) - known.keys() - refused.keys()
    return ValuesAnswer(CardAnswer(known, unsupported), refused)


class Rates:
    """Makes of NVLink's counter the rate since a card was last read.

    In thousands of KiB a second, which DCGM calls MB/s: its own arithmetic
    (``DcgmCacheManager.cpp``, ``ReadAndCacheNvLinkBandwidth``). Unknown at the first
    reading, and where the driver began to count anew. ``clock`` gives seconds of a
    clock that nobody sets. One thread at a time for each card.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[CardUUID, tuple[float, float]] = {}

    def put(self, uuid: CardUUID, said: ValuesAnswer) -> ValuesAnswer:
        """Put the rate in the counter's place; other fields stay as they are."""
        name = fields.NVLINK_BANDWIDTH_TOTAL
        if name not in said.says.values:
            return said
        known = dict(said.says.values)
        counted_kib, now = known.pop(name), self._clock()
        before_kib, then = self._last.get(uuid, (counted_kib, now))
        self._last[uuid] = (counted_kib, now)
        if now > then and counted_kib >= before_kib:
            known[name] = (counted_kib - before_kib) / (now - then) / 1000
        return ValuesAnswer(replace(said.says, values=known), said.refused)


def busy_percent(handle: Handle) -> float | None:
    """Give how busy a card is (%), None where it does not tell."""
    try:
        numbers = nvml.query(partial(_utilization, handle))
    except nvml.QueryRefused:
        return None
    return numbers[0] if numbers else None


def _utilization(handle: Handle) -> Numbers:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return (_known(rates.gpu), _known(rates.memory))


def _memory(handle: Handle) -> Numbers | None:
    """Give whole MiB, as dcgm-exporter does.

    Before 510 what the driver keeps is in use, since nothing tells the two apart.
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


def _violation(policy: int, field: int, handle: Handle) -> Numbers | None:
    """Give nanoseconds: the call is to go with CUDA 14, the field's value stays."""
    get = pynvml.nvmlDeviceGetViolationStatus
    return _first(
        lambda: [_known(get(handle, policy).violationTime)],
        lambda: _field_values(handle, [field]),
    )


def _remapped_rows(handle: Handle) -> Numbers:
    correctable, uncorrectable, _, failure = pynvml.nvmlDeviceGetRemappedRows(handle)
    return (correctable, uncorrectable, failure)


def _license(handle: Handle) -> Numbers:
    """Give 1 where a feature of this card is licensed, as a vGPU in its guest needs."""
    told = pynvml.nvmlDeviceGetGridLicensableFeatures(handle)
    features = told.gridLicensableFeatures[: told.licensableFeaturesCount]
    licensed = told.isGridLicenseSupported and any(one.featureState for one in features)
    return [int(bool(licensed))]


def _nvlink(handle: Handle) -> Numbers | None:
    """Give KiB sent and received together, over all links, since the driver was loaded.

    Both or nothing: a sum that lost a part would look like a driver loaded anew.
    ``Rates`` makes of it what is shown.
    """
    sent, received = _field_values(handle, [_NVLINK_SENT, _NVLINK_RECEIVED])
    return None if sent is None or received is None else [sent + received]


def _field_values(
    handle: Handle, wanted: Sequence[int | tuple[int, int]]
) -> list[float | None]:
    """Give the values of fields, a pair being a field and its scope.

    The call succeeds even where a field fails, of a lost card, too.
    """
    return [
        _known(getattr(one.value, _UNION[one.valueType]))
        if nvml.has_part(one.nvmlReturn)
        else None
        for one in pynvml.nvmlDeviceGetFieldValues(handle, list(wanted))
    ]


def _first(*calls: Callable[[], Numbers]) -> Numbers | None:
    """Give the first answer of a driver that supports one of these."""
    for call in calls:
        answer = nvml.query(call)
        if answer is not None:
            return answer
    return None


def _known(raw: float, factor: float = 1) -> float | None:
    return None if raw in _BLANKS else raw * factor


def _one(name: str, get: Callable[[Handle], float], factor: float = 1) -> _Call:
    return _Call((name,), lambda handle: [_known(get(handle), factor)])


def _clock(kind: int) -> Callable[[Handle], float]:
    return lambda handle: int(pynvml.nvmlDeviceGetClockInfo(handle, kind))


def _ecc(error: int, counter: int) -> Callable[[Handle], float]:
    return lambda handle: int(
        pynvml.nvmlDeviceGetTotalEccErrors(handle, error, counter)
    )


def _retired(cause: int) -> Callable[[Handle], float]:
    return lambda handle: len(pynvml.nvmlDeviceGetRetiredPages(handle, cause))


def _pcie(direction: int) -> Callable[[Handle], float]:
    return lambda handle: int(pynvml.nvmlDeviceGetPcieThroughput(handle, direction))


_CORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE = pynvml.NVML_VOLATILE_ECC
_AGGREGATE = pynvml.NVML_AGGREGATE_ECC

_CALLS = (
    _Call((fields.GPU_UTIL, fields.MEM_COPY_UTIL), _utilization),
    _one(fields.ENC_UTIL, lambda card: pynvml.nvmlDeviceGetEncoderUtilization(card)[0]),
    _one(fields.DEC_UTIL, lambda card: pynvml.nvmlDeviceGetDecoderUtilization(card)[0]),
    _Call(
        (fields.FB_USED, fields.FB_FREE, fields.FB_RESERVED, fields.FB_TOTAL), _memory
    ),
    _Call((fields.GPU_TEMP,), _temperature),
    _Call(
        (fields.MEMORY_TEMP,),
        lambda card: _field_values(card, [pynvml.NVML_FI_DEV_MEMORY_TEMP]),
    ),
    _one(fields.POWER_USAGE, pynvml.nvmlDeviceGetPowerUsage, _W),
    _one(
        fields.TOTAL_ENERGY_CONSUMPTION,
        pynvml.nvmlDeviceGetTotalEnergyConsumption,
    ),
    _one(fields.SM_CLOCK, _clock(pynvml.NVML_CLOCK_SM)),
    _one(fields.MEM_CLOCK, _clock(pynvml.NVML_CLOCK_MEM)),
    _Call(
        (fields.POWER_VIOLATION,),
        partial(
            _violation,
            pynvml.NVML_PERF_POLICY_POWER,
            pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
        ),
    ),
    _Call(
        (fields.THERMAL_VIOLATION,),
        partial(
            _violation,
            pynvml.NVML_PERF_POLICY_THERMAL,
            pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
        ),
    ),
    _one(
        fields.PCIE_REPLAY_COUNTER,
        pynvml.nvmlDeviceGetPcieReplayCounter,
    ),
    _one(fields.ECC_SBE_VOL_TOTAL, _ecc(_CORRECTED, _VOLATILE)),
    _one(fields.ECC_DBE_VOL_TOTAL, _ecc(_UNCORRECTED, _VOLATILE)),
    _one(fields.ECC_SBE_AGG_TOTAL, _ecc(_CORRECTED, _AGGREGATE)),
    _one(fields.ECC_DBE_AGG_TOTAL, _ecc(_UNCORRECTED, _AGGREGATE)),
    _Call(
        (
            fields.CORRECTABLE_REMAPPED_ROWS,
            fields.UNCORRECTABLE_REMAPPED_ROWS,
            fields.ROW_REMAP_FAILURE,
        ),
        _remapped_rows,
    ),
    _Call((fields.VGPU_LICENSE_STATUS,), _license),
    _Call((fields.NVLINK_BANDWIDTH_TOTAL,), _nvlink),
    _one(
        fields.RETIRED_SBE,
        _retired(pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS),
    ),
    _one(
        fields.RETIRED_DBE,
        _retired(pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR),
    ),
    _one(
        fields.RETIRED_PENDING,
        pynvml.nvmlDeviceGetRetiredPagesPendingStatus,
    ),
    _one(fields.PCIE_TX_THROUGHPUT, _pcie(pynvml.NVML_PCIE_UTIL_TX_BYTES)),
    _one(fields.PCIE_RX_THROUGHPUT, _pcie(pynvml.NVML_PCIE_UTIL_RX_BYTES)),
)
"""In the order of the documents; those of one tuple are read at once."""
