"""Every panel has an answer from what we really expose, and so has dashboard 12239."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.metrics import PluginMetrics
from exporter.collector import Exposition, Site
from exporter.kubelet_check import KubeletRound
from exporter.owners.owner_pods import NO_POD
from exporter.selection import Flags, choose
from exporter.snapshot import TelemetrySnapshot, XidTally
from exporter.telemetry.fields import FB_TOTAL, FB_USED, FIELDS
from exporter.usage import OveruseTally, UsageBook
from extender.scheduling.bind import BindOutcome, BindResult
from extender.scheduling.wire import FilterResult
from extender.server.app import VerbMetrics
from extender.server.metrics import LedgerCollector, ResourceClaimsCollector
from gpushare.cards.source import MigInstance
from gpushare.domain.model import CardUUID, NodeName
from gpushare.kube.reflector import Readiness
from gpushare.kubelet.limit_files import InnerPid
from gpushare.server.tls import CertificateCollector, TlsFiles
from monitoring.alerts import GROUPS
from tests.builders import cards, event, node_json
from tests.deviceplugin.node_fixture import NODE, found_card
from tests.exporter import exporter_data
from tests.extender.extender_fixture import ExtenderFixture
from tests.gpushare.kube.test_reflector import make_reflector
from tests.monitoring.board_queries import (
    NAMES,
    VALUES,
    VARIABLE,
    BoardQuery,
    board,
    panels,
    queries,
    selectors,
    variables,
)
from tests.monitoring.pages import PageAnswer, PageServer
from tests.monitoring.test_alerts import CASES, RULES
from tests.testbed.certificates import certificates
from tests.testbed.manifests import FOLDER
from tests.testbed.prometheus import MonitoringPrograms, Prometheus
from tests.testbed.waiting import wait_until
from webhook.app import ReviewMetrics, ReviewResult
from webhook.main import CERTIFICATE_ENDS

PODS = (
    exporter_data.held("bert-0", 8, 20, namespace="shop"),
    exporter_data.held("bert-1", 4, 10, namespace="shop"),
    # Cores and no memory: nothing may divide by its share.
    exporter_data.held("cores", 0, 10, namespace="bank"),
)
USES = ((1, 2048, 40.0), (2, 300, 0.0), (3, 100, 1.0), (4, 100, 1.0))
OWNERS = {1: "bert-0", 2: "bert-1", 4: "cores"}
INNER = InnerPid(1, 1)
PROCESSES = exporter_data.processes(
    {exporter_data.A: tuple(exporter_data.use(*process) for process in USES)},
    {3: NO_POD, **{pid: exporter_data.owner(pod) for pid, pod in OWNERS.items()}},
    limits=exporter_data.limited("bert-0", {INNER: 2048}, {1: INNER}),
)


def seen(at: float) -> TelemetrySnapshot:
    """What the exporter knew at that moment: every field of both cards has a value.

    The first is a MIG instance, because only it has all labels.
    """
    part = MigInstance(CardUUID("GPU-9"), 7, 0, "1g.5gb", 9, "A100")
    every = {field.name: 1.0 for field in FIELDS} | {FB_TOTAL: 7524.0, FB_USED: 3000.0}
    values = {exporter_data.A: every, exporter_data.B: every}
    return exporter_data.snapshot(
        replace(found_card(0), instance=part),
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
    owner_pods = exporter_data.owner_pods(*PODS)
    book = UsageBook(lambda: snapshot, lambda: owner_pods)
    kubelet = KubeletRound(at, 0.01, 2, (("shop", "bert-1"),))
    exposition = Exposition(
        Site(NODE, NODE, version="0.1.0"),
        lambda: snapshot,
        book,
        overuse=lambda: OveruseTally(1, 0),
        kubelet=lambda: kubelet,
    )
    registry = CollectorRegistry()
    registry.register(exposition)
    return generate_latest(registry).decode()


def extender_page(folder: Path) -> str:
    extender = ExtenderFixture()
    extender.nodes.apply(event("ADDED", node_json(NODE, *cards(29, 29))))
    extender.create("waits", units=40)
    registry = CollectorRegistry()
    metrics = VerbMetrics(registry)
    with metrics.timed("filter"):
        metrics.filtered(FilterResult((), {"no room": [NodeName(NODE)]}))
    metrics.bound(BindResult(BindOutcome.CONFLICT, "taken"))
    heard = (("pods", make_reflector(extender.clock, listed=True)),)
    registry.register(LedgerCollector(extender.state, Readiness(heard, 60)))
    registry.register(ResourceClaimsCollector(extender.state))
    issued = certificates(folder / "tls")
    registry.register(CertificateCollector(TlsFiles(*issued.settings.values())))
    return generate_latest(registry).decode()


def webhook_page(folder: Path) -> str:
    registry = CollectorRegistry()
    ReviewMetrics(registry).reviewed("/validate", ReviewResult.ALLOWED, 1)
    issued = certificates(folder / "tls")
    files = TlsFiles(*issued.settings.values())
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
    labels: dict[str, set[str]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


TARGETS = {"job", "instance", "node", "app_kubernetes_io_name", "le"}
"""What Prometheus puts there itself, and a histogram's own."""
PROMETHEUS_OWN = {"up": set[str](), "ALERTS": {"alertname", "alertstate"}}
KUBE_STATE_METRICS = {
    # Told where kube-state-metrics runs: a cluster may have it or not.
    "kube_mutatingwebhookconfiguration_info": {"mutatingwebhookconfiguration"},
    "kube_node_info": set[str](),
}
ALL = [(str(query), query.filled) for query in queries()]
RULED = [(rule.name, rule.expr) for group in GROUPS for rule in group.alerts]

