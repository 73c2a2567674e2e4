"""Which pod kubelet admits, and at which step."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cards.devices import count_of
from gpushare.domain.request import Role
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kubelet.pods import (
    ActivePod,
    Allocated,
    AllocationStep,
    ListedDevices,
    NodePod,
    admission_candidates,
    read_node_pod,
    steps_left,
)
from tests.builders import container_json, placement, pod_json
from tests.deviceplugin.admission_fixture import shapes

M, C = names.MEMORY, names.CORE
ID = frozenset({"aaaaaaaa-m0000"})


def pod_of(name: str = "pod", units: int = 4, cores: int = 2, at: str = "") -> NodePod:
    body = pod_json(name, units=units, cores=cores)
    body["metadata"]["creationTimestamp"] = at
    return read_node_pod(body)


ONCE = container_json("once", 4, 2)
SIDE = container_json("side", 1, 1, restart="Always")
MAIN = container_json("main", 4, 2)
BOTH = {M: ID, C: ID}


@pytest.mark.parametrize(
    ("app", "init", "held", "served", "left"),
    [
        # What an init container was given is known from our own book alone.
        (MAIN, [ONCE, SIDE], {}, {"once"}, {"side", "main"}),
        (MAIN, [ONCE, SIDE], {}, (), {"once", "side", "main"}),
        (MAIN, [ONCE, SIDE], {"side": BOTH, "main": BOTH}, (), set()),
        (container_json(), [ONCE], {}, (), {"once"}),
        (container_json(), [ONCE], {}, {"once"}, set()),
    ],
)
def test_steps_left(
    app: Json, init: list[Json], held: Any, served: Any, left: set[str]
) -> None:
    pod = read_node_pod(pod_json(containers=[app], init=init))
    allocated = {(pod.uid, name, resource) for name in served for resource in (M, C)}
    found = steps_left(pod, ListedDevices({pod.name: held}), allocated)
    assert {step.container for step in found} == left


@given(shapes(), st.randoms(use_true_random=False))
def test_any_order_of_kubelets_calls_walks_a_turn_to_its_end(
    body: Json, chance: Random
) -> None:
    """Each call is its own container's step; what is left agrees with kubelet's list.

    A process that begins in the middle goes on where the one before it ended.
    """
    pod = read_node_pod(body)
    passing = {a.name for a in pod.gpu_containers if a.role is Role.INIT}
    turn = ActivePod(pod, placement(), pod.steps)
    served: Allocated = set()
    held: dict[str, dict[str, frozenset[str]]] = {}
    calls = [
        (container.name, resource, count)
        for container in pod.gpu_containers
        for resource in chance.sample((M, C), 2)
        if (count := count_of(container.amount, resource))
    ]
    for container, resource, count in calls:
        assert (
            steps_left(pod, ListedDevices({pod.name: held}), served) == turn.remaining
        )
        step = turn.step(resource, count)
        assert step == AllocationStep(container, resource, count)
        turn = turn.after(step)
        served = {*served, (pod.uid, container, resource)}
        if container not in passing:
            held.setdefault(container, {})[resource] = ID
    assert turn.remaining == ()
    assert turn.step(M, 4) is None
    assert steps_left(pod, ListedDevices({pod.name: held}), served) == ()


@pytest.mark.parametrize(
    ("step", "found"),
    [((M, 4), ["new", "old"]), ((C, 2), ["new", "old"]), ((M, 5), []), ((C, 9), [])],
)
def test_candidates_lack_just_that(step: tuple[str, int], found: list[str]) -> None:
    """Listed, without such devices, and asking so many; the last bound first."""
    pods = [pod_of("new", at="2"), pod_of("unlisted", at="0"), pod_of("old", at="1")]
    pods.append(pod_of("served", at="0"))
    listed = ListedDevices(
        {
            pods[0].name: {},
            pods[2].name: {"main": {}},
            pods[3].name: {"main": {M: ID, C: ID}},
        }
    )
    assert [p.name[1] for p in admission_candidates(pods, listed, (), step)] == found


def test_a_half_served_pod_is_a_candidate_for_the_rest() -> None:
    pod = pod_of()
    listed = ListedDevices({pod.name: {"main": {M: ID}}})
    assert admission_candidates([pod], listed, (), (C, 2)) == [pod]
    assert admission_candidates([pod], listed, (), (M, 4)) == []
