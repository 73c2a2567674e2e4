"""Why a pod waits or is where it is: one frozen value for each kind of answer. Pure.

The domain decides, over the same placements as in the extender; nothing is decided
here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gpushare.cache.shortage import shortage
from gpushare.domain.card_selector import CardSelector
from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Card,
    CardUUID,
    Claim,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import place, refusal
from gpushare.domain.policies import Policy
from gpushare.domain.refusal import Refusal
from gpushare.kube import codec, facts, names, words
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord, refusal_text
from gpushare.kube.json_reader import Malformed, Reader
from gpusharectl.state.read import ClusterState
from gpusharectl.state.view import PodShare, planned_elsewhere
from gpusharectl.why.verdict import (
    CardVerdict,
    NodeVerdict,
    Reopened,
    from_card,
    from_node,
    holders,
    judge,
    largest_share,
    reopened,
)

FINE, WAITS = 0, 3
"""Exit codes: it holds its cards or needs none; it waits."""


@dataclass(frozen=True, slots=True)
class AsksNothing:
    """It requests none of our resources."""

    code: ClassVar[int] = FINE
    state: ClassVar[str] = "asks-nothing"
    pod: str
    phase: str
    node: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Its phase is Succeeded or Failed, so it holds nothing."""

    code: ClassVar[int] = FINE
    state: ClassVar[str] = "ended"
    pod: str
    phase: str
    node: str
    words: str
    """Why, from its status; often empty."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unmeetable:
    """Its request is invalid; the words say what to request instead."""

    code: ClassVar[int] = WAITS
    state: ClassVar[str] = "invalid"
    pod: str
    words: str
    node: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Way:
    """Pods whose deletion makes room: on one card, or on the node."""

    node: str
    card: Card | None
    pods: tuple[PodShare, ...]


@dataclass(frozen=True, slots=True)
class Pending:
    """It waits: what each node lacks, and what would help.

    ``scheduler`` is kube-scheduler's message. ``cards`` are those that it may use, None
    if it does not limit them. ``ways`` were looked for on the ``ways_of`` nearest cards
    only. ``evicts``: all pods of the best way have a lower priority than this one.
    """

    code: ClassVar[int] = WAITS
    state: ClassVar[str] = "pending"
    pod: PodRef
    asks: str
    claims: tuple[Amount, ...]
    policy: str
    cards: CardSelector | None
    since: str
    nodes: tuple[NodeVerdict, ...]
    because: str
    scheduler: str
    scheduler_name: str
    nominated: str
    ways: tuple[Way, ...]
    ways_of: int
    evicts: bool
    next_step: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """What the pod holds of one card; ``card`` is None if it no longer exists."""

    uuid: CardUUID
    card: Card | None
    amount: Amount


@dataclass(frozen=True, slots=True)
class Earlier:
    """A card that the policy prefers to the pod's own, and why the pod is not there."""

    card: Card
    words: str


@dataclass(frozen=True, slots=True)
class Placed:
    """It has its cards: which, since when, by which policy, and why those.

    ``planned`` are the planned cards, if it is on other ones; without a plan
    (``is_planned``) the device plugin chose. ``waits`` is kubelet's message if a
    container does not start.
    """

    state: ClassVar[str] = "placed"
    pod: PodRef
    asks: str
    node: str
    held: tuple[Held, ...]
    at: str
    policy: str
    own_policy: bool
    cards: CardSelector | None
    planned: tuple[Held, ...]
    is_planned: bool
    earlier: tuple[Earlier, ...]
    because: str
    phase: str
    leaving: bool
    waits: str
    warnings: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """It waits if a container does not start."""
        return WAITS if self.waits else FINE


@dataclass(frozen=True, slots=True)
class Unplaced:
    """It is bound, but its cards are not known."""

    state: ClassVar[str] = "unplaced"
    pod: PodRef
    asks: str
    node: str
    complaint: str
    waits: str
    warnings: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """It counts as waiting."""
        return WAITS


Answer = AsksNothing | Ended | Unmeetable | Pending | Placed | Unplaced


_OF_WHOLE_CARDS = "whole cards are taken from the largest untouched ones"


