"""What the commands show of a cluster: nodes, cards, pods on them, namespaces. Pure.

``inspect``, ``top`` and the screen after ``install`` draw an ``Overview``.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from gpushare.cache.shortage import Block, largest_block, shortage
from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Card,
    CardUUID,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
)
from gpushare.domain.node import Node
from gpushare.domain.quantity import NotAQuantity, NotWhole, whole
from gpushare.kube import codec, facts, names, words
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord
from gpushare.kube.json_reader import Malformed
from gpusharectl.state.read import ClusterState, Placements, SeenPod, Trouble
from gpusharectl.state.troubles import troubles

NO_PLUGIN = "missing"
PLUGIN_NOT_READY = "not ready"
PLUGIN_READY = "ready"
COUNTED = (names.MEMORY, names.CORE, names.BITFUSION_GPU)
"""The resources of which a quota is shown."""
_QUOTA_KEY = "requests."
"""How a quota names what pods request of an extended resource."""


class Stay(StrEnum):
    """How a pod comes to be on a card."""

    PLACED = "placed"
    UNPLACED = "unplaced"
    """It runs on the node, its card is not known: charged on each card."""
    NOMINATED = "nominated"
    """Room is reserved for it; the pods that it preempts are being deleted."""


@dataclass(frozen=True, slots=True)
class PodShare:
    """What one pod holds of one card.

    ``planned`` are the planned cards, if the pod is on other ones. ``waits`` is why a
    container does not start, in kubelet's words.
    """

    pod: PodRef
    amount: Amount
    stay: Stay = Stay.PLACED
    whole: bool = False
    planned: tuple[CardUUID, ...] = ()
    leaving: bool = False
    waits: str = ""


@dataclass(frozen=True, slots=True)
class CardView:
    """A card, what is charged to it, and the pods on it, the largest first.

    Room that is reserved for a nominated pod is not charged, and not free either.
    ``free`` is None for a closed card; it may be below zero.
    """

    card: Card
    charged: Amount
    free: Amount | None
    pods: tuple[PodShare, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that shares cards, or should.

    ``ready`` is None if it is not known. ``offered_...`` is kubelet's allocatable, None
    if kubelet does not know the resource. ``gone`` are pods on cards that the node no
    longer has.
    """

    name: str
    ready: bool | None
    schedulable: bool
    labelled: bool
    plugin: str
    offered_units: int | None
    offered_cores: int | None
    cards: tuple[CardView, ...]
    gone: tuple[tuple[CardUUID, PodShare], ...]
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pending pod: what it requests, and why it waits.

    ``because`` is our reason, ``room`` whether some card has room for it, ``scheduler``
    kube-scheduler's message, empty if there is none.
    """

    pod: PodRef
    asks: str
    claims: tuple[Amount, ...]
    policy: str | None
    since: str
    because: str
    room: bool
    scheduler: str
    nominated: str


@dataclass(frozen=True, slots=True)
class Quota:
    """One resource of a ResourceQuota; None is not known."""

    name: str
    resource: str
    hard: int | None
    used: int | None


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """What a namespace's pods hold; ``quotas`` is None if they could not be read."""

    name: str
    allotted: Amount
    quotas: tuple[Quota, ...] | None


@dataclass(frozen=True, slots=True)
class Overview:
    """All that inspect shows. ``others`` counts the nodes that share no cards.

    ``pending`` and ``namespaces`` are the whole cluster's, whichever nodes are shown.
    """

    placements: Placements
    at: datetime
    nodes: tuple[NodeView, ...]
    others: int
    pending: tuple[WaitingPod, ...]
    largest: Block | None
    troubles: tuple[Trouble, ...]
    namespaces: tuple[NamespaceView, ...] = ()

    @property
    def cards(self) -> tuple[CardView, ...]:
        """All cards of all nodes shown."""
        return tuple(card for node in self.nodes for card in node.cards)


def total_units(cards: Iterable[CardView]) -> tuple[int, int]:
    """Return the units of these cards, and how many are allotted.

    Of a card never more than it has.
    """
    found = list(cards)
    allotted = sum(min(one.charged.units, one.card.units) for one in found)
    return sum(one.card.units for one in found), allotted


