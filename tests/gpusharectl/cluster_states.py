"""Cluster states to show: nodes, pods and quotas with a default for everything."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gpushare.domain.links import with_scores
from gpushare.domain.model import Card
from gpushare.domain.policies import PolicyChoice
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards, encode_placement
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpusharectl.state.read import ClusterState, Setup, Trouble, compute_placements
from tests.builders import (
    AT,
    bound_json,
    card,
    container_json,
    node_json,
    placement,
    pod_json,
    share,
)

NOW = datetime(2026, 1, 2, 3, 10, 0, tzinfo=UTC)
"""Some five minutes after everything in ``tests.builders`` was made."""
MADE = "2026-01-02T03:04:05Z"
OURS = "/etc/kubernetes/vcuda/scheduler.yaml"
RTX = "RTX 3090"


def node_of(
    name: str,
    *cards: Card,
    ready: str = "True",
    labelled: bool = True,
    unschedulable: bool = False,
    offered: Mapping[str, int] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """A node that is as it should be: kubelet offers what the well cards have."""
    node = node_json(name, *cards, annotations=annotations)
    if labelled:
        node["metadata"]["labels"] = {names.GPU_NODE_LABEL: "true"}
    if offered is None:
        well = [card for card in cards if card.healthy]
        units = sum(card.units for card in well)
        offered = {names.MEMORY: units, names.CORE: 100 * len(well)}
    node["status"] = {
        "conditions": [{"type": "Ready", "status": ready}],
        "allocatable": {key: str(number) for key, number in offered.items()},
    }
    node["spec"] = {"unschedulable": True} if unschedulable else {}
    return node


def part(name: str, part_of: str, *, node: str = "", ready: bool = True) -> Json:
    """A pod of ours in kube-system."""
    pod = pod_json(name, node=node, phase="Running")
    pod["metadata"]["namespace"] = "kube-system"
    pod["metadata"]["labels"] = {
        "app.kubernetes.io/part-of": "gpushare",
        "app.kubernetes.io/name": part_of,
    }
    pod["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
    return pod


def extender(name: str = "gpushare-extender-x", **more: Any) -> Json:
    return part(name, "gpushare-extender", **more)


def guarded(name: str) -> Json:
    """An extender that requires a client certificate."""
    pod = extender(name)
    setting = {"name": "GPUSHARE_TLS_CLIENT_CA", "value": "/tls/ca.crt"}
    pod["spec"]["containers"][0]["env"] = [setting]
    return pod


def plugin(node: str, **more: Any) -> Json:
    name = f"gpushare-device-plugin-{node}"
    return part(name, "gpushare-device-plugin", node=node, **more)


def following(name: str) -> Json:
    """An extender that follows ResourceClaims."""
    pod = extender(name)
    setting = {"name": "GPUSHARE_CLAIMS_LISTEN", "value": "127.0.0.1:39996"}
    pod["spec"]["containers"][0]["env"] = [setting]
    return pod


def offering(name: str) -> Json:
    """A device plugin whose driver offers cards to claims."""
    pod = plugin("n")
    pod["metadata"]["name"] = name
    setting = {"name": "GPUSHARE_DRA", "value": "on"}
    pod["spec"]["containers"][0]["env"] = [setting]
    return pod


def kube_scheduler(*words: str, node: str = "cp") -> Json:
    """kube-scheduler's mirror pod, as kubeadm runs it."""
    pod = pod_json(f"kube-scheduler-{node}", node=node, phase="Running")
    pod["metadata"]["namespace"] = "kube-system"
    pod["metadata"]["labels"] = {"component": "kube-scheduler"}
    pod["spec"]["containers"][0]["command"] = ["kube-scheduler", *words]
    return pod


def in_order(*nodes: Json) -> tuple[Json, ...]:
    """The parts that a cluster of these nodes should have, all well."""
    plugins = [plugin(node["metadata"]["name"]) for node in nodes]
    return (extender(), kube_scheduler(f"--config={OURS}"), *plugins)


def answered(answer: Any) -> Any:
    """What somebody answers, or the error that it is."""
    if isinstance(answer, ClusterError):
        raise answer
    return answer


def refused_by_scheduler(pod: Json, words: str) -> Json:
    refused = {"type": "PodScheduled", "status": "False", "message": words}
    pod["status"]["conditions"] = [refused]
    return pod