def _placed(
    state: ClusterState,
    record: PodRecord,
    request: PodRequest,
    held: Placement,
    pod: Json,
) -> Placed:
    """Explain on which cards a pod is, since when, and why there."""
    node = state.placements.node(record.node) or Node(record.node)
    choice = state.placements.choice
    policy = choice.policy(request.policy)
    elsewhere = planned_elsewhere(record, held)
    by_uuid = {card.uuid: card for card in node.cards}
    earlier: tuple[Earlier, ...] = ()
    because = ""
    if isinstance(policy, Policy) and record.plan is not None:
        # Reservations of today did not exist when it was placed.
        before = replace(node.without({record.pod.uid}), nominations={})
        earlier = tuple(_earlier(request, before, held, policy))
        because = _because(request, before, held, policy)
    return Placed(
        pod=record.pod,
        asks=words.claims(request.claims),
        node=str(record.node),
        held=_named(held, by_uuid),
        at=_at(pod),
        policy=choice.default if request.policy is None else request.policy,
        own_policy=request.policy is not None,
        cards=request.cards,
        planned=_named(record.plan, by_uuid) if elsewhere and record.plan else (),
        is_planned=record.plan is not None,
        earlier=earlier,
        because=because,
        phase=facts.phase(pod),
        leaving=record.terminating,
        waits=facts.waits_because(pod),
    )


def _named(placement: Placement, cards: Mapping[CardUUID, Card]) -> tuple[Held, ...]:
    return tuple(
        Held(share.card, cards.get(share.card), share.amount)
        for share in placement.shares
    )


def _at(pod: Json) -> str:
    """Return the time of the plan, else of the actual placement, else empty."""
    for key in (names.PLACEMENT, names.ACTUAL):
        text = facts.annotation(pod, key)
        try:
            if text and (at := Reader.parse(text, key).optional_text("at")):
                return at
        except Malformed:
            continue
    return ""


def _earlier(
    request: PodRequest, before: Node, held: Placement, policy: Policy
) -> Iterator[Earlier]:
    """Return the cards that the policy prefers to the pod's own."""
    if len(request.claims) > 1 or request.claims[0].whole_cards:
        return
    (claim,) = request.claims
    own = set(held.cards())
    verdicts = {one.card.uuid: one for one in judge(request, before, policy).cards}
    ranked = sorted(
        before.cards,
        key=lambda card: policy.rank(card, before.free.get(card.uuid, NOTHING)),
    )
    for card in ranked:
        if card.uuid in own:
            return
        verdict = verdicts[card.uuid]
        if verdict.excluded:
            yield Earlier(card, f"is {words.excluded_by(verdict.excluded)}")
        elif verdict.free is None:
            state = "sick" if not card.healthy else "cordoned"
            yield Earlier(card, f"is {state}")
        elif verdict.fits:
            yield Earlier(card, f"has room now, {_room(before, card.uuid, claim)}")
        else:
            yield Earlier(
                card, f"has too little room, {_room(before, card.uuid, claim)}"
            )


def _room(node: Node, uuid: object, claim: Claim) -> str:
    free = next(room for one, room in node.free.items() if one == uuid)
    parts = [words.units(max(0, free.units))] if claim.amount.units else []
    parts += [words.cores(max(0, free.cores))] if claim.amount.cores else []
    return " and ".join(parts)


def _because(request: PodRequest, before: Node, held: Placement, policy: Policy) -> str:
    """Say whether the decision would be the same now."""
    now = place(request, before, policy)
    if isinstance(now, Refusal):
        return (
            "it would find no room here now, because the cards or the pods on them "
            "have changed"
        )
    whole = any(claim.whole_cards for claim in request.claims)
    rule = _OF_WHOLE_CARDS if whole else _rule(policy)
    if set(now.cards()) == set(held.cards()):
        return f"{rule}; the choice would be the same now"
    indexes = {card.uuid: card.index for card in before.cards}
    elsewhere = ", ".join(f"card {indexes[uuid]}" for uuid in now.cards())
    return f"{rule}; now it would choose {elsewhere}"


def _rule(policy: Policy) -> str:
    by = "index" if policy.card_order == "index" else "UUID"
    first = f"the first card by {by} with room"
    rules = {
        "first-fit": first,
        "best-fit": "the card with the least room that is enough",
        "spread": "the card with the most room",
    }
    return (
        f"{policy.name} takes {rules.get(policy.name, 'the card with the best score')}"
    )


_MOST = 3


@dataclass(frozen=True, slots=True)
class Helps:
    """What would help: pods to delete, cards to open.

    ``others``: a card that the pod's annotations exclude has room.
    """

    best: Way | None
    reopened: Reopened | None
    others: bool = False


