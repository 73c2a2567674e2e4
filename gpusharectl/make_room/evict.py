"""Carry a plan out: cordon, evict one pod after the other, and check where each landed.

It stops as soon as something differs from the plan. However it ends, the cards that it
has cordoned are opened again.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from gpushare.domain.eviction.landing import PodMove
from gpushare.domain.eviction.moves import MovePlan, has_room, predict_landing
from gpushare.domain.model import CardUUID, Placement, PodUID
from gpushare.kube import codec, facts
from gpushare.kube.annotations import read_cordon
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.kube.errors import ClusterError, Conflict, NotFound
from gpushare.kube.objects import Ref
from gpusharectl.access import Access
from gpusharectl.cordon import Done, Order, OrderRefused, carry_out_order, owns
from gpusharectl.make_room.situation import (
    PlanInputs,
    RoomDemand,
    read_inputs,
    read_owner_uid,
)

Answer = TypeVar("Answer")

_SEEN_WITHIN_S = 10.0
"""How long the extender may take to follow the API server."""
_AWAY_S = 30.0
"""How long the API server may give no answer, as while it is started again."""
_GRACE_S = 30
"""Of a pod that names no other."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a pod, beside its grace period, and how often to look."""

    timeout_s: float = 120.0
    poll_s: float = 0.5
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def answer(self, ask: Callable[[], Answer]) -> Answer:
        """Return the API server's answer; ask again where that may help."""
        end = self.clock() + _AWAY_S
        while True:
            try:
                return ask()
            except ClusterError as error:
                if not error.retryable or self.clock() >= end:
                    raise
            self.sleep(self.poll_s)

    def until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is done; return False if it is not in time."""
        end = self.clock() + timeout_s
        while not done():
            if self.clock() >= end:
                return False
            self.sleep(self.poll_s)
        return True


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """The names of the evicted pods, and whether the waiting pod has its room.

    ``outcome`` says that in a sentence.
    """

    evicted: tuple[str, ...]
    done: bool
    outcome: str


class _Halted(Exception):
    """No more pods are evicted; the message says why."""


class _GivenUp(_Halted):
    """Nor does the waiting pod take the room, even if it is there."""


@dataclass(slots=True)
class _AfterEviction:
    """What was seen after an eviction; ``made`` are the controller's new pods."""

    gone: bool = False
    made: Sequence[Json] = ()

    @property
    def bound(self) -> Sequence[Json]:
        return [pod for pod in self.made if facts.node_of(pod)]


