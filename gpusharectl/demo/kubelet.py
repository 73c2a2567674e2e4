"""Stand in for kubelet: nodes, bound pods that start to run, deleted pods that end.

Devices come from a real device plugin over kubelet's gRPC interfaces (``devices``). No
container is ever made.
"""

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock

from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind, Target
from gpushare.kube.errors import ClusterError, Conflict, NotFound
from gpushare.kube.facts import TERMINAL
from gpusharectl.demo.devices import (
    CannotStartYetError,
    ContainerConfig,
    Devices,
    Rejection,
)

Amounts = Mapping[str, int]
_OWN = {"cpu": "8", "memory": "32Gi", "pods": "110"}
_CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


def node_body(name: str) -> Json:
    """Return a node before its device plugin has registered."""
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
    """Return the node's status with its devices."""
    told = {"capacity": capacity, "allocatable": allocatable}
    return {
        key: _OWN | {resource: str(count) for resource, count in counts.items()}
        for key, counts in told.items()
    }


def rejected(rejection: Rejection) -> Json:
    """Return the status of a pod that kubelet will not run."""
    return {
        "phase": "Failed",
        "reason": rejection.reason,
        "message": rejection.message,
        "startTime": _now(),
    }


def running(pod: Json) -> Json:
    """Return the status of a pod whose containers all run."""
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
    """Return the status of a pod of which some containers may not start yet.

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


AGAIN_AFTER_S = 1.0
"""Seconds until a container that could not start is tried again; kubelet's are more."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a pod: its new status and the warning event.

    ``reason`` and ``message`` are the event's, both empty if nothing is wrong.
    """

    status: Json
    reason: str = ""
    message: str = ""


class PodLife:
    """A bound pod from admission to its end; ``over`` when there is no next step."""

    def __init__(self, devices: Devices, pod: Json) -> None:
        self.given: dict[str, ContainerConfig] = {}
        self.over = False
        self._devices = devices
        self._pod = pod
        self._admitted = False
        self._not_before = 0.0
        self._complaints: dict[str, str] = {}

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return str(self._pod["metadata"]["uid"])

    def step(self) -> Step | None:
        """Admit the pod, then start what may start; None when nothing is new."""
        if self.over or time.monotonic() < self._not_before:
            return None
        if not self._admitted:
            admitted = self._admit()
            if isinstance(admitted, Rejection):
                self.over = True
                return Step(rejected(admitted), admitted.reason, admitted.because)
            self._admitted = True
        complaints = self._start_all()
        if not complaints:
            self.over = True
            return Step(running(self._pod))
        self._not_before = time.monotonic() + AGAIN_AFTER_S
        if complaints == self._complaints:
            return None
        self._complaints = complaints
        message = "Error: " + "; ".join(complaints.values())
        return Step(waiting(self._pod, self.given, complaints), "Failed", message)

    def end(self) -> None:
        """Release the pod's devices."""
        self.over = True
        self._devices.release(self.uid)

    def _admit(self) -> Mapping[str, ContainerConfig] | Rejection:
        try:
            return self._devices.admit(self._pod)
        except ValueError as error:
            # A real API server would not have stored such a pod.
            return Rejection("InvalidPod", str(error))

    def _start_all(self) -> dict[str, str]:
        """Start what does not run; return the plugin's refusals by container.

        An init container that may not start keeps all others waiting.
        """
        spec = self._pod["spec"]
        for one in spec.get("initContainers") or []:
            if complaint := self._start(one["name"]):
                return {one["name"]: complaint}
        names = [one["name"] for one in spec["containers"]]
        said = {name: self._start(name) for name in names}
        return {name: complaint for name, complaint in said.items() if complaint}

    def _start(self, container: str) -> str:
        if container in self.given:
            return ""
        try:
            self.given[container] = self._devices.start(self.uid, container)
        except CannotStartYetError as error:
            return str(error)
        return ""


_EVERY_S = 0.05


@dataclass
class _Node:
    devices: Devices
    lives: dict[str, PodLife] = field(default_factory=dict)
    told: Json = field(default_factory=dict)


