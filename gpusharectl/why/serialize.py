"""The answer of ``why`` as data: what ``-o json`` and ``-o yaml`` print. Pure.

The shape is a promise, as inspect's. Always ``{v, state, pod, code, warnings, books}``:
``code`` is the exit code, ``pod`` is ``namespace/name``, and ``warnings`` are sentences
about annotations of the pod without a meaning, and about quotas of its namespace that
count nothing or are not known. Beside it, by ``state``::

    absent        suggestions: [namespace/name]; near, its old name
    asks-nothing  phase, node
    ended         phase, node, because
    invalid       because, node
    unplaced      asks, node, complaint, waits
    placed        asks, node, cards: [{uuid, index, model, cores, units, memory_mib}],
                  at, policy, own_policy, models, uuids, planned: [uuid], is_planned,
                  because, earlier: [{uuid, index, because}], phase, leaving, waits,
                  isolation: the tier with which it started; null: none or not known
    pending       asks, claims: [amount], policy, models, uuids, since, because,
                  kube_scheduler, scheduler_name, nominated, never, next, steps: [text],
                  evicts, ways_of, fits_in_sum: {node, cores, units, memory_mib},
                  nodes: [{name, fits, barred, because, fits_now,
                  cards: [{uuid, index, model, units, memory_mib, healthy, cordoned,
                  reason: why it is not healthy,
                  free, missing, untouched, fits, ever, excluded_by}]}],
                  ways: [{node, card, index, pods: [{namespace, name, uid, priority,
                  cores, units, memory_mib}]}]
    by-claims     node, phase, claims: [{name, allocated, because,
                  room: [card of node], refusals: [text], not_judged: [text]}],
                  not_judged: [text], kube_scheduler

``fits_now`` is ``{shares: [amount], whole_cards, whole_units}``: the largest requests
that fit on the node. ``barred`` is why the pod may not use the node whatever is free
there: labels or taints. ``never``: the pod would wait even if all cards were empty and
open. Each of ``steps`` would help alone; ``next`` is all of them. ``missing`` is null
for a closed card, or if whole cards are requested. ``models`` and ``uuids`` limit the
cards of the pod, null if it has no such limit; ``excluded_by`` are the annotations that
exclude the card. ``fits_in_sum`` is a node that has enough in all, while no card has,
so that no autoscaler adds a node; null if there is none. ``ways`` are pods to delete to
make room; they were looked for on the ``ways_of`` nearest cards or nodes. ``evicts``:
kube-scheduler may preempt pods for the pod's cards.
"""

from collections.abc import Sequence

from gpushare.kube import facts, words
from gpushare.kube.annotations import LIMITS
from gpushare.kube.codec import refusal_text
from gpusharectl.output import VERSION, Data, encode
from gpusharectl.state.read import Placements
from gpusharectl.why.explain import Answer, ByClaims, NoShare, Pending, Placed, Unplaced
from gpusharectl.why.verdict import CardVerdict, NodeVerdict, Way


def answer_data(answer: Answer, placements: Placements) -> Data:
    """Return an answer in full."""
    return {
        "v": VERSION,
        "state": answer.state,
        "pod": answer.pod,
        "code": answer.code,
        "warnings": answer.warnings,
        "books": encode(placements),
        **_of(answer),
    }


def absent_data(pod: str, suggestions: Sequence[str], code: int) -> Data:
    """Return that there is no such pod, and the pods with the most similar names."""
    names = list(suggestions)
    found = {"v": VERSION, "state": "absent", "pod": pod, "code": code}
    return found | {"suggestions": names, "near": names}


