"""What Prometheus sees."""

from pathlib import Path

import pytest
from cryptography import x509
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from extender.scheduling.bind import Bound, Outcome
from extender.scheduling.wire import FilterResult
from extender.server.app import VerbMetrics
from extender.server.metrics import CertificateCollector, LedgerCollector
from extender.server.public import Readiness
from extender.server.tls import TlsFiles
from gpushare.domain.model import NodeName
from gpushare.kube.names import ACTUAL
from tests.builders import (
    FIRST_FIT,
    bound_json,
    card,
    event,
    node_json,
    placement,
    pod_json,
    request,
)
from tests.extender.extender_fixture import ExtenderFixture
from tests.testbed.certificates import certificates

NO_MEMORY = "Insufficient baidu.com/vcuda-memory on one card"


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def watched(extender: ExtenderFixture) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(LedgerCollector(extender.books, Readiness((), 60)))
    return registry


def of_card(registry: CollectorRegistry, index: int) -> dict[str, float | None]:
    names = ("units", "placed_units", "placed_cores", "healthy", "cordoned")
    where = {"NodeName": "n", "UUID": f"GPU-{index}"}
    return {name: value(registry, f"vcuda_card_{name}", **where) for name in names}


def test_every_call_is_timed_whatever_comes_of_it() -> None:
    registry = CollectorRegistry()
    metrics = VerbMetrics(registry)
    with pytest.raises(KeyError), metrics.timed("filter"):
        raise KeyError
    assert value(registry, "vcuda_extender_request_seconds_count", verb="filter") == 1


def test_refusals_are_counted_by_their_words() -> None:
    """A user's own words are left out, or each would be a series."""
    registry = CollectorRegistry()
    metrics = VerbMetrics(registry)
    invalid = [f"Invalid vcuda request: {number}" for number in range(3)]
    reasons = [NO_MEMORY, NO_MEMORY, *invalid]
    metrics.filtered(
        FilterResult((), {NodeName(f"n{i}"): no for i, no in enumerate(reasons)})
    )
    metrics.filtered(FilterResult([NodeName("n")]))
    name = "vcuda_extender_refusals_total"
    assert value(registry, name, reason=NO_MEMORY) == 2
    assert value(registry, name, reason="Invalid vcuda request") == 3
    assert generate_latest(registry).count(b"vcuda_extender_refusals_total{") == 2


def test_binds_are_counted_from_zero() -> None:
    """Every outcome is there before its first time, so that a rate can be taken."""
    registry = CollectorRegistry()
    metrics = VerbMetrics(registry)
    metrics.bound(Bound(Outcome.CONFLICT, "taken"))
    found = {
        outcome: value(registry, "vcuda_extender_binds_total", outcome=outcome)
        for outcome in Outcome
    }
    assert found == {**dict.fromkeys(Outcome, 0), Outcome.CONFLICT: 1}


def test_cards_show_capacity_and_what_is_placed() -> None:
    """Whether a card is healthy or cordoned are two gauges, by two authors."""
    extender = ExtenderFixture(n=(29, 10))
    extender.bind(extender.create(units=20, cores=5))
    registry = watched(extender)
    for healthy, cordoned in ((0, 0), (1, 1)):
        closed = card(0, healthy=bool(healthy), cordoned=bool(cordoned))
        changed = node_json("n", closed, card(1, 10))
        extender.nodes.apply(event("MODIFIED", changed))
        assert of_card(registry, 0) == {
            "units": 29,
            "placed_units": 20,
            "placed_cores": 5,
            "healthy": healthy,
            "cordoned": cordoned,
        }
        second = of_card(registry, 1)
        assert [second[name] for name in second] == [10, 0, 0, 1, 0]
        assert value(registry, "vcuda_node_largest_free_units", NodeName="n") == 10
    extender.nodes.apply(event("ADDED", node_json("plain")))
    assert b'"plain"' not in generate_latest(registry)


def test_units_on_nobody_knows_which_card_have_a_gauge_of_their_own() -> None:
    """On each card, until it is known; they are not shown as placed there."""
    extender = ExtenderFixture(n=(29, 10))
    registry = watched(extender)
    extender.pods.apply(event("ADDED", pod_json("lost", units=4, node="n")))

    def units(name: str) -> list[float | None]:
        each = [{"NodeName": "n", "UUID": f"GPU-{index}"} for index in (0, 1)]
        return [value(registry, f"vcuda_card_{name}_units", **one) for one in each]

    assert units("unknown") == [4, 4]
    assert units("placed") == [0, 0]
    assert value(registry, "vcuda_extender_pods_without_placement") == 1
    found = bound_json(placement("lost", 1, 4), key=ACTUAL)
    extender.pods.apply(event("MODIFIED", found))
    assert units("unknown") == [0, 0]
    assert units("placed") == [0, 4]
    assert value(registry, "vcuda_extender_pods_without_placement") == 0


def test_what_an_operator_should_act_on_is_a_gauge() -> None:
    """Pods bound without us, broken annotations, reservations, pending yeses."""
    extender = ExtenderFixture(n=(29,))
    registry = watched(extender)

    def gauges() -> list[float | None]:
        names = (
            "reservations",
            "pending_yeses",
            "pods_without_placement",
            "nodes_not_understood",
            "ready",
        )
        return [value(registry, f"vcuda_extender_{name}") for name in names]

    assert gauges() == [0, 0, 0, 0, 1]
    extender.bind(extender.create("a", units=4))
    extender.inflight.add(request("b", 4), FIRST_FIT, [NodeName("n")])
    extender.pods.apply(event("ADDED", extender.create("c", seen=False, units=4)))
    bound = extender.cluster.pod("c")
    bound["spec"]["nodeName"] = "n"
    extender.pods.apply(event("MODIFIED", bound))
    broken = node_json("odd", annotations={"baidu.com/vcuda-cards": "{"})
    extender.nodes.apply(event("ADDED", broken))
    assert gauges() == [1, 1, 1, 1, 1]
    extender.see("a")
    assert gauges() == [0, 1, 1, 1, 1]


def test_pods_that_wait_are_counted_until_they_have_a_node() -> None:
    extender = ExtenderFixture(n=(29,))
    registry = watched(extender)

    def waiting() -> float | None:
        return value(registry, "vcuda_extender_pods_pending")

    assert waiting() == 0
    pod = extender.create("a", units=4)
    extender.create("wrong", units=4, cores=150)
    extender.create("plain")
    extender.create("nothing", units=0)
    assert waiting() == 2
    extender.bind(pod)
    extender.see("a")
    assert waiting() == 1


def test_certificates_show_when_they_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the files as they are now; one that cannot be read is absent, said once."""
    held = certificates(tmp_path / "tls")
    registry = CollectorRegistry()
    registry.register(CertificateCollector(TlsFiles(*held.settings.values())))

    def end(file: str) -> float | None:
        name = "vcuda_certificate_not_after_timestamp_seconds"
        return value(registry, name, file=file)

    def written(name: str) -> float:
        found = x509.load_pem_x509_certificate(held.read()[name])
        return found.not_valid_after_utc.timestamp()

    assert end("ca") == written("ca.crt")
    assert end("server") == written("server.crt")
    for broken in (b"", b"nonsense"):
        held.replace("server.crt", broken)
        assert end("server") is None
    assert end("ca") == written("ca.crt")
    assert [record.message for record in caplog.records] == [
        "certificate cannot be read"
    ]
    held.renew("server")
    assert end("server") == written("server.crt")
    Path(held.path("server.crt")).unlink()
    assert end("server") is None
    assert len(caplog.records) == 2
