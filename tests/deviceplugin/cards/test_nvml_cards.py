"""NVIDIA's cards over the stub driver: what is found, read and reported."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from deviceplugin.cards.nvml_cards import NvmlCards
from deviceplugin.cards.source import CardReading, Found, LeftOut, XidEvent
from gpushare.domain.model import CardUUID
from tests.deviceplugin.nvml_fixture import (
    FOREVER_S,
    P4,
    THIRD,
    TITAN,
    Pair,
    card,
    pair,
    readings,
)
from tests.nvml.build import STATE_VARIABLE, the_stub
from tests.nvml.driver import (
    NOT_SUPPORTED,
    StubDriver,
    stub_card,
)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Pair]:
    """Three cards, and all the time that they may want."""
    with pair(tmp_path, P4, TITAN, THIRD) as found:
        yield found


def test_cards_are_described(three: Pair) -> None:
    """Memory is floored to whole MiB, what the driver keeps for itself included."""
    _, source = three
    assert source.cards() == Found((card(P4, 0), card(TITAN, 1), card(THIRD, 2)))


def test_the_use_is_without_what_the_driver_keeps(three: Pair) -> None:
    """From driver 510 on, which tells the two apart; it follows what is going on."""
    driver, source = three
    source.cards()
    assert readings(source)[P4.uuid].used_mib == 300
    driver.change(0, used_mib=7000)
    assert readings(source)[P4.uuid].used_mib == 7000


def test_an_old_driver_tells_what_it_can(tmp_path: Path) -> None:
    """No MIG mode, no bus address, and what it keeps counts as used; same memory."""
    with pair(tmp_path, P4, old=True) as (_, source):
        [found] = source.cards().cards
        assert (found.memory_mib, found.bus, found.minor) == (7611, None, 0)
        assert readings(source)[P4.uuid].used_mib == 500


def test_no_more_is_used_than_there_is(tmp_path: Path) -> None:
    """Whatever an old driver counts in."""
    full = stub_card(0, used_mib=7600, reserved_mib=200)
    with pair(tmp_path, full, old=True) as (_, source):
        assert readings(source)[full.uuid].used_mib == 7611


@pytest.mark.parametrize("function", ["DeviceGetMinorNumber", "DeviceGetPciInfo"])
def test_what_a_card_does_not_support_is_none(three: Pair, function: str) -> None:
    """It is no reason to leave the card out."""
    driver, source = three
    driver.fail(P4.uuid, function, NOT_SUPPORTED)
    found = source.cards().cards[0]
    assert None in (found.minor, found.bus)


def test_a_card_of_unknown_memory_is_left_out(three: Pair) -> None:
    """One that shares the system's memory cannot be cut into units."""
    driver, source = three
    driver.fail(TITAN.uuid, "DeviceGetMemoryInfo", NOT_SUPPORTED)
    because = "the driver does not tell how much memory it has"
    assert source.cards().left_out == (LeftOut(TITAN.uuid, because),)


def test_a_card_of_unknown_use_is_no_failure(three: Pair) -> None:
    """None, and not 0."""
    driver, source = three
    source.cards()
    for function in ("DeviceGetMemoryInfo", "DeviceGetMemoryInfo_v2"):
        driver.fail(P4.uuid, function, NOT_SUPPORTED)
    assert readings(source)[P4.uuid] == CardReading(CardUUID(P4.uuid), None)


def test_a_card_in_mig_mode_is_left_out(three: Pair) -> None:
    """Also when the mode is switched on later, and until it is switched off."""
    driver, source = three
    before = source.cards()
    driver.change(1, mig=True)
    found = source.cards()
    assert found.cards == (card(P4, 0), card(THIRD, 2))
    [left_out] = found.left_out
    assert left_out.name == TITAN.uuid
    assert "MIG mode" in left_out.because
    assert TITAN.uuid not in readings(source)
    driver.change(1, mig=False)
    assert source.cards() == before


def sysfs(root: Path, boot: str) -> None:
    """A tree in which the module is loaded."""
    (root / "proc/sys/kernel/random").mkdir(parents=True, exist_ok=True)
    (root / "proc/sys/kernel/random/boot_id").write_text(f"{boot}\n")
    (root / "sys/module/nvidia").mkdir(parents=True)


def test_each_loading_has_its_name(tmp_path: Path) -> None:
    """The boot and the number of the module's folder; empty where either is missing."""
    source = NvmlCards(root=tmp_path)
    assert source.driver_load() == ""
    sysfs(tmp_path, "boot-one")
    first = source.driver_load()
    assert first.startswith("boot-one/")
    assert source.driver_load() == first
    module = tmp_path / "sys/module/nvidia"
    module.rename(tmp_path / "before")
    assert source.driver_load() == ""
    sysfs(tmp_path, "boot-one")
    second = source.driver_load()
    assert second not in ("", first)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-two\n")
    assert source.driver_load() not in ("", second)


