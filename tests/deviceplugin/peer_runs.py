"""How the peers' cases about devices are run on the plugin's admission."""

from collections import Counter
from typing import Any

from deviceplugin.allocation.device_chooser import DeniedError
from deviceplugin.cards.devices import Cards
from gpushare.domain.model import Amount, Card, Placement, PodRequest, Share
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kubelet.pods import NodePod
from tests.builders import card, container_json, pod_json
from tests.deviceplugin.admission_fixture import AdmissionFixture
from tests.deviceplugin.node_fixture import NODE

UNITS_WHERE_NONE_ARE_GIVEN = 16
Outcome = dict[str, Any]


def desk_of(case: Json) -> AdmissionFixture:
    """The case's cards, with numbers for names where it gives their count."""
    units = case["answer"].get("units", UNITS_WHERE_NONE_ARE_GIVEN)
    nodes = case.get("nodes") or [{"cards": 2}]
    return AdmissionFixture(
        *(card(i, units, uuid=str(i)) for i in range(nodes[0]["cards"]))
    )


def body_of(name: str, asked: list[Json]) -> Json:
    containers = [
        container_json(f"c{i}", container.get("mem"), container.get("core"))
        for i, container in enumerate(asked)
    ]
    return pod_json(name, containers=containers)


def bind(
    fixture: AdmissionFixture, name: str, asked: list[Json], on: object = None
) -> NodePod:
    """Bind a pod, planned on one card where the case says on which."""
    pod = fixture.bind(body_of(name, asked))
    if on is None:
        return pod
    request = pod.record.request
    assert isinstance(request, PodRequest)
    (claim,) = request.claims
    chosen: Card = fixture.cards.all[int(str(on))]
    share = Share(chosen.uuid, claim.amount, claim.containers)
    return fixture.bind(body_of(name, asked), Placement(pod.ref, NODE, (share,)))


def shown(
    fixture: AdmissionFixture, pod: NodePod, asked: list[Json], **how: Any
) -> list[Any]:
    found = fixture.admit(pod, **how)
    return [found.get(f"c{i}", []) for i in range(len(asked))]


def run_again(case: Json) -> Outcome:
    """kubelet asks again, since it ended before it had written down the answer."""
    fixture = desk_of(case)
    steps = []
    for step in case["steps"]:
        pod = bind(fixture, step["pod"], step["request"])
        fixture.forget(pod)
        steps.append(shown(fixture, pod, step["request"]))
    sums = sum((Amount(*pair) for pair in fixture.charged().values()), Amount())
    return {"steps": steps, "charged": [sums.cores, sums.units]}


def run_pending(case: Json) -> Outcome:
    """Pods that wait for kubelet, which takes them in the order of the case."""
    fixture = desk_of(case)
    asked = {
        pod["pod"]: [{key: pod.get(key) for key in ("mem", "core")}]
        for pod in case["pending_pods"]
    }
    pods = {
        pod["pod"]: bind(fixture, pod["pod"], asked[pod["pod"]], pod["card"])
        for pod in case["pending_pods"]
    }
    order = case.get("kubelet_order") or [case["kubelet_request"]["for"]]
    first = (names.CORE, names.MEMORY)
    cards = {
        name: shown(fixture, pods[name], asked[name], order=first) for name in order
    }
    held = {
        name: fixture.occupancy.placement(pod, fixture.listed(), fixture.cards)
        for name, pod in pods.items()
    }
    as_planned = all(given == pods[name].placement for name, given in held.items())
    return {"allocated": cards, "actual_equals_annotation": as_planned}


def run_containers(case: Json) -> Outcome:
    """One pod, container by container."""
    fixture = desk_of(case)
    asked = case["pod"]["containers"]
    pod = bind(fixture, "pod", asked, case["pod"]["card"])
    return {"allocated": shown(fixture, pod, asked)}


def run_preferred(case: Json) -> Outcome:
    """A pod that nobody planned asks for so many units of the cards given."""
    gpus = case["answer"].get("gpus") or case["gpus"]
    cards = [card(i, units, uuid=name) for i, (name, units) in enumerate(gpus.items())]
    fixture = AdmissionFixture(*cards)
    pod = fixture.bind(body_of("pod", [{"mem": case["size"]}]))
    fixture.active[pod.name] = pod
    try:
        chosen = fixture.choose(names.MEMORY, case["size"], set())
    except DeniedError as error:
        return {"error": True, "text": str(error)}
    counted: Counter[str] = Counter()
    for uuid, count in Cards(cards).count(chosen).items():
        counted[str(uuid)] = count
    return {"per_gpu": dict(counted), "distinct_gpus": len(counted)}
