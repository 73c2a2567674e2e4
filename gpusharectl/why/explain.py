"""Why a pod waits, or is where it is: the answers, and how they are found. Pure.

The domain decides what fits, over the same placements as in the extender. This module
decides which next step to suggest. An answer is a frozen value, which is also data;
``gpusharectl.why.command`` promises its shape.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from gpushare.domain.model import (
    NOTHING,
    Amount,
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
from gpushare.kube.annotations import find_unknown_annotations
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord, refusal_text
from gpushare.kube.json_reader import Malformed, Reader
from gpusharectl.output import Data, encode
from gpusharectl.state.read import ClusterState
from gpusharectl.state.view import find_other_plan
from gpusharectl.why.verdict import (
    CardVerdict,
    DeletionPlan,
    InSum,
    NodeVerdict,
    find_cards_to_open,
    find_room_in_sum,
    fits_in_sum,
    gives_way,
    judge_node,
    needs_node,
    plan_on_card,
    plan_on_node,
    suggest_possible,
    suggest_smaller,
)

FINE, WAITS = 0, 3
"""Exit codes: it holds its cards or needs none; it waits."""
MOST_WAYS = 80
"""Cards or nodes on which pods to delete are looked for, the nearest to fitting first.

What is nearest: ``CardVerdict.distance`` and ``NodeVerdict.distance``.
"""


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """What every answer has: the pod as the API server has it."""

    body: Json
    notes: Sequence[str] = field(default=(), kw_only=True)
    """Sentences about its namespace's ResourceQuotas, and containers not held."""

    @property
    def pod(self) -> str:
        """Its name with its namespace."""
        return facts.full_name(self.body)

    @property
    def node(self) -> str:
        """The node to which it is bound; empty before that."""
        return facts.node_of(self.body)

    @property
    def waits(self) -> str:
        """Kubelet's message if a container does not start."""
        return facts.waits_because(self.body)

    @property
    def warnings(self) -> Sequence[str]:
        """Sentences about what is wrong with it, its quotas and its isolation."""
        of_pod = (
            *find_unknown_annotations(self.body),
            *codec.find_untranslated_mib(self.body),
        )
        return [*of_pod, *self.notes]

    @property
    def isolation(self) -> str:
        """The tier with which it started; empty for none, or if it is not known."""
        return facts.annotation(self.body, names.ISOLATION)

    @property
    def kube_scheduler(self) -> str:
        """kube-scheduler's message; empty if there is none."""
        return facts.scheduler_says(self.body)


@dataclass(frozen=True, slots=True)
class NoShare(PodAnswer):
    """It requests none of gpushare's resources, has ended, or its request is invalid.

    ``words`` say why it ended, from its status, or what to request instead.
    """

    state: Literal["asks-nothing", "ended", "invalid"]
    words: str = ""

    @property
    def code(self) -> int:
        """It waits if its request is invalid."""
        return WAITS if self.state == "invalid" else FINE

    def details(self) -> Data:
        """Return its own part of the data."""
        data: Data = {"node": self.node or None}
        if self.state != "invalid":
            data["phase"] = facts.phase(self.body)
        if self.state != "asks-nothing":
            data["because"] = self.words or None
        return data


@dataclass(frozen=True, slots=True)
class Pending(PodAnswer):
    """It waits: what each node lacks, and what would help.

    ``nodes`` are all nodes with cards, also those that it may not use. ``ways`` were
    looked for on the ``ways_of`` nearest cards only. ``preempts_on`` are the nodes
    where kube-scheduler may preempt pods for its cards; ``spared`` is why it preempts
    none although pods of a lower priority are in the way. ``never``: it would wait even
    if all cards were empty and open. Each of ``steps`` would help alone. ``in_sum`` is
    a node that has enough in all, while no card has: then an autoscaler adds no node
    for it.
    """

    code: ClassVar[int] = WAITS
    state: ClassVar[str] = "pending"
    request: PodRequest
    policy: str
    nodes: tuple[NodeVerdict, ...]
    because: str
    never: bool
    nominated: str
    ways: tuple[DeletionPlan, ...]
    ways_of: int
    preempts_on: tuple[NodeName, ...]
    spared: str
    steps: tuple[str, ...]
    in_sum: InSum | None = None

    def details(self) -> Data:
        """Return its own part of the data."""
        return {
            "asks": words.format_claims(self.request.claims),
            "claims": self.request.claims,
            "policy": self.policy,
            **_limits(self.request),
            "since": facts.created(self.body) or None,
            "because": self.because,
            "kube_scheduler": self.kube_scheduler or None,
            "scheduler_name": facts.scheduler_of(self.body),
            "nominated": self.nominated or None,
            "nodes": self.nodes,
            "ways": self.ways,
            "ways_of": self.ways_of,
            "evicts": bool(self.preempts_on),
            "never": self.never,
            "next": ", or ".join(self.steps),
            "steps": self.steps,
            "fits_in_sum": self.in_sum,
        }