def _next_step(
    state: ClusterState,
    request: PodRequest,
    verdicts: Sequence[NodeVerdict],
    helps: Helps,
    pod: Json,
) -> str:
    if nominated := facts.nominated(pod):
        return f"wait until the preempted pods have left {nominated}"
    if not verdicts:
        return "no node shares cards yet; see gpusharectl inspect"
    if any(verdict.fits for verdict in verdicts):
        return _room_is_there(state, pod)
    steps = [_smaller(request, verdicts), _free(helps.best), _reopen(helps.reopened)]
    if helps.others:
        steps.append(_allow(request))
    found = [step for step in steps if step]
    if not found and request.cards is not None:
        more = _allow(request)
        return f"no card that it may use is large enough: {more}, or add a node"
    if not found:
        return "no card of this cluster is large enough: request less, or add a node"
    return ", or ".join(found)


def _room_is_there(state: ClusterState, pod: Json) -> str:
    if gates := facts.gates(pod):
        return f"remove its scheduling gates: {', '.join(gates)}"
    said = facts.condition(pod, "PodScheduled")
    if not said:
        name = facts.scheduler_of(pod)
        return (
            f'no scheduler has tried it yet; check that one named "{name}" runs '
            "(spec.schedulerName)"
        )
    extenders = [p for p in state.parts if facts.is_extender(p)]
    if extenders and not any(facts.holds(p, "Ready") for p in extenders):
        return "no extender is ready; see gpusharectl inspect"
    return (
        "cards are not the reason; see kube-scheduler's message above, or wait for its "
        "next attempt"
    )


def _smaller(request: PodRequest, verdicts: Sequence[NodeVerdict]) -> str:
    """Suggest the largest request that fits; what is not too large stays."""
    if len(request.claims) > 1:
        return ""
    (claim,) = request.claims
    offers = {verdict.name: verdict.offers for verdict in verdicts}
    if claim.whole_cards:
        most = max((found.whole for found in offers.values()), default=0)
        too_many = 0 < most < claim.whole_cards
        return f"request {words.counted(most, 'whole card')}" if too_many else ""
    best = largest_share(offers, claim.amount.cores)
    if best.units:
        return f"request at most {words.units(best.units)} ({words.memory(best.units)})"
    cores = max(
        (
            room.cores
            for found in offers.values()
            for room in found.shares
            if room.units >= claim.amount.units
        ),
        default=0,
    )
    if 0 < cores < min(claim.amount.cores, CORES_PER_CARD):
        return f"request at most {words.cores(cores)}"
    return ""


def _allow(request: PodRequest) -> str:
    limits = () if request.cards is None else request.cards.limits
    return f"let it use more cards ({words.annotations(limits)})"


def _free(best: Way | None) -> str:
    if best is None or not best.pods:
        return ""
    pods = words.listed((str(going.pod) for going in best.pods), _MOST)
    where = f"{best.node} card {best.card.index}" if best.card else best.node
    return f"delete {pods} from {where}"


def _reopen(way: Reopened | None) -> str:
    if way is None:
        return ""
    if way.sick:
        cards = ", ".join(f"card {card.index}" for card in way.cards)
        return f"repair {way.node} {cards}"
    cards = " ".join(str(card.index) for card in way.cards)
    return f"uncordon: gpusharectl uncordon-card {way.node} {cards}"


MOST_WAYS = 80
"""Cards on which pods to delete are looked for, the nearest to fitting first."""


def why(state: ClusterState, pod: Json) -> Answer:
    """Explain a pod, given as the API server has it."""
    warnings = tuple(codec.unknown_annotations(pod))
    return replace(_answer(state, pod), warnings=warnings)


def _answer(state: ClusterState, pod: Json) -> Answer:
    name, node = facts.full_name(pod), facts.node_of(pod)
    if facts.phase(pod) in ("Succeeded", "Failed"):
        return Ended(name, facts.phase(pod), node, facts.end_words(pod))
    if not codec.is_ours(pod):
        return AsksNothing(name, facts.phase(pod), node)
    try:
        record = codec.pod_record(pod)
    except Malformed as error:
        return Unmeetable(name, f"it cannot be read: {error}", node)
    request = record.request
    if isinstance(request, Refusal):
        return Unmeetable(name, refusal_text(request), node)
    if not request.claims:
        return AsksNothing(name, facts.phase(pod), node)
    policy = state.placements.choice.policy(request.policy)
    if node:
        return _bound(state, record, request, pod)
    if isinstance(policy, Refusal):
        return Unmeetable(name, refusal_text(policy), node)
    return _pending(state, record, _Asked(request, policy), pod)


def _bound(
    state: ClusterState, record: PodRecord, request: PodRequest, pod: Json
) -> Answer:
    node = state.placements.node(record.node)
    held = node.placements.get(record.pod.uid) if node else None
    if node is None or held is None:
        held = record.placement or record.plan
        known = node is not None and record.pod.uid in node.unplaced
        if known or held is None:
            return Unplaced(
                record.pod,
                words.claims(request.claims),
                str(record.node),
                record.complaint,
                facts.waits_because(pod),
            )
    return _placed(state, record, request, held, pod)


