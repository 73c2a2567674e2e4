"""GPM, of Hopper and newer: between two samples, each of which is given back."""

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from deviceplugin.cards import nvml
from deviceplugin.telemetry import fields as f
from deviceplugin.telemetry.base import CardAnswer
from deviceplugin.telemetry.nvml import Profiler
from gpushare.domain.model import CardUUID
from tests.deviceplugin.nvml_watch import CARD, OTHER, Watch, of_group, says, watch
from tests.nvml.build import the_stub
from tests.nvml.driver import LOST, NOT_SUPPORTED, StubDriver, stub_driver

EVERY = of_group(f.PROFILING)
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


@pytest.fixture
def hopper(tmp_path: Path) -> Iterator[Watch]:
    """A card that has GPM beside one that has not."""
    with watch(tmp_path, CARD, OTHER) as (driver, telemetry):
        driver.values(CARD.uuid, gpm=1)
        yield driver, telemetry


def alive() -> int:
    """Samples that nobody has given back."""
    return int(pynvml.nvmlLib.nvmlStubGpmSamples())


def test_shares_and_bytes_are_told(hopper: Watch) -> None:
    """Of 0 to 1 where NVML gives percent, in bytes where it gives MiB; it follows."""
    driver, telemetry = hopper
    assert says(telemetry, f.PROFILING) == CardAnswer(dict.fromkeys(EVERY, 0.0))
    driver.values(CARD.uuid, gpm_graphics=99.5, gpm_sm=50, gpm_occupancy=25)
    driver.values(CARD.uuid, gpm_tensor=12.5, gpm_dram=75)
    driver.values(CARD.uuid, gpm_pcie_tx=1.5, gpm_pcie_rx=2)
    answer = says(telemetry, f.PROFILING)
    assert answer.values == {
        f.GR_ENGINE_ACTIVE: pytest.approx(0.995),
        f.SM_ACTIVE: 0.5,
        f.SM_OCCUPANCY: 0.25,
        f.PIPE_TENSOR_ACTIVE: 0.125,
        f.DRAM_ACTIVE: 0.75,
        f.PROF_PCIE_TX_BYTES: 1.5 * 2**20,
        f.PROF_PCIE_RX_BYTES: 2.0 * 2**20,
    }
    assert answer.unsupported == frozenset()


def test_a_card_before_hopper_has_none(hopper: Watch) -> None:
    """Nor has one under a driver that knows no GPM; that is no failure."""
    unsupported = CardAnswer(unsupported=EVERY)
    assert says(hopper[1], f.PROFILING, card=OTHER) == unsupported


def test_an_older_driver_has_none(tmp_path: Path) -> None:
    with watch(tmp_path, CARD, middle=True) as (_, telemetry):
        assert says(telemetry, f.PROFILING) == CardAnswer(unsupported=EVERY)


def test_a_metric_may_be_missing(hopper: Watch) -> None:
    """The others are told."""
    driver, telemetry = hopper
    driver.values(CARD.uuid, gpm_tensor=None)
    answer = says(telemetry, f.PROFILING)
    assert answer.unsupported == {f.PIPE_TENSOR_ACTIVE}
    assert answer.values.keys() == EVERY - {f.PIPE_TENSOR_ACTIVE}


@pytest.mark.parametrize("code", [UNKNOWN, pynvml.NVML_ERROR_NO_PERMISSION])
def test_profiling_that_is_refused_is_no_failure(hopper: Watch, code: int) -> None:
    """As by a driver that keeps its counters to administrators."""
    driver, telemetry = hopper
    driver.fail(CARD.uuid, "GpmQueryDeviceSupport", code)
    answer = says(telemetry, f.PROFILING, f.SM_ACTIVE, "OTHER")
    assert answer == CardAnswer(unsupported=frozenset({"OTHER"}))


def test_a_metric_that_fails_is_not_unsupported(hopper: Watch) -> None:
    """It is missing just now; of a lost card it is the card's failure."""
    driver, telemetry = hopper
    tensor = f"GpmMetric/{pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL}"
    driver.fail(CARD.uuid, tensor, UNKNOWN)
    told = dict.fromkeys(EVERY - {f.PIPE_TENSOR_ACTIVE}, 0.0)
    assert says(telemetry, f.PROFILING) == CardAnswer(told)
    driver.fail(CARD.uuid, tensor, LOST)
    failure = "the driver has lost it (GPU is lost)"
    assert says(telemetry, f.PROFILING) == CardAnswer(failure=failure)


def test_metrics_that_cannot_be_had_are_unsupported(hopper: Watch) -> None:
    """Of a card that takes samples and makes nothing of them."""
    driver, telemetry = hopper
    driver.fail(CARD.uuid, "GpmMetricsGet", NOT_SUPPORTED)
    assert says(telemetry, f.PROFILING) == CardAnswer(unsupported=EVERY)


def test_only_what_is_wanted_is_told(hopper: Watch) -> None:
    """And what GPM does not know is unsupported."""
    answer = says(hopper[1], f.PROFILING, f.SM_ACTIVE, "OTHER")
    assert answer == CardAnswer({f.SM_ACTIVE: 0.0}, frozenset({"OTHER"}))


def test_samples_are_given_back(tmp_path: Path) -> None:
    """All but the one that the next reading begins with, and that in the end."""
    with watch(tmp_path, CARD) as (driver, telemetry):
        driver.values(CARD.uuid, gpm=1)
        for _ in range(3):
            says(telemetry, f.PROFILING)
            assert alive() == 1
        telemetry.close()
        assert alive() == 0


@pytest.mark.parametrize("function", ["GpmSampleGet", "GpmMetricsGet"])
def test_a_reading_that_fails_leaves_nothing_behind(
    hopper: Watch, function: str
) -> None:
    """Its fields are missing, of a card that has answered; the next one is good."""
    driver, telemetry = hopper
    driver.fail(CARD.uuid, function, UNKNOWN)
    for _ in range(3):
        assert says(telemetry, f.PROFILING) == CardAnswer()
        assert alive() <= 1
    driver.fail(CARD.uuid, function, pynvml.NVML_SUCCESS)
    assert says(telemetry, f.PROFILING).values.keys() == EVERY


def test_a_card_that_loses_gpm_is_unsupported(hopper: Watch) -> None:
    """As one put into another mode; its sample is given back."""
    driver, telemetry = hopper
    says(telemetry, f.PROFILING)
    driver.values(CARD.uuid, gpm=0)
    assert says(telemetry, f.PROFILING) == CardAnswer(unsupported=EVERY)
    assert alive() == 0


@pytest.mark.parametrize(("stale_s", "calls"), [(600.0, 3), (0.0, 4)])
def test_a_kept_sample_spares_one(tmp_path: Path, stale_s: float, calls: int) -> None:
    """Unless it is too old: whether it is a Hopper, one sample or two, the metrics."""
    with stub_driver(the_stub(), tmp_path, [CARD]) as driver:
        driver.values(CARD.uuid, gpm=1)
        nvml.start()
        profiler, handle = Profiler(stale_s), nvml.handle_at(0)
        profiler.read(CardUUID(CARD.uuid), handle, EVERY)
        assert made_by(driver, profiler, handle) == calls
        profiler.close()
        assert alive() == 0
        nvml.stop()


def made_by(driver: StubDriver, profiler: Profiler, handle: nvml.Handle) -> int:
    """How many calls one more reading takes."""
    before = driver.calls()
    profiler.read(CardUUID(CARD.uuid), handle, EVERY)
    return driver.calls() - before
