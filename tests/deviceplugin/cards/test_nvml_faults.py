"""What NVIDIA's driver reports of its cards' faults."""


import pynvml
import pytest

from deviceplugin.cards.source import XidEvent
from gpushare.domain.model import CardUUID
from tests.deviceplugin.nvml_pair import (
    FOREVER_S,
    P4,
    THIRD,
    TITAN,
    Pair,
)
from tests.nvml.driver import (
    NOT_SUPPORTED,
)


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
