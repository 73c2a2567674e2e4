"""What a workload still waits for, on which node, in words. Pure.

Read from the workload, its pods and their events; a pod's log is asked for by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpushare.kube.cluster import Json
from gpusharectl.install.podwaits import (
    condition,
    is_leaving,
    moment_of,
    node_of,
    pod_wait,
    told_by_events,
)
from gpusharectl.install.progress import Waiting

Log = Callable[[str], str]
"""Give a pod's last words, by its name."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a workload: the object, its pods, and events of all of them."""

    workload: Json
    pods: Sequence[Json]
    events: Sequence[Json]

    @property
    def name(self) -> str:
        """The workload's name."""
        return str(self.workload["metadata"]["name"])

    def events_of(self, name: str) -> list[Json]:
        """Give the events of one object, the latest last."""
        found = [one for one in self.events if one["involvedObject"]["name"] == name]
        return sorted(found, key=moment_of)


def waits(seen: Seen, nodes: Sequence[str], log: Log) -> list[Waiting]:
    """Say what is waited for; empty once the workload runs as told now.

    ``nodes`` are those on which a DaemonSet must have a pod; of a Deployment all its
    replicas count, wherever they are.
    """
    if seen.workload["kind"] == "Deployment":
        return _deployment_waits(seen, log)
    by_node = {node_of(pod): pod for pod in seen.pods if not is_leaving(pod)}
    told = _told(seen.workload)
    found = []
    for node in nodes:
        who = f"{seen.name} on {node}"
        pod = by_node.get(node)
        if pod is None:
            found.append(_no_pod(who, seen, node))
        elif not told or not _current(pod, seen.workload):
            found.append(Waiting(who, "its old pod to be replaced"))
        else:
            found += _pod_waits(who, pod, seen, log)
    return found or _not_counted(seen, nodes)


def _deployment_waits(seen: Seen, log: Log) -> list[Waiting]:
    wanted = seen.workload["spec"].get("replicas", 1)
    status = seen.workload.get("status") or {}
    ready = min(status.get("availableReplicas", 0), status.get("updatedReplicas", 0))
    settled = status.get("replicas", 0) == wanted
    if _told(seen.workload) and ready >= wanted and settled:
        # It answers by what it was told before, on connections that it still has.
        return [
            Waiting(f"{seen.name} on {node_of(pod)}", "its old pod to end")
            for pod in seen.pods
            if is_leaving(pod) and condition(pod, "Ready").get("status") == "True"
        ]
    found: list[Waiting] = []
    for pod in seen.pods:
        if not is_leaving(pod):
            who = f"{seen.name} on {node_of(pod) or 'no node yet'}"
            found += _pod_waits(who, pod, seen, log)
    short = f"{ready} of {wanted} pods run as told now"
    return found or [
        told_by_events(seen.name, seen.events_of(seen.name))
        or Waiting(seen.name, short)
    ]


def _pod_waits(who: str, pod: Json, seen: Seen, log: Log) -> list[Waiting]:
    if condition(pod, "Ready").get("status") == "True":
        return []
    name = pod["metadata"]["name"]
    said = log(name) if _fell(pod) else ""
    return [pod_wait(who, pod, seen.events_of(name), said)]


def _no_pod(who: str, seen: Seen, node: str) -> Waiting:
    told = told_by_events(who, seen.events_of(seen.name))
    nowhere = [pod for pod in seen.pods if not node_of(pod) and _aims_at(pod, node)]
    if nowhere:
        return pod_wait(who, nowhere[0], (), "")
    return told or Waiting(who, "a pod to be made for it")


def _not_counted(seen: Seen, nodes: Sequence[str]) -> list[Waiting]:
    """Wait for the controller to have seen what was told, where no pod is missing."""
    if _told(seen.workload) or not nodes:
        return []
    return [Waiting(seen.name, "the change to be taken up by its controller")]


def _aims_at(pod: Json, node: str) -> bool:
    """Tell whether a DaemonSet's pod is meant for this node, by its affinity."""
    affinity = pod["spec"].get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return any(
        field.get("key") == "metadata.name" and node in field.get("values", ())
        for term in required.get("nodeSelectorTerms", ())
        for field in term.get("matchFields") or ()
    )


def _told(workload: Json) -> bool:
    """Tell whether the controller has seen the workload as it is now."""
    status = workload.get("status") or {}
    seen = status.get("observedGeneration", 0)
    return bool(seen >= workload["metadata"].get("generation", 0))


def _current(pod: Json, daemonset: Json) -> bool:
    """Tell whether a DaemonSet's pod is made from its template as it is now.

    The controller writes the same number on both; where either is missing, its count
    of pods of today is believed.
    """
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    annotations = daemonset["metadata"].get("annotations") or {}
    own = labels.get("pod-template-generation")
    wanted = annotations.get("deprecated.daemonset.template.generation")
    if own is not None and wanted is not None:
        return bool(own == wanted)
    status = daemonset.get("status") or {}
    wanted_pods = status.get("desiredNumberScheduled", 0)
    return bool(status.get("updatedNumberScheduled", 0) >= wanted_pods)


def _fell(pod: Json) -> bool:
    status = pod.get("status") or {}
    return any(
        one.get("restartCount", 0) or "terminated" in (one.get("state") or {})
        for one in status.get("containerStatuses") or ()
    )
