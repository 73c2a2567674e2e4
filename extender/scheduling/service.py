"""Answer filter, prioritize and preempt from the ledger; ``bind`` is a module apart.

kube-scheduler does not call prioritize if one node is left (contracts 1.4), so nothing
may depend on it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import filterfalse, islice, repeat
from threading import Lock

from extender.scheduling.filter_cache import (
    ExpectedNodes,
    FilterAnswer,
    KeptAnswers,
    KeptScores,
    PendingBind,
    refuse_with_pending,
)
from extender.scheduling.state import ExtenderState
from extender.scheduling.wire import (
    NODE_CACHE,
    ExtenderArgs,
    FilterResult,
    PreemptionArgs,
)
from gpushare.domain.eviction.preemption import (
    Budget,
    EvictionFacts,
    Victims,
    choose_victims,
    tries_on_each,
)
from gpushare.domain.links import add_links
from gpushare.domain.model import NO_CARDS, NodeName, PodRequest, PodUID, Refusal
from gpushare.domain.placement import choose_node, find_refusal, place
from gpushare.domain.policies import HIGHEST_SCORE, Policy
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.codec import PodRecord, read_budgets, read_pod_record, refusal_text
from gpushare.kube.errors import ClusterError
from gpushare.kube.json_reader import Malformed

logger = logging.getLogger(__name__)

_WAIT_PART = 0.2
"""How much of all time may go into waits."""
_NAMESPACE_PART = 0.75
"""How much of the waits may go to the pods of one namespace."""
_SAVED_S = 1.0
"""The most seconds of waiting that are saved up for later."""
_MOST_BUDGETS = 5000
_MOST_LISTS = 10
"""Nodes whose pods one preempt reads."""
_MOST_PODS = 1000
_LISTS_S = 2.0
"""After so long preempt reads no more of them: kube-scheduler gives up at 10 s."""
_VICTIMS_S = 5.0
"""After so long, with one node known, preempt looks at no further one: many containers
*apart* take 0.2 s on a node."""
SEEN_WITHIN_S = 0.5
"""How long preempt waits for the watch; mostly it is some milliseconds behind."""
_LOOK_EVERY_S = 0.005
_MOST_NAMESPACES = 1000
"""Whose waits are remembered at a time."""
_UNANSWERED = "The result of an earlier bind to another node is not known yet"


class WaitAllowance:
    """How long filter may wait for news before it refuses a pod everywhere.

    kube-scheduler asks for a refused pod again within milliseconds of an event that may
    help the pod, such as another pod's end. kube-scheduler's watch may be a little
    ahead of the extender's; then the ledger still has no room. If that event was the
    last, kube-scheduler does not ask again for five minutes (contracts 1.7). So a pod
    that fits nowhere waits a moment for the extender's watch. Filter is on
    kube-scheduler's serial path: only ``_WAIT_PART`` of all time may go into waits, and
    ``_NAMESPACE_PART`` of that into the pods of one namespace. Otherwise the refused
    pods of one namespace would leave no wait to the others.
    """

    def __init__(
        self, wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._wait_s = wait_s
        self._clock = clock
        self._lock = Lock()
        saved_s = max(_SAVED_S, wait_s)
        self._all = _Allowance(_WAIT_PART, saved_s, saved_s, clock())
        self._namespaces: dict[str, _Allowance] = {}

    def allowed_s(self, namespace: str) -> float:
        """Return the seconds that a pod of a namespace may wait now; 0 for none."""
        with self._lock:
            now = self._clock()
            allowance = self._of_namespace(namespace, now)
            left_s = min(self._all.fill(now), allowance.fill(now))
            return self._wait_s if left_s >= self._wait_s else 0.0

    def spend(self, namespace: str, seconds: float) -> None:
        """Subtract what a pod has waited."""
        with self._lock:
            self._all.left_s -= seconds
            self._of_namespace(namespace, self._clock()).left_s -= seconds

    def _of_namespace(self, namespace: str, now: float) -> "_Allowance":
        """Return a namespace's allowance; if there are too many, drop the full ones."""
        if namespace not in self._namespaces:
            if len(self._namespaces) >= _MOST_NAMESPACES:
                self._namespaces = {
                    name: allowance
                    for name, allowance in self._namespaces.items()
                    if allowance.fill(now) < allowance.saved_s
                }
            saved_s = max(_SAVED_S * _NAMESPACE_PART, self._wait_s)
            share = _WAIT_PART * _NAMESPACE_PART
            self._namespaces[namespace] = _Allowance(share, saved_s, saved_s, now)
        return self._namespaces[namespace]


