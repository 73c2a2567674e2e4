"""What Prometheus sees."""

from pathlib import Path

import pytest
from cryptography import x509
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from extender.scheduling.bind import BindOutcome, BindResult
from extender.scheduling.wire import FilterResult
from extender.server.app import VerbMetrics
from extender.server.metrics import LedgerCollector, ResourceClaimsCollector
from gpushare.domain.model import NodeName
from gpushare.kube.names import ACTUAL
from gpushare.kube.reflector import Readiness
from gpushare.server.tls import CertificateCollector, TlsFiles
from tests.builders import (
    FIRST_FIT,
    allocation_json,
    bound_json,
    card,
    claim_json,
    event,
    node_json,
    placement,
    pod_json,
    request,
)
from tests.extender.extender_fixture import ExtenderFixture
from tests.extender.server.test_resource_claims_app import Reviews
from tests.testbed.certificates import certificates

NO_MEMORY = "Insufficient baidu.com/vcuda-memory on one card"


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def watched(extender: ExtenderFixture) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(LedgerCollector(extender.state, Readiness((), 60)))
    return registry


def of_card(registry: CollectorRegistry, index: int) -> dict[str, float | None]:
    names = ("units", "placed_units", "placed_cores", "healthy", "cordoned")
    where = {"NodeName": "n", "UUID": f"GPU-{index}", "GPU_I_UUID": ""}
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
    reasons = [NO_MEMORY, NO_MEMORY, *(f"Invalid vcuda request: {n}" for n in "abc")]
    nodes = (NodeName("n"), NodeName("m"))
    refused = {no: nodes[: reasons.count(no)] for no in reasons}
    metrics.filtered(FilterResult((), refused))
    metrics.filtered(FilterResult([NodeName("n")]))
    name = "vcuda_extender_refusals_total"
    assert value(registry, name, reason=NO_MEMORY) == 2
    assert value(registry, name, reason="Invalid vcuda request") == 3
    assert generate_latest(registry).count(b"vcuda_extender_refusals_total{") == 2


def test_binds_are_counted_from_zero() -> None:
    """Every outcome is there before its first time, so that a rate can be taken."""
    registry = CollectorRegistry()
    VerbMetrics(registry).bound(BindResult(BindOutcome.CONFLICT, "taken"))
    for outcome in BindOutcome:
        found = value(registry, "vcuda_extender_binds_total", outcome=outcome)
        assert found == (outcome is BindOutcome.CONFLICT)


def test_cards_show_capacity_and_what_is_placed() -> None:
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


def test_an_instance_has_the_exporters_labels() -> None:
    """``UUID`` is its card's, or rules could not join what both tell of it."""
    extender = ExtenderFixture()
    part = card(0, 19, uuid="MIG-1", parent="GPU-9")
    extender.nodes.apply(event("ADDED", node_json("n", part)))
    where = {"NodeName": "n", "UUID": "GPU-9", "GPU_I_UUID": "MIG-1"}
    assert value(watched(extender), "vcuda_card_units", **where) == 19


def test_units_beside_no_core_are_not_free() -> None:
    """So an alert fires when compute is used up, however much memory is left."""
    extender = ExtenderFixture(n=(29,))
    registry = watched(extender)
    for cores, free in ((99, 27), (1, 0)):
        extender.bind(extender.create(f"p-{cores}", units=2, cores=cores))
        found = value(registry, "vcuda_node_largest_free_units", NodeName="n")
        assert found == free


def test_units_on_nobody_knows_which_card_have_a_gauge_of_their_own() -> None:
    """On each card, until it is known; they are not shown as placed there."""
    extender = ExtenderFixture(n=(29, 10))
    registry = watched(extender)

    def units(name: str) -> list[float | None]:
        each = [
            {"NodeName": "n", "UUID": f"GPU-{index}", "GPU_I_UUID": ""}
            for index in (0, 1)
        ]
        return [value(registry, f"vcuda_card_{name}_units", **one) for one in each]

    known = bound_json(placement("lost", 1, 4), key=ACTUAL)
    for pod, unknown, placed, lost in (
        (pod_json("lost", units=4, node="n"), [4, 4], [0, 0], 1),
        (known, [0, 0], [0, 4], 0),
    ):
        extender.pods.apply(event("MODIFIED", pod))
        assert (units("unknown"), units("placed")) == (unknown, placed)
        assert value(registry, "vcuda_extender_pods_without_placement") == lost


