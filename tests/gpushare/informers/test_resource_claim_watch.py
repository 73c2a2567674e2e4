"""Following ResourceClaims, on API servers with and without them."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import pytest

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName
from gpushare.informers.resource_claims import (
    RESOURCE_CLAIMS,
    UNCONFIRMED_S,
    ResourceClaimInformer,
    ResourceClaimWatch,
)
from gpushare.kube.cluster import Json, Kind, ListPage
from gpushare.kube.errors import ClusterError, NotFound, Unavailable
from gpushare.kube.resource_claims.allocated import read_resource_claim
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import allocation_json, cards, claim_json
from tests.extender.extender_fixture import Clock
from tests.testbed.waiting import wait_until


class WithoutClaims(Embedded):
    """An API server that does not serve ResourceClaims, or fails on them."""

    error: ClusterError | None = NotFound("the server could not find it")

    def list_page(self, kind: Kind, **how: Any) -> ListPage:
        if kind is Kind.CLAIMS and self.error is not None:
            raise self.error
        return super().list_page(kind, **how)

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        if isinstance(self.error, Unavailable):
            raise self.error
        return super().get(kind, namespace, name)


@dataclass
class Followed:
    """A watch of claims over a ledger of one card with 20 units."""

    cluster: Embedded
    clock: Clock = field(default_factory=Clock)
    stop: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self.ledger = Ledger()
        self.ledger.set_cards(NodeName("n"), cards(20))
        self.informer = ResourceClaimInformer(self.ledger, clock=self.clock)
        self.watch = ResourceClaimWatch(self.cluster, self.informer)

    def start(self) -> None:
        self.thread = Thread(target=self.watch.run, args=(self.stop,))
        self.thread.start()

    def reserve(self, name: str) -> None:
        """Reserve for a claim that is created and not written."""
        made = self.cluster.create(Kind.CLAIMS, claim_json(name))
        body = claim_json(name, allocation_json(units=5))
        body["metadata"] |= made["metadata"]
        found = read_resource_claim(body)
        assert found is not None
        assert not self.informer.reserve(found, made["metadata"]["resourceVersion"])


@pytest.fixture
def followed() -> Iterator[Followed]:
    made = Followed(WithoutClaims(bookmark_every_s=0.05))
    yield made
    made.stop.set()
    made.thread.join(30)


def test_an_api_server_without_claims_holds_up_nothing(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, to the log and to who asks for readiness."""
    caplog.set_level(logging.INFO)
    assert followed.watch.notes() == {}
    followed.start()
    # The log is written last.
    wait_until(lambda: caplog.text.count("does not serve") == 1, "line in the log")
    assert (
        "does not serve resource.k8s.io/v1" in followed.watch.notes()[RESOURCE_CLAIMS]
    )
    assert not followed.watch.reflector.synced.is_set()


def test_claims_are_followed_where_they_are(followed: Followed) -> None:
    """From what is there on."""
    followed.cluster.error = None  # type: ignore[attr-defined]
    made = followed.cluster.create(Kind.CLAIMS, claim_json("c"))
    status = {"status": {"allocation": allocation_json()}}
    followed.cluster.patch(Kind.CLAIMS, "default", "c", status, subresource="status")
    followed.start()
    wait_until(followed.ledger.resource_claims, "claim in the ledger")
    assert followed.watch.notes() == {}
    assert followed.ledger.resource_claims() == {f"claim/{made['metadata']['uid']}"}
    followed.cluster.delete(Kind.CLAIMS, "default", "c")
    wait_until(lambda: not followed.ledger.resource_claims(), "claim's end")


def test_an_api_server_that_has_claims_no_more() -> None:
    """After a way back to an older one pods are scheduled; until claims are there."""
    site = Followed(cluster := WithoutClaims())
    site.watch.reflector.synced.set()
    for error, missing in (
        (Unavailable("down"), False),
        (NotFound("the server could not find it"), True),
        (Unavailable("down"), False),
    ):
        cluster.error = error
        site.watch.settle_overdue()
        assert bool(site.watch.notes()) is missing
    cluster.error = NotFound("the server could not find it")
    site.watch.settle_overdue()
    cluster.error = None
    site.watch.reflector.in_touch.set()
    site.watch.settle_overdue()
    assert site.watch.notes() == {}


def test_late_reservations_are_settled_by_what_is_there() -> None:
    """A claim without an allocation, and one that is gone, free their room."""
    site = Followed(Embedded())
    for name in ("stays", "gone", "written"):
        site.reserve(name)
    site.cluster.delete(Kind.CLAIMS, "default", "gone")
    status = {"status": {"allocation": allocation_json(units=5)}}
    written = site.cluster.patch(
        Kind.CLAIMS, "default", "written", status, subresource="status"
    )
    site.watch.settle_overdue()
    assert len(site.ledger.resource_claims()) == 3
    site.clock.now = UNCONFIRMED_S + 1
    site.watch.settle_overdue()
    assert site.ledger.resource_claims() == {f"claim/{written['metadata']['uid']}"}
    assert site.ledger.reservations() == frozenset()


def test_a_claim_that_cannot_be_read_keeps_its_reservation() -> None:
    """Nothing is known of it, so nothing is given away."""
    cluster = WithoutClaims()
    site = Followed(cluster)
    site.reserve("c")
    site.clock.now = UNCONFIRMED_S + 1
    cluster.error = Unavailable("no answer")
    site.watch.settle_overdue()
    assert len(site.ledger.resource_claims()) == 1
    cluster.error = None
    site.watch.settle_overdue()
    assert site.ledger.resource_claims() == frozenset()
