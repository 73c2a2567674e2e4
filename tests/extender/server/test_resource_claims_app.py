"""Reviews of ResourceClaims: what is reserved, what is denied, and in which words."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from werkzeug.test import Client

from extender.scheduling.state import ExtenderState
from extender.server.resource_claims_app import (
    ResourceClaimMetrics,
    ResourceClaimParts,
    choose_by_port,
    create_resource_claims_app,
)
from gpushare.domain.model import NodeName
from gpushare.kube.cluster import Json, Kind, WatchEvent
from gpushare.kube.reflector import Readiness, Reflector
from gpushare.server.asgi import Application
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import (
    allocation_json,
    bound_json,
    cards,
    claim_json,
    placement,
    pod_json,
)
from tests.gpushare.server.asgi_client import as_wsgi, exchange
from tests.webhook.webhook_client import answered, asked


def review(claim: Json, **request: Any) -> Json:
    """As an API server writes it, about a claim's new status."""
    kind = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
    metadata = claim.get("metadata", {})
    usual = {
        "kind": kind,
        "operation": "UPDATE",
        "subResource": "status",
        "oldObject": claim_json(metadata.get("name", "c")),
    }
    return asked(claim, **(usual | request))


@dataclass
class Reviews:
    """The application over a state of one node with two cards of 20 units."""

    ready: bool = True
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.state = ExtenderState(wait_s=0, pending_for_s=5)
        self.state.resource_claims.set_cards(NodeName("n"), cards(20, 20))
        cluster = Embedded()
        never = Reflector(cluster, Kind.CLAIMS, self.state.resource_claims)
        followed = () if self.ready else (("resourceclaims", never),)
        readiness = Readiness(followed, 60)
        metrics = ResourceClaimMetrics(self.registry)
        parts = ResourceClaimParts(self.state.resource_claims, readiness, metrics)
        self.client = Client(as_wsgi(create_resource_claims_app(parts)))

    def ask(self, claim: Json, **request: Any) -> str:
        """The message of the denial; empty if the claim is allowed."""
        response = answered(self.client, review(claim, **request), "/claims")
        if response["allowed"]:
            assert "status" not in response
            return ""
        message: str = response["status"]["message"]
        return message

    def count(self, result: str) -> float | None:
        name = "vcuda_extender_claim_reviews_total"
        return self.registry.get_sample_value(name, {"result": result})


def test_a_claim_is_reserved_or_denied() -> None:
    """The denial is what the pod's event shows."""
    reviews = Reviews()
    assert reviews.ask(claim_json("a", allocation_json(units=11))) == ""
    assert reviews.state.ledger.reservations() == {"claim/uid-a"}
    said = reviews.ask(claim_json("b", allocation_json(units=20)))
    assert said == "card GPU-0 of node n has 9 units left, not 20"
    assert (reviews.count("reserved"), reviews.count("denied")) == (1, 1)


def test_a_dry_run_reserves_nothing() -> None:
    """It hears what would be said."""
    reviews = Reviews()
    assert reviews.ask(claim_json("a", allocation_json()), dryRun=True) == ""
    full = claim_json("b", allocation_json(units=21))
    assert "not 21" in reviews.ask(full, dryRun=True)
    assert reviews.state.ledger.resource_claims() == frozenset()


def test_a_claim_takes_no_pods_place() -> None:
    """A made-up one with its UID: neither of a pod with a card nor of one that waits.

    It is charged beside them: what the first has stays charged, and the second gets
    what it asks, whether the extender knows of the pod already or not.
    """
    reviews = Reviews()
    bound = bound_json(placement("p", 0, 15, 1))
    for pod in (bound, pod_json("w", units=4, cores=1)):
        reviews.state.pods.apply(WatchEvent("ADDED", pod))
        made_up = claim_json("c", allocation_json(units=1))
        made_up["metadata"]["uid"] = pod["metadata"]["uid"]
        assert reviews.ask(made_up) == ""
    assert "has 3 units left" in reviews.ask(claim_json("d", allocation_json(units=6)))


@pytest.mark.parametrize(
    ("cores", "units", "said"),
    [(1, 0, "has 0 MiB of device gpu-0"), (0, 1, "has 0 cores of device gpu-0")],
)
def test_nobody_gets_nothing_of_a_card(cores: int, units: int, said: str) -> None:
    """A claim for 0 MiB would run on a card without room."""
    reviews = Reviews()
    denial = reviews.ask(claim_json("a", allocation_json(units=units, cores=cores)))
    assert said in denial
    assert "capacity.requests" in denial


