"""Stand in for kubelet: nodes, bound pods that start to run, deleted pods that end.

Devices come from a real device plugin over kubelet's gRPC interfaces (``devices``). No
container is ever made.
"""

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock

from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind, PodTarget, timestamp
from gpushare.kube.errors import ClusterError, Conflict, NotFound
from gpushare.kube.facts import TERMINAL
from gpusharectl.demo.devices import (
    CannotStartYetError,
    ContainerConfig,
    Devices,
    Rejection,
)
from gpusharectl.demo.fakeapi.cluster import Embedded, utc_now
from gpusharectl.demo.kubectl import VERSION

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
            **device_amounts({}, {}),
            "conditions": [_condition("Ready")],
            "nodeInfo": {"kubeletVersion": VERSION + names.DEMO_BUILD},
        },
    }


def device_amounts(capacity: Amounts, allocatable: Amounts) -> Json:
    """Return the node's status with its devices."""
    counted = {"capacity": capacity, "allocatable": allocatable}
    return {
        key: _OWN | {resource: str(count) for resource, count in counts.items()}
        for key, counts in counted.items()
    }


def running_status(pod: Json) -> Json:
    """Return the status of a pod whose containers all run."""
    done = {"exitCode": 0, "reason": "Completed", "finishedAt": _now()}
    return {
        "phase": "Running",
        "startTime": _now(),
        "conditions": [_condition(kind) for kind in _CONDITIONS],
        "initContainerStatuses": [
            _runs(container)
            if container.get("restartPolicy") == "Always"
            else _status(container, "terminated", done)
            for container in pod["spec"].get("initContainers") or []
        ],
        "containerStatuses": [
            _runs(container) for container in pod["spec"]["containers"]
        ],
    }


def waiting_status(
    pod: Json, started: Collection[str], complaints: Mapping[str, str]
) -> Json:
    """Return the status of a pod of which some containers may not start yet.

    ``complaints`` is what the device plugin said, by container.
    """

    def status(container: Json) -> Json:
        name, waits = container["name"], {"reason": "ContainerCreating"}
        if name in complaints:
            message = complaints[name]
            waits = {"reason": "CreateContainerConfigError", "message": message}
        return (
            _runs(container)
            if name in started
            else _status(container, "waiting", waits)
        )

    inits, spec = pod["spec"].get("initContainers") or [], pod["spec"]
    return {
        "phase": "Pending",
        "initContainerStatuses": [status(container) for container in inits],
        "containerStatuses": [status(container) for container in spec["containers"]],
    }


def _runs(container: Json) -> Json:
    return _status(container, "running", {"startedAt": _now()})


def _status(container: Json, state: str, details: Json) -> Json:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": state != "waiting",
        "started": state == "running",
        "restartCount": 0,
        "state": {state: details},
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
    return timestamp(utc_now())


AGAIN_AFTER_S = 1.0
"""Seconds until a container that could not start is tried again; kubelet's are more."""


Change = tuple[Json, str, str]
"""A pod's new status, and reason and message of the warning; "" if nothing is wrong."""


class PodLife:
    """A bound pod from admission to its end; ``over`` when there is no next step."""

    def __init__(self, devices: Devices, pod: Json) -> None:
        self.given: dict[str, ContainerConfig] = {}
        self.over = False
        self._devices = devices
        self._pod = pod
        self._uid = str(pod["metadata"]["uid"])
        self._admitted = False
        self._not_before = 0.0
        self._complaints: dict[str, str] = {}

    def step(self) -> Change | None:
        """Admit the pod, then start what may start; None when nothing is new."""
        if self.over or time.monotonic() < self._not_before:
            return None
        if not self._admitted:
            admitted = self._admit()
            if isinstance(admitted, Rejection):
                self.over = True
                reason, message = admitted.reason, admitted.message
                status = {"phase": "Failed", "reason": reason, "message": message}
                return status | {"startTime": _now()}, reason, admitted.because
            self._admitted = True
        complaints = self._start_all()
        if not complaints:
            self.over = True
            return running_status(self._pod), "", ""
        self._not_before = time.monotonic() + AGAIN_AFTER_S
        if complaints == self._complaints:
            return None
        self._complaints = complaints
        message = "Error: " + "; ".join(complaints.values())
        return waiting_status(self._pod, self.given, complaints), "Failed", message

    def end(self) -> None:
        """Release the pod's devices."""
        self.over = True
        self._devices.release(self._uid)

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
        for container in spec.get("initContainers") or []:
            if complaint := self._start(container["name"]):
                return {container["name"]: complaint}
        complaints = {
            container["name"]: self._start(container["name"])
            for container in spec["containers"]
        }
        return {name: complaint for name, complaint in complaints.items() if complaint}

    def _start(self, container: str) -> str:
        if container not in self.given:
            try:
                self.given[container] = self._devices.start(self._uid, container)
            except CannotStartYetError as error:
                return str(error)
        return ""


