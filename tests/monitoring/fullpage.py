"""Everything that we tell Prometheus, by those who really tell it.

Two cards of one node with every metric that a card can have, two pods on one of them
and a process outside Kubernetes; the extender's books of that node, the webhook's
page and the device plugin's.
"""

import time
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.exporter.collector import Exposition, Site
from deviceplugin.exporter.kubelet_check import KubeletRound
from deviceplugin.exporter.owners import NO_POD
from deviceplugin.exporter.snapshot import Snapshot, XidTally
from deviceplugin.exporter.snapshot_store import UsageBook
from deviceplugin.exporter.usage import OveruseTally
from deviceplugin.metrics import PluginMetrics
from deviceplugin.telemetry.fields import FB_TOTAL, FB_USED, FIELDS
from extender.main import CERTIFICATE_ENDS
from extender.scheduling.bind import Bound, Outcome
from extender.scheduling.wire import FilterResult
from extender.server.app import VerbMetrics
from extender.server.metrics import CertificateCollector, LedgerCollector
from extender.server.public import Readiness
from extender.server.tls import TlsFiles
from extender.server.webhook_app import Result, ReviewMetrics
from gpushare.domain.model import NodeName
from tests.builders import cards, event, node_json
from tests.deviceplugin import exporter_data
from tests.deviceplugin.node_fixture import NODE, found_card
from tests.extender.extender_fixture import ExtenderFixture
from tests.extender.server.test_public import reflector
from tests.testbed.certificates import certificates

PODS = (
    exporter_data.held("bert-0", 8, 20, namespace="shop"),
    exporter_data.held("bert-1", 4, 10, namespace="shop"),
    # Cores and no memory: nothing may divide by its share.
    exporter_data.held("cores", 0, 10, namespace="bank"),
)
PROCESSES = exporter_data.processes(
    {
        exporter_data.A: (
            exporter_data.use(1, 2048, 40.0),
            exporter_data.use(2, 300, 0.0),
            exporter_data.use(3, 100, 1.0),
            exporter_data.use(4, 100, 1.0),
        )
    },
    {
        1: exporter_data.owner("bert-0"),
        2: exporter_data.owner("bert-1"),
        3: NO_POD,
        4: exporter_data.owner("cores"),
    },
)


def seen(at: float) -> Snapshot:
    """What the exporter knew at that moment: every field of both cards has a value."""
    every = {field.name: 1.0 for field in FIELDS} | {FB_TOTAL: 7524.0, FB_USED: 3000.0}
    values = {exporter_data.A: every, exporter_data.B: every}
    return exporter_data.snapshot(
        found_card(0),
        found_card(1),
        values=values,
        round_=replace(PROCESSES, at=at),
        groups=exporter_data.ALL,
        troubles={"pods": "late"},
        xids={exporter_data.A: XidTally(79, {79: 1}), exporter_data.B: XidTally()},
        at=at,
        unsupported={exporter_data.B: ("DCGM_FI_DEV_MEMORY_TEMP",)},
    )


def exporter_page() -> str:
    at = time.time()
    snapshot = seen(at)
    tenancy = exporter_data.tenancy(*PODS)
    book = UsageBook(lambda: snapshot, lambda: tenancy)
    kubelet = KubeletRound(at, 0.01, 2, (("shop", "bert-1"),))
    site = Site(NODE, NODE, version="0.1.0")
    registry = CollectorRegistry()
    registry.register(
        Exposition(
            site,
            lambda: snapshot,
            book,
            overuse=lambda: OveruseTally(1, 0),
            kubelet=lambda: kubelet,
        )
    )
    return generate_latest(registry).decode()


def extender_page(folder: Path) -> str:
    extender = ExtenderFixture()
    extender.nodes.apply(event("ADDED", node_json(NODE, *cards(29, 29))))
    extender.create("waits", units=40)
    registry = CollectorRegistry()
    metrics = VerbMetrics(registry)
    with metrics.timed("filter"):
        metrics.filtered(FilterResult((), {NodeName(NODE): "no room"}))
    metrics.bound(Bound(Outcome.CONFLICT, "taken"))
    heard = (("pods", reflector(extender.clock, listed=True)),)
    registry.register(LedgerCollector(extender.books, Readiness(heard, 60)))
    held = certificates(folder / "tls")
    registry.register(CertificateCollector(TlsFiles(*held.settings.values())))
    return generate_latest(registry).decode()


def webhook_page(folder: Path) -> str:
    registry = CollectorRegistry()
    ReviewMetrics(registry).reviewed("/validate", Result.ALLOWED, 1)
    held = certificates(folder / "tls")
    files = TlsFiles(*held.settings.values())
    registry.register(CertificateCollector(files, CERTIFICATE_ENDS))
    return generate_latest(registry).decode()


def plugin_page() -> str:
    registry = CollectorRegistry()
    metrics = PluginMetrics(registry)
    metrics.registered.labels("baidu.com/vcuda-memory").set(1)
    metrics.sick.labels(exporter_data.A).set(0)
    return generate_latest(registry).decode()


def labels_by_metric(*pages: str) -> dict[str, set[str]]:
    """The labels that each metric of these pages has, by the names of its samples."""
    found: dict[str, set[str]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found
