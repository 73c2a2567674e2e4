"""Write the ledger as JSON, for inspect, why and simulate. Pure."""

from collections.abc import Iterable
from typing import Any

from gpushare.domain.model import Amount, Placement, PodRef, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.policies import Choice
from gpushare.domain.refusal import Refusal
from gpushare.kube.codec import PodRecord, refusal_text

VERSION = 1


def snapshot(
    nodes: Iterable[Node], pods: Iterable[PodRecord], choice: Choice
) -> dict[str, Any]:
    """Return all nodes, sorted by name, and the pods that wait for a card.

    Shape: ``{v, policy, card_order, nodes: [{name, cards, pods, unplaced,
    nominations}], pending: [{uid, namespace, name, priority, claims | refusal,
    policy, models, uuids}]}``; an unplaced pod has the shape of a pending one.
    """
    return {
        "v": VERSION,
        "policy": choice.default,
        "card_order": choice.card_order,
        "nodes": [_node(node) for node in sorted(nodes, key=lambda node: node.name)],
        "pending": [_pending(pod) for pod in pods if _waits(pod)],
    }


def _node(node: Node) -> dict[str, Any]:
    cards = [
        {
            "uuid": card.uuid,
            "index": card.index,
            "units": card.units,
            "healthy": card.healthy,
            "cordoned": card.cordoned,
            "model": card.model,
            "free": _amount(node.free[card.uuid]) if card.open else None,
        }
        for card in node.cards
    ]
    return {
        "name": node.name,
        "cards": cards,
        "pods": [_placement(placement) for placement in node.placements.values()],
        "unplaced": [_request(request) for request in node.unplaced.values()],
        "nominations": [_placement(kept) for kept in node.nominations.values()],
    }


def _placement(placement: Placement) -> dict[str, Any]:
    shares = [
        {
            "card": share.card,
            **_amount(share.amount),
            "containers": {
                held.name: [held.amount.cores, held.amount.units]
                for held in share.containers
            },
        }
        for share in placement.shares
    ]
    return {**_pod(placement.pod), "shares": shares}


def _waits(pod: PodRecord) -> bool:
    return not pod.node and (pod.asks or isinstance(pod.request, Refusal))


def _pending(record: PodRecord) -> dict[str, Any]:
    if isinstance(record.request, Refusal):
        return {**_pod(record.pod), "refusal": refusal_text(record.request)}
    return _request(record.request)


def _request(request: PodRequest) -> dict[str, Any]:
    claims = [_amount(claim.amount) for claim in request.claims]
    chosen = request.cards
    return {
        **_pod(request.pod),
        "claims": claims,
        "policy": request.policy,
        "models": (chosen and chosen.models) or None,
        "uuids": (chosen and chosen.uuids) or None,
    }


def _pod(pod: PodRef) -> dict[str, Any]:
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "name": pod.name,
        "priority": pod.priority,
    }


def _amount(amount: Amount) -> dict[str, int]:
    return {"cores": amount.cores, "units": amount.units}
