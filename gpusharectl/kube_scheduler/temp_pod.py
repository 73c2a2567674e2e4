"""A pod that we make to learn something from, and delete again whatever happens.

Look again and again until something is so, or time is up.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.objects import Objects, Ref

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Pace:
    """How to look; the clock counts seconds."""

    every_s: float = 0.5
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

    def until(self, look: Callable[[], Seen | None], timeout_s: float) -> Seen | None:
        """Give what is seen first; None when nothing is seen in time.

        An API server that is away for a moment is waited for too: it starts anew on
        the host whose files we change.
        """
        deadline = self.clock() + timeout_s
        while True:
            try:
                seen = look()
            except ClusterError as error:
                if not error.retryable:
                    raise
                seen = None
            if seen is not None:
                return seen
            if self.clock() >= deadline:
                return None
            self.pause(self.every_s)


SYSTEM = "kube-system"
INSTALLER = "gpushare-installer"
"""Label of what we make for a moment; a node's name may be too long for one."""
_GONE_WITHIN_S = 30.0


def short_pod(name: str, spec: Json, annotations: Json | None = None) -> Json:
    """Describe one in kube-system that runs once, on any node, without credentials."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": SYSTEM,
            "labels": {
                "app.kubernetes.io/name": INSTALLER,
                "app.kubernetes.io/part-of": "gpushare",
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


@contextmanager
def made(objects: Objects, body: Json, pace: Pace) -> Iterator[Ref]:
    """Make a pod, one of its name that was left behind aside, and delete it after."""
    ref = Ref.of(body)
    if objects.delete(ref, grace_period_s=0):
        pace.until(lambda: objects.get(ref) is None or None, _GONE_WITHIN_S)
    try:
        objects.create(body)
        yield ref
    finally:
        # Also on Ctrl-C; an error of this must not hide what was learned.
        with suppress(ClusterError):
            objects.delete(ref, grace_period_s=0)


def condition(pod: Json, kind: str) -> Json:
    """Give one of a pod's conditions; empty where it has none of this kind."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def is_ready(pod: Json) -> bool:
    """Tell whether a pod is Ready and is to stay."""
    leaving = bool(pod["metadata"].get("deletionTimestamp"))
    return condition(pod, "Ready").get("status") == "True" and not leaving


def states(pod: Json) -> list[Json]:
    """Give what kubelet says of each container: ``restartCount``, ``state``, …."""
    return list((pod.get("status") or {}).get("containerStatuses") or ())


def waits_for(pod: Json) -> str:
    """Say what a pod's container waits for, "" where it waits for nothing."""
    for each in states(pod):
        waiting = (each.get("state") or {}).get("waiting") or {}
        words = (waiting.get("reason"), waiting.get("message"))
        if any(words):
            return ": ".join(str(word) for word in words if word)
    return str(condition(pod, "PodScheduled").get("message") or "")
