"""Empty a control plane between tests."""

import secrets

from tests.testbed.rest import Json, Rest
from tests.testbed.waiting import wait_until

NAMESPACES = "/api/v1/namespaces"
KINDS = (
    ("apis/apps/v1", "deployments"),
    ("apis/apps/v1", "replicasets"),
    ("apis/policy/v1", "poddisruptionbudgets"),
    ("api/v1", "pods"),
)
AT_ONCE: Json = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}


def new_namespace(rest: Rest) -> str:
    """Make a namespace that no other test uses."""
    name = f"test-{secrets.token_hex(4)}"
    rest.must("POST", NAMESPACES, {"metadata": {"name": name}})
    return name


def sweep(rest: Rest) -> None:
    """Remove every Deployment, disruption budget, pod and node, and our namespaces."""
    spaces = [space["metadata"]["name"] for space in rest.items(NAMESPACES)]
    wait_until(lambda: _pods_gone(rest, spaces), "control plane without pods")
    rest.must("DELETE", "/api/v1/nodes", AT_ONCE)
    for space in spaces:
        if space.startswith("test-"):
            _remove_namespace(rest, space)


def _pods_gone(rest: Rest, spaces: list[str]) -> bool:
    """Remove all there is; true when no controller has made new pods meanwhile."""
    for space in spaces:
        for group, kind in KINDS:
            rest.must("DELETE", f"/{group}/namespaces/{space}/{kind}", AT_ONCE)
    left = [*rest.items("/api/v1/pods"), *rest.items("/apis/apps/v1/replicasets")]
    return not left


def _remove_namespace(rest: Rest, name: str) -> None:
    rest.must("DELETE", f"{NAMESPACES}/{name}")
    # What the namespace controller, which does not run here, would do at the end.
    finalized = {"metadata": {"name": name}, "spec": {"finalizers": []}}
    rest.put(f"{NAMESPACES}/{name}/finalize", finalized)
