"""The test bed itself: real binaries, a scheduler, controllers, a stand-in kubelet."""

import json
import signal
import subprocess

import pytest

from tests.testbed.binaries import Binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.kubelet import StandInKubelet
from tests.testbed.objects import (
    MEMORY,
    deployment,
    events_of,
    pod,
    pod_spec,
    post_node,
    post_pod,
    read_pod,
)
from tests.testbed.rest import Json, Rest
from tests.testbed.scheduler import SchedulerSettings
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

GRACEFUL = {"terminationGracePeriodSeconds": 30}


def phases(rest: Rest, namespace: str) -> list[str]:
    pods = rest.items(f"/api/v1/namespaces/{namespace}/pods")
    return [found["status"]["phase"] for found in pods]


def bound(rest: Rest, a_pod: Json, timeout_s: float = 30) -> str:
    what = f"node for {a_pod['metadata']['name']}"
    look = wait_until(
        lambda: read_pod(rest, a_pod),
        what,
        timeout_s,
        accept=lambda seen: bool(seen["spec"].get("nodeName")),
    )
    return str(look["spec"]["nodeName"])


def test_apiserver_tells_its_version(control_plane: ControlPlane) -> None:
    """The binary is the one that go.mod asks for, stamped with its version."""
    version = control_plane.rest.must("GET", "/version")
    assert version["gitVersion"].startswith("v1.36.")


def test_scheduler_binds_to_posted_nodes(
    clean_plane: ControlPlane, namespace: str
) -> None:
    """Extended resources count: what is too big for every node stays, with a reason."""
    rest = clean_plane.rest
    post_node(rest, "small", units=4, cores=100)
    post_node(rest, "large", units=64, cores=200)
    fits = post_pod(rest, pod("fits", namespace, units=60, cores=10))
    too_big = post_pod(rest, pod("too-big", namespace, units=65))
    with clean_plane.start_scheduler():
        assert bound(rest, fits) == "large"
        events = wait_until(lambda: events_of(rest, too_big), "event")
    assert events[0]["reason"] == "FailedScheduling"
    assert f"Insufficient {MEMORY}" in events[0]["message"]


def test_two_schedulers_share_one_lease(
    clean_plane: ControlPlane, namespace: str
) -> None:
    """With leader election a second scheduler goes on where the first was killed."""
    rest = clean_plane.rest
    post_node(rest, "node")
    quick = SchedulerSettings(
        leader_elect=True,
        # A busy machine would make the first one lose a shorter lease, and so end.
        lease_duration_s=12.0,
        renew_deadline_s=9.0,
        retry_period_s=0.5,
    )
    with clean_plane.start_scheduler("first", settings=quick) as first:
        assert bound(rest, post_pod(rest, pod("one", namespace))) == "node"
        with clean_plane.start_scheduler("second", settings=quick) as second:
            first.kill()
            two = post_pod(rest, pod("two", namespace))
            assert bound(rest, two, timeout_s=60) == "node"
            assert "scheduler_pending_pods" in second.metrics()


def test_extender_that_is_away_stops_the_pod(
    clean_plane: ControlPlane, namespace: str
) -> None:
    """The extender's entry is loaded: only pods with our resources need it."""
    rest = clean_plane.rest
    post_node(rest, "node", units=16, cores=100)
    url = "http://127.0.0.1:9/scheduler"
    with clean_plane.start_scheduler("extended", extender_url=url):
        plain = post_pod(rest, pod("plain", namespace))
        shared = post_pod(rest, pod("shared", namespace, units=1))
        assert bound(rest, plain) == "node"
        events = wait_until(lambda: events_of(rest, shared), "event")
    assert f"{url}/filter" in events[0]["message"]


