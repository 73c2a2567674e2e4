"""The test bed itself: what the audit counts, and the extender in Go."""

import json

import pytest

from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.goextender import GoExtender
from tests.testbed.objects import pod, pod_path, post_node, post_pod
from tests.testbed.scheduler import SchedulerSettings
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane


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


def test_audit_tells_of_a_watch_once(clean_plane: ControlPlane, namespace: str) -> None:
    """As it begins; of one that ends, no second time."""
    mark = clean_plane.audit.mark()
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    at_most = "fieldSelector=metadata.name=none&timeoutSeconds=1"
    clean_plane.rest.get(f"{path}?watch=true&{at_most}")
    clean_plane.rest.get(f"{path}/none")
    asked = wait_until(
        lambda: [
            (call.verb, call.status)
            for call in clean_plane.audit.calls(mark)
            if (call.namespace, call.resource) == (namespace, "configmaps")
        ],
        "the later call",
        accept=lambda calls: ("get", 404) in calls,
    )
    assert asked == [("watch", 200), ("get", 404)]


def test_go_extender_does_what_kube_scheduler_asks(
    clean_plane: ControlPlane, namespace: str, go_extender_program: str
) -> None:
    """All names, zeros, and one Binding with the placement's annotation: its own."""
    rest, names = clean_plane.rest, ["a", "b"]
    for name in names:
        post_node(rest, name, units=94, cores=100)
    admin = clean_plane.admin
    config = clean_plane.kubeconfig(admin.token, "go", insecure=False)
    mark = clean_plane.audit.mark()
    asked = {"Pod": pod("asking", namespace), "Nodes": None, "NodeNames": names}
    settings = SchedulerSettings(extender={"preemptVerb": ""})
    with GoExtender(go_extender_program, clean_plane.launcher, "go", config) as go:
        kept = go.rest.must("POST", "/scheduler/filter", asked)
        scores = go.rest.must("POST", "/scheduler/prioritize", asked)
        with clean_plane.start_scheduler(
            "beside-go", extender_url=go.url, settings=settings
        ):
            made = post_pod(rest, pod("one", namespace, units=20, cores=10))
            bound = wait_until(
                lambda: rest.must("GET", pod_path(made)),
                "a pod bound through the extender in Go",
                accept=lambda seen: "nodeName" in seen["spec"],
            )
        late = go.rest.must(
            "POST",
            "/scheduler/bind",
            {
                "PodName": "one",
                "PodNamespace": namespace,
                "PodUID": made["metadata"]["uid"],
                "Node": "a",
            },
        )
    nothing = {"FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""}
    assert kept == {"Nodes": None, "NodeNames": names, **nothing}
    assert scores == {"text": [{"Host": name, "Score": 0} for name in names]}
    text = bound["metadata"]["annotations"]["baidu.com/vcuda-placement"]
    assert json.loads(text)["uid"] == made["metadata"]["uid"]
    calls = clean_plane.audit.calls(mark)
    binds = [(c.user, c.status) for c in calls if c.resource == "pods/binding"]
    assert binds == [(admin.name, 201), (admin.name, 409)]
    assert "409" in late["Error"]
