"""NVIDIA's cards over the stub driver: what is found, read and reported."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

import pynvml
import pytest

from gpushare.cards import nvml
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.cards.source import (
    CardReading,
    DriverLost,
    FoundCards,
    LeftOut,
    NoCardsYet,
)
from gpushare.domain.model import CardUUID
from tests.gpushare.cards.nvml_fixture import (
    FOREVER_S,
    P4,
    THIRD,
    TITAN,
    Clock,
    Pair,
    card,
    failures,
    pair,
    readings,
    wait_found,
)
from tests.nvml.build import STATE_VARIABLE, the_stub
from tests.nvml.driver import NOT_SUPPORTED, StubDriver, stub_card
from tests.testbed.waiting import wait_until


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Pair]:
    with pair(tmp_path, P4, TITAN, THIRD) as found:
        yield found


@pytest.fixture
def driver(three: Pair) -> StubDriver:
    return three[0]


@pytest.fixture
def source(three: Pair) -> NvmlCards:
    return three[1]


def told(source: NvmlCards) -> tuple[str | None, int]:
    """Wait for the next fault."""
    event = source.wait_for_event(FOREVER_S)
    assert event is not None
    return event.uuid, event.xid


def test_cards_are_described(source: NvmlCards) -> None:
    """Memory is floored to whole MiB, what the driver keeps for itself included."""
    assert source.cards() == FoundCards((card(P4, 0), card(TITAN, 1), card(THIRD, 2)))


def test_the_use_is_without_what_the_driver_keeps(
    driver: StubDriver, source: NvmlCards
) -> None:
    assert readings(source)[P4.uuid].used_mib == 300
    driver.change(0, used_mib=7000)
    assert readings(source)[P4.uuid].used_mib == 7000
    for function in ("DeviceGetMemoryInfo", "DeviceGetMemoryInfo_v2"):
        driver.fail(P4.uuid, function, NOT_SUPPORTED)
    assert readings(source)[P4.uuid] == CardReading(CardUUID(P4.uuid), None)


def test_an_old_driver_tells_what_it_can(tmp_path: Path) -> None:
    """No MIG mode, no bus address, and what it keeps counts as used; same memory."""
    with pair(tmp_path, P4, old=True) as (driver, source):
        [found] = source.cards().cards
        assert (found.memory_mib, found.bus, found.minor) == (7611, None, 0)
        assert readings(source)[P4.uuid].used_mib == 500
        driver.change(0, used_mib=7600)
        assert readings(source)[P4.uuid].used_mib == 7611
        driver.fail(P4.uuid, "DeviceGetMinorNumber", NOT_SUPPORTED)
        [found] = source.cards().cards
        assert found.minor is None


def test_a_card_of_unknown_memory_is_left_out(
    driver: StubDriver, source: NvmlCards
) -> None:
    """One that shares the system's memory cannot be cut into units."""
    driver.fail(TITAN.uuid, "DeviceGetMemoryInfo", NOT_SUPPORTED)
    because = "the driver does not report how much memory it has"
    assert source.cards().left_out == (LeftOut(TITAN.uuid, because),)


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


ALONE = """
from gpushare.cards.source import NoCardsYet
from gpushare.cards.nvml_cards import NvmlCards
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
    (tmp_path / "libnvidia-ml.so.1").write_text("this is no library")
    assert alone(LD_LIBRARY_PATH=str(tmp_path)) == "there is no libnvidia-ml.so.1 here"


def test_a_fault_names_its_card(driver: StubDriver, source: NvmlCards) -> None:
    source.cards()
    for uuid, xid in ((TITAN.uuid, 79), (None, 48), (P4.uuid, 31)):
        driver.xid(uuid, xid)
    driver.lose(P4.uuid)
    faults = [told(source) for _ in range(3)]
    assert faults == [(TITAN.uuid, 79), (None, 48), (P4.uuid, 31)]
    assert source.wait_for_event(0.0) is None


def test_a_card_without_faults_is_skipped(
    driver: StubDriver, source: NvmlCards
) -> None:
    driver.fail(P4.uuid, "DeviceRegisterEvents", NOT_SUPPORTED)
    driver.fail(THIRD.uuid, "DeviceRegisterEvents", pynvml.NVML_ERROR_UNKNOWN)
    source.cards()
    for stub in (P4, THIRD, TITAN):
        driver.xid(stub.uuid, 79)
    assert told(source) == (TITAN.uuid, 79)
    assert source.wait_for_event(0.0) is None


class Counted(Event):
    """Counts how often it was looked at."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return super().is_set()


