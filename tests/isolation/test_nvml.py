"""What NVML tells a container of its card's memory: the real pynvml over the stub."""

import json
import sys
from pathlib import Path

import pynvml
import pytest

from tests.isolation.container import SHARE_MIB, UUID, Container
from tests.nvml.build import STATE_VARIABLE, the_stub
from tests.nvml.driver import StubCard, StubDriver

MIB = 2**20
SHARED = StubCard(UUID, 16384, used_mib=5000, reserved_mib=300)
OTHER = StubCard("GPU-other", 8192, used_mib=100, reserved_mib=200, minor=1)
PROGRAM = """
import json, pynvml
pynvml.nvmlInit()
found = {}
for number in range(pynvml.nvmlDeviceGetCount()):
    card = pynvml.nvmlDeviceGetHandleByIndex(number)
    v1 = pynvml.nvmlDeviceGetMemoryInfo(card)
    v2 = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    found[pynvml.nvmlDeviceGetUUID(card)] = [
        [v1.total, v1.free, v1.used],
        [v2.version, v2.total, v2.reserved, v2.free, v2.used],
    ]
print(json.dumps(found))
"""


@pytest.fixture
def driver(tmp_path: Path) -> StubDriver:
    return StubDriver(tmp_path, [SHARED, OTHER])


def told_by(container: Container, driver: StubDriver, program: str) -> str:
    paths = f"{container.folder}:{the_stub().library.parent}"
    variables = {"LD_LIBRARY_PATH": paths, STATE_VARIABLE: str(driver.path)}
    said, complaints = container.ran([sys.executable, "-c", program], **variables)
    assert complaints == ""
    return said


def seen(container: Container, driver: StubDriver) -> dict[str, list[list[int]]]:
    """What a program is told by both calls, of each card."""
    found: dict[str, list[list[int]]] = json.loads(told_by(container, driver, PROGRAM))
    return found


def test_the_share_is_shown_as_the_card(
    container: Container, driver: StubDriver
) -> None:
    """Used is what its processes hold. Version and reserved stay."""
    with container.start("dlsym", "alloc", "cuMemAlloc_v2", "300", "wait") as process:
        assert process.stdout
        process.stdout.readline()
        found = seen(container, driver)[UUID]
        process.communicate("", timeout=60)
    total, left, used = SHARE_MIB * MIB, (SHARE_MIB - 300) * MIB, 300 * MIB
    version = pynvml.nvmlMemory_v2
    assert found == [
        [total, left, used],
        [version, total, 300 * MIB, left, used],
    ]


def test_a_card_that_is_not_its_own_is_shown_as_it_is(
    container: Container, driver: StubDriver
) -> None:
    found = seen(container, driver)[OTHER.uuid]
    free = (8192 - 100 - 200) * MIB
    v1, v2 = found
    assert (v1[0], v1[2]) == (8192 * MIB, 8192 * MIB - v1[1])
    assert v2 == [pynvml.nvmlMemory_v2, 8192 * MIB, 200 * MIB, free, 100 * MIB]


def test_no_more_is_shown_than_the_card_has(
    container: Container, driver: StubDriver
) -> None:
    """A share above the card, and a card that others have filled."""
    driver.set_cards([StubCard(UUID, 512, used_mib=500)])
    v1, v2 = seen(container, driver)[UUID]
    assert v1[:2] == [512 * MIB, 12 * MIB]
    assert (v2[1], v2[3]) == (512 * MIB, 12 * MIB)


def test_a_card_without_a_name_is_taken_for_the_shared_one(
    container: Container, driver: StubDriver
) -> None:
    """More than its share is not shown because a call failed."""
    driver.fail("*", "DeviceGetUUID", pynvml.NVML_ERROR_UNKNOWN)
    program = PROGRAM.replace("pynvml.nvmlDeviceGetUUID(card)", "number")
    found = json.loads(told_by(container, driver, program))
    assert found["0"][0][0] == found["1"][0][0] == SHARE_MIB * MIB


def test_without_limits_nothing_is_told(
    container: Container, driver: StubDriver
) -> None:
    """A program that sized itself by the whole card would be refused all of it."""
    container.limits.unlink()
    with pytest.raises(AssertionError, match="NVMLError_Unknown"):
        told_by(container, driver, PROGRAM)