def test_of_many_pods_each_is_counted() -> None:
    """They are gone through in parts, so that other threads run between."""
    extender = ExtenderFixture(n=(29,))
    registry = watched(extender)
    for number in range(1001):
        extender.create(f"pod-{number}", units=4)
    assert value(registry, "vcuda_extender_pods_pending") == 1001


def test_what_an_operator_should_act_on_is_a_gauge() -> None:
    """Of pods that wait, one whose request is invalid counts too."""
    extender = ExtenderFixture(n=(29,))
    registry = watched(extender)

    def gauges() -> list[float | None]:
        names = ("reservations", "pending_yeses", "pods_pending")
        more = ("pods_without_placement", "nodes_not_understood", "ready")
        return [value(registry, f"vcuda_extender_{name}") for name in names + more]

    assert gauges() == [0, 0, 0, 0, 0, 1]
    pod = extender.create("a", units=4)
    extender.create("wrong", units=4, cores=150)
    extender.create("nothing", units=0)
    assert gauges() == [0, 0, 2, 0, 0, 1]
    extender.bind(pod)
    extender.inflight.add(request("b", 4), FIRST_FIT, [NodeName("n")])
    bound = extender.create("c", seen=False, units=4)
    bound["spec"]["nodeName"] = "n"
    extender.pods.apply(event("MODIFIED", bound))
    broken = node_json("odd", annotations={"baidu.com/vcuda-cards": "{"})
    extender.nodes.apply(event("ADDED", broken))
    assert gauges() == [1, 1, 2, 1, 1, 1]
    extender.see("a")
    assert gauges() == [0, 1, 1, 1, 1, 1]


def test_claims_are_counted_by_what_is_known_of_them() -> None:
    """Alerts name these gauges; a claim that is reserved holds its share, too."""
    reviews = Reviews()
    registry = reviews.registry
    registry.register(ResourceClaimsCollector(reviews.state))

    def gauges() -> list[float | None]:
        names = ("claims", "claims_reserved", "claims_not_understood")
        return [value(registry, f"vcuda_extender_{name}") for name in names]

    assert gauges() == [0, 0, 0]
    claims = reviews.state.resource_claims
    claims.apply(event("ADDED", claim_json("a", allocation_json(units=4))))
    assert gauges() == [1, 0, 0]
    assert reviews.ask(claim_json("c", allocation_json(units=4))) == ""
    assert gauges() == [2, 1, 0]
    broken = allocation_json(units=11)
    broken["devices"]["results"][0]["consumedCapacity"] = "odd"
    claims.apply(event("ADDED", claim_json("b", broken)))
    assert gauges() == [2, 1, 1]
    assert value(registry, "vcuda_extender_claim_review_seconds_count") == 1


def test_certificates_show_when_they_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the files as they are now; one that cannot be read is absent, said once."""
    held = certificates(tmp_path / "tls")
    registry = CollectorRegistry()
    registry.register(CertificateCollector(TlsFiles(*held.settings.values())))

    def ends(file: str, *, known: bool = True) -> None:
        name = "vcuda_certificate_not_after_timestamp_seconds"
        found = value(registry, name, file=file)
        if known:
            written = x509.load_pem_x509_certificate(held.read()[f"{file}.crt"])
            assert found == written.not_valid_after_utc.timestamp()
        else:
            assert found is None

    ends("ca")
    ends("server")
    for broken in (b"", b"nonsense"):
        held.replace("server.crt", broken)
        ends("server", known=False)
    ends("ca")
    (record,) = caplog.records
    assert record.message == "certificate cannot be read"
    held.renew("server")
    ends("server")
    Path(held.path("server.crt")).unlink()
    ends("server", known=False)
    assert len(caplog.records) == 2
