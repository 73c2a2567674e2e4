"""Policies, card by card and node by node, as kube-scheduler's placements show them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpushare.domain.frag.policy import ENOUGH, Packer
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Placement, PodRequest
from gpushare.domain.placement import schedule
from gpushare.domain.policies import Policy, PolicyChoice
from gpushare.informers.nodes import NodeInformer
from gpushare.informers.pods import PodInformer
from gpushare.kube.cluster import ListPage
from gpushare.kube.codec import read_pod_record
from tests.controlplane.world import EAGER, POLICY, World, beside
from tests.testbed.controlplane import ControlPlane
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

HEAVY = replace(EAGER, extender={"weight": 100})
"""Our score outweighs kube-scheduler's own, which spreads by CPU and memory."""
SIZES = (30, 20, 40)
CHOICE = {"": "edge-0", "first-fit": "edge-0", "best-fit": "edge-1", "spread": "edge-2"}


SEEN = (50, 33, 17, 50, 33, 17, 100, 50, 33, 17)
THEN = (17, 50, 33, 100, 33)
"""Units of cards of 100."""
LEARNT = "vcuda_extender_frag_learnt_timestamp_seconds"


@pytest.fixture(scope="module")
def shared(plane: ControlPlane) -> Iterator[World]:
    with beside(plane, scheduler=HEAVY) as world:
        yield world


@pytest.fixture(scope="module")
def best_fit_house(plane: ControlPlane) -> Iterator[World]:
    with beside(plane, "best-fit", HEAVY, POLICY="best-fit") as world:
        yield world


@pytest.fixture
def best_fit(best_fit_house: World, space: str) -> World:
    """A cluster whose own policy is best-fit."""
    return replace(best_fit_house, namespace=space, nodes=set())


@pytest.fixture
def frag(plane: ControlPlane, space: str) -> Iterator[World]:
    with beside(plane, "frag", HEAVY, POLICY="frag") as world:
        yield replace(world, namespace=space, nodes=set())


@pytest.mark.parametrize("policy", CHOICE)
def test_pods_own_policy(world: World, policy: str) -> None:
    """First-fit, the default, takes the first card; spread takes the emptiest."""
    world.node("edge", *SIZES)
    annotations = {POLICY: policy} if policy else None
    assert world.runs("pod", 5, 1, annotations=annotations) == CHOICE[policy]


def test_clusters_policy(best_fit: World) -> None:
    """The cluster's policy holds for pods that name none."""
    best_fit.node("edge", *SIZES)
    assert best_fit.runs("plain", 5, 1) == "edge-1"
    assert best_fit.runs("own", 5, 1, annotations={POLICY: "spread"}) == "edge-2"
    assert best_fit.runs("first", 5, 1, annotations={POLICY: "first-fit"}) == "edge-0"


@pytest.mark.parametrize("policy", ["first-fit", "best-fit"])
def test_fuller_nodes_first(world: World, policy: str) -> None:
    """First-fit and best-fit fill the node that is in use before they touch another."""
    for name in ("a", "b", "c"):
        world.node(name, 40, 40)
    used = {node_for(world, f"pod-{n}", policy) for n in range(4)}
    assert len(used) == 1


def test_emptier_nodes_first(world: World) -> None:
    """Spread takes an empty node as long as there is one."""
    for name in ("a", "b", "c"):
        world.node(name, 40, 40)
    used = {node_for(world, f"pod-{n}", "spread") for n in range(3)}
    assert used == {"a", "b", "c"}


def node_for(world: World, name: str, policy: str) -> str:
    a_pod = world.post(name, 5, 1, annotations={POLICY: policy})
    verdict = world.verdict(a_pod)
    assert verdict.node, verdict.event
    return verdict.node


def test_kube_scheduler_follows_what_was_learnt(frag: World) -> None:
    """Node and card of each pod, once enough were seen to learn from."""
    assert len(SEEN) == ENOUGH
    for name in ("a", "b", "c", "d"):
        frag.node(name, 100, 100)
    seen = [frag.post(f"seen-{n}", *asked(units)) for n, units in enumerate(SEEN)]
    for each in seen:
        assert frag.verdict(each).node
    metrics = frag.extender.public
    wait_until(lambda: LEARNT in str(metrics.get("/metrics")), "a lesson")
    for number, units in enumerate(THEN):
        pod = frag.post(f"then-{number}", *asked(units))
        expected = chosen(frag, pod, seen)
        found = frag.verdict(pod)
        assert (found.node, found.cards) == expected, units


def asked(units: int) -> tuple[int, int]:
    return units, 100 if units == 100 else 1


def request_of(pod: Json) -> PodRequest:
    request = read_pod_record(pod).request
    assert isinstance(request, PodRequest)
    return request


def chosen(
    world: World, pod: Json, seen: list[Json]
) -> tuple[str, tuple[str, ...]] | None:
    """Decide in memory, over the API server's objects without the pod itself."""
    ledger, hosts = Ledger(), Hosts()
    packer = Packer(ledger, hosts)
    choice = PolicyChoice("frag", packer=packer)
    own = pod["metadata"]["uid"]
    others = [each for each in world.pods() if each["metadata"]["uid"] != own]
    nodes = tuple(world.rest.items("/api/v1/nodes"))
    NodeInformer(ledger, hosts=hosts).replace(iter([ListPage(nodes, "")]))
    PodInformer(ledger, choice, hosts=hosts).replace(
        iter([ListPage(tuple(others), "")])
    )
    for each in seen:
        packer.see(request_of(each))
    packer.learn()
    policy = choice.policy(None)
    assert isinstance(policy, Policy)
    found = schedule(request_of(pod), ledger.nodes(), policy)
    return (found.node, found.cards()) if isinstance(found, Placement) else None
