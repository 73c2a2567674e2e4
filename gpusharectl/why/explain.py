"""Why a pod waits, or is where it is. Pure.

The domain's own decision is asked, over the same books; nothing is fitted here.

Why a bound pod is on its card, as far as can be told now. Pure.

What an operator can do for a pod that waits: one step, the nearest first. Pure.

What ``why`` can answer: one frozen value for each case; ``why`` finds it.

The ``warnings`` of each are sentences about what the pod says in vain.
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
from gpusharectl.state.read import Picture
from gpusharectl.state.view import planned_elsewhere
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
"""Exit codes: it holds its cards or needs none; it waits. 1 is for no answer at all."""


@dataclass(frozen=True, slots=True)
class AsksNothing:
    """No container names our resources, or all ask zero."""

    code: ClassVar[int] = FINE
    state: ClassVar[str] = "asks-nothing"
    pod: str
    phase: str
    node: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Its containers have ended for good, so that it holds nothing."""

    code: ClassVar[int] = FINE
    state: ClassVar[str] = "ended"
    pod: str
    phase: str
    node: str
    words: str
    """Why, in the words of kubelet or whoever ended it; mostly empty."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unmeetable:
    """No node can ever meet the request, and the words say what to ask instead."""

    code: ClassVar[int] = WAITS
    state: ClassVar[str] = "invalid"
    pod: str
    words: str
    node: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GoingPod:
    """A pod that would have to go, and what of the card it holds."""

    pod: PodRef
    amount: Amount


@dataclass(frozen=True, slots=True)
class Way:
    """Who would have to go for the pod to fit: from one card, or from the node."""

    node: str
    card: Card | None
    pods: tuple[GoingPod, ...]


@dataclass(frozen=True, slots=True)
class Pending:
    """It waits: what each node says, and what would help.

    ``scheduler`` are kube-scheduler's own words, ``scheduler_name`` whom it waits for;
    ``cards`` are those that it may have, None where it does not say.
    ``ways`` are worked out for the nearest cards only, as ``ways_of`` says.
    ``evicts``: every pod of the best way is of lower priority than this one.
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
    """What the pod has of one card; ``card`` None for one that is no more there."""

    uuid: CardUUID
    card: Card | None
    amount: Amount


@dataclass(frozen=True, slots=True)
class Earlier:
    """A card that the policy likes better than the pod's own, and why it is not it."""

    card: Card
    words: str


@dataclass(frozen=True, slots=True)
class Placed:
    """It has its cards: which, since when, by which policy, and why those.

    ``planned`` are those that it should have had, none where it has them; without a
    plan (``is_planned``) the device plugin chose. ``waits`` are kubelet's words when a
    container may not start.
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
        """It may have its card and still not run."""
        return WAITS if self.waits else FINE


@dataclass(frozen=True, slots=True)
class Unplaced:
    """It is bound, and nobody knows which cards it has."""

    state: ClassVar[str] = "unplaced"
    pod: PodRef
    asks: str
    node: str
    complaint: str
    waits: str
    warnings: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """Unknown is not fine."""
        return WAITS


Answer = AsksNothing | Ended | Unmeetable | Pending | Placed | Unplaced


_OF_WHOLE_CARDS = "whole cards are the largest untouched ones"


def placed(
    picture: Picture, record: PodRecord, request: PodRequest, held: Placement, pod: Json
) -> Placed:
    """Say on which cards a pod is, since when, and why it came there."""
    page = picture.books.page(record.node) or Node(record.node)
    choice = picture.books.choice
    policy = choice.policy(request.policy)
    elsewhere = planned_elsewhere(record, held)
    by_uuid = {card.uuid: card for card in page.cards}
    earlier: tuple[Earlier, ...] = ()
    because = ""
    if isinstance(policy, Policy) and record.plan is not None:
        # Room that is kept for others now was not when it came.
        before = replace(page.without({record.pod.uid}), nominations={})
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
    """Give the time of the placement: the plan's, else the actual one's, else empty."""
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
    """Give the cards that the policy would have taken before the pod's own."""
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
            yield Earlier(card, f"has room now, {_room(before, card.uuid, claim)} free")
        else:
            yield Earlier(card, f"has too little, {_room(before, card.uuid, claim)}")


def _room(page: Node, uuid: object, claim: Claim) -> str:
    free = next(room for one, room in page.free.items() if one == uuid)
    parts = [words.units(max(0, free.units))] if claim.amount.units else []
    parts += [words.cores(max(0, free.cores))] if claim.amount.cores else []
    return " and ".join(parts)


