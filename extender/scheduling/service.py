"""filter, prioritize and preempt, asked of the ledger; bind has a room of its own.

filter: which of the nodes can take the pod, and why the others cannot. Pure.

prioritize: how much each node is liked, 0 to 10. Pure.

Not called when a single node is left (contracts 1.4), so nothing may rest on it.

preempt: keep, replace or drop the victims that kube-scheduler proposes. Pure.

How long filter may wait for news before it refuses a pod everywhere.

kube-scheduler asks for a refused pod again within milliseconds of the event that may
help it, such as another pod's end. If its watch is a little ahead of ours, our books
still say no; and if that event was the last, nobody asks again for five minutes
(contracts 1.7). So a pod that fits nowhere is given a moment for our watch to catch up.
Filter is on the scheduler's serial path, so of all time at most a share goes into that,
and three quarters of that into the pods of one namespace.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import filterfalse
from threading import Lock

from extender.scheduling import wire
from extender.scheduling.inflight import Expected, Inflight, Pending, cautious
from extender.scheduling.wire import (
    ExtenderArgs,
    FilterResult,
    PreemptionArgs,
    insist_on_strings,
)
from gpushare.cache.pods import PodBook
from gpushare.domain.cache import Answer, Fitting, Scores
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.placement import place, preferred_node, refusal, score
from gpushare.domain.policies import HIGHEST_SCORE, Choice, Policy
from gpushare.domain.preemption import Budget, Facts, Victims, choose_victims
from gpushare.domain.refusal import Reason, Refusal
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.codec import budgets, refusal_text
from gpushare.kube.errors import ClusterError
from gpushare.kube.json_reader import Malformed

UNKNOWN = Refusal(Reason.NO_CARDS)
"""For a node that the ledger has never heard of."""


def judge(
    names: Sequence[NodeName],
    answer: Answer,
    exceptions: Mapping[NodeName, Refusal | None],
) -> FilterResult:
    """Divide the names into kept, in the order given, and refused.

    ``exceptions`` overrule the answer where this very pod is seen differently from its
    like. There may be thousands of names, so they are looked up in C, never in a loop
    of ours, and not at all a second time when all of them fit.
    """
    with suppress(TypeError):
        # What is not even hashable is complained of in a moment.
        if not exceptions and answer.fits.issuperset(names):
            return FilterResult(names)
    insist_on_strings(names)
    verdicts: dict[NodeName, str] = {}
    for why, group in answer.refused.items():
        these = filter(group.__contains__, names)
        verdicts.update(dict.fromkeys(these, refusal_text(why)))
    if len(verdicts) == len(names) and not exceptions:
        return FilterResult((), verdicts)
    kept = list(filter(answer.fits.__contains__, names))
    if len(kept) + len(verdicts) < len(names):
        known = verdicts.keys() | set(kept)
        unknown = filterfalse(known.__contains__, names)
        verdicts.update(dict.fromkeys(unknown, refusal_text(UNKNOWN)))
    return _overrule(names, kept, verdicts, exceptions)


def refuse_all(names: Sequence[NodeName], refusal: Refusal) -> FilterResult:
    """Refuse every node for one reason."""
    insist_on_strings(names)
    return FilterResult((), dict.fromkeys(names, refusal_text(refusal)))


def _overrule(
    names: Sequence[NodeName],
    kept: list[NodeName],
    verdicts: dict[NodeName, str],
    exceptions: Mapping[NodeName, Refusal | None],
) -> FilterResult:
    if not exceptions:
        return FilterResult(kept, verdicts)
    for name in exceptions.keys() & set(names):
        refusal = exceptions[name]
        if refusal is None:
            verdicts.pop(name, None)
        else:
            verdicts[name] = refusal_text(refusal)
    return FilterResult([n for n in names if n not in verdicts], verdicts)


def prioritize(
    names: Sequence[NodeName],
    scores: Callable[[Policy], Mapping[NodeName, int]],
    policy: Policy,
    request: PodRequest,
) -> list[tuple[NodeName, int]]:
    """Give each name its score; 0 for a node that the ledger does not know.

    A policy that wants one node above all gives it everything and the others nothing:
    of what it knows, 0 to 10 could tell kube-scheduler but a shadow.
    """
    if policy.chooser is not None:
        best = policy.chooser.best(request, names, policy)
        if best is not None:
            return [(n, HIGHEST_SCORE if n == best else 0) for n in names]
    known = scores(policy)
    return [(name, known.get(name, 0)) for name in names]


def preempt(
    request: PodRequest,
    proposals: Mapping[NodeName, Victims],
    node: Callable[[NodeName], Node | None],
    policy: Policy,
    facts: Facts,
) -> dict[NodeName, Victims]:
    """Choose the victims on each node; a node where none would help is left out.

    A node without victims is left out too: kube-scheduler takes it for an error
    (contracts 1.3).
    """
    chosen = {}
    for name, proposal in proposals.items():
        page = node(name)
        if page is None:
            continue
        victims = choose_victims(request, page, proposal, policy, facts)
        if victims is not None and victims.uids:
            chosen[name] = victims
    return chosen


_MOST_NAMESPACES = 1000
"""Whose waits are remembered at a time."""


@dataclass(slots=True)
class _Budget:
    """Seconds that fill with time and that waiting empties."""

    share: float
    saved_s: float
    left_s: float
    filled_at: float

    def fill(self, now: float) -> float:
        """Add what was earned since; give what there is now."""
        earned = (now - self.filled_at) * self.share
        self.left_s = min(self.saved_s, self.left_s + earned)
        self.filled_at = now
        return self.left_s


class Patience:
    """The time that waits may take: of all pods together, and of each namespace's.

    Without the second, one namespace's refused pods would leave none to the others.
    """

    def __init__(
        self,
        wait_s: float,
        *,
        share: float = 0.2,
        saved_s: float = 1.0,
        part: float = 0.75,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wait_s = wait_s
        self._share = share
        self._saved_s = saved_s
        self._part = part
        self._clock = clock
        self._lock = Lock()
        self._all = _Budget(share, saved_s, saved_s, clock())
        self._namespaces: dict[str, _Budget] = {}

    def allowed_s(self, namespace: str) -> float:
        """Give the seconds that a pod of a namespace may wait now; 0 for none."""
        with self._lock:
            now = self._clock()
            own = self._own(namespace, now)
            left_s = min(self._all.fill(now), own.fill(now))
            return self._wait_s if left_s >= self._wait_s else 0.0

    def spend(self, namespace: str, seconds: float) -> None:
        """Take off what a pod has waited."""
        with self._lock:
            self._all.left_s -= seconds
            self._own(namespace, self._clock()).left_s -= seconds

    def _own(self, namespace: str, now: float) -> _Budget:
        """Give a namespace's budget; those that are full again are forgotten first."""
        if namespace not in self._namespaces:
            if len(self._namespaces) >= _MOST_NAMESPACES:
                self._namespaces = {
                    name: budget
                    for name, budget in self._namespaces.items()
                    if budget.fill(now) < budget.saved_s
                }
            saved_s = max(self._saved_s * self._part, self._wait_s)
            share = self._share * self._part
            self._namespaces[namespace] = _Budget(share, saved_s, saved_s, now)
        return self._namespaces[namespace]


