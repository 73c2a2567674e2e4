"""Which pod kubelet admits just now: found in its own list and in the watch."""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLongError

from deviceplugin.nodepod import NOBODY, Held, Listed, NodePod, PodName
from deviceplugin.occupancy import Occupancy
from deviceplugin.podresources import KubeletSilentError, PodResources
from deviceplugin.pods import NodePods
from deviceplugin.turns import Served, candidates, steps_left
from gpushare.domain.model import PodUID

logger = logging.getLogger(__name__)

_LIST_WITHIN_S = 1.0
_SEEN_WITHIN_S = 0.05
_LEARNT_WITHIN_S = 0.3
"""In all, for kubelet waits: its watch of pods may be ahead of ours."""


class Whose:
    """Says whose turn it is. kubelet waits, so every question has its deadline."""

    def __init__(
        self, pods: NodePods, resources: PodResources, occupancy: Occupancy
    ) -> None:
        self._pods = pods
        self._resources = resources
        self._occupancy = occupancy
        self._fetching = ThreadPoolExecutor(2, thread_name_prefix="fetch")
        self._settled = dict[PodUID, tuple[NodePod, Mapping[str, Held]]]()

    def look(self) -> Listed:
        """Ask kubelet who holds what; where it is silent, what we allocated must do."""
        try:
            return self._resources.list(_LIST_WITHIN_S)
        except KubeletSilentError as error:
            logger.warning("kubelet lists no devices", extra={"because": str(error)})
            return self._occupancy.as_allocated()

    def pod(self, listed: Listed, resource: str, size: int) -> NodePod | None:
        """Give the pod whose turn it is; None for one that only kubelet knows."""
        step = (resource, size)
        deadline = time.monotonic() + _LEARNT_WITHIN_S
        found = self._candidates(listed, step, self._occupancy.served())
        if not found:
            for name in self._unseen(listed):
                self._learn(name, deadline)
            found = self._candidates(listed, step, self._occupancy.served())
            found = found or self._candidates(listed, step, ())
        if not found:
            return None
        pod = found[0]
        if self._occupancy.is_forgotten(pod, listed):
            # Either kubelet forgot, or this is a new pod under an old one's name.
            return self._fetch(pod.name, deadline) or pod
        return pod

    def stranger(self, listed: Listed, last: PodName, before: Listed) -> PodName:
        """Name the pod that only kubelet knows, or ``NOBODY`` where it may be several.

        ``last`` is the one that was given devices a moment ago, by the list ``before``:
        it is not done where kubelet has no pod more, for those of the future it does
        not list yet.
        """
        unseen = self._unseen(listed)
        unseen = [n for n in unseen if self._pods.find(n) is None] or unseen
        if last in listed.pods:
            unseen = [n for n in unseen if n not in before.pods] or [last]
        return unseen[0] if len(unseen) == 1 else NOBODY

    def _candidates(
        self, listed: Listed, step: tuple[str, int], served: Served
    ) -> list[NodePod]:
        return candidates(self._unsettled(listed), listed, served, step)

    def _unsettled(self, listed: Listed) -> list[NodePod]:
        """Give those listed that lack devices; most do not, as was seen before."""
        before, self._settled = self._settled, {}
        lacking = []
        for pod in self._pods.all():
            held = listed.pods.get(pod.name)
            if held is None:
                continue
            seen = before.get(pod.uid)
            same = seen is not None and seen[0] is pod and seen[1] is held
            if same or not steps_left(pod, listed, ()):
                self._settled[pod.uid] = (pod, held)
            else:
                lacking.append(pod)
        return lacking

    def _unseen(self, listed: Listed) -> list[PodName]:
        """Give the pods without devices that the watch has not told of.

        Last those whose name it knows, and which had devices: each may be a new pod
        under that name, or one whose devices kubelet has forgotten.
        """
        unseen = [
            name
            for name, held in listed.pods.items()
            if not any(held.values()) and not self._is_known(name)
        ]
        return sorted(unseen, key=lambda name: self._pods.find(name) is not None)

    def _is_known(self, name: PodName) -> bool:
        pod = self._pods.find(name)
        return pod is not None and not self._occupancy.was_served(pod.uid)

    def _learn(self, name: PodName, deadline: float) -> None:
        left = max(0.0, deadline - time.monotonic())
        found = self._pods.wait_for(name, min(_SEEN_WITHIN_S, left))
        if found is None or self._occupancy.was_served(found.uid):
            self._fetch(name, deadline)

    def _fetch(self, name: PodName, deadline: float) -> NodePod | None:
        """Ask the API server, and go by the watch where it takes too long."""
        asked = self._fetching.submit(self._pods.fresh, name)
        try:
            return asked.result(max(0.0, deadline - time.monotonic()))
        except TookTooLongError:
            asked.cancel()
            return self._pods.find(name)
