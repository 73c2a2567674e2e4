"""What kubelet writes into nodes and pods. Pure but for the time of day."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.demo.devices import Rejection

Amounts = Mapping[str, int]
_OWN = {"cpu": "8", "memory": "32Gi", "pods": "110"}
_CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


def node_body(name: str) -> Json:
    """Give a node as it is before its device plugin has said anything."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, names.GPU_NODE_LABEL: "true"},
        },
        "spec": {},
        "status": {
            **amounts({}, {}),
            "conditions": [_condition("Ready")],
            "nodeInfo": {"kubeletVersion": "v1.36.0-demo"},
        },
    }


def amounts(capacity: Amounts, allocatable: Amounts) -> Json:
    """Give what a node has, its devices included, as its status tells it."""
    told = {"capacity": capacity, "allocatable": allocatable}
    return {
        key: _OWN | {resource: str(count) for resource, count in counts.items()}
        for key, counts in told.items()
    }


def rejected(rejection: Rejection) -> Json:
    """Give the status of a pod that kubelet will not run."""
    return {
        "phase": "Failed",
        "reason": rejection.reason,
        "message": rejection.message,
        "startTime": _now(),
    }


def running(pod: Json) -> Json:
    """Give the status of a pod whose containers all run."""
    inits = pod["spec"].get("initContainers") or []
    return {
        "phase": "Running",
        "startTime": _now(),
        "conditions": [_condition(kind) for kind in _CONDITIONS],
        "initContainerStatuses": [
            _runs(one) if one.get("restartPolicy") == "Always" else _done(one)
            for one in inits
        ],
        "containerStatuses": [_runs(one) for one in pod["spec"]["containers"]],
    }


def waiting(pod: Json, started: Collection[str], complaints: Mapping[str, str]) -> Json:
    """Give the status of a pod of which some containers may not start yet.

    ``complaints`` is what the device plugin said, by container.
    """
    told = {
        key: [
            _runs(one)
            if one["name"] in started
            else _waits(one, complaints.get(one["name"], ""))
            for one in pod["spec"].get(key) or []
        ]
        for key in ("initContainers", "containers")
    }
    return {
        "phase": "Pending",
        "initContainerStatuses": told["initContainers"],
        "containerStatuses": told["containers"],
    }


def _runs(container: Json) -> Json:
    state = {"running": {"startedAt": _now()}}
    return _status(container, state, ready=True, started=True)


def _done(container: Json) -> Json:
    ended = {"exitCode": 0, "reason": "Completed", "finishedAt": _now()}
    return _status(container, {"terminated": ended}, ready=True, started=False)


def _waits(container: Json, complaint: str) -> Json:
    waits = {"reason": "ContainerCreating"}
    if complaint:
        waits = {"reason": "CreateContainerConfigError", "message": complaint}
    return _status(container, {"waiting": waits}, ready=False, started=False)


def _status(container: Json, state: Json, *, ready: bool, started: bool) -> Json:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": ready,
        "started": started,
        "restartCount": 0,
        "state": state,
    }


def _condition(kind: str) -> Json:
    return {
        "type": kind,
        "status": "True",
        "reason": "Demo",
        "message": "",
        "lastTransitionTime": _now(),
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
