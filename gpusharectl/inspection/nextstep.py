"""What an operator can do for a pod that waits: one step, the nearest first. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.domain.model import CORES_PER_CARD, PodRequest
from gpushare.kube import words
from gpushare.kube.cluster import Json
from gpusharectl.inspection import facts
from gpusharectl.inspection.answers import Way
from gpusharectl.inspection.picture import Picture
from gpusharectl.inspection.reopening import Reopened
from gpusharectl.inspection.verdict import NodeVerdict, largest_share

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
