"""How the peers' cases about devices are run on the plugin's admission."""

from collections import Counter
from typing import Any

from deviceplugin.allocation.preferred import DeniedError
from deviceplugin.cards.devices import Cards
from deviceplugin.pods import NodePod
from gpushare.domain.model import Amount, Card, Placement, PodRequest, Share
from gpushare.kube import names
from gpushare.kube.cluster import Json
from tests.builders import card, container_json, pod_json
from tests.deviceplugin.desk import Desk
from tests.deviceplugin.house import NODE

UNITS_WHERE_NONE_ARE_GIVEN = 16
Outcome = dict[str, Any]


def desk_of(case: Json) -> Desk:
    """The case's cards, with numbers for names where it gives their count."""
    units = case["answer"].get("units", UNITS_WHERE_NONE_ARE_GIVEN)
    nodes = case.get("nodes") or [{"cards": 2}]
    return Desk(*(card(i, units, uuid=str(i)) for i in range(nodes[0]["cards"])))


def body_of(name: str, asked: list[Json]) -> Json:
    containers = [
        container_json(f"c{i}", one.get("mem"), one.get("core"))
        for i, one in enumerate(asked)
    ]
    return pod_json(name, containers=containers)


def bind(desk: Desk, name: str, asked: list[Json], on: object = None) -> NodePod:
    """Bind a pod, planned on one card where the case says on which."""
    pod = desk.bind(body_of(name, asked))
    if on is None:
        return pod
    request = pod.record.request
    assert isinstance(request, PodRequest)
    (claim,) = request.claims
    chosen: Card = desk.cards.all[int(str(on))]
    share = Share(chosen.uuid, claim.amount, claim.containers)
    return desk.bind(body_of(name, asked), Placement(pod.ref, NODE, (share,)))


def shown(desk: Desk, pod: NodePod, asked: list[Json], **how: Any) -> list[Any]:
    found = desk.admit(pod, **how)
    return [found.get(f"c{i}", []) for i in range(len(asked))]


def run_again(case: Json) -> Outcome:
    """kubelet asks again, since it ended before it had written down the answer."""
    desk = desk_of(case)
    steps = []
    for step in case["steps"]:
        pod = bind(desk, step["pod"], step["request"])
        desk.forget(pod)
        steps.append(shown(desk, pod, step["request"]))
    sums = sum((Amount(*pair) for pair in desk.charged().values()), Amount())
    return {"steps": steps, "charged": [sums.cores, sums.units]}


def run_pending(case: Json) -> Outcome:
    """Pods that wait for kubelet, which takes them in the order of the case."""
    desk = desk_of(case)
    asked = {
        one["pod"]: [{key: one.get(key) for key in ("mem", "core")}]
        for one in case["pending_pods"]
    }
    pods = {
        one["pod"]: bind(desk, one["pod"], asked[one["pod"]], one["card"])
        for one in case["pending_pods"]
    }
    order = case.get("kubelet_order") or [case["kubelet_request"]["for"]]
    first = (names.CORE, names.MEMORY)
    cards = {name: shown(desk, pods[name], asked[name], order=first) for name in order}
    held = {
        name: desk.occupancy.placement(pod, desk.listed(), desk.cards)
        for name, pod in pods.items()
    }
    as_planned = all(one == pods[name].placement for name, one in held.items())
    return {"allocated": cards, "actual_equals_annotation": as_planned}


def run_containers(case: Json) -> Outcome:
    """One pod, container by container."""
    desk = desk_of(case)
    asked = case["pod"]["containers"]
    pod = bind(desk, "pod", asked, case["pod"]["card"])
    return {"allocated": shown(desk, pod, asked)}


def run_preferred(case: Json) -> Outcome:
    """A pod that nobody planned asks for so many units of the cards given."""
    gpus = case["answer"].get("gpus") or case["gpus"]
    cards = [card(i, units, uuid=name) for i, (name, units) in enumerate(gpus.items())]
    desk = Desk(*cards)
    pod = desk.bind(body_of("pod", [{"mem": case["size"]}]))
    desk.active[pod.name] = pod
    try:
        chosen = desk.choose(names.MEMORY, case["size"], set())
    except DeniedError as error:
        return {"error": True, "text": str(error)}
    counted: Counter[str] = Counter()
    for uuid, count in Cards(cards).count(chosen).items():
        counted[str(uuid)] = count
    return {"per_gpu": dict(counted), "distinct_gpus": len(counted)}