def cluster_state(
    nodes: Sequence[Json] = (),
    pods: Iterable[Json] = (),
    *,
    parts: Sequence[Json] | None = None,
    choice: PolicyChoice | None = None,
    not_asked: str = "",
    troubles: Sequence[Trouble] = (),
    reviewed: bool | None = None,
    claims: Iterable[Json] = (),
) -> ClusterState:
    """What is seen of such a cluster; by default all parts are well."""
    found = tuple(pods)
    for pod in found:
        pod["metadata"]["creationTimestamp"] = MADE
    well = in_order(*nodes) if parts is None else tuple(parts)
    placements, seen = compute_placements(
        nodes, found, choice or PolicyChoice(), not_asked, claims
    )
    return ClusterState(
        placements, tuple(nodes), seen, well, NOW, tuple(troubles), reviewed=reviewed
    )


G = "GPU-5d3cc7ba-1bb4-4f1c-8f4e-2a60a3b7d9c1"
A = "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"
B = "GPU-7cf0b881-7598-8b1a-3270-94d6f5d2479a"
NO_ROOM = "0/2 nodes are available: 2 Insufficient baidu.com/vcuda-memory on one card."


def node_1() -> Json:
    return node_of("node-1", card(0, 94, uuid=G, model=RTX))


def node_2(**second: bool) -> Json:
    return node_of("node-2", card(0, 29, uuid=A), card(1, 29, uuid=B, **second))


def held(name: str, on: str, units: int, cores: int = 1, node: str = "node-2") -> Json:
    return bound_json(placement(name, on, units, cores, node=node))


def three_apps() -> list[Json]:
    sizes = {"app-1": 50, "app-2": 40, "app-3": 1}
    return [held(name, G, units, node="node-1") for name, units in sizes.items()]


def asking(name: str = "big", units: int = 30, cores: int = 1, **more: Any) -> Json:
    return pod_json(name, units=units, cores=cores, **more)


def small() -> ClusterState:
    """The cluster of the seeds: shares of one card, and of two; one pod waits."""
    pods = [
        *three_apps(),
        held("cuda-2", A, 20),
        held("cuda-3", B, 20),
        refused_by_scheduler(asking(), NO_ROOM),
    ]
    return cluster_state([node_1(), node_2()], pods)


def empty() -> ClusterState:
    return cluster_state(parts=())


def no_gpu_nodes() -> ClusterState:
    nodes = [node_of(f"plain-{number}", labelled=False) for number in range(3)]
    return cluster_state(nodes)


def not_installed() -> ClusterState:
    nodes = [node_of(f"plain-{number}", labelled=False) for number in range(3)]
    return replace(cluster_state(nodes, parts=()), setup=Setup.ABSENT)


def demo() -> ClusterState:
    """Its extender and device plugins are no pods."""
    why = "the demo's extender is not in a pod"
    state = cluster_state([node_1(), node_2()], three_apps(), parts=(), not_asked=why)
    return replace(state, setup=Setup.DEMO)


def sick() -> ClusterState:
    pods = [held("cuda-3", B, 20), held("a", A, 20)]
    return cluster_state([node_2(healthy=False)], [*pods, asking("next", 20)])


def limited() -> ClusterState:
    """Tier driver: one card fails a check, and a pod started before that."""
    why = "isolation tier driver: no CDI specification has the hook for it"
    cards = card(0, 13, uuid=A), card(1, 13, uuid=B, healthy=False, reason=why)
    cards = with_scores(cards, [250])
    notes = {names.CARDS: encode_cards(cards, "driver")}
    node = node_of("node-2", *cards, annotations=notes)
    earlier = node_of("node-3", card(0, 29, uuid="GPU-3"))
    pod = held("a", B, 9)
    pod["metadata"]["annotations"][names.ISOLATION] = "driver"
    last = held("b", "GPU-3", 28, node="node-3")
    pods = [pod, held("c", A, 10), last]
    return cluster_state([node, earlier], [*pods, asking("next", 4)])


def mig() -> ClusterState:
    """A full card, and the instances of two others; one of them was destroyed."""
    parts = [(G, 0, "2g.10gb", 39), (G, 2, "3g.20gb", 78), (B, 0, "1g.5gb", 19)]
    instances = [
        card(
            110 + 10 * (parent == B) + place,
            units,
            uuid=f"MIG-{number}f12f917-e458-4bb8-3d9d-8dc7fd6cddf7",
            model=f"NVIDIA A100-SXM4-40GB MIG {profile}",
            parent=parent,
            healthy=number != 1,
        )
        for number, (parent, place, profile, units) in enumerate(parts)
    ]
    node = node_of("node-2", card(0, 29, uuid=A), *instances)
    pods = [held("small", instances[0].uuid, 30), held("large", instances[1].uuid, 60)]
    return cluster_state([node], [*pods, held("cuda-2", A, 20)])


