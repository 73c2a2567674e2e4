"""An extender's rooms over an embedded cluster, with clocks and faults to hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from extender.scheduling.bind import Binder, BindResult
from extender.scheduling.service import SchedulingVerbs, WaitAllowance
from extender.scheduling.state import ExtenderState
from extender.scheduling.wire import (
    ExtenderArgs,
    FilterResult,
    read_binding_args,
    read_extender_args,
)
from gpushare.domain.model import Amount, CardUUID, NodeName
from gpushare.kube.cluster import Json, Kind, ListPage, PodTarget
from gpushare.kube.errors import ClusterError
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import AT, cards, event, node_json, pod_json


class Clock:
    """A clock that a test moves; with ``step_s`` also each look at it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step_s = 0.0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


@dataclass(frozen=True)
class Fault:
    """What becomes of one bind: whether it is written, and what the caller hears."""

    error: ClusterError | None = None
    lands: bool = False
    node: str = ""
    annotations: Mapping[str, str] | None = None


class ScriptedCluster(Embedded):
    """An embedded cluster whose binds, reads and lists fail when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.on_bind: list[Fault] = []
        self.on_get: list[ClusterError] = []
        self.on_list: Callable[[Kind], object] = lambda _kind: None
        self.writes = 0
        self.reads = 0

    def bind(
        self,
        pod: PodTarget,
        node: str,
        annotations: Mapping[str, str],
        *,
        timeout_s: float = 0.0,
    ) -> None:
        self.writes += 1
        if not self.on_bind:
            super().bind(pod, node, annotations, timeout_s=timeout_s)
            return
        fault = self.on_bind.pop(0)
        if fault.lands:
            others = fault.annotations
            written = annotations if others is None else others
            super().bind(pod, fault.node or node, written, timeout_s=timeout_s)
        if fault.error is not None:
            raise fault.error

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        self.reads += 1
        if self.on_get:
            raise self.on_get.pop(0)
        return super().get(kind, namespace, name)

    def list_page(self, kind: Kind, *, limit: int, **more: Any) -> ListPage:
        self.on_list(kind)
        return super().list_page(kind, limit=limit, **more)

    def pod(self, name: str) -> Json:
        """Read a pod past the script and the count."""
        return super().get(Kind.PODS, "default", name)


class ExtenderFixture:
    """All rooms but HTTP; what each node's cards have is given in units.

    Nothing is followed by itself: ``see`` brings what the cluster holds to the books.
    """

    def __init__(
        self,
        *,
        wait_s: float = 0.0,
        wait_for_news_s: float = 0.0,
        **nodes: Sequence[int],
    ) -> None:
        self.clock = Clock()
        self.cluster = ScriptedCluster()
        self.state = ExtenderState(wait_s=wait_s, pending_for_s=5.0, clock=self.clock)
        self.ledger, self.inflight = self.state.ledger, self.state.inflight
        self.pods, self.nodes = self.state.pods, self.state.nodes
        for name, units in (nodes or {"n": (29,)}).items():
            self.nodes.apply(event("ADDED", node_json(name, *cards(*units))))
        self.wait_allowance = WaitAllowance(wait_for_news_s)
        self.verbs = SchedulingVerbs(
            self.cluster, self.state, self.wait_allowance, clock=self.clock
        )
        self.binder = Binder(
            self.cluster, self.state, timeout_s=4.0, now=lambda: AT, clock=self.clock
        )

    def create(self, name: str = "pod", *, seen: bool = True, **how: Any) -> Json:
        """Make a pod; ``how`` as ``pod_json`` has it."""
        body = pod_json(name, **how)
        made = self.cluster.create(Kind.PODS, body)
        if seen:
            self.pods.apply(event("ADDED", made))
        return made

    def see(self, name: str = "pod") -> None:
        """Let the watch bring a pod as it is now."""
        self.pods.apply(event("MODIFIED", self.cluster.pod(name)))

    def bind(
        self, pod: Json, node: str = "n", *, uid: str = "", judged: bool = True
    ) -> BindResult:
        """Ask filter about the node, as kube-scheduler does, and then bind to it."""
        if judged:
            self.filter(pod, node)
        body = binding(pod, node) | ({"PodUID": uid} if uid else {})
        return self.binder.bind(read_binding_args(orjson.dumps(body)))

    def filter(self, pod: Json, *names: str) -> FilterResult:
        return self.verbs.filter(asked(pod, *(names or ("n",))))

    def node_of(self, name: str) -> str:
        """Say where the cluster has the pod; empty where it is not bound."""
        return str(self.cluster.pod(name)["spec"].get("nodeName", ""))

    def free(self, node: str = "n", index: int = 0) -> Amount:
        page = self.ledger.node(NodeName(node))
        if page is None:
            raise LookupError(node)
        return page.free[CardUUID(f"GPU-{index}")]


def asked(pod: Json, *names: str) -> ExtenderArgs:
    """What kube-scheduler asks of filter and prioritize about a pod."""
    return read_extender_args(orjson.dumps({"Pod": pod, "NodeNames": names}))


def binding(pod: Json, node: str = "n") -> Json:
    """What kube-scheduler asks of bind."""
    metadata = pod["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }
