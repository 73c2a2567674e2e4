"""The watcher: cards that come late, faults, and the annotations on the node."""

import json
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.allocation.cdi import CDI_KIND, HOOK
from deviceplugin.allocation.injection import CardSetup, InjectionChooser
from deviceplugin.allocation.isolation import (
    IsolationChoice,
    IsolationChooser,
    NodeLibrary,
    TierChecks,
)
from deviceplugin.cards.advertised import Offer, OwnNode
from deviceplugin.cards.health import Health
from deviceplugin.metrics import PluginMetrics
from deviceplugin.settings import InjectionChoice
from deviceplugin.watcher import CollidingCardsError, Watcher
from gpushare.cards.combined import CombinedCards
from gpushare.cards.source import FoundCard, FoundCards, LeftOut
from gpushare.cards.source import XidEvent as Xid
from gpushare.domain.model import CardUUID
from gpushare.kube import names
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import Unavailable
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import node_json, page
from tests.deviceplugin.node_fixture import (
    NODE,
    UUIDS,
    ScriptedCards,
    ScriptedLimits,
    because,
    found_card,
)
from tests.testbed.waiting import wait_until

A, B = UUIDS[:2]
NEW = {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.4"}
READS_CDI = {"nodeInfo": NEW}


@dataclass
class WatcherFixture:
    """A watcher, with what it watches and what it changes."""

    folder: Path
    source: ScriptedCards = field(
        default_factory=lambda: ScriptedCards(found_card(0), found_card(1))
    )
    offer: Offer = field(default_factory=lambda: Offer(0))
    cluster: Embedded = field(default_factory=Embedded)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    inject: InjectionChoice = "env"
    isolation: IsolationChoice = "none"
    limits: ScriptedLimits = field(default_factory=ScriptedLimits)

    def __post_init__(self) -> None:
        self.node = OwnNode(self.cluster, NODE)
        self.cluster.create(Kind.NODES, node_json(NODE) | {"status": READS_CDI})
        self.health = Health(file=self.folder / "health.json")
        cards = CombinedCards([self.source]), self.offer, self.health
        folders = [self.folder / "cdi"]
        chooser = InjectionChooser(self.inject, folders, self.node.status)
        library = NodeLibrary(self.folder / "preload", self.folder / "lib")
        checks = TierChecks(
            self.limits, self.folder, folders, lambda: chooser.chosen, library
        )
        isolation = IsolationChooser(
            self.isolation,
            256,
            checks,
            file=self.folder / "isolation",
        )
        metrics = PluginMetrics(self.registry)
        self.on: dict[CardUUID, dict[str, list[str]]] = {}
        self.watcher = Watcher(
            *cards,
            self.node,
            CardSetup(chooser, isolation, library),
            metrics,
            lambda u, _: self.on.get(u, {}),
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

    def specify(self, *uuids: str, hook: str = HOOK) -> None:
        """Write a CDI specification that names these cards."""
        edits = {"hooks": [{"hookName": "createRuntime", "args": ["hook", hook]}]}
        devices = [{"name": uuid, "containerEdits": edits} for uuid in uuids]
        (self.folder / "cdi").mkdir(exist_ok=True)
        text = json.dumps({"kind": CDI_KIND, "devices": devices})
        (self.folder / "cdi" / "nvidia.json").write_text(text)

    def see(self) -> None:
        self.node.replace(iter([page(self.cluster.get(Kind.NODES, "", NODE))]))

    def hear(self, *faults: Xid) -> None:
        self.source.faults += faults
        stop = Event()
        thread = Thread(target=self.watcher.watch_faults, args=(stop, 0.01))
        thread.start()
        wait_until(lambda: not self.source.faults, "the faults to be heard")
        stop.set()
        thread.join()

    def metric(self, uuid: str) -> float | None:
        return self.registry.get_sample_value("vcuda_plugin_card_sick", {"UUID": uuid})


def run_a_round(watched: WatcherFixture) -> None:
    watched.watcher.run(Mock(wait=Mock(side_effect=[False, True])), 0)


@pytest.fixture
def watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> WatcherFixture:
    caplog.set_level(logging.INFO)
    return WatcherFixture(tmp_path)


def test_without_a_driver_it_waits(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    watched.source.away = "no driver"
    stop, waits = Event(), []

    def wait(_: float) -> None:
        waits.append(watched.ids())
        if len(waits) == 3:
            stop.set()
        if len(waits) == 6:
            watched.source.away = ""

    stop.wait = wait  # type: ignore[assignment]
    assert not watched.watcher.wait_for_cards(stop, 60)
    stop.clear()
    assert watched.watcher.wait_for_cards(stop, 60)
    assert because(caplog, "no cards to share yet") == ["no driver"]
    assert waits == [[]] * 6
    assert len(watched.ids()) == 58


def test_no_cards_and_what_is_left_out_are_told_once(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    mig, none = LeftOut("GPU-x", "it is in MIG mode"), FoundCards(())
    found = watched.source.found
    for now in (none, none, replace(found, left_out=(mig,)), found, none):
        for _ in range(2):
            watched.source.found = now
            watched.watcher.look_for_cards()
    words = "there is no card on this node"
    assert because(caplog, "no cards to share yet") == [words, words]
    assert because(caplog, "card left out") == ["it is in MIG mode"]


def twin() -> FoundCard:
    return replace(found_card(2), uuid=CardUUID(A + "-twin"))


def test_cards_of_one_key_stop_the_start(watched: WatcherFixture) -> None:
    watched.source.found = FoundCards((found_card(0), twin()))
    with pytest.raises(CollidingCardsError, match="would have the same") as error:
        watched.watcher.wait_for_cards(Event(), 60)
    assert A in str(error.value)
    assert watched.ids() == []


def test_such_a_card_that_comes_later_is_not_offered(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    watched.watcher.look_for_cards()
    before = watched.ids()
    watched.source.found = FoundCards((*watched.source.found.cards, twin()))
    run_a_round(watched)
    assert watched.ids() == before
    assert because(caplog, "cards left out")


def test_a_lost_card_is_sick_until_three_good_readings(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    watched.watcher.look_for_cards()
    watched.watcher.read()
    assert watched.metric(A) == 0
    watched.source.failures = {A: "the driver has lost it"}
    for _ in range(3):
        watched.watcher.read()
    assert watched.sick() == {A: "the driver has lost it"}
    assert watched.metric(A) == 1
    watched.source.failures = {}
    for sick in (True, True, False):
        watched.watcher.read()
        assert (A in watched.sick()) is sick
    assert watched.metric(A) == 0
    assert because(caplog, "card is sick") == ["the driver has lost it"]
    assert len(because(caplog, "card is healthy again")) == 1


def test_a_driver_that_goes_takes_all_cards(watched: WatcherFixture) -> None:
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
    watched.watcher.look_for_cards()
    watched.hear(Xid(B, 13), Xid(A, 79))
    assert list(watched.sick()) == [A]
    assert "XID 79" in watched.sick()[A]
    assert "a program caused a fault; the card is healthy" in caplog.messages
    assert caplog.messages.count("a card reported a fault") == 1


def test_an_operator_clears_a_fault(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an unknown card it stays: the card may come back. That is told once."""
    watched.watcher.look_for_cards()
    watched.hear(Xid(A, 79), Xid(B, 79))
    watched.source.failures = {B: "lost"}
    watched.watcher.read()
    watched.write(clear=f"{A}, {B},unknown")
    watched.watcher.apply_annotations()
    assert watched.sick() == {B: "lost"}
    watched.see()
    for _ in range(3):
        watched.watcher.apply_annotations()
    assert watched.node.annotation(names.CLEAR) == "unknown"
    assert caplog.messages.count("no such cards to clear") == 1
    watched.write(clear=B)
    watched.watcher.apply_annotations()
    watched.see()
    assert watched.node.annotation(names.CLEAR) is None


def test_an_order_that_cannot_be_taken_off(
    watched: WatcherFixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched.watcher.look_for_cards()
    watched.hear(Xid(A, 79))
    watched.write(clear=A)

    with monkeypatch.context() as away:
        fails = Mock(side_effect=Unavailable("no answer"))
        away.setattr(watched.cluster, "annotate", fails)
        watched.watcher.apply_annotations()
    assert watched.sick() == {}
    assert because(caplog, "annotation to clear faults not removed") == ["no answer"]
    watched.watcher.apply_annotations()
    watched.see()
    assert watched.node.annotation(names.CLEAR) is None


def test_an_operator_cordons_a_card(watched: WatcherFixture) -> None:
    watched.watcher.look_for_cards()
    watched.write(cordon=f"{A},")
    watched.watcher.apply_annotations()
    assert [card.cordoned for card in watched.offer.cards.all] == [True, False]
    watched.write(cordon=None)
    watched.watcher.apply_annotations()
    assert not any(card.cordoned for card in watched.offer.cards.all)


def test_who_is_on_a_sick_card_is_named(
    watched: WatcherFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """They go on, or fail, and somebody has to decide about them."""
    watched.watcher.look_for_cards()
    watched.on = {A: {"pods": ["default/b", "default/a"], "claims": []}}
    watched.source.failures = {A: "lost"}
    watched.watcher.read()
    (told,) = [line for line in caplog.records if line.message == "card is sick"]
    assert told.pods == "default/a, default/b"  # type: ignore[attr-defined]
    assert not hasattr(told, "claims")


def test_a_card_without_a_cdi_specification_is_held_back(tmp_path: Path) -> None:
    watched = WatcherFixture(tmp_path, inject="auto")
    watched.see()
    watched.specify(A)
    for _ in range(4):
        run_a_round(watched)
        assert list(watched.sick()) == [B]
    assert f"nvidia.com/gpu={B}" in watched.sick()[B]
    assert watched.watcher.setup.injection.chosen == "cdi"
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


def cgroup_2(root: Path) -> None:
    """Let the node have cgroup v2."""
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cgroup.controllers").touch()


def test_auto_limits_memory_while_all_checks_pass(tmp_path: Path) -> None:
    """The first look decides, and then three in a row."""
    watched = WatcherFixture(tmp_path, inject="cdi", isolation="auto")
    cgroup_2(tmp_path)
    watched.specify(A, B)
    watched.watcher.look_for_cards()

    def tiers(looks: int) -> list[tuple[str, int]]:
        seen = []
        for _ in range(looks):
            watched.watcher.read()
            seen.append((watched.offer.isolation, len(watched.sick())))
        return seen

    assert tiers(1) == [("driver", 0)]
    watched.limits.driver = "580.95.05"
    assert tiers(3) == [("driver", 2), ("driver", 2), ("none", 0)]
    watched.limits.driver = "615.38.02"
    assert tiers(3) == [("none", 0), ("none", 0), ("driver", 0)]
    assert len(watched.ids()) == 58
    # After a restart it is as before, until three looks fail.
    watched.limits.driver = "580.95.05"
    again = WatcherFixture(tmp_path, isolation="auto")
    assert again.watcher.setup.isolation.tier == "driver"
    # Nobody gets a tier that auto never chooses.
    (tmp_path / "isolation").write_text("preload\n")
    again = WatcherFixture(tmp_path, isolation="auto")
    assert again.watcher.setup.isolation.tier == "none"


def test_a_sick_card_is_not_checked_for_its_tier(tmp_path: Path) -> None:
    """Its own sickness is told, and ``auto`` does not leave the tier because of it."""
    watched = WatcherFixture(tmp_path, inject="cdi", isolation="auto")
    cgroup_2(tmp_path)
    watched.specify(A, B)
    watched.watcher.look_for_cards()
    watched.source.failures = {B: "the driver has lost it"}
    watched.limits.why = {B: "it answers nothing"}
    for _ in range(5):
        watched.watcher.read()
    assert watched.offer.isolation == "driver"
    assert watched.sick() == {B: "the driver has lost it"}


def test_a_tier_that_waits_for_cdi_does_not_keep_cdi_away(tmp_path: Path) -> None:
    """Cards held back for want of CDI are those for which it is looked for."""
    watched = WatcherFixture(tmp_path, inject="auto", isolation="driver")
    watched.see()
    cgroup_2(tmp_path)
    for _ in range(3):
        run_a_round(watched)
    assert "cards are injected by" in watched.sick()[A]
    watched.specify(A, B)
    for _ in range(2):
        run_a_round(watched)
    assert watched.sick() == {}


def test_a_card_that_fails_its_check_is_given_to_nobody(tmp_path: Path) -> None:
    """kubelet may ask for it still: it is told of sick cards a moment later."""
    watched = WatcherFixture(tmp_path, inject="cdi", isolation="driver")
    cgroup_2(tmp_path)
    watched.specify(A, B)
    watched.watcher.look_for_cards()
    isolation = watched.watcher.setup.isolation
    a, b = watched.offer.found_cards
    assert isolation.why_refused([a]).endswith("driver: not checked yet")
    watched.limits.why = {B: "it cannot"}
    watched.watcher.read()
    assert not isolation.why_refused([a])
    assert isolation.why_refused([a, b]).endswith("driver: it cannot")
