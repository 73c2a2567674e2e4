"""The test bed itself: what the audit counts."""

import pytest

from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
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
