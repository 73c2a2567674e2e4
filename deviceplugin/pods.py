"""A pod of this node, and who holds which devices of ours. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from gpushare.domain.model import (
    Amount,
    Claim,
    ContainerAmount,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.refusal import Refusal
from gpushare.domain.request import Role
from gpushare.kube import codec, facts, names
from gpushare.kube.cluster import Json, Target
from gpushare.kube.codec import PodRecord
from gpushare.kube.request_cache import Unmeetable, containers

PodName = tuple[str, str]
"""Namespace and name: all that kubelet's pod resources tell of a pod."""
NOBODY: PodName = ("", "")
"""A pod of which nobody knows the name."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A container that asks for cards, in kubelet's order of admission."""

    name: str
    role: Role
    amount: Amount


@dataclass(frozen=True, slots=True)
class Step:
    """One allocation that kubelet asks: so many of one resource for a container."""

    container: str
    resource: str
    count: int


@dataclass(frozen=True)
class NodePod:
    """One pod of this node.

    ``bound`` is when it came to the node, by the API server's clock, for order alone;
    ``running`` names the containers that run, as kubelet last told the API server.
    """

    record: PodRecord
    asking: tuple[Asking, ...]
    bound: str
    running: frozenset[str] = frozenset()

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All allocations of the pod, in the order of its containers."""
        return tuple(
            Step(asking.name, resource, count)
            for asking in self.asking
            for resource, count in (
                (names.CORE, asking.amount.cores),
                (names.MEMORY, asking.amount.units),
            )
            if count
        )

    @cached_property
    def passing(self) -> frozenset[str]:
        """The init containers that end before the next container starts."""
        return frozenset(a.name for a in self.asking if a.role is Role.INIT)

    @property
    def ref(self) -> PodRef:
        """Which pod it is."""
        return self.record.pod

    @property
    def uid(self) -> PodUID:
        """Its UID."""
        return self.record.pod.uid

    @property
    def name(self) -> PodName:
        """Its namespace and name."""
        return (self.record.pod.namespace, self.record.pod.name)

    @property
    def target(self) -> Target:
        """The pod as the target of a write."""
        return Target(*self.name, self.uid)

    @property
    def placement(self) -> Placement | None:
        """The believed placement: the actual one, or else the planned one."""
        return self.record.placement

    def what_is_wrong(self) -> str:
        """Say why what it asks can never be met; empty where it can be."""
        request = self.record.request
        return codec.refusal_text(request) if isinstance(request, Refusal) else ""


def node_pod(pod: Json) -> NodePod:
    """Read a pod; ``Malformed`` for what no API server would send."""
    record = codec.pod_record(pod)
    try:
        specs = containers(pod)
    except Unmeetable:
        specs = []
    asking = tuple(Asking(s.name, s.role, s.amount) for s in specs if s.amount)
    return NodePod(record, asking, _bound(pod), _running(pod))


def _bound(pod: Json) -> str:
    """Say when the pod was bound; when it was made, where nobody bound it."""
    if facts.holds(pod, "PodScheduled"):
        return str(facts.condition(pod, "PodScheduled").get("lastTransitionTime") or "")
    return facts.created(pod)


def _running(pod: Json) -> frozenset[str]:
    status = pod.get("status") or {}
    told = (
        one
        for key in ("initContainerStatuses", "containerStatuses")
        for one in status.get(key) or ()
    )
    return frozenset(
        str(one.get("name")) for one in told if "running" in (one.get("state") or {})
    )


def may_be_static(name: PodName, node: NodeName) -> bool:
    """Tell whether a pod has the name that kubelet gives static pods of this node."""
    return name[1].endswith(f"-{node}")


def unlisted_pod(name: PodName, amount: Amount) -> NodePod:
    """Make up a pod of which only kubelet knows, with one nameless container.

    Its UID is empty. Of its other resource nothing is known yet, so that the emptiest
    card is the best guess.
    """
    ref = PodRef(PodUID(""), *name)
    claim = Claim(amount, (ContainerAmount("", amount),))
    record = PodRecord(
        pod=ref,
        request=PodRequest(ref, (claim,), "spread"),
        node=NodeName(""),
        placement=None,
        terminal=False,
        terminating=False,
        nominated=NodeName(""),
        labels={},
    )
    return NodePod(record, (Asking("", Role.APP, amount),), "")


Held = Mapping[str, frozenset[str]]
"""Device ids by resource, of one container."""


@dataclass(frozen=True)
class Listed:
    """One answer of kubelet: the active pods, each container with its devices of ours.

    A pod that asks nothing of us is there too, its containers without devices; init
    containers that end are not (contracts 2.6).
    """

    pods: Mapping[PodName, Mapping[str, Held]]

    def holders(self) -> Iterator[tuple[PodName, str, str, frozenset[str]]]:
        """Give pod, container, resource and device ids of all that holds any."""
        for pod, of_pod in self.pods.items():
            for container, held in of_pod.items():
                for resource, ids in held.items():
                    yield pod, container, resource, ids

    @cached_property
    def holder(self) -> Mapping[str, PodName]:
        """Which pod holds each device id that is held."""
        return {one: pod for pod, _, _, ids in self.holders() for one in ids}

    def held(self, pod: PodName) -> Mapping[str, Held]:
        """Give what each listed container of a pod holds; empty for a stranger."""
        return self.pods.get(pod, {})
