"""Whose turn it is at kubelet's admission, and at which step. Pure.

kubelet admits one pod at a time, container by container, resources in random order
within one, and never interleaves two pods (contracts 2.3). So the one pod in its list
that lacks devices is the one whose turn it is. A container that runs without devices is
never asked for: kubelet lost its checkpoint, or admitted the pod before there was a
device plugin.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from deviceplugin.pods import Listed, NodePod, Step
from gpushare.domain.model import Placement, PodUID

Served = Collection[tuple[PodUID, str, str]]
"""Pod, container and resource of what has been allocated."""


def steps_left(pod: NodePod, listed: Listed, served: Served) -> tuple[Step, ...]:
    """Give the allocations that kubelet has still to ask, none once it is admitted.

    What a listed container holds, the list says; init containers that end are not
    listed, and of those ``served`` tells.
    """
    held = listed.held(pod.name)
    passing = pod.passing
    listed_ones = [step for step in pod.steps if step.container not in passing]
    lacking = [
        step
        for step in listed_ones
        if step.resource not in held.get(step.container, ())
        and step.container not in pod.running
    ]
    if not passing:
        return tuple(lacking)
    if listed_ones and not lacking:
        return ()
    return tuple(
        step
        for step in pod.steps
        if step in lacking
        or (
            step.container in passing
            and (pod.uid, step.container, step.resource) not in served
        )
    )


def candidates(
    pods: Iterable[NodePod], listed: Listed, served: Served, step: tuple[str, int]
) -> list[NodePod]:
    """Give the pods whose turn it may be, when kubelet asks ``(resource, count)``.

    The one that was bound last comes first: kubelet adds a pod to its list right before
    it admits the pod, so all others that lack devices were passed over before.
    """
    found = []
    for pod in pods:
        if pod.name in listed.pods:
            left = steps_left(pod, listed, served)
            if any((one.resource, one.count) == step for one in left):
                found.append(pod)
    return sorted(found, key=lambda pod: (pod.bound, pod.name), reverse=True)


@dataclass(frozen=True, slots=True)
class Turn:
    """One pod's admission: where it is to be placed, and what is still to be asked."""

    pod: NodePod
    placement: Placement
    left: tuple[Step, ...]

    def step(self, resource: str, count: int) -> Step | None:
        """Give the step that such a call is; None where it is none of this turn's."""
        for step in self.left:
            if (step.resource, step.count) == (resource, count):
                return step
        return None

    def after(self, step: Step) -> "Turn":
        """Give the turn once the step is done: containers before its own are past."""
        order = [asking.name for asking in self.pod.asking]
        here = order.index(step.container)
        left = tuple(
            one
            for one in self.left
            if one != step and order.index(one.container) >= here
        )
        return replace(self, left=left)
