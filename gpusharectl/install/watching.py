"""Wait until workloads run on their nodes, and tell meanwhile who waits for what."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.choice import DEFAULT_TIMEOUT_S
from gpusharectl.install.labels import SYSTEM
from gpusharectl.install.nodeview import NodeView
from gpusharectl.install.podwaits import last_lines
from gpusharectl.install.progress import Screen, Waiting
from gpusharectl.install.steps import Trouble
from gpusharectl.install.survey import read_nodes
from gpusharectl.install.waiting import Seen, waits

_LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for anything, and how; the clock counts seconds."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    look_every_s: float = 1.0
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def until(
        self,
        look: Callable[[], Sequence[Waiting]],
        screen: Screen,
        most_s: float | None = None,
    ) -> tuple[Waiting, ...]:
        """Look until nothing is waited for; give what still is when time is up.

        An API server that is away for a moment is waited for too.
        """
        limit_s = self.timeout_s if most_s is None else min(most_s, self.timeout_s)
        deadline = self.clock() + limit_s
        while True:
            left = _looked(look)
            over = self.clock() >= deadline or any(one.hopeless for one in left)
            if not left or over:
                screen.settle()
                return tuple(left)
            screen.wait(left)
            self.pause(self.look_every_s)


def run_as_told(
    objects: Objects, refs: Sequence[Ref], screen: Screen, patience: Patience
) -> Trouble | None:
    """Wait for workloads; in trouble every node's wait is told."""
    left = patience.until(lambda: still_waiting(objects, refs), screen)
    if not left:
        return None
    them = "; ".join(map(str, left))
    if any(one.hopeless for one in left):
        return Trouble(f"no waiting will help: {them}")
    return Trouble(f"not ready within {patience.timeout_s:g} s: {them}")


def still_waiting(objects: Objects, refs: Sequence[Ref]) -> list[Waiting]:
    """Look once at some workloads in kube-system."""
    nodes = read_nodes(objects)
    found: list[Waiting] = []
    for ref in refs:
        workload = objects.get(ref)
        if workload is None:
            found.append(Waiting(ref.name, "it is not there", hopeless=True))
            continue
        seen = _seen(objects, workload)
        where = nodes_of(workload, nodes)
        found += waits(seen, where, lambda pod: _last_words(objects, pod))
        if not where and workload["kind"] == "DaemonSet":
            found.append(Waiting(ref.name, "a node that is Ready and meant for it"))
    return found


def nodes_of(workload: Json, nodes: Sequence[NodeView]) -> tuple[str, ...]:
    """Give the Ready nodes on which one of our DaemonSets has its pods."""
    spec = workload["spec"]["template"]["spec"]
    by_label = names.GPU_NODE_LABEL in (spec.get("nodeSelector") or {})
    return tuple(
        node.name
        for node in nodes
        if node.ready and (node.labelled if by_label else node.control_plane)
    )


def pods_of(objects: Objects, workload: Json) -> Sequence[Json]:
    """List a workload's pods, by its selector."""
    labels = workload["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return objects.list("v1", "Pod", namespace=SYSTEM, label_selector=selector)


def _seen(objects: Objects, workload: Json) -> Seen:
    """Look at a workload; events only where something is not well, they are many."""
    pods = pods_of(objects, workload)
    events: list[Json] = []
    unwell = [pod["metadata"]["name"] for pod in pods if not _ready(pod)]
    for name in (workload["metadata"]["name"], *unwell):
        events += objects.list(
            "v1",
            "Event",
            namespace=SYSTEM,
            field_selector=f"involvedObject.name={name}",
        )
    return Seen(workload, pods, events)


def _last_words(objects: Objects, pod: str) -> str:
    """Read the end of a pod's log; a container that has none yet has no last words."""
    try:
        return last_lines(objects.log(SYSTEM, pod, lines=_LOG_LINES))
    except ClusterError:
        return ""


def _looked(look: Callable[[], Sequence[Waiting]]) -> Sequence[Waiting]:
    try:
        return look()
    except ClusterError as error:
        if not error.retryable:
            raise
        return [Waiting("the API server", str(error))]


def _ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        one.get("type") == "Ready" and one.get("status") == "True" for one in conditions
    )
