"""Bind a pod: decide, reserve, write once, settle (contracts 1.5, decision 0005)."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from threading import Condition

from extender.scheduling.state import ExtenderState
from extender.scheduling.wire import BindingArgs
from gpushare.domain.model import NodeName, Placement, PodRequest, PodUID, Refusal
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Cluster, Kind, PodTarget
from gpushare.kube.codec import PodRecord, read_pod_record, refusal_text
from gpushare.kube.errors import ClusterError, Conflict, NotFound, Unavailable
from gpushare.kube.json_reader import Malformed

logger = logging.getLogger(__name__)

_GRACE_S = 5.0
"""How long a write that was answered with 5xx may still take effect."""
_TRIED_AGAIN_FOR_S = 20.0
"""How long the same bind is sent again; it must end well before ``_UNANSWERED_S``."""
_UNANSWERED_S = 30.0
"""How long a write without an answer may still take effect."""
_NOT_TRIED_AGAIN_S = 60.0
"""After this long kube-scheduler does not try the same bind again.

By default it tries again within 10 s, and a bind takes 10 s.
"""


class BindOutcome(StrEnum):
    """The result of a bind, for the metric."""

    BOUND = "bound"
    ALREADY = "already-bound"
    REFUSED = "refused"
    CONFLICT = "conflict"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BindResult:
    """What bind answers; ``error`` is empty exactly when the pod is bound."""

    outcome: BindOutcome
    error: str = ""


def utc_now() -> str:
    """Return the time in the form of the annotation ``vcuda-placement``."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class _Reservation:
    """When a reservation was made, and until when its bind may take effect.

    The watch has not confirmed it yet. After ``due`` no write for it can take effect.
    """

    request: PodRequest
    since: float
    due: float


