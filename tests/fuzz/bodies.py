"""What kube-scheduler and the API server send: right bodies, which are then bent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.kube import names
from tests.builders import container_json, pod_json
from tests.testbed.rest import Json
from tests.webhook.webhook_client import asked

NODES = ("n-0", "n-1", "n-2", "n-3")
WAITING = 12


@dataclass(frozen=True)
class Target:
    """One address, and bodies that it would like."""

    path: str
    bodies: tuple[Json, ...]
    statuses: frozenset[int] = field(default=frozenset({200, 400}))


def pods(uids: Mapping[str, str]) -> list[Json]:
    """Pods of each kind; the API server has those that ``uids`` has, by that UID."""
    shares = [
        pod_json(name, uid=uid, units=4, cores=10, nominated="n-1")
        for name, uid in uids.items()
    ]
    apart = [container_json("a", 4, 10), container_json("b", 8, 20)]
    return [
        *shares[:4],
        pod_json("unknown", units=29),
        pod_json("whole", cores=200, units=3, priority=9),
        pod_json("apart", containers=apart, annotations={names.CONTAINERS: "apart"}),
        pod_json("init", units=2, cores=1, init=[container_json("i", 9, 9)]),
        pod_json("chosen", units=2, annotations={names.MODELS: "Tesla P4"}),
        pod_json("spread", units=2, annotations={names.POLICY: "spread"}),
        pod_json("plain"),
    ]


def scheduler_targets(uids: Mapping[str, str]) -> list[Target]:
    """Filter, prioritize, bind and preempt."""
    known = pods(uids)
    asks: list[Json] = [
        {"Pod": a_pod, "Nodes": None, "NodeNames": list(NODES)} for a_pod in known
    ]
    whole = {"items": [{"metadata": {"name": name}} for name in NODES]}
    asks.append({"Pod": known[0], "Nodes": whole, "NodeNames": None})
    binds: list[Json] = [
        {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}
        for name, uid in [*uids.items(), ("nobody", "uid-nobody")]
        for node in NODES[:2]
    ]
    meta = {"n-0": {"Pods": [{"UID": "uid-running"}], "NumPDBViolations": 0}}
    full = {"n-0": {"Pods": [pod_json("running", units=9, node="n-0")]}}
    preempts: list[Json] = [
        each
        for a_pod in known
        for each in (
            {"Pod": a_pod, "NodeNameToMetaVictims": meta},
            {"Pod": a_pod, "NodeNameToVictims": full},
        )
    ]
    return [
        Target("/scheduler/filter", tuple(asks)),
        Target("/scheduler/prioritize", tuple(asks)),
        Target("/scheduler/bind", tuple(binds)),
        Target("/scheduler/preempt", tuple(preempts)),
    ]


def webhook_targets() -> list[Target]:
    """Every path of the webhook, with pods for us and for Bitfusion."""
    limits = {"bitfusion.io/gpu-amount": "1", "bitfusion.io/gpu-percent": "50"}
    foreign = pod_json("foreign", annotations={"auto-management/bitfusion": "all"})
    foreign["spec"]["containers"][0] |= {
        "command": ["python a.py"],
        "resources": {"limits": limits, "requests": dict(limits)},
    }
    known = [*pods({}), foreign]
    new: tuple[Json, ...] = tuple(asked(a_pod) for a_pod in known)
    old = asked(
        known[0], operation="UPDATE", subResource="ephemeralcontainers", oldObject=None
    )
    paths = ("/mutate", "/mutate/bitfusion-all", "/mutate/dra", "/validate")
    return [Target(path, (*new, old)) for path in paths]
