"""One pod on its node, from kubelet's admission to its containers running."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.kube.cluster import Json
from gpusharectl.demo.devices import CannotStartYetError, Devices, Rejection
from gpusharectl.demo.given import Given
from gpusharectl.demo.statuses import rejected, running, waiting

AGAIN_AFTER_S = 1.0
"""How long a container waits that could not start; kubelet takes longer."""


@dataclass(frozen=True, slots=True)
class Step:
    """What became of a pod: its new status, and the warning that goes with it.

    ``reason`` and ``message`` are the event's, both empty where nothing is wrong.
    """

    status: Json
    reason: str = ""
    message: str = ""


class PodLife:
    """Takes a bound pod from step to step; ``over`` when none is left to take."""

    def __init__(self, devices: Devices, pod: Json) -> None:
        self.given: dict[str, Given] = {}
        self.over = False
        self._devices = devices
        self._pod = pod
        self._admitted = False
        self._not_before = 0.0
        self._complaints: dict[str, str] = {}

    @property
    def uid(self) -> str:
        """Whose life it is."""
        return str(self._pod["metadata"]["uid"])

    def step(self) -> Step | None:
        """Admit the pod, then start what may start; None when nothing is new."""
        if self.over or time.monotonic() < self._not_before:
            return None
        if not self._admitted:
            admitted = self._admit()
            if isinstance(admitted, Rejection):
                self.over = True
                return Step(rejected(admitted), admitted.reason, admitted.because)
            self._admitted = True
        complaints = self._start_all()
        if not complaints:
            self.over = True
            return Step(running(self._pod))
        self._not_before = time.monotonic() + AGAIN_AFTER_S
        if complaints == self._complaints:
            return None
        self._complaints = complaints
        message = "Error: " + "; ".join(complaints.values())
        return Step(waiting(self._pod, self.given, complaints), "Failed", message)

    def end(self) -> None:
        """Give the pod's devices back."""
        self.over = True
        self._devices.release(self.uid)

    def _admit(self) -> Mapping[str, Given] | Rejection:
        try:
            return self._devices.admit(self._pod)
        except ValueError as error:
            # A real API server would not have stored such a pod.
            return Rejection("InvalidPod", str(error))

    def _start_all(self) -> dict[str, str]:
        """Start what does not run; give what was said of those that may not yet.

        An init container that may not start keeps all others waiting.
        """
        spec = self._pod["spec"]
        for one in spec.get("initContainers") or []:
            if complaint := self._start(one["name"]):
                return {one["name"]: complaint}
        names = [one["name"] for one in spec["containers"]]
        said = {name: self._start(name) for name in names}
        return {name: complaint for name, complaint in said.items() if complaint}

    def _start(self, container: str) -> str:
        if container in self.given:
            return ""
        try:
            self.given[container] = self._devices.start(self.uid, container)
        except CannotStartYetError as error:
            return str(error)
        return ""
