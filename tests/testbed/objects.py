"""Nodes and pods as tests need them, what kubelet does to them, and their removal."""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.testbed.rest import Json, Rest
from tests.testbed.waiting import wait_until

MEMORY = "baidu.com/vcuda-memory"
CORE = "baidu.com/vcuda-core"


def node(
    name: str,
    *,
    cpu: str = "32",
    memory: str = "128Gi",
    pods: int = 110,
    units: int = 0,
    cores: int = 0,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Json:
    """Describe a Ready node; ``units`` and ``cores`` are its two GPU resources."""
    amounts = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    if units or cores:
        amounts |= {MEMORY: str(units), CORE: str(cores)}
    hostname = {"kubernetes.io/hostname": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**hostname, **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [_true("Ready")],
        },
    }


def post_node(rest: Rest, name: str, **given: Any) -> Json:
    """Add a Ready node that pods may be bound to, given as to ``node``."""
    return rest.must("POST", "/api/v1/nodes", node(name, **given))


def pod(
    name: str,
    namespace: str = "default",
    *,
    units: int = 0,
    cores: int = 0,
    cpu: str = "10m",
    spec: Json | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Json:
    """Describe a pod of one container; ``spec`` adds to or replaces its spec's keys."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {**pod_spec(units=units, cores=cores, cpu=cpu), **(spec or {})},
    }


def pod_spec(*, units: int = 0, cores: int = 0, cpu: str = "10m") -> Json:
    """Describe one container that asks for this much, also for a Deployment."""
    asked = {"cpu": cpu}
    if units:
        asked[MEMORY] = str(units)
    if cores:
        asked[CORE] = str(cores)
    return {
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "main",
                "image": "local.test/pause:1",
                "resources": {"requests": asked, "limits": asked},
            }
        ],
    }


def deployment(
    name: str, namespace: str, replicas: int, spec: Json, **strategy: str | int
) -> Json:
    labels = {"app": name}
    rolling = {"rollingUpdate": strategy} if strategy else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"type": "RollingUpdate", **rolling},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def post_pod(rest: Rest, manifest: Json) -> Json:
    namespace = manifest["metadata"]["namespace"]
    return rest.must("POST", f"/api/v1/namespaces/{namespace}/pods", manifest)


def pod_path(a_pod: Json) -> str:
    metadata = a_pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def read_pod(rest: Rest, a_pod: Json) -> Json:
    """Read the pod anew; an empty dict when it is gone or is another of that name."""
    status, answer = rest.get(pod_path(a_pod))
    wanted = a_pod["metadata"].get("uid")
    if status == 200 and wanted in {None, answer["metadata"]["uid"]}:
        return answer
    return {}


def set_running(rest: Rest, a_pod: Json, ip: str = "10.1.0.1") -> tuple[int, Json]:
    """Say, as kubelet does, that all containers run and are ready."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for container in a_pod["spec"]["containers"]
    ]
    ready = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    status = {
        "phase": "Running",
        "startTime": now,
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": [_true(condition) for condition in ready],
        "containerStatuses": containers,
    }
    return rest.patch(f"{pod_path(a_pod)}/status", {"status": status})


def finish_deletion(rest: Rest, a_pod: Json) -> tuple[int, Json]:
    options: Json = {"gracePeriodSeconds": 0}
    if uid := a_pod["metadata"].get("uid"):
        options["preconditions"] = {"uid": uid}
    return rest.delete(pod_path(a_pod), options)


def events_of(rest: Rest, a_pod: Json) -> list[Json]:
    """List what was reported about this pod, the oldest first.

    Both event kinds come in the old form: ``reason``, ``message``, ``type``, ``count``.
    """
    metadata = a_pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/events"
    chosen = f"involvedObject.name={metadata['name']}"
    if uid := metadata.get("uid"):
        chosen = f"{chosen},involvedObject.uid={uid}"
    events = rest.items(path, fieldSelector=chosen)
    return sorted(events, key=lambda event: event["metadata"]["creationTimestamp"])


def _true(condition: str) -> Json:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": condition,
        "status": "True",
        "reason": "Testbed",
        "message": "",
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }


NAMESPACES = "/api/v1/namespaces"
KINDS = (
    ("apis/apps/v1", "deployments"),
    ("apis/apps/v1", "replicasets"),
    ("apis/policy/v1", "poddisruptionbudgets"),
    ("api/v1", "pods"),
)
AT_ONCE: Json = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}


def new_namespace(rest: Rest) -> str:
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
