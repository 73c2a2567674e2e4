"""The watcher: cards that come late, faults, and the annotations on the node."""

import logging
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from deviceplugin.cards.source import Found, FoundCard, LeftOut
from deviceplugin.cards.source import XidEvent as Xid
from deviceplugin.watcher import CollidingCardsError
from gpushare.domain.model import CardUUID
from gpushare.kube import names
from gpushare.kube.errors import Unavailable
from tests.deviceplugin.node_fixture import found_card
from tests.deviceplugin.watcher_fixture import A, B, WatcherFixture, run_a_round, told
from tests.testbed.waiting import wait_until


@pytest.fixture
def watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> WatcherFixture:
    caplog.set_level(logging.INFO)
    return WatcherFixture(tmp_path)


def test_without_a_driver_it_waits(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, and begins with the first card."""
    watched.source.away = "no driver"
    stop, found = Event(), []

    def wait() -> None:
        found.append(watched.watcher.wait_for_cards(stop, 0.01))

    thread = Thread(target=wait, daemon=True)
    thread.start()
    wait_until(lambda: told(caplog, "no cards to share yet"), "a word")
    Event().wait(0.1)
    assert told(caplog, "no cards to share yet") == ["no driver"]
    assert watched.ids() == []
    watched.source.away = ""
    thread.join()
    assert found == [True]
    assert len(watched.ids()) == 58


def test_who_waits_for_cards_can_be_stopped(watched: WatcherFixture) -> None:
    """Then there are none."""
    watched.source.away = "no driver"
    stop = Event()
    stop.set()
    assert not watched.watcher.wait_for_cards(stop, 60)


def test_a_driver_without_cards_is_told_once(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """And again after there were some."""
    found = watched.source.found
    for now in (Found(()), Found(()), found, Found(())):
        watched.source.found = now
        watched.watcher.look()
    words = "there is no card on this node"
    assert told(caplog, "no cards to share yet") == [words, words]


def test_what_is_left_out_is_told_once(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Each reason, as a card in MIG mode; and again when it comes again."""
    mig = LeftOut("GPU-x", "it is in MIG mode")
    plain = watched.source.found
    for now in (mig, mig, LeftOut("GPU-x", "it is lost"), None, mig):
        watched.source.found = replace(plain, left_out=(now,) if now else ())
        watched.watcher.look()
    assert told(caplog, "card left out") == [
        "it is in MIG mode",
        "it is lost",
        "it is in MIG mode",
    ]


def twin() -> FoundCard:
    return replace(found_card(2), uuid=CardUUID(A + "-twin"))


def test_cards_of_one_key_stop_the_start(watched: WatcherFixture) -> None:
    """With a sentence that names both; nothing is offered."""
    watched.source.found = Found((found_card(0), twin()))
    with pytest.raises(CollidingCardsError, match="would have the same") as error:
        watched.watcher.wait_for_cards(Event(), 60)
    assert A in str(error.value)
    assert watched.ids() == []


def test_such_a_card_that_comes_later_is_not_offered(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that were there go on."""
    watched.watcher.look()
    before = watched.ids()
    watched.source.found = Found((*watched.source.found.cards, twin()))
    run_a_round(watched)
    assert watched.ids() == before
    assert told(caplog, "cards left out")


def test_a_lost_card_is_sick_until_three_good_readings(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Each change is told once, with the reason."""
    watched.watcher.look()
    watched.watcher.read()
    assert watched.metric(A) == 0
    watched.source.failures = {A: "the driver has lost it"}
    for _ in range(3):
        watched.watcher.read()
    assert watched.sick() == {A: "the driver has lost it"}
    assert watched.metric(A) == 1
    watched.source.failures = {}
    for _ in range(2):
        watched.watcher.read()
    assert A in watched.sick()
    watched.watcher.read()
    assert watched.sick() == {}
    assert watched.metric(A) == 0
    assert told(caplog, "card is sick") == ["the driver has lost it"]
    assert len(told(caplog, "card is well again")) == 1


def test_a_card_that_vanishes_stays_listed(watched: WatcherFixture) -> None:
    """Sick, with its ids: kubelet would fail the pods whose devices are no more."""
    watched.watcher.look()
    before = watched.ids()
    watched.source.found = Found((found_card(1),))
    run_a_round(watched)
    assert watched.ids() == before
    assert watched.sick() == {A: "it is not found any more"}
    assert watched.metric(A) == 1
    watched.source.found = Found((found_card(0), found_card(1)))
    run_a_round(watched)
    assert watched.sick() == {}


def test_a_driver_that_goes_takes_all_cards(watched: WatcherFixture) -> None:
    """They are sick with its words, and well after three good readings."""
    run_a_round(watched)
    before = watched.ids()
    watched.source.away = "the driver was unloaded"
    run_a_round(watched)
    assert watched.ids() == before
    assert watched.sick() == dict.fromkeys((A, B), "the driver was unloaded")
    watched.source.away = ""
    for _ in range(3):
        run_a_round(watched)
    assert watched.sick() == {}


def test_a_fault_makes_its_card_sick(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """At once; a program's own fault does not."""
    watched.watcher.look()
    watched.hear(Xid(B, 13), Xid(A, 79))
    assert list(watched.sick()) == [A]
    assert "XID 79" in watched.sick()[A]
    facts = [
        (one.message, one.card, one.xid)  # type: ignore[attr-defined]
        for one in caplog.records
        if hasattr(one, "xid")
    ]
    assert facts == [
        ("a program caused a fault; the card is well", B, 13),
        ("a card reported a fault", A, 79),
    ]


def test_a_fault_of_no_card_is_all_cards(watched: WatcherFixture) -> None:
    """Better than to go on with a sick one."""
    watched.watcher.look()
    watched.hear(Xid(None, 79))
    assert list(watched.sick()) == [A, B]


def test_a_fault_outlives_the_process(watched: WatcherFixture) -> None:
    """Until the driver is loaded anew."""
    watched.watcher.look()
    watched.hear(Xid(A, 79))
    again = WatcherFixture(watched.folder)
    again.watcher.look()
    again.watcher.read()
    assert list(again.sick()) == [A]
    again.source.load = "second"
    again.watcher.read()
    assert again.sick() == {}


def test_an_operator_clears_a_fault(watched: WatcherFixture) -> None:
    """What is done is taken off the order; what still fails stays sick."""
    watched.watcher.look()
    watched.hear(Xid(A, 79), Xid(B, 79))
    watched.source.failures = {B: "lost"}
    watched.watcher.read()
    watched.write(clear=f"{A}, {B},unknown")
    watched.watcher.apply_annotations()
    assert watched.sick() == {B: "lost"}
    watched.see()
    assert watched.node.annotation(names.CLEAR) == "unknown"
    watched.write(clear=B)
    watched.watcher.apply_annotations()
    watched.see()
    assert watched.node.annotation(names.CLEAR) is None


def test_an_order_about_a_strange_card_stays(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Told once: the card may come back, or the operator mistook a letter."""
    watched.watcher.look()
    watched.write(clear="unknown")
    for _ in range(3):
        watched.watcher.apply_annotations()
    watched.see()
    assert watched.node.annotation(names.CLEAR) == "unknown"
    assert caplog.messages.count("no such cards to clear") == 1


def test_an_order_that_cannot_be_taken_off(
    watched: WatcherFixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is done, told, and taken off at the next round."""
    watched.watcher.look()
    watched.hear(Xid(A, 79))
    watched.write(clear=A)

    def fail(*_: object) -> None:
        raise Unavailable("no answer")

    with monkeypatch.context() as away:
        away.setattr(watched.cluster, "annotate", fail)
        watched.watcher.apply_annotations()
    assert watched.sick() == {}
    assert told(caplog, "annotation to clear faults not removed") == ["no answer"]
    watched.watcher.apply_annotations()
    watched.see()
    assert watched.node.annotation(names.CLEAR) is None


def test_an_operator_cordons_a_card(watched: WatcherFixture) -> None:
    """And takes the cordon off again."""
    watched.watcher.look()
    watched.write(cordon=f"{A},")
    watched.watcher.apply_annotations()
    assert [card.cordoned for card in watched.offer.cards().all] == [True, False]
    watched.write(cordon=None)
    watched.watcher.apply_annotations()
    assert not any(card.cordoned for card in watched.offer.cards().all)


def test_a_card_without_a_cdi_specification_is_held_back(tmp_path: Path) -> None:
    """Sick until it has one, alone, and whatever its readings are."""
    watched = WatcherFixture(tmp_path, inject="auto")
    watched.see()
    watched.specify(A)
    for _ in range(4):
        run_a_round(watched)
        assert list(watched.sick()) == [B]
    assert f"nvidia.com/gpu={B}" in watched.sick()[B]
    assert watched.watcher.chooser.chosen() == "cdi"
    watched.specify(A, B)
    run_a_round(watched)
    assert watched.sick() == {}


def test_a_lost_card_needs_no_cdi_specification(tmp_path: Path) -> None:
    """No tool could write one, and its own sickness is the one that is told."""
    watched = WatcherFixture(tmp_path, inject="auto")
    watched.see()
    watched.specify(A)
    watched.source.failures = {B: "the driver has lost it"}
    run_a_round(watched)
    assert watched.sick() == {B: "the driver has lost it"}
