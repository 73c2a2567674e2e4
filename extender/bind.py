"""bind: decide, write down, write once, settle (contracts 1.5, decision 0005)."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from threading import Condition

from extender.inflight import Inflight
from extender.wire import BindingArgs
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Placement, PodRequest, PodUID
from gpushare.domain.policies import Choice
from gpushare.domain.summary import Refusal
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.bookkeeper import NodeBook, PodBook
from gpushare.kube.cluster import Cluster, Kind, Target
from gpushare.kube.codec import PodRecord, pod_record, refusal_text
from gpushare.kube.errors import ClusterError, Conflict, NotFound
from gpushare.kube.fields import Malformed

logger = logging.getLogger(__name__)


class Outcome(StrEnum):
    """How a bind came out, for the metric."""

    BOUND = "bound"
    ALREADY = "already-bound"
    REFUSED = "refused"
    CONFLICT = "conflict"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Bound:
    """What bind answers; ``error`` is empty exactly when the pod is bound."""

    outcome: Outcome
    error: str = ""


def utc_now() -> str:
    """Give the time as the annotation ``vcuda-placement`` has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Books:
    """What bind reads and writes in memory."""

    ledger: Ledger
    pods: PodBook
    nodes: NodeBook
    inflight: Inflight
    choice: Choice


