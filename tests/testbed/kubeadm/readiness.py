"""Signs of life of nodes, as the API server knows them."""

from tests.testbed.rest import Rest


def ready(rest: Rest, node: str, not_since: str | None = None) -> bool:
    """Say whether the node is ready, and was heard of after that sign of life."""
    try:
        heard = not_since is None or last_heard(rest, node) != not_since
        status, answer = rest.get(f"/api/v1/nodes/{node}")
    except OSError:
        # The API server is on its way as well.
        return False
    conditions = answer["status"].get("conditions", []) if status == 200 else []
    return heard and any(
        each["type"] == "Ready" and each["status"] == "True" for each in conditions
    )


def last_heard(rest: Rest, node: str) -> str | None:
    """Give the kubelet's last sign of life, if it ever gave one."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}"
    status, lease = rest.get(path)
    return str(lease["spec"]["renewTime"]) if status == 200 else None
