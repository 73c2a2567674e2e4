"""Try a new configuration before kube-scheduler gets it: would it be read at all.

A pod of kube-scheduler's own image, on its own host and with its own mounts, is told to
write the configuration out and end (``--write-config-to``). It loads and validates it,
opens the kubeconfig and builds the extenders, certificates included, and talks to
nobody.

Prove that kube-scheduler asks our extender, by a pod that takes nothing.

The pod asks ``vcuda-core: "0"``, which makes it the extender's (contracts 1.2), and
carries an annotation that the extender alone refuses, in words of its own. Those words
on the pod prove the way through filter. Without the annotation it then gets its node,
and there is but one binder, so the bind was ours. A kube-scheduler that does not ask us
binds it at once, which is proof too.

Wait until kubelet runs kube-scheduler by the manifest as it is now.

kubelet starts the new one when the old one has ended, but looks for that end only every
ten to fifteen seconds, in which nobody schedules. It looks at once where the mirror pod
changes, so it is given a reason to look.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.objects import Objects, Ref
from gpusharectl.kube_scheduler.static_pod import (
    CONFIG_FLAG,
    STAMP,
    SchedulerPod,
    container,
    words,
)
from gpusharectl.kube_scheduler.temp_pod import (
    SYSTEM,
    Pace,
    condition,
    is_ready,
    made,
    short_pod,
    states,
    waits_for,
)

CHECK_NAME = "gpushare-scheduler-check"
_MOST_OF_WORDS = 600
_LOG_LINES = 20


class Said(StrEnum):
    """How a check came out."""

    WELL = "well"
    BAD = "bad"
    UNKNOWN = "could not be checked"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check has shown; ``words`` say what is bad, or why nobody knows."""

    said: Said
    words: str = ""


def checked(objects: Objects, pod: Json, pace: Pace, timeout_s: float) -> Verdict:
    """Run a pod of ``check_pod`` to its end and say what it has shown."""
    try:
        with made(objects, pod, pace) as ref:
            ended = pace.until(lambda: _ended(objects.get(ref)), timeout_s)
            if ended is None:
                return _unknown(objects.get(ref) or {}, timeout_s)
            return _verdict(objects, ref, ended)
    except ClusterError as error:
        return Verdict(Said.UNKNOWN, str(error))


def check_pod(pod: SchedulerPod, node: str, config: str) -> Json:
    """Describe the pod that tries ``config`` as kube-scheduler of this pod would."""
    body = pod.body["spec"]
    spec = {
        "nodeName": node,
        "hostNetwork": True,
        "containers": [check_container(pod.main, config)],
    }
    for key in ("volumes", "securityContext", "hostAliases", "imagePullSecrets"):
        if key in body:
            spec[key] = copy.deepcopy(body[key])
    return short_pod(f"{CHECK_NAME}-{node}", spec)


def check_container(main: Json, config: str) -> Json:
    """Describe the container that tries ``config``, made of kube-scheduler's own."""
    kept = ("image", "command", "args", "env", "securityContext", "volumeMounts")
    own = {key: copy.deepcopy(main[key]) for key in kept if key in main}
    flags = "args" if own.get("args") else "command"
    # The last of a flag counts; port 0 because kube-scheduler itself has the other.
    told = [f"{CONFIG_FLAG}={config}", "--write-config-to=/dev/stdout"]
    own[flags] = [*own.get(flags, ()), *told, "--secure-port=0"]
    return {"name": "check", "imagePullPolicy": "IfNotPresent", **own}


