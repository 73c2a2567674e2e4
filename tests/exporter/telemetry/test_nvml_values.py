"""The fields of one NVIDIA card, and GPM."""

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from exporter.telemetry import fields as f
from exporter.telemetry.base import CardAnswer
from exporter.telemetry.nvml import Profiler
from gpushare.cards import nvml
from gpushare.domain.model import CardUUID
from tests.gpushare.cards.nvml_fixture import (
    CARD,
    OTHER,
    Clock,
    Watch,
    of_group,
    says,
    watch,
)
from tests.nvml.build import the_stub
from tests.nvml.driver import BLANK, LOST, NOT_SUPPORTED, stub_card, stub_driver

UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
REFUSALS = (UNKNOWN, pynvml.NVML_ERROR_NO_PERMISSION)
NOT_FOUND = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
MEMORY_TEMPERATURE = f"FieldValue/{pynvml.NVML_FI_DEV_MEMORY_TEMP}"
NVLINK_RECEIVED = f"FieldValue/{pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX}"
READ = (f.UTILIZATION, f.MEMORY, f.ENVIRONMENT, f.FAULTS, f.RETIRED, f.PCIE)

SAID = {
    f.GPU_UTIL: ("gpu_util", 23, 23.0),
    f.MEM_COPY_UTIL: ("memory_util", 11, 11.0),
    f.ENC_UTIL: ("encoder", 7, 7.0),
    f.DEC_UTIL: ("decoder", 5, 5.0),
    f.GPU_TEMP: ("temperature", 61, 61.0),
    f.MEMORY_TEMP: ("memory_temperature", 72, 72.0),
    f.POWER_USAGE: ("power", 71_250, 71.25),
    f.TOTAL_ENERGY_CONSUMPTION: ("energy", 2**40, 2.0**40),
    f.SM_CLOCK: ("sm_clock", 1531, 1531.0),
    f.MEM_CLOCK: ("memory_clock", 3003, 3003.0),
    f.POWER_VIOLATION: ("power_violation", 5_000_000_000, 5e9),
    f.THERMAL_VIOLATION: ("thermal_violation", 2_000, 2000.0),
    f.PCIE_REPLAY_COUNTER: ("pcie_replay", 3, 3.0),
    f.ECC_SBE_VOL_TOTAL: ("ecc_sbe_volatile", 1, 1.0),
    f.ECC_DBE_VOL_TOTAL: ("ecc_dbe_volatile", 2, 2.0),
    f.ECC_SBE_AGG_TOTAL: ("ecc_sbe_aggregate", 13, 13.0),
    f.ECC_DBE_AGG_TOTAL: ("ecc_dbe_aggregate", 14, 14.0),
    f.CORRECTABLE_REMAPPED_ROWS: ("rows_correctable", 15, 15.0),
    f.UNCORRECTABLE_REMAPPED_ROWS: ("rows_uncorrectable", 16, 16.0),
    f.ROW_REMAP_FAILURE: ("rows_failure", 1, 1.0),
    f.VGPU_LICENSE_STATUS: ("license", 1, 1.0),
    f.RETIRED_SBE: ("retired_sbe", 17, 17.0),
    f.RETIRED_DBE: ("retired_dbe", 18, 18.0),
    f.RETIRED_PENDING: ("retired_pending", 1, 1.0),
    f.PCIE_TX_THROUGHPUT: ("pcie_tx", 1900, 1900.0),
    f.PCIE_RX_THROUGHPUT: ("pcie_rx", 2000, 2000.0),
}
"""By field: the stub's value, how it is set, and what must be read."""

ROWS = {f.CORRECTABLE_REMAPPED_ROWS, f.UNCORRECTABLE_REMAPPED_ROWS, f.ROW_REMAP_FAILURE}
TOGETHER = [{f.GPU_UTIL, f.MEM_COPY_UTIL}, ROWS]
"""Fields of one call: where one of them is not supported, none is told."""
IS_LOST = CardAnswer(failure="the driver has lost it (GPU is lost)")
EVERY = of_group(f.PROFILING)


def lacking(*names: str) -> CardAnswer:
    return CardAnswer(unsupported=frozenset(names))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watch]:
    with watch(tmp_path, CARD) as found:
        yield found