class Binder:
    """Binds one pod to one card, with one POST to the API server and no other write."""

    def __init__(
        self,
        cluster: Cluster,
        books: Books,
        *,
        timeout_s: float,
        now: Callable[[], str] = utc_now,
    ) -> None:
        self._cluster = cluster
        self._books = books
        self._timeout_s = timeout_s
        self._now = now
        self._turn = Condition()
        self._under_way: set[PodUID] = set()

    def bind(self, args: BindingArgs) -> Bound:
        """Bind the pod and say so, or say why not and leave nothing half-made.

        A second, identical bind succeeds and changes nothing.
        """
        try:
            with self._alone(args.uid):
                return self._bind(args)
        finally:
            self._books.inflight.end(args.uid)

    @contextmanager
    def _alone(self, uid: PodUID) -> Iterator[None]:
        """Let binds of one pod follow one another; those of others go on."""
        with self._turn:
            self._turn.wait_for(lambda: uid not in self._under_way)
            self._under_way.add(uid)
        try:
            yield
        finally:
            with self._turn:
                self._under_way.discard(uid)
                self._turn.notify_all()

    def _bind(self, args: BindingArgs) -> Bound:
        record = self._find(args)
        if isinstance(record, Bound):
            return record
        if record.node == args.node:
            return Bound(Outcome.ALREADY)
        if record.node:
            return _bound_elsewhere(record)
        if not self._books.nodes.knows(args.node):
            return Bound(Outcome.REFUSED, f"there is no node {args.node}")
        if isinstance(record.request, Refusal):
            return Bound(Outcome.REFUSED, refusal_text(record.request))
        if not record.request.claims:
            return self._write(args, None, fresh=True)
        return self._place(args, record.request)

    def _find(self, args: BindingArgs) -> PodRecord | Bound:
        """Give the pod from the book, or read it where the book lags behind."""
        record = self._books.pods.find(args.namespace, args.name)
        if record is not None and record.pod.uid == args.uid:
            return record
        return self._read(args)

    def _read(self, args: BindingArgs) -> PodRecord | Bound:
        where = f"pod {args.namespace}/{args.name}"
        try:
            raw = self._cluster.get(Kind.PODS, args.namespace, args.name)
            record = pod_record(raw)
        except NotFound:
            return Bound(Outcome.REFUSED, f"{where} is gone")
        except Malformed as error:
            return Bound(Outcome.REFUSED, f"{where} is not understood: {error}")
        except ClusterError as error:
            return Bound(Outcome.FAILED, f"{where} could not be read: {error}")
        if record.pod.uid != args.uid:
            now = f"{where} was made again: its UID is {record.pod.uid} now"
            return Bound(Outcome.REFUSED, now)
        return record

    def _place(self, args: BindingArgs, request: PodRequest) -> Bound:
        began = time.monotonic()
        policy = self._books.choice.policy(request.policy)
        if isinstance(policy, Refusal):
            return Bound(Outcome.REFUSED, refusal_text(policy))
        elsewhere = self._elsewhere(args)
        if elsewhere is not None:
            return elsewhere
        fresh = self._books.ledger.placement(args.uid) is None
        decision = self._books.ledger.reserve(request, args.node, policy)
        self._books.inflight.end(args.uid)
        if isinstance(decision, Refusal):
            return Bound(Outcome.CONFLICT, refusal_text(decision))
        bound = self._write(args, decision, fresh=fresh)
        if not bound.error:
            self._log(decision, policy.name, time.monotonic() - began)
        return bound

    def _elsewhere(self, args: BindingArgs) -> Bound | None:
        """Refuse while an unanswered bind to another node may yet come true.

        Its room there stays held until the watch or its age settles it: moving on at
        once could give two nodes' cards to one pod, and one of them to a second.
        """
        held = self._books.ledger.placement(args.uid)
        if held is None or held.node == args.node:
            return None
        record = self._read(args)
        if isinstance(record, Bound):
            return record
        if record.node:
            return _bound_elsewhere(record)
        error = f"nobody knows yet whether an earlier bind to {held.node} came true"
        return Bound(Outcome.UNKNOWN, error)

    def _write(
        self, args: BindingArgs, placement: Placement | None, *, fresh: bool
    ) -> Bound:
        """Send the binding, and make of the answer what it proves.

        A reservation that is not ``fresh`` is that of an earlier bind without an
        answer. No answer to this one can tell that the earlier one failed.
        """
        annotations = {}
        if placement is not None:
            annotations[names.PLACEMENT] = encode_placement(placement, self._now())
        pod = Target(args.namespace, args.name, args.uid)
        try:
            self._cluster.bind(pod, args.node, annotations, timeout_s=self._timeout_s)
        except Conflict as error:
            return self._settle(args, placement, error, fresh=fresh)
        except ClusterError as error:
            if not error.definite:
                return self._settle(args, placement, error, fresh=fresh)
            if not fresh and not isinstance(error, NotFound):
                return Bound(Outcome.UNKNOWN, f"an earlier bind is unanswered: {error}")
            self._books.ledger.cancel(args.uid)
            return Bound(Outcome.FAILED, f"the API server refused: {error}")
        return Bound(Outcome.BOUND)

    def _settle(
        self,
        args: BindingArgs,
        placement: Placement | None,
        error: ClusterError,
        *,
        fresh: bool,
    ) -> Bound:
        """Look at the pod after a conflict or no answer; it alone knows the truth.

        The reservation is given up only when the write can no longer come true. Else
        it stays, and the watch or a look after 30 s settles it.
        """
        found = self._read(args)
        if _bound_as_meant(found, args, placement):
            return Bound(Outcome.BOUND)
        read_failed = isinstance(found, Bound) and found.outcome is Outcome.FAILED
        unbound = isinstance(found, PodRecord) and not found.node
        if read_failed or (unbound and not (error.definite and fresh)):
            return Bound(Outcome.UNKNOWN, f"nobody knows whether it is bound: {error}")
        self._books.ledger.cancel(args.uid)
        if isinstance(found, PodRecord):
            # Bound in another way than we meant; its room is not to be given away.
            self._books.pods.settle(found)
        return Bound(Outcome.FAILED, f"not bound: {error}")

    def settle_overdue(self) -> None:
        """Look at the pods of reservations that were never seen to come true."""
        for placement, number in self._books.pods.overdue():
            pod = placement.pod
            found = self._read(
                BindingArgs(pod.namespace, pod.name, pod.uid, placement.node)
            )
            if isinstance(found, Bound) and found.outcome is Outcome.FAILED:
                continue
            if isinstance(found, PodRecord) and self._books.pods.settle(found):
                continue
            self._books.ledger.cancel(pod.uid, number)
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


def _bound_elsewhere(record: PodRecord) -> Bound:
    error = f"pod {record.pod} is bound to node {record.node} already"
    return Bound(Outcome.REFUSED, error)


def _bound_as_meant(
    found: PodRecord | Bound, args: BindingArgs, placement: Placement | None
) -> bool:
    if isinstance(found, Bound) or found.node != args.node:
        return False
    if placement is None:
        return True
    return found.plan is not None and found.plan.shares == placement.shares