@pytest.mark.parametrize("when", ["never", "later"])
def test_without_a_set_of_events_it_waits(
    driver: StubDriver, source: NvmlCards, when: str
) -> None:
    """And does not ask on and on, also if only a later set cannot be made."""
    closed = source._closed = Counted()
    if when == "later":
        source.cards()
    driver.fail("*", "EventSetCreate", NOT_SUPPORTED)
    driver.fail("*", "EventSetWait", pynvml.NVML_ERROR_UNKNOWN)
    source.cards()
    assert source.wait_for_event(0.01) is None
    before = closed.looks
    assert source.wait_for_event(0.7) is None
    # One for each slice of half a second, and one before.
    assert closed.looks - before <= 3


def test_trouble_while_waiting_is_not_the_end(
    driver: StubDriver, source: NvmlCards, caplog: pytest.LogCaptureFixture
) -> None:
    source.cards()
    driver.fail("*", "EventSetWait", pynvml.NVML_ERROR_GPU_IS_LOST)
    assert source.wait_for_event(0.01) is None
    assert source.wait_for_event(0.01) is None
    assert caplog.messages == ["the driver reports no faults"]
    driver.fail("*", "EventSetWait", pynvml.NVML_SUCCESS)
    driver.xid(P4.uuid, 79)
    assert told(source) == (P4.uuid, 79)


def test_a_card_that_cannot_be_registered_is_said_once(
    driver: StubDriver, source: NvmlCards, caplog: pytest.LogCaptureFixture
) -> None:
    function = "DeviceRegisterEvents"
    driver.fail(P4.uuid, function, pynvml.NVML_ERROR_UNKNOWN)
    for _ in range(3):
        source.cards()
    assert caplog.messages == ["a card's faults are not reported"]
    driver.fail(P4.uuid, function, pynvml.NVML_SUCCESS)
    source.cards()
    driver.xid(P4.uuid, 79)
    assert told(source) == (P4.uuid, 79)


def test_a_lost_card_does_not_silence_the_others(
    driver: StubDriver, source: NvmlCards
) -> None:
    """The set of events is made anew without it, and with it once it is back."""
    source.cards()
    driver.lose(P4.uuid)
    assert source.wait_for_event(0.01) is None
    driver.xid(TITAN.uuid, 48)
    assert told(source) == (TITAN.uuid, 48)
    driver.find(P4.uuid)
    source.cards()
    driver.xid(P4.uuid, 79)
    assert told(source) == (P4.uuid, 79)


SHORT_S = 0.5
HANGS = f"it did not answer within {SHORT_S:g} s"
LOST = "the driver has lost it (GPU is lost)"


@pytest.fixture
def clock() -> Clock:
    return Clock(0)


@pytest.fixture
def timed(tmp_path: Path, clock: Clock) -> Iterator[Pair]:
    """Two cards, by a test's own clock."""
    with pair(tmp_path, P4, TITAN, clock=clock) as found:
        yield found


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Pair]:
    """Three cards, which are not waited for long."""
    with pair(tmp_path, P4, TITAN, THIRD, deadline_s=SHORT_S) as found:
        yield found