def test_each_field_is_told_in_its_unit(watched: Watch) -> None:
    """All of them but those of GPM and NVLink, and nothing else. Idle is 0."""
    idle = CardAnswer(dict.fromkeys(of_group(f.UTILIZATION), 0.0))
    assert says(watched.telemetry, f.UTILIZATION) == idle
    assert says(watched.telemetry, f.FAULTS).values[f.VGPU_LICENSE_STATUS] == 0
    watched.driver.values(CARD.uuid, **{key: raw for key, raw, _ in SAID.values()})
    told: dict[str, float] = {}
    for group in READ:
        answer = says(watched.telemetry, group)
        assert (answer.unsupported, answer.failure) == (frozenset(), "")
        told |= answer.values
    assert told == {
        **{name: value for name, (_, _, value) in SAID.items()},
        f.FB_USED: 300,
        f.FB_FREE: 7611 - 300 - 200,
        f.FB_RESERVED: 200,
        f.FB_TOTAL: 7611,
    }
    every = {field.name for field in f.FIELDS if field.group in READ}
    assert every - told.keys() == {f.XID_ERRORS}


@pytest.mark.parametrize("name", SAID)
def test_what_a_card_does_not_support_is_no_value(watched: Watch, name: str) -> None:
    """Never 0; all that it supports is still told."""
    watched.driver.values(CARD.uuid, memory_temperature=40)
    watched.driver.values(CARD.uuid, **{SAID[name][0]: None})
    group = next(field.group for field in f.FIELDS if field.name == name)
    with_it = next((names for names in TOGETHER if name in names), {name})
    answer = says(watched.telemetry, group)
    assert answer.unsupported == with_it
    readable = of_group(group) - {f.XID_ERRORS}
    assert (answer.values.keys(), answer.failure) == (readable - with_it, "")


def test_nvlink_is_told_as_dcgm_tells_it(tmp_path: Path) -> None:
    """KiB a second, divided by 1000; unknown at first, and after a reset."""
    ticks = Clock()
    with watch(tmp_path, CARD, ticks=ticks) as (driver, telemetry):
        found = []
        for after_s, sent in ((0, 500_000), (10, 600_000), (20, 600_000), (20, 7)):
            ticks.now += after_s
            driver.values(CARD.uuid, nvlink_tx=sent, nvlink_rx=2 * sent)
            found.append(says(telemetry, f.NVLINK).values)
    name = f.NVLINK_BANDWIDTH_TOTAL
    assert found == [{}, {name: 30.0}, {name: 0.0}, {}]


def test_half_of_the_traffic_is_no_traffic(watched: Watch) -> None:
    """The counter would fall and rise; a card without NVLink says so."""
    unsupported = lacking(f.NVLINK_BANDWIDTH_TOTAL)
    assert says(watched.telemetry, f.NVLINK) == unsupported
    watched.driver.values(CARD.uuid, nvlink_tx=100)
    assert says(watched.telemetry, f.NVLINK) == unsupported
    watched.driver.values(CARD.uuid, nvlink_rx=23)
    for code, wanted in ((UNKNOWN, CardAnswer()), (LOST, IS_LOST)):
        # The call itself succeeds, whose fields say what there is to say.
        watched.driver.fail(CARD.uuid, NVLINK_RECEIVED, code)
        assert says(watched.telemetry, f.NVLINK) == wanted


def test_unified_memory_is_not_told(watched: Watch) -> None:
    watched.telemetry.cards()
    for function in ("DeviceGetMemoryInfo", "DeviceGetMemoryInfo_v2"):
        watched.driver.fail(CARD.uuid, function, NOT_SUPPORTED)
    assert says(watched.telemetry, f.MEMORY) == lacking(*of_group(f.MEMORY))


@pytest.mark.parametrize("age", ["middle", "old"])
def test_an_older_driver_tells_what_it_can(tmp_path: Path, age: str) -> None:
    """What it keeps counts as used before 510, the temperature is told all the same."""
    with watch(tmp_path, CARD, **{age: True}) as (_, telemetry):
        memory = {f.FB_USED: 500, f.FB_FREE: 7111, f.FB_TOTAL: 7611}
        wanted = CardAnswer(memory, frozenset({f.FB_RESERVED}))
        assert says(telemetry, f.MEMORY) == wanted
        assert says(telemetry, f.ENVIRONMENT).values[f.GPU_TEMP] == 35
        faults = says(telemetry, f.FAULTS).unsupported
        assert faults == (ROWS if age == "old" else frozenset())
        assert says(telemetry, f.PROFILING) == lacking(*EVERY)


def test_no_more_is_used_than_there_is(tmp_path: Path) -> None:
    """Whatever an old driver counts in; amounts are whole MiB, rounded down."""
    full = stub_card(0, used_mib=7600, reserved_mib=200, odd_bytes=2**20 - 1)
    with watch(tmp_path, full, old=True) as (_, telemetry):
        told = says(telemetry, f.MEMORY, f.FB_USED, f.FB_TOTAL, card=full)
        assert told.values == {f.FB_USED: 7611, f.FB_TOTAL: 7611}


