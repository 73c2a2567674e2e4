"""The answer of ``make-room`` as data: ``-o json`` and ``-o yaml``.

::

    v, pod, asks, claims: [amount], policy,
    state: "plan" | "no-plan", why: null | fits | never | closed | apart |
           none-may-move | no-plan, because, exact: the search was not cut short,
    node, cards: [{uuid, index}],
    moves: [{namespace, name, uid, priority, cores, units, memory_mib,
             from: {node, cards}, to: {node, cards}}],
    fits_in_sum: {node, cores, units, memory_mib}, stay: {reason: number of pods},
    notes: [text], next, evicted: [namespace/name], done, outcome, code

``evicted``, ``done`` and ``outcome`` are there with ``--evict`` only.
"""

from gpushare.domain.eviction.landing import Move
from gpushare.domain.eviction.moves import NoPlan, Plan
from gpushare.domain.model import Placement
from gpushare.kube import words
from gpusharectl.make_room.evict import Outcome
from gpusharectl.make_room.proposal import Proposal
from gpusharectl.make_room.render import index_of
from gpusharectl.state.serialize import VERSION, Data, amount_data, pod_data


def proposal_data(found: Proposal, outcome: Outcome | None, code: int) -> Data:
    """Return what is proposed, and what came of it."""
    result, request = found.result, found.asked.request
    plan = result if isinstance(result, Plan) else None
    no = result if isinstance(result, NoPlan) else None
    in_sum = found.in_sum
    data: Data = {
        "v": VERSION,
        "pod": None if found.asked.body is None else found.asked.name,
        "asks": words.claims(request.claims),
        "claims": [amount_data(claim.amount) for claim in request.claims],
        "policy": request.policy or found.view.choice.default,
        "state": "plan" if plan else "no-plan",
        "why": no and no.why.value,
        "because": no and no.words,
        "exact": result.exact,
        "node": plan and plan.node,
        "cards": _cards(plan.placement, found) if plan else [],
        "moves": [_move(move, found) for move in plan.moves] if plan else [],
        "fits_in_sum": in_sum and {"node": in_sum.node, **amount_data(in_sum.free)},
        "stay": dict(found.view.stay),
        "notes": [*found.view.guesses, *found.hints],
        "next": found.next or None,
    }
    if outcome is not None:
        data |= {
            "evicted": list(outcome.evicted),
            "done": outcome.done,
            "outcome": outcome.words,
        }
    return data | {"code": code}


def _move(move: Move, found: Proposal) -> Data:
    return {
        **pod_data(move.pod),
        **amount_data(move.source.shares[0].amount),
        "from": {"node": move.source.node, "cards": _cards(move.source, found)},
        "to": {"node": move.landing.node, "cards": _cards(move.landing, found)},
    }


def _cards(held: Placement, found: Proposal) -> list[Data]:
    indexes = index_of(found.view.situation.nodes, held.node)
    return [{"uuid": uuid, "index": indexes.get(uuid)} for uuid in held.cards()]
