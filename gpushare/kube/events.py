"""Events about pods, as ``kubectl describe pod`` shows them. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime

from gpushare.kube.cluster import Json, Target


def pod_event(
    pod: Target,
    kind: str,
    reason: str,
    message: str,
    source: Mapping[str, str],
    at: datetime,
) -> Json:
    """Write an event about a pod; ``source`` is shown under From."""
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
        "source": {name: text for name, text in source.items() if text},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
