"""Compares the devices that kubelet gave to each pod with the pod's placement.

kubelet is asked pod by pod, never for its list: a List during an Allocate makes kubelet
forget devices (contracts 2.7).
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event

from exporter.owners.owner_pods import OwnerPod, OwnerPods
from gpushare.kubelet.node_pods import (
    KubeletSilentError,
    NoGetError,
    PodResources,
    UnknownPodError,
)
from gpushare.kubelet.pods import DeviceId, HeldDevices, PodName, card_key
from gpushare.logs import LogOnce


@dataclass(frozen=True, slots=True)
class KubeletRound:
    """One pass over the pods that have a placement.

    ``answered`` counts the pods about which kubelet answered, also that it knows no
    such pod. ``misplaced`` are those whose devices are of other cards than their
    placement. ``failure`` says why nothing is known.
    """

    at: float
    took_s: float
    answered: int = 0
    misplaced: tuple[PodName, ...] = ()
    failure: str = ""


def disagrees(owner_pod: OwnerPod, containers: Mapping[str, HeldDevices]) -> bool:
    """Return whether a pod's devices are of other cards than its placement.

    Only cards are compared: devices do not tell which container has which whole card,
    nor what an init container had (contracts 2.3, 2.6).
    """
    shares = owner_pod.shares()
    if not shares:
        return False
    planned = {card_key(share.card) for share in shares}
    ids = (
        device
        for devices in containers.values()
        for given_ids in devices.values()
        for device in given_ids
    )
    given = {device.key for device in map(DeviceId.parse, ids) if device}
    init = owner_pod.pod.regular_init_containers
    if not given:
        # A container that runs must have some; one that just starts need not yet.
        asking = {container.name for container in owner_pod.pod.gpu_containers} - init
        return bool(asking & owner_pod.pod.running)
    return not given <= planned if init else given != planned


_GET_WITHIN_S = 1.0
_BETWEEN_S = 0.02
"""kubelet answers 100 questions a second to all its clients together."""
_GIVE_UP_AFTER = 3
_SILENT = "kubelet does not say which devices a pod has: "
_LACKING = (
    "kubelet cannot be asked what one pod holds, so it is not compared with the "
    "placements; this needs Kubernetes 1.34"
)

logger = logging.getLogger(__name__)


class KubeletCheck:
    """The group ``kubelet``; ``latest`` is None until a whole round was made.

    A kubelet before 1.34 cannot be asked, so there is never a round then. That is not
    reported as a problem; it is logged once.
    """

    def __init__(
        self,
        resources: PodResources,
        owner_pods: Callable[[], OwnerPods | None],
        *,
        enabled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._resources = resources
        self._owner_pods = owner_pods
        self._enabled = enabled
        self._log_once = LogOnce(logger)
        self._latest: KubeletRound | None = None
        self._lacking = False

    def latest(self) -> KubeletRound | None:
        """Return the last round; None if there is none, or while the group is off."""
        return self._latest if self._enabled() else None

    def run(self, stop: Event, every_s: float) -> None:
        """Make a round every so often until ``stop`` is set."""
        while not stop.is_set():
            pods = self._owner_pods() if self._enabled() else None
            if pods is None:
                self._latest = None
            else:
                self._take(self.check(pods, stop))
            stop.wait(every_s if pods is not None else min(every_s, 1.0))

    def check(self, pods: OwnerPods, stop: Event) -> KubeletRound | None:
        """Ask about each pod that has a placement, with a pause after each.

        None if this kubelet cannot be asked about one pod.
        """
        began, count, silent, why = time.monotonic(), 0, 0, ""
        misplaced: list[tuple[str, str]] = []
        for owner_pod in pods.all:
            if not owner_pod.shares() or owner_pod.terminating or stop.is_set():
                continue
            try:
                containers = self._resources.get_or_raise(owner_pod.name, _GET_WITHIN_S)
            except NoGetError:
                return None
            except UnknownPodError:
                count += 1
            except KubeletSilentError as error:
                silent, why = silent + 1, str(error)
                if not count and silent >= _GIVE_UP_AFTER:
                    break
            else:
                count += 1
                misplaced += (
                    [owner_pod.name] if disagrees(owner_pod, containers) else []
                )
            stop.wait(_BETWEEN_S)
        failure = f"{_SILENT}{why}" if silent and not count else ""
        took_s = time.monotonic() - began
        return KubeletRound(time.time(), took_s, count, tuple(misplaced), failure)

    def _take(self, round_: KubeletRound | None) -> None:
        if round_ is None and not self._lacking:
            logger.info(_LACKING)
        # A round without an answer does not show that kubelet was upgraded.
        if round_ and self._lacking and not round_.answered and not round_.failure:
            round_ = None
        self._lacking, self._latest = round_ is None, round_
        if round_ is None:
            return
        log = self._log_once
        if why := round_.failure:
            log.problem("kubelet", why, "kubelet cannot be asked", because=why)
        else:
            log.recovered("kubelet", "kubelet answers again")
        record = "kubelet's record and the placements"
        if pods := ", ".join("/".join(name) for name in round_.misplaced):
            log.problem("misplaced", pods, f"{record} differ", pods=pods)
        else:
            log.recovered("misplaced", f"{record} agree")