def _because(request: PodRequest, before: Node, held: Placement, policy: Policy) -> str:
    """Say whether the decision would be the same now, all others in place."""
    now = place(request, before, policy)
    if isinstance(now, Refusal):
        return (
            "it would find no room here now: the cards have changed, or others "
            "came to be there"
        )
    whole = any(claim.whole_cards for claim in request.claims)
    taste = _OF_WHOLE_CARDS if whole else _taste(policy)
    if set(now.cards()) == set(held.cards()):
        return f"{taste}, and would be so now"
    indexes = {card.uuid: card.index for card in before.cards}
    elsewhere = ", ".join(f"card {indexes[uuid]}" for uuid in now.cards())
    return f"{taste}; now that would be {elsewhere}"


def _taste(policy: Policy) -> str:
    by = "index" if policy.card_order == "index" else "UUID"
    first = f"the first card by {by} with room"
    likes = {
        "first-fit": first,
        "best-fit": "the card with the least room that is enough",
        "spread": "the card with the most room",
    }
    return (
        f"{policy.name} takes {likes.get(policy.name, 'the card that it likes best')}"
    )


_MOST = 3


@dataclass(frozen=True, slots=True)
class Helps:
    """What has been found to help: pods to go, cards to open; None where nothing.

    ``others``: a card has room that the pod's own lists shut out.
    """

    best: Way | None
    reopened: Reopened | None
    others: bool = False


def next_step(
    picture: Picture,
    request: PodRequest,
    verdicts: Sequence[NodeVerdict],
    helps: Helps,
    pod: Json,
) -> str:
    """Say what would have the pod run."""
    if nominated := facts.nominated(pod):
        return f"wait; whoever leaves {nominated} makes room for it"
    if not verdicts:
        return "no node shares cards yet: gpusharectl inspect"
    if any(verdict.fits for verdict in verdicts):
        return _room_is_there(picture, pod)
    steps = [_smaller(request, verdicts), _free(helps.best), _reopen(helps.reopened)]
    if helps.others:
        steps.append(_allow(request))
    found = [step for step in steps if step]
    if not found and request.cards is not None:
        more = _allow(request)
        return f"no card that it may have is large enough: {more}, or add a node"
    if not found:
        return "no card of this cluster is large enough: ask less, or add a node"
    return ", or ".join(found)


def _room_is_there(picture: Picture, pod: Json) -> str:
    if gates := facts.gates(pod):
        return f"whoever set its scheduling gates must lift them: {', '.join(gates)}"
    said = facts.condition(pod, "PodScheduled")
    if not said:
        name = facts.scheduler_of(pod)
        return (
            f'no scheduler has looked at it yet; it waits for "{name}": is there one '
            "of that name? (spec.schedulerName)"
        )
    extenders = [p for p in picture.parts if facts.is_extender(p)]
    if extenders and not any(facts.holds(p, "Ready") for p in extenders):
        return "no extender is ready: gpusharectl inspect"
    return (
        "cards are not the reason: see kube-scheduler's words above, or wait for its "
        "next try"
    )


def _smaller(request: PodRequest, verdicts: Sequence[NodeVerdict]) -> str:
    """Say the largest that would fit, with the part that is not too much kept."""
    if len(request.claims) > 1:
        return ""
    (claim,) = request.claims
    offers = {verdict.name: verdict.offers for verdict in verdicts}
    if claim.whole_cards:
        most = max((found.whole for found in offers.values()), default=0)
        too_many = 0 < most < claim.whole_cards
        return f"ask for {words.counted(most, 'whole card')}" if too_many else ""
    best = largest_share(offers, claim.amount.cores)
    if best.units:
        return f"ask for at most {words.units(best.units)} ({words.memory(best.units)})"
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
        return f"ask for at most {words.cores(cores)}"
    return ""


def _allow(request: PodRequest) -> str:
    limits = () if request.cards is None else request.cards.limits
    return f"allow it more cards ({words.annotations(limits)})"


def _free(best: Way | None) -> str:
    if best is None or not best.pods:
        return ""
    pods = words.listed((str(going.pod) for going in best.pods), _MOST)
    where = f"{best.node} card {best.card.index}" if best.card else best.node
    return f"free {where} of {pods}"


def _reopen(way: Reopened | None) -> str:
    if way is None:
        return ""
    if way.sick:
        cards = ", ".join(f"card {card.index}" for card in way.cards)
        return f"have {way.node} {cards} mended"
    cards = " ".join(str(card.index) for card in way.cards)
    return f"open what is cordoned: gpusharectl uncordon-card {way.node} {cards}"


MOST_WAYS = 80
"""Cards for which a way is looked for, the nearest to fitting first."""


def why(picture: Picture, pod: Json) -> Answer:
    """Explain a pod, given as the API server has it now."""
    warnings = tuple(codec.unknown_annotations(pod))
    return replace(_answer(picture, pod), warnings=warnings)