logger = logging.getLogger(__name__)

_MOST_BUDGETS = 5000
_UNANSWERED = "The result of an earlier bind to another node is not known yet"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What filter is asked about a pod that wants a card, under its policy."""

    names: Sequence[NodeName]
    request: PodRequest
    policy: Policy
    group: str = ""


@dataclass(frozen=True, slots=True)
class Verbs:
    """What kube-scheduler asks before it binds."""

    cluster: Cluster
    ledger: Ledger
    pods: PodBook
    fitting: Fitting
    scores: Scores
    inflight: Inflight
    choice: Choice
    hosts: Hosts
    patience: Patience
    clock: Callable[[], float] = time.monotonic

    def filter(self, args: ExtenderArgs) -> FilterResult:
        """Say which nodes can take the pod, and for each other one why not.

        Idempotent: kube-scheduler may ask twice in a cycle (contracts 1.2).
        """
        if args.names is None:
            return FilterResult(error=wire.NODE_CACHE)
        request = args.request
        if isinstance(request, Refusal):
            return refuse_all(args.names, request)
        if not request.claims:
            wire.insist_on_strings(args.names)
            return FilterResult(args.names)
        policy = self.choice.policy(request.policy)
        if isinstance(policy, Refusal):
            return refuse_all(args.names, policy)
        self.inflight.begin(request.pod.uid, args.group)
        asked = _Asked(args.names, request, policy, args.group)
        held = self.ledger.placement(request.pod.uid)
        if held is None:
            result = self._with_patience(asked)
        else:
            result = self._again(asked, held.node)
        if result.kept and asked.group:
            result = self._pinned(asked, result)
        elif result.kept:
            self.inflight.add(request, policy, result.kept)
        return self._awaiting(args, result)

    def prioritize(self, args: ExtenderArgs) -> list[tuple[NodeName, int]]:
        """Score the nodes that filter kept; nothing to choose gives 0 to all."""
        if args.names is None:
            raise Malformed("NodeNames", wire.NODE_CACHE)
        wire.insist_on_strings(args.names)
        request = args.request
        if isinstance(request, PodRequest) and request.claims:
            policy = self.choice.policy(request.policy)
            if isinstance(policy, Policy):
                return prioritize(args.names, self.scores.of, policy, request)
        return [(name, 0) for name in args.names]

    def preempt(self, args: PreemptionArgs) -> dict[NodeName, Victims]:
        """Choose victims that free a card; for a pod that asks zero, keep them."""
        request = args.request
        if isinstance(request, Refusal):
            raise Malformed("Pod", refusal_text(request))
        if not request.claims:
            return {n: v for n, v in args.proposals.items() if v.uids}
        policy = self.choice.policy(request.policy)
        if isinstance(policy, Refusal):
            raise Malformed("Pod.metadata.annotations", refusal_text(policy))
        members = self.inflight.members(request.pod.uid, args.group)
        facts = Facts(
            self.hosts,
            self._budgets(),
            self.ledger.reservations().union(m.request.pod.uid for m in members),
            self.pods.started,
        )

        expected = Expected(members)

        def page(name: NodeName) -> Node | None:
            node = self.ledger.node(name)
            return node and expected.on(node)

        chosen = preempt(request, args.proposals, page, policy, facts)
        self.pods.doom(uid for victims in chosen.values() for uid in victims.uids)
        return chosen

    def _again(self, asked: _Asked, node: NodeName) -> FilterResult:
        """Keep the one node to which an earlier bind may yet come true.

        bind refuses all others meanwhile. Where that node does not do, an error has
        kube-scheduler ask again by itself; after a refusal nothing might make it.
        """
        wire.insist_on_strings(asked.names)
        result = self._decide(
            replace(asked, names=[name for name in asked.names if name == node])
        )
        if not result.kept:
            return FilterResult(error=_UNANSWERED)
        others = dict.fromkeys((n for n in asked.names if n != node), _UNANSWERED)
        return FilterResult(result.kept, others)

    def _with_patience(self, asked: _Asked) -> FilterResult:
        """Decide; a pod that fits nowhere is decided again when news comes in time."""
        position = self.ledger.position()
        result = self._decide(asked)
        if result.kept or not asked.names:
            return result
        began, namespace = self.clock(), asked.request.pod.namespace
        deadline = began + self.patience.allowed_s(namespace)
        while not result.kept and (left_s := deadline - self.clock()) > 0:
            if not self.ledger.wait_for_change(position, left_s):
                break
            position = self.ledger.position()
            result = self._decide(asked)
        self.patience.spend(namespace, self.clock() - began)
        return result

    def _decide(self, asked: _Asked) -> FilterResult:
        """Answer with hope while nobody else is pending, or it makes no difference.

        There is no hope about pods of its own group: where each of them goes is
        certain, and all of them are to be bound or none.
        """
        uid, group = asked.request.pod.uid, asked.group
        members = self.inflight.members(uid, group)
        hopeful = self._judge(asked, members)
        if not hopeful.kept or not (others := self.inflight.others(uid, group)):
            return hopeful
        careful = self._judge(asked, (*others, *members))
        if len(careful.kept) == len(hopeful.kept):
            return hopeful
        others = self.inflight.wait(uid, group)
        hopeful = self._judge(asked, members)
        if not others:
            return hopeful
        careful = self._judge(asked, (*others, *members))
        return careful if careful.kept else hopeful

    def _pinned(self, asked: _Asked, result: FilterResult) -> FilterResult:
        """Keep the one node that the policy likes best, and plan a placement there.

        kube-scheduler tells its choice with the bind, and it binds a group only after
        all pods of it were filtered. So it is left no choice. The other nodes need no
        reason: nobody asks why while there is one node.
        """
        request, policy = asked.request, asked.policy
        expected = Expected(self.inflight.members(request.pod.uid, asked.group))
        found = (self.ledger.node(name) for name in result.kept)
        pages = {node.name: node.as_seen_by(request.pod) for node in found if node}
        for name in expected.nodes & pages.keys():
            pages[name] = expected.on(pages[name])
        if not pages:
            return refuse_all(asked.names, UNKNOWN)
        best = preferred_node(request, pages.values(), policy)
        if best is None:
            best = max(pages.values(), key=lambda page: score(page, policy))
        planned = place(request, best, policy)
        if isinstance(planned, Refusal):
            return refuse_all(asked.names, planned)
        only = (best.name,)
        self.inflight.add(request, policy, only, asked.group, planned)
        return replace(result, kept=only)

    def _awaiting(self, args: ExtenderArgs, result: FilterResult) -> FilterResult:
        """Mark the nominated node, if it is refused while victims are leaving it."""
        name = args.nominated
        if name is None or name not in (result.refused or {}):
            return result
        leaving = self.pods.leaving(name)
        if all(pod.pod.priority >= args.pod.priority for pod in leaving):
            return result
        return replace(result, awaited=name)

    def _judge(self, asked: _Asked, pending: Sequence[Pending]) -> FilterResult:
        request, policy = asked.request, asked.policy
        answer = self.fitting.answer(request, policy)
        exceptions: dict[NodeName, Refusal | None] = {}
        if pending:
            exceptions.update(
                cautious(
                    request, policy, pending, self.fitting, self.ledger, answer.fits
                )
            )
        exceptions.update(self._seen_otherwise(asked, pending))
        return judge(asked.names, answer, exceptions)

    def _seen_otherwise(
        self, asked: _Asked, pending: Sequence[Pending]
    ) -> dict[NodeName, Refusal | None]:
        """Judge anew the nodes that this pod sees differently from its like.

        There its own placement or nomination, or the nomination of a lesser pod, must
        not stand in its way.
        """
        pod = asked.request.pod
        own = self.ledger.placement(pod.uid)
        special = self.ledger.nominated() | ({own.node} if own else set())
        found: dict[NodeName, Refusal | None] = {}
        expected = Expected(pending if special else ())
        for name in special:
            node = self.ledger.node(name)
            seen = None if node is None else node.as_seen_by(pod)
            if seen is not None and seen is not node:
                after = expected.on(seen)
                found[name] = refusal(asked.request, after, asked.policy)
        return found

    def _budgets(self) -> tuple[Budget, ...]:
        """Read the disruption budgets; where that fails, victims are chosen without."""
        try:
            page = self.cluster.list_page(Kind.BUDGETS, limit=_MOST_BUDGETS)
            return budgets(page.items, self.pods.records())
        except (ClusterError, Malformed) as error:
            facts = {"because": f"{type(error).__name__}: {error}"}
            logger.warning("disruption budgets not read", extra=facts)
            return ()
