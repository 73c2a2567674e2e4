"""The words of ``kubectl get pods``: READY, STATUS and RESTARTS. Pure.

The source is ``printPod`` in ``pkg/printers/internalversion/printers.go`` (1.36).
"""

from gpushare.kube.fields import Reader

_TERMINAL = ("Succeeded", "Failed")


def ready_of(pod: Reader) -> str:
    """Say how many of the pod's containers are ready: ``1/2``."""
    total = len(pod.object("spec").optional_objects("containers"))
    ready = sum(
        one.optional_boolean("ready", default=False)
        for one in _statuses(pod, "containerStatuses")
    )
    return f"{ready}/{total}"


def restarts_of(pod: Reader) -> str:
    """Say how often the pod's containers were started anew."""
    return str(
        sum(
            one.optional_integer("restartCount")
            for one in _statuses(pod, "containerStatuses")
        )
    )


def pod_status(pod: Reader) -> str:
    """Say in a word how the pod is, such as ``ContainerCreating``, ``Terminating``."""
    status = pod.optional_object("status")
    phase = status.optional_text("phase")
    leaving = pod.object("metadata").raw.get("deletionTimestamp")
    if leaving and phase not in _TERMINAL:
        return "Terminating"
    if pod.object("spec").raw.get("schedulingGates"):
        return "SchedulingGated"
    said = status.optional_text("reason") or phase
    return _initializing(pod) or _containers(pod, said) or "Unknown"


def _initializing(pod: Reader) -> str:
    """Name the first init container that has not done its part, none as ``""``."""
    inits = _statuses(pod, "initContainerStatuses")
    for done, one in enumerate(inits):
        state = one.optional_object("state")
        ended = state.optional_object("terminated")
        if ended.raw and not ended.optional_integer("exitCode"):
            continue
        if one.optional_boolean("started", default=False) and not ended.raw:
            continue
        reason = _reason(state)
        if reason and reason != "PodInitializing":
            return f"Init:{reason}"
        return f"Init:{done}/{len(inits)}"
    return ""


def _containers(pod: Reader, said: str) -> str:
    """Take the first container's word that has one, else what the pod says itself."""
    running = False
    for one in reversed(_statuses(pod, "containerStatuses")):
        state = one.optional_object("state")
        said = _reason(state) or said
        ready = one.optional_boolean("ready", default=False)
        running = running or (ready and bool(state.raw.get("running")))
    return "Running" if said == "Completed" and running else said


def _reason(state: Reader) -> str:
    ended = state.optional_object("terminated")
    if ended.raw:
        code = f"ExitCode:{ended.optional_integer('exitCode')}"
        return ended.optional_text("reason") or code
    return state.optional_object("waiting").optional_text("reason")


def _statuses(pod: Reader, key: str) -> list[Reader]:
    return pod.optional_object("status").optional_objects(key)
