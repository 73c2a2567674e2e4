"""The test bed itself: what a stand-in kubelet does, and what the audit counts."""

import pytest

from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.kubelet import StandInKubelet
from tests.testbed.objects import pod, post_pod, read_pod
from tests.testbed.rest import Rest
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

GRACEFUL = {"terminationGracePeriodSeconds": 30}


def phases(rest: Rest, namespace: str) -> list[str]:
    pods = rest.items(f"/api/v1/namespaces/{namespace}/pods")
    return [found["status"]["phase"] for found in pods]


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
