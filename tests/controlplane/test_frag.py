"""frag through a real kube-scheduler: it does what the decision in memory says."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpushare.cache.nodes import NodeBook
from gpushare.cache.pods import PodBook
from gpushare.domain.frag.policy import ENOUGH, Packer
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Placement, PodRequest
from gpushare.domain.placement import schedule
from gpushare.domain.policies import Choice, Policy
from gpushare.kube.cluster import Page
from gpushare.kube.codec import pod_record
from tests.controlplane.world import EAGER, World, beside
from tests.testbed.controlplane import ControlPlane
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

HEAVY = replace(EAGER, extender={"weight": 100})
SEEN = (50, 33, 17, 50, 33, 17, 100, 50, 33, 17)
THEN = (17, 50, 33, 100, 33)
"""Units of cards of 100."""
LEARNT = "vcuda_extender_frag_learnt_timestamp_seconds"


@pytest.fixture(scope="module")
def shared(plane: ControlPlane) -> Iterator[World]:
    with beside(plane, "frag", HEAVY, POLICY="frag") as world:
        yield world


def test_kube_scheduler_follows_what_was_learnt(world: World) -> None:
    """Node and card of each pod, once enough were seen to learn from."""
    assert len(SEEN) == ENOUGH
    for name in ("a", "b", "c", "d"):
        world.node(name, 100, 100)
    seen = [world.post(f"seen-{n}", *asked(units)) for n, units in enumerate(SEEN)]
    for each in seen:
        assert world.verdict(each).node
    metrics = world.extender.public
    wait_until(lambda: LEARNT in str(metrics.get("/metrics")), "a lesson")
    for number, units in enumerate(THEN):
        pod = world.post(f"then-{number}", *asked(units))
        expected = chosen(world, pod, seen)
        found = world.verdict(pod)
        assert (found.node, found.cards) == expected, units


def asked(units: int) -> tuple[int, int]:
    return units, 100 if units == 100 else 1


def request_of(pod: Json) -> PodRequest:
    request = pod_record(pod).request
    assert isinstance(request, PodRequest)
    return request


def chosen(
    world: World, pod: Json, seen: list[Json]
) -> tuple[str, tuple[str, ...]] | None:
    """Decide in memory, over the API server's objects without the pod itself."""
    ledger, hosts = Ledger(), Hosts()
    packer = Packer(ledger, hosts)
    choice = Choice("frag", packer=packer)
    own = pod["metadata"]["uid"]
    others = [each for each in world.pods() if each["metadata"]["uid"] != own]
    nodes = tuple(world.rest.items("/api/v1/nodes"))
    NodeBook(ledger, hosts=hosts).replace(iter([Page(nodes, "")]))
    PodBook(ledger, choice, hosts=hosts).replace(iter([Page(tuple(others), "")]))
    for each in seen:
        packer.see(request_of(each))
    packer.learn()
    policy = choice.policy(None)
    assert isinstance(policy, Policy)
    found = schedule(request_of(pod), ledger.nodes(), policy)
    return (found.node, found.cards()) if isinstance(found, Placement) else None
