"""Clusters of several namespaces, with the quotas that an administrator gave them."""

from collections.abc import Mapping
from dataclasses import replace

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.state.read import Picture
from tests.builders import card
from tests.gpusharectl.pictures import node_of, picture
from tests.gpusharectl.scenes import A, B, asking, held

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


def tenants() -> Picture:
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
    return replace(picture(nodes, pods), quotas=quotas)


def bitfusion() -> Picture:
    """Seed 004's: a pod of half a card, with its old resource kept for the quota."""
    offered = {names.MEMORY: 59, names.CORE: 100, names.BITFUSION_GPU: 100}
    nodes = [node_of("n", card(0, 59, uuid=A), offered=offered)]
    pods = [in_namespace(held("bf-pkgs", A, 29, 50, node="n"), "default")]
    told = quota("default", "gpu", hard={BITFUSION: "100"}, used={BITFUSION: "50"})
    return replace(picture(nodes, pods), quotas=(told,))


def unread() -> Picture:
    """Whoever looks may not list quotas."""
    return replace(tenants(), quotas=None)


def many() -> Picture:
    """More namespaces than a screen names, one of a very long name."""
    quotas = [quota(f"team-{n:02}", hard={CORE: "100"}, used={}) for n in range(12)]
    quotas += [quota("a" * 63, hard={CORE: "10000000"}, used={CORE: "9999999"})]
    return replace(picture([node_of("n", card(0, 59))]), quotas=tuple(quotas))