def last_words(log: str) -> str:
    """Give what a program said at its end, cut to what fits a sentence.

    kube-scheduler's own complaint stands behind ``err=``.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.partition("err=")[2].strip('"') for line in lines if "err=" in line]
    words = errors[-1] if errors else " / ".join(lines[-3:])
    return words.replace('\\"', '"')[:_MOST_OF_WORDS]


def _ended(pod: Json | None) -> Json | None:
    phase = ((pod or {}).get("status") or {}).get("phase")
    return pod if pod is not None and phase in {"Succeeded", "Failed"} else None


def _verdict(objects: Objects, ref: Ref, pod: Json) -> Verdict:
    if pod["status"]["phase"] == "Succeeded":
        return Verdict(Said.WELL)
    codes = _exit_codes(states(pod))
    if not codes:
        status = pod["status"]
        words = status.get("message") or status.get("reason") or "it did not start"
        return Verdict(Said.UNKNOWN, str(words))
    try:
        words = last_words(objects.log(ref.namespace, ref.name, lines=_LOG_LINES))
    except ClusterError as error:
        words = f"its log cannot be read: {error}"
    return Verdict(Said.BAD, words or f"it ended with code {codes[0]}")


def _exit_codes(containers: Sequence[Json]) -> list[int]:
    """Give the codes of programs that ran and failed by themselves."""
    ended = [(each.get("state") or {}).get("terminated") or {} for each in containers]
    return [int(one["exitCode"]) for one in ended if one.get("reason") == "Error"]


def _unknown(pod: Json, timeout_s: float) -> Verdict:
    why = waits_for(pod) or "kubelet has not started it"
    return Verdict(Said.UNKNOWN, f"not within {timeout_s:g} s: {why}")


PROBE_NAME = "gpushare-scheduler-probe"
_MARK = "gpusharectl-probe"
"""No value of this annotation that the extender knows."""
_LEASE = Ref("coordination.k8s.io/v1", "Lease", "kube-scheduler", SYSTEM)


def probed(
    objects: Objects, node: str, image: str, pace: Pace, timeout_s: float
) -> str:
    """Send the pod the whole way; say why it did not arrive, "" when it did.

    Its program, if kubelet is quick enough to start it, is kube-scheduler's
    ``--version``; an ``image`` that the node has not is not pulled.
    """
    try:
        with made(objects, probe_pod(node, image), pace) as ref:
            return _asked(objects, ref, pace, timeout_s) or _bound(
                objects, ref, pace, timeout_s
            )
    except ClusterError as error:
        return f"the probe pod {SYSTEM}/{PROBE_NAME} could not be made or read: {error}"


def probe_pod(node: str, image: str) -> Json:
    """Describe the pod; only ``node`` will do for it, taints or not."""
    nothing = {names.CORE: "0"}
    container = {
        "name": "probe",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["kube-scheduler", "--version"],
        "resources": {"requests": nothing, "limits": nothing},
    }
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    only = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    spec = {"containers": [container], "affinity": {"nodeAffinity": {rule: only}}}
    return short_pod(PROBE_NAME, spec, {names.CONTAINERS: _MARK})


def _asked(objects: Objects, ref: Ref, pace: Pace, timeout_s: float) -> str:
    """Wait for the extender's own words; say what came instead."""

    def look() -> str | None:
        pod = objects.get(ref)
        if pod is None:
            return "somebody deleted the probe pod"
        if pod["spec"].get("nodeName"):
            return (
                "a pod that is the extender's was bound without asking it: the "
                f"kube-scheduler that leads{_leader(objects)} does not read our "
                "configuration"
            )
        return "" if _MARK in _message(pod) else None

    seen = pace.until(look, timeout_s)
    return _nothing(objects, ref, timeout_s) if seen is None else seen


def _bound(objects: Objects, ref: Ref, pace: Pace, timeout_s: float) -> str:
    """Let the pod through, and wait until it has its node."""
    try:
        objects.merge(ref, {"metadata": {"annotations": {names.CONTAINERS: None}}})
    except NotFound:
        return "somebody deleted the probe pod"

    def look() -> bool | None:
        pod = objects.get(ref)
        return True if pod is None or pod["spec"].get("nodeName") else None

    if pace.until(look, timeout_s):
        return ""
    return f"filter works and bind does not: {_nothing(objects, ref, timeout_s)}"


def _nothing(objects: Objects, ref: Ref, timeout_s: float) -> str:
    pod = objects.get(ref)
    said = _message(pod) if pod else ""
    if said:
        return f"within {timeout_s:g} s kube-scheduler got no further than: {said}"
    return (
        f"no kube-scheduler looked at the probe pod within {timeout_s:g} s"
        f"{_leader(objects)}"
    )


def _message(pod: Json) -> str:
    return str(condition(pod, "PodScheduled").get("message") or "")


