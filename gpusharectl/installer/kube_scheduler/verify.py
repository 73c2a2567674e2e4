"""Check kube-scheduler on a node: its new configuration, its restart, its calls.

``try_configuration``: would kube-scheduler load the new configuration? A pod with its
image and its mounts writes the configuration out and exits (``--write-config-to``). It
validates the file, opens the kubeconfig and builds the extenders, and connects to
nobody.

``MirrorPod.wait``: does kubelet run kube-scheduler from the present manifest?

``probe_scheduler``: does kube-scheduler call the extender? A pod asks ``vcuda-core:
"0"``, which makes it the extender's (contracts 1.2), and has an annotation that only
the extender refuses, with a message of its own. That message on the pod proves filter.
Then the annotation is removed, and the pod is bound; kube-scheduler allows only one
binder, so that proves bind. A kube-scheduler that does not call the extender binds the
pod at once.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, InvalidObject, NotFound
from gpushare.kube.facts import (
    PART_NAME,
    PART_OF,
    PRODUCT,
    SYSTEM,
    condition,
    container_statuses,
    is_silent,
)
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.words import last_lines
from gpusharectl.installer.kube_scheduler.static_pod import (
    CONFIG_FLAG,
    PROGRAM,
    STAMP,
    SchedulerPod,
    command_words,
    scheduler_container,
)

INSTALLER = "gpushare-installer"
Say = Callable[[str], None]
_GONE_WITHIN_S = 30.0
_LOG_LINES = 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PollPace:
    """How often to look; times in seconds."""

    every_s: float = 0.5
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

    def until(self, look: Callable[[], _T | None], timeout_s: float) -> _T | None:
        """Call ``look`` until it returns something; None if time is up.

        Retryable errors are waited out, because the API server on the host whose files
        are changed may restart.
        """
        deadline = self.clock() + timeout_s
        while True:
            try:
                result = look()
            except ClusterError as error:
                if not error.retryable:
                    raise
                result = None
            if result is not None:
                return result
            if self.clock() >= deadline:
                return None
            self.pause(self.every_s)


def short_pod(
    name: str, spec: Json, annotations: Json | None = None, *, part: str = INSTALLER
) -> Json:
    """Return a pod for kube-system that runs once, on any node, without credentials.

    ``part`` is its label: the name may be too long for one.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": SYSTEM,
            "labels": {
                PART_NAME: part,
                PART_OF: PRODUCT,
            },
            "annotations": annotations or {},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            **spec,
        },
    }


