"""NVIDIA's cards when they are lost, hang, or lose their driver."""

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from deviceplugin import nvml
from deviceplugin.cards import (
    Found,
    LeftOut,
    NoCardsYet,
    XidEvent,
)
from gpushare.domain.model import CardUUID
from tests.deviceplugin.nvml_pair import (
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
    driver.find(P4.uuid)
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
        (pynvml.NVML_ERROR_NO_PERMISSION, "may not be asked by this user"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "start this process anew"),
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
