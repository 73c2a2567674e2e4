"""Who is on NVIDIA's cards, and what pitfalls their drivers have about it."""

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from exporter.telemetry.base import ProcessesAnswer, ProcessUse, SmSource
from tests.gpushare.cards.nvml_fixture import (
    CARD,
    OTHER,
    Clock,
    Watch,
    processes,
    uses,
    watch,
)
from tests.nvml.driver import NOT_SUPPORTED, Kind, StubDriver

UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
UTILIZATION = "DeviceGetUtilizationRates"
SAMPLES = "DeviceGetProcessUtilization"
INFO = "DeviceGetProcessesUtilizationInfo"
COMPUTE = [f"DeviceGetComputeRunningProcesses{suffix}" for suffix in ("_v3", "_v2", "")]
GRAPHICS = [function.replace("Compute", "Graphics") for function in COMPUTE]
MPS = [function.replace("Compute", "MPSCompute") for function in COMPUTE]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched(tmp_path: Path, clock: Clock) -> Iterator[Watch]:
    with watch(tmp_path, CARD, OTHER, clock=clock) as found:
        yield found


AGES = ({}, {"middle": True}, {"old": True})
"""Of drivers: three calls and two layouts."""
UNKNOWN_WORK = (ProcessUse(7, 256.0),)


def idle(pid: int, mib: float | None = 256.0) -> ProcessUse:
    return ProcessUse(pid, mib, 0.0, 0.0, 0.0, 0.0)


def fail(driver: StubDriver, code: int, *functions: str) -> None:
    for function in functions:
        driver.fail(CARD.uuid, function, code)


# Lists.


@pytest.mark.parametrize("age", AGES, ids=["newest", "middle", "old"])
def test_each_layout_is_read_as_what_it_is(
    tmp_path: Path, age: dict[str, bool]
) -> None:
    """They garble each other's processes if mixed up; all ones is no amount."""
    with watch(tmp_path, CARD, **age) as (driver, telemetry):
        for pid in range(101, 108):
            driver.process(CARD.uuid, pid, pid * 1.5)
        wanted = {pid: idle(pid, pid * 1.5) for pid in range(101, 108)}
        assert uses(telemetry) == wanted
        driver.process(CARD.uuid, 7, None)
        driver.process(CARD.uuid, 8, None)
        driver.process(CARD.uuid, 8, 64, kind="graphics")
        assert uses(telemetry) == {**wanted, 7: idle(7, None), 8: idle(8, 64)}


def test_all_kinds_of_processes_are_listed(watched: Watch) -> None:
    """Once each; one in two lists uses its memory once."""
    assert processes(watched.telemetry) == ProcessesAnswer((), SmSource.SAMPLES)
    watched.driver.process(CARD.uuid, 7, 100)
    watched.driver.process(CARD.uuid, 8, 200, kind="graphics")
    watched.driver.process(CARD.uuid, 7, 100, kind="graphics")
    watched.driver.process(OTHER.uuid, 9, 300)
    assert uses(watched.telemetry) == {7: idle(7, 100), 8: idle(8, 200)}
    assert uses(watched.telemetry, OTHER) == {9: idle(9, 300)}


def test_a_card_that_lists_nobody_is_unknown(watched: Watch) -> None:
    """As under WDDM: that is not the same as having no processes."""
    watched.driver.process(CARD.uuid, 7)
    fail(watched.driver, NOT_SUPPORTED, *COMPUTE, *GRAPHICS)
    assert processes(watched.telemetry) == ProcessesAnswer(known=False)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, UNKNOWN])
def test_a_lesser_list_may_be_missing(watched: Watch, code: int) -> None:
    """Compute processes are told without the graphics', which never were told."""
    watched.driver.process(CARD.uuid, 7)
    fail(watched.driver, code, *GRAPHICS, *MPS)
    assert uses(watched.telemetry) == {7: idle(7)}


