"""A watcher, with what it watches and what it changes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.allocation.injection import InjectionChooser
from deviceplugin.allocation.response import CDI_KIND
from deviceplugin.cards.advertised import Offer, OwnNode
from deviceplugin.cards.combined import CombinedCards
from deviceplugin.cards.health import Health, HealthFile
from deviceplugin.cards.source import CardReading, Found, NoCardsYet
from deviceplugin.cards.source import XidEvent as Xid
from deviceplugin.metrics import PluginMetrics
from deviceplugin.settings import InjectionChoice
from deviceplugin.watcher import Watcher
from gpushare.domain.model import CardUUID
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.cluster import Kind
from tests.builders import node_json, page
from tests.deviceplugin.node_fixture import NODE, UUIDS, ScriptedCards, found_card
from tests.testbed.waiting import wait_until

A, B = UUIDS[:2]
READS_CDI = {
    "nodeInfo": {
        "kubeletVersion": "v1.36.3",
        "containerRuntimeVersion": "containerd://2.1.4",
    }
}


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
class WatcherFixture:
    """A watcher, with what it watches and what it changes."""

    folder: Path
    source: Moody = field(default_factory=lambda: Moody(found_card(0), found_card(1)))
    offer: Offer = field(default_factory=lambda: Offer(0))
    cluster: Embedded = field(default_factory=Embedded)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    inject: InjectionChoice = "env"

    def __post_init__(self) -> None:
        self.node = OwnNode(NODE)
        self.cluster.create(Kind.NODES, node_json(NODE) | {"status": READS_CDI})
        self.health = Health()
        file = HealthFile(self.folder / "health.json")
        file.load(self.health)
        self.watcher = Watcher(
            CombinedCards([self.source]),
            self.offer,
            self.health,
            file,
            self.node,
            NODE,
            self.cluster,
            InjectionChooser(self.inject, [self.folder / "cdi"], self.node.status),
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

    def specify(self, *uuids: str) -> None:
        """Write a CDI specification that names these cards."""
        devices = [{"name": uuid} for uuid in uuids]
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


def told(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [
        one.because if hasattr(one, "because") else ""
        for one in caplog.records
        if one.message == words
    ]


def run_a_round(watched: WatcherFixture) -> None:
    stop = Event()
    rounds = iter([False, True])
    stop.wait = lambda _=None: next(rounds)  # type: ignore[assignment,method-assign]
    watched.watcher.run(stop, 0)