def pulled_with(secrets: Sequence[str]) -> Json:
    """Return the part of a pod's spec that names the Secrets of a registry.

    Since Kubernetes 1.35 kubelet asks for them also where another pod has pulled the
    image already.
    """
    return {"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}


@contextmanager
def temporary_object(objects: Objects, body: Json, pace: PollPace) -> Iterator[Ref]:
    """Create a pod or Job, and delete it afterwards; an old one is deleted first."""
    ref = Ref.of(body)
    if objects.delete(ref, grace_period_s=0):
        pace.until(lambda: objects.get(ref) is None or None, _GONE_WITHIN_S)
    try:
        objects.create(body)
        yield ref
    finally:
        # Also on Ctrl-C; an error here must not hide the result.
        with suppress(ClusterError):
            objects.delete(ref, grace_period_s=0)


def container_wait(pod: Json) -> str:
    """Return what a pod's container waits for; "" if it waits for nothing."""
    for container in container_statuses(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reasons = [
            str(waiting[key]) for key in ("reason", "message") if waiting.get(key)
        ]
        if reasons and reasons != ["PodInitializing"]:
            return ": ".join(reasons)
    return _message(pod)


def last_words(log: str) -> str:
    """Return the end of a log in at most 600 characters.

    kube-scheduler's own error stands behind ``err=``.
    """
    lines = map(str.strip, log.splitlines())
    errors = [line.partition("err=")[2].strip('"') for line in lines if "err=" in line]
    return (errors[-1] if errors else last_lines(log)).replace('\\"', '"')[:600]


CONFIGURATION_TRIAL = "gpushare-scheduler-check"
REJECTED = f"{PROGRAM} rejects the new configuration"
LEFT = "it has run with gpushare's configuration before, which stays as it is"
"""Why a kube-scheduler that does not start is not restored."""


class ConfigurationResult(StrEnum):
    """Whether kube-scheduler would load a configuration."""

    WELL = "well"
    BAD = "bad"
    UNKNOWN = "could not be checked"


@dataclass(frozen=True, slots=True)
class ConfigurationVerdict:
    """Result of a check; ``words`` say what is wrong, or why it is not known."""

    result: ConfigurationResult
    words: str = ""


def try_configuration(
    objects: Objects, pod: Json, pace: PollPace, timeout_s: float
) -> ConfigurationVerdict:
    """Run a pod of ``configuration_pod`` to its end and return what it has shown."""
    try:
        with temporary_object(objects, pod, pace) as ref:
            ended = pace.until(lambda: _ended(objects.get(ref)), timeout_s)
            if ended is not None:
                return _verdict(objects, ref, ended)
            why = container_wait(objects.get(ref) or {}) or "kubelet has not started it"
            return ConfigurationVerdict(
                ConfigurationResult.UNKNOWN, f"not within {timeout_s:g} s: {why}"
            )
    except InvalidObject as error:
        return ConfigurationVerdict(
            ConfigurationResult.BAD,
            "the API server rejects a pod of the new manifest, as kubelet would: "
            f"{error}",
        )
    except ClusterError as error:
        return ConfigurationVerdict(ConfigurationResult.UNKNOWN, str(error))


def configuration_pod(pod: SchedulerPod, node: str, config: str) -> Json:
    """Return the pod that loads ``config`` as this kube-scheduler would."""
    body = pod.body["spec"]
    spec = {
        "nodeName": node,
        "hostNetwork": True,
        "containers": [configuration_container(pod.main, config)],
    }
    for key in ("volumes", "securityContext", "hostAliases", "imagePullSecrets"):
        if key in body:
            spec[key] = copy.deepcopy(body[key])
    return short_pod(f"{CONFIGURATION_TRIAL}-{node}", spec)


def configuration_container(main: Json, config: str) -> Json:
    """Return the container that loads ``config``, made from kube-scheduler's own."""
    kept = ("image", "command", "args", "env", "securityContext", "volumeMounts")
    trial = {key: copy.deepcopy(main[key]) for key in kept if key in main}
    flags = "args" if trial.get("args") else "command"
    # The last of a flag counts; port 0 because kube-scheduler itself has the other.
    flags_of_trial = [f"{CONFIG_FLAG}={config}", "--write-config-to=/dev/stdout"]
    trial[flags] = [*trial.get(flags, ()), *flags_of_trial, "--secure-port=0"]
    return {"name": "check", "imagePullPolicy": "IfNotPresent", **trial}


def _ended(pod: Json | None) -> Json | None:
    phase = ((pod or {}).get("status") or {}).get("phase")
    return pod if pod is not None and phase in {"Succeeded", "Failed"} else None


def _verdict(objects: Objects, ref: Ref, pod: Json) -> ConfigurationVerdict:
    status = pod["status"]
    if status["phase"] == "Succeeded":
        return ConfigurationVerdict(ConfigurationResult.WELL)
    ended = [
        (container.get("state") or {}).get("terminated") or {}
        for container in container_statuses(pod, inits=False)
    ]
    # Of programs that ran and failed by themselves.
    codes = [
        int(state["exitCode"]) for state in ended if state.get("reason") == "Error"
    ]
    if not codes:
        why = status.get("message") or status.get("reason") or "it did not start"
        return ConfigurationVerdict(ConfigurationResult.UNKNOWN, str(why))
    log = _logged(objects, ref)
    log = log or f"it ended with code {codes[0]}"
    return ConfigurationVerdict(ConfigurationResult.BAD, f"{REJECTED}: {log}")


def _logged(objects: Objects, pod: Ref) -> str:
    try:
        return last_words(objects.log(pod.namespace, pod.name, lines=_LOG_LINES))
    except ClusterError as error:
        return f"its log cannot be read: {error}"


PROBE_NAME = "gpushare-scheduler-probe"
_MARK = "gpusharectl-probe"
"""An invalid value of the annotation, which the extender repeats in its message."""
_LEASE = Ref("coordination.k8s.io/v1", "Lease", "kube-scheduler", SYSTEM)


def probe_scheduler(
    objects: Objects, node: str, image: str, pace: PollPace, timeout_s: float
) -> str:
    """Prove with a pod that kube-scheduler calls the extender; why it does not, or "".

    If kubelet starts the pod, it runs kube-scheduler's ``--version``. An ``image`` that
    the node does not have is not pulled.
    """
    try:
        with temporary_object(objects, scheduler_probe_pod(node, image), pace) as ref:
            return _filtered(objects, ref, pace, timeout_s) or _bound(
                objects, ref, pace, timeout_s
            )
    except ClusterError as error:
        return f"the probe pod {SYSTEM}/{PROBE_NAME} cannot be created or read: {error}"


def scheduler_probe_pod(node: str, image: str) -> Json:
    """Return the pod; only ``node`` suits it, whatever its taints."""
    probe = {
        "name": "probe",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["kube-scheduler", "--version"],
        "resources": {key: {names.CORE: "0"} for key in ("requests", "limits")},
    }
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    only = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    spec = {"containers": [probe], "affinity": {"nodeAffinity": {rule: only}}}
    return short_pod(PROBE_NAME, spec, {names.CONTAINERS: _MARK})


def _filtered(objects: Objects, ref: Ref, pace: PollPace, timeout_s: float) -> str:
    """Wait for the extender's message; return what came instead, or ""."""

    def look() -> str | None:
        pod = objects.get(ref)
        if pod is None:
            return "somebody deleted the probe pod"
        if pod["spec"].get("nodeName"):
            holder = lease_holder(objects)
            named = f" ({holder})" if holder else ""
            return (
                "the probe pod was bound without a call to the extender: the "
                f"kube-scheduler that holds the lease{named} does not use "
                "gpushare's configuration"
            )
        return "" if _MARK in _message(pod) else None

    seen = pace.until(look, timeout_s)
    return _nothing(objects, ref, timeout_s) if seen is None else seen


def _bound(objects: Objects, ref: Ref, pace: PollPace, timeout_s: float) -> str:
    """Remove the annotation, and wait until the pod has its node."""
    try:
        objects.merge(ref, {"metadata": {"annotations": {names.CONTAINERS: None}}})
    except NotFound:
        return "somebody deleted the probe pod"

    def look() -> bool | None:
        pod = objects.get(ref)
        return True if pod is None or pod["spec"].get("nodeName") else None

    bound = pace.until(look, timeout_s)
    why = "" if bound else _nothing(objects, ref, timeout_s)
    return f"filter works and bind does not: {why}" if why else ""


def _nothing(objects: Objects, ref: Ref, timeout_s: float) -> str:
    pod = objects.get(ref)
    message = _message(pod) if pod else ""
    if message:
        return f"after {timeout_s:g} s the probe pod still waits: {message}"
    holder = lease_holder(objects)
    lease = f" (lease held by {holder})" if holder else ""
    return (
        f"no kube-scheduler tried to place the probe pod within {timeout_s:g} s{lease}"
    )


def _message(pod: Json) -> str:
    return str(condition(pod, "PodScheduled").get("message") or "")


def lease_holder(objects: Objects) -> str:
    """Return the node whose kube-scheduler holds the lease; "" if there is none.

    The holder is the node's name, an underscore, and an identifier.
    """
    lease = objects.get(_LEASE) or {}
    holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
    return holder.rpartition("_")[0] or holder


def is_node_silent(objects: Objects, node: str) -> bool:
    """Return whether a node's kubelet has stopped to report."""
    bodies = objects.list("v1", "Node", field_selector=f"metadata.name={node}")
    return any(map(is_silent, bodies))


LOOK = "gpusharectl/look"
"""Annotation whose change makes kubelet check the pod; it goes with the old pod."""
_ENDED_TOO_OFTEN = 2
"""After so many restarts it is not a slow start; kubelet waits longer after each."""


class MirrorPod:
    """kube-scheduler's pod on one node, as the API server shows it."""

    def __init__(self, objects: Objects, node: str, pace: PollPace) -> None:
        self._objects = objects
        self._node = node
        self._pace = pace

    def wait(self, manifest: SchedulerPod, say: Say, timeout_s: float) -> str:
        """Wait until the pod of this manifest is Ready; return why it is not, or "".

        ``say`` is called with what is waited for, whenever that changes.
        """
        name = f"{manifest.body['metadata'].get('name')}-{self._node}"
        ref = Ref("v1", "Pod", name, SYSTEM)
        last_reason = ""

        def look() -> str | None:
            nonlocal last_reason
            pod = self._objects.get(ref)
            waiting = _waits(pod, manifest)
            if not waiting:
                return ""
            if waiting != last_reason:
                last_reason = waiting
                say(f"{ref.name}: {waiting}")
            if pod is None:
                return None
            if is_made_from(pod, manifest):
                return self._crash(ref, pod)
            self._hurry(ref, pod)
            return None

        try:
            seen = self._pace.until(look, timeout_s)
        except ClusterError as error:
            return f"{ref.name} cannot be read: {error}"
        if seen is not None:
            return seen
        why = self._silence() or last_reason or "the API server does not answer"
        return f"not Ready within {timeout_s:g} s: {why}"

    def _silence(self) -> str:
        """Return in words that the node's kubelet has stopped to report, or ""."""
        with suppress(ClusterError):
            if is_node_silent(self._objects, self._node):
                return f"the kubelet of {self._node} has stopped to report"
        return ""

    def _hurry(self, ref: Ref, pod: Json) -> None:
        """Change the old mirror pod, so that kubelet checks whether it has ended.

        Without the right to, or too late, kubelet checks in its own time.
        """
        # The value differs from every earlier one. And a new pod, which may exist by
        # now under the same name, has another version, so it stays unchanged.
        now = str(pod["metadata"]["resourceVersion"])
        metadata = {"resourceVersion": now, "annotations": {LOOK: now}}
        with suppress(ClusterError):
            self._objects.merge(ref, {"metadata": metadata})

    def _crash(self, ref: Ref, pod: Json) -> str | None:
        """Return that it keeps ending, with its last words; None if it does not.

        Only while it is down: a pod that has just started has no log yet.
        """
        down = filter(_failed, container_statuses(pod, inits=False))
        ends = max((int(each.get("restartCount", 0)) for each in down), default=0)
        if ends < _ENDED_TOO_OFTEN:
            return None
        log = _logged(self._objects, ref)
        return f"it has ended {ends} times. Its log says: {log}" if log else None


def _waits(pod: Json | None, manifest: SchedulerPod) -> str:
    if pod is None:
        return "kubelet has to start the new pod"
    if not is_made_from(pod, manifest):
        return "the old pod has to end"
    ready = condition(pod, "Ready").get("status") == "True"
    if ready and not pod["metadata"].get("deletionTimestamp"):
        return ""
    return container_wait(pod) or "the pod is starting"


def _failed(container: Json) -> bool:
    """Return whether a container is down by its own fault.

    One that was told to stop has exit code 0, however often.
    """
    state, last = (container.get(key) or {} for key in ("state", "lastState"))
    ended = state.get("terminated") or last.get("terminated") or {}
    return "running" not in state and ended.get("exitCode") != 0


def is_made_from(pod: Json, manifest: SchedulerPod) -> bool:
    """Return whether the pod has this manifest's stamp and flags."""
    annotations = pod["metadata"].get("annotations") or {}
    same_stamp = annotations.get(STAMP, "") == manifest.annotation(STAMP)
    return same_stamp and command_words(scheduler_container(pod)) == command_words(
        manifest.main
    )
