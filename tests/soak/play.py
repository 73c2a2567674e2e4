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

from tests.controlplane.books import APART, CORES, FINISHED, UNIT_MIB, Amounts
from tests.controlplane.claims import RESOURCE
from tests.controlplane.world import node_of
from tests.soak.hands import Hands
from tests.soak.observer import Listing
from tests.testbed.objects import CORE, MEMORY, finish_deletion, pod, set_running
from tests.testbed.rest import Json, Rest

if TYPE_CHECKING:
    from collections.abc import Callable


OURS = ("baidu.com/vcuda-", "vcuda request", "cannot allocate all claims")
"""What a reason of ours, or of kube-scheduler's about our resources, has in it."""
DENIAL = 'admission webhook "claims.vcuda.baidu.com" denied'
"""What the reason of a pod has in it whose claim the extender denied."""


class End(Enum):
    """How a pod leaves."""

    SUCCEEDS = "succeeds"
    FAILS = "fails"
    DELETED = "deleted"
    """While it runs, with its grace."""
    WITHDRAWN = "withdrawn"
    """Soon after it was made, bound or not: mostly in the middle of the decision."""


class Form(Enum):
    """How a pod asks for cards."""

    SHARE = "share"
    """All its containers together."""
    APART = "apart"
    """Each container for itself."""
    CLAIM = "claim"
    """By a ResourceClaim with a request for each container."""


@dataclass(slots=True)
class Life:
    """One pod from its making to its end; the first lines are drawn, the rest seen."""

    name: str
    form: Form
    asks: tuple[Amounts, ...]
    """Of each container; 0 leaves a resource out."""
    doomed: bool
    end: End
    stay_s: float = 0.0
    grace_s: float = 0.0

    posted_at: float | None = None
    seen: bool = False
    started: bool = False
    ending: bool = False
    gone: bool = False
    bound: bool = False
    reason: str = ""

    def manifest(self, namespace: str, scheduler_name: str) -> Json:
        """Describe the pod; a claim of it has its name."""
        annotations = {APART: "apart"} if self.form is Form.APART else {}
        spec: Json = {"schedulerName": scheduler_name}
        a_pod = pod(self.name, namespace, spec=spec, annotations=annotations)
        (main,) = a_pod["spec"]["containers"]
        if self.form is Form.CLAIM:
            own = {"name": "cards", "resourceClaimName": self.name}
            a_pod["spec"]["resourceClaims"] = [own]
        a_pod["spec"]["containers"] = [
            {**main, "name": f"c{number}", "resources": self._resources(number)}
            for number in range(len(self.asks))
        ]
        return a_pod

    def claim(self, namespace: str) -> Json:
        """Describe the ResourceClaim that the pod names."""
        requests = [
            {
                "name": f"c{number}",
                "exactly": {
                    "deviceClassName": "vcuda",
                    "capacity": {
                        "requests": {
                            "cores": str(cores),
                            "memory": f"{units * UNIT_MIB}Mi",
                        }
                    },
                },
            }
            for number, (cores, units) in enumerate(self.asks)
        ]
        return {
            "kind": "ResourceClaim",
            "metadata": {"name": self.name, "namespace": namespace},
            "spec": {"devices": {"requests": requests}},
        }

    def _resources(self, number: int) -> Json:
        if self.form is Form.CLAIM:
            return {"claims": [{"name": "cards", "request": f"c{number}"}]}
        cores, units = self.asks[number]
        amounts = {MEMORY: units, CORE: cores}
        asked = {key: str(amount) for key, amount in amounts.items() if amount}
        return {"requests": asked, "limits": asked}


def draw_life(seed: int, number: int, *, claims: bool = True) -> Life:
    """Draw the life of this number; without ``claims`` such a pod is *apart*."""
    draw = Random(f"{seed}/{number}")
    form, asks, doomed = _ask(draw)
    if form is Form.CLAIM and not claims:
        form = Form.APART
    ends, weights = zip(*_ENDS.items(), strict=True)
    (end,) = draw.choices(ends, weights)
    return Life(
        name=f"life-{number}",
        form=form,
        asks=asks,
        doomed=doomed,
        end=end,
        stay_s=draw.uniform(0.1, 1.2),
        grace_s=draw.uniform(0.0, 0.3),
    )


_ENDS = {End.SUCCEEDS: 40, End.FAILS: 10, End.DELETED: 40, End.WITHDRAWN: 10}
_SPLITS = ((60, 40), (50, 50), (60, 39), (25, 75))
"""Cores of two containers, mostly those of one card: parts are never a whole card."""