class StandInKubelet:
    """Acts for every node of a cluster in memory; each gets a folder in ``folder``.

    A deleted pod stays Terminating while it is held, like one whose program takes its
    time to end.
    """

    def __init__(self, cluster: Embedded, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._lock = Lock()
        self._nodes: dict[str, _Node] = {}
        self._held: set[str] = set()

    def run(self, stop: Event) -> None:
        """Handle all nodes and their pods until ``stop`` is set."""
        while not stop.wait(_EVERY_S):
            with self._lock:
                for name, node in self._nodes.items():
                    self._tell(name, node)
                    self._look_after(name, node)

    def folder_of(self, name: str) -> Path:
        """Return the folder of a node's kubelet."""
        return self._folder / name

    def join(self, name: str) -> None:
        """Add a node; it has no devices until a plugin registers."""
        devices = Devices(self.folder_of(name))
        with self._lock:
            self._nodes[name] = _Node(devices)
            devices.open()
            self._cluster.create(Kind.NODES, node_body(name))

    def leave(self, name: str) -> None:
        """Remove a node."""
        with self._lock:
            node = self._nodes.pop(name)
            with suppress(NotFound):
                self._cluster.delete(Kind.NODES, "", name)
        node.devices.close()

    def close(self) -> None:
        """Close the connections to all device plugins; the nodes stay as they are."""
        with self._lock:
            nodes = list(self._nodes.values())
            self._nodes.clear()
        for node in nodes:
            node.devices.close()

    def hold(self, name: str) -> None:
        """Let this pod take its time to end."""
        with self._lock:
            self._held.add(name)

    def release(self, name: str) -> None:
        """Let this pod end now."""
        with self._lock:
            self._held.discard(name)

    def given(self, uid: str) -> Mapping[str, ContainerConfig]:
        """Return what each started container of a pod was given."""
        with self._lock:
            for node in self._nodes.values():
                if uid in node.lives:
                    return dict(node.lives[uid].given)
        return {}

    def _tell(self, name: str, node: _Node) -> None:
        """Write the node's devices into its status if they changed."""
        told = amounts(node.devices.capacity(), node.devices.allocatable())
        if told != node.told:
            with suppress(NotFound):
                body = {"status": told}
                self._cluster.patch(Kind.NODES, "", name, body, subresource="status")
                node.told = told

    def _look_after(self, name: str, node: _Node) -> None:
        selector = f"spec.nodeName={name}"
        page = self._cluster.list_page(Kind.PODS, limit=0, field_selector=selector)
        there = {pod["metadata"]["uid"] for pod in page.items}
        for uid in node.lives.keys() - there:
            node.lives.pop(uid).end()
        for pod in sorted(page.items, key=_order):
            # It changed since it was listed; the next round sees how.
            with suppress(NotFound, Conflict):
                self._advance(node, pod)

    def _advance(self, node: _Node, pod: Json) -> None:
        metadata = pod["metadata"]
        uid, life = metadata["uid"], node.lives.get(metadata["uid"])
        if pod["status"]["phase"] in TERMINAL and life:
            life.end()
        if "deletionTimestamp" in metadata:
            if metadata["name"] not in self._held:
                self._end(pod, life)
        elif pod["status"]["phase"] == "Pending":
            life = node.lives.setdefault(uid, PodLife(node.devices, pod))
            self._step(pod, life)

    def _end(self, pod: Json, life: PodLife | None) -> None:
        metadata = pod["metadata"]
        if life:
            life.end()
        where = (metadata["namespace"], metadata["name"])
        self._cluster.delete(Kind.PODS, *where, grace_period_s=0, uid=metadata["uid"])

    def _step(self, pod: Json, life: PodLife) -> None:
        step = life.step()
        if step is None:
            return
        metadata = pod["metadata"]
        where = (metadata["namespace"], metadata["name"])
        patch = {"metadata": {"uid": metadata["uid"]}, "status": step.status}
        self._cluster.patch(Kind.PODS, *where, patch, subresource="status")
        if step.reason:
            self._warn(pod, step.reason, step.message)

    def _warn(self, pod: Json, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        target = Target(metadata["namespace"], metadata["name"], metadata["uid"])
        with suppress(ClusterError):
            self._cluster.event(
                target,
                kind="Warning",
                reason=reason,
                message=message,
                component="kubelet",
            )


def _order(pod: Json) -> tuple[str, int]:
    """Sort as kubelet does: by creation, in seconds, then by arrival."""
    metadata = pod["metadata"]
    return metadata["creationTimestamp"], int(metadata["resourceVersion"])