@dataclass(frozen=True, slots=True)
class HeldCard:
    """What the pod has of one card; ``card`` is None if it no longer exists."""

    uuid: CardUUID
    card: Card | None
    amount: Amount

    def as_data(self) -> Data:
        """Return the card's names and the amount."""
        index, model = (self.card and self.card.index), (self.card and self.card.model)
        names_of = {"uuid": self.uuid, "index": index, "model": model}
        return {**names_of, **encode(self.amount)}


@dataclass(frozen=True, slots=True)
class EarlierCard:
    """A card that the policy prefers to the pod's own, and why the pod is not there."""

    uuid: CardUUID
    index: int
    because: str


@dataclass(frozen=True, slots=True)
class Placed(PodAnswer):
    """It has its cards: which, since when, by which policy, and why those.

    ``planned`` are the planned cards, if it is on other ones; without a plan
    (``is_planned``) the device plugin chose.
    """

    state: ClassVar[str] = "placed"
    request: PodRequest
    held: tuple[HeldCard, ...]
    at: str
    policy: str
    planned: tuple[HeldCard, ...]
    is_planned: bool
    earlier: tuple[EarlierCard, ...]
    because: str

    @property
    def code(self) -> int:
        """It waits if a container does not start."""
        return WAITS if self.waits else FINE

    def details(self) -> Data:
        """Return its own part of the data."""
        return {
            "asks": words.format_claims(self.request.claims),
            "node": self.node,
            "cards": self.held,
            "at": self.at or None,
            "policy": self.policy,
            "own_policy": self.request.policy is not None,
            **_limits(self.request),
            "planned": [card.uuid for card in self.planned],
            "is_planned": self.is_planned,
            "because": self.because or None,
            "earlier": self.earlier,
            "phase": facts.phase(self.body),
            "leaving": facts.is_leaving(self.body),
            "waits": self.waits or None,
            "isolation": self.isolation or None,
        }


@dataclass(frozen=True, slots=True)
class Unplaced(PodAnswer):
    """It is bound, but its cards are not known."""

    code: ClassVar[int] = WAITS
    state: ClassVar[str] = "unplaced"
    request: PodRequest
    complaint: str

    def details(self) -> Data:
        """Return its own part of the data."""
        return {
            "asks": words.format_claims(self.request.claims),
            "node": self.node,
            "complaint": self.complaint or None,
            "waits": self.waits or None,
        }


def _limits(request: PodRequest) -> Data:
    cards = request.cards
    return {
        "models": (cards and cards.models) or None,
        "uuids": (cards and cards.uuids) or None,
    }


ShareAnswer = NoShare | Pending | Placed | Unplaced


def explain_pod(state: ClusterState, pod: Json) -> ShareAnswer:
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
) -> ShareAnswer:
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
            judge_node(request, Node(name), policy, because)
            for name, because in state.refused_cards.items()
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
        steps = [
            suggest_smaller(self._request, self._verdicts),
            *self._without_others(best),
            self._reopen(),
        ]
        if self._shortage.never:
            steps = [*suggest_possible(self._request, self._verdicts)]
        if self._fits_on_others():
            steps.append(allow)
        return tuple(filter(None, steps)) or (
            f"{allow or 'request less'}, or add a node",
        )

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
