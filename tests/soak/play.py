"""Pods that come, run and go, as the seed draws them; who acts for kubelet."""

import threading
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from tests.controlplane.world import node_of
from tests.soak.books import FINISHED
from tests.soak.hands import Hands
from tests.testbed.objects import CORE, MEMORY, finish_deletion, pod, set_running
from tests.testbed.rest import Json, Rest

if TYPE_CHECKING:
    from collections.abc import Callable


OURS = ("baidu.com/vcuda-", "vcuda request")
"""What a reason of ours, or of kube-scheduler's about our resources, has in it."""


class End(Enum):
    """How a pod leaves."""

    SUCCEEDS = "succeeds"
    FAILS = "fails"
    DELETED = "deleted"
    """While it runs, with its grace."""
    WITHDRAWN = "withdrawn"
    """Soon after it was made, bound or not: mostly in the middle of the decision."""


@dataclass(slots=True)
class Life:
    """One pod from its making to its end; the first line is drawn, the rest seen."""

    name: str
    units: int | None
    cores: int | None
    doomed: bool
    end: End
    stay_s: float
    grace_s: float

    posted_at: float | None = None
    seen: bool = False
    started: bool = False
    ending: bool = False
    bound: bool = False
    reason: str = ""

    def manifest(self, namespace: str, scheduler_name: str) -> Json:
        a_pod = pod(self.name, namespace, spec={"schedulerName": scheduler_name})
        resources = a_pod["spec"]["containers"][0]["resources"]["requests"]
        for resource, amount in ((MEMORY, self.units), (CORE, self.cores)):
            if amount is not None:
                resources[resource] = str(amount)
        return a_pod


def life(seed: int, number: int) -> Life:
    """Draw the life of this number."""
    draw = Random(f"{seed}/{number}")
    units, cores, doomed = _ask(draw)
    ends, weights = zip(*_ENDS.items(), strict=True)
    (end,) = draw.choices(ends, weights)
    return Life(
        name=f"life-{number}",
        units=units,
        cores=cores,
        doomed=doomed,
        end=end,
        stay_s=draw.uniform(0.1, 1.2),
        grace_s=draw.uniform(0.0, 0.3),
    )


_ENDS = {End.SUCCEEDS: 40, End.FAILS: 10, End.DELETED: 40, End.WITHDRAWN: 10}


def _ask(draw: Random) -> tuple[int | None, int | None, bool]:
    """Mostly shares of both; some of one part, some whole cards, some impossible."""
    kind = draw.random()
    if kind < 0.02:
        return 1_000, draw.randint(1, 60), True
    if kind < 0.04:
        return draw.randint(1, 20), 150, True
    if kind < 0.08:
        return draw.randint(1, 20), 100 * draw.randint(1, 2), False
    if kind < 0.16:
        return draw.randint(1, 24), None, False
    if kind < 0.20:
        return None, draw.randint(1, 99), False
    return draw.randint(1, 24), draw.randint(1, 60), False


def reason_of(a_pod: Json) -> str:
    """Give the words in which a pod was refused for want of cards; "" if it was not."""
    for condition in a_pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            text = str(condition.get("message", ""))
            if condition["reason"] == "Unschedulable" and any(w in text for w in OURS):
                return text
    return ""


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
        return sum(self.ended.values())

    def start(self) -> None:
        self._maker.start()

    def stop_making(self) -> None:
        """Make no more; those that live go on to their ends."""
        self._stopping.set()
        self._maker.join()

    def left(self) -> list[Life]:
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
