"""What the watcher finds: no driver yet, cards left out, cards alike."""

import logging
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from deviceplugin.cards.source import Found, FoundCard, LeftOut
from deviceplugin.watcher import CollidingCardsError
from gpushare.domain.model import CardUUID
from tests.deviceplugin.house import found_card
from tests.deviceplugin.tower import A, Tower, run_a_round, told
from tests.testbed.waiting import wait_until


@pytest.fixture
def tower(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Tower:
    caplog.set_level(logging.INFO)
    return Tower(tmp_path)


def test_without_a_driver_it_waits(
    tower: Tower, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, and begins with the first card."""
    tower.source.away = "no driver"
    stop, found = Event(), []

    def wait() -> None:
        found.append(tower.watcher.wait_for_cards(stop, 0.01))

    thread = Thread(target=wait, daemon=True)
    thread.start()
    wait_until(lambda: told(caplog, "no cards to share yet"), "a word")
    Event().wait(0.1)
    assert told(caplog, "no cards to share yet") == ["no driver"]
    assert tower.ids() == []
    tower.source.away = ""
    thread.join()
    assert found == [True]
    assert len(tower.ids()) == 58


def test_who_waits_for_cards_can_be_stopped(tower: Tower) -> None:
    """Then there are none."""
    tower.source.away = "no driver"
    stop = Event()
    stop.set()
    assert not tower.watcher.wait_for_cards(stop, 60)


def test_a_driver_without_cards_is_told_once(
    tower: Tower, caplog: pytest.LogCaptureFixture
) -> None:
    """And again after there were some."""
    found = tower.source.found
    for now in (Found(()), Found(()), found, Found(())):
        tower.source.found = now
        tower.watcher.look()
    words = "there is no card on this node"
    assert told(caplog, "no cards to share yet") == [words, words]


def test_what_is_left_out_is_told_once(
    tower: Tower, caplog: pytest.LogCaptureFixture
) -> None:
    """Each reason, as a card in MIG mode; and again when it comes again."""
    mig = LeftOut("GPU-x", "it is in MIG mode")
    plain = tower.source.found
    for now in (mig, mig, LeftOut("GPU-x", "it is lost"), None, mig):
        tower.source.found = replace(plain, left_out=(now,) if now else ())
        tower.watcher.look()
    assert told(caplog, "card left out") == [
        "it is in MIG mode",
        "it is lost",
        "it is in MIG mode",
    ]


def twin() -> FoundCard:
    return replace(found_card(2), uuid=CardUUID(A + "-twin"))


def test_cards_of_one_key_stop_the_start(tower: Tower) -> None:
    """With a sentence that names both; nothing is offered."""
    tower.source.found = Found((found_card(0), twin()))
    with pytest.raises(CollidingCardsError, match="would have the same") as error:
        tower.watcher.wait_for_cards(Event(), 60)
    assert A in str(error.value)
    assert tower.ids() == []


def test_such_a_card_that_comes_later_is_not_offered(
    tower: Tower, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that were there go on."""
    tower.watcher.look()
    before = tower.ids()
    tower.source.found = Found((*tower.source.found.cards, twin()))
    run_a_round(tower)
    assert tower.ids() == before
    assert told(caplog, "cards left out")