def overview(
    state: ClusterState, only: str = "", more: Sequence[Trouble] = ()
) -> Overview:
    """Show all nodes that share cards or should, or only the one of this name.

    ``more`` are troubles that were found elsewhere, such as in this host's files.
    """
    held = {str(node.name): node for node in state.placements.nodes}
    known = {facts.name_of(node): node for node in state.nodes}
    shown = sorted(name for name in {*held, *known} if _shares_cards(name, held, known))
    others = len(known.keys() - set(shown))
    if only:
        shown, others = [only], 0
    return Overview(
        state.placements,
        state.now,
        tuple(_node(state, name, held.get(name)) for name in shown),
        others,
        tuple(_pending(state)),
        largest_block([held[name] for name in shown if name in held]),
        (*troubles(state, more), *_idle_quotas(state)),
        namespaces(state),
    )


def _shares_cards(name: str, held: dict[str, Node], known: dict[str, Json]) -> bool:
    node = held.get(name)
    if node and (node.cards or node.placements or node.unplaced):
        return True
    body = known.get(name)
    return body is not None and (
        facts.is_labelled(body) or bool(facts.annotation(body, names.CARDS))
    )


def _node(state: ClusterState, name: str, held: Node | None) -> NodeView:
    body = state.node(name)
    node = held or Node(NodeName(name))
    here = {card.uuid for card in node.cards}
    plugin = state.plugins.get(name)
    state_of_plugin = PLUGIN_READY if plugin else PLUGIN_NOT_READY
    return NodeView(
        name=name,
        ready=None if body is None else facts.holds(body, "Ready"),
        schedulable=body is not None and not facts.is_unschedulable(body),
        labelled=body is not None and facts.is_labelled(body),
        plugin=NO_PLUGIN if plugin is None else state_of_plugin,
        offered_units=facts.allocatable(body, names.MEMORY) if body else None,
        offered_cores=facts.allocatable(body, names.CORE) if body else None,
        cards=tuple(_card(state, node, card) for card in node.cards),
        gone=tuple(one for one in _shares_on(state, node) if one[0] not in here),
        complaint=_complaint(body),
    )


def _complaint(node: Json | None) -> str:
    if node is None:
        return "the API server knows no such node"
    try:
        codec.cards(node)
    except Malformed as error:
        return str(error)
    return ""


def _card(state: ClusterState, node: Node, card: Card) -> CardView:
    cores, units = replace(node, nominations={}).charged.get(card.uuid, (0, 0))
    pods = [one for uuid, one in _shares_on(state, node) if uuid == card.uuid]
    pods += _unplaced(state, node, card)
    charged = Amount(cores, units) + node.unknown[card.uuid]
    pods.sort(key=_largest_first)
    return CardView(card, charged, node.free.get(card.uuid), tuple(pods))


def _largest_first(share: PodShare) -> tuple[bool, int, int, str, str]:
    amount, pod = share.amount, share.pod
    coming = share.stay is Stay.NOMINATED
    return (coming, -amount.units, -amount.cores, pod.namespace, pod.name)


def _shares_on(state: ClusterState, node: Node) -> Iterator[tuple[CardUUID, PodShare]]:
    yield from _held(state, node.placements.values(), Stay.PLACED)
    reserved = [
        placement
        for uid, placement in node.nominations.items()
        if uid not in node.placements and uid not in node.unplaced
    ]
    yield from _held(state, reserved, Stay.NOMINATED)


def _held(
    state: ClusterState, placements: Iterable[Placement], stay: Stay
) -> Iterator[tuple[CardUUID, PodShare]]:
    for placement in placements:
        seen = state.pods.get(placement.pod.uid)
        for share in placement.shares:
            found = PodShare(
                placement.pod,
                share.amount,
                stay,
                whole=share.amount.cores >= CORES_PER_CARD,
                planned=planned_elsewhere(seen.record if seen else None, placement),
                leaving=seen is not None and seen.record.terminating,
                waits="" if seen is None else facts.waits_because(seen.body),
            )
            yield share.card, found


def planned_elsewhere(
    record: PodRecord | None, held: Placement
) -> tuple[CardUUID, ...]:
    """Return the planned cards, if the pod is on other ones; else none."""
    if record is None or record.plan is None:
        return ()
    planned = record.plan.cards()
    return () if set(planned) == set(held.cards()) else planned


