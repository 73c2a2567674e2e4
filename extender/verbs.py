"""filter, prioritize and preempt, asked of the ledger; bind has a room of its own."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from extender import wire
from extender.filter import UNKNOWN, judge, refuse_all
from extender.inflight import Expected, Inflight, Pending, cautious
from extender.patience import Patience
from extender.preempt import preempt
from extender.prioritize import prioritize
from extender.wire import ExtenderArgs, FilterResult, PreemptionArgs
from gpushare.domain.fitting import Fitting
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.policies import Choice, Policy
from gpushare.domain.preemption import Budget, Facts, Victims
from gpushare.domain.scheduling import favourite, place, refusal, score
from gpushare.domain.scores import Scores
from gpushare.domain.summary import Refusal
from gpushare.kube.bookkeeper import PodBook
from gpushare.kube.budgets import budgets
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.codec import refusal_text
from gpushare.kube.errors import ClusterError
from gpushare.kube.fields import Malformed

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
        best = favourite(request, pages.values(), policy)
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
