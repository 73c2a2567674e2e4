"""Values with a default for everything, so that a test names only what it is about."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    HostAmount,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
    Refusal,
    Share,
)
from gpushare.domain.node import Node
from gpushare.domain.policies import POLICIES, CardOrder, Policy, PolicyChoice
from gpushare.domain.request import ContainerSpec, Role
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards, encode_placement
from gpushare.kube.cluster import EventType, Json, ListPage, WatchEvent

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).isoformat()
"""The time in every placement written here."""

FIRST_FIT = POLICIES["first-fit"]
BEST_FIT = POLICIES["best-fit"]
SPREAD = POLICIES["spread"]


def card(
    index: int = 0,
    units: int = 29,
    *,
    uuid: str = "",
    healthy: bool = True,
    model: str = "Tesla P4",
    cordoned: bool = False,
    parent: str = "",
    reason: str = "",
) -> Card:
    """Card ``index``, whose UUID is ``GPU-<index>`` where none is given."""
    name = CardUUID(uuid or f"GPU-{index}")
    return Card(name, index, units, healthy, model, cordoned, parent, reason)


def cards(*units: int) -> tuple[Card, ...]:
    """Cards of these sizes, numbered from 0."""
    return tuple(card(index, size) for index, size in enumerate(units))


def node(
    *node_cards: Card,
    name: str = "n",
    holds: Iterable[Placement] = (),
    nominated: Iterable[Placement] = (),
    unplaced: Iterable[PodRequest] = (),
) -> Node:
    """A node with these cards, or one of 29 units, and what is held of them."""
    return Node(
        NodeName(name),
        node_cards or (card(),),
        {placed.pod.key: placed for placed in holds},
        {kept.pod.uid: kept for kept in nominated},
        {pending.pod.uid: pending for pending in unplaced},
    )


def ledger_of(*node_cards: Card, name: str = "n") -> Ledger:
    """A ledger of one node with these cards, or one of 29 units."""
    ledger = Ledger()
    ledger.set_cards(NodeName(name), node_cards or (card(),))
    return ledger


def ref(name: str = "pod", *, uid: str = "", priority: int = 0) -> PodRef:
    """Which pod; its UID is ``uid-<name>`` where none is given."""
    return PodRef(PodUID(uid or f"uid-{name}"), "default", name, priority)


def claim(units: int = 0, cores: int = 0, *, container: str = "main") -> Claim:
    """What one container asks, to be found on one card."""
    amount = Amount(cores, units)
    return Claim(amount, (ContainerAmount(container, amount),))


def request(
    name: str = "pod",
    units: int = 0,
    cores: int = 0,
    *,
    claims: Sequence[Claim] | None = None,
    priority: int = 0,
    policy: str | None = None,
    host: HostAmount | None = None,
) -> PodRequest:
    """What a pod asks: one claim, or the claims given."""
    asks = (claim(units, cores),) if claims is None else tuple(claims)
    return PodRequest(ref(name, priority=priority), asks, policy, host=host)


def apart(name: str = "pod", *units: int, priority: int = 0) -> PodRequest:
    """A pod with containers ``c0``, ``c1``... of these units, each its own claim."""
    asks = [claim(size, container=f"c{i}") for i, size in enumerate(units)]
    return request(name, claims=asks, priority=priority)


def share(
    on: str | int = 0, units: int = 1, cores: int = 0, *, container: str = "main"
) -> Share:
    """What one container holds of the card with this UUID or number."""
    uuid = CardUUID(on if isinstance(on, str) else f"GPU-{on}")
    amount = Amount(cores, units)
    return Share(uuid, amount, (ContainerAmount(container, amount),))


def placement(
    name: str = "pod",
    on: str | int = 0,
    units: int = 1,
    cores: int = 0,
    *,
    node: str = "n",
    priority: int = 0,
    shares: Sequence[Share] | None = None,
) -> Placement:
    """What a pod holds: one share, or the shares given."""
    parts = (share(on, units, cores),) if shares is None else tuple(shares)
    return Placement(ref(name, priority=priority), NodeName(node), parts)


def spec(
    name: str = "main", units: int = 0, cores: int = 0, *, role: Role = Role.APP
) -> ContainerSpec:
    """One container and what it asks."""
    return ContainerSpec(name, role, Amount(cores, units))


def policy(name: str = "first-fit", *, order: CardOrder = "index") -> Policy:
    """One of our policies, with a card order."""
    chosen = PolicyChoice(card_order=order).policy(name)
    if isinstance(chosen, Refusal):
        raise TypeError(chosen.detail)
    return chosen


def container_json(
    name: str = "main",
    units: int | str | None = None,
    cores: int | str | None = None,
    *,
    mib: int | str | None = None,
    restart: str | None = None,
) -> Json:
    """A container as the API server gives it: limits, and the same as requests."""
    amounts: dict[str, str] = {}
    if mib is not None:
        amounts[names.MEMORY_MIB] = str(mib)
    if units is not None:
        amounts[names.MEMORY] = str(units)
    if cores is not None:
        amounts[names.CORE] = str(cores)
    body: Json = {"name": name, "image": "busybox"}
    if amounts:
        body["resources"] = {"limits": dict(amounts), "requests": dict(amounts)}
    if restart is not None:
        body["restartPolicy"] = restart
    return body


def pod_json(
    name: str = "pod",
    *,
    uid: str = "",
    units: int | str | None = None,
    cores: int | str | None = None,
    containers: Sequence[Json] | None = None,
    init: Sequence[Json] = (),
    node: str = "",
    phase: str = "Pending",
    priority: int | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    nominated: str = "",
    terminating: bool = False,
    version: str = "1",
) -> Json:
    """A pod as the API server gives it; one container, or the containers given."""
    metadata: Json = {
        "name": name,
        "namespace": "default",
        "uid": uid or f"uid-{name}",
        "resourceVersion": version,
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    if labels:
        metadata["labels"] = dict(labels)
    if terminating:
        metadata["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    if containers is None:
        containers = [container_json("main", units, cores)]
    body: Json = {"containers": list(containers)}
    if init:
        body["initContainers"] = list(init)
    if node:
        body["nodeName"] = node
    if priority is not None:
        body["priority"] = priority
    status: Json = {"phase": phase}
    if nominated:
        status["nominatedNodeName"] = nominated
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": body,
        "status": status,
    }


def bound_json(
    placed: Placement,
    *,
    key: str = names.PLACEMENT,
    phase: str = "Running",
    terminating: bool = False,
) -> Json:
    """The pod that holds this placement; its one container asks all of it."""
    return pod_json(
        placed.pod.name,
        uid=placed.pod.uid,
        units=sum(share.amount.units for share in placed.shares),
        cores=sum(share.amount.cores for share in placed.shares),
        node=placed.node,
        phase=phase,
        priority=placed.pod.priority,
        annotations={key: encode_placement(placed, AT)},
        terminating=terminating,
    )


def node_json(
    name: str = "n",
    *node_cards: Card,
    annotations: Mapping[str, str] | None = None,
    version: str = "1",
) -> Json:
    """A node that shares these cards, or says nothing of cards where none is given.

    An operator has cordoned those that are.
    """
    notes = dict(annotations or {})
    if node_cards:
        notes.setdefault(names.CARDS, encode_cards(node_cards))
    if cordoned := ",".join(card.uuid for card in node_cards if card.cordoned):
        notes.setdefault(names.CORDON, cordoned)
    metadata = {"name": name, "resourceVersion": version, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def event(kind: EventType, thing: Json) -> WatchEvent:
    """One word of a watch."""
    return WatchEvent(kind, thing)


def page(*items: Json, version: str = "1", token: str = "") -> ListPage:
    """One page of a list, the last one where no token is given."""
    return ListPage(items, version, token)


def left(page: Node | None, index: int = 0) -> Amount:
    """What the card with this number has free."""
    if page is None:
        raise LookupError("there is no such page")
    return page.free[CardUUID(f"GPU-{index}")]


def allocation_json(
    device: str = "gpu-0",
    *,
    units: int = 8,
    cores: int = 10,
    node: str = "n",
    request: str = "card",
) -> Json:
    """The allocation of one device of a node, as kube-scheduler writes it."""
    result = {
        "request": request,
        "driver": names.DRA_DRIVER,
        "pool": node,
        "device": device,
        "shareID": f"share-{device}",
        "consumedCapacity": {"memory": f"{units * 256}Mi", "cores": str(cores)},
    }
    return {"devices": {"results": [result]}}


def claim_json(
    name: str = "c",
    allocation: Json | None = None,
    *,
    version: int = 1,
    pods: Iterable[str] = (),
) -> Json:
    """A ResourceClaim, whose UID is ``uid-<name>``, as those of its pods are."""
    users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    reserved = {"reservedFor": users} if users else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "uid": f"uid-{name}",
            "namespace": "default",
            "name": name,
            "resourceVersion": str(version),
        },
        "spec": {"devices": {"requests": [{"name": "card"}]}},
        "status": {} if allocation is None else {"allocation": allocation, **reserved},
    }


def with_claims(pod: Json, uses: Mapping[str, str]) -> Json:
    """Let containers of a pod use claims, each ``claim`` or ``claim/request``."""
    named = sorted({use.partition("/")[0] for use in uses.values()})
    pod["spec"]["resourceClaims"] = [
        {"name": name, "resourceClaimName": name} for name in named
    ]
    for key in ("initContainers", "containers"):
        for container in pod["spec"].get(key, ()):
            if use := uses.get(container["name"]):
                claim, _, request = use.partition("/")
                entry = {"name": claim} | ({"request": request} if request else {})
                container.setdefault("resources", {})["claims"] = [entry]
    return pod


def as_claim(placed: Placement) -> Placement:
    """The same placement, of a ResourceClaim."""
    return replace(placed, pod=replace(placed.pod, is_resource_claim=True))