BOTH = (
    *("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED"),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
)
THE_12239 = {
    # As it is on grafana.com: by instance and gpu.
    **{
        f"first, {name}": f'{name}{{instance=~".+", gpu=~".+"}}'
        for name in (*BOTH, "DCGM_FI_DEV_GPU_UTIL")
    },
    "first, clock": 'DCGM_FI_DEV_SM_CLOCK{instance=~".+", gpu=~".+"} * 1000000',
    # As dcgm-exporter's repository has it: by hostname, and by Hostname before.
    **{
        f"later, {name}": f'max({name}{{hostname=~".+", gpu=~".+"}}) by (hostname, gpu)'
        for name in (*BOTH, "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_PROF_GR_ENGINE_ACTIVE")
    },
}
"""Its panels' queries, each with one answer for each card."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All our pages, by who serves them."""
    return {
        "gpushare-exporter": exporter_page(),
        "gpushare-extender": extender_page(tmp_path_factory.mktemp("books")),
        "gpushare-webhook": webhook_page(tmp_path_factory.mktemp("webhook")),
        "gpushare-device-plugin": plugin_page(),
    }


@pytest.fixture(scope="module")
def known(pages: dict[str, str]) -> dict[str, set[str]]:
    """Each metric of ours and the labels that it has."""
    return labels_by_metric(*pages.values()) | PROMETHEUS_OWN | KUBE_STATE_METRICS


