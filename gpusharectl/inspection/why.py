"""Why a pod waits, or is where it is. Pure.

The domain's own decision is asked, over the same books; nothing is fitted here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpushare.domain.model import NOTHING, Amount, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.scheduling import refusal
from gpushare.domain.summary import Refusal
from gpushare.kube import codec, words
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord, refusal_text
from gpushare.kube.fields import Malformed
from gpushare.kube.shortage import shortage
from gpusharectl.inspection import facts
from gpusharectl.inspection.answers import (
    Answer,
    AsksNothing,
    Ended,
    GoingPod,
    Pending,
    Unmeetable,
    Unplaced,
    Way,
)
from gpusharectl.inspection.leaving import from_card, from_node
from gpusharectl.inspection.nextstep import Helps, next_step
from gpusharectl.inspection.picture import Picture
from gpusharectl.inspection.placed import placed
from gpusharectl.inspection.reopening import reopened
from gpusharectl.inspection.verdict import CardVerdict, NodeVerdict, holders, judge

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
