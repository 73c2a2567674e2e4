"""A stand-in for kubelet: nodes, bound pods brought to run, deleted ones ended.

Devices are a real device plugin's, over kubelet's own gRPC interfaces (``devices``); no
container is ever made.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock

from gpushare.kube.cluster import Json, Kind, Target
from gpushare.kube.embedded import Embedded
from gpushare.kube.errors import ClusterError, Conflict, NotFound
from gpusharectl.demo.devices import Devices
from gpusharectl.demo.given import Given
from gpusharectl.demo.podlife import PodLife
from gpusharectl.demo.statuses import amounts, node_body

_EVERY_S = 0.05
_TERMINAL = ("Succeeded", "Failed")


@dataclass
class _Node:
    devices: Devices
    lives: dict[str, PodLife] = field(default_factory=dict)
    told: Json = field(default_factory=dict)


class StandInKubelet:
    """Acts for every node of an embedded cluster; ``folder`` gets a folder for each.

    A deleted pod stays Terminating while it is held, as one does whose program takes
    its time to end.
    """

    def __init__(self, cluster: Embedded, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._lock = Lock()
        self._nodes: dict[str, _Node] = {}
        self._held: set[str] = set()

    def run(self, stop: Event) -> None:
        """Look after all nodes and their pods until ``stop`` is set."""
        while not stop.wait(_EVERY_S):
            with self._lock:
                for name, node in self._nodes.items():
                    self._tell(name, node)
                    self._look_after(name, node)

    def folder_of(self, name: str) -> Path:
        """Say where a node's kubelet has its sockets."""
        return self._folder / name

    def join(self, name: str) -> None:
        """Add a node, which has no devices until a plugin registers on it."""
        devices = Devices(self.folder_of(name))
        with self._lock:
            self._nodes[name] = _Node(devices)
            devices.open()
            self._cluster.create(Kind.NODES, node_body(name))

    def leave(self, name: str) -> None:
        """Take a node away."""
        with self._lock:
            node = self._nodes.pop(name)
            with suppress(NotFound):
                self._cluster.delete(Kind.NODES, "", name)
        node.devices.close()

    def close(self) -> None:
        """Hang up on all device plugins, and leave the nodes as they are."""
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

    def given(self, uid: str) -> Mapping[str, Given]:
        """Give what each started container of a pod was given."""
        with self._lock:
            for node in self._nodes.values():
                if uid in node.lives:
                    return dict(node.lives[uid].given)
        return {}

    def _tell(self, name: str, node: _Node) -> None:
        """Write the node's devices into its status when they changed."""
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
            # It changed since it was listed; the next look sees what became of it.
            with suppress(NotFound, Conflict):
                self._advance(node, pod)

    def _advance(self, node: _Node, pod: Json) -> None:
        metadata = pod["metadata"]
        uid, life = metadata["uid"], node.lives.get(metadata["uid"])
        if pod["status"]["phase"] in _TERMINAL and life:
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
    """Sort as kubelet does: by creation, which is told in seconds, then by arrival."""
    metadata = pod["metadata"]
    return metadata["creationTimestamp"], int(metadata["resourceVersion"])