class Binder:
    """Bind pods to cards, each with one POST to the API server and no other write."""

    def __init__(
        self,
        cluster: Cluster,
        state: ExtenderState,
        *,
        timeout_s: float,
        now: Callable[[], str] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._timeout_s = timeout_s
        self._now = now
        self._clock = clock
        # An entry is only touched while ``_alone`` holds its pod.
        self._reservations: dict[PodUID, _Reservation] = {}
        self._ended = Condition()
        self._under_way: set[PodUID] = set()

    def bind(self, args: BindingArgs) -> BindResult:
        """Bind the pod, or return why not and leave nothing half done.

        A second, identical bind succeeds and changes nothing.
        """
        try:
            with self._alone(args.uid):
                return self._bind(args)
        finally:
            self._state.inflight.end(args.uid)

    @contextmanager
    def _alone(self, uid: PodUID) -> Iterator[None]:
        """Let binds of one pod run one after another; those of other pods go on."""
        with self._ended:
            self._ended.wait_for(lambda: uid not in self._under_way)
            self._under_way.add(uid)
        try:
            yield
        finally:
            with self._ended:
                self._under_way.discard(uid)
                self._ended.notify_all()

    def _bind(self, args: BindingArgs) -> BindResult:
        request = self._request(args)
        if isinstance(request, BindResult):
            return request
        if not self._state.nodes.knows(args.node):
            return BindResult(BindOutcome.REFUSED, f"there is no node {args.node}")
        if isinstance(request, Refusal):
            return BindResult(BindOutcome.REFUSED, refusal_text(request))
        if not request.claims:
            return self._write(args, None, fresh=True)
        return self._place(args, request)

    def _request(self, args: BindingArgs) -> PodRequest | Refusal | BindResult:
        """Return the request that filter judged, or what the pod asks for now.

        Policy and lists may change until the pod is bound, and the extender's watch may
        be behind kube-scheduler's. But a request with other claims does not count: any
        process of this host can ask filter about a pod that it has made up.
        """
        pending = self._state.inflight.pending_request(args.uid)
        record = self._state.pods.find(args.namespace, args.name)
        is_known = record is not None and record.pod.uid == args.uid
        if record is None or not is_known or not (record.node or pending):
            read = self._read(args)
            if isinstance(read, BindResult):
                return read
            record = read
        bound = _answer_if_bound(record, args.node)
        if bound is None and record.terminal:
            return BindResult(BindOutcome.REFUSED, f"pod {record.pod} has ended")
        asks = record.request.claims if isinstance(record.request, PodRequest) else ()
        same = pending is not None and pending.claims == asks
        return bound or (pending if pending and same else record.request)

    def _read(self, args: BindingArgs) -> PodRecord | BindResult:
        where = f"pod {args.namespace}/{args.name}"
        try:
            raw = self._cluster.get(Kind.PODS, args.namespace, args.name)
            record = read_pod_record(raw)
        except NotFound:
            return BindResult(BindOutcome.REFUSED, f"{where} is gone")
        except Malformed as error:
            return BindResult(
                BindOutcome.REFUSED, f"{where} is not understood: {error}"
            )
        except ClusterError as error:
            return BindResult(BindOutcome.FAILED, f"{where} could not be read: {error}")
        if record.pod.uid != args.uid:
            now = f"{where} was created again; its UID is now {record.pod.uid}"
            return BindResult(BindOutcome.REFUSED, now)
        return record

    def _place(self, args: BindingArgs, request: PodRequest) -> BindResult:
        began = time.monotonic()
        policy = self._state.choice.policy(request.policy)
        if isinstance(policy, Refusal):
            return BindResult(BindOutcome.REFUSED, refusal_text(policy))
        # Stage 1: an earlier bind of this pod may still take effect.
        reserved = self._state.ledger.placement(args.uid)
        answer = self._answer_earlier_bind(args, request, reserved)
        if answer is not None:
            return answer
        # Stage 2: decide, and reserve if the node is still the same (decision 0007).
        fresh = reserved is None
        others = self._state.inflight.planned(args.node, args.uid)
        decision = self._state.ledger.reserve(request, args.node, policy, others)
        self._state.inflight.end(args.uid)
        if isinstance(decision, Refusal):
            return BindResult(BindOutcome.CONFLICT, refusal_text(decision))
        if fresh:
            since = self._clock()
            self._reservations[args.uid] = _Reservation(request, since, since)
        # Stage 3: one POST, which binds the pod and records its placement.
        bound = self._write(args, decision, fresh=fresh)
        if not bound.error:
            self._log(decision, policy.name, time.monotonic() - began)
        return bound

    def _answer_earlier_bind(
        self, args: BindingArgs, request: PodRequest, reserved: Placement | None
    ) -> BindResult | None:
        """Return the answer if an earlier bind decides it; None if this one may go on.

        Refuse while an earlier bind may still take effect, unless it is the same.
        Otherwise one pod could hold cards of two nodes, and another pod be placed on
        one of them. Once no earlier bind can take effect, its room is freed and this
        bind refused all the same: a failed bind makes kube-scheduler try all waiting
        pods again, and nothing else would tell it of the room.
        """
        if reserved is None:
            return None
        now = self._clock()
        made_now = _Reservation(request, now, now + _UNANSWERED_S)
        reservation = self._reservations.get(args.uid, made_now)
        same = (reserved.node, reservation.request) == (args.node, request)
        if same and now < min(reservation.due, reservation.since + _TRIED_AGAIN_FOR_S):
            return None
        read = self._read(args)
        bound = (
            read if isinstance(read, BindResult) else _answer_if_bound(read, args.node)
        )
        if bound is not None:
            return bound
        if now < reservation.due:
            error = f"the result of an earlier bind to {reserved.node} is not known yet"
            return BindResult(BindOutcome.UNKNOWN, error)
        self._give_up(reserved)
        return BindResult(
            BindOutcome.FAILED, f"an earlier bind to {reserved.node} had no effect"
        )

    def _write(
        self, args: BindingArgs, placement: Placement | None, *, fresh: bool
    ) -> BindResult:
        """Send the binding, and conclude from the answer only what it proves.

        A reservation that is not ``fresh`` is from an earlier bind without an answer.
        No answer to this bind can prove that the earlier one failed.
        """
        annotations = {}
        if placement is not None:
            annotations[names.PLACEMENT] = encode_placement(placement, self._now())
        pod = PodTarget(args.namespace, args.name, args.uid)
        try:
            self._cluster.bind(pod, args.node, annotations, timeout_s=self._timeout_s)
        except Conflict as error:
            return self._settle(args, placement, error, fresh=fresh)
        except ClusterError as error:
            if not error.definite:
                return self._settle(args, placement, error, fresh=fresh)
            if not fresh and not isinstance(error, NotFound):
                return BindResult(
                    BindOutcome.UNKNOWN, f"an earlier bind is unanswered: {error}"
                )
            self._state.ledger.cancel(args.uid)
            return BindResult(BindOutcome.FAILED, f"the API server refused: {error}")
        return BindResult(BindOutcome.BOUND)

    def _settle(
        self,
        args: BindingArgs,
        placement: Placement | None,
        error: ClusterError,
        *,
        fresh: bool,
    ) -> BindResult:
        """Read the pod after a conflict or no answer, and decide by what it says.

        The reservation is given up only if the write can no longer take effect. If it
        stays, the watch settles it, or the next bind once it is due.
        """
        # Stage 1: what the API server has is the truth, if it can be read.
        read = self._read(args)
        if isinstance(read, PodRecord) and read.terminal:
            # The watch may have told of its end before, and will not tell again.
            self._state.ledger.cancel(args.uid)
        if _bound_as_meant(read, args, placement):
            return BindResult(BindOutcome.BOUND)
        # Stage 2: the write may still take effect, so its room stays reserved.
        read_failed = (
            isinstance(read, BindResult) and read.outcome is BindOutcome.FAILED
        )
        unbound = isinstance(read, PodRecord) and not read.node
        if read_failed or (unbound and not (error.definite and fresh)):
            answered = isinstance(error, Unavailable) and error.answered
            self._put_off(args.uid, answered=unbound and answered)
            return BindResult(
                BindOutcome.UNKNOWN,
                f"it is not known whether the pod is bound: {error}",
            )
        # Stage 3: it cannot; the room is free again.
        self._state.ledger.cancel(args.uid)
        if isinstance(read, PodRecord):
            # Bound differently than intended; what it holds must not be given away.
            self._state.pods.settle(read)
        return BindResult(BindOutcome.FAILED, f"not bound: {error}")

    def _put_off(self, uid: PodUID, *, answered: bool) -> None:
        """Note a write that may still take effect, for longer without an answer."""
        reservation = self._reservations.get(uid)
        if reservation is not None:
            late = (
                self._clock() + _GRACE_S
                if answered
                else reservation.since + _UNANSWERED_S
            )
            reservation.due = max(reservation.due, late)

    def settle_overdue(self) -> None:
        """Read the pods of reservations whose bind was never seen to take effect.

        Only if kube-scheduler did not try the bind again; else that bind settles it.
        """
        before = self._clock() - _NOT_TRIED_AGAIN_S
        for uid, reservation in self._reservations.copy().items():
            if reservation.since < before:
                with self._alone(uid):
                    if self._reservations.get(uid) is reservation:
                        self._settle_one(uid)

    def _settle_one(self, uid: PodUID) -> None:
        placement = self._state.ledger.placement(uid)
        if placement is None or uid not in self._state.ledger.reservations():
            self._reservations.pop(uid, None)
            return
        pod = placement.pod
        read = self._read(BindingArgs(pod.namespace, pod.name, pod.uid, placement.node))
        if isinstance(read, BindResult) and read.outcome is BindOutcome.FAILED:
            return
        if isinstance(read, PodRecord) and self._state.pods.settle(read):
            return
        self._give_up(placement)

    def _give_up(self, placement: Placement) -> None:
        """Free a reservation whose bind can no longer take effect."""
        pod = placement.pod
        self._state.ledger.cancel(pod.uid)
        self._reservations.pop(pod.uid, None)
        facts = {"pod": str(pod), "node": placement.node}
        logger.warning("reservation given up", extra=facts)

    def _log(self, placement: Placement, policy: str, took_s: float) -> None:
        facts = {
            "card": ",".join(placement.cards()),
            "units": sum(share.amount.units for share in placement.shares),
            "cores": sum(share.amount.cores for share in placement.shares),
            "policy": policy,
            "took_ms": round(took_s * 1000, 1),
        }
        logger.info("bound", extra=facts)


def _answer_if_bound(record: PodRecord, node: NodeName) -> BindResult | None:
    """Return the answer for a pod that is already bound; None for any other."""
    if not record.node:
        return None
    if record.node == node:
        return BindResult(BindOutcome.ALREADY)
    error = f"pod {record.pod} is already bound to node {record.node}"
    return BindResult(BindOutcome.REFUSED, error)


def _bound_as_meant(
    read: PodRecord | BindResult, args: BindingArgs, placement: Placement | None
) -> bool:
    if isinstance(read, BindResult) or read.node != args.node:
        return False
    if placement is None:
        return True
    return read.plan is not None and read.plan.shares == placement.shares