def _leader(objects: Objects) -> str:
    """Name the kube-scheduler that holds the lease, by its host."""
    lease = objects.get(_LEASE) or {}
    holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
    return f" (lease held by {holder.rpartition('_')[0] or holder})" if holder else ""


Say = Callable[[str], None]
LOOK = "gpusharectl/look"
"""Annotation that gives kubelet a reason to look; it goes with the old mirror pod."""
_ENDED_TOO_OFTEN = 2
"""Ends after which it is not a slow start; kubelet waits longer with each."""


class MirrorPod:
    """kube-scheduler's pod on one node, as the API server shows it."""

    def __init__(self, objects: Objects, node: str, pace: Pace) -> None:
        self._objects = objects
        self._node = node
        self._pace = pace

    def wait(self, manifest: SchedulerPod, say: Say, timeout_s: float) -> str:
        """Wait until it is Ready and made of this manifest; why not, else empty.

        ``say`` hears what is waited for, whenever that changes.
        """
        ref = self._ref(manifest)
        told = ""

        def look() -> str | None:
            nonlocal told
            pod = self._objects.get(ref)
            waiting = _waits(pod, manifest)
            if not waiting:
                return ""
            if waiting != told:
                told = waiting
                say(f"{ref.name}: {waiting}")
            self._hurry(ref, pod, manifest)
            return self._hopeless(ref, pod, manifest)

        try:
            seen = self._pace.until(look, timeout_s)
        except ClusterError as error:
            return f"{ref.name} cannot be read: {error}"
        if seen is not None:
            return seen
        return f"not within {timeout_s:g} s: {told or 'the API server gives no answer'}"

    def _hurry(self, ref: Ref, pod: Json | None, manifest: SchedulerPod) -> None:
        """Change the old one's mirror pod, so that kubelet looks whether it has ended.

        Who may not change it, or comes too late, waits for kubelet's own time.
        """
        if pod is None or _is_of(pod, manifest):
            return
        # What it is now differs from what any look before has written, and the new one,
        # which may be there by now under the same name, is of another version.
        now = str(pod["metadata"]["resourceVersion"])
        metadata = {"resourceVersion": now, "annotations": {LOOK: now}}
        with suppress(ClusterError):
            self._objects.merge(ref, {"metadata": metadata})

    def _hopeless(
        self, ref: Ref, pod: Json | None, manifest: SchedulerPod
    ) -> str | None:
        """Say that it keeps ending, with what it says at its end.

        Only while it is down, because one that has just begun has said nothing yet.
        """
        if pod is None or not _is_of(pod, manifest):
            return None
        down = [each for each in states(pod) if _fell(each)]
        ends = max((int(each.get("restartCount", 0)) for each in down), default=0)
        if ends < _ENDED_TOO_OFTEN:
            return None
        try:
            said = last_words(self._objects.log(SYSTEM, ref.name, lines=_LOG_LINES))
        except ClusterError as error:
            said = f"(its log cannot be read: {error})"
        return f"it has ended {ends} times and says: {said}" if said else None

    def _ref(self, manifest: SchedulerPod) -> Ref:
        name = manifest.body["metadata"].get("name")
        return Ref("v1", "Pod", f"{name}-{self._node}", SYSTEM)


def _waits(pod: Json | None, manifest: SchedulerPod) -> str:
    if pod is None:
        return "kubelet is to start it anew"
    if not _is_of(pod, manifest):
        return "the old one is to end"
    if is_ready(pod):
        return ""
    return waits_for(pod) or "it starts"


def _fell(container: Json) -> bool:
    """Tell whether a container is down by its own fault, as far as kubelet says.

    One that was told to end has ended well, however often.
    """
    state = container.get("state") or {}
    ends = (state, container.get("lastState") or {})
    ended: Json = next((one["terminated"] for one in ends if one.get("terminated")), {})
    return "running" not in state and ended.get("exitCode") != 0


def _is_of(pod: Json, manifest: SchedulerPod) -> bool:
    """Tell whether the pod is made of this manifest: the same stamp and flags."""
    annotations = pod["metadata"].get("annotations") or {}
    same_stamp = annotations.get(STAMP, "") == manifest.annotation(STAMP)
    return same_stamp and words(container(pod)) == words(manifest.main)