def test_deployment_runs_and_ends(clean_plane: ControlPlane, namespace: str) -> None:
    """Controllers, scheduler and the stand-in kubelet make and remove its pods."""
    rest = clean_plane.rest
    post_node(rest, "node")
    wanted = deployment("web", namespace, 3, pod_spec())
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    with (
        clean_plane.start_controller_manager(),
        clean_plane.start_scheduler(),
        StandInKubelet(rest),
    ):
        rest.must("POST", path, wanted)
        wait_until(
            lambda: rest.must("GET", f"{path}/web")["status"].get("readyReplicas", 0),
            "three ready replicas",
            accept=lambda ready: ready == 3,
        )
        assert phases(rest, namespace) == ["Running"] * 3
        rest.must("DELETE", f"{path}/web")
        wait_until(lambda: not phases(rest, namespace), "end of the pods")


def test_kubelet_holds_a_terminating_pod(
    clean_plane: ControlPlane, namespace: str
) -> None:
    """A held pod stays Terminating after its deletion until it is let go."""
    rest = clean_plane.rest
    here = {"nodeName": "anywhere", **GRACEFUL}
    held = post_pod(rest, pod("held", namespace, spec=here))
    other = post_pod(rest, pod("other", namespace, spec=here))
    path = f"/api/v1/namespaces/{namespace}/pods"
    with StandInKubelet(rest) as kubelet:
        wait_until(lambda: phases(rest, namespace) == ["Running"] * 2, "running pods")
        kubelet.hold("held", namespace)
        rest.must("DELETE", f"{path}/held")
        rest.must("DELETE", f"{path}/other")
        wait_until(lambda: not read_pod(rest, other), "end of the other")
        assert "deletionTimestamp" in read_pod(rest, held)["metadata"]
        kubelet.release("held", namespace)
        wait_until(lambda: not read_pod(rest, held), "end of the held")


def test_apiserver_restart_keeps_data(
    clean_plane: ControlPlane, namespace: str
) -> None:
    """Stopped in order or killed, it comes back on its port; the kubelet goes on."""
    rest = clean_plane.rest
    post_node(rest, "kept")
    with StandInKubelet(rest):
        clean_plane.stop_apiserver()
        with pytest.raises(OSError, match="refused"):
            rest.get("/readyz")
        clean_plane.start_apiserver()
        clean_plane.kill("kube-apiserver", signal.SIGKILL)
        clean_plane.start_apiserver()
        assert [found["metadata"]["name"] for found in rest.items("/api/v1/nodes")] == [
            "kept"
        ]
        post_pod(rest, pod("late", namespace, spec={"nodeName": "kept"}))
        wait_until(lambda: phases(rest, namespace) == ["Running"], "running pod")


def test_audit_counts_a_users_writes(clean_plane: ControlPlane, namespace: str) -> None:
    """Each user's writes can be counted from a mark on, refused ones included."""
    rest = clean_plane.rest
    token = service_account_token(rest, namespace, "robot")
    user = f"system:serviceaccount:{namespace}:robot"
    robot = clean_plane.rest_as(token)
    mark = clean_plane.audit.mark()
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    assert robot.post(path, {"metadata": {"name": "one"}})[0] == 403
    verbs = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}
    grant(rest, user, [verbs])
    made = wait_until(
        lambda: robot.post(path, {"metadata": {"name": "one"}})[0],
        "permission",
        accept=lambda status: status != 403,
    )
    assert made == 201
    assert clean_plane.audit.writes(user, mark)["create configmaps"] >= 2


def test_kubectl_reads_nodes(clean_plane: ControlPlane, binaries: Binaries) -> None:
    """The kubeconfig works for real clients."""
    post_node(clean_plane.rest, "seen-by-kubectl", units=64)
    config = clean_plane.kubeconfig(clean_plane.admin.token, "kubectl")
    command = [binaries.path("kubectl"), "--kubeconfig", str(config), "get", "nodes"]
    answer = subprocess.check_output([*command, "--output=json"])
    (node,) = json.loads(answer)["items"]
    assert node["metadata"]["name"] == "seen-by-kubectl"
    assert node["status"]["allocatable"][MEMORY] == "64"
    assert b"Ready" in subprocess.check_output(command)
