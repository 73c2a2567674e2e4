"""NVIDIA's cards, through the real pynvml over a stub of the driver's library."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from deviceplugin.cards.nvml_cards import NvmlCards
from deviceplugin.cards.source import CardReading, Found, LeftOut
from gpushare.domain.model import CardUUID
from tests.deviceplugin.nvml_pair import (
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
