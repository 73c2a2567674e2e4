"""An overuse monitor, the pods that it watches, and what they use."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from deviceplugin.exporter.overuse import OveruseMonitor
from deviceplugin.exporter.owners import Owner
from deviceplugin.exporter.run import Tenants
from deviceplugin.exporter.snapshot import Snapshot
from deviceplugin.exporter.snapshot_store import UsageBook
from deviceplugin.exporter.usage import Mode
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube.cluster import Json, Kind, Target
from tests.builders import page
from tests.deviceplugin.exporter_data import AT, A, cid, processes, snapshot, use
from tests.deviceplugin.node_fixture import found_card


class Refusing(Embedded):
    """An API server that takes no events or evictions while it is told to refuse."""

    refusal: Exception | None = None
    asked = 0

    def event(self, pod: Target, **how: Any) -> None:
        self._refuse()
        super().event(pod, **how)

    def evict(self, pod: Target) -> None:
        self._refuse()
        super().evict(pod)

    def _refuse(self) -> None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal


class OveruseFixture:
    """A patrol, the pods that it watches, and what they use."""

    def __init__(self, mode: Mode, *pods: Json, after_s: float = 60) -> None:
        self.cluster = Refusing()
        self.tenants = Tenants()
        self.now = snapshot(found_card(0), round_=processes({}))
        self.seconds = 0.0
        self.stepped_s = 0.0
        book = UsageBook(self.read, self.tenants.current)
        self.patrol = OveruseMonitor(
            book, self.read, self.cluster, mode, after_s, clock=lambda: self.seconds
        )
        self.uids: dict[str, str] = {}
        self.bodies: list[Json] = []
        for body in pods:
            self._run(deepcopy(body))

    def read(self) -> Snapshot:
        return self.now

    def _run(self, body: Json) -> None:
        """In the cluster and in the watch."""
        name = body["metadata"]["name"]
        made = self.cluster.create(
            Kind.PODS, {**body, "metadata": {"name": name, "namespace": "default"}}
        )
        uid = made["metadata"]["uid"]
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self.cluster.patch(
            Kind.PODS, "default", name, {"status": status}, subresource="status"
        )
        notes = {
            key: text.replace(f"uid-{name}", uid)
            for key, text in body["metadata"]["annotations"].items()
        }
        body["metadata"] |= {"uid": uid, "annotations": notes}
        self.uids[name] = uid
        self.bodies.append(body)
        self.tenants.replace(iter([page(*self.bodies)]))

    def uses(self, after_s: float, **mib: float) -> None:
        """Until so many seconds after the beginning these pods use so much.

        There is a round, and a look at it, every 10 s at least, and one at the end.
        """
        while after_s - self.seconds > 10:
            self._round(self.seconds + 10, mib)
        self._round(after_s, mib)

    def _round(self, after_s: float, mib: Mapping[str, float]) -> None:
        owners = {
            pid: Owner(self.uids[name], cid(f"{name}/main"))
            for pid, name in enumerate(mib)
        }
        running = [use(pid, size) for pid, size in enumerate(mib.values())]
        at = AT + after_s + self.stepped_s
        round_ = processes({A: running}, owners, at=at)
        self.now = snapshot(found_card(0), round_=round_)
        self.seconds = after_s
        self.patrol.step()

    def events(self) -> list[tuple[str, str, str]]:
        items = self.cluster.list_page(Kind.EVENTS, limit=100).items
        return [
            (one["involvedObject"]["name"], one["reason"], one["message"])
            for one in items
        ]

    def pods(self) -> list[str]:
        items = self.cluster.list_page(Kind.PODS, limit=100).items
        return [
            one["metadata"]["name"]
            for one in items
            if "deletionTimestamp" not in one["metadata"]
        ]

    def outcome(self) -> tuple[list[str], list[str]]:
        """The pods that are left, and those that were told of."""
        return self.pods(), [pod for pod, _, _ in self.events()]

    def budget(self, allowed: int) -> None:
        """Cover all pods with the label ``app: web``."""
        metadata = {"name": "web", "namespace": "default"}
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
        self.cluster.create(Kind.BUDGETS, {"metadata": metadata, "spec": spec})
        self.allow(allowed)

    def allow(self, allowed: int) -> None:
        status = {"disruptionsAllowed": allowed}
        self.cluster.patch(
            Kind.BUDGETS, "default", "web", {"status": status}, subresource="status"
        )


OVER = 3000
