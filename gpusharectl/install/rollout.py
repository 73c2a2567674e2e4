"""Wait until workloads run on their nodes, and tell meanwhile who waits for what.

What one pod waits for, in words. Pure; reads the pod and its events.

What a workload still waits for, on which node, in words. Pure.

Read from the workload, its pods and their events; a pod's log is asked for by name.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import SYSTEM, condition, is_ready
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.cluster_facts import NodeView
from gpusharectl.install.options import DEFAULT_TIMEOUT_S
from gpusharectl.install.progress import Screen, Trouble, Waiting
from gpusharectl.install.survey import read_nodes

_NO_IMAGE = {"ErrImageNeverPull", "InvalidImageName"}
"""Waits of a container that no time ends."""
_PULL_FAILED = {"ErrImagePull", "ImagePullBackOff"} | _NO_IMAGE
_TELLING = {"FailedMount", "FailedCreatePodSandBox", "FailedCreate", "Unhealthy"}
"""Events whose words say more than the container's own state."""
_BEING_MADE = {"ContainerCreating", "PodInitializing"}
_LAST_WORDS = 3


def pod_wait(who: str, pod: Json, events: Sequence[Json], last_words: str) -> Waiting:
    """Say what one pod waits for that is not Ready."""
    status = pod.get("status") or {}
    unplaced = condition(pod, "PodScheduled")
    if not node_of(pod) and unplaced.get("status") == "False":
        said = unplaced.get("message", "no node would do")
        moment = unplaced.get("lastTransitionTime", "")
        return Waiting(who, f"no node takes it: {said}", moment)
    kinds = ("initContainerStatuses", "containerStatuses")
    for container in (one for kind in kinds for one in status.get(kind) or ()):
        found = _container_wait(who, container, events, last_words)
        if found is not None:
            return found
    told = told_by_events(who, events)
    what = "it runs, and does not say yet that it is ready"
    if not status.get("containerStatuses"):
        what = "its kubelet to take it up"
    return told or Waiting(who, what, _since(pod))


def _container_wait(
    who: str, container: Json, events: Sequence[Json], last_words: str
) -> Waiting | None:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = waiting.get("reason", "")
    image = container.get("image", "")
    if reason in _PULL_FAILED:
        said = _short(waiting.get("message", "")) or reason
        what = f"the image {image} cannot be had: {said}"
        # Each try has other words, down to the port that it came from.
        return Waiting(who, what, hopeless=reason in _NO_IMAGE, topic=f"no {image}")
    if (state.get("terminated") or {}).get("exitCode") == 0:
        return Waiting(who, "it has ended well, and its pod is to say so")
    if reason == "CrashLoopBackOff" or "terminated" in state:
        times = container.get("restartCount", 0)
        what = f"it ended {_times(times)}"
        return Waiting(who, f"{what}; its last words: {last_words or 'none'}")
    if reason in _BEING_MADE:
        return told_by_events(who, events) or Waiting(who, "its containers to be made")
    if reason:
        return Waiting(who, f"{reason}: {_short(waiting.get('message', ''))}")
    return None


def told_by_events(who: str, events: Sequence[Json]) -> Waiting | None:
    """Read the latest event that says what is going on."""
    for event in reversed(events):
        if event.get("reason") == "Pulling":
            image = event.get("message", "").removeprefix("Pulling image ").strip('"')
            return Waiting(who, f"pulling the image {image}", moment_of(event))
        if event.get("reason") == "Pulled":
            return None
        said = _short(event.get("message", ""))
        # A startup probe fails as long as a container starts, which is no news.
        if event.get("reason") in _TELLING and not said.startswith("Startup probe"):
            return Waiting(who, said)
    return None


def last_lines(text: str) -> str:
    r"""Give the last lines of a log as one.

    >>> last_lines("a\n\nb\nc\nd\n")
    'b / c / d'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-_LAST_WORDS:])


def _times(number: int) -> str:
    return "once" if number <= 1 else f"{number} times"


def _short(text: str) -> str:
    return " ".join(text.split())


def _since(pod: Json) -> str:
    return str(condition(pod, "Ready").get("lastTransitionTime", ""))


def node_of(pod: Json) -> str:
    """Give the pod's node; empty where it has none yet."""
    return str(pod["spec"].get("nodeName", ""))


def is_leaving(pod: Json) -> bool:
    """Tell whether the pod is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def moment_of(event: Json) -> str:
    """Give the latest moment that an event tells of."""
    for key in ("lastTimestamp", "eventTime", "firstTimestamp"):
        if event.get(key):
            return str(event[key])
    return str(event["metadata"].get("creationTimestamp") or "")


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
    unwell = [pod["metadata"]["name"] for pod in pods if not is_ready(pod)]
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