@pytest.mark.parametrize(
    ("key", "name"), [("power", f.POWER_USAGE), ("energy", f.TOTAL_ENERGY_CONSUMPTION)]
)
def test_a_blank_is_no_value(watched: Watch, key: str, name: str) -> None:
    """NVML writes all ones, in either width, where it cannot tell an amount."""
    watched.driver.values(CARD.uuid, **{key: BLANK})
    assert says(watched.telemetry, f.ENVIRONMENT, name) == lacking(name)


@pytest.mark.parametrize(
    ("function", "name", "wanted"),
    [
        ("DeviceGetViolationStatus", f.POWER_VIOLATION, 5000.0),
        ("DeviceGetViolationStatus", f.THERMAL_VIOLATION, 6000.0),
        ("DeviceGetTemperatureV", f.GPU_TEMP, 35.0),
        ("DeviceGetTemperature", f.GPU_TEMP, 35.0),
    ],
)
def test_another_call_stands_in(
    watched: Watch, function: str, name: str, wanted: float
) -> None:
    """For one that the driver does not have yet, or has no more."""
    watched.driver.values(CARD.uuid, power_violation=5000, thermal_violation=6000)
    watched.driver.fail(CARD.uuid, function, NOT_FOUND)
    assert says(watched.telemetry, f.ENVIRONMENT, name).values == {name: wanted}