def test_admin_access_is_denied() -> None:
    """The pod waits for a scheduler, with the reason, and not on a node."""
    reviews = Reviews()
    claim = claim_json("a", allocation_json(request="look"))
    claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    said = reviews.ask(claim)
    assert "request look has adminAccess, which vcuda.baidu.com does not give" in said
    assert reviews.count("denied") == 1


def test_what_is_not_understood_is_denied_with_the_field() -> None:
    reviews = Reviews()
    broken = claim_json("a", allocation_json())
    result = broken["status"]["allocation"]["devices"]["results"][0]
    result["consumedCapacity"]["cores"] = "half"
    said = reviews.ask(broken)
    assert "status.allocation.devices.results[0].consumedCapacity.cores" in said


def test_before_the_ledger_is_complete_all_are_denied() -> None:
    """A sentence says to wait; the scheduler asks again by itself."""
    reviews = Reviews(ready=False)
    said = reviews.ask(claim_json("a", allocation_json()))
    assert said == (
        "vcuda extender is not ready: resourceclaims have not been listed yet; "
        "wait for it"
    )
    assert reviews.count("not-ready") == 1


ALLOCATED = claim_json("c", allocation_json())


@pytest.mark.parametrize(
    ("claim", "request_"),
    [
        (claim_json("c"), {}),
        (ALLOCATED, {"oldObject": ALLOCATED}),
        (ALLOCATED, {"subResource": ""}),
        (ALLOCATED, {"operation": "CREATE"}),
        (ALLOCATED, {"kind": {"group": "", "kind": "Pod", "version": "v1"}}),
    ],
)
def test_reviews_of_nothing_new_are_allowed(claim: Json, request_: Json) -> None:
    """Even before the ledger is complete: they give no card away."""
    reviews = Reviews(ready=False)
    assert reviews.ask(claim, **request_) == ""
    assert reviews.count("allowed") == 1


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"kind": "AdmissionReview"}'])
def test_what_is_no_review_gets_a_400(body: bytes) -> None:
    reviews = Reviews()
    got = reviews.client.post("/claims", data=body, content_type="application/json")
    assert got.status_code == 400
    assert reviews.count("malformed") == 1


def test_an_internal_error_is_a_denial(caplog: pytest.LogCaptureFixture) -> None:
    """The API server would show people nothing but a number."""
    reviews = Reviews()
    nameless = claim_json("a", allocation_json())
    reviews.state.resource_claims.reserve = None  # type: ignore[assignment,method-assign]
    assert "internal error" in reviews.ask(nameless)
    assert "Traceback" in caplog.text
    assert reviews.count("failed") == 1


@pytest.mark.parametrize("path", ["/", "/scheduler/filter", "/snapshot", "/metrics"])
def test_the_listener_has_no_other_path(path: str) -> None:
    reviews = Reviews()
    assert reviews.client.get(path).status_code == 404
    assert reviews.client.post(path, json={}).status_code == 404
    assert reviews.client.get("/claims").status_code == 405
    assert reviews.client.post("/readyz", json={}).status_code == 405


def test_the_installer_sees_whether_it_answers() -> None:
    """And why not yet; nothing is reserved by that."""
    assert Reviews().client.get("/readyz").text == "ok\n"
    answer = Reviews(ready=False).client.get("/readyz")
    assert answer.status_code == 503
    assert answer.text == "resourceclaims have not been listed yet\n"


@pytest.mark.parametrize(
    ("server", "heard"),
    [(("127.0.0.1", 7), "there"), (("::1", 8), "elsewhere"), (None, "elsewhere")],
)
def test_the_port_of_the_socket_chooses(server: Any, heard: str) -> None:
    """Not a header, which any client can send."""
    seen: list[str] = []

    def named(name: str) -> Application:
        async def application(_scope: Any, _receive: Any, _send: Any) -> None:
            seen.append(name)

        return application

    scope = {"server": server, "headers": [(b"host", b"127.0.0.1:7")]}
    asyncio.run(
        exchange(choose_by_port(7, named("there"), named("elsewhere")), scope, [])
    )
    assert seen == [heard]
