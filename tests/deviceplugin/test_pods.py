"""Which pod kubelet admits, and at which step."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cards.devices import Cards
from deviceplugin.pods import (
    ActivePod,
    Allocated,
    Listed,
    NodePod,
    Step,
    candidates,
    steps_left,
)
from gpushare.domain.request import Role
from gpushare.kube import names
from gpushare.kube.cluster import Json
from tests.builders import container_json, placement, pod_json
from tests.deviceplugin.admission_fixture import Giver, listed_as, seen, shapes

M, C = names.MEMORY, names.CORE
ID = frozenset({"aaaaaaaa-m0000"})


def pod_of(name: str = "pod", units: int = 4, cores: int = 2, at: str = "") -> NodePod:
    body = pod_json(name, units=units, cores=cores)
    body["metadata"]["creationTimestamp"] = at
    return seen(body)


def with_init() -> NodePod:
    return seen(
        pod_json(
            containers=[container_json("main", 4, 2)],
            init=[
                container_json("once", 4, 2),
                container_json("side", 1, 1, restart="Always"),
            ],
        )
    )


@given(shapes(), st.randoms(use_true_random=False))
def test_any_order_of_kubelets_calls_walks_a_turn_to_its_end(
    body: Json, chance: Random
) -> None:
    """Each call is its own container's step; what is left agrees with kubelet's list.

    A process that begins in the middle goes on where the one before it ended.
    """
    pod = seen(body)
    passing = {a.name for a in pod.gpu_containers if a.role is Role.INIT}
    turn = ActivePod(pod, placement(), pod.steps)
    served: Allocated = set()
    held: dict[str, dict[str, frozenset[str]]] = {}
    for container, resource, count in Giver(Cards([]), chance).calls(pod):
        assert steps_left(pod, listed_as(pod, held), served) == turn.left
        step = turn.step(resource, count)
        assert step == Step(container, resource, count)
        turn = turn.after(step)
        served = {*served, (pod.uid, container, resource)}
        if container not in passing:
            held.setdefault(container, {})[resource] = ID
    assert turn.left == ()
    assert steps_left(pod, listed_as(pod, held), served) == ()


def test_a_strange_call_is_no_step() -> None:
    """Another count, or the other resource's."""
    turn = ActivePod(
        pod_of(units=4, cores=2), placement(), pod_of(units=4, cores=2).steps
    )
    assert turn.step(M, 4) is not None
    assert turn.step(M, 2) is None
    assert turn.step(C, 4) is None


def test_containers_before_the_one_served_are_past() -> None:
    """kubelet never goes back."""
    pod = seen(
        pod_json(containers=[container_json("x", 1, 2), container_json("y", 3, 4)])
    )
    turn = ActivePod(pod, placement(), pod.steps)
    after = turn.after(Step("y", M, 3))
    assert after.left == (Step("y", C, 4),)


def test_an_admitted_pod_has_nothing_left() -> None:
    """Although its init container's devices are not listed, nor remembered here."""
    pod = with_init()
    held = {name: {M: ID, C: ID} for name in ("side", "main")}
    assert steps_left(pod, listed_as(pod, held), frozenset()) == ()


def test_an_init_container_is_served_once() -> None:
    """What it was given is known from our own book."""
    pod = with_init()
    served = {(pod.uid, "once", M), (pod.uid, "once", C)}
    left = steps_left(pod, listed_as(pod, {}), served)
    assert {step.container for step in left} == {"side", "main"}
    assert len(steps_left(pod, listed_as(pod, {}), frozenset())) == 6


def test_only_an_init_container_asks() -> None:
    """Its turn is over when our book says so."""
    pod = seen(
        pod_json(containers=[container_json()], init=[container_json("once", 4, 0)])
    )
    assert steps_left(pod, listed_as(pod, {}), ()) == (Step("once", M, 4),)
    assert steps_left(pod, listed_as(pod, {}), {(pod.uid, "once", M)}) == ()


@pytest.mark.parametrize(
    ("step", "found"),
    [((M, 4), ["new", "old"]), ((C, 2), ["new", "old"]), ((M, 5), []), ((C, 9), [])],
)
def test_candidates_lack_just_that(step: tuple[str, int], found: list[str]) -> None:
    """Listed, without such devices, and asking so many; the last bound first."""
    pods = [pod_of("new", at="2"), pod_of("unlisted", at="0"), pod_of("old", at="1")]
    pods.append(pod_of("served", at="0"))
    listed = Listed(
        {
            pods[0].name: {},
            pods[2].name: {"main": {}},
            pods[3].name: {"main": {M: ID, C: ID}},
        }
    )
    assert [p.name[1] for p in candidates(pods, listed, (), step)] == found


def test_a_half_served_pod_is_a_candidate_for_the_rest() -> None:
    """One resource is there, the other is not."""
    pod = pod_of()
    listed = listed_as(pod, {"main": {M: ID}})
    assert candidates([pod], listed, (), (C, 2)) == [pod]
    assert candidates([pod], listed, (), (M, 4)) == []
