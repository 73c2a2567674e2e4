"""The ledger as JSON, as the extender serves it as ``/snapshot``, and back. Pure."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from gpushare.domain.model import (
    Amount,
    Card,
    Claim,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
    Refusal,
)
from gpushare.domain.node import Block, Node, find_free_units
from gpushare.domain.policies import CARD_ORDERS, POLICIES, PolicyChoice
from gpushare.kube.annotations import (
    read_card,
    read_links,
    read_share,
    write_card,
    write_links,
    write_share,
)
from gpushare.kube.codec import PodRecord, refusal_text
from gpushare.kube.json_reader import Malformed, Reader
from gpushare.kube.resource_claims.allocated import ResourceClaimUser

VERSION = 1
Users = Mapping[PodUID, Sequence[ResourceClaimUser]]
"""The pods for which each ResourceClaim is reserved, by the UID of its placement."""


def write_snapshot(
    nodes: Iterable[Node],
    pods: Iterable[PodRecord],
    choice: PolicyChoice,
    reserved: Container[PodUID] = (),
    users: Users = MappingProxyType({}),
) -> dict[str, Any]:
    """Return all nodes, sorted by name, and the pods that wait for a card.

    Shape: ``{v, policy, card_order, largest_free: {node, card, index, cores, units} |
    null, units_without_cores, nodes: [{name, cards, pods, unplaced, nominations,
    claims}],
    pending: [{uid, namespace, name, priority, claims | refusal, policy, models,
    uuids}]}``; an unplaced pod has the shape of a pending one. ``largest_free`` and
    ``units_without_cores`` are ``FreeUnits``. ``claims`` are ResourceClaims, in the
    shape of ``pods`` and with ``reserved``: whether the API server has not told their
    allocation yet, by ``reserved``, and ``for: [{uid, name}]``, its pods by ``users``,
    if they are known. A node without any lacks it.
    """
    known = sorted(nodes, key=lambda node: node.name)
    free = find_free_units(known)
    return {
        "v": VERSION,
        "policy": choice.default,
        "card_order": choice.card_order,
        "largest_free": free.largest and _block(free.largest),
        "units_without_cores": free.without_cores,
        "nodes": [_node(node, reserved, users) for node in known],
        "pending": [_pending(pod) for pod in pods if pod.waits],
    }


def _block(block: Block) -> dict[str, Any]:
    where = {"node": block.node, "card": block.card.uuid, "index": block.card.index}
    return where | _amount(block.free)


def _node(node: Node, reserved: Container[PodUID], users: Users) -> dict[str, Any]:
    cards = [
        {
            **write_card(card),
            "cordoned": card.cordoned,
            "free": _amount(node.free[card.uuid]) if card.open else None,
        }
        for card in node.cards
    ]
    placed = node.placements.values()
    claims = [
        {
            **_placement(placement),
            "reserved": placement.pod.key in reserved,
            **_users(users.get(placement.pod.uid)),
        }
        for placement in placed
        if placement.pod.is_resource_claim
    ]
    return {
        "name": node.name,
        "cards": cards,
        **write_links(node.cards),
        "pods": [
            _placement(placement)
            for placement in placed
            if not placement.pod.is_resource_claim
        ],
        "unplaced": [_request(request) for request in node.unplaced.values()],
        "nominations": [_placement(kept) for kept in node.nominations.values()],
        **({"claims": claims} if claims else {}),
    }


def _users(users: Sequence[ResourceClaimUser] | None) -> dict[str, Any]:
    if users is None:
        return {}
    return {"for": [{"uid": user.uid, "name": user.name} for user in users]}


def _placement(placement: Placement) -> dict[str, Any]:
    shares = [write_share(share) for share in placement.shares]
    return {**_pod(placement.pod), "shares": shares}


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


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """What a snapshot says: the nodes in its order, and the cluster's own choice.

    ``reserved`` are the ResourceClaims whose allocation was not seen yet. ``users`` are
    the pods for which each is reserved; an older extender names none of a claim.
    """

    nodes: tuple[Node, ...]
    choice: PolicyChoice
    reserved: frozenset[PodUID] = frozenset()
    users: Mapping[PodUID, tuple[ResourceClaimUser, ...]] = field(default_factory=dict)


def read_snapshot(text: bytes) -> LedgerSnapshot:
    """Read what ``snapshot`` has written; ``Malformed`` names the wrong field.

    What each container asks of an unplaced pod's claims is not in a snapshot.
    """
    body = Reader.parse(text, "snapshot")
    body.version(VERSION)
    nodes = tuple(_read_node(node) for node in body.objects("nodes"))
    claims = {
        PodUID(claim.text("uid")): claim
        for node in body.objects("nodes")
        for claim in node.optional_objects("claims")
    }
    reserved = frozenset(
        uid
        for uid, claim in claims.items()
        if claim.optional_boolean("reserved", default=False)
    )
    users = {
        uid: tuple(_read_user(user) for user in claim.objects("for"))
        for uid, claim in claims.items()
        if "for" in claim.raw
    }
    return LedgerSnapshot(nodes, _read_choice(body), reserved, users)


def _read_user(user: Reader) -> ResourceClaimUser:
    return ResourceClaimUser(user.text("name"), PodUID(user.text("uid")))


def _read_choice(body: Reader) -> PolicyChoice:
    policy, order = body.text("policy"), body.text("card_order")
    if policy not in POLICIES:
        raise Malformed(body.path("policy"), f'no policy "{policy}" is known here')
    for known in CARD_ORDERS:
        if known == order:
            return PolicyChoice(policy, known)
    raise Malformed(body.path("card_order"), f'no order "{order}" is known here')


def _read_node(node: Reader) -> Node:
    name = NodeName(node.text("name"))
    placements, nominations = (
        {one.pod.uid: one for one in _read_placements(node, key, name)}
        for key in ("pods", "nominations")
    )
    for one in _read_placements(node, "claims", name) if "claims" in node.raw else ():
        claim = replace(one, pod=replace(one.pod, is_resource_claim=True))
        placements[claim.pod.key] = claim
    unplaced = [_read_request(one) for one in node.objects("unplaced")]
    return Node(
        name,
        read_links(tuple(_read_card(card) for card in node.objects("cards")), node),
        placements,
        nominations,
        {request.pod.uid: request for request in unplaced},
    )


def _read_card(card: Reader) -> Card:
    closed = card.optional_boolean("cordoned", default=False)
    return replace(read_card(card), cordoned=closed)


def _read_placements(node: Reader, key: str, name: NodeName) -> list[Placement]:
    return [
        Placement(
            _read_pod(placement),
            name,
            tuple(read_share(s) for s in placement.objects("shares")),
        )
        for placement in node.objects(key)
    ]


def _read_request(request: Reader) -> PodRequest:
    claims = tuple(
        Claim(_read_amount(claim), ()) for claim in request.objects("claims")
    )
    return PodRequest(
        _read_pod(request), claims, request.optional_text("policy") or None
    )


def _read_amount(amount: Reader) -> Amount:
    return Amount(amount.integer("cores"), amount.integer("units"))


def _read_pod(pod: Reader) -> PodRef:
    return PodRef(
        PodUID(pod.text("uid")),
        pod.text("namespace"),
        pod.text("name"),
        pod.optional_integer("priority"),
    )
