"""Cards in MIG mode, and limits by control group, as the real pynvml sees them."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.nvml.build import the_stub
from tests.nvml.driver import (
    MIB,
    StubDriver,
    stub_card,
    stub_driver,
    stub_instance,
)

A100 = stub_card(0, model="NVIDIA A100-SXM4-40GB", memory_mib=40960, mig=True)
P4 = stub_card(1)
FIRST = stub_instance(A100, 0, gi=7, used_mib=100)
THIRD = stub_instance(
    A100, 2, gi=1, slices=2, memory_mib=9984, model="NVIDIA A100-SXM4-40GB MIG 2g.10gb"
)
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
INVALID = pynvml.NVML_ERROR_INVALID_ARGUMENT


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[StubDriver]:
    with stub_driver(the_stub(), tmp_path, [A100, P4]) as made:
        made.set_instances(FIRST, THIRD)
        pynvml.nvmlInit()
        yield made
        pynvml.nvmlShutdown()


def card(number: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(number)


def instance(place: int) -> Any:
    return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card(0), place)


def refusal(call: Callable[[], object]) -> int:
    with pytest.raises(pynvml.NVMLError) as refused:
        call()
    return int(refused.value.value)


@pytest.mark.usefixtures("driver")
def test_instances_are_in_no_list_but_their_cards() -> None:
    """In places of their own, of which some are empty; a card without MIG has none."""
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetUUID(card(1)) == P4.uuid
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(card(0)) == 7
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(card(1)) == 0
    assert pynvml.nvmlDeviceGetMigMode(card(0)) == [1, 1]
    assert refusal(lambda: instance(1)) == NOT_FOUND
    assert refusal(lambda: instance(7)) == INVALID
    none = refusal(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card(1), 0))
    assert none == NOT_SUPPORTED


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("place", "wanted"), [(0, FIRST), (2, THIRD)])
def test_an_instance_tells_what_does_not_change(place: int, wanted: Any) -> None:
    handle = instance(place)
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    attributes = pynvml.nvmlDeviceGetAttributes(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    assert ctypes.sizeof(attributes) == 40
    assert pynvml.nvmlDeviceIsMigDeviceHandle(handle).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(parent).value == 0
    assert pynvml.nvmlDeviceGetUUID(parent) == A100.uuid
    assert pynvml.nvmlDeviceGetUUID(handle) == wanted.uuid
    assert pynvml.nvmlDeviceGetName(handle) == wanted.model
    assert pynvml.nvmlDeviceGetGpuInstanceId(handle) == wanted.gi
    assert pynvml.nvmlDeviceGetComputeInstanceId(handle) == wanted.ci
    assert pynvml.nvmlDeviceGetMinorNumber(handle) == A100.minor
    assert attributes.gpuInstanceSliceCount == wanted.slices
    assert attributes.memorySizeMB == wanted.memory_mib
    assert (memory.total, memory.used) == (
        wanted.memory_mib * MIB,
        wanted.used_mib * MIB,
    )


@pytest.mark.parametrize(
    "call",
    [
        pynvml.nvmlDeviceGetUtilizationRates,
        pynvml.nvmlDeviceGetPowerUsage,
        lambda handle: pynvml.nvmlDeviceGetTemperature(handle, 0),
        lambda handle: pynvml.nvmlDeviceGetProcessUtilization(handle, 0),
        pynvml.nvmlDeviceGetMigMode,
    ],
    ids=["utilization", "power", "temperature", "processes at work", "mode"],
)
def test_an_instance_does_not_tell(
    driver: StubDriver, call: Callable[[Any], Any]
) -> None:
    driver.values("*", gpu_util=50, power=30000, temperature=40)
    assert refusal(lambda: call(instance(0))) == NOT_SUPPORTED


def test_a_whole_card_has_no_numbers_of_an_instance(driver: StubDriver) -> None:
    calls = (
        pynvml.nvmlDeviceGetGpuInstanceId,
        pynvml.nvmlDeviceGetComputeInstanceId,
        pynvml.nvmlDeviceGetAttributes,
    )
    assert {refusal(lambda call=call: call(card(1))) for call in calls} == {
        NOT_SUPPORTED
    }
    assert driver.cards == [A100, P4]


def test_an_instance_that_was_destroyed_has_a_stale_handle(driver: StubDriver) -> None:
    handle = instance(2)
    driver.set_instances(FIRST)
    assert refusal(lambda: pynvml.nvmlDeviceGetUUID(handle)) == INVALID
    assert refusal(lambda: instance(2)) == NOT_FOUND
    driver.set_instances(FIRST, THIRD)
    assert pynvml.nvmlDeviceGetUUID(instance(2)) == THIRD.uuid


def test_processes_carry_the_numbers_of_their_instance(driver: StubDriver) -> None:
    """On the card all of them, on an instance its own."""
    driver.process(FIRST.uuid, 11, 64)
    driver.process(THIRD.uuid, 12, 32)
    driver.process(P4.uuid, 13, 16)

    def told(handle: Any) -> set[tuple[int, int, int]]:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return {(p.pid, p.gpuInstanceId, p.computeInstanceId) for p in found}

    none = 0xFFFFFFFF
    assert told(card(0)) == {(11, 7, 0), (12, 1, 0)}
    assert told(instance(2)) == {(12, 1, 0)}
    assert told(card(1)) == {(13, none, none)}


def test_a_fault_is_the_cards_with_the_instances_numbers(driver: StubDriver) -> None:
    kind, none = pynvml.nvmlEventTypeXidCriticalError, 0xFFFFFFFF
    faults = pynvml.nvmlEventSetCreate()
    for number in range(2):
        pynvml.nvmlDeviceRegisterEvents(card(number), kind, faults)
    driver.xid(THIRD.uuid, 43)
    driver.xid(P4.uuid, 48)
    for uuid, xid, numbers in ((A100.uuid, 43, (1, 0)), (P4.uuid, 48, (none, none))):
        event = pynvml.nvmlEventSetWait(faults, 0)
        assert pynvml.nvmlDeviceGetUUID(event.device) == uuid
        assert event.eventData == xid
        assert (event.gpuInstanceId, event.computeInstanceId) == numbers
    pynvml.nvmlEventSetFree(faults)


def set_limits(handle: Any, group: Path, soft: int, hard: int) -> None:
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(
        str(group).encode(), soft * MIB, hard * MIB
    )
    pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)


def hard_limit(handle: Any, group: Path) -> int:
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(str(group).encode())
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    return int(limits.hardLimit)


def test_limits_are_noted_by_card_and_group(driver: StubDriver, tmp_path: Path) -> None:
    """The last one counts; a group without one has none."""
    group, other = tmp_path / "pod a", tmp_path / "pod b"
    group.mkdir()
    other.mkdir()
    set_limits(card(1), group, 512, 512)
    set_limits(card(1), group, 0, 1024)
    assert hard_limit(card(1), group) == 1024 * MIB
    assert hard_limit(card(1), other) == 2**64 - 1
    assert driver.limits() == {(P4.uuid, str(group)): (0, 1024)}


@pytest.mark.usefixtures("driver")
def test_limits_that_the_driver_does_not_take(tmp_path: Path) -> None:
    """In MIG mode, for a group that is not there, and soft above hard."""
    calls = {
        NOT_SUPPORTED: lambda: set_limits(card(0), tmp_path, 0, 1024),
        NOT_FOUND: lambda: set_limits(card(1), tmp_path / "gone", 0, 1024),
        INVALID: lambda: set_limits(card(1), tmp_path, 2048, 1024),
    }
    for code, call in calls.items():
        assert refusal(call) == code
    assert refusal(lambda: set_limits(instance(0), tmp_path, 0, 1024)) == NOT_SUPPORTED