def _ask(draw: Random) -> tuple[Form, tuple[Amounts, ...], bool]:
    """Mostly shares of both; some of one part, some whole cards, some impossible."""
    kind = draw.random()
    if kind < 0.02:
        return Form.SHARE, ((draw.randint(1, 60), 1_000),), True
    if kind < 0.04:
        return Form.SHARE, ((150, draw.randint(1, 20)),), True
    if kind < 0.08:
        whole = CORES * draw.choice((1, 1, 2, 3))
        return Form.SHARE, ((whole, draw.randint(1, 20)),), False
    if kind < 0.16:
        return Form.SHARE, ((0, draw.randint(1, 24)),), False
    if kind < 0.20:
        return Form.SHARE, ((draw.randint(1, 99), 0),), False
    if kind < 0.34:
        return Form.APART, _parts(draw), False
    if kind < 0.54:
        return Form.CLAIM, _parts(draw), False
    return Form.SHARE, _small(draw), False


def _parts(draw: Random) -> tuple[Amounts, ...]:
    """Draw what containers ask that may be on several cards."""
    kind = draw.random()
    if kind < 0.35:
        cores = draw.choice(_SPLITS)
        return tuple((each, draw.randint(1, 6)) for each in cores)
    if kind < 0.50:
        return ((CORES, draw.randint(1, 16)), *_small(draw))
    return tuple(ask for _ in range(draw.randint(1, 3)) for ask in _small(draw))


def _small(draw: Random) -> tuple[Amounts, ...]:
    return ((draw.randint(1, 60), draw.randint(1, 24)),)


def reason_of(a_pod: Json) -> str:
    """Give the words in which a pod was refused for want of cards; "" if it was not."""
    for condition in a_pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            text = str(condition.get("message", ""))
            unschedulable = condition["reason"] == "Unschedulable"
            if DENIAL in text or (unschedulable and any(w in text for w in OURS)):
                return text
    return ""


MADE = frozenset({201, 409})
"""409: an earlier try came through, whose answer was lost with the API server."""
CHANGED = frozenset({200, 404, 409})
DELETED = frozenset({200, 202, 404, 409})
GONE = frozenset({404})
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
    claims: bool = True
    """Whether ResourceClaims can share a card there."""

    def path(self, life: Life) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{life.name}"

    def manifest(self, life: Life) -> Json:
        return life.manifest(self.namespace, self.scheduler_name)

    def claim_path(self, life: Life) -> str:
        return f"{self.claims_path}/{life.name}"

    @property
    def claims_path(self) -> str:
        return f"{RESOURCE}/namespaces/{self.namespace}/resourceclaims"


