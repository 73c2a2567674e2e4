"""What changes a card's health and its place in the offer, and an operator's word."""

from pathlib import Path

import pytest

from deviceplugin.cards.source import Found
from deviceplugin.cards.source import XidEvent as Xid
from gpushare.kube import names
from gpushare.kube.errors import Unavailable
from tests.deviceplugin.house import found_card
from tests.deviceplugin.tower import A, B, Tower, run_a_round, told


def test_a_lost_card_is_sick_until_three_good_readings(
    tower: Tower, caplog: pytest.LogCaptureFixture
) -> None:
    """Each change is told once, with the reason."""
    tower.watcher.look()
    tower.watcher.read()
    assert tower.metric(A) == 0
    tower.source.failures = {A: "the driver has lost it"}
    for _ in range(3):
        tower.watcher.read()
    assert tower.sick() == {A: "the driver has lost it"}
    assert tower.metric(A) == 1
    tower.source.failures = {}
    for _ in range(2):
        tower.watcher.read()
    assert A in tower.sick()
    tower.watcher.read()
    assert tower.sick() == {}
    assert tower.metric(A) == 0
    assert told(caplog, "card is sick") == ["the driver has lost it"]
    assert len(told(caplog, "card is well again")) == 1


def test_a_card_that_vanishes_stays_listed(tower: Tower) -> None:
    """Sick, with its ids: kubelet would fail the pods whose devices are no more."""
    tower.watcher.look()
    before = tower.ids()
    tower.source.found = Found((found_card(1),))
    run_a_round(tower)
    assert tower.ids() == before
    assert tower.sick() == {A: "it is not found any more"}
    assert tower.metric(A) == 1
    tower.source.found = Found((found_card(0), found_card(1)))
    run_a_round(tower)
    assert tower.sick() == {}


def test_a_driver_that_goes_takes_all_cards(tower: Tower) -> None:
    """They are sick with its words, and well after three good readings."""
    run_a_round(tower)
    before = tower.ids()
    tower.source.away = "the driver was unloaded"
    run_a_round(tower)
    assert tower.ids() == before
    assert tower.sick() == dict.fromkeys((A, B), "the driver was unloaded")
    tower.source.away = ""
    for _ in range(3):
        run_a_round(tower)
    assert tower.sick() == {}


def test_a_fault_makes_its_card_sick(
    tower: Tower, caplog: pytest.LogCaptureFixture
) -> None:
    """At once; a program's own fault does not."""
    tower.watcher.look()
    tower.hear(Xid(B, 13), Xid(A, 79))
    assert list(tower.sick()) == [A]
    assert "XID 79" in tower.sick()[A]
    facts = [
        (one.message, one.card, one.xid)  # type: ignore[attr-defined]
        for one in caplog.records
        if hasattr(one, "xid")
    ]
    assert facts == [
        ("a program caused a fault; the card is well", B, 13),
        ("a card reported a fault", A, 79),
    ]


def test_a_fault_of_no_card_is_all_cards(tower: Tower) -> None:
    """Better than to go on with a sick one."""
    tower.watcher.look()
    tower.hear(Xid(None, 79))
    assert list(tower.sick()) == [A, B]


def test_a_fault_outlives_the_process(tower: Tower) -> None:
    """Until the driver is loaded anew."""
    tower.watcher.look()
    tower.hear(Xid(A, 79))
    again = Tower(tower.folder)
    again.watcher.look()
    again.watcher.read()
    assert list(again.sick()) == [A]
    again.source.load = "second"
    again.watcher.read()
    assert again.sick() == {}


def test_an_operator_clears_a_fault(tower: Tower) -> None:
    """What is done is taken off the order; what still fails stays sick."""
    tower.watcher.look()
    tower.hear(Xid(A, 79), Xid(B, 79))
    tower.source.failures = {B: "lost"}
    tower.watcher.read()
    tower.write(clear=f"{A}, {B},unknown")
    tower.watcher.apply_annotations()
    assert tower.sick() == {B: "lost"}
    tower.see()
    assert tower.node.annotation(names.CLEAR) == "unknown"
    tower.write(clear=B)
    tower.watcher.apply_annotations()
    tower.see()
    assert tower.node.annotation(names.CLEAR) is None


def test_an_order_about_a_strange_card_stays(
    tower: Tower, caplog: pytest.LogCaptureFixture
) -> None:
    """Told once: the card may come back, or the operator mistook a letter."""
    tower.watcher.look()
    tower.write(clear="unknown")
    for _ in range(3):
        tower.watcher.apply_annotations()
    tower.see()
    assert tower.node.annotation(names.CLEAR) == "unknown"
    assert caplog.messages.count("no such cards to clear") == 1


def test_an_order_that_cannot_be_taken_off(
    tower: Tower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is done, told, and taken off at the next round."""
    tower.watcher.look()
    tower.hear(Xid(A, 79))
    tower.write(clear=A)

    def fail(*_: object) -> None:
        raise Unavailable("no answer")

    with monkeypatch.context() as away:
        away.setattr(tower.cluster, "annotate", fail)
        tower.watcher.apply_annotations()
    assert tower.sick() == {}
    assert told(caplog, "annotation to clear faults not removed") == ["no answer"]
    tower.watcher.apply_annotations()
    tower.see()
    assert tower.node.annotation(names.CLEAR) is None


def test_an_operator_cordons_a_card(tower: Tower) -> None:
    """And takes the cordon off again."""
    tower.watcher.look()
    tower.write(cordon=f"{A},")
    tower.watcher.apply_annotations()
    assert [card.cordoned for card in tower.offer.cards().all] == [True, False]
    tower.write(cordon=None)
    tower.watcher.apply_annotations()
    assert not any(card.cordoned for card in tower.offer.cards().all)


def test_a_card_without_a_cdi_specification_is_held_back(tmp_path: Path) -> None:
    """Sick until it has one, alone, and whatever its readings are."""
    tower = Tower(tmp_path, inject="auto")
    tower.see()
    tower.specify(A)
    for _ in range(4):
        run_a_round(tower)
        assert list(tower.sick()) == [B]
    assert f"nvidia.com/gpu={B}" in tower.sick()[B]
    assert tower.watcher.chooser.chosen() == "cdi"
    tower.specify(A, B)
    run_a_round(tower)
    assert tower.sick() == {}


def test_a_lost_card_needs_no_cdi_specification(tmp_path: Path) -> None:
    """No tool could write one, and its own sickness is the one that is told."""
    tower = Tower(tmp_path, inject="auto")
    tower.see()
    tower.specify(A)
    tower.source.failures = {B: "the driver has lost it"}
    run_a_round(tower)
    assert tower.sick() == {B: "the driver has lost it"}