def _unplaced(state: ClusterState, node: Node, card: Card) -> Iterator[PodShare]:
    for uid, asked in node.unplaced.items():
        whole_card = any(claim.whole_cards for claim in asked.claims)
        amount = sum((claim.amount for claim in asked.claims), NOTHING)
        seen = state.pods.get(uid)
        yield PodShare(
            asked.pod,
            card.capacity if whole_card else amount,
            Stay.UNPLACED,
            whole=whole_card,
            leaving=seen is not None and seen.record.terminating,
            waits="" if seen is None else facts.waits_because(seen.body),
        )


def _pending(state: ClusterState) -> Iterator[WaitingPod]:
    placed = {uid for node in state.placements.nodes for uid in node.placements}
    waiting = [
        seen
        for uid, seen in state.pods.items()
        if not seen.record.node and uid not in placed and _asks(seen.record)
    ]
    for seen in sorted(waiting, key=lambda one: _order(one.record.pod)):
        yield _waiting(state, seen)


def _asks(record: PodRecord) -> bool:
    return record.asks or not isinstance(record.request, PodRequest)


def _order(pod: PodRef) -> tuple[int, str, str]:
    return (-pod.priority, pod.namespace, pod.name)


def _waiting(state: ClusterState, seen: SeenPod) -> WaitingPod:
    record, request = seen.record, seen.record.request
    claims = request.claims if isinstance(request, PodRequest) else ()
    said = facts.condition(seen.body, "PodScheduled")
    found = shortage(record, state.placements.nodes, state.placements.choice)
    return WaitingPod(
        record.pod,
        words.claims(claims) or words.NOT_KNOWN,
        tuple(claim.amount for claim in claims),
        request.policy if isinstance(request, PodRequest) else None,
        facts.created(seen.body),
        found.because,
        bool(found.fits),
        str(said.get("message") or ""),
        str(record.nominated),
    )


def namespaces(state: ClusterState) -> tuple[NamespaceView, ...]:
    """Return those that hold something of a card or have a quota on one, by name."""
    held = _allotted(state)
    if state.quotas is None:
        return tuple(NamespaceView(name, held[name], None) for name in sorted(held))
    quotas: defaultdict[str, list[Quota]] = defaultdict(list)
    for body in state.quotas:
        if found := list(_quotas_in(body)):
            quotas[str(body["metadata"].get("namespace") or "")] += found
    return tuple(
        NamespaceView(name, held.get(name, NOTHING), tuple(quotas.get(name, ())))
        for name in sorted({*held, *quotas})
    )


def _idle_quotas(state: ClusterState) -> Iterator[Trouble]:
    """Report quotas on Bitfusion's resource if no node offers it."""
    resource = names.BITFUSION_GPU
    if any(facts.allocatable(node, resource) for node in state.nodes):
        return
    idle = [
        str(body["metadata"].get("namespace") or "")
        for body in state.quotas or ()
        if any(one.resource == resource for one in _quotas_in(body))
    ]
    for namespace in dict.fromkeys(idle):
        what = f"its quota on {resource} counts nothing, because no node offers it"
        yield Trouble(namespace, what, f"gpusharectl migrate-quota -n {namespace}")


def _allotted(state: ClusterState) -> Mapping[str, Amount]:
    """Add up what is charged, each pod once: one of unknown card holds one only."""
    found: defaultdict[str, Amount] = defaultdict(Amount)
    for node in state.placements.nodes:
        for placement in node.placements.values():
            for share in placement.shares:
                found[placement.pod.namespace] += share.amount
        for asked in node.unplaced.values():
            for claim in asked.claims:
                found[asked.pod.namespace] += claim.amount
    return found


def _quotas_in(body: Json) -> Iterator[Quota]:
    hard = (body.get("spec") or {}).get("hard") or {}
    used = (body.get("status") or {}).get("used") or {}
    for resource in COUNTED:
        key = f"{_QUOTA_KEY}{resource}"
        if key in hard:
            allowed, counted = _number(hard[key]), _number(used.get(key))
            yield Quota(facts.name_of(body), resource, allowed, counted)


def _number(found: object) -> int | None:
    """Read a quantity; None if it is missing or no whole number."""
    try:
        return None if found is None else whole(found)
    except (NotAQuantity, NotWhole):
        return None