@pytest.mark.parametrize("code", REFUSALS)
def test_what_is_refused_is_no_failure(
    watched: Watch, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its field is unknown, not unsupported; that is logged once."""
    watched.driver.values(CARD.uuid, gpm=1)
    watched.driver.fail(CARD.uuid, "DeviceGetEncoderUtilization", code)
    told = dict.fromkeys(of_group(f.UTILIZATION) - {f.ENC_UTIL}, 0.0)
    for _ in range(3):
        assert says(watched.telemetry, f.UTILIZATION) == CardAnswer(told)
    [record] = caplog.records
    assert record.message == "a card does not report a field"
    assert vars(record)["field"] == f.ENC_UTIL
    for group, function in (
        (f.PCIE, "DeviceGetPcieThroughput"),
        (f.MEMORY, "DeviceGetMemoryInfo_v2"),
        (f.PROFILING, "GpmQueryDeviceSupport"),
    ):
        watched.driver.fail(CARD.uuid, function, code)
        assert says(watched.telemetry, group) == CardAnswer()


def test_a_card_of_which_every_call_fails_has_failed(watched: Watch) -> None:
    watched.telemetry.cards()
    watched.driver.fail(CARD.uuid, "*", UNKNOWN)
    failed = CardAnswer(failure="NVML says: Unknown Error (999)")
    assert says(watched.telemetry, f.UTILIZATION) == failed


@pytest.mark.parametrize(
    ("code", "unsupported"),
    [
        (UNKNOWN, set()),
        (NOT_SUPPORTED, {f.MEMORY_TEMP}),
        (pynvml.NVML_ERROR_INVALID_ARGUMENT, {f.MEMORY_TEMP}),
    ],
)
def test_a_field_whose_call_succeeds(
    watched: Watch, code: int, unsupported: set[str]
) -> None:
    """One that fails is not unsupported, unless its driver has never heard of it."""
    watched.driver.values(CARD.uuid, memory_temperature=40)
    watched.driver.fail(CARD.uuid, MEMORY_TEMPERATURE, code)
    answer = says(watched.telemetry, f.ENVIRONMENT, f.MEMORY_TEMP, f.POWER_USAGE)
    assert answer == CardAnswer({f.POWER_USAGE: 20.0}, frozenset(unsupported))


def test_the_last_fault_is_never_read(tmp_path: Path) -> None:
    """Events bring it; a card that reports no faults must not be said to have none."""
    with watch(tmp_path, CARD, OTHER) as (driver, telemetry):
        driver.values(OTHER.uuid, pcie_replay=7)
        driver.fail(OTHER.uuid, "DeviceRegisterEvents", NOT_SUPPORTED)
        told = telemetry.read(f.FAULTS, [f.XID_ERRORS, f.PCIE_REPLAY_COUNTER])
        silent = frozenset({f.XID_ERRORS})
        assert told == {
            CARD.uuid: CardAnswer({f.PCIE_REPLAY_COUNTER: 0.0}),
            OTHER.uuid: CardAnswer({f.PCIE_REPLAY_COUNTER: 7.0}, silent),
        }


@pytest.fixture
def hopper(tmp_path: Path) -> Iterator[Watch]:
    """A card that has GPM beside one that has not."""
    with watch(tmp_path, CARD, OTHER) as (driver, telemetry):
        driver.values(CARD.uuid, gpm=1)
        yield Watch(driver, telemetry)


def alive() -> int:
    return int(pynvml.nvmlLib.nvmlStubGpmSamples())


def test_shares_and_bytes_are_told(hopper: Watch) -> None:
    """Of 0 to 1 where NVML gives percent, in bytes where it gives MiB."""
    assert says(hopper.telemetry, f.PROFILING) == CardAnswer(dict.fromkeys(EVERY, 0.0))
    hopper.driver.values(CARD.uuid, gpm_graphics=99.5, gpm_sm=50, gpm_occupancy=25)
    hopper.driver.values(CARD.uuid, gpm_tensor=12.5, gpm_dram=75)
    hopper.driver.values(CARD.uuid, gpm_pcie_tx=1.5, gpm_pcie_rx=2)
    values = {
        f.GR_ENGINE_ACTIVE: pytest.approx(0.995),
        f.SM_ACTIVE: 0.5,
        f.SM_OCCUPANCY: 0.25,
        f.PIPE_TENSOR_ACTIVE: 0.125,
        f.DRAM_ACTIVE: 0.75,
        f.PROF_PCIE_TX_BYTES: 1.5 * 2**20,
        f.PROF_PCIE_RX_BYTES: 2.0 * 2**20,
    }
    answer = says(hopper.telemetry, f.PROFILING)
    assert (answer.values, answer.unsupported) == (values, frozenset())
    some = says(hopper.telemetry, f.PROFILING, f.SM_ACTIVE, "OTHER")
    assert some == CardAnswer({f.SM_ACTIVE: 0.5}, frozenset({"OTHER"}))
    assert says(hopper.telemetry, f.PROFILING, card=OTHER) == lacking(*EVERY)


def test_a_metric_may_be_missing(hopper: Watch) -> None:
    """One that fails just now is not unsupported; of a lost card the card fails."""
    tensor = f.PIPE_TENSOR_ACTIVE
    told = dict.fromkeys(EVERY - {tensor}, 0.0)
    hopper.driver.values(CARD.uuid, gpm_tensor=None)
    assert says(hopper.telemetry, f.PROFILING) == CardAnswer(told, frozenset({tensor}))
    metric = f"GpmMetric/{pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL}"
    for code, wanted in ((UNKNOWN, CardAnswer(told)), (LOST, IS_LOST)):
        hopper.driver.fail(CARD.uuid, metric, code)
        assert says(hopper.telemetry, f.PROFILING) == wanted
    hopper.driver.fail(CARD.uuid, "GpmMetricsGet", NOT_SUPPORTED)
    assert says(hopper.telemetry, f.PROFILING) == lacking(*EVERY)


@pytest.mark.parametrize("function", ["GpmSampleGet", "GpmMetricsGet"])
def test_samples_are_given_back(hopper: Watch, function: str) -> None:
    """All but the one that the next reading begins with, also if a reading fails."""
    for code, wanted in ((UNKNOWN, {}), (pynvml.NVML_SUCCESS, EVERY)):
        hopper.driver.fail(CARD.uuid, function, code)
        for _ in range(2):
            assert says(hopper.telemetry, f.PROFILING).values.keys() == set(wanted)
            assert alive() <= 1
    hopper.driver.values(CARD.uuid, gpm=0)
    assert says(hopper.telemetry, f.PROFILING) == lacking(*EVERY)
    assert alive() == 0
    hopper.driver.values(CARD.uuid, gpm=1)
    says(hopper.telemetry, f.PROFILING)
    assert alive() == 1
    hopper.telemetry.close()
    assert alive() == 0


@pytest.mark.parametrize(("stale_s", "calls"), [(600.0, 3), (0.0, 4)])
def test_a_kept_sample_spares_one(tmp_path: Path, stale_s: float, calls: int) -> None:
    """Unless it is too old: whether it is a Hopper, one sample or two, the metrics."""
    with stub_driver(the_stub(), tmp_path, [CARD]) as driver:
        driver.values(CARD.uuid, gpm=1)
        nvml.start()
        profiler, handle = Profiler(stale_s), nvml.handle_at(0)
        for _ in range(2):
            before = driver.calls()
            profiler.read(CardUUID(CARD.uuid), handle, EVERY)
        assert driver.calls() - before == calls
        profiler.close()
        nvml.stop()