def cordoned() -> ClusterState:
    """A cordoned card with a pod on it, and one that waits for it."""
    pods = [held("cuda-3", B, 2), held("a", A, 20)]
    return cluster_state([node_2(cordoned=True)], [*pods, asking("next", 20)])


def whole_card() -> ClusterState:
    """One pod has a card for itself, one waits for two."""
    whole = placement("alone", shares=[share(A, 29, 100)], node="node-2")
    return cluster_state([node_2()], [bound_json(whole), asking("two", 0, 200)])


def swapped() -> ClusterState:
    """kubelet chose another card than was planned."""
    plan = placement("mover", A, 20, 1, node="node-2")
    actual = replace(plan, shares=(share(B, 20, 1),))
    pod = bound_json(plan)
    pod["metadata"]["annotations"][names.ACTUAL] = encode_placement(actual, AT)
    return cluster_state([node_2()], [pod])


def unplaced() -> ClusterState:
    """A pod that named its node itself: on nobody knows which card."""
    pods = [asking("byhand", 5, node="node-2", phase="Running"), asking("next", 25)]
    return cluster_state([node_2()], pods)


def making_room() -> ClusterState:
    """A victim is leaving, and its room is kept for a more important pod."""
    victim = bound_json(placement("old", A, 25, 1, node="node-2"), terminating=True)
    pod = asking("vip", 20, priority=1000, nominated="node-2")
    other = held("stays", B, 25)
    return cluster_state([node_2()], [victim, pod, other])


def for_cores() -> ClusterState:
    pods = [held("a", A, 1, 80), held("b", B, 1, 60)]
    return cluster_state([node_2()], [*pods, asking("hungry", 2, 50)])


def cores_used_up() -> ClusterState:
    """Most units are free, on cards that have no core left."""
    pods = [held("a", A, 2, 99), held("c", A, 1, 1), held("b", B, 4, 99)]
    pods += [held("d", G, 10, 100 - 4, node="node-1")]
    pods += [held("e", G, 5, 4, node="node-1")]
    return cluster_state([node_1(), node_2()], [*pods, asking("next", 30)])


def tied() -> ClusterState:
    """A pod is tied to a full node; two others have room and are not for it."""
    nodes = [node_1(), node_of("node-2", card(0, 29, uuid=A))]
    nodes += [node_of("node-3", card(0, 29, uuid=B)), node_of("node-4", card(0, 29))]
    for node, zone in zip(nodes, "abab", strict=True):
        node["metadata"]["labels"]["zone"] = zone
    taint = {"key": "team", "value": "blue", "effect": "NoSchedule"}
    nodes[2]["spec"]["taints"] = [taint]
    pod = asking("next", 20)
    pod["spec"]["nodeSelector"] = {"zone": "a"}
    return cluster_state(nodes, [*three_apps(), pod])


def fragmented() -> ClusterState:
    """Each part is free, on two different cards."""
    pods = [held("a", A, 25, 1), held("b", B, 1, 95)]
    return cluster_state([node_2()], [*pods, asking("both", 20, 50)])


def unknown_policy() -> ClusterState:
    return cluster_state([node_2()], [asking(annotations={names.POLICY: "tightest"})])


def apart() -> ClusterState:
    """Two containers, each for its own card, and one card has no room."""
    containers = [container_json("left", 20), container_json("right", 20)]
    notes = {names.CONTAINERS: names.APART}
    pod = pod_json("pair", containers=containers, annotations=notes)
    return cluster_state([node_2()], [held("a", A, 15), pod])


def selected() -> ClusterState:
    """Two pods that name the models that they may have: one waits, one has its card."""
    wish = {names.MODELS: "A10, RTX 3090"}
    pods = [*three_apps(), asking("picky", 20, annotations=wish)]
    mine = held("mine", B, 20)
    mine["metadata"]["annotations"] |= {names.UUIDS: B[:12]}
    return cluster_state([node_1(), node_2()], [*pods, mine])


def crowd() -> ClusterState:
    node = node_of("node-1", card(0, 563, uuid=G, model="NVIDIA H200 141GB HBM3e"))
    pods = [held(f"m-{n:03}", G, 1, 0, node="node-1") for n in range(300)]
    pods += [held("large", G, 200, 40, node="node-1")]
    return cluster_state(
        [node], [*pods, *(asking(f"p-{n:02}", 600) for n in range(14))]
    )


