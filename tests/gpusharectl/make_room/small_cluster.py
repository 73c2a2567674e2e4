"""A cluster in memory whose controllers and scheduler work while somebody waits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpushare.domain.model import Card, Placement
from gpushare.domain.placement import schedule
from gpushare.domain.policies import Policy, PolicyChoice
from gpushare.kube import codec, facts, names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.apiserver.api import ApiObjects, ApiServer
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpusharectl.access import Access
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.make_room.evict import Patience
from gpusharectl.state.read import compute_placements
from tests.builders import AT, card, pod_json, share
from tests.gpusharectl.cluster_states import extender, node_of

_KINDS = {"ds": "DaemonSet", "job": "Job", "node": "Node", "sts": "StatefulSet"}
ROOMY = {"cpu": "8", "memory": "64Gi", "pods": "110"}


class SmallCluster:
    """Nodes, and pods of ReplicaSets; ``step`` does what Kubernetes would.

    A leaving pod ends, its controller makes another one, and that one is placed as by
    the extender. ``hinder`` is called before each step, to change the cluster.
    """

    def __init__(self, access: Access, embedded: Embedded, kubeconfig: str) -> None:
        self.access, self.api, self.kubeconfig = access, embedded, kubeconfig
        self.hinder: Callable[[], object] = lambda: None
        self.replaces = self.binds = True
        self.at_once = False
        """A new pod is made when the old one begins to end, not when it has ended."""
        self.ends_after_s = 0.0
        self.said: list[str] = []
        self._now = 0.0
        self._replaced: set[str] = set()

    def node(self, name: str, *cards: Card) -> None:
        made = node_of(name, *cards)
        made["status"]["allocatable"] |= ROOMY
        self.api.create(Kind.NODES, made)

    def extender(self, *, ready: bool) -> None:
        """Say whether the extender's pod is ready; it is one that cannot be asked."""
        status = {"status": extender(ready=ready)["status"]}
        where = (Kind.PODS, facts.SYSTEM, facts.name_of(extender()))
        self.api.patch(*where, status, subresource="status")

    def pod(self, name: str, units: int, *, owner: str = "rs", **spec: Any) -> Json:
        """Create a pod of a controller, which is a ReplicaSet unless its name says."""
        body = pod_json(name, units=units, cores=1, labels={"app": owner})
        body["metadata"].pop("uid")
        body["spec"] |= spec
        if owner:
            kind = _KINDS.get(owner, "ReplicaSet")
            body["metadata"]["ownerReferences"] = [
                {"kind": kind, "name": owner, "uid": f"uid-{owner}", "controller": True}
            ]
        return self.api.create(Kind.PODS, body)

    def place(self, name: str, node: str, card: str, units: int, **spec: Any) -> None:
        """Create a pod and bind it to a card."""
        self.bind(self.pod(name, units, owner=name, **spec), node, card)

    def bind(self, pod: Json, node: str, card: str) -> None:
        placed = codec.read_pod_record(pod).request
        assert hasattr(placed, "claims")
        (claim,) = placed.claims
        own = share(card, claim.amount.units, claim.amount.cores)
        held = Placement(codec.read_pod_ref(pod), node, (own,))  # type: ignore[arg-type]
        notes = {names.PLACEMENT: encode_placement(held, AT)}
        uid = pod["metadata"]["uid"]
        name = facts.name_of(pod)
        self.api.bind(PodTarget("default", name, uid), node, notes)
        # A pod that does not run is evicted whatever its budget says.
        status = {"status": {"phase": "Running"}}
        self.api.patch(Kind.PODS, "default", name, status, subresource="status")

    def annotate(self, name: str, notes: dict[str, str]) -> None:
        self.api.annotate(Kind.PODS, "default", name, notes)

    def leave(self, name: str) -> None:
        self.api.delete(Kind.PODS, "default", name)

    def budget(self, app: str, allowed: int, *, name: str = "") -> None:
        body = {
            "metadata": {"name": name or f"pdb-{app}", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": allowed},
        }
        self.api.create(Kind.BUDGETS, body)

    def allow(self, app: str, allowed: int) -> None:
        status = {"status": {"disruptionsAllowed": allowed}}
        self.api.patch(
            Kind.BUDGETS, "default", f"pdb-{app}", status, subresource="status"
        )

    def end(self, name: str) -> None:
        self.api.delete(Kind.PODS, "default", name, grace_period_s=0)

    def get(self, name: str) -> Json:
        return self.api.get(Kind.PODS, "default", name)

    def cards_of(self, name: str) -> tuple[str, ...]:
        held = codec.read_pod_record(self.get(name)).placement
        return held.cards() if held else ()

    def cordon(self, node: str = "n1") -> str:
        return facts.annotation(self.api.get(Kind.NODES, "", node), names.CORDON)

    def pods(self) -> list[Json]:
        return list(self.api.list_page(Kind.PODS, limit=0).items)

    def step(self, seconds: float = 1.0) -> None:
        self._now += seconds
        self.hinder()
        for pod in filter(facts.is_leaving, self.pods()):
            ends = self._now >= self.ends_after_s
            if ends:
                self.end(facts.name_of(pod))
            if self.replaces and (ends or self.at_once):
                self._replace(pod)
        for pod in self.pods() if self.binds else ():
            if not facts.node_of(pod):
                self._schedule(pod)

    def _replace(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._replaced:
            return
        self._replaced.add(uid)
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        name = f"{facts.name_of(pod)}-new{len(self._replaced)}"
        self.pod(name, int(limits[names.MEMORY]), owner=facts.label(pod, "app"))

    def _schedule(self, pod: Json) -> None:
        nodes = self.api.list_page(Kind.NODES, limit=0).items
        placements, _ = compute_placements(nodes, self.pods(), PolicyChoice(), "")
        policy, request = (
            PolicyChoice().policy(None),
            codec.read_pod_record(pod).request,
        )
        assert isinstance(policy, Policy)
        seen = [one.as_seen_by(request.pod) for one in placements.nodes]  # type: ignore[union-attr]
        found = schedule(request, seen, policy)  # type: ignore[arg-type]
        if isinstance(found, Placement):
            self.bind(pod, found.node, found.cards()[0])

    @property
    def patience(self) -> Patience:
        return Patience(30, 1.0, lambda: self._now, self.step)


@contextmanager
def small_cluster(folder: Path) -> Iterator[SmallCluster]:
    embedded = Embedded()
    with ApiServerOnLoopback(embedded) as server:
        path = str(server.kubeconfig(folder / "kubeconfig"))
        access = Access(ApiObjects.connect(path), ApiServer.connect(path), path, "")
        embedded.create(Kind.PODS, extender(node="cp"))
        found = SmallCluster(access, embedded, path)
        found.extender(ready=True)
        yield found
        access.close()


@contextmanager
def split_cluster(folder: Path) -> Iterator[SmallCluster]:
    """Two nodes of 29 units a card; "big" waits for 20, and 31 are free on n1."""
    with small_cluster(folder) as found:
        found.node("n1", card(0, uuid="A"), card(1, uuid="B"))
        found.node("n2", card(0, uuid="C"))
        found.place("ten", "n1", "A", 10)
        found.place("five", "n1", "A", 5)
        found.place("other", "n1", "B", 10, terminationGracePeriodSeconds=0)
        found.place("ds", "n2", "C", 20)
        found.bind(found.pod("bare", 2, owner=""), "n1", "B")
        found.pod("big", 20)
        yield found
