"""NVIDIA's cards when they are lost, hang, or lose their driver."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pynvml
import pytest

from deviceplugin.cards import nvml
from deviceplugin.cards.source import DriverLost, Found, LeftOut, NoCardsYet, XidEvent
from gpushare.domain.model import CardUUID
from tests.deviceplugin.nvml_fixture import (
    FOREVER_S,
    P4,
    THIRD,
    TITAN,
    Pair,
    card,
    failures,
    pair,
    readings,
    wait_found,
)
from tests.nvml.driver import (
    StubDriver,
    stub_card,
)
from tests.testbed.waiting import wait_until

SHORT_S = 0.5
HANGS = f"it did not answer within {SHORT_S:g} s"
LOST = "the driver has lost it (GPU is lost)"


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Pair]:
    """Three cards, and all the time that they may want."""
    with pair(tmp_path, P4, TITAN, THIRD) as found:
        yield found


class Clock:
    """Seconds, as a test says."""

    def __init__(self) -> None:
        self.now: float = 0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


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


def test_a_lost_card_fails_alone_and_stays_listed(three: Pair) -> None:
    """Under its index; its readings tell when it is back."""
    driver, source = three
    before = source.cards()
    driver.lose(P4.uuid)
    assert failures(source) == {P4.uuid: LOST, TITAN.uuid: "", THIRD.uuid: ""}
    assert source.cards() == before
    assert failures(source) == {P4.uuid: LOST, TITAN.uuid: "", THIRD.uuid: ""}
    driver.find(P4.uuid)
    assert source.cards() == before
    assert set(failures(source).values()) == {""}


def test_a_card_lost_before_the_first_look_is_left_out(three: Pair) -> None:
    """Nobody knows its UUID; it is found when it answers."""
    driver, source = three
    driver.lose(P4.uuid)
    found = source.cards()
    assert found.left_out == (LeftOut("card 0", LOST),)
    assert found.cards == (card(TITAN, 1), card(THIRD, 2))
    driver.find(P4.uuid)
    assert source.cards().cards[0] == card(P4, 0)


def test_indices_stay_when_the_driver_counts_anew(three: Pair) -> None:
    """A card that the driver lists no more keeps its index; a new one gets another."""
    driver, source = three
    source.cards()
    new = stub_card(3)
    driver.set_cards([TITAN, THIRD, new])
    driver.load()
    with pytest.raises(NoCardsYet):
        source.cards()
    assert {one.uuid: one.index for one in source.cards().cards} == {
        P4.uuid: 0,
        TITAN.uuid: 1,
        THIRD.uuid: 2,
        new.uuid: 3,
    }
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


def test_a_card_that_hangs_at_the_first_look_is_left_out(hasty: Pair) -> None:
    """The others are found."""
    driver, source = hasty
    driver.hang(TITAN.uuid)
    assert wait_found(source, 2).left_out == (LeftOut("card 1", HANGS),)


@pytest.mark.parametrize("function", ["Init", "DeviceGetCount", "Shutdown"])
def test_a_driver_that_hangs_is_none_yet(hasty: Pair, function: str) -> None:
    """Asking it, opening it and letting go of it end in time."""
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
    three: Pair, code: int, words: str
) -> None:
    """Until then both questions say why there is nothing to ask."""
    driver, source = three
    driver.unload(code)
    for ask in (source.cards, source.readings):
        with pytest.raises(NoCardsYet, match=words):
            ask()
    assert source.wait_for_event(0.0) is None
    driver.load()
    assert len(source.cards().cards) == 3


def test_a_driver_that_is_unloaded_is_noticed(three: Pair) -> None:
    """By whichever asks first; loaded anew it is opened anew, faults included."""
    driver, source = three
    for ask in (source.readings, source.cards):
        source.cards()
        driver.unload()
        with pytest.raises(NoCardsYet):
            ask()
        driver.load()
        assert set(failures(source).values()) == {""}
        driver.xid(P4.uuid, 79)
        assert source.wait_for_event(FOREVER_S) == XidEvent(CardUUID(P4.uuid), 79)


def test_no_cards_are_found_as_none(tmp_path: Path) -> None:
    """A driver without cards is an answer."""
    with pair(tmp_path) as (_, source):
        assert source.cards() == Found(())
        assert source.readings() == []
        assert source.wait_for_event(0.01) is None


def test_a_closed_source_finds_nothing(three: Pair) -> None:
    """It does not open the driver again."""
    _, source = three
    source.cards()
    source.close()
    for ask in (source.cards, source.readings):
        with pytest.raises(NoCardsYet, match="closed"):
            ask()
    assert source.wait_for_event(FOREVER_S) is None


def test_letting_go_of_a_driver_that_is_gone_is_harmless(three: Pair) -> None:
    """Nothing was opened, or all was closed."""
    nvml.stop()
    nvml.stop()


def test_a_card_that_may_not_be_asked_fails_alone(three: Pair) -> None:
    """The driver answers all others; it is found, and well, once it may be asked."""
    driver, source = three
    source.cards()
    driver.fail(P4.uuid, "*", pynvml.NVML_ERROR_NO_PERMISSION)
    alone = {P4.uuid: "this user has no permission to ask it"}
    assert failures(source) == alone | {TITAN.uuid: "", THIRD.uuid: ""}
    assert len(source.cards().cards) == 3
    driver.find(P4.uuid)
    assert set(failures(source).values()) == {""}


def test_a_card_that_may_not_be_asked_at_first_is_left_out(three: Pair) -> None:
    """Alone."""
    driver, source = three
    driver.fail(P4.uuid, "*", pynvml.NVML_ERROR_NO_PERMISSION)
    found = source.cards()
    assert found.cards == (card(TITAN, 1), card(THIRD, 2))
    assert [one.name for one in found.left_out] == ["card 0"]


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
    """A minute is given to opening it anew; then a new process has to."""
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
