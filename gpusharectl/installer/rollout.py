"""Wait until workloads run on their nodes, and say meanwhile who waits for what."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import (
    SYSTEM,
    condition,
    container_statuses,
    is_leaving,
    is_ready,
    name_of,
    node_of,
)
from gpushare.kube.node_filters import find_bar, read_constraints, read_properties
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.words import counted, last_lines
from gpusharectl.installer.context import Context
from gpusharectl.installer.nodes.facts import SurveyedNode, survey_node
from gpusharectl.installer.progress import (
    InstallError,
    InstallStep,
    Waiting,
    group_waits,
)
from gpusharectl.installer.rights import REVISION
from gpusharectl.output import ObjectChange

NOTHING_LEFT = "nothing was left to delete"

_NO_IMAGE = {"ErrImageNeverPull", "InvalidImageName"}
"""Reasons that do not go away with time."""
_PULL_FAILED = {"ErrImagePull", "ImagePullBackOff"} | _NO_IMAGE
_TELLING = {"FailedMount", "FailedCreatePodSandBox", "FailedCreate", "Unhealthy"}
"""Events that say more than the container's own state."""
_HASH = "controller-revision-hash"
"""Label of a revision, and of the pods that are made from it."""
_BEING_MADE = {"ContainerCreating", "PodInitializing"}
_TOLERATED = tuple(
    (f"node.kubernetes.io/{taint}", "Exists", "", "")
    for taint in (
        "not-ready",
        "unreachable",
        "disk-pressure",
        "memory-pressure",
        "pid-pressure",
        "unschedulable",
        "network-unavailable",
    )
)
"""What the DaemonSet controller adds to the tolerations of each pod."""
_NAMED = 3
_LOG_LINES = 20


def apply_changed(
    context: Context, bodies: Sequence[Json], changes: Sequence[ObjectChange]
) -> None:
    """Apply those of the objects that differ, according to a dry run's changes."""
    # Even an apply without a change gives some objects a new version.
    changing = {change.ref for change in changes}
    due = [body for body in bodies if Ref.of(body) in changing]
    for body in due:
        context.objects.apply(body)
    number = f"{len(due)} changed" if due else "none changed"
    context.screen.say(f"{counted(len(bodies), 'object')}, {number}")


def prune_step(
    context: Context, refs: Sequence[Ref], name: str, title: str
) -> InstallStep:
    """Return the step that deletes these objects, in this order."""

    def act() -> None:
        gone = [ref for ref in refs if context.objects.delete(ref)]
        number = f"{len(gone)} objects deleted" if gone else NOTHING_LEFT
        context.screen.say(number)

    return InstallStep(name, act, title)


def wait_for_rollout(context: Context, refs: Sequence[Ref]) -> None:
    """Wait until workloads run; a failure names every node's wait."""
    waits = context.until(lambda: _still_waiting(context.objects, refs))
    if not waits:
        context.screen.say(f"{', '.join(ref.name for ref in refs)}: running")
        return
    reasons = "; ".join(map(str, group_waits(waits)))
    if any(wait.hopeless for wait in waits):
        raise InstallError(f"cannot succeed by waiting: {reasons}")
    raise InstallError(f"not ready within {context.patience.timeout_s:g} s: {reasons}")


def _still_waiting(objects: Objects, refs: Sequence[Ref]) -> list[Waiting]:
    bodies = {name_of(node): node for node in objects.list("v1", "Node")}
    every = [survey_node(bodies[name]) for name in sorted(bodies)]
    nodes = [node for node in every if node.ready]
    waits: list[Waiting] = []
    for ref in refs:
        workload = objects.get(ref)
        if workload is None:
            waits.append(Waiting(ref.name, "it does not exist", hopeless=True))
            continue
        where = daemonset_nodes(workload, nodes)
        labels = workload["spec"]["selector"]["matchLabels"]
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        pods = objects.list("v1", "Pod", namespace=SYSTEM, label_selector=selector)
        events, log = partial(list_events, objects), partial(_log, objects)
        revision = ""
        if workload["kind"] == "DaemonSet":
            revisions = objects.list(*REVISION, namespace=SYSTEM)
            revision = newest_revision(workload, revisions)
        why_barred = partial(_why_barred, workload, bodies)
        rollout = Rollout(workload, pods, events, log, revision, why_barred)
        waits += rollout_waits(rollout, where)
        if not where and workload["kind"] == "DaemonSet":
            waits.append(Waiting(ref.name, _no_fitting_node(every, why_barred)))
    return waits


def _why_barred(daemonset: Json, nodes: Mapping[str, Json], name: str) -> str:
    """Return why a DaemonSet makes no pod on a node, or ""."""
    constraints = read_constraints(daemonset["spec"]["template"])
    constraints = replace(
        constraints, tolerations=(*constraints.tolerations, *_TOLERATED)
    )
    barred = find_bar(read_properties(nodes[name]), constraints)
    return barred.reason if barred else ""


