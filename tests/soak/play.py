"""Pods that come, run and go: who makes them, and who acts for kubelet."""

import threading
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from tests.controlplane.world import node_of
from tests.soak.books import FINISHED
from tests.soak.hands import Hands
from tests.soak.life import End, Life, life, reason_of
from tests.testbed.objects import finish_deletion, set_running
from tests.testbed.rest import Json, Rest

if TYPE_CHECKING:
    from collections.abc import Callable

MADE = frozenset({201, 409})
"""409: an earlier try came through, whose answer was lost with the API server."""
CHANGED = frozenset({200, 404, 409})
DELETED = frozenset({200, 202, 404, 409})
PATIENCE_S = 4.0
"""How long a pod that is told to wait for room does so, before its owner gives up."""
_LOOK_S = 0.02


@dataclass(frozen=True)
class Stage:
    """Where the pods play."""

    rest: Rest
    namespace: str
    scheduler_name: str
    seed: int

    def path(self, one: Life) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{one.name}"

    def stub(self, one: Life) -> Json:
        """As much of the pod as kubelet's writes need."""
        containers = [{"name": "main", "image": "local.test/pause:1"}]
        metadata = {"name": one.name, "namespace": self.namespace}
        return {"metadata": metadata, "spec": {"containers": containers}}


class Play:
    """All lives, and what became of those that are over."""

    def __init__(self, stage: Stage, hands: Hands, most_at_once: int) -> None:
        self.stage = stage
        self.faults: list[str] = []
        self.ended: Counter[str] = Counter()
        """Lives that are over: ``placed``, ``refused``, ``withdrawn``."""
        self.made = 0
        self._hands = hands
        self._most = most_at_once
        self._lives: dict[str, Life] = {}
        self._lock = threading.Lock()
        self._addresses = count(1)
        self._stopping = threading.Event()
        self._maker = threading.Thread(target=self._make, name="maker")

    @property
    def done(self) -> int:
        """How many lives are over."""
        return sum(self.ended.values())

    def start(self) -> None:
        self._maker.start()

    def stop_making(self) -> None:
        """Make no more; those that live go on to their ends."""
        self._stopping.set()
        self._maker.join()

    def left(self) -> list[Life]:
        """Give the lives that are not over."""
        with self._lock:
            return list(self._lives.values())

    def all_pods(self, pods: list[Json], asked_at: float) -> None:
        names = {a_pod["metadata"]["name"] for a_pod in pods}
        for one in self.left():
            known = one.seen or (one.posted_at is not None and one.posted_at < asked_at)
            if known and one.name not in names:
                self._over(one)
        for a_pod in pods:
            self.changed(a_pod)

    def changed(self, a_pod: Json) -> None:
        one = self._lives.get(a_pod["metadata"]["name"])
        if one is None:
            return
        one.seen = True
        if node_of(a_pod):
            one.bound = True
        elif (reason := reason_of(a_pod)) and not one.reason:
            self._refused(one, reason)
        if "deletionTimestamp" in a_pod["metadata"]:
            self._terminate(one)
        elif one.bound and a_pod["status"].get("phase") not in FINISHED:
            self._run(one)

    def gone(self, a_pod: Json) -> None:
        one = self._lives.get(a_pod["metadata"]["name"])
        if one is not None:
            self._over(one)

    def _make(self) -> None:
        for number in count():
            while len(self._lives) >= self._most:
                if self._stopping.wait(_LOOK_S):
                    return
            if self._stopping.is_set():
                return
            one = life(self.stage.seed, number)
            with self._lock:
                self._lives[one.name] = one
            self.made += 1
            self._hands.after(0, partial(self._post, one))

    def _post(self, one: Life) -> None:
        manifest = one.manifest(self.stage.namespace, self.stage.scheduler_name)
        post = partial(_posted, self.stage.rest, manifest)
        if self._hands.until_settled(f"create {one.name}", post, MADE):
            one.posted_at = time.monotonic()
            if one.end is End.WITHDRAWN:
                self._hands.after(one.grace_s, partial(self._delete, one))

    def _refused(self, one: Life, reason: str) -> None:
        one.reason = reason
        patience_s = 0.0 if one.doomed else PATIENCE_S
        self._hands.after(patience_s, partial(self._give_up, one))

    def _give_up(self, one: Life) -> None:
        if not one.bound:
            self._delete(one)

    def _run(self, one: Life) -> None:
        """Act for kubelet: start it, and let it end when its time is over."""
        if one.started:
            return
        one.started = True
        if one.doomed:
            self.faults.append(f"{one.name} fits nowhere and was bound: {one}")
        self._hands.after(0, partial(self._set_running, one))

    def _set_running(self, one: Life) -> None:
        number = next(self._addresses)
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        run = partial(set_running, self.stage.rest, self.stage.stub(one), address)
        self._hands.until_settled(f"run {one.name}", run, CHANGED)
        end: Callable[[Life], None] = self._delete
        if one.end in {End.SUCCEEDS, End.FAILS}:
            end = self._finish
        self._hands.after(one.stay_s, partial(end, one))

    def _finish(self, one: Life) -> None:
        phase = "Succeeded" if one.end is End.SUCCEEDS else "Failed"
        path = f"{self.stage.path(one)}/status"
        patch = partial(self.stage.rest.patch, path, {"status": {"phase": phase}})
        self._hands.until_settled(f"finish {one.name}", patch, CHANGED)
        self._hands.after(one.grace_s, partial(self._delete, one))

    def _delete(self, one: Life) -> None:
        delete = partial(self.stage.rest.delete, self.stage.path(one))
        self._hands.until_settled(f"delete {one.name}", delete, DELETED)

    def _terminate(self, one: Life) -> None:
        if not one.ending:
            one.ending = True
            self._hands.after(one.grace_s, partial(self._remove, one))

    def _remove(self, one: Life) -> None:
        remove = partial(finish_deletion, self.stage.rest, self.stage.stub(one))
        self._hands.until_settled(f"remove {one.name}", remove, DELETED)

    def _over(self, one: Life) -> None:
        with self._lock:
            self._lives.pop(one.name, None)
        if one.bound:
            self.ended["placed"] += 1
        elif one.reason:
            self.ended["refused"] += 1
        elif one.end is End.WITHDRAWN:
            self.ended["withdrawn"] += 1
        else:
            self.faults.append(f"{one.name} went undecided: {one}")


def _posted(rest: Rest, manifest: Json) -> tuple[int, Json]:
    namespace = manifest["metadata"]["namespace"]
    return rest.post(f"/api/v1/namespaces/{namespace}/pods", manifest)