class Eviction:
    """One plan that is carried out; ``say`` gets a line for each step."""

    def __init__(
        self,
        access: Access,
        demand: RoomDemand,
        allowed: Sequence[str],
        say: Callable[[str], None],
        patience: Patience | None = None,
    ) -> None:
        self._access = access
        self._demand = demand
        self._allowed = allowed
        self._say = say
        self._patience = patience or Patience()
        self._owner = f"make-room-{secrets.token_hex(4)}"
        self._evicted: list[str] = []
        self._replaced: dict[PodUID, tuple[str, PodUID]] = {}

    def carry_out(self, plan: MovePlan) -> EvictionResult:
        """Make the room, and wait until the waiting pod has it.

        ``ClusterError`` only if nothing was evicted.
        """
        try:
            return self._carried_out(plan)
        except ClusterError as error:
            if not self._evicted:
                raise
            return self._result(f"Stopped: {error}.")

    def _carried_out(self, plan: MovePlan) -> EvictionResult:
        stopped, room = "", False
        try:
            with self._cordoned(plan):
                try:
                    for number, move in enumerate(plan.moves, start=1):
                        self._move(plan, move, f"{number} of {len(plan.moves)}")
                except _GivenUp:
                    raise
                except _Halted as error:
                    stopped = f"Stopped: {error}."
                self._still_cordoned(plan)
                if room := self._has_room(plan):
                    if stopped:
                        self._say(f"{stopped} The room is there all the same.")
                    self._nominate(plan)
        except _GivenUp as error:
            return self._result(f"Stopped: {error}.")
        except _Halted as error:
            return self._result(f"Nothing was evicted: {error}.")
        pod = self._waiting()
        if not room and not (pod and facts.node_of(pod)):
            why = stopped or f"{_cards(plan)} got no room: another pod holds a part."
            return self._result(why)
        return self._bound(plan)

    @contextmanager
    def _cordoned(self, plan: MovePlan) -> Iterator[None]:
        self._say(
            f"{_cards(plan)}: cordoned. If this command is killed: {_opening(plan)}"
        )
        changed = self._cordon(plan)
        try:
            if len(changed) < len(plan.cards):
                raise _Halted("somebody else has cordoned a card of the plan meanwhile")
            yield
        finally:
            if changed:
                self._uncordon(plan, sorted(changed))

    def _cordon(self, plan: MovePlan) -> frozenset[CardUUID]:
        """Cordon the cards that are to get the room; return those that were open."""
        try:
            return self._order(Order.CORDON, plan, plan.cards).changed
        except OrderRefused as error:
            raise _Halted(str(error)) from error
        except BaseException as error:
            if not (isinstance(error, ClusterError) and error.definite):
                # It may be written.
                self._uncordon(plan, plan.cards)
            raise

    def _order(self, order: Order, plan: MovePlan, cards: Sequence[CardUUID]) -> Done:
        return carry_out_order(self._access, order, plan.node, cards, self._owner)

    def _still_cordoned(self, plan: MovePlan) -> None:
        """Stop if an operator has cordoned a card meanwhile, or opened it."""
        ref = Ref("v1", "Node", plan.node)
        node = self._patience.answer(lambda: self._access.objects.get(ref))
        # A node that is gone is told by what is read next.
        if node is not None and not owns(node, self._owner, plan.cards):
            raise _GivenUp("somebody else has cordoned or opened a card of the plan")

    def _uncordon(self, plan: MovePlan, cards: Sequence[CardUUID]) -> None:
        try:
            done = self._patience.answer(
                lambda: self._order(Order.UNCORDON, plan, cards)
            )
        except OrderRefused as error:
            self._say(f"{_cards(plan)} cannot be opened: {error}")
        except BaseException:
            self._say(f"{_cards(plan)} may still be cordoned; run: {_opening(plan)}")
            raise
        else:
            # Those that this run has opened are in the list as it was read, too.
            closed = {*cards} & read_cordon(done.node) - done.changed
            if opened := [uuid for uuid in cards if uuid not in closed]:
                self._say(f"{_named(plan, opened)}: open again.")
            if closed:
                kept = _named(plan, sorted(closed))
                self._say(f"{kept}: still cordoned, by somebody else.")

    def _move(self, plan: MovePlan, move: PodMove, number: str) -> None:
        name, uid = self._replaced.get(move.pod.uid, (move.pod.name, move.pod.uid))
        full = f"{move.pod.namespace}/{name}"
        self._still_waits()
        target = PodTarget(move.pod.namespace, name, uid)
        pod = self._running(target)
        if pod is None:
            self._say(f"{number}: {full} has ended by itself.")
            return
        owner = read_owner_uid(pod)
        self._would_land(move, uid, full)
        self._still_cordoned(plan)
        before = {pod["metadata"]["uid"] for pod in self._siblings(target, owner)}
        self._evict(target, full)
        self._evicted.append(full)
        self._say(f"{number}: {full} evicted.")
        landed = self._landed(pod, target, before, move.landing)
        placement = codec.read_pod_record(landed).placement
        self._replaced[move.pod.uid] = facts.name_of(landed), landed["metadata"]["uid"]
        new = facts.full_name(landed)
        if not _same(placement, move.landing):
            where = f"{facts.node_of(landed)}, card not known"
            if placement:
                where = _where(placement)
            raise _Halted(f"{new} landed on {where}, not on {_where(move.landing)}")
        self._say(f"{number}: {new} landed on {_where(move.landing)}, as planned.")

    def _running(self, target: PodTarget) -> Json | None:
        """Return a pod that is to be evicted; None if it has ended.

        One that terminates already is awaited: which of its controller's pods replaces
        it is not known, and the next landing is predicted on what is read then.
        """
        pod: Json | None = None

        def ended() -> bool:
            nonlocal pod
            pod = self._get(target.namespace, target.name)
            same = pod is not None and pod["metadata"]["uid"] == target.uid
            return pod is None or not same or facts.is_terminal(pod)

        if ended():
            return None
        if pod is None or not facts.is_leaving(pod):
            return pod
        if not self._patience.until(ended, self._limit(pod)):
            raise _Halted(f"{facts.full_name(pod)} is still terminating")
        return None

    def _limit(self, pod: Json) -> float:
        grace = pod["spec"].get("terminationGracePeriodSeconds")
        return self._patience.timeout_s + (_GRACE_S if grace is None else grace)

    def _still_waits(self) -> None:
        if self._demand.body is None:
            return
        pod = self._waiting()
        if pod is None:
            raise _Halted(f"{self._demand.name} is no longer there")
        if node := facts.node_of(pod):
            raise _Halted(f"{self._demand.name} has got a place on {node} meanwhile")

    def _waiting(self) -> Json | None:
        """Return the waiting pod as it is now; None if it is gone."""
        body = self._demand.body
        if body is None:
            return None
        metadata = body["metadata"]
        pod = self._get(metadata["namespace"], metadata["name"])
        return pod if pod and pod["metadata"]["uid"] == metadata["uid"] else None

    def _get(self, namespace: str, name: str) -> Json | None:
        get = self._access.cluster.get
        try:
            return self._patience.answer(lambda: get(Kind.PODS, namespace, name))
        except NotFound:
            return None

    def _look(self) -> PlanInputs:
        return self._patience.answer(
            lambda: read_inputs(self._access, self._demand, self._allowed)
        )

    def _would_land(self, move: PodMove, uid: PodUID, full: str) -> None:
        """Check before each eviction that the plan still holds."""
        landing, down = None, ""

        def holds() -> bool:
            nonlocal landing, down
            inputs = self._look()
            down = inputs.down
            landing = predict_landing(self._demand.request, inputs.situation, uid)
            return not down and _same(landing, move.landing)

        if not self._patience.until(holds, _SEEN_WITHIN_S):
            if down:
                raise _Halted(f"{down}, so a new pod of {full} would wait")
            now = f"on {_where(landing)}" if landing else "nowhere"
            raise _Halted(
                f"the cluster has changed; {full} would land {now}, not on "
                f"{_where(move.landing)}"
            )

    def _evict(self, pod: PodTarget, full: str) -> None:
        refused = ""

        def done() -> bool:
            nonlocal refused
            try:
                self._access.cluster.evict(pod)
            except NotFound:
                # It has gone by itself.
                return True
            except ClusterError as error:
                # The pod before may be under the same budget, and not ready yet. A
                # conflict is of the pod's UID, or of two writes of its budget.
                if not (error.retryable or isinstance(error, Conflict)):
                    raise
                refused = str(error)
                now = self._get(pod.namespace, pod.name)
                return now is None or now["metadata"]["uid"] != pod.uid
            return True

        if not self._patience.until(done, self._patience.timeout_s):
            raise _Halted(f"{full} may not be evicted: {refused}")

    def _siblings(self, pod: PodTarget, owner: str) -> Sequence[Json]:
        list_objects = self._access.objects.list
        pods = self._patience.answer(
            lambda: list_objects("v1", "Pod", namespace=pod.namespace)
        )
        return [sibling for sibling in pods if read_owner_uid(sibling) == owner]

    def _landed(
        self, pod: Json, target: PodTarget, before: set[str], landing: Placement
    ) -> Json:
        seen, owner = _AfterEviction(), read_owner_uid(pod)

        def done() -> bool:
            there = self._siblings(target, owner)
            ended = [pod for pod in there if pod["metadata"]["uid"] == target.uid]
            seen.gone = all(map(facts.is_terminal, ended))
            seen.made = [pod for pod in there if pod["metadata"]["uid"] not in before]
            return seen.gone and bool(seen.bound)

        if self._patience.until(done, self._limit(pod)):
            # Others may have been made at the same time, by an autoscaler or a rollout.
            return max(
                seen.bound,
                key=lambda new: (
                    _same(codec.read_pod_record(new).placement, landing),
                    facts.created(new),
                    facts.name_of(new),
                ),
            )
        if not seen.gone:
            raise _Halted(f"{facts.full_name(pod)} is still terminating")
        if not seen.made:
            # Scaled down, or without quota, or its controller does not run.
            full = facts.full_name(pod)
            raise _Halted(f"{full} is gone, and its controller makes no other pod")
        new = seen.made[0]
        says = facts.scheduler_says(new) or "kube-scheduler has not tried it"
        # It may have its old place again.
        raise _GivenUp(f"{facts.full_name(new)} stays Pending: {says}")

    def _has_room(self, plan: MovePlan) -> bool:
        def there() -> bool:
            situation = self._look().situation
            request = self._demand.request
            return has_room(request, situation, plan.node, plan.cards)

        return self._patience.until(there, _SEEN_WITHIN_S)

    def _nominate(self, plan: MovePlan) -> None:
        """Let the extender keep the room for the pod from the moment the cards open."""
        pod = self._waiting()
        if pod is not None and not facts.node_of(pod):
            try:
                self._set_nominated(plan.node)
            except ClusterError as error:
                self._say(f"Nothing keeps the room until the pod is bound: {error}")

    def _set_nominated(self, node: str | None) -> None:
        assert self._demand.body is not None  # noqa: S101
        metadata = self._demand.body["metadata"]
        ref = Ref("v1", "Pod", metadata["name"], metadata["namespace"])
        patch = {
            "metadata": {"uid": metadata["uid"]},
            "status": {"nominatedNodeName": node},
        }
        self._access.objects.merge(ref, patch, subresource="status")

    def _bound(self, plan: MovePlan) -> EvictionResult:
        if self._demand.body is None:
            return self._result(
                f"{_cards(plan)} has the room now. Nothing keeps it: create the pod.",
                done=True,
            )
        name, pod = self._demand.name, self._waiting()

        def done() -> bool:
            nonlocal pod
            pod = self._waiting()
            return pod is None or bool(facts.node_of(pod))

        if not self._patience.until(done, self._patience.timeout_s) and pod is not None:
            if facts.nominated(pod) == plan.node:
                # If that fails, no more is lost than room for other pods.
                with suppress(ClusterError):
                    self._set_nominated(None)
            says = facts.scheduler_says(pod) or "kube-scheduler has not tried it"
            return self._result(f"{name} still waits: {says}")
        if pod is None:
            return self._result(f"{name} is no longer there.")
        placement = codec.read_pod_record(pod).placement
        where = _where(placement) if placement else facts.node_of(pod)
        return self._result(f"{name} is on {where}.", done=True)

    def _result(self, words: str, *, done: bool = False) -> EvictionResult:
        return EvictionResult(tuple(self._evicted), done, words)


def _same(placement: Placement | None, planned: Placement) -> bool:
    if placement is None or placement.node != planned.node:
        return False
    return set(placement.cards()) == set(planned.cards())


def _where(placement: Placement) -> str:
    return f"{placement.node} card {' and '.join(placement.cards())}"


def _cards(plan: MovePlan) -> str:
    return _named(plan, plan.cards)


def _named(plan: MovePlan, cards: Sequence[CardUUID]) -> str:
    return f"{plan.node} card {' and '.join(cards)}"


def _opening(plan: MovePlan) -> str:
    return f"gpusharectl uncordon-card {plan.node} {' '.join(plan.cards)}"
