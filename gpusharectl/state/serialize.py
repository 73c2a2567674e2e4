"""The survey as data: what ``-o json`` and ``-o yaml`` give. Pure.

The shape is a promise; fields may come, none goes or changes its meaning while ``v``
stays. Amounts have ``cores``, ``units`` and ``memory_mib``. null: nobody knows, or it
does not apply::

    v             1
    at            when it was looked at, RFC 3339
    books         {from: "extender" | "pods and nodes", because: str | null}
    policy        the cluster's own; card_order beside it
    totals        {nodes, cards, other_nodes, units, allotted_units, pending}
    largest_free  {node, card, index, cores, units, memory_mib} | null
    nodes         [{name, ready, schedulable, labelled, device_plugin, offered: {cores,
                  units}, complaint, cards, gone}]
      cards       [{uuid, index, model, units, memory_mib, healthy, cordoned,
                  allotted: amount, free: amount | null, pods}]
      pods, gone  [{namespace, name, uid, priority, cores, units, memory_mib, whole,
                  stay: "placed" | "unplaced" | "nominated", planned: [uuid], leaving,
                  waits, card (of gone)}]
    pending       [{namespace, name, uid, priority, policy, claims: [amount], since,
                  because, room, kube_scheduler, nominated}]
    namespaces    [{name, allotted: amount, quotas: null |
                  [{name, resource, hard, used}]}]
    warnings      [{about, what, do}]
"""

from collections.abc import Iterable
from typing import Any

from gpushare.domain.model import UNIT_MIB, Amount, PodRef
from gpusharectl.state.placements import Books
from gpusharectl.state.read import Trouble
from gpusharectl.state.view import (
    CardView,
    NamespaceView,
    NodeView,
    Quota,
    Survey,
    Tenant,
    Waiting,
)

Data = dict[str, Any]
VERSION = 1


def survey_data(seen: Survey) -> Data:
    """Give all of it, whatever the screen leaves out."""
    return {
        "v": VERSION,
        "at": seen.at.isoformat(),
        "books": books_data(seen.books),
        "policy": seen.books.choice.default,
        "card_order": seen.books.choice.card_order,
        "totals": {
            "nodes": len(seen.nodes),
            "other_nodes": seen.others,
            "cards": len(seen.cards),
            "units": seen.units,
            "allotted_units": seen.allotted,
            "pending": len(seen.pending),
        },
        "largest_free": _largest(seen),
        "nodes": [_node(node) for node in seen.nodes],
        "pending": [_waiting(one) for one in seen.pending],
        "namespaces": [_namespace(one) for one in seen.namespaces],
        "warnings": trouble_data(seen.troubles),
    }


def books_data(books: Books) -> Data:
    """Say whose books these are."""
    origin = "pods and nodes" if books.unasked else "extender"
    return {"from": origin, "because": books.unasked or None}


def trouble_data(troubles: Iterable[Trouble]) -> list[Data]:
    """Give warnings with their next steps."""
    return [{"about": one.about, "what": one.what, "do": one.do} for one in troubles]


def amount_data(amount: Amount) -> Data:
    """Give an amount, with its memory in MiB too."""
    mib = amount.units * UNIT_MIB
    return {"cores": amount.cores, "units": amount.units, "memory_mib": mib}


def pod_data(pod: PodRef) -> Data:
    """Say which pod."""
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "priority": pod.priority,
    }


def _largest(seen: Survey) -> Data | None:
    block = seen.largest
    if block is None:
        return None
    where = {"node": block.node, "card": block.card.uuid, "index": block.card.index}
    return where | amount_data(block.free)


def _node(node: NodeView) -> Data:
    return {
        "name": node.name,
        "ready": node.ready,
        "schedulable": node.schedulable,
        "labelled": node.labelled,
        "device_plugin": node.plugin,
        "offered": {"cores": node.offered_cores, "units": node.offered_units},
        "complaint": node.complaint or None,
        "cards": [_card(view) for view in node.cards],
        "gone": [_tenant(tenant) | {"card": uuid} for uuid, tenant in node.gone],
    }


def _card(view: CardView) -> Data:
    card = view.card
    return {
        "uuid": card.uuid,
        "index": card.index,
        "model": card.model or None,
        "units": card.units,
        "memory_mib": card.units * UNIT_MIB,
        "healthy": card.healthy,
        "cordoned": card.cordoned,
        "allotted": amount_data(view.charged),
        "free": None if view.free is None else amount_data(view.free),
        "pods": [_tenant(tenant) for tenant in view.tenants],
    }


def _tenant(tenant: Tenant) -> Data:
    return {
        **pod_data(tenant.pod),
        **amount_data(tenant.amount),
        "whole": tenant.whole,
        "stay": tenant.stay.value,
        "planned": list(tenant.planned),
        "leaving": tenant.leaving,
        "waits": tenant.waits or None,
    }


def _waiting(one: Waiting) -> Data:
    return {
        **pod_data(one.pod),
        "policy": one.policy,
        "claims": [amount_data(amount) for amount in one.claims],
        "since": one.since or None,
        "because": one.because,
        "room": one.room,
        "kube_scheduler": one.scheduler or None,
        "nominated": one.nominated or None,
    }


def _namespace(one: NamespaceView) -> Data:
    told = None if one.quotas is None else [_quota(quota) for quota in one.quotas]
    return {"name": one.name, "allotted": amount_data(one.allotted), "quotas": told}


def _quota(one: Quota) -> Data:
    return {
        "name": one.name,
        "resource": one.resource,
        "hard": one.hard,
        "used": one.used,
    }
