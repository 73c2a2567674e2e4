"""Events about pods, as ``kubectl describe pod`` shows them. Pure."""

from datetime import UTC, datetime

from gpushare.kube.cluster import Json, Target


def pod_event(
    pod: Target, kind: str, reason: str, message: str, component: str, at: datetime
) -> Json:
    """Write an event about a pod; ``component`` is shown under From."""
    now = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{pod.name}.", "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
