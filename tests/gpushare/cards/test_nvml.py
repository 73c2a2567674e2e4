"""A session with the driver: what is freed, and when."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pynvml
import pytest

from gpushare.cards import nvml
from gpushare.cards.deadline import DeadlineCalls
from gpushare.cards.nvml_session import RELEASE, NvmlSession
from gpushare.cards.source import NoCardsYet
from tests.gpushare.cards.nvml_fixture import (
    FOREVER_S,
    P4,
    TITAN,
    Pair,
    pair,
    wait_found,
)
from tests.nvml.build import the_stub
from tests.nvml.driver import stub_driver
from tests.soak.driver import run_sanitized
from tests.testbed.waiting import wait_until


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Pair]:
    with pair(tmp_path, P4, TITAN, deadline_s=0.2) as found:
        yield found


def test_nothing_is_freed_under_a_call_that_hangs() -> None:
    """The driver comes back from a hang of each call: no access to what was freed.

    Under a sanitizer, and all cards answer and report faults again. The dice are new
    each time: the seed stands in what a failure says.
    """
    assert "hung" in run_sanitized(0, secrets.randbelow(1_000_000))


def test_sessions_do_not_share_a_set(tmp_path: Path) -> None:
    """The one that ended creates a set while the next one does: each frees its own."""
    calls = DeadlineCalls(FOREVER_S)
    with (
        stub_driver(the_stub(), tmp_path, [P4]) as driver,
        ThreadPoolExecutor() as threads,
    ):
        sessions = [NvmlSession(calls) for _ in range(2)]
        for _ in sessions:
            nvml.start()
        driver.hang("*", "EventSetCreate")
        looks = [threads.submit(session.describe_cards, 1) for session in sessions]
        wait_until(
            lambda: [session._registering.locked() for session in sessions],
            "both to create a set",
            accept=all,
        )
        driver.let_go()
        for look in looks:
            look.result(FOREVER_S)
        for session in sessions:
            session.describe_cards(1)
        owned = [session._faults for session in sessions]
        for session in sessions:
            session.end()
            calls.make_one(RELEASE, session.release)
    assert None not in owned
    assert owned[0] is not owned[1]


Released = Callable[[], bool]


@pytest.fixture
def is_released() -> Released:
    """Say whether all is closed again that was opened since.

    Tests in the same process may have left the driver open: a call of theirs hangs.
    """
    before = pynvml._nvmlLib_refcount
    return lambda: bool(pynvml._nvmlLib_refcount <= before)


@pytest.mark.parametrize("function", ["EventSetWait", "DeviceGetMemoryInfo_v2"])
def test_the_driver_stays_open_while_a_call_hangs(
    is_released: Released, hasty: Pair, function: str
) -> None:
    """Also if it is opened anew meanwhile; then it is released as often."""
    driver, source = hasty
    wait_found(source, 2)
    driver.hang("*", function)
    task = partial(source.wait_for_event, FOREVER_S)
    with ThreadPoolExecutor() as threads:
        before = driver.calls()
        threads.submit(task if function == "EventSetWait" else source.readings)
        wait_until(driver.calls, "the call", accept=before.__lt__)
        driver.unload()
        with pytest.raises(NoCardsYet):
            source.cards()
        driver.load()
        wait_found(source, 2)
        source.close()
        assert not is_released()
        driver.let_go()
    wait_until(is_released, "the release")


def test_a_start_that_came_too_late_counts(is_released: Released, hasty: Pair) -> None:
    """What was opened once more than it is closed would stay open for ever."""
    driver, source = hasty
    driver.hang("*", "Init")
    with pytest.raises(NoCardsYet):
        source.cards()
    driver.let_go()
    wait_until(lambda: not is_released(), "the start")
    wait_found(source, 2)
    source.close()
    wait_until(is_released, "the release")


@pytest.mark.parametrize("hangs", [False, True])
def test_a_set_that_fails_is_freed_unless_a_registration_hangs_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    """The driver would write into what was freed when it answers."""
    freed: list[object] = []
    deadline_s = 0.2 if hangs else FOREVER_S
    with pair(tmp_path, P4, TITAN, deadline_s=deadline_s) as (driver, source):
        monkeypatch.setattr(pynvml, "nvmlEventSetFree", freed.append)
        if hangs:
            driver.hang(TITAN.uuid, "DeviceRegisterEvents")
        wait_found(source, 2)
        driver.lose(P4.uuid)
        assert source.wait_for_event(0.01) is None
        assert len(freed) == (0 if hangs else 1)