@pytest.mark.parametrize("raw", ["Tesla P4", b"Tesla P4"])
def test_strings_may_be_bytes(
    three: Pair, raw: str | bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pynvml gave them before it was for Python 3 alone."""
    _, source = three
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: raw)
    assert source.cards().cards[0].model == "Tesla P4"


ALONE = """
from deviceplugin.cards.source import NoCardsYet
from deviceplugin.cards.nvml_cards import NvmlCards
try:
    print([card.uuid for card in NvmlCards().cards().cards])
except NoCardsYet as error:
    print(error)
"""


def alone(**environment: str) -> str:
    """Ask in a process of its own, which loads the library as any other would."""
    return subprocess.run(
        [sys.executable, "-c", ALONE],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_the_library_is_loaded_by_its_name(tmp_path: Path) -> None:
    """pynvml finds the stub as it would find the driver's own."""
    driver = StubDriver(tmp_path, [P4])
    folder = str(the_stub().library.parent)
    found = alone(LD_LIBRARY_PATH=folder, **{STATE_VARIABLE: str(driver.path)})
    assert found == str([P4.uuid])


def test_without_the_library_there_is_nothing_to_ask(tmp_path: Path) -> None:
    """A node without NVIDIA's driver; one that has it says something else."""
    broken = tmp_path / "libnvidia-ml.so.1"
    broken.write_text("this is no library")
    assert alone(LD_LIBRARY_PATH=str(tmp_path)) == "there is no libnvidia-ml.so.1 here"


def test_a_fault_names_its_card(three: Pair) -> None:
    """Each is told once and in order; one may name no card."""
    driver, source = three
    source.cards()
    for uuid, xid in ((TITAN.uuid, 79), (None, 48), (P4.uuid, 31)):
        driver.xid(uuid, xid)
    told = [source.wait_for_event(FOREVER_S) for _ in range(3)]
    assert told == [
        XidEvent(CardUUID(TITAN.uuid), 79),
        XidEvent(None, 48),
        XidEvent(CardUUID(P4.uuid), 31),
    ]
    assert source.wait_for_event(0.0) is None


def test_a_fault_between_look_and_wait_is_told(three: Pair) -> None:
    """Also one of a card that has answered nothing since."""
    driver, source = three
    source.cards()
    driver.xid(P4.uuid, 79)
    driver.lose(P4.uuid)
    assert source.wait_for_event(FOREVER_S) == XidEvent(CardUUID(P4.uuid), 79)


def test_a_card_without_faults_is_skipped(three: Pair) -> None:
    """The others' are told."""
    driver, source = three
    driver.fail(P4.uuid, "DeviceRegisterEvents", NOT_SUPPORTED)
    driver.fail(THIRD.uuid, "DeviceRegisterEvents", pynvml.NVML_ERROR_UNKNOWN)
    source.cards()
    for stub in (P4, THIRD, TITAN):
        driver.xid(stub.uuid, 79)
    assert source.wait_for_event(FOREVER_S) == XidEvent(CardUUID(TITAN.uuid), 79)
    assert source.wait_for_event(0.0) is None


def test_without_any_faults_waiting_is_in_vain(three: Pair) -> None:
    """Cards that report none, or no set of events at all."""
    driver, source = three
    driver.fail("*", "EventSetCreate", pynvml.NVML_ERROR_UNKNOWN)
    source.cards()
    assert source.wait_for_event(0.01) is None


def test_trouble_while_waiting_is_not_the_end(
    three: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and the next fault is told."""
    driver, source = three
    source.cards()
    driver.fail("*", "EventSetWait", pynvml.NVML_ERROR_GPU_IS_LOST)
    assert source.wait_for_event(0.01) is None
    assert source.wait_for_event(0.01) is None
    assert [one.message for one in caplog.records] == ["the driver reports no faults"]
    driver.fail("*", "EventSetWait", pynvml.NVML_SUCCESS)
    driver.xid(P4.uuid, 79)
    assert source.wait_for_event(FOREVER_S) == XidEvent(CardUUID(P4.uuid), 79)


def test_a_card_that_cannot_be_registered_is_said_once(
    three: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it is looked at; it is tried again each time."""
    driver, source = three
    function = "DeviceRegisterEvents"
    driver.fail(P4.uuid, function, pynvml.NVML_ERROR_UNKNOWN)
    for _ in range(3):
        source.cards()
    assert [one.message for one in caplog.records] == [
        "a card's faults are not reported"
    ]
    driver.fail(P4.uuid, function, pynvml.NVML_SUCCESS)
    source.cards()
    driver.xid(P4.uuid, 79)
    assert source.wait_for_event(FOREVER_S) == XidEvent(CardUUID(P4.uuid), 79)


def test_two_may_wait(three: Pair) -> None:
    """One after the other; a fault is told to one of them."""
    driver, source = three
    source.cards()
    session = source._session
    assert session is not None
    session._waiting.acquire()
    assert source.wait_for_event(0.01) is None
    session._waiting.release()
    driver.xid(P4.uuid, 79)
    assert source.wait_for_event(FOREVER_S) is not None


def test_a_lost_card_does_not_silence_the_others(three: Pair) -> None:
    """The set of events is made anew without it, and with it once it is back."""
    driver, source = three
    source.cards()
    driver.lose(P4.uuid)
    assert source.wait_for_event(0.01) is None
    driver.xid(TITAN.uuid, 48)
    assert source.wait_for_event(FOREVER_S) == XidEvent(CardUUID(TITAN.uuid), 48)
    driver.find(P4.uuid)
    source.cards()
    driver.xid(P4.uuid, 79)
    assert source.wait_for_event(FOREVER_S) == XidEvent(CardUUID(P4.uuid), 79)
