"""One small cluster for each state that inspect and why must show."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpushare.domain.policies import Choice
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json
from gpusharectl.state.read import Picture
from tests.builders import (
    AT,
    bound_json,
    card,
    container_json,
    placement,
    pod_json,
    share,
)
from tests.gpusharectl.pictures import (
    RTX,
    aged,
    extender,
    kube_scheduler,
    node_of,
    picture,
    plugin,
    refused_by_scheduler,
)

G = "GPU-5d3cc7ba-1bb4-4f1c-8f4e-2a60a3b7d9c1"
A = "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"
B = "GPU-7cf0b881-7598-8b1a-3270-94d6f5d2479a"
NO_ROOM = "0/2 nodes are available: 2 Insufficient baidu.com/vcuda-memory on one card."


def node_1() -> Json:
    return node_of("node-1", card(0, 94, uuid=G, model=RTX))


def node_2(**second: bool) -> Json:
    return node_of("node-2", card(0, 29, uuid=A), card(1, 29, uuid=B, **second))


def held(name: str, on: str, units: int, cores: int = 1, *, node: str) -> Json:
    (pod,) = aged(bound_json(placement(name, on, units, cores, node=node)))
    return pod


def three_apps() -> list[Json]:
    sizes = {"app-1": 50, "app-2": 40, "app-3": 1}
    return [held(name, G, units, node="node-1") for name, units in sizes.items()]


def asking(name: str = "big", units: int = 30, cores: int = 1, **more: object) -> Json:
    (pod,) = aged(pod_json(name, units=units, cores=cores, **more))  # type: ignore[arg-type]
    return pod


def small() -> Picture:
    """The cluster of the seeds: shares of one card, and of two; one pod waits."""
    pods = [
        *three_apps(),
        held("cuda-2", A, 20, node="node-2"),
        held("cuda-3", B, 20, node="node-2"),
        refused_by_scheduler(asking(), NO_ROOM),
    ]
    return picture([node_1(), node_2()], pods)


def empty() -> Picture:
    """Nothing at all."""
    return picture(parts=())


def no_gpu_nodes() -> Picture:
    """Nodes, and none of them shares a card."""
    nodes = [node_of(f"plain-{number}", labelled=False) for number in range(3)]
    return picture(nodes, parts=())


def sick() -> Picture:
    """A sick card with a pod on it."""
    pods = [held("cuda-3", B, 20, node="node-2"), asking("next", 20)]
    return picture([node_2(healthy=False)], [*pods, held("a", A, 20, node="node-2")])


def cordoned() -> Picture:
    """A cordoned card with a pod on it, and one that waits for it."""
    pods = [held("cuda-3", B, 2, node="node-2"), asking("next", 20)]
    return picture([node_2(cordoned=True)], [*pods, held("a", A, 20, node="node-2")])


def whole_card() -> Picture:
    """One pod has a card for itself, one waits for two."""
    whole = placement("alone", shares=[share(A, 29, 100)], node="node-2")
    return picture(
        [node_2()], [*aged(bound_json(whole)), asking("two", 0, 200)], parts=None
    )


def swapped() -> Picture:
    """kubelet chose another card than was planned."""
    plan = placement("mover", A, 20, 1, node="node-2")
    actual = replace(plan, shares=(share(B, 20, 1),))
    pod = bound_json(plan)
    pod["metadata"]["annotations"][names.ACTUAL] = encode_placement(actual, AT)
    return picture([node_2()], aged(pod))


def unplaced() -> Picture:
    """A pod that named its node itself: on nobody knows which card."""
    pods = [asking("byhand", 5, node="node-2", phase="Running"), asking("next", 25)]
    return picture([node_2()], pods)


def making_room() -> Picture:
    """A victim is leaving, and its room is kept for a more important pod."""
    victim = bound_json(placement("old", A, 25, 1, node="node-2"), terminating=True)
    pod = asking("vip", 20, priority=1000, nominated="node-2")
    other = held("stays", B, 25, node="node-2")
    return picture([node_2()], [*aged(victim), pod, other])


def for_cores() -> Picture:
    """Memory is there, compute is not."""
    pods = [held("a", A, 1, 80, node="node-2"), held("b", B, 1, 60, node="node-2")]
    return picture([node_2()], [*pods, asking("hungry", 2, 50)])


def fragmented() -> Picture:
    """Each part is free, on two different cards."""
    pods = [held("a", A, 25, 1, node="node-2"), held("b", B, 1, 95, node="node-2")]
    return picture([node_2()], [*pods, asking("both", 20, 50)])


def unknown_policy() -> Picture:
    """A wish that nobody can fulfil."""
    return picture([node_2()], [asking(annotations={names.POLICY: "tightest"})])


def apart() -> Picture:
    """Two containers, each for its own card, and one card has no room."""
    containers = [container_json("left", 20), container_json("right", 20)]
    notes = {names.CONTAINERS: names.APART}
    pod = pod_json("pair", containers=containers, annotations=notes)
    return picture([node_2()], [held("a", A, 15, node="node-2"), *aged(pod)])


def selected() -> Picture:
    """Two pods that name the models that they may have: one waits, one has its card."""
    wish = {names.MODELS: "A10, RTX 3090"}
    pods = [*three_apps(), asking("picky", 20, annotations=wish)]
    mine = held("mine", B, 20, node="node-2")
    mine["metadata"]["annotations"] |= {names.UUIDS: B[:12]}
    return picture([node_1(), node_2()], [*pods, mine])


def crowd() -> Picture:
    """Three hundred pods on one card."""
    node = node_of("node-1", card(0, 563, uuid=G, model="NVIDIA H200 141GB HBM3e"))
    pods = [held(f"m-{n:03}", G, 1, 0, node="node-1") for n in range(300)]
    pods += [held("large", G, 200, 40, node="node-1")]
    return picture([node], [*pods, *(asking(f"p-{n:02}", 600) for n in range(14))])


def ready_soon() -> Picture:
    """There is room by our books, and something else keeps it waiting."""
    said = "0/1 nodes are available: 1 node(s) had untolerated taint {team: blue}."
    return picture([node_2()], [refused_by_scheduler(asking("next", 5), said)])


def troubled() -> Picture:
    """Everything that can be wrong beside the cards, at once."""
    lost = node_of("lost", card(0, 29, uuid=A), ready="Unknown", unschedulable=True)
    broken = node_of("broken", annotations={names.CARDS: '{"v": 1, "cards": [{}]}'})
    stray = node_of(
        "stray",
        card(0, 29, uuid=B),
        annotations={names.CORDON: "GPU-typo"},
        offered={names.MEMORY: 0, names.CORE: 0},
    )
    parts = [extender(ready=False), kube_scheduler(), plugin("broken", ready=False)]
    gone = held("left-behind", "GPU-gone", 5, node="stray")
    return picture(
        [lost, broken, stray],
        [gone],
        parts=parts,
        unasked="none of its pods is ready",
        choice=Choice("spread"),
    )


SCENES: Mapping[str, Callable[[], Picture]] = {
    scene.__name__: scene
    for scene in (
        small,
        empty,
        no_gpu_nodes,
        sick,
        cordoned,
        whole_card,
        swapped,
        unplaced,
        making_room,
        for_cores,
        fragmented,
        unknown_policy,
        apart,
        selected,
        crowd,
        ready_soon,
        troubled,
    )
}