def test_a_list_that_fails_is_not_known(
    watched: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can say who is there, but the card has answered. It is logged once."""
    watched.driver.process(OTHER.uuid, 7)
    fail(watched.driver, UNKNOWN, *COMPUTE)
    for _ in range(3):
        assert processes(watched.telemetry) == ProcessesAnswer(known=False)
        assert uses(watched.telemetry, OTHER) == {7: idle(7)}
    assert [vars(record)["field"] for record in caplog.records] == ["processes"]
    fail(watched.driver, UNKNOWN, "*")
    failed = ProcessesAnswer.failed("NVML says: Unknown Error (999)")
    assert processes(watched.telemetry) == failed


@pytest.mark.parametrize(("kind", "calls"), [("graphics", GRAPHICS), ("mps", MPS)])
def test_a_lesser_list_that_told_and_fails_is_not_known(
    watched: Watch, kind: Kind, calls: list[str]
) -> None:
    """Those that it told of are no more idle than gone; it tells again."""
    watched.driver.process(CARD.uuid, 7)
    watched.driver.process(CARD.uuid, 8, 512, kind=kind)
    assert uses(watched.telemetry).keys() == {7, 8}
    fail(watched.driver, UNKNOWN, *calls)
    assert processes(watched.telemetry) == ProcessesAnswer(known=False)
    fail(watched.driver, pynvml.NVML_SUCCESS, *calls)
    assert uses(watched.telemetry).keys() == {7, 8}


# Samples of their work.


@pytest.mark.parametrize("success", [0, 1])
def test_work_is_told_by_process(watched: Watch, success: int) -> None:
    """Of an idle card a driver says NOT_FOUND, or SUCCESS with a count of 0."""
    watched.driver.values(CARD.uuid, idle_is_success=success)
    for pid in (7, 8):
        watched.driver.process(CARD.uuid, pid)
    both_idle = ProcessesAnswer((idle(7), idle(8)), SmSource.SAMPLES)
    assert processes(watched.telemetry) == both_idle
    for sm in (0, 23, 1):
        watched.driver.busy(CARD.uuid, 7, sm, 11, encoder=3, decoder=2)
        busy = ProcessUse(7, 256.0, sm, 11.0, 3.0, 2.0)
        assert uses(watched.telemetry) == {7: busy, 8: idle(8)}


def test_garbage_in_the_ring_is_dropped(watched: Watch) -> None:
    for pid in (7, 8):
        watched.driver.process(CARD.uuid, pid)
    watched.driver.busy(CARD.uuid, 7, 23)
    watched.driver.values(CARD.uuid, ring_garbage=1)
    busy = ProcessUse(7, 256.0, 23.0, 0.0, 0.0, 0.0)
    assert uses(watched.telemetry) == {7: busy, 8: idle(8)}


def test_the_dead_bear_no_witness(watched: Watch, clock: Clock) -> None:
    """A driver that tells of nobody alive on a busy card does not tell at all.

    It keeps the ring for long; a process that ended is not there at all.
    """
    watched.driver.process(CARD.uuid, 7)
    watched.driver.sample(CARD.uuid, 4_100_000, clock.now, 90)
    watched.driver.sample(CARD.uuid, 7, clock.now - 30, 90)
    assert uses(watched.telemetry) == {7: idle(7)}
    watched.driver.values(CARD.uuid, gpu_util=90)
    assert processes(watched.telemetry).sm_source is SmSource.CARD


def test_samples_since_the_last_reading_count(watched: Watch, clock: Clock) -> None:
    """Those of 1.5 s at least, of ten at most; of each process the newest.

    Else a busy one would look idle to who reads twice a second, because samples may
    come a little later than each second.
    """
    began = clock.now
    for pid in (7, 8):
        watched.driver.process(CARD.uuid, pid)
    for before, sm in ((0.7, 10), (0.1, 30), (0.4, 20)):
        watched.driver.sample(CARD.uuid, 8, clock.now - before, sm)
    assert uses(watched.telemetry)[8].sm == 30
    for later, at, seen in ((0, -1.4, 10), (0.1, -0.5, 20), (5.1, 1.0, 30)):
        watched.driver.sample(CARD.uuid, 7, began + at, seen)
        clock.now = began + later
        assert uses(watched.telemetry)[7].sm == seen
    clock.now = began + 60
    watched.driver.sample(CARD.uuid, 7, began + 45, 40)
    assert uses(watched.telemetry)[7].sm == 0


# Drivers that do not tell.


def test_a_blind_call_is_replaced_by_the_newer_one(watched: Watch) -> None:
    """As on Blackwell, where the older call is always empty."""
    watched.driver.process(CARD.uuid, 7)
    watched.driver.busy(CARD.uuid, 7, 23, 11, encoder=3, decoder=2)
    watched.driver.values(CARD.uuid, blind_samples=1, gpu_util=23)
    told = ProcessesAnswer((ProcessUse(7, 256.0, 23.0, 11.0, 3.0, 2.0),), SmSource.INFO)
    assert processes(watched.telemetry) == told
    watched.driver.busy(CARD.uuid, 7, 0)
    assert processes(watched.telemetry) == ProcessesAnswer((idle(7),), SmSource.INFO)


def test_what_no_call_tells_is_unknown(watched: Watch) -> None:
    """Of a busy card; the card's own use is all there is. An idle one's are idle."""
    watched.driver.process(CARD.uuid, 7)
    watched.driver.values(CARD.uuid, blind_samples=1, blind_info=1)
    for busy, known, source in (
        (23, UNKNOWN_WORK, SmSource.CARD),
        (0, (idle(7),), SmSource.SAMPLES),
        (None, UNKNOWN_WORK, SmSource.NONE),
    ):
        watched.driver.values(CARD.uuid, gpu_util=busy)
        assert processes(watched.telemetry) == ProcessesAnswer(known, source)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, UNKNOWN])
def test_calls_that_fail_make_work_unknown(watched: Watch, code: int) -> None:
    watched.driver.process(CARD.uuid, 7)
    fail(watched.driver, code, SAMPLES, INFO)
    assert processes(watched.telemetry) == ProcessesAnswer(UNKNOWN_WORK, SmSource.CARD)
    fail(watched.driver, code, UTILIZATION)
    assert processes(watched.telemetry) == ProcessesAnswer(UNKNOWN_WORK, SmSource.NONE)


@pytest.mark.parametrize("age", AGES[:2], ids=["newest", "middle"])
def test_a_call_that_told_once_is_believed(
    tmp_path: Path, age: dict[str, bool]
) -> None:
    """Its silence is idleness, even beside a card that is busy by its own account."""
    with watch(tmp_path, CARD, **age) as (driver, telemetry):
        idle_card = ProcessesAnswer((idle(7),), SmSource.SAMPLES)
        driver.process(CARD.uuid, 7)
        assert processes(telemetry) == idle_card
        driver.values(CARD.uuid, gpu_util=23)
        driver.busy(CARD.uuid, 7, 23)
        assert uses(telemetry)[7].sm == 23
        driver.values(CARD.uuid, blind_samples=1, blind_info=1)
        assert processes(telemetry) == idle_card


def test_work_of_mps_clients_may_be_the_servers(watched: Watch) -> None:
    watched.driver.process(CARD.uuid, 7, 30)
    for pid in (8, 9):
        watched.driver.process(CARD.uuid, pid, 500, kind="mps")
    watched.driver.busy(CARD.uuid, 7, 60)
    watched.driver.busy(CARD.uuid, 9, 5)
    assert uses(watched.telemetry) == {
        7: ProcessUse(7, 30.0, 60.0, 0.0, 0.0, 0.0),
        8: ProcessUse(8, 500.0),
        9: ProcessUse(9, 500.0, 5.0, 0.0, 0.0, 0.0),
    }


def test_a_card_put_into_mig_mode_is_no_failure(watched: Watch) -> None:
    """Until the next look leaves it out, it tells nothing of work; so none is known."""
    watched.driver.process(CARD.uuid, 7)
    watched.telemetry.cards()
    watched.driver.change(0, mig=True)
    assert processes(watched.telemetry) == ProcessesAnswer(UNKNOWN_WORK, SmSource.NONE)
    watched.telemetry.cards()
    assert watched.telemetry.processes().keys() == {OTHER.uuid}
