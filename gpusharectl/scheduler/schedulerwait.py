"""Wait until kubelet runs kube-scheduler by the manifest as it is now.

kubelet starts the new one when the old one has ended, but looks for that end only every
ten to fifteen seconds, in which nobody schedules. It looks at once where the mirror pod
changes, so it is given a reason to look.
"""

from collections.abc import Callable
from contextlib import suppress

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.objects import Objects, Ref
from gpusharectl.scheduler.pace import Pace
from gpusharectl.scheduler.schedulercheck import last_words
from gpusharectl.scheduler.schedulerpod import SchedulerPod, container, words
from gpusharectl.scheduler.shortpod import SYSTEM, is_ready, states, waits_for
from gpusharectl.scheduler.staticpod import STAMP

Say = Callable[[str], None]
LOOK = "gpusharectl/look"
"""Annotation that gives kubelet a reason to look; it goes with the old mirror pod."""
_ENDED_TOO_OFTEN = 2
"""Ends after which it is not a slow start; kubelet waits longer with each."""
_LOG_LINES = 20


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
