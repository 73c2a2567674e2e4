"""What one pod waits for, in words. Pure; reads the pod and its events."""

from collections.abc import Sequence

from gpushare.kube.cluster import Json
from gpusharectl.install.progress import Waiting

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


def condition(pod: Json, kind: str) -> Json:
    """Give one of a pod's conditions; empty where it has none of this kind."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == kind), {})


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
