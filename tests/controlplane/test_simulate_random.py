"""Random scenarios: the simulator and a real kube-scheduler place the same pods alike.

Pods come one by one: kube-scheduler asks for the next pod while the last one's bind is
on its way, and its scores would depend on which of the two arrives first. Of its
scores only the extender's is left: the others are not simulated. Where several nodes
have one score kube-scheduler picks one at random. The simulator is told that choice,
pod by pod, and the choice must be among the best there.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from gpushare.domain.model import NodeName
from gpushare.domain.placement import score_node
from gpushare.domain.policies import POLICIES
from gpushare.kube.annotations import read_cards
from gpusharectl.simulator.engine import Played, play
from gpusharectl.simulator.scenario import Arrive, Scenario, ScenarioStep
from gpusharectl.simulator.scenario_file import read_scenario
from tests.controlplane.extender import extender
from tests.controlplane.world import EAGER, Verdict, World
from tests.testbed.controlplane import ControlPlane
from tests.testbed.kubelet import StandInKubelet
from tests.testbed.objects import post_pod
from tests.testbed.rest import Json

pytestmark = pytest.mark.controlplane

HOSTNAME = "kubernetes.io/hostname"
MODELS = ("Tesla P4", "Tesla T4", "NVIDIA A10")
ONLY_THE_EXTENDERS = {"disabled": [{"name": "*"}]}
NODES = 4
PODS = 14


def dealt(seed: int) -> Scenario:
    """Deal a scenario of nodes and pods, too many for the cards."""
    dice = Random(seed)
    nodes = [node(dice, number) for number in range(NODES)]
    pods = [pod(dice, f"p{number:02}") for number in range(PODS)]
    policy = sorted(set(POLICIES) - {"frag"})[seed % (len(POLICIES) - 1)]
    told = {"policy": policy, "nodes": nodes, "pods": pods}
    return read_scenario(json.dumps(told), f"seed-{seed}.yaml")


def node(dice: Random, number: int) -> Json:
    size = dice.choice(("20GiB", "8GiB", "6144MiB"))
    return {
        "name": f"node-{number}",
        "cards": f"{dice.randint(1, 3)}x{size}",
        "model": dice.choice(MODELS),
        "cpu": dice.choice(("4", "8", "16")),
        "memory": dice.choice(("8Gi", "64Gi")),
        "pods": dice.choice((3, 20)),
        "labels": {"zone": dice.choice("ab")},
    }


def pod(dice: Random, name: str) -> Json:
    """Describe a pod: a share of a card, or one or two whole cards."""
    cores = dice.choice((1, 10, 40, 100, 200))
    asked: Json = {"cores": cores, "cpu": dice.choice(("500m", "2", "3"))}
    if cores < 100:
        asked["units"] = dice.choice((2, 8, 20, 31))
    if dice.random() < 0.3:
        asked["models"] = dice.sample(MODELS, 2)
    if dice.random() < 0.3:
        asked["policy"] = dice.choice(("best-fit", "spread"))
    if dice.random() < 0.25:
        asked["node_selector"] = dice.choice(
            (
                {"zone": "a"},
                {HOSTNAME: "node-0"},
                {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
            )
        )
    return {"name": name, **asked}


def as_posted(a_pod: Json, space: str, scheduler: str) -> Json:
    spec = {**a_pod["spec"], "schedulerName": scheduler}
    (container,) = spec["containers"]
    spec["containers"] = [{**container, "image": "local.test/pause:1"}]
    return {
        **a_pod,
        "metadata": {**a_pod["metadata"], "namespace": space},
        "spec": spec,
    }


def really(
    plane: ControlPlane, space: str, dealt: Scenario, name: str
) -> Mapping[str, Verdict]:
    """Let a real kube-scheduler place them, one after the other."""
    for node in dealt.nodes:
        plane.rest.must("POST", "/api/v1/nodes", node)
    pods = [
        as_posted(step.what.pod, space, name)
        for step in dealt.steps
        if isinstance(step.what, Arrive)
    ]
    plugins = {"preScore": ONLY_THE_EXTENDERS, "score": ONLY_THE_EXTENDERS}
    settings = replace(EAGER, profile={"schedulerName": name, "plugins": plugins})
    nodes = {node["metadata"]["name"] for node in dealt.nodes}
    with (
        extender(plane, f"{name}-extender", POLICY=dealt.choice.default) as ext,
        plane.start_scheduler(
            name, extender_url=ext.url, settings=settings
        ) as scheduler,
        StandInKubelet(plane.rest) as kubelet,
    ):
        world = World(plane, ext, kubelet, scheduler, name, space, nodes)
        return {
            a_pod["metadata"]["name"]: world.verdict(post_pod(plane.rest, a_pod))
            for a_pod in pods
        }


def pinned(step: ScenarioStep, where: str) -> ScenarioStep:
    """Let a pod go to this node and no other, by the label that every kubelet sets."""
    assert isinstance(step.what, Arrive)
    a_pod = step.what.pod
    selector = {**(a_pod["spec"].get("nodeSelector") or {}), HOSTNAME: where}
    spec = {**a_pod["spec"], "nodeSelector": selector}
    return replace(step, what=replace(step.what, pod={**a_pod, "spec": spec}))


def name_of(step: ScenarioStep) -> str:
    assert isinstance(step.what, Arrive)
    return str(step.what.pod["metadata"]["name"])


def simulated(scenario: Scenario, steps: list[ScenarioStep]) -> Played:
    return play(replace(scenario, steps=tuple(steps)), scenario.choice, looks=0)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_pods_on_the_same_cards(
    plane: ControlPlane, space: str, seed: int
) -> None:
    """Card by card; where nodes have one score, on one of them."""
    scenario = dealt(seed)
    seen = really(plane, space, scenario, f"random-{seed}")
    index = {
        card.uuid: card.index for node in scenario.nodes for card in read_cards(node)
    }
    before: list[ScenarioStep] = []
    for step in scenario.steps:
        name, real = name_of(step), seen[name_of(step)]
        free = simulated(scenario, [*before, step]).outcomes[-1]
        assert bool(free.node) == bool(real.node), (name, real, free)
        if not real.node:
            continue
        ledger = simulated(scenario, before).cluster.ledger
        assert isinstance(step.what, Arrive)
        before.append(pinned(step, real.node))
        there = simulated(scenario, before).outcomes[-1]
        assert (there.node, sorted(there.cards)) == (
            real.node,
            sorted(index[uuid] for uuid in real.cards),
        )
        if free.node != real.node:
            own = step.what.pod["metadata"]["annotations"].get("baidu.com/vcuda-policy")
            policy = scenario.choice.policy(own or None)
            pages = [ledger.node(NodeName(name)) for name in (free.node, real.node)]
            assert len({score_node(page, policy) for page in pages}) == 1, (name, pages)
    assert 0 < len(before) < PODS
