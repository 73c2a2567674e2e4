"""Policies, card by card and node by node, as kube-scheduler's placements show them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.controlplane.books import checked_book
from tests.controlplane.world import EAGER, POLICY, World, beside
from tests.testbed.controlplane import ControlPlane
from tests.testbed.rest import Json

pytestmark = pytest.mark.controlplane

HEAVY = replace(EAGER, extender={"weight": 100})
"""Our score outweighs kube-scheduler's own, which spreads by CPU and memory."""
SIZES = (30, 20, 40)
CHOICE = {"first-fit": "edge-0", "best-fit": "edge-1", "spread": "edge-2"}


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


@pytest.mark.parametrize("policy", CHOICE)
def test_pods_own_policy(world: World, policy: str) -> None:
    """First-fit takes the first card, best-fit the tightest, spread the emptiest."""
    world.node("edge", *SIZES)
    card = world.runs("pod", 5, 1, annotations={POLICY: policy})
    assert card == CHOICE[policy]


def test_default_policy(world: World) -> None:
    """Where neither the pod nor the cluster says anything, first-fit holds."""
    world.node("edge", *SIZES)
    assert world.runs("pod", 5, 1) == CHOICE["first-fit"]


def test_clusters_policy(best_fit: World) -> None:
    """The cluster's policy holds for pods that name none."""
    best_fit.node("edge", *SIZES)
    assert best_fit.runs("plain", 5, 1) == "edge-1"
    assert best_fit.runs("own", 5, 1, annotations={POLICY: "spread"}) == "edge-2"
    assert best_fit.runs("first", 5, 1, annotations={POLICY: "first-fit"}) == "edge-0"


def test_best_fit_chooses_anew_for_each_pod(best_fit: World) -> None:
    """The card with the least room that still holds the pod."""
    best_fit.node("edge", 29, 29)
    assert best_fit.runs("a", 20, 1) == "edge-0"
    assert best_fit.runs("b", 12, 1) == "edge-1"
    assert best_fit.runs("c", 9, 1) == "edge-0"
    assert best_fit.runs("d", 5, 1) == "edge-1"
    checked_book(best_fit.rest)


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


def test_scores_and_names(world: World) -> None:
    """Filter keeps all nodes that fit; prioritize scores each of them from 0 to 10."""
    for name, sizes in {"a": (10,), "b": (40,), "c": (40, 40)}.items():
        world.node(name, *sizes)
    world.runs("holder", 20, 1, annotations={POLICY: "first-fit"})
    body = {"Pod": unborn(world.pod("asking", 15, 1)), "NodeNames": ["c", "a", "b"]}
    kept = world.extender.rest.must("POST", "/scheduler/filter", body)
    assert sorted(kept["NodeNames"]) == ["b", "c"]
    refused = "Insufficient baidu.com/vcuda-memory on one card"
    assert kept["FailedAndUnresolvableNodes"] == {"a": refused}
    answer = world.extender.rest.must("POST", "/scheduler/prioritize", body)["text"]
    scores = {each["Host"]: each["Score"] for each in answer}
    assert set(scores) == {"a", "b", "c"}
    assert all(0 <= score <= 10 for score in scores.values())


def node_for(world: World, name: str, policy: str) -> str:
    a_pod = world.post(name, 5, 1, annotations={POLICY: policy})
    verdict = world.verdict(a_pod)
    assert verdict.node, verdict.event
    return verdict.node


def unborn(a_pod: Json) -> Json:
    """Give a pod that was never created a UID all the same."""
    return {**a_pod, "metadata": {**a_pod["metadata"], "uid": "unborn"}}
