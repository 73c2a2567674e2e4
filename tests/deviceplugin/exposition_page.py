"""A page of metrics over a moment that a test sets."""

from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from deviceplugin.exporter.collector import Exposition, Site
from deviceplugin.exporter.kubelet_check import KubeletRound
from deviceplugin.exporter.run import Tenants
from deviceplugin.exporter.snapshot import Snapshot
from deviceplugin.exporter.snapshot_store import UsageBook
from deviceplugin.exporter.usage import OveruseTally
from gpushare.kube.cluster import Json
from tests.builders import page
from tests.deviceplugin.exporter_data import A, held, owner, processes, snapshot, use

SITE = Site("node-1", "host-1", version="0.1.0")
CARD_A = {
    "gpu": "0",
    "UUID": A,
    "pci_bus_id": "",
    "device": "nvidia0",
    "modelName": "Tesla P4",
    "hostname": "host-1",
    "DCGM_FI_DRIVER_VERSION": "550.54.15",
    "NodeName": "node-1",
}
MAIN_OF_A = CARD_A | {
    "NamespaceName": "default",
    "PodName": "a",
    "ContainerName": "main",
    "AllocateMode": "share",
}


@dataclass
class ExpositionFixture:
    """An exposition over a moment that a test sets."""

    now: Snapshot
    site: Site = SITE
    pods: list[Json] | None = None
    kubelet: KubeletRound | None = None
    tally: OveruseTally = field(default_factory=OveruseTally)
    follows: bool = True
    heard_s: float | None = None

    def __post_init__(self) -> None:
        self.tenants = Tenants()
        if self.pods is not None:
            self.tenants.replace(iter([page(*self.pods)]))
        book = UsageBook(
            lambda: self.now, self.tenants.current if self.follows else None
        )
        self.exposition = Exposition(
            self.site,
            lambda: self.now,
            book,
            overuse=lambda: self.tally,
            kubelet=lambda: self.kubelet,
            heard=lambda: self.heard_s,
        )
        self.registry = CollectorRegistry()
        self.registry.register(self.exposition)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """All samples of exactly this name, as Prometheus reads them."""
        return [
            (one.labels, one.value)
            for family in parse(self.text())
            for one in family.samples
            if one.name == name
        ]

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample with these labels among its own; None for none."""
        found = [
            value for its, value in self.samples(name) if labels.items() <= its.items()
        ]
        assert len(found) <= 1, found
        return found[0] if found else None

    def by(self, name: str, label: str = "PodName") -> dict[str, float]:
        """The values by a label, of which no two samples have the same."""
        told = [(its[label], value) for its, value in self.samples(name)]
        assert len(told) == len(dict(told)), told
        return dict(told)


def busy(*pods: Json, **how: Any) -> ExpositionFixture:
    """Pod ``a`` works on the first card."""
    round_ = processes({A: [use(1, 512, 23)]}, {1: owner("a")})
    made = snapshot(round_=round_, **how)
    return ExpositionFixture(made, pods=list(pods or [held("a")]))
