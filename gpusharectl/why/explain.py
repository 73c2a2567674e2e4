"""Why a pod waits, or is where it is. Pure.

The domain decides what fits, over the same placements as in the extender. This module
decides which next step to suggest.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Card,
    CardUUID,
    NodeName,
    Placement,
    PodRequest,
    Refusal,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal, place
from gpushare.domain.policies import Policy
from gpushare.informers.shortage import find_bars, find_shortage
from gpushare.kube import codec, facts, names, words
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord, refusal_text
from gpushare.kube.json_reader import Malformed, Reader
from gpusharectl.state.read import ClusterState
from gpusharectl.state.view import explain_refused_cards, find_other_plan
from gpusharectl.why.answers import (
    EarlierCard,
    Explanation,
    HeldCard,
    NoShare,
    Pending,
    Placed,
    Unplaced,
)
from gpusharectl.why.verdict import (
    CardVerdict,
    DeletionPlan,
    InSum,
    find_cards_to_open,
    find_room_in_sum,
    fits_in_sum,
    gives_way,
    judge_node,
    needs_node,
    plan_on_card,
    plan_on_node,
)

MOST_WAYS = 80
"""Cards or nodes on which pods to delete are looked for, the nearest to fitting first.

What is nearest: ``CardVerdict.distance`` and ``NodeVerdict.distance``.
"""


def explain_pod(state: ClusterState, pod: Json) -> Explanation:
    """Explain a pod, given as the API server has it."""
    if facts.is_terminal(pod):
        return NoShare(pod, "ended", facts.end_words(pod))
    if not codec.is_ours(pod):
        return NoShare(pod, "asks-nothing")
    try:
        record = codec.read_pod_record(pod)
    except Malformed as error:
        return NoShare(pod, "invalid", f"it cannot be read: {error}")
    request = record.request
    if isinstance(request, Refusal):
        return NoShare(pod, "invalid", refusal_text(request))
    if not request.claims:
        return NoShare(pod, "asks-nothing")
    if record.node:
        return _bound(state, record, request, pod)
    policy = state.placements.choice.policy(request.policy)
    if isinstance(policy, Refusal):
        return NoShare(pod, "invalid", refusal_text(policy))
    return _PendingPod(state, record, request, policy, pod).answer()


def _bound(
    state: ClusterState, record: PodRecord, request: PodRequest, pod: Json
) -> Explanation:
    node = state.placements.node(record.node)
    actual = node.placements.get(record.pod.uid) if node else None
    if node is None or actual is None:
        actual = record.placement or record.plan
        known = node is not None and record.pod.uid in node.unplaced
        if known or actual is None:
            return Unplaced(pod, request, record.complaint)
    return _placed(state, record, request, actual, pod)


def _placed(
    state: ClusterState,
    record: PodRecord,
    request: PodRequest,
    actual: Placement,
    pod: Json,
) -> Placed:
    node = state.placements.node(record.node) or Node(record.node)
    choice = state.placements.choice
    policy = choice.policy(request.policy)
    by_uuid = {card.uuid: card for card in node.cards}
    earlier: tuple[EarlierCard, ...] = ()
    planned: tuple[HeldCard, ...] = ()
    because = ""
    if record.plan is not None:
        if find_other_plan(record, actual):
            planned = _held_cards(record.plan, by_uuid)
        if isinstance(policy, Policy):
            # Nominations of today did not exist when it was placed.
            before = replace(node.without({record.pod.uid}), nominations={})
            earlier = tuple(_earlier(request, before, actual, policy))
            because = _because(request, before, actual, policy)
    return Placed(
        body=pod,
        request=request,
        held=_held_cards(actual, by_uuid),
        at=_at(pod),
        policy=choice.default if request.policy is None else request.policy,
        planned=planned,
        is_planned=record.plan is not None,
        earlier=earlier,
        because=because,
    )


def _held_cards(
    placement: Placement, cards: Mapping[CardUUID, Card]
) -> tuple[HeldCard, ...]:
    return tuple(
        HeldCard(uuid, cards.get(uuid), amount)
        for uuid, amount in placement.by_card().items()
    )


def _at(pod: Json) -> str:
    """Return the time of the plan, else of the actual placement, else empty."""
    for key in (names.PLACEMENT, names.ACTUAL):
        with suppress(Malformed):
            text = facts.annotation(pod, key)
            if text and (at := Reader.parse(text, key).optional_text("at")):
                return at
    return ""


def _earlier(
    request: PodRequest, before: Node, actual: Placement, policy: Policy
) -> Iterator[EarlierCard]:
    if needs_node(request):
        return
    amount = request.claims[0].amount

    def rank(verdict: CardVerdict) -> tuple[object, ...]:
        return policy.rank(verdict.card, verdict.free or NOTHING)

    for verdict in sorted(judge_node(request, before, policy).cards, key=rank):
        if verdict.card.uuid in actual.cards():
            return
        if verdict.excluded:
            text = f"is {words.excluded_by(verdict.excluded)}"
        elif verdict.free is None:
            card = verdict.card
            text = f"is {'cordoned' if card.healthy else words.sick(card)}"
        else:
            free = [words.units(max(0, verdict.free.units))] if amount.units else []
            free += [words.cores(max(0, verdict.free.cores))] if amount.cores else []
            room = "room now" if verdict.fits else "too little room"
            text = f"has {room}, {' and '.join(free)}"
        yield EarlierCard(verdict.card.uuid, verdict.card.index, text)


def _because(
    request: PodRequest, before: Node, actual: Placement, policy: Policy
) -> str:
    """Say whether the decision would be the same now."""
    now = place(request, before, policy)
    if isinstance(now, Refusal):
        return (
            "it would find no room here now, because the cards or the pods on them "
            "have changed"
        )
    rule = policy.explain(request)
    if set(now.cards()) == set(actual.cards()):
        return f"{rule}; the choice would be the same now"
    indexes = {card.uuid: card.index for card in before.cards}
    elsewhere = ", ".join(f"card {indexes[uuid]}" for uuid in now.cards())
    return f"{rule}; now it would choose {elsewhere}"


class _PendingPod:
    """A pod without a node, judged on each node that has cards."""

    def __init__(
        self,
        state: ClusterState,
        record: PodRecord,
        request: PodRequest,
        policy: Policy,
        pod: Json,
    ) -> None:
        self._state = state
        self._record = record
        self._request = request
        self._policy = policy
        self._pod = pod
        with_cards = [node for node in state.placements.nodes if node.cards]
        barred = find_bars(record, with_cards, state.properties)
        self._judged = tuple(
            judge_node(request, node, policy, barred.get(node.name, ""))
            for node in with_cards
        )
        self._judged += tuple(
            judge_node(request, Node(NodeName(facts.name_of(node))), policy, because)
            for node in state.nodes
            if (because := explain_refused_cards(node))
        )
        self._nodes = [node for node in with_cards if node.name not in barred]
        self._verdicts = [verdict for verdict in self._judged if not verdict.barred]
        self._fits = any(verdict.fits for verdict in self._verdicts)
        self._shortage = find_shortage(
            record, with_cards, state.placements.choice, state.properties
        )

    def answer(self) -> Pending:
        request = self._request
        ways, looked_at = self._ways()
        best = min(ways, key=lambda way: way.cost, default=None)
        preempts_on, spared = self._preemption(ways)
        return Pending(
            body=self._pod,
            request=request,
            policy=self._policy.name,
            nodes=self._judged,
            because=self._shortage.because,
            never=self._shortage.never,
            nominated=str(self._record.nominated),
            ways=ways,
            ways_of=looked_at,
            preempts_on=preempts_on,
            spared=spared,
            steps=self._steps(best),
            in_sum=self._in_sum(),
        )

    def _preemption(
        self, ways: Sequence[DeletionPlan]
    ) -> tuple[tuple[NodeName, ...], str]:
        """Return the nodes where kube-scheduler may preempt for cards, or why nowhere.

        Neither if no pods of a lower priority are in the way. Where the sums suffice,
        kube-scheduler finds no victims (contracts 1.8).
        """
        near = {way.node for way in ways}
        request, policy = self._request, self._policy
        nodes = [node for node in self._nodes if node.name in near]
        helped = [node for node in nodes if gives_way(request, node, policy)]
        if not helped:
            return (), ""
        if facts.gates(self._pod):
            return (), "it has scheduling gates"
        if facts.never_preempts(self._pod):
            return (), "its preemptionPolicy is Never"
        seen = [node.as_seen_by(request.pod) for node in helped]
        requested = self._state.requested
        short = tuple(n.name for n in seen if not fits_in_sum(request, n, requested))
        return short, "" if short else "their nodes have enough in all, not on one card"

    def _in_sum(self) -> InSum | None:
        """Return where it fits by sums alone; None if it fits, or never can."""
        if self._fits or self._shortage.never or facts.nominated(self._pod):
            return None
        return find_room_in_sum(self._request, self._nodes, self._state.requested)

    def _ways(self) -> tuple[tuple[DeletionPlan, ...], int]:
        """Look for pods to delete, if it does not fit but could."""
        request, policy = self._request, self._policy
        if self._fits:
            return (), 0
        judged = list(zip(self._nodes, self._verdicts, strict=True))
        if needs_node(request):
            judged = sorted(judged, key=lambda pair: pair[1].distance)[:MOST_WAYS]
            ways = [plan_on_node(request, node, policy) for node, _ in judged]
            return tuple(filter(None, ways)), len(judged)
        nearest = sorted(
            (
                (node, card)
                for node, verdict in judged
                for card in verdict.cards
                if card.can_fit
            ),
            key=lambda pair: pair[1].distance,
        )[:MOST_WAYS]
        ways = [
            plan_on_card(request, node, card.card, policy) for node, card in nearest
        ]
        return tuple(filter(None, ways)), len(nearest)

    def _steps(self, best: DeletionPlan | None) -> tuple[str, ...]:
        if nominated := facts.nominated(self._pod):
            return (f"wait until the preempted pods have left {nominated}",)
        if not self._judged:
            return ("no node shares cards yet; see gpusharectl inspect",)
        if not self._nodes:
            return ("correct what keeps it away, or add a node that it may use",)
        if self._fits:
            return (self._room_is_there(),)
        cards = self._request.cards
        allow = ""
        if cards is not None:
            allow = f"let it use more cards ({words.format_limits(cards.limits)})"
        steps = [self._smaller(), *self._without_others(best), self._reopen()]
        if self._shortage.never:
            steps = [*self._on_larger_cards()]
        if self._fits_on_others():
            steps.append(allow)
        return tuple(filter(None, steps)) or (
            f"{allow or 'request less'}, or add a node",
        )

    def _on_larger_cards(self) -> Iterator[str]:
        """Say what could run here at all, for a request that never can."""
        sizes = [
            sorted(verdict.card.units for verdict in node.cards if not verdict.excluded)
            for node in self._verdicts
        ]
        largest = max(map(max, filter(None, sizes)))
        (claim, *more) = self._request.claims
        if more or claim.whole_cards:
            most = words.counted(max(map(len, sizes)), "whole card")
            if not more and claim.whole_cards > max(map(len, sizes)):
                yield f"request at most {most}"
            return
        now = max(
            (
                room.units
                for verdict in self._verdicts
                for room in verdict.fits_now.shares
            ),
            default=0,
        )
        yield (
            f"request at most {words.units(largest)} ({words.memory(largest)}); now "
            f"{now} are free on one card"
        )
        units = claim.amount.units
        enough = [
            count
            for size in sizes
            for count in range(2, len(size) + 1)
            if sum(size[-count:]) >= units
        ]
        if enough:
            whole = min(enough)
            cores = f"{names.CORE}: {whole * CORES_PER_CARD}"
            yield f"request {words.counted(whole, 'whole card')} ({cores})"

    def _room_is_there(self) -> str:
        if gates := facts.gates(self._pod):
            return f"remove its scheduling gates: {', '.join(gates)}"
        if not facts.condition(self._pod, "PodScheduled"):
            name = facts.scheduler_of(self._pod)
            return (
                f'no scheduler has tried it yet; check that one named "{name}" runs '
                "(spec.schedulerName)"
            )
        extenders = [pod for pod in self._state.parts if facts.is_extender(pod)]
        if extenders and not any(map(facts.is_ready, extenders)):
            return "no extender is ready; see gpusharectl inspect"
        return (
            "cards are not the reason; see kube-scheduler's message above, or wait for "
            "its next attempt"
        )

    def _smaller(self) -> str:
        """Suggest the largest request that fits; what is not too large stays."""
        claim = self._request.claims[0]
        largest = [verdict.fits_now for verdict in self._verdicts]
        if len(self._request.claims) > 1:
            return ""
        if claim.whole_cards:
            most = max(requests.whole_cards for requests in largest)
            too_many = 0 < most < claim.whole_cards
            return f"request {words.counted(most, 'whole card')}" if too_many else ""
        rooms = [room for requests in largest for room in requests.shares]
        wanted = claim.amount
        units = max(
            (room.units for room in rooms if room.cores >= wanted.cores), default=0
        )
        if units:
            return f"request at most {words.units(units)} ({words.memory(units)})"
        cores = max(
            (room.cores for room in rooms if room.units >= wanted.units), default=0
        )
        if 0 < cores < wanted.cores:
            return f"request at most {words.cores(cores)}"
        return ""

    def _without_others(self, best: DeletionPlan | None) -> Iterator[str]:
        """Suggest to move the pods in the way, if sums suffice, or to delete them."""
        if best is None or not best.pods:
            return
        if len(self._request.claims) == 1 and self._in_sum() is not None:
            name = facts.full_name(self._pod)
            yield f"see which pods could move: gpusharectl make-room {name}"
        pods = words.listed((str(holder.pod) for holder in best.pods), 3)
        where = f"{best.node} card {best.card.index}" if best.card else best.node
        yield f"delete {pods} from {where}"

    def _reopen(self) -> str:
        closed = find_cards_to_open(self._request, self._nodes, self._policy)
        if closed is None:
            return ""
        indexes = [str(card.index) for card in closed.cards]
        if closed.sick:
            why = {card.reason for card in closed.cards if not card.healthy} - {""}
            because = f": {min(why)}" if len(why) == 1 else ""
            return f"repair {closed.node} card {', card '.join(indexes)}{because}"
        command = f"gpusharectl uncordon-card {closed.node} {' '.join(indexes)}"
        return f"uncordon: {command}"

    def _fits_on_others(self) -> bool:
        """Return whether the pod would fit now without its limits on cards."""
        if self._request.cards is None:
            return False
        free = replace(self._request, cards=None)
        seen = (node.as_seen_by(free.pod) for node in self._nodes)
        return any(find_refusal(free, node, self._policy) is None for node in seen)