def ready_soon() -> ClusterState:
    """There is room by our books, and something else keeps it waiting."""
    said = "0/1 nodes are available: 1 node(s) had untolerated taint {team: blue}."
    return cluster_state([node_2()], [refused_by_scheduler(asking("next", 5), said)])


def troubled() -> ClusterState:
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
    return cluster_state(
        [lost, broken, stray],
        [gone],
        parts=parts,
        not_asked="no extender pod is ready",
        choice=PolicyChoice("spread"),
    )


CORE = f"requests.{names.CORE}"
MEMORY = f"requests.{names.MEMORY}"
BITFUSION = f"requests.{names.BITFUSION_GPU}"


def quota(
    namespace: str,
    name: str = "gpu",
    *,
    hard: Mapping[str, str],
    used: Mapping[str, str] | None = None,
) -> Json:
    """A ResourceQuota; ``used`` None: its controller has not looked yet."""
    status = {} if used is None else {"hard": dict(hard), "used": dict(used)}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": dict(hard)},
        "status": status,
    }


def in_namespace(pod: Json, namespace: str) -> Json:
    pod["metadata"]["namespace"] = namespace
    return pod


def tenants() -> ClusterState:
    """One within its quota, one over it, one with none; and one with two."""
    nodes = [node_of("n", card(0, 59, uuid=A), card(1, 59, uuid=B))]
    pods = [
        in_namespace(held("half", A, 29, 50, node="n"), "edge"),
        in_namespace(held("big", B, 40, 30, node="n"), "research"),
        in_namespace(held("more", B, 4, 10, node="n"), "research"),
        held("free", A, 5, 1, node="n"),
        in_namespace(asking("waits", 60, 50), "edge"),
    ]
    quotas = (
        quota("edge", hard={CORE: "100"}, used={CORE: "100"}),
        quota("edge", "pods", hard={"pods": "10"}, used={"pods": "2"}),
        quota(
            "research",
            hard={CORE: "200", MEMORY: "40"},
            used={CORE: "40", MEMORY: "44"},
        ),
        quota("research", "night", hard={CORE: "60"}, used={CORE: "40"}),
        quota("idle", hard={BITFUSION: "100"}, used={BITFUSION: "0"}),
        quota("fresh", hard={CORE: "1k"}),
    )
    return replace(cluster_state(nodes, pods), quotas=quotas)


def bitfusion() -> ClusterState:
    """Seed 004's: a pod of half a card, with its old resource kept for the quota."""
    offered = {names.MEMORY: 59, names.CORE: 100, names.BITFUSION_GPU: 100}
    nodes = [node_of("n", card(0, 59, uuid=A), offered=offered)]
    pods = [in_namespace(held("bf-pkgs", A, 29, 50, node="n"), "default")]
    told = quota("default", "gpu", hard={BITFUSION: "100"}, used={BITFUSION: "50"})
    return replace(cluster_state(nodes, pods), quotas=(told,))


def unread() -> ClusterState:
    return replace(tenants(), quotas=None)


def many() -> ClusterState:
    """More namespaces than a screen names, one of a very long name."""
    quotas = [quota(f"team-{n:02}", hard={CORE: "100"}, used={}) for n in range(12)]
    quotas += [quota("a" * 63, hard={CORE: "10000000"}, used={CORE: "9999999"})]
    return replace(cluster_state([node_of("n", card(0, 59))]), quotas=tuple(quotas))


def crowded_cards(units: int, cores: int = 1) -> ClusterState:
    """46 cards: 36 small ones, 8 large ones that are in use, 2 that are tainted."""
    nodes = [
        node_of(f"gpu-{n:02}", *(card(i, 94, uuid=f"S{n}-{i}") for i in range(3)))
        for n in range(12)
    ]
    nodes += [
        node_of(f"gpu-a100-{n}", *(card(i, 160, uuid=f"L{n}-{i}") for i in range(4)))
        for n in (1, 2)
    ]
    last = node_of("gpu-tainted", card(0, 160, uuid="T0"), card(1, 160, uuid="T1"))
    last["spec"]["taints"] = [{"key": "team", "effect": "NoExecute"}]
    pods = [
        held(f"nlp-{n}-{i}", f"L{n}-{i}", 70 + 20 * n + i, node=f"gpu-a100-{n}")
        for n in (1, 2)
        for i in range(4)
    ]
    return cluster_state([*nodes, last], [*pods, asking("big", units, cores)])


SCENES: Mapping[str, Callable[[], ClusterState]] = {
    name: scene
    for name, scene in list(globals().items())
    if getattr(scene, "__annotations__", {}) == {"return": ClusterState}
}
"""All functions here that make a state of nothing."""
