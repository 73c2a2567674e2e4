"""What changes the offer: cards that come and go, faults, an operator's word."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.cards import CardReading, Found, FoundCard, LeftOut, NoCardsYet
from deviceplugin.cards import XidEvent as Xid
from deviceplugin.health import Health, HealthFile
from deviceplugin.injecting import Injecting
from deviceplugin.joined import JoinedCards
from deviceplugin.metrics import PluginMetrics
from deviceplugin.offer import Offer
from deviceplugin.publisher import OwnNode
from deviceplugin.watcher import CollidingCardsError, Watcher
from gpushare.domain.model import CardUUID
from gpushare.kube import names
from gpushare.kube.cluster import Kind
from gpushare.kube.embedded import Embedded
from gpushare.kube.errors import Unavailable
from tests.builders import node_json, page
from tests.deviceplugin.house import NODE, UUIDS, ScriptedCards, found_card
from tests.testbed.waiting import wait_until

A, B = UUIDS[:2]


class Moody(ScriptedCards):
    """Cards whose driver may be away."""

    away = ""

    def cards(self) -> Found:
        if self.away:
            raise NoCardsYet(self.away)
        return super().cards()

    def readings(self) -> Sequence[CardReading]:
        if self.away:
            raise NoCardsYet(self.away)
        return super().readings()


@dataclass
class Tower:
    """A watcher, with what it watches and what it changes."""

    folder: Path
    source: Moody = field(default_factory=lambda: Moody(found_card(0), found_card(1)))
    offer: Offer = field(default_factory=lambda: Offer(0))
    cluster: Embedded = field(default_factory=Embedded)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.node = OwnNode(NODE)
        self.cluster.create(Kind.NODES, node_json(NODE))
        self.health = Health()
        file = HealthFile(self.folder / "health.json")
        file.load(self.health)
        self.watcher = Watcher(
            JoinedCards([self.source]),
            self.offer,
            self.health,
            file,
            self.node,
            NODE,
            self.cluster,
            Injecting("env", (), self.node.status),
            PluginMetrics(self.registry),
        )

    def sick(self) -> dict[CardUUID, str]:
        return dict(self.offer.sick())

    def ids(self) -> list[str]:
        return [name for name, _ in self.offer.devices(names.MEMORY)]

    def write(self, **annotations: str | None) -> None:
        keys = {"cordon": names.CORDON, "clear": names.CLEAR}
        notes = {keys[key]: value for key, value in annotations.items()}
        self.cluster.annotate(Kind.NODES, "", NODE, notes)
        self.see()

    def see(self) -> None:
        self.node.replace(iter([page(self.cluster.get(Kind.NODES, "", NODE))]))

    def hear(self, *faults: Xid) -> None:
        self.source.faults += faults
        stop = Event()
        thread = Thread(target=self.watcher.hear, args=(stop, 0.01))
        thread.start()
        wait_until(lambda: not self.source.faults, "the faults to be heard")
        stop.set()
        thread.join()

    def metric(self, uuid: str) -> float | None:
        return self.registry.get_sample_value("vcuda_plugin_card_sick", {"UUID": uuid})


@pytest.fixture
def tower(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Tower:
    caplog.set_level(logging.INFO)
    return Tower(tmp_path)


def told(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [
        one.because if hasattr(one, "because") else ""
        for one in caplog.records
        if one.message == words
    ]


def test_without_a_driver_it_waits(
    tower: Tower, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, and begins with the first card."""
    tower.source.away = "no driver"
    stop, found = Event(), []

    def wait() -> None:
        found.append(tower.watcher.wait_for_cards(stop, 0.01))

    thread = Thread(target=wait)
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


def run_a_round(tower: Tower) -> None:
    stop = Event()
    rounds = iter([False, True])
    stop.wait = lambda _=None: next(rounds)  # type: ignore[assignment,method-assign]
    tower.watcher.run(stop, 0)


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
        ("a program's own fault", B, 13),
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
    """The order is taken off when it is done; what still fails stays sick."""
    tower.watcher.look()
    tower.hear(Xid(A, 79), Xid(B, 79))
    tower.source.failures = {B: "lost"}
    tower.watcher.read()
    tower.write(clear=f"{A}, {B},unknown")
    tower.watcher.heed()
    assert tower.sick() == {B: "lost"}
    tower.see()
    assert tower.node.annotation(names.CLEAR) is None


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
        tower.watcher.heed()
    assert tower.sick() == {}
    assert told(caplog, "order not taken off") == ["no answer"]
    tower.watcher.heed()
    tower.see()
    assert tower.node.annotation(names.CLEAR) is None


def test_an_operator_cordons_a_card(tower: Tower) -> None:
    """And takes the cordon off again."""
    tower.watcher.look()
    tower.write(cordon=f"{A},")
    tower.watcher.heed()
    assert [card.cordoned for card in tower.offer.cards().all] == [True, False]
    tower.write(cordon=None)
    tower.watcher.heed()
    assert not any(card.cordoned for card in tower.offer.cards().all)