def _answer(picture: Picture, pod: Json) -> Answer:
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
    policy = picture.books.choice.policy(request.policy)
    if node:
        return _bound(picture, record, request, pod)
    if isinstance(policy, Refusal):
        return Unmeetable(name, refusal_text(policy), node)
    return _pending(picture, record, _Asked(request, policy), pod)


def _bound(
    picture: Picture, record: PodRecord, request: PodRequest, pod: Json
) -> Answer:
    page = picture.books.page(record.node)
    held = page.placements.get(record.pod.uid) if page else None
    if page is None or held is None:
        held = record.placement or record.plan
        known = page is not None and record.pod.uid in page.unplaced
        if known or held is None:
            return Unplaced(
                record.pod,
                words.claims(request.claims),
                str(record.node),
                record.complaint,
                facts.waits_because(pod),
            )
    return placed(picture, record, request, held, pod)


@dataclass(frozen=True, slots=True)
class _Asked:
    request: PodRequest
    policy: Policy


def _pending(picture: Picture, record: PodRecord, asked: _Asked, pod: Json) -> Pending:
    pages = [page for page in picture.books.pages if page.cards]
    verdicts = tuple(judge(asked.request, page, asked.policy) for page in pages)
    ways, looked_at = _ways(asked, pages, verdicts)
    best = min(ways, key=_cost, default=None)
    opened = reopened(asked.request, pages, asked.policy)
    helps = Helps(best, opened, _fits_on_others(asked, pages))
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
        because=shortage(record, pages, picture.books.choice).because,
        scheduler=str(facts.condition(pod, "PodScheduled").get("message") or ""),
        scheduler_name=facts.scheduler_of(pod),
        nominated=str(record.nominated),
        ways=ways,
        ways_of=looked_at,
        evicts=evicts,
        next_step=next_step(picture, asked.request, verdicts, helps, pod),
    )


def _fits_on_others(asked: _Asked, pages: Sequence[Node]) -> bool:
    """Tell whether the pod would fit now, did it not limit its own cards."""
    if asked.request.cards is None:
        return False
    free = replace(asked.request, cards=None)
    seen = (page.as_seen_by(free.pod) for page in pages)
    return any(refusal(free, page, asked.policy) is None for page in seen)


def _ways(
    asked: _Asked, pages: Sequence[Node], verdicts: Sequence[NodeVerdict]
) -> tuple[tuple[Way, ...], int]:
    """Look for who would have to go, where it does not fit and one day could."""
    if any(verdict.fits for verdict in verdicts):
        return (), 0
    by_name = {page.name: page for page in pages}
    single = len(asked.request.claims) == 1
    if not single or asked.request.claims[0].whole_cards:
        names = [verdict.name for verdict in verdicts][:MOST_WAYS]
        ways = [_way_on_node(asked, by_name[name]) for name in names]
        return tuple(way for way in ways if way), len(names)
    near = sorted(
        (
            (verdict.name, card)
            for verdict in verdicts
            for card in verdict.cards
            if card.free is not None and card.ever
        ),
        key=lambda one: (one[1].missing.units, one[1].missing.cores),
    )[:MOST_WAYS]
    found = [_way_on_card(asked, by_name[name], card) for name, card in near]
    return tuple(way for way in found if way), len(near)


def _way_on_card(asked: _Asked, page: Node, verdict: CardVerdict) -> Way | None:
    leaving = from_card(asked.request, page, verdict.card, asked.policy)
    if leaving is None:
        return None
    held = holders(page, verdict.card.uuid)
    pods = _refs(page, {uid: held[uid] for uid in leaving.uids})
    return Way(str(page.name), verdict.card, pods)


def _way_on_node(asked: _Asked, page: Node) -> Way | None:
    leaving = from_node(asked.request, page, asked.policy)
    if leaving is None:
        return None
    total: dict[PodUID, Amount] = dict.fromkeys(leaving.uids, NOTHING)
    for card in page.cards:
        for uid, amount in holders(page, card.uuid).items():
            if uid in total:
                total[uid] += amount
    return Way(str(page.name), None, _refs(page, total))


def _refs(page: Node, amounts: Mapping[PodUID, Amount]) -> tuple[GoingPod, ...]:
    refs = {uid: asked.pod for uid, asked in page.unplaced.items()}
    for held in (*page.nominations.values(), *page.placements.values()):
        refs[held.pod.uid] = held.pod
    return tuple(GoingPod(refs[uid], amount) for uid, amount in amounts.items())


def _cost(way: Way) -> tuple[int, int, int]:
    """Fewest pods first, then the least important ones, then the least units."""
    return (
        len(way.pods),
        max((going.pod.priority for going in way.pods), default=0),
        sum(going.amount.units for going in way.pods),
    )
