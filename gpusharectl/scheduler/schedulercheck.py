"""Try a new configuration before kube-scheduler gets it: would it be read at all.

A pod of kube-scheduler's own image, on its own host and with its own mounts, is told to
write the configuration out and end (``--write-config-to``). It loads and validates it,
opens the kubeconfig and builds the extenders, certificates included, and talks to
nobody.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.objects import Objects, Ref
from gpusharectl.scheduler.pace import Pace
from gpusharectl.scheduler.schedulerpod import CONFIG_FLAG, SchedulerPod
from gpusharectl.scheduler.shortpod import made, short_pod, states, waits_for

NAME = "gpushare-scheduler-check"
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
    return short_pod(f"{NAME}-{node}", spec)


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