def _of(answer: Answer) -> Data:
    match answer:
        case NoShare():
            found = {"node": answer.node or None}
            if answer.state != "invalid":
                found["phase"] = facts.phase(answer.body)
            if answer.state != "asks-nothing":
                found["because"] = answer.words or None
            return found
        case Unplaced():
            return {
                "asks": words.claims(answer.request.claims),
                "node": answer.node,
                "complaint": answer.complaint or None,
                "waits": answer.waits or None,
            }
        case Placed():
            return _placed(answer)
        case Pending():
            return _pending(answer)
        case ByClaims():
            claims = [
                {
                    "name": one.name,
                    "allocated": one.allocated,
                    "because": one.words,
                    "room": list(one.room),
                    "refusals": list(one.refusals),
                    "not_judged": list(one.not_judged),
                }
                for one in answer.claims
            ]
            return {
                "node": answer.node or None,
                "phase": facts.phase(answer.body),
                "claims": claims,
                "not_judged": list(answer.not_judged),
                "kube_scheduler": facts.scheduler_says(answer.body) or None,
            }


def _placed(answer: Placed) -> Data:
    return {
        "asks": words.claims(answer.request.claims),
        "node": answer.node,
        "cards": [
            {
                "uuid": held.uuid,
                "index": held.card and held.card.index,
                "model": held.card and held.card.model,
                **encode(held.amount),
            }
            for held in answer.held
        ],
        "at": answer.at or None,
        "policy": answer.policy,
        "own_policy": answer.request.policy is not None,
        **_allowed(answer),
        "planned": [held.uuid for held in answer.planned],
        "is_planned": answer.is_planned,
        "because": answer.because or None,
        "earlier": [
            {"uuid": one.card.uuid, "index": one.card.index, "because": one.words}
            for one in answer.earlier
        ],
        "phase": facts.phase(answer.body),
        "leaving": facts.is_leaving(answer.body),
        "waits": answer.waits or None,
        "isolation": answer.isolation or None,
    }


def _pending(answer: Pending) -> Data:
    return {
        "asks": words.claims(answer.request.claims),
        "claims": [encode(claim.amount) for claim in answer.request.claims],
        "policy": answer.policy,
        **_allowed(answer),
        "since": facts.created(answer.body) or None,
        "because": answer.because,
        "kube_scheduler": facts.scheduler_says(answer.body) or None,
        "scheduler_name": facts.scheduler_of(answer.body),
        "nominated": answer.nominated or None,
        "nodes": [_node(node) for node in answer.nodes],
        "ways": [_way(way) for way in answer.ways],
        "ways_of": answer.ways_of,
        "evicts": bool(answer.preempts_on),
        "never": answer.never,
        "next": ", or ".join(answer.steps),
        "steps": list(answer.steps),
        "fits_in_sum": answer.in_sum
        and {"node": answer.in_sum.node, **encode(answer.in_sum.free)},
    }


def _allowed(answer: Placed | Pending) -> Data:
    cards = answer.request.cards
    return {
        "models": list(cards.models) if cards and cards.models else None,
        "uuids": list(cards.uuids) if cards and cards.uuids else None,
    }


def _node(node: NodeVerdict) -> Data:
    offers = node.offers
    return {
        "name": node.name,
        "fits": node.fits,
        "barred": node.barred or None,
        "because": None if node.no is None else refusal_text(node.no),
        "fits_now": {
            "shares": [encode(share) for share in offers.shares],
            "whole_cards": offers.whole,
            "whole_units": offers.whole_units,
        },
        "cards": [_card(card) for card in node.cards],
    }


def _card(one: CardVerdict) -> Data:
    closed = one.free is None
    return {
        **encode(one.card),
        "free": None if one.free is None else encode(one.free),
        "missing": None if closed or one.whole else encode(one.missing),
        "untouched": one.untouched,
        "fits": one.fits,
        "ever": one.ever,
        "excluded_by": [LIMITS[limit] for limit in one.excluded],
    }


def _way(way: Way) -> Data:
    return {
        "node": way.node,
        "card": way.card and way.card.uuid,
        "index": way.card and way.card.index,
        "pods": [encode(one.pod) | encode(one.amount) for one in way.pods],
    }