def _no_fitting_node(
    nodes: Sequence[SurveyedNode], why_barred: Callable[[str], str]
) -> str:
    """Return that no Ready node is meant for a DaemonSet, and why not each."""
    each = [
        f"{node.name}: {'it is not Ready' if not node.ready else why_barred(node.name)}"
        for node in nodes[:_NAMED]
    ]
    if len(nodes) > _NAMED:
        each.append(f"and {len(nodes) - _NAMED} more")
    return f"a Ready node that it fits ({'; '.join(each) or 'there is no node'})"


def daemonset_nodes(
    workload: Json, nodes: Sequence[SurveyedNode], chosen: Sequence[str] = ()
) -> list[str]:
    """Return the nodes on which a DaemonSet runs once the chosen ones are labelled."""
    selector = workload["spec"]["template"]["spec"].get("nodeSelector") or {}
    if names.GPU_NODE_LABEL in selector:
        return [node.name for node in nodes if node.labelled or node.name in chosen]
    return [node.name for node in nodes if node.control_plane]


@dataclass(frozen=True, slots=True)
class Rollout:
    """A workload with its pods; ``events`` and ``log`` read those of one object.

    ``revision`` is a DaemonSet's newest; "" if it is not known. ``why_barred`` says why
    it makes no pod on a node, or "".
    """

    workload: Json
    pods: Sequence[Json]
    events: Callable[[str], Sequence[Json]]
    log: Callable[[str], str]
    revision: str = ""
    why_barred: Callable[[str], str] = lambda _: ""

    @property
    def name(self) -> str:
        """The workload's name."""
        return name_of(self.workload)

    @property
    def is_observed(self) -> bool:
        """Whether the controller has seen the workload as it is now."""
        status = self.workload.get("status") or {}
        seen = status.get("observedGeneration", 0)
        return bool(seen >= self.workload["metadata"].get("generation", 0))


def list_events(objects: Objects, name: str) -> Sequence[Json]:
    """Return the events of one object in kube-system, the latest last."""
    where = f"involvedObject.name={name}"
    events = objects.list("v1", "Event", namespace=SYSTEM, field_selector=where)
    return sorted(events, key=_moment)


def _log(objects: Objects, pod: str) -> str:
    """Return the end of a pod's log; "" if it has none yet."""
    try:
        return last_lines(objects.log(SYSTEM, pod, lines=_LOG_LINES))
    except ClusterError:
        return ""


def rollout_waits(seen: Rollout, nodes: Sequence[str]) -> list[Waiting]:
    """Return what a workload waits for; empty once it runs as it is configured now.

    ``nodes`` are those on which a DaemonSet must have a pod. All replicas of a
    Deployment count, wherever they run.
    """
    if seen.workload["kind"] == "Deployment":
        return _deployment_waits(seen)
    by_node = {node_of(pod): pod for pod in seen.pods if not is_leaving(pod)}
    waits = []
    for node in nodes:
        who = f"{seen.name} on {node}"
        pod = by_node.get(node)
        if pod is None:
            waits.append(_no_pod(who, seen, node))
        elif not seen.is_observed or not _current(pod, seen):
            waits.append(Waiting(who, "its old pod to be replaced"))
        else:
            waits += _pod_waits(who, pod, seen)
    return waits


def _deployment_waits(seen: Rollout) -> list[Waiting]:
    wanted = seen.workload["spec"].get("replicas", 1)
    status = seen.workload.get("status") or {}
    ready = min(status.get("availableReplicas", 0), status.get("updatedReplicas", 0))
    settled = status.get("replicas", 0) == wanted
    if seen.is_observed and ready >= wanted and settled:
        # An old pod still answers, with its old settings, on open connections.
        return [
            Waiting(f"{seen.name} on {node_of(pod)}", "its old pod to end")
            for pod in seen.pods
            if is_leaving(pod) and is_ready(pod)
        ]
    waits: list[Waiting] = []
    for pod in seen.pods:
        if not is_leaving(pod):
            who = f"{seen.name} on {node_of(pod) or 'no node yet'}"
            waits += _pod_waits(who, pod, seen)
    short = f"{ready} of {wanted} pods are up to date and ready"
    return waits or [
        wait_by_events(seen.name, seen.events(seen.name)) or Waiting(seen.name, short)
    ]


def _pod_waits(who: str, pod: Json, seen: Rollout) -> list[Waiting]:
    if is_ready(pod):
        return []
    name = pod["metadata"]["name"]
    fell = any(
        status.get("restartCount", 0) or "terminated" in (status.get("state") or {})
        for status in container_statuses(pod, inits=False)
    )
    return [pod_wait(who, pod, seen.events(name), seen.log(name) if fell else "")]


def _no_pod(who: str, seen: Rollout, node: str) -> Waiting:
    nowhere = [pod for pod in seen.pods if not node_of(pod) and _aims_at(pod, node)]
    if nowhere:
        return pod_wait(who, nowhere[0], (), "")
    if wait := wait_by_events(who, seen.events(seen.name)):
        return wait
    what = "its pod to be created"
    if why := seen.why_barred(node):
        what = f"its pod, which is not made there: {why}"
    elif not seen.is_observed:
        what = "kube-controller-manager to see the DaemonSet and make its pod"
    elif not (seen.workload.get("status") or {}).get("desiredNumberScheduled", 0):
        what = f"{what}; the DaemonSet counts no fitting node yet"
    return Waiting(who, what)