@pytest.fixture(scope="module")
def prometheus(
    pages: dict[str, str],
    monitoring_programs: MonitoringPrograms,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    """A real Prometheus that has scraped all our pages, with our rules."""

    def answer(path: str) -> PageAnswer:
        page = pages[path.removeprefix("/")].encode()
        return PageAnswer(200, "text/plain; version=0.0.4", page)

    folder = tmp_path_factory.mktemp("boards")
    with PageServer(answer) as server:
        jobs = [
            {
                "job_name": name,
                "metrics_path": f"/{name}",
                "static_configs": [{"targets": [server.address]}],
            }
            for name in pages
        ]
        with Prometheus(monitoring_programs, folder, jobs=jobs, rules=[RULES]) as made:
            # Two scrapes, or nothing has a rate.
            made.wait_scraped()
            made.wait_scraped()
            wait_until(lambda: made.query("ALERTS"), "a first alert", accept=bool)
            yield made


@pytest.mark.parametrize("query", queries(), ids=str)
def test_every_query_has_an_answer(prometheus: Prometheus, query: BoardQuery) -> None:
    """With every label that the legend names."""
    # A scrape that a busy machine let time out leaves a hole until the next one.
    samples = wait_until(
        lambda: prometheus.query(query.filled), f"an answer to {query.filled}"
    )
    assert any(query.labels <= set(each.labels) for each in samples), (query, samples)
    # A pod without memory of its own is there, and must not be on top of all.
    assert not [each for each in samples if math.isinf(each.value)], (query, samples)


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_has_values(prometheus: Prometheus, name: str) -> None:
    """Of our boards and of 12239; and Prometheus' own labels rename none of ours."""
    for label in ("instance", "gpu", "hostname"):
        metric = f"DCGM_FI_DEV_{'FB_FREE' if label == 'hostname' else 'GPU_TEMP'}"
        assert prometheus.api(f"label/{label}/values", **{"match[]": metric})
    assert not [
        label for label in prometheus.api("labels") if label.startswith("exported_")
    ]
    for variable in variables(name):
        if variable["type"] == "query":
            match = VALUES.fullmatch(variable["query"])
            assert match, variable
            filled = VARIABLE.sub(".+", match["of"])
            path = f"label/{match['label']}/values"
            assert prometheus.api(path, **{"match[]": filled}), variable["query"]


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_that_is_used_is_there(name: str) -> None:
    """And each that is there is used, else a choice would change nothing."""
    there = {variable["name"] for variable in variables(name)}
    used = {"datasource"}
    for panel in panels(name):
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            used |= set(VARIABLE.findall(target["expr"]))
    assert used - {"__rate_interval"} == there


@pytest.mark.parametrize(("name", "expr"), THE_12239.items(), ids=THE_12239)
def test_dashboard_12239_has_an_answer(
    prometheus: Prometheus, name: str, expr: str
) -> None:
    """One for each card: a copy for each pod would double its sums."""
    assert len(prometheus.query(expr)) == 2, name


def test_what_12239_lacks_by_default_is_documented() -> None:
    """The fields of a group that is off: docs/monitoring.md says how to have them."""
    page = (FOLDER.parent / "docs" / "monitoring.md").read_text()
    paragraph = page[page.index("dashboard 12239") :].partition("\n\n")[0]
    shown = {field.name for field in choose(Flags()).fields}
    group_of = {field.name: field.group for field in FIELDS}
    wanted = {name for expr in THE_12239.values() for name, _ in selectors(expr)}
    off = wanted - shown
    assert {name[:13] for name in off} == {"DCGM_FI_PROF_"}
    assert "`DCGM_FI_PROF_*`" in paragraph
    for group in {group_of[name] for name in off}:
        assert f"`--enable-{group}`" in paragraph


def test_what_fires_has_words_without_gaps(prometheus: Prometheus) -> None:
    """Its templates are filled by Prometheus itself."""
    alerts = prometheus.api("alerts")["alerts"]
    assert "VcudaEcc" in {alert["labels"]["alertname"] for alert in alerts}
    for alert in alerts:
        for text in alert["annotations"].values():
            assert "error" not in text.split(), text
            assert "  " not in text, text
            assert "no value" not in text, text


def test_every_metric_is_one_that_we_tell(known: dict[str, set[str]]) -> None:
    """And it is chosen by labels that it has; in dashboards, alerts and 12239.

    Else an alert might be proven on series that there never are.
    """
    proven = [(case.rule, series) for case in CASES for series in case.series]
    for where, expr in (*ALL, *RULED, *THE_12239.items(), *proven):
        for name, labels in selectors(expr):
            assert name in known, (where, name)
            assert labels <= known[name] | TARGETS, (where, name)


def test_a_card_counts_once_beside_dcgm_exporter() -> None:
    """NVIDIA's own has these metrics too; NodeName is what only ours has."""
    for where, expr in (*ALL, *RULED):
        for name, labels in selectors(expr):
            ours = not name.startswith("DCGM_FI_") or "NodeName" in labels
            assert ours, (where, name)


@pytest.mark.parametrize("name", NAMES)
def test_no_panel_lies_on_another(name: str) -> None:
    """Side by side within 24 columns; by ids that differ, each with a sentence."""
    every_panel = board(name)["panels"]
    assert len({panel["id"] for panel in every_panel}) == len(every_panel)
    assert all(panel["description"].endswith(".") for panel in panels(name))
    taken: set[tuple[int, int]] = set()
    for panel in every_panel:
        at = panel["gridPos"]
        x, y = at.get("x", 0), at.get("y", 0)
        cells = {(x + dx, y + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert max(column for column, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