@dataclass(frozen=True, slots=True)
class _Asked:
    request: PodRequest
    policy: Policy


def _pending(
    state: ClusterState, record: PodRecord, asked: _Asked, pod: Json
) -> Pending:
    nodes = [node for node in state.placements.nodes if node.cards]
    verdicts = tuple(judge(asked.request, node, asked.policy) for node in nodes)
    ways, looked_at = _ways(asked, nodes, verdicts)
    best = min(ways, key=_cost, default=None)
    opened = reopened(asked.request, nodes, asked.policy)
    helps = Helps(best, opened, _fits_on_others(asked, nodes))
    claims = asked.request.claims
    evicts = (
        best is not None
        and bool(best.pods)
        and all(going.pod.priority < record.pod.priority for going in best.pods)
    )
    return Pending(
        pod=record.pod,
        asks=words.claims(claims),
        claims=tuple(claim.amount for claim in claims),
        policy=asked.policy.name,
        cards=asked.request.cards,
        since=facts.created(pod),
        nodes=verdicts,
        because=shortage(record, nodes, state.placements.choice).because,
        scheduler=str(facts.condition(pod, "PodScheduled").get("message") or ""),
        scheduler_name=facts.scheduler_of(pod),
        nominated=str(record.nominated),
        ways=ways,
        ways_of=looked_at,
        evicts=evicts,
        next_step=_next_step(state, asked.request, verdicts, helps, pod),
    )


def _fits_on_others(asked: _Asked, nodes: Sequence[Node]) -> bool:
    """Return whether the pod would fit now without its limits on cards."""
    if asked.request.cards is None:
        return False
    free = replace(asked.request, cards=None)
    seen = (node.as_seen_by(free.pod) for node in nodes)
    return any(refusal(free, node, asked.policy) is None for node in seen)


def _ways(
    asked: _Asked, nodes: Sequence[Node], verdicts: Sequence[NodeVerdict]
) -> tuple[tuple[Way, ...], int]:
    """Look for pods to delete, if it does not fit but could."""
    if any(verdict.fits for verdict in verdicts):
        return (), 0
    by_name = {node.name: node for node in nodes}
    single = len(asked.request.claims) == 1
    if not single or asked.request.claims[0].whole_cards:
        names = [verdict.name for verdict in verdicts][:MOST_WAYS]
        ways = [_way_on_node(asked, by_name[name]) for name in names]
        return tuple(way for way in ways if way), len(names)
    nearest = sorted(
        (
            (verdict.name, card)
            for verdict in verdicts
            for card in verdict.cards
            if card.free is not None and card.ever
        ),
        key=lambda one: (one[1].missing.units, one[1].missing.cores),
    )[:MOST_WAYS]
    found = [_way_on_card(asked, by_name[name], card) for name, card in nearest]
    return tuple(way for way in found if way), len(nearest)


def _way_on_card(asked: _Asked, node: Node, verdict: CardVerdict) -> Way | None:
    leaving = from_card(asked.request, node, verdict.card, asked.policy)
    if leaving is None:
        return None
    held = holders(node, verdict.card.uuid)
    pods = _refs(node, {uid: held[uid] for uid in leaving})
    return Way(str(node.name), verdict.card, pods)


def _way_on_node(asked: _Asked, node: Node) -> Way | None:
    leaving = from_node(asked.request, node, asked.policy)
    if leaving is None:
        return None
    total: dict[PodUID, Amount] = dict.fromkeys(leaving, NOTHING)
    for card in node.cards:
        for uid, amount in holders(node, card.uuid).items():
            if uid in total:
                total[uid] += amount
    return Way(str(node.name), None, _refs(node, total))


def _refs(node: Node, amounts: Mapping[PodUID, Amount]) -> tuple[PodShare, ...]:
    refs = {uid: asked.pod for uid, asked in node.unplaced.items()}
    for held in (*node.nominations.values(), *node.placements.values()):
        refs[held.pod.uid] = held.pod
    return tuple(PodShare(refs[uid], amount) for uid, amount in amounts.items())


def _cost(way: Way) -> tuple[int, int, int]:
    """Fewest pods first, then the lowest priority, then the fewest units."""
    return (
        len(way.pods),
        max((going.pod.priority for going in way.pods), default=0),
        sum(going.amount.units for going in way.pods),
    )