class Play:
    """All lives, and what became of those that are over."""

    def __init__(self, stage: Stage, hands: Hands, most_at_once: int) -> None:
        self.stage = stage
        self.faults: list[str] = []
        self.ended: Counter[str] = Counter()
        """Lives that are over: ``placed``, ``refused``, ``withdrawn``."""
        self.placed: Counter[str] = Counter()
        """Of these the placed ones, by their form."""
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

    def living(self) -> list[Life]:
        with self._lock:
            return list(self._lives.values())

    def pass_by(self) -> None:
        """Have a pod and a claim come and go at once, which ask for nothing of us."""
        rest, namespace = self.stage.rest, self.stage.namespace
        life = Life("last", Form.CLAIM, ((1, 1),), doomed=False, end=End.DELETED)
        a_pod = pod(life.name, namespace, spec={"schedulerName": "nobody"})
        rest.must("POST", f"/api/v1/namespaces/{namespace}/pods", a_pod)
        rest.must("DELETE", self.stage.path(life))
        if self.stage.claims:
            rest.must("POST", self.stage.claims_path, life.claim(namespace))
            rest.must("DELETE", self.stage.claim_path(life))

    def listed(self, kind: str, listing: Listing) -> None:
        if kind != "pods":
            return
        names = {a_pod["metadata"]["name"] for a_pod in listing.objects}
        for life in self.living():
            posted_at = life.posted_at
            there = posted_at is not None and posted_at < listing.asked_at
            if (life.seen or there) and life.name not in names:
                self._gone(life)
        for a_pod in listing.objects:
            self.changed(kind, a_pod)

    def changed(self, kind: str, an_object: Json) -> None:
        life = self._lives.get(an_object["metadata"]["name"])
        if life is None or kind != "pods":
            return
        life.seen = True
        if node_of(an_object):
            life.bound = True
        elif (reason := reason_of(an_object)) and not life.reason:
            self._refused(life, reason)
        if "deletionTimestamp" in an_object["metadata"]:
            self._terminate(life)
        elif life.bound and an_object["status"].get("phase") not in FINISHED:
            self._run(life)

    def gone(self, kind: str, an_object: Json) -> None:
        life = self._lives.get(an_object["metadata"]["name"])
        if life is not None and kind == "pods":
            self._gone(life)

    def _make(self) -> None:
        for number in count():
            while len(self._lives) >= self._most:
                if self._stopping.wait(_LOOK_S):
                    return
            if self._stopping.is_set():
                return
            life = draw_life(self.stage.seed, number, claims=self.stage.claims)
            with self._lock:
                self._lives[life.name] = life
            self.made += 1
            self._hands.after(0, partial(self._post, life))

    def _post(self, life: Life) -> None:
        rest = self.stage.rest
        if life.form is Form.CLAIM:
            claim = life.claim(self.stage.namespace)
            post_claim = partial(rest.post, self.stage.claims_path, claim)
            self._hands.until_settled(f"create claim {life.name}", post_claim, MADE)
        post = partial(_posted, rest, self.stage.manifest(life))
        if self._hands.until_settled(f"create {life.name}", post, MADE):
            life.posted_at = time.monotonic()
            if life.end is End.WITHDRAWN:
                self._hands.after(life.grace_s, partial(self._delete, life))

    def _refused(self, life: Life, reason: str) -> None:
        life.reason = reason
        patience_s = 0.0 if life.doomed else PATIENCE_S
        self._hands.after(patience_s, partial(self._give_up, life))

    def _give_up(self, life: Life) -> None:
        if not life.bound:
            self._delete(life)

    def _run(self, life: Life) -> None:
        """Act for kubelet: start it, and let it end when its time is over."""
        if life.started:
            return
        life.started = True
        if life.doomed:
            self.faults.append(f"{life.name} fits nowhere and was bound: {life}")
        self._hands.after(0, partial(self._set_running, life))

    def _set_running(self, life: Life) -> None:
        number = next(self._addresses)
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        run = partial(set_running, self.stage.rest, self.stage.manifest(life), address)
        self._hands.until_settled(f"run {life.name}", run, CHANGED)
        end: Callable[[Life], None] = self._delete
        if life.end in {End.SUCCEEDS, End.FAILS}:
            end = self._finish
        self._hands.after(life.stay_s, partial(end, life))

    def _finish(self, life: Life) -> None:
        phase = "Succeeded" if life.end is End.SUCCEEDS else "Failed"
        path = f"{self.stage.path(life)}/status"
        patch = partial(self.stage.rest.patch, path, {"status": {"phase": phase}})
        self._hands.until_settled(f"finish {life.name}", patch, CHANGED)
        self._hands.after(life.grace_s, partial(self._delete, life))

    def _delete(self, life: Life) -> None:
        delete = partial(self.stage.rest.delete, self.stage.path(life))
        self._hands.until_settled(f"delete {life.name}", delete, DELETED)

    def _terminate(self, life: Life) -> None:
        if not life.ending:
            life.ending = True
            self._hands.after(life.grace_s, partial(self._remove, life))

    def _remove(self, life: Life) -> None:
        remove = partial(finish_deletion, self.stage.rest, self.stage.manifest(life))
        self._hands.until_settled(f"remove {life.name}", remove, DELETED)

    def _gone(self, life: Life) -> None:
        """Act for kube-controller-manager: its pod is gone, so its claim is freed."""
        if life.gone:
            return
        life.gone = True
        if life.form is Form.CLAIM:
            self._hands.after(0, partial(self._free, life))
        else:
            self._over(life)

    def _free(self, life: Life) -> None:
        free = partial(_freed, self.stage.rest, self.stage.claim_path(life))
        self._hands.until_settled(f"free claim {life.name}", free, GONE)
        self._over(life)

    def _over(self, life: Life) -> None:
        with self._lock:
            self._lives.pop(life.name, None)
        if life.bound:
            self.ended["placed"] += 1
            self.placed[life.form.value] += 1
        elif life.reason:
            self.ended["refused"] += 1
        elif life.end is End.WITHDRAWN:
            self.ended["withdrawn"] += 1
        else:
            self.faults.append(f"{life.name} went undecided: {life}")


def _posted(rest: Rest, manifest: Json) -> tuple[int, Json]:
    namespace = manifest["metadata"]["namespace"]
    return rest.post(f"/api/v1/namespaces/{namespace}/pods", manifest)


def _freed(rest: Rest, path: str) -> tuple[int, Json]:
    """Free and delete a claim; 404 once it is gone.

    kube-scheduler may still write into it, so it is looked at again.
    """
    empty = {"status": {"reservedFor": None, "allocation": None}}
    rest.patch(f"{path}/status", empty)
    rest.patch(path, {"metadata": {"finalizers": None}})
    rest.delete(path)
    return rest.get(path)