@pytest.mark.parametrize(
    ("code", "because"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, LOST),
        (pynvml.NVML_ERROR_NO_PERMISSION, "this user has no permission to ask it"),
    ],
)
def test_a_card_fails_alone(
    driver: StubDriver, source: NvmlCards, code: int, because: str
) -> None:
    """Left out at the first look, since its UUID is not known; listed later."""
    driver.fail(P4.uuid, "*", code)
    found = source.cards()
    assert found.left_out == (LeftOut("card 0", because),)
    assert found.cards == (card(TITAN, 1), card(THIRD, 2))
    driver.find(P4.uuid)
    before = source.cards()
    assert before.cards[0] == card(P4, 0)
    driver.fail(P4.uuid, "*", code)
    for _ in range(2):
        assert failures(source) == {P4.uuid: because, TITAN.uuid: "", THIRD.uuid: ""}
        assert source.cards() == before
    driver.find(P4.uuid)
    assert source.cards() == before
    assert set(failures(source).values()) == {""}


def test_indices_stay_when_the_driver_counts_anew(
    driver: StubDriver, source: NvmlCards
) -> None:
    source.cards()
    new = stub_card(3)
    driver.set_cards([TITAN, THIRD, new])
    driver.load()
    with pytest.raises(NoCardsYet):
        source.cards()
    found = [(card.uuid, card.index) for card in source.cards().cards]
    assert found == [(P4.uuid, 0), (TITAN.uuid, 1), (THIRD.uuid, 2), (new.uuid, 3)]
    assert failures(source)[P4.uuid] == "the driver does not list it any more"


def test_a_hung_card_fails_alone(hasty: Pair) -> None:
    """At each reading, with one call of it under way at most; then it is read again."""
    driver, source = hasty
    before = wait_found(source, 3)
    driver.hang(P4.uuid)
    alone = {P4.uuid: HANGS, TITAN.uuid: "", THIRD.uuid: ""}
    for _ in range(3):
        wait_until(lambda: failures(source), "that alone", accept=alone.__eq__)
    assert wait_found(source, 3) == before
    driver.let_go()
    wait_until(lambda: readings(source)[P4.uuid].used_mib == 300, "its use")


@pytest.mark.parametrize("function", ["Init", "DeviceGetCount", "Shutdown"])
def test_a_driver_that_hangs_is_none_yet(hasty: Pair, function: str) -> None:
    driver, source = hasty
    if function != "Init":
        wait_found(source, 3)
    driver.hang("*", function)
    if function == "Shutdown":
        driver.break_count(pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(NoCardsYet):
        source.cards()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_UNINITIALIZED, "the driver was unloaded"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "NVIDIA's driver is not loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "this user has no permission"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "is of another version"),
        (pynvml.NVML_ERROR_UNKNOWN, r"NVML says: Unknown Error \(999\)"),
    ],
)
def test_a_driver_that_is_loaded_later_is_found(
    driver: StubDriver, source: NvmlCards, code: int, words: str
) -> None:
    driver.unload(code)
    for ask in (source.cards, source.readings):
        with pytest.raises(NoCardsYet, match=words):
            ask()
    assert source.wait_for_event(0.0) is None
    driver.load()
    for ask in (source.readings, source.cards):
        assert len(source.cards().cards) == 3
        driver.unload()
        with pytest.raises(NoCardsYet):
            ask()
        driver.load()
        assert set(failures(source).values()) == {""}
        driver.xid(P4.uuid, 79)
        assert told(source) == (P4.uuid, 79)


def test_a_closed_source_finds_nothing(source: NvmlCards) -> None:
    source.cards()
    source.close()
    for ask in (source.cards, source.readings):
        with pytest.raises(NoCardsYet, match="closed"):
            ask()
    assert source.wait_for_event(FOREVER_S) is None
    # Releasing a driver that is gone is harmless.
    nvml.stop()


def test_the_driver_is_opened_anew_for_a_lost_card(timed: Pair, clock: Clock) -> None:
    """At once, and then now and then: some cards are found again by that alone."""
    driver, source = timed
    source.cards()
    driver.drop(P4.uuid)
    source.cards()
    assert failures(source) == {P4.uuid: LOST, TITAN.uuid: ""}
    driver.find(P4.uuid)
    source.cards()
    assert failures(source) == {P4.uuid: LOST, TITAN.uuid: ""}
    clock.now += 300
    source.cards()
    assert failures(source) == {P4.uuid: "", TITAN.uuid: ""}


def test_a_hung_card_beside_a_lost_one_says_so(hasty: Pair) -> None:
    """The driver that was opened anew for the other has never heard of it."""
    driver, source = hasty
    before = wait_found(source, 3)
    driver.hang(TITAN.uuid)
    driver.drop(P4.uuid)
    assert wait_found(source, 3) == before
    alone = {P4.uuid: LOST, TITAN.uuid: HANGS, THIRD.uuid: ""}
    wait_until(lambda: failures(source), "both", accept=alone.__eq__)


def test_a_lost_card_among_others_ends_nothing(timed: Pair, clock: Clock) -> None:
    """A new process would not find it either, and the others work."""
    driver, source = timed
    source.cards()
    driver.drop(P4.uuid)
    for _ in range(5):
        clock.now += 1000
        assert len(source.cards().cards) == 2


def all_lost(driver: StubDriver) -> None:
    driver.drop(P4.uuid)
    driver.drop(TITAN.uuid)


def without_rights(driver: StubDriver) -> None:
    driver.unload(pynvml.NVML_ERROR_UNKNOWN)
    driver.break_count(pynvml.NVML_ERROR_UNKNOWN)


@pytest.mark.parametrize("befall", [all_lost, StubDriver.upgrade, without_rights])
def test_a_driver_that_serves_this_process_no_more(
    timed: Pair, clock: Clock, befall: Callable[[StubDriver], None]
) -> None:
    driver, source = timed
    source.cards()
    befall(driver)

    def look_on() -> None:
        for clock.now in range(0, 100, 10):
            with suppress(NoCardsYet):
                source.cards()

    with pytest.raises(DriverLost, match="for 60 s"):
        look_on()
    assert clock.now in (60, 70)


def test_a_driver_that_is_back_in_time(timed: Pair, clock: Clock) -> None:
    """Nothing ends, and the next trouble counts from its own beginning."""
    driver, source = timed
    source.cards()
    for _ in range(3):
        all_lost(driver)
        source.cards()
        clock.now += 50
        driver.find(P4.uuid)
        source.cards()
        assert failures(source)[P4.uuid] == ""


def test_a_driver_that_is_not_loaded_is_waited_for(timed: Pair, clock: Clock) -> None:
    """For as long as it takes, and so are cards that nobody has seen yet."""
    driver, source = timed
    driver.unload()
    for _ in range(3):
        with pytest.raises(NoCardsYet):
            source.cards()
        clock.now += 1000
    all_lost(driver)
    driver.load()
    for _ in range(3):
        assert len(source.cards().left_out) == 2
        clock.now += 1000


ONE, TWO = CardUUID(P4.uuid), CardUUID(TITAN.uuid)


def test_a_driver_with_limits(tmp_path: Path) -> None:
    mig = stub_card(2, mig=True)
    with pair(tmp_path, P4, TITAN, mig) as (driver, source):
        source.cards()
        third = CardUUID(mig.uuid)
        told = source.why_no_limits([ONE, third])
        assert told == {ONE: "", third: "it is in MIG mode"}
        driver.fail(TITAN.uuid, "DeviceGetMemoryLimits", NOT_SUPPORTED)
        driver.lose(P4.uuid)
        told = source.why_no_limits([ONE, TWO])
        assert "GPU is lost" in told[ONE]
        assert told[TWO].startswith("NVML answers for its memory limits: ")


@pytest.mark.parametrize("opened", [True, False])
def test_a_driver_without_them(tmp_path: Path, *, opened: bool) -> None:
    with pair(tmp_path, P4, old=True) as (_, source):
        if opened:
            source.cards()
        assert bool(source.driver_version()) == opened
        why = "the driver's NVML has no memory limits" if opened else "unloaded"
        assert why in source.why_no_limits([ONE])[ONE]
