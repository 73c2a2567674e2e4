"""Why a bound pod is on its card, as far as can be told now. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpushare.domain.model import NOTHING, Card, CardUUID, Claim, Placement, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.scheduling import place
from gpushare.domain.summary import Refusal
from gpushare.kube import names, words
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord
from gpushare.kube.fields import Malformed, Reader
from gpusharectl.inspection import facts
from gpusharectl.inspection.answers import Earlier, Held, Placed
from gpusharectl.inspection.picture import Picture
from gpusharectl.inspection.survey import planned_elsewhere
from gpusharectl.inspection.verdict import judge

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
