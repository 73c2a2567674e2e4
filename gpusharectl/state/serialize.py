"""The overview as data: what ``inspect -o json`` and ``-o yaml`` print. Pure.

The shape is a promise: fields may be added; none is removed or changes its meaning
while ``v`` stays. An amount has ``cores``, ``units`` and ``memory_mib``. null: not
known, or it does not apply::

    v             1
    at            when the cluster was read, RFC 3339
    namespace     the only one that is shown; null: all
    setup         "demo" | "absent" | "installed": whether gpushare is in this cluster
    books         {from: "extender" | "pods and nodes", because: str | null}
    policy        the cluster's default; card_order beside it
    totals        {nodes, cards, other_nodes, units, allotted_units, pending,
                  units_without_cores: free, on cards without a free core}
    largest_free  {node, card, index, cores, units, memory_mib} | null: the most units
                  that a pod with one core could have
    nodes         [{name, ready, schedulable, labelled, device_plugin, offered: {cores,
                  units}, isolation: the tier, links: [the score of each pair of
                  cards: 0-1, 0-2, …, 1-2, …; 0: not known] | null: none is known,
                  complaint, cards, gone}]
      cards       [{uuid, index, model, units, memory_mib, healthy, cordoned,
                  parent: uuid of the card of a MIG instance | null,
                  reason: why it is not healthy,
                  allotted: amount, free: amount | null, pods,
                  others: amount, of pods in namespaces that are not shown}]
      pods, gone  [{namespace, name, uid, priority, cores, units, memory_mib, whole,
                  stay: "placed" | "unplaced" | "nominated", planned: [uuid], leaving,
                  waits, isolation: the tier with which it started; null if it is
                  none or not known; card (of gone);
                  claim: "allocated" | "reserved", and
                  used_by: [{name, uid}] | null: the pods for which it is reserved;
                  both only of a ResourceClaim, which is no pod and has no priority}]
    pending       [{namespace, name, uid, priority, policy, claims: [amount], since,
                  because, room, kube_scheduler, nominated}]
    pending_claims  [namespace/name]: pods without a node that have ResourceClaims, of
                  whichever driver
    namespaces    [{name, allotted: amount, quotas: null |
                  [{name, resource, hard, used}]}]
    warnings      [{about, what, do}]
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from gpushare.domain.model import UNIT_MIB, Amount, Card, PodRef
from gpushare.kube import facts, names, words
from gpusharectl.state.read import Placements, Trouble
from gpusharectl.state.view import (
    CardView,
    NamespaceView,
    NodeView,
    Overview,
    PodShare,
    WaitingPod,
    total_units,
)

Data = dict[str, Any]
VERSION = 1


def overview_data(seen: Overview) -> Data:
    """Return all of it, also what the screen leaves out."""
    units, allotted = total_units(seen.cards)
    return {
        "v": VERSION,
        "at": seen.at.isoformat(),
        "namespace": seen.namespace or None,
        "setup": seen.setup.value,
        "books": source_data(seen.placements),
        "policy": seen.placements.choice.default,
        "card_order": seen.placements.choice.card_order,
        "totals": {
            "nodes": len(seen.nodes),
            "other_nodes": seen.others,
            "cards": len(seen.cards),
            "units": units,
            "allotted_units": allotted,
            "units_without_cores": seen.free.without_cores,
            "pending": len(seen.pending),
        },
        "largest_free": _largest(seen),
        "nodes": [_node(node) for node in seen.nodes],
        "pending": [_waiting(one) for one in seen.pending],
        "pending_claims": list(seen.claiming),
        "namespaces": [_namespace(one) for one in seen.namespaces],
        "warnings": trouble_data(seen.troubles),
    }


def source_data(placements: Placements) -> Data:
    """Return where the placements come from."""
    origin = "pods and nodes" if placements.not_asked else "extender"
    return {"from": origin, "because": placements.not_asked or None}


def trouble_data(troubles: Iterable[Trouble]) -> list[Data]:
    """Return warnings with their next steps."""
    return [asdict(one) for one in troubles]


def amount_data(amount: Amount) -> Data:
    """Return an amount, with its memory in MiB."""
    mib = amount.units * UNIT_MIB
    return {"cores": amount.cores, "units": amount.units, "memory_mib": mib}


def card_data(card: Card) -> Data:
    """Return what is known of a card itself."""
    return {
        "uuid": card.uuid,
        "index": card.index,
        "model": card.model or None,
        "units": card.units,
        "memory_mib": card.units * UNIT_MIB,
        "healthy": card.healthy,
        "cordoned": card.cordoned,
        "parent": card.parent or None,
        "reason": None if card.healthy else card.reason or None,
    }


def pod_data(pod: PodRef) -> Data:
    """Return which pod."""
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "priority": pod.priority,
    }


def _largest(seen: Overview) -> Data | None:
    block = seen.free.largest
    if block is None:
        return None
    where = {"node": block.node, "card": block.card.uuid, "index": block.card.index}
    return where | amount_data(block.free)


def _node(node: NodeView) -> Data:
    return {
        "name": node.name,
        "ready": facts.holds(node.body, "Ready"),
        "schedulable": not facts.is_unschedulable(node.body),
        "labelled": node.labelled,
        "device_plugin": None if node.plugin == words.NOT_KNOWN else node.plugin,
        "offered": {
            "cores": facts.allocatable(node.body, names.CORE),
            "units": facts.allocatable(node.body, names.MEMORY),
        },
        "isolation": node.isolation or None,
        "links": list(node.links) or None,
        "complaint": node.complaint or None,
        "cards": [_card(view) for view in node.cards],
        "gone": [_share(share) | {"card": uuid} for uuid, share in node.gone],
    }


def _card(view: CardView) -> Data:
    return {
        **card_data(view.card),
        "allotted": amount_data(view.charged),
        "free": None if view.free is None else amount_data(view.free),
        "others": amount_data(view.others),
        "pods": [_share(share) for share in view.pods],
    }


def _share(share: PodShare) -> Data:
    return {
        **pod_data(share.pod),
        **amount_data(share.amount),
        "whole": share.whole,
        "stay": share.stay.value,
        "planned": list(share.planned),
        "leaving": share.leaving,
        "waits": share.waits or None,
        "isolation": share.isolation or None,
        **(_claim(share) if share.claim else {}),
    }


def _claim(share: PodShare) -> Data:
    users = share.users
    used_by = None if users is None else [asdict(user) for user in users]
    return {"claim": share.claim, "used_by": used_by}


def _waiting(one: WaitingPod) -> Data:
    return {
        **pod_data(one.seen.record.pod),
        "policy": one.request.policy,
        "claims": [amount_data(claim.amount) for claim in one.request.claims],
        "since": facts.created(one.seen.body) or None,
        "because": str(one.shortage),
        "room": bool(one.shortage.fits),
        "kube_scheduler": one.scheduler or None,
        "nominated": one.seen.record.nominated or None,
    }


def _namespace(one: NamespaceView) -> Data:
    quotas = None if one.quotas is None else [asdict(quota) for quota in one.quotas]
    return {"name": one.name, "allotted": amount_data(one.allotted), "quotas": quotas}
