"""An overuse monitor, the pods that it watches, and what they use."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from deviceplugin.exporter.overuse import OveruseMonitor
from deviceplugin.exporter.owners import Owner
from deviceplugin.exporter.run import Tenants
from deviceplugin.exporter.snapshot_store import UsageBook
from deviceplugin.exporter.usage import Mode
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube.cluster import Json, Kind, Target
from tests.builders import page
from tests.deviceplugin.exporter_data import AT, A, cid, processes, snapshot, use
from tests.deviceplugin.node_fixture import found_card

OVER = 3000


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
        book = UsageBook(lambda: self.now, self.tenants.current)
        self.patrol = OveruseMonitor(
            book,
            lambda: self.now,
            self.cluster,
            mode,
            after_s,
            clock=lambda: self.seconds,
        )
        self.uids: dict[str, str] = {}
        self.tenants.replace(iter([page(*map(self._created, pods))]))

    def _created(self, pod: Json) -> Json:
        """The pod as the cluster has it, under a UID of its own."""
        body, name = deepcopy(pod), pod["metadata"]["name"]
        metadata = {"name": name, "namespace": "default"}
        made = self.cluster.create(Kind.PODS, {**body, "metadata": metadata})
        uid = self.uids[name] = made["metadata"]["uid"]
        notes = {
            key: text.replace(f"uid-{name}", uid)
            for key, text in body["metadata"]["annotations"].items()
        }
        body["metadata"] |= {"uid": uid, "annotations": notes}
        return body

    def uses(self, after_s: float, **mib: float) -> None:
        """Until so many seconds after the beginning these pods use so much.

        There is a round, and a look at it, every 10 s at least, and one at the end.
        """
        while after_s - self.seconds > 10:
            self._round(self.seconds + 10, mib)
        self._round(after_s, mib)

    def _round(self, after_s: float, mib: Mapping[str, float]) -> None:
        main = {pid: (name, "main") for pid, name in enumerate(mib)}
        self.looks(after_s, main, list(mib.values()))

    def looks(
        self, after_s: float, names: Mapping[int, tuple[str, str]], mib: list[float]
    ) -> None:
        """Look at a round of processes: of which container each is, by pid."""
        owners = {
            pid: Owner(self.uids[pod], cid(f"{pod}/{name}"))
            for pid, (pod, name) in names.items()
        }
        running = [use(pid, size) for pid, size in zip(names, mib, strict=True)]
        round_ = processes({A: running}, owners, at=AT + after_s + self.stepped_s)
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
        items = [
            one["metadata"] for one in self.cluster.list_page(Kind.PODS, limit=9).items
        ]
        return [one["name"] for one in items if "deletionTimestamp" not in one]

    def outcome(self) -> tuple[list[str], list[str]]:
        """The pods that are left, and those that were told of."""
        return self.pods(), [pod for pod, _, _ in self.events()]