@dataclass(slots=True)
class _Allowance:
    """Seconds that grow with time, up to ``saved_s``, and that waiting uses up."""

    share: float
    saved_s: float
    left_s: float
    filled_at: float

    def fill(self, now: float) -> float:
        earned = (now - self.filled_at) * self.share
        self.left_s = min(self.saved_s, self.left_s + earned)
        self.filled_at = now
        return self.left_s


class _WouldWait(Exception):
    """Filter would wait, and may not."""


@dataclass(frozen=True, slots=True)
class _FilterQuestion:
    """What filter is asked about a pod that wants a card, with the pod's policy."""

    names: Sequence[NodeName]
    request: PodRequest
    policy: Policy
    group: str
    may_wait: bool


class SchedulingVerbs:
    """What kube-scheduler asks before it binds."""

    def __init__(
        self,
        cluster: Cluster,
        state: ExtenderState,
        wait_allowance: WaitAllowance,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._ledger = state.ledger
        self._inflight = state.inflight
        self._fitting = KeptAnswers(state.ledger)
        self._scores = KeptScores(state.ledger)
        self._wait_allowance = wait_allowance
        self._clock = clock

    def filter(self, args: ExtenderArgs) -> FilterResult:
        """Return the nodes that can take the pod, and why each other one cannot.

        Idempotent: kube-scheduler may ask twice in a cycle (contracts 1.2). It may wait
        for a bind, and for news if the pod fits nowhere.
        """
        return self._filter(args, may_wait=True)

    def filter_at_once(self, args: ExtenderArgs) -> FilterResult | None:
        """Filter without waiting; None if ``filter`` would wait."""
        try:
            return self._filter(args, may_wait=False)
        except _WouldWait:
            return None

    def _filter(self, args: ExtenderArgs, *, may_wait: bool) -> FilterResult:
        names, request = args.names, args.request
        # Stage 1: answers for which no node has to be looked at.
        if names is None:
            return FilterResult(error=NODE_CACHE)
        if isinstance(request, Refusal):
            return refuse_all(names, request)
        if not request.claims:
            return FilterResult(names)
        policy = self._state.choice.policy(request.policy)
        if isinstance(policy, Refusal):
            return refuse_all(names, policy)
        # Stage 2: judge the nodes, unless an earlier bind still ties the pod to one.
        self._inflight.begin(request.pod.uid, args.group)
        question = _FilterQuestion(names, request, policy, args.group, may_wait)
        reserved = self._ledger.placement(request.pod.uid)
        if reserved is None:
            result = self._decide_with_wait(question)
        else:
            result = self._keep_reserved_node(question, reserved.node)
        # Stage 3: remember what the pod may take, so that others are judged beside it.
        if result.kept and question.group:
            result = self._pinned(question, result)
        elif result.kept:
            self._inflight.add(request, policy, result.kept)
        return self._awaiting(args, result)

    def prioritize(self, args: ExtenderArgs) -> list[tuple[NodeName, int]]:
        """Return by how much names score above the least, 1 to 10, in their order.

        Only differences count, and kube-scheduler adds nothing for a name that the
        answer leaves out. It reads a score in a microsecond, and no other pod meanwhile
        (decision 0060). So the answer is empty if there is no choice. A policy that
        chooses one node itself gives it the highest score: scores from 0 to 10 cannot
        express what it knows.
        """
        names, request = args.names, args.request
        if names is None:
            raise Malformed("NodeNames", NODE_CACHE)
        known: Mapping[NodeName, int] = {}
        linked: Mapping[NodeName, int] = {}
        if isinstance(request, PodRequest) and request.claims:
            policy = self._state.choice.policy(request.policy)
            if isinstance(policy, Policy):
                chooser = policy.chooser
                best = chooser and chooser.best(request, names, policy)
                known = {best: HIGHEST_SCORE} if best else self._scores.of(policy)
                linked = {} if best else self._scores.of_links(request, policy)
        # There may be thousands of names: in C, and only what differs in a loop here.
        scores = list(map(known.get, names, repeat(0)))
        if linked:
            scores = add_links(scores, list(map(linked.get, names, repeat(0))))
        least = min(scores, default=0)
        scored = zip(names, scores, strict=True)
        most = least + HIGHEST_SCORE
        return [(n, min(most, score) - least) for n, score in scored if score > least]

    def preempt(self, args: PreemptionArgs) -> dict[NodeName, Victims]:
        """Choose victims that free a card; for a pod that asks none, keep all.

        A node where none would help is left out, as is one without victims:
        kube-scheduler takes it for an error (contracts 1.3).

        A pod that was bound but not seen in the watch yet is no victim. If nothing else
        helps, such pods are waited for: after an answer without victims
        kube-scheduler may not ask again for five minutes (contracts 1.7).
        """
        request, pods = args.request, self._state.pods
        if isinstance(request, Refusal):
            raise Malformed("Pod", refusal_text(request))
        if not request.claims:
            return {n: v for n, v in args.proposals.items() if v.uids}
        policy = self._state.choice.policy(request.policy)
        if isinstance(policy, Refusal):
            raise Malformed("Pod.metadata.annotations", refusal_text(policy))
        budgets = self._budgets(args.proposals)
        deadline = time.monotonic() + SEEN_WITHIN_S
        chosen = self._victims(args, request, policy, budgets)
        while (
            not chosen
            and self._has_reservations(args.proposals)
            and time.monotonic() < deadline
        ):
            time.sleep(_LOOK_EVERY_S)
            chosen = self._victims(args, request, policy, budgets)
        pods.mark_preempted(uid for victims in chosen.values() for uid in victims.uids)
        return chosen

    def _has_reservations(self, names: Iterable[NodeName]) -> bool:
        """Tell whether a node has a pod whose binding the watch has not brought."""
        reserved = self._ledger.reservations()
        nodes = filter(None, map(self._ledger.node, names))
        return any(not reserved.isdisjoint(node.placements) for node in nodes)

    def _victims(
        self,
        args: PreemptionArgs,
        request: PodRequest,
        policy: Policy,
        budgets: Sequence[Budget],
    ) -> dict[NodeName, Victims]:
        members = self._inflight.members(request.pod.uid, args.group)
        reserved = self._ledger.reservations().union(m.request.pod.uid for m in members)
        started = self._state.pods.started
        tries = tries_on_each(len(args.proposals))
        facts = EvictionFacts(self._state.hosts, budgets, reserved, started, tries)
        expected, chosen = ExpectedNodes(members), dict[NodeName, Victims]()
        until = self._clock() + _VICTIMS_S
        for number, (name, proposal) in enumerate(args.proposals.items()):
            if chosen and self._clock() > until:
                progress = {"pod": str(request.pod), "nodes": number}
                logger.warning("preempt looked at some of the nodes", extra=progress)
                break
            if node := self._ledger.node(name):
                node = expected.on(node)
                victims = choose_victims(request, node, proposal, policy, facts)
                if victims is not None and victims.uids:
                    chosen[name] = victims
        return chosen

    def _keep_reserved_node(
        self, question: _FilterQuestion, node: NodeName
    ) -> FilterResult:
        """Keep only the node to which an earlier bind may still succeed.

        bind refuses all others meanwhile. If that node cannot take the pod now, the
        answer is an error, after which kube-scheduler asks again by itself. After a
        refusal it might not.
        """
        reserved = [name for name in question.names if name == node]
        result = self._decide(replace(question, names=reserved))
        if not result.kept:
            return FilterResult(error=_UNANSWERED)
        others = [name for name in question.names if name != node]
        return FilterResult(result.kept, {_UNANSWERED: others})

    def _decide_with_wait(self, question: _FilterQuestion) -> FilterResult:
        """Decide; if a pod fits nowhere, decide again when news comes in time."""
        position = self._ledger.position()
        result = self._decide(question)
        if result.kept or not question.names:
            return result
        began, namespace = self._clock(), question.request.pod.namespace
        allowed_s = self._wait_allowance.allowed_s(namespace)
        if allowed_s and not question.may_wait:
            raise _WouldWait
        deadline = began + allowed_s
        while not result.kept and (left_s := deadline - self._clock()) > 0:
            if not self._ledger.wait_for_change(position, left_s):
                break
            position = self._ledger.position()
            result = self._decide(question)
        self._wait_allowance.spend(namespace, self._clock() - began)
        return result

    def _decide(self, question: _FilterQuestion) -> FilterResult:
        """Judge without the pods of others whose bind is pending, if that is safe.

        It is safe if there are none, or if counting them changes no answer. The pods of
        the same scheduling group always count: all of them are bound, or none.
        """
        uid, group = question.request.pod.uid, question.group
        # Stage 1: without the others. Their binds may fail, so they must not refuse it.
        members = self._inflight.members(uid, group)
        # Before the answer: a bind that ends meanwhile would be in neither.
        others = self._inflight.others(uid, group)
        answer = self._answer(question)
        without = self._judge(question, answer, members)
        if not without.kept or not others:
            return without
        # Stage 2: with them. If no node is lost, nothing depends on their binds.
        counted = self._judge(question, answer, (*others, *members))
        if len(counted.kept) == len(without.kept):
            return without
        if not question.may_wait:
            raise _WouldWait
        # Stage 3: wait for their binds; count those that are still pending then.
        others = self._inflight.wait(uid, group)
        answer = self._answer(question)
        without = self._judge(question, answer, members)
        if not others:
            return without
        counted = self._judge(question, answer, (*others, *members))
        return counted if counted.kept else without

    def _pinned(self, question: _FilterQuestion, result: FilterResult) -> FilterResult:
        """Keep only the node that the policy prefers, and plan a placement there.

        kube-scheduler binds a group only after all its pods were filtered, and tells
        its choice with the bind. So it gets no choice. The other nodes need no reason,
        which kube-scheduler reads only if no node is left.
        """
        request, policy = question.request, question.policy
        expected = ExpectedNodes(
            self._inflight.members(request.pod.uid, question.group)
        )
        kept = filter(None, map(self._ledger.node, result.kept))
        nodes = {node.name: node.as_seen_by(request.pod) for node in kept}
        for name in expected.among(nodes.keys()):
            nodes[name] = expected.on(nodes[name])
        if not nodes:
            return refuse_all(question.names, NO_CARDS)
        best = choose_node(request, nodes.values(), policy)
        planned = place(request, best, policy)
        if isinstance(planned, Refusal):
            return refuse_all(question.names, planned)
        only = (best.name,)
        self._inflight.add(request, policy, only, question.group, planned)
        return replace(result, kept=only)

    def _awaiting(self, args: ExtenderArgs, result: FilterResult) -> FilterResult:
        """Mark the nominated node if it is refused while victims still leave it."""
        name = args.nominated
        if name is None or not any(name in names for names in result.reasons.values()):
            return result
        leaving = self._state.pods.leaving(name)
        if all(pod.pod.priority >= args.pod.priority for pod in leaving):
            return result
        return replace(result, awaited=name)

    def _answer(self, question: _FilterQuestion) -> FilterAnswer:
        """Judge the pod alone, without what is pending."""
        return self._fitting.answer(question.request, question.policy, question.names)

    def _judge(
        self,
        question: _FilterQuestion,
        answer: FilterAnswer,
        pending: Sequence[PendingBind],
    ) -> FilterResult:
        request, policy = question.request, question.policy
        exceptions: dict[NodeName, Refusal | None] = {}
        if pending:
            fits = answer.fits
            if len(question.names) < len(fits):
                fits = fits.intersection(question.names)
            exceptions.update(
                refuse_with_pending(
                    request, policy, pending, self._fitting, self._ledger, fits
                )
            )
        exceptions.update(self._seen_otherwise(question, pending))
        return divide_names(question.names, answer, exceptions)

    def _seen_otherwise(
        self, question: _FilterQuestion, pending: Sequence[PendingBind]
    ) -> dict[NodeName, Refusal | None]:
        """Judge the nodes on which more is free for this pod than for others like it.

        There its own placement or nomination, or the nomination of a pod of lower
        priority, must not stand in its way.
        """
        pod = question.request.pod
        placement = self._ledger.placement(pod.uid)
        special = self._ledger.nodes_with_nominations() | (
            {placement.node} if placement else set()
        )
        if not special:
            return {}
        exceptions: dict[NodeName, Refusal | None] = {}
        expected = ExpectedNodes(pending)
        for name in special:
            node = self._ledger.node(name)
            as_seen = None if node is None else node.as_seen_by(pod)
            if as_seen is not None and as_seen is not node:
                exceptions[name] = find_refusal(
                    question.request, expected.on(as_seen), question.policy
                )
        return exceptions

    def _budgets(self, proposals: Mapping[NodeName, Victims]) -> tuple[Budget, ...]:
        """Read the disruption budgets; none if that fails."""
        records = self._state.pods.records()
        try:
            objects = self._cluster.list_page(Kind.BUDGETS, limit=_MOST_BUDGETS).items
            known = read_budgets(objects, records)
            others = self._victims_without_cards(
                proposals, {r.pod.uid for r in records}, known
            )
            return read_budgets(objects, (*records, *others)) if others else known
        except (ClusterError, Malformed) as error:
            facts = {"because": f"{type(error).__name__}: {error}"}
            logger.warning("disruption budgets not read", extra=facts)
            return ()

    def _victims_without_cards(
        self,
        proposals: Mapping[NodeName, Victims],
        recorded: AbstractSet[PodUID],
        known: Iterable[Budget],
    ) -> list[PodRecord]:
        """Read the victims without cards that may share a budget with pods with cards.

        The labels of such pods are not kept. Only nodes with pods under a budget are
        asked about, and at most 10 of them, because each takes a request.
        """
        covered = frozenset().union(*(budget.pods for budget in known))
        others: dict[NodeName, set[PodUID]] = {}
        for name, proposal in proposals.items():
            node, unknown = self._ledger.node(name), {*proposal.uids} - recorded
            if node and unknown and not covered.isdisjoint(node.placements):
                others[name] = unknown
        records: list[PodRecord] = []
        until = self._clock() + _LISTS_S
        for name, uids in islice(others.items(), _MOST_LISTS):
            if self._clock() > until:
                break
            try:
                records += self._read_pods(name, uids)
            except (ClusterError, Malformed) as error:
                # The budgets of pods with cards are known all the same.
                facts = {"node": name, "because": f"{type(error).__name__}: {error}"}
                logger.warning("victims without cards not read", extra=facts)
        return records

    def _read_pods(self, node: NodeName, uids: AbstractSet[PodUID]) -> list[PodRecord]:
        selector = f"spec.nodeName={node}"
        page = self._cluster.list_page(
            Kind.PODS, limit=_MOST_PODS, field_selector=selector
        )
        return [
            read_pod_record(pod) for pod in page.items if pod["metadata"]["uid"] in uids
        ]


def divide_names(
    names: Sequence[NodeName],
    answer: FilterAnswer,
    exceptions: Mapping[NodeName, Refusal | None],
) -> FilterResult:
    """Divide the names into kept, in the order given, and refused.

    ``exceptions`` overrule the answer where this pod sees a node differently from
    others like it. There may be thousands of names, so they are looked up in C, never
    in a loop here, and not a second time if all of them fit.
    """
    if exceptions:
        usual = divide_names([n for n in names if n not in exceptions], answer, {})
        return _with_exceptions(names, usual, exceptions)
    if answer.fits.issuperset(names):
        return FilterResult(names)
    reasons: dict[str, Sequence[NodeName]] = {}
    for why, group in answer.refused.items():
        if group.issuperset(names):
            return FilterResult((), {refusal_text(why): names})
        if these := list(filter(group.__contains__, names)):
            reasons[refusal_text(why)] = these
    kept = list(filter(answer.fits.__contains__, names))
    refused = sum(map(len, reasons.values()))
    if len(kept) + refused < len(names):
        known = set(kept).union(*reasons.values())
        unknown = list(filterfalse(known.__contains__, names))
        reason = refusal_text(NO_CARDS)
        reasons[reason] = [*reasons.get(reason, ()), *unknown]
    return FilterResult(kept, reasons)


def _with_exceptions(
    names: Sequence[NodeName],
    usual: FilterResult,
    exceptions: Mapping[NodeName, Refusal | None],
) -> FilterResult:
    reasons = {reason: list(group) for reason, group in usual.reasons.items()}
    refused = set().union(*usual.reasons.values())
    for name in filter(exceptions.__contains__, names):
        exception = exceptions[name]
        if exception is not None:
            reasons.setdefault(refusal_text(exception), []).append(name)
            refused.add(name)
    return FilterResult([n for n in names if n not in refused], reasons)


def refuse_all(names: Sequence[NodeName], refusal: Refusal) -> FilterResult:
    """Refuse every node for one reason."""
    return FilterResult((), {refusal_text(refusal): names})