_EVERY_S = 0.05


@dataclass
class _SimulatedNode:
    devices: Devices
    lives: dict[str, PodLife] = field(default_factory=dict)
    written: Json = field(default_factory=dict)


class StandInKubelet:
    """Acts for every node of a cluster in memory; each gets a folder in ``folder``.

    A deleted pod stays Terminating while it is held, like one whose program takes its
    time to end.
    """

    def __init__(self, cluster: Embedded, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._lock = Lock()
        self._nodes: dict[str, _SimulatedNode] = {}
        self._held: set[str] = set()

    def run(self, stop: Event) -> None:
        """Handle all nodes and their pods until ``stop`` is set."""
        while not stop.wait(_EVERY_S):
            with self._lock:
                for name, node in self._nodes.items():
                    self._write_devices(name, node)
                    self._look_after(name, node)

    def folder_of(self, name: str) -> Path:
        """Return the folder of a node's kubelet."""
        return self._folder / name

    def join(self, name: str) -> None:
        """Add a node; it has no devices until a plugin registers."""
        devices = Devices(self.folder_of(name))
        with self._lock:
            self._nodes[name] = _SimulatedNode(devices)
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

    def _write_devices(self, name: str, node: _SimulatedNode) -> None:
        """Write the node's devices into its status if they changed."""
        devices = device_amounts(node.devices.capacity(), node.devices.allocatable())
        if devices != node.written:
            with suppress(NotFound):
                body = {"status": devices}
                self._cluster.patch(Kind.NODES, "", name, body, subresource="status")
                node.written = devices

    def _look_after(self, name: str, node: _SimulatedNode) -> None:
        selector = f"spec.nodeName={name}"
        page = self._cluster.list_page(Kind.PODS, limit=0, field_selector=selector)
        there = {pod["metadata"]["uid"] for pod in page.items}
        for uid in node.lives.keys() - there:
            node.lives.pop(uid).end()
        for pod in sorted(page.items, key=_order):
            # It changed since it was listed; the next round sees how.
            with suppress(NotFound, Conflict):
                self._advance(node, pod)

    def _advance(self, node: _SimulatedNode, pod: Json) -> None:
        metadata, phase = pod["metadata"], pod["status"]["phase"]
        life = node.lives.get(metadata["uid"])
        if phase in TERMINAL and life:
            life.end()
        if "deletionTimestamp" in metadata:
            if metadata["name"] not in self._held:
                self._end(pod, life)
        elif phase == "Pending":
            life = node.lives.setdefault(metadata["uid"], PodLife(node.devices, pod))
            self._step(PodTarget.of(pod), life)

    def _end(self, pod: Json, life: PodLife | None) -> None:
        if life:
            life.end()
        end = PodTarget.of(pod)
        where = (Kind.PODS, end.namespace, end.name)
        self._cluster.delete(*where, grace_period_s=0, uid=end.uid)

    def _step(self, pod: PodTarget, life: PodLife) -> None:
        step = life.step()
        if step is None:
            return
        status, reason, message = step
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        where = (Kind.PODS, pod.namespace, pod.name)
        self._cluster.patch(*where, patch, subresource="status")
        if reason:
            with suppress(ClusterError):
                self._cluster.event(
                    pod,
                    kind="Warning",
                    reason=reason,
                    message=message,
                    component="kubelet",
                )


def _order(pod: Json) -> tuple[str, int]:
    """Sort as kubelet does: by creation, in seconds, then by arrival."""
    metadata = pod["metadata"]
    return metadata["creationTimestamp"], int(metadata["resourceVersion"])
