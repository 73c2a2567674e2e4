"""The page as a whole: every metric of the tables, in Prometheus' own form."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from deviceplugin.exporter import catalog as own
from deviceplugin.exporter.collector import Exposition
from deviceplugin.exporter.kubelet_check import KubeletRound
from deviceplugin.exporter.owners import NO_POD
from deviceplugin.exporter.snapshot import Snapshot, XidTally
from deviceplugin.exporter.snapshot_store import UsageBook
from deviceplugin.exporter.usage import OveruseTally
from deviceplugin.telemetry import fields
from deviceplugin.telemetry.fields import FIELDS
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from tests.builders import AT as WRITTEN
from tests.builders import placement
from tests.deviceplugin.exporter_data import (
    ALL,
    AT,
    A,
    B,
    held,
    owner,
    processes,
    snapshot,
    use,
)
from tests.deviceplugin.exposition_page import (
    CARD_A,
    MAIN_OF_A,
    SITE,
    ExpositionFixture,
    busy,
)
from tests.deviceplugin.node_fixture import NODE
from tests.testbed.prometheus import Promtool


def test_counters_keep_their_exact_names() -> None:
    """Nothing is appended to dcgm-exporter's, in either format."""
    name = fields.TOTAL_ENERGY_CONSUMPTION
    fixture = busy(values={A: {name: 5.0}})
    text = fixture.text()
    assert f"# TYPE {name} untyped\n{name}{{" in text
    families = parse_open_metrics(open_metrics(fixture.registry).decode())
    found = [one.name for family in families for one in family.samples]
    assert name in found
    assert f"{name}_total" not in found
    assert "vcuda_watchdog_reports_total" in found


def test_registering_collects_nothing() -> None:
    """A registry that asked would find no page before the first round."""
    calls = []

    def read() -> Snapshot:
        calls.append(1)
        return Snapshot()

    registry = CollectorRegistry()
    registry.register(Exposition(SITE, read, UsageBook(read)))
    assert calls == []
    generate_latest(registry)
    assert calls


def full() -> ExpositionFixture:
    """A node where every metric there is has a value."""
    every = {
        one.name: float(number)
        for number, one in enumerate(FIELDS)
        if one.name not in (fields.XID_ERRORS, fields.MEMORY_TEMP)
    }
    round_ = processes(
        {A: [use(1, 3000, 20), use(2, 9, 1)]}, {1: owner("a"), 2: NO_POD}
    )
    moved = held("b")
    actual = encode_placement(placement("b", B, 8, node=NODE), WRITTEN)
    moved["metadata"]["annotations"][names.ACTUAL] = actual
    now = snapshot(
        round_=round_,
        values={A: every | {fields.MEMORY_TEMP: 5.0}, B: every},
        unsupported={B: [fields.MEMORY_TEMP]},
        groups=ALL,
        xids={A: XidTally(79, {79: 1})},
        troubles={"config": 'line 3 says "what\\ever"\nand more'},
    )
    return ExpositionFixture(
        now,
        pods=[held("a", 8, 50), moved],
        kubelet=KubeletRound(AT, 0.1, 2, (("default", "a"),)),
        tally=OveruseTally(2, 1),
    )


def test_a_full_page_has_every_metric_of_both_tables() -> None:
    """And none that is in neither."""
    found = {one.name for family in parse(full().text()) for one in family.samples}
    assert found == {one.name for one in (*FIELDS, *own.OWN)}


def test_no_series_comes_twice() -> None:
    """Prometheus would throw away one of them."""
    samples = [
        (one.name, tuple(sorted(one.labels.items())))
        for family in parse(full().text())
        for one in family.samples
    ]
    assert len(samples) == len(set(samples))


def test_promtool_has_nothing_to_say(promtool: Promtool) -> None:
    """But of the labels in camelCase, and of one name: both are dcgm-exporter's."""
    name = fields.PCIE_REPLAY_COUNTER
    known = f"{name} metric name should not include type 'counter'"
    assert promtool.complaints(full().text()) == [known]
    assert promtool.complaints(ExpositionFixture(Snapshot(), pods=[]).text()) == []


@pytest.mark.parametrize("one", own.OWN, ids=lambda one: one.name)
def test_own_metrics_have_the_labels_that_the_table_says(one: own.OwnField) -> None:
    """Those of the card, of the container or of the node, and its own."""
    base = {
        "card": set(CARD_A),
        "container": set(MAIN_OF_A),
        "node": {"NodeName"},
    }[one.about]
    found = full().samples(one.name)
    assert found
    assert {frozenset(labels) for labels, _ in found} == {
        frozenset(base | set(one.labels))
    }