def _aims_at(pod: Json, node: str) -> bool:
    """Return whether a DaemonSet's pod is meant for this node, by its affinity."""
    affinity = pod["spec"].get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return any(
        field.get("key") == "metadata.name" and node in field.get("values", ())
        for term in required.get("nodeSelectorTerms", ())
        for field in term.get("matchFields") or ()
    )


def newest_revision(daemonset: Json, revisions: Sequence[Json]) -> str:
    """Return the hash of a DaemonSet's present template; "" without any revision."""
    for newest in _own(daemonset, revisions):
        return str((newest["metadata"].get("labels") or {}).get(_HASH, ""))
    return ""


def previous_image(objects: Objects, refs: Sequence[Ref]) -> str:
    """Return the image that DaemonSets ran before their present one; "" if none."""
    revisions = objects.list(*REVISION, namespace=SYSTEM)
    for body in filter(None, map(objects.get, refs)):
        images = [
            revision["data"]["spec"]["template"]["spec"]["containers"][0]["image"]
            for revision in _own(body, revisions)
        ]
        for image in images:
            if image != images[0]:
                return str(image)
    return ""


def _own(daemonset: Json, revisions: Sequence[Json]) -> list[Json]:
    """Return a DaemonSet's revisions, the newest first.

    After a rollback the old revision is used again, with a new and highest number.
    """
    uid = daemonset["metadata"].get("uid")
    owned = [
        revision
        for revision in revisions
        for owner in revision["metadata"].get("ownerReferences") or ()
        if owner.get("uid") == uid
    ]
    return sorted(owned, key=lambda revision: int(revision["revision"]), reverse=True)


def _current(pod: Json, seen: Rollout) -> bool:
    """Return whether a DaemonSet's pod is made from its present template.

    Its generation does not say so: after a rollback the pods that were never replaced
    keep the number of their time. If the revision is not known, the controller's count
    of updated pods decides.
    """
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    if seen.revision and _HASH in labels:
        return labels[_HASH] == seen.revision
    status = seen.workload.get("status") or {}
    wanted_pods = status.get("desiredNumberScheduled", 0)
    return bool(status.get("updatedNumberScheduled", 0) >= wanted_pods)


def pod_wait(who: str, pod: Json, events: Sequence[Json], last_words: str) -> Waiting:
    """Return what a pod waits for that is not Ready."""
    unplaced = condition(pod, "PodScheduled")
    if not node_of(pod) and unplaced.get("status") == "False":
        message = unplaced.get("message", "no node is suitable")
        moment = unplaced.get("lastTransitionTime", "")
        return Waiting(who, f"its pod cannot be scheduled: {message}", moment)
    for container in container_statuses(pod):
        wait = _container_wait(who, container, events, last_words)
        if wait is not None:
            return wait
    what = "its pod runs, but is not Ready yet"
    if not container_statuses(pod, inits=False):
        what = "kubelet to start its pod"
    since = str(condition(pod, "Ready").get("lastTransitionTime", ""))
    return wait_by_events(who, events) or Waiting(who, what, since)


def _container_wait(
    who: str, container: Json, events: Sequence[Json], last_words: str
) -> Waiting | None:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = waiting.get("reason", "")
    message = " ".join(waiting.get("message", "").split())
    image = container.get("image", "")
    if reason in _PULL_FAILED:
        what = f"the image {image} cannot be pulled: {message or reason}"
        # Each attempt has other words, such as its source port.
        return Waiting(who, what, hopeless=reason in _NO_IMAGE, topic=f"no {image}")
    if (state.get("terminated") or {}).get("exitCode") == 0:
        return Waiting(who, "its container has ended with success, its pod not yet")
    if reason == "CrashLoopBackOff" or "terminated" in state:
        number = container.get("restartCount", 0)
        times = "once" if number <= 1 else f"{number} times"
        log = last_words or "nothing"
        return Waiting(who, f"its container has ended {times}. Its log says: {log}")
    if reason in _BEING_MADE:
        wait = wait_by_events(who, events)
        return wait or Waiting(who, "its containers to be created")
    if reason:
        return Waiting(who, f"{reason}: {message}")
    return None


def wait_by_events(who: str, events: Sequence[Json]) -> Waiting | None:
    """Return what the latest event says about the wait; None if none does."""
    for event in reversed(events):
        if event.get("reason") == "Pulling":
            image = event.get("message", "").removeprefix("Pulling image ").strip('"')
            return Waiting(who, f"pulling the image {image}", _moment(event))
        if event.get("reason") == "Pulled":
            return None
        message = " ".join(event.get("message", "").split())
        # A startup probe fails while a container starts; that is normal.
        if event.get("reason") in _TELLING and not message.startswith("Startup probe"):
            return Waiting(who, message)
    return None


def _moment(event: Json) -> str:
    """Return the latest time of an event."""
    for key in ("lastTimestamp", "eventTime", "firstTimestamp"):
        if event.get(key):
            return str(event[key])
    return str(event["metadata"].get("creationTimestamp") or "")
