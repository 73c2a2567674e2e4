"""Which pods may move, to which nodes, and what is known of the nodes' room."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.domain.eviction.movable import Movable
from gpushare.domain.model import NodeName, Placement
from gpushare.kube import codec, names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Kind, PodTarget
from gpusharectl.make_room.situation import RoomDemand, read_inputs
from tests.builders import AT, share
from tests.gpusharectl.make_room.small_cluster import SmallCluster, split_cluster
from tests.gpusharectl.make_room.test_evict import asked


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with split_cluster(tmp_path) as found:
        yield found


def movable(cluster: SmallCluster, name: str) -> Movable:
    inputs = read_inputs(cluster.access, asked(cluster), ())
    movables = inputs.situation.movable.values()
    (named,) = (pod for pod in movables if pod.request.pod.name == name)
    return named


def test_pods_stay_by_what_they_are(cluster: SmallCluster) -> None:
    """Each for a reason that the answer counts."""
    body = cluster.get("big")
    asks = RoomDemand(asked(cluster).request, body)
    mark = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    cluster.place("job", "n2", "C", 1)
    cluster.annotate("other", mark)
    cluster.budget("five", 1)
    cluster.budget("five", 1, name="second")
    cluster.leave("ten")
    cluster.place("node", "n2", "C", 1)
    cluster.place("wide", "n2", "C", 1)
    ref = codec.read_pod_ref(cluster.get("wide"))
    both = Placement(ref, NodeName("n2"), (share("C", 1, 1), share("D", 1, 1)))
    cluster.annotate("wide", {names.PLACEMENT: encode_placement(both, AT)})
    cluster.place("drawn", "n2", "C", 1, resourceClaims=[{"name": "c"}])
    lost = cluster.pod("lost", 1)
    cluster.api.bind(PodTarget("default", "lost", lost["metadata"]["uid"]), "n2", {})
    view = read_inputs(cluster.access, asks, ())
    assert dict(view.stay) == {
        "without a controller": 1,
        "of DaemonSets": 1,
        "of Jobs": 1,
        "with cluster-autoscaler.kubernetes.io/safe-to-evict=false": 1,
        "under several PodDisruptionBudgets": 1,
        "in termination": 1,
        "that are static": 1,
        "with several cards": 1,
        "with ResourceClaims": 1,
        "of unknown card": 1,
    }
    assert not view.situation.movable
    allowed = read_inputs(cluster.access, asks, ("jobs", "daemonsets"))
    assert len(allowed.situation.movable) == 2


TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("node", "spec", "may"),
    [
        pytest.param({}, {}, True, id="open"),
        pytest.param({"spec": {"taints": [TAINT]}}, {}, False, id="taint"),
        pytest.param({}, {"nodeSelector": {"zone": "a"}}, False, id="selector"),
        pytest.param(
            {"status": {"allocatable": {"pods": "1"}}}, {}, False, id="too-many-pods"
        ),
        pytest.param(
            {"status": {"allocatable": {"pods": "2"}}}, {}, True, id="one-pod-more"
        ),
    ],
)
def test_a_new_pod_goes_where_kube_scheduler_lets_it(
    cluster: SmallCluster, node: dict[str, Any], spec: dict[str, Any], may: bool
) -> None:
    """The waiting pod, too. On n2 is one pod."""
    cluster.place("free", "n1", "B", 1, **spec)
    for part in node:
        cluster.api.patch(
            Kind.NODES, "", "n2", node, subresource="status" if part == "status" else ""
        )
    assert movable(cluster, "free").may_use(NodeName("n2")) is may
    asks = RoomDemand(asked(cluster).request, cluster.get("free"))
    view = read_inputs(cluster.access, asks, ())
    assert view.situation.may_use(NodeName("n2")) is may


def test_the_new_pod_of_a_stateful_set_is_made_last(cluster: SmallCluster) -> None:
    """It has the same name, so the old one has to be gone."""
    cluster.place("sts", "n1", "B", 1)
    assert movable(cluster, "sts").after_end
    assert not movable(cluster, "ten").after_end


def test_cpu_of_all_pods_is_held(cluster: SmallCluster) -> None:
    """Of those without cards, too."""
    asks = {"name": "c", "resources": {"requests": {"cpu": "3"}}}
    body = cluster.pod("plain", 0, containers=[asks])
    target = PodTarget("default", "plain", body["metadata"]["uid"])
    cluster.api.bind(target, "n1", {})
    view = read_inputs(cluster.access, asked(cluster), ())
    room = view.situation.facts.hosts.free(NodeName("n1"))
    assert room is not None
    assert room.cpu_milli == 5000


HARD = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        pytest.param({}, "", id="none"),
        pytest.param(
            {"affinity": {"podAffinity": {HARD: [{}]}}},
            "required podAffinity",
            id="affinity",
        ),
        pytest.param(
            {"affinity": {"podAntiAffinity": {HARD: [{}]}}},
            "required podAntiAffinity",
            id="anti-affinity",
        ),
        pytest.param(
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
            "topologySpreadConstraints",
            id="spreading",
        ),
        pytest.param(
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
            "",
            id="soft",
        ),
    ],
)
def test_a_rule_about_other_pods_keeps_a_pod_on_its_node(
    cluster: SmallCluster, rule: dict[str, Any], named: str
) -> None:
    """Elsewhere it may have no place; and of the waiting pod the rule is told."""
    cluster.place("ruled", "n2", "C", 1, **rule)
    view = read_inputs(
        cluster.access, RoomDemand(asked(cluster).request, cluster.get("ruled")), ()
    )
    (may_use,) = (
        one.may_use
        for one in view.situation.movable.values()
        if one.request.pod.name == "ruled"
    )
    assert (may_use(NodeName("n1")), may_use(NodeName("n2"))) == (not named, True)
    assert view.not_judged == named
    told = [text for text in view.guesses if f"The waiting pod has {named}." in text]
    assert len(told) == bool(named)


def test_a_pod_with_a_port_of_the_host_stays_on_its_node(cluster: SmallCluster) -> None:
    """Another node may have given the port to another pod."""
    body = cluster.get("big")
    body["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    view = read_inputs(cluster.access, RoomDemand(asked(cluster).request, body), ())
    assert view.not_judged == "host ports"
