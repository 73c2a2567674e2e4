"""A stand-in for kubelet: nodes with cards, bound pods Running, deleted ones ended.

The device plugin that joins it offers the node's resources; until then the stand-in
writes what the plugin would: the annotation with the cards, and the node's totals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event, Lock
from typing import TYPE_CHECKING

from gpushare.domain.model import CORES_PER_CARD, Card
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Conflict, NotFound

if TYPE_CHECKING:
    from gpushare.kube.embedded import Embedded

_EVERY_S = 0.05
_MOST = 5000


@dataclass
class StandInKubelet:
    """Acts for every node of an embedded cluster.

    A deleted pod stays Terminating while ``held`` names it, as one does whose program
    takes its time to end.
    """

    cluster: "Embedded"
    held: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def run(self, stop: Event) -> None:
        """Look after all bound pods until ``stop`` is set."""
        while not stop.wait(_EVERY_S):
            for pod in self.cluster.list_page(Kind.PODS, limit=_MOST).items:
                if pod["spec"].get("nodeName"):
                    self._look_after(pod)

    def hold(self, name: str) -> None:
        """Let this pod take its time to end."""
        with self._lock:
            self.held.add(name)

    def release(self, name: str) -> None:
        """Let this pod end now."""
        with self._lock:
            self.held.discard(name)

    def join(self, name: str, cards: Sequence[Card]) -> None:
        """Add a node with these cards."""
        self.cluster.create(Kind.NODES, _node(name, cards))

    def leave(self, name: str) -> None:
        """Take a node away."""
        self.cluster.delete(Kind.NODES, "", name)

    def _look_after(self, pod: Json) -> None:
        metadata = pod["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        with self._lock:
            held = name in self.held
        try:
            if "deletionTimestamp" in metadata:
                if not held:
                    self.cluster.delete(
                        Kind.PODS,
                        namespace,
                        name,
                        grace_period_s=0,
                        uid=metadata["uid"],
                    )
            elif pod["status"]["phase"] == "Pending":
                patch = {"status": _running(pod)}
                self.cluster.patch(
                    Kind.PODS, namespace, name, patch, subresource="status"
                )
        except (NotFound, Conflict):
            # It changed since it was listed; the next look sees what became of it.
            return


def _node(name: str, cards: Sequence[Card]) -> Json:
    amounts = {
        "cpu": "8",
        "memory": "32Gi",
        "pods": "110",
        names.CORE: str(CORES_PER_CARD * len(cards)),
        names.MEMORY: str(sum(card.units for card in cards)),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, names.GPU_NODE_LABEL: "true"},
            "annotations": {names.CARDS: encode_cards(cards)},
        },
        "spec": {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [_condition("Ready")],
            "nodeInfo": {"kubeletVersion": "v1.36.0-demo"},
        },
    }


def _running(pod: Json) -> Json:
    now = _now()
    containers = [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for container in pod["spec"]["containers"]
    ]
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "startTime": now,
        "conditions": [_condition(kind) for kind in kinds],
        "containerStatuses": containers,
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
